"""The built book: complete in itself, without a call to another host, readable on a phone and in the dark.

What takes long, since it opens every page, has a file of its own, as the workers of a parallel run take whole files.
"""

import functools
import gzip
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import pytest

from mha_course import exercises
from mha_course.figures.live import bundle

ROOT = Path(__file__).parents[2]
LOADED_BY = {"src", "srcset", "data", "poster"}  # attributes that make a browser load something, whatever the tag
FOREIGN = re.compile(r"^\s*(?:https?:)?//", re.IGNORECASE)
IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class Page(HTMLParser):
    """What a page loads, where its links lead, its own anchors and its pictures."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.hrefs, self.anchors, self.pictures, self.css = [], set(), set(), [], ""
        self.inside = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.inside = tag
        self.anchors |= {found.get("id"), found.get("name") if tag == "a" else None}
        if tag in ("a", "area") and "href" in found:
            self.hrefs.add(found["href"])
        self.css += f" {found.get('style') or ''}"
        self.loads += [value for name, value in attributes if name in LOADED_BY and value]
        if tag in ("link", "use", "image"):
            self.loads += [value for name, value in attributes if name in ("href", "xlink:href") and value]
        if tag == "img":
            self.pictures.append((found.get("src"), found.get("alt") or ""))

    def handle_data(self, data):
        if self.inside == "style":
            self.css += data
        self.inside = ""


@functools.cache
def parsed(path):
    """A page's parts. There are more than a thousand links to check, and a page is half a megabyte."""
    return Page(path.resolve())


def test_the_book_builds_without_a_warning(build):
    done, site = build
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").is_file()


def test_every_chapter_and_exercise_notebook_is_a_page(site):
    for notebook in (ROOT / "book").glob("*.ipynb"):
        assert (site / "book" / f"{notebook.stem}.html").is_file(), f"{notebook.name} is missing from _toc.yml"


def test_no_page_names_a_file_of_another_host(site, pages):
    for name in pages:
        page = parsed(site / name)
        assert [value for value in page.loads if FOREIGN.match(value)] == [], name
        assert IN_CSS.findall(page.css) == [], name


def test_no_style_sheet_names_a_file_of_another_host(site):
    for path in site.rglob("*.css"):
        assert IN_CSS.findall(path.read_text("utf-8")) == [], path.name


def test_every_file_that_a_page_loads_is_there(site, pages):
    for name in pages:
        for value in parsed(site / name).loads:
            target = urlsplit(value)
            if not target.scheme and target.path:
                assert ((site / name).parent / target.path).exists(), f"{name} loads {value}"


def test_every_icon_of_the_theme_is_drawn_here_and_its_script_is_gone(site, pages):
    drawn = set(re.findall(r"\.fa-([a-z-]+) {", (site / "_static" / "course.css").read_text("utf-8")))
    for name in pages:
        text = (site / name).read_text("utf-8")
        assert "fontawesome.js" not in text
        used = re.findall(r'class="[^"]*\bfa(?:s|-solid)\s([^"]*)"', text)
        assert {icon for classes in used for icon in re.findall(r"fa-([a-z-]+)", classes)} - {"lg"} <= drawn, name


def test_a_page_with_all_that_it_loads_is_below_one_megabyte_as_a_server_sends_it(site, pages):
    for name in pages:
        loaded = {(site / name).parent / urlsplit(value).path for value in parsed(site / name).loads} | {site / name}
        sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in loaded if path.is_file()}
        assert sum(sizes.values()) < 1_000_000, (name, sizes)


def test_only_pages_with_formulas_load_the_style_of_formulas(site, pages):
    loading = {str(name) for name in pages if "katex" in "".join(parsed(site / name).loads)}
    having = {str(name) for name in pages if 'class="katex"' in (site / name).read_text("utf-8")}
    assert loading == having != set()


def test_every_picture_is_described_in_words(site, pages):
    for name in pages:
        for source, alt in parsed(site / name).pictures:
            assert len(alt.split()) > 3, f"{name} shows {source} as {alt!r}"


def test_solutions_are_folded(site):
    page = (site / "book" / "multi_head_exercises.html").read_text("utf-8")
    shown = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    assert page.count("Show the solution") >= 3
    assert "heads cannot share" in page  # a solution's own words
    assert "heads cannot share" not in shown
    assert "BEGIN SOLUTION" not in page
    assert "NotImplementedError" in shown


@pytest.mark.parametrize("exercise", exercises.load_all().values(), ids=lambda exercise: exercise.name)
def test_where_an_exercise_and_its_misconceptions_point_to_there_is_a_section(site, exercise):
    for section in (told.section for told in (*exercise.parts, *exercise.misconceptions)):
        page, _, anchor = section.partition("#")
        assert anchor in parsed(site / "book" / f"{page}.html").anchors, section


def test_the_page_to_open_leads_to_the_first_page(address, view):
    view.goto(f"{address}/index.html")
    view.wait_for_url("**/book/index.html")
    assert view.locator("article h1").inner_text().startswith("Attention, from the idea to the Transformer")
    assert view.wrong == []


def test_a_wide_formula_can_be_scrolled_to_its_beginning(site, view):
    view.goto(f"{site.as_uri()}/book/multi_head.html")
    hidden = """formulas => formulas.map(formula => Math.min(
        ...[...formula.querySelectorAll('.base')].map(part => part.getBoundingClientRect().left)
    ) - formula.getBoundingClientRect().left)"""
    starts = view.locator("div.math").evaluate_all(hidden)
    assert starts
    assert min(starts) >= 0


def test_no_line_begins_with_the_mark_behind_a_formula(site, pages):
    for name in pages:
        assert re.findall(r"</span></span></span></span>[.,;:!?]", (site / name).read_text("utf-8")) == [], name
    assert '<span class="punctuation">,</span></span></span></span></span>' in (site / "book/encoder.html").read_text(
        "utf-8"
    )


def test_no_line_ends_between_a_chapter_and_its_number_or_inside_a_shape(site):
    text = (site / "book" / "soft_addressing.html").read_text("utf-8")
    prose = re.sub(r"<(pre|script)\b.*?</\1>", "", text, flags=re.DOTALL)
    assert re.findall(r"[Cc]hapter \d|\(\d+, \d+\)", prose) == []
    assert {"chapter\u00a01", "(5,\u00a03,\u00a04)"} <= set(re.findall(r"chapter\s1|\(5,\s3,\s4\)", prose))
    assert "\u00a0" not in "".join(re.findall(r"<pre.*?</pre>", text, re.DOTALL))


def test_what_scrolls_sideways_fades_out_where_there_is_more_of_it(site, view):
    view.goto(f"{site.as_uri()}/book/multi_head.html")
    fades = """(block, left) => new Promise(done => {
        block.scrollLeft = left;
        requestAnimationFrame(() => requestAnimationFrame(() => done(
            ["--more-before", "--more-behind"].map(name => getComputedStyle(block).getPropertyValue(name))
        )));
    })"""
    blocks = view.locator("pre:visible")  # one in a closed fold does not move
    wide = blocks.evaluate_all("blocks => blocks.map(block => block.scrollWidth - block.clientWidth)")
    scrolls, fits = (blocks.nth(wide.index(width)) for width in (max(wide), 0))
    assert [scrolls.evaluate(fades, left) for left in (0, max(wide) // 2, 9999)] == [
        ["0px", "40px"], ["40px", "40px"], ["40px", "0px"]
    ]  # fmt: skip
    assert fits.evaluate(fades, 0) == ["0px", "0px"]
    view.emulate_media(media="print")  # where nothing scrolls, nothing may be hidden
    assert scrolls.evaluate("block => getComputedStyle(block).maskImage") == "none"


MOVED = """() => new Promise(done => new PerformanceObserver(list => done(list.getEntries().map(entry =>
    [entry.value, ...entry.sources.map(source => source.node?.outerHTML?.slice(0, 90))]
))).observe({ type: "layout-shift", buffered: true }) || setTimeout(() => done([]), 500))"""


@pytest.mark.parametrize("name", bundle.names())
def test_a_figure_computes_on_its_page_and_brings_the_page_no_jump(site, pages, view, name):
    tag = f"mha-{name.replace('_', '-')}"
    (page,) = [page for page in pages if f"<{tag} " in (site / page).read_text("utf-8")]
    view.goto(f"{site.as_uri()}/{page}")
    figures = view.locator(tag)
    assert figures.evaluate_all("figures => figures.map(figure => Boolean(figure.model))") == [True] * figures.count()
    figures.first.scroll_into_view_if_needed()
    assert [shift for shift in view.evaluate(MOVED) if "mha-" in str(shift)] == []
    assert figures.first.bounding_box()["width"] <= 390
    assert view.wrong == []


def test_a_solution_opens_on_a_click(site, view):
    view.goto(f"{site.as_uri()}/book/multi_head_exercises.html")
    solution = view.locator("details", has_text="heads cannot share").first
    assert not solution.locator("pre").is_visible()
    solution.locator("summary").click()
    assert solution.locator("pre").is_visible()


@pytest.mark.parametrize(("name", "figure"), [("index", "img.dark-light"), ("multi_head", ".cell_output img")])
def test_a_figure_has_no_card_behind_it_in_the_dark(site, browser, name, figure):
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{site.as_uri()}/book/{name}.html")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    style = page.locator(figure).first.evaluate(
        "figure => { const style = getComputedStyle(figure); return [style.backgroundColor, style.filter]; }"
    )
    assert style == ["rgba(0, 0, 0, 0)", "invert(1) brightness(0.88) invert(1)"]
    context.close()


def test_every_link_within_the_book_leads_somewhere(site):
    """Sphinx checks links between sources; these are those of the finished pages, of scripts and plain HTML too."""
    links = {path.resolve(): parsed(path) for path in site.rglob("*.html") if "_static" not in path.parts}
    lost = {}
    for page, found in links.items():
        for href in found.hrefs:
            target = urlsplit(href)
            if target.scheme or target.netloc:
                continue
            file = (page.parent / unquote(target.path)).resolve() if target.path else page
            fragment = unquote(target.fragment)
            beginning = fragment in ("", "top")  # of any page, by definition
            there = file.is_file() and (beginning or file not in links or fragment in links[file].anchors)
            if not (there and file.is_relative_to(site.resolve())):
                lost.setdefault(page.name, []).append(href)
    assert lost == {}


GLOSSARY = "glossary.html"
# What people type, and where the first or second hit must lead: an entry of the glossary, found by its heading word.
SEARCHED = {
    "add & norm": "add & norm",
    "attention mask": "mask",
    "attention_mask": "attention_mask",
    "attn_mask": "attn_mask",
    "autoregressive": "autoregressive",
    "beam search": "beam search",
    "BOS": "start and end tokens",
    "[CLS]": "special token",
    "cosine similarity": "cosine",
    "cross attention": "cross-attention",
    "d_k": "d_head",
    "d_model": "d_model",
    "dropout": "dropout",
    "einsum": "einsum",
    "encoder-decoder attention": "cross-attention",
    "EOS": "start and end tokens",
    "FFN": "feed-forward",
    "Flash Attention": "fused kernel",
    "GQA": "grouped-query attention",
    "hard attention": "hard attention",
    "intra-attention": "self-attention",
    "is_causal": "attn_mask",
    "key_padding_mask": "padding mask",
    "KV cache": "KV cache",
    "label smoothing": "label smoothing",
    "LayerNorm": "layer norm",
    "logits": "logits",
    "look-ahead mask": "causal mask",
    "mean pooling": "pooling",
    "MHA": "multi-head attention",
    "MLP": "feed-forward",
    "MQA": "grouped-query attention",
    "nucleus sampling": "top-p",
    "perplexity": "perplexity",
    "positional encoding": "position",
    "pre-LN": "pre-norm",
    "QKV": "QKV",
    "residual connection": "residual path",
    "RoPE": "rotary positions",
    "scaled dot-product attention": "scaled dot-product attention",
    "SDPA": "scaled dot-product attention",
    "skip connection": "residual path",
    "src_key_padding_mask": "padding mask",
    "subsequent mask": "causal mask",
    "teacher forcing": "teacher forcing",
    "temperature": "temperature",
    "tgt_mask": "attn_mask",
    "top-k": "top-k",
    "tril": "causal mask",
    "warmup": "warm-up",
    "weight tying": "weight tying",
}


@pytest.fixture(scope="module")
def entries(site):
    """The glossary: which heading word each anchor belongs to, and the pages that each entry leads to."""
    html = (site / "book" / GLOSSARY).read_text("utf-8")
    headed, led = {}, {}
    for terms, definition in re.findall(r"((?:<dt id=.*?</dt>\s*)+)<dd>(.*?)</dd>", html, flags=re.DOTALL):
        anchors = re.findall(r'<dt id="([^"]+)"', terms)
        word = unescape(re.sub(r"<[^>]+>", "", terms.partition('<a class="headerlink"')[0])).strip()
        headed |= dict.fromkeys(anchors, word)
        led[word] = re.findall(r'href="([a-z_]+\.html)', definition)
    return headed, led


def test_a_glossary_entry_leads_to_where_its_word_is_introduced(entries):
    _, led = entries
    assert len(led) >= 90
    assert [word for word, pages in led.items() if not pages] == []


def test_the_glossary_is_in_alphabetical_order(entries):
    _, led = entries
    plain = [re.sub(r"[^a-z ]", " ", word.lower()) for word in led]
    assert plain == sorted(plain)


def test_a_search_finds_what_people_call_it(site, browser, entries):
    """The book's own search page, opened as a file; hits come from the best down."""
    headed, _ = entries
    page = browser.new_page()
    elsewhere = {}
    for typed, word in SEARCHED.items():
        page.goto(f"{site.as_uri()}/search.html?q={quote(typed)}")
        page.locator(".search-summary", has_text="finished").wait_for()
        hits = page.locator("ul.search > li > a").evaluate_all("links => links.map(link => link.href)")[:2]
        found = [headed.get(urlsplit(hit).fragment) for hit in hits if urlsplit(hit).path.endswith(GLOSSARY)]
        if word not in found:
            elsewhere[typed] = hits
    page.close()
    assert elsewhere == {}


@pytest.mark.parametrize(
    ("typed", "entry", "meaning"),
    [
        ("QKV", "QKV", "Queries, keys and values: three vectors"),
        ("add & norm", "add & norm", "A sublayer"),
        ("<begin>", "start and end tokens", "The marks for the beginning"),
        ("look-ahead mask", "causal mask", "The mask that lets each token see itself"),
    ],
)
def test_a_hit_in_the_glossary_says_for_which_word_and_what_it_means(address, view, typed, entry, meaning):
    view.goto(f"{address}/search.html?q={quote(typed)}")
    view.locator(".search-summary", has_text="finished").wait_for()
    assert view.locator("ul.search > li").first.inner_text().startswith(f"Glossary > {entry} ({meaning}")
    assert view.wrong == []


def test_a_word_that_is_in_many_names_finds_its_own_entry_then_chapters_then_each_entry_once(site, view):
    view.goto(f"{site.as_uri()}/search.html?q=attention")
    view.locator(".search-summary", has_text="finished").wait_for()
    hits = view.locator("ul.search > li > a").all_inner_texts()
    entries = [hit for hit in hits if hit.startswith("Glossary > ")]
    assert hits[0] == "Glossary > attention"
    assert len(entries) == len(set(entries)) > 10
    assert hits.index(entries[1]) > max(
        map(hits.index, ("1. Attention intuition", "3. Self-attention", "4. Multi-head attention"))
    )


def test_names_are_still_found_after_a_build_that_changed_another_page(tmp_path):
    """Sphinx alone drops them: https://github.com/sphinx-doc/sphinx/issues/12599."""
    (tmp_path / "book").mkdir()
    (tmp_path / "conf.py").write_text(
        'extensions = ["myst_parser", "search_hits"]\nmyst_enable_extensions = ["dollarmath"]', "utf-8"
    )
    (tmp_path / "book" / "glossary.md").write_text(
        "# Words\n\n```{glossary}\nQKV\nthree vectors\n  What a token *gets*, $a \\cdot b$. And so on.\n```\n", "utf-8"
    )
    indexes = []
    for text in ("# First\n", "# First\n\nand more\n"):
        (tmp_path / "index.md").write_text(f"{text}\n```{{toctree}}\nbook/glossary\n```\n", "utf-8")
        command = [sys.executable, "-m", "sphinx", "-q", tmp_path, tmp_path / "out"]
        path = os.pathsep.join([str(ROOT / "book" / "_ext"), *sys.path])
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=100)
        indexes.append((tmp_path / "out" / "searchindex.js").read_text("utf-8"))
    assert "and more" not in indexes[0]
    assert all('"three vectors": [[' in index for index in indexes), indexes
    shown = (tmp_path / "out" / "_static" / "search_hits.js").read_text("utf-8")
    assert '["QKV", ["term-QKV", "term-three-vectors"], "What a token gets, a · b."]' in shown
