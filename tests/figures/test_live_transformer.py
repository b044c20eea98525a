"""The figure of chapter 8 runs the shipped translator as the package does, to the last token, and follows keyboard and mouse."""

import base64
import json
import subprocess

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from live import NODE, computed, numbers
from mha_course.figures.live import bundle
from mha_course.figures.live.transformer import LARGEST, LONGEST, MAPS, NumberTranslator
from mha_course.generation import TransformerWriter, beam_search, generate
from mha_course.multi_head import recorded_weights
from mha_course.tasks.number_words import words
from mha_course.tasks.translation import BEGIN, END, PAD
from mha_course.tasks.translator import load

# In one run of Node: the model's answer to each request, and every number that the figure shows of it.
RUN = """
import { readFileSync } from "node:fs";
const [folder] = process.argv.slice(1);
const [model, words, figure] = await Promise.all(
  ["transformer_model", "transformer_words", "transformer"].map((name) => import(`${folder}/${name}.mjs`)));
const { pieces, requests } = JSON.parse(readFileSync(0, "utf8"));
const net = model.network(new Uint8Array(pieces.flatMap((piece) => [...Buffer.from(piece, "base64")])));
console.log(JSON.stringify(requests.map(({ words: source, beams, alpha, whole }) => {
  const stages = figure.translate(net, source, { beams, alpha });
  const { ended } = stages.at(-1);
  const answer = { ids: ended.map(({ tokens }) => tokens), sums: ended.map(({ sum }) => sum), steps: stages.length - 1 };
  if (!whole) return answer;
  const read = model.encode(net, source.map((word) => words.SOURCE.ids.get(word)));
  const [{ state, tokens }] = ended;
  let before = null;
  const logits = [words.BEGIN, ...tokens.slice(0, -1)].map((token) => (before = model.decode(net, read, before, token)).logits);
  return { ...answer, memory: read.memory.map((row) => [...row]), logits, maps: state.maps };
})));
"""


def translated(requests):
    """Let the figure's module translate: each request has `words`, `beams`, `alpha` and whether `whole` is wanted."""
    pieces = [base64.b64encode(piece).decode() for piece in bundle.pieces("transformer")]
    given = json.dumps({"pieces": pieces, "requests": requests})
    command = [NODE, "--input-type=module", "--eval", RUN, bundle.HERE.as_uri()]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def said(number, language):
    """The words of a number, also past those that `words` says: so many thousands, and the rest."""
    thousands, rest = divmod(number, 1000)
    if thousands < 1000:
        return words(number, language)
    counted = words(thousands, language)
    if language == "de" and counted[-1] == "eins":
        counted = [*counted[:-1], "ein"]
    return [*counted, {"en": "thousand", "de": "tausend"}[language], *(words(rest, language) if rest else [])]


@pytest.fixture(scope="module")
def exact():
    """The shipped translator in double precision, and how it writes."""
    translator = load()
    translator.model.double()
    return translator


def writer(translator, *sources):
    ids = [torch.tensor(translator.task.source_vocabulary.encode(source)) for source in sources]
    return TransformerWriter(translator.model, pad_sequence(ids, batch_first=True, padding_value=PAD), BEGIN)


def whole(translator, source, ids):
    """The memory, the scores at each token and the cross-attention while `ids` are written."""
    read = torch.tensor([translator.task.source_vocabulary.encode(source)])
    with torch.no_grad(), recorded_weights(translator.model) as weights:
        logits = translator.model(read, torch.tensor([[BEGIN, *ids[:-1]]]))[0]
        memory = translator.model.encode(read)[0]
    maps = torch.stack([weights[f"decoder.layers.{layer}.cross_attn"][0] for layer in range(2)])
    return memory, logits, maps.permute(2, 0, 1, 3)  # (token, layer, head, source)


def test_memory_scores_and_cross_attention_are_the_package_s(exact):
    sources = [said(number, "en") for number in (0, 71, 342_087, 999_999, 1_234_567)] + [["twenty", "thousand", "zero"]]
    found = translated([{"words": source, "beams": 1, "alpha": 0, "whole": True} for source in sources])
    for source, got in zip(sources, found, strict=True):
        wanted = whole(exact, source, got["ids"][0])
        for name, want in zip(("memory", "logits", "maps"), wanted, strict=True):
            torch.testing.assert_close(torch.tensor(got[name], dtype=torch.float64), want, rtol=1e-6, atol=1e-6)


def test_greedy_and_beams_write_what_the_package_writes(exact):
    generator = torch.Generator().manual_seed(0)
    drawn = [*range(30), *torch.randint(1_000_000, (150,), generator=generator).tolist()]
    beyond = torch.randint(1_000_000, LARGEST, (20,), generator=generator).tolist()
    strange = [said(number, "en") for number in (342_087, 17, 5_000, 1_000_000, 1_234_567, LARGEST)]
    strange += [["twelve", "hundred", "forty", "two"], ["hundred"], ["one", "two", "three"]]
    groups = [([said(number, "en") for number in (*drawn, *beyond)], 1, 0.0)]
    groups += [(strange, beams, alpha) for beams, alpha in ((2, 0.0), (3, 0.7), (4, 1.0))]
    asked = [
        {"words": source, "beams": beams, "alpha": alpha} for sources, beams, alpha in groups for source in sources
    ]
    found = iter(translated(asked))
    for sources, beams, alpha in groups:
        batch, all_sums = beam_search(writer(exact, *sources), beams, LONGEST, END, alpha)
        greedy = generate(writer(exact, *sources), LONGEST, END)
        for row, ids, sums in zip(range(len(sources)), batch.tolist(), all_sums.tolist(), strict=True):
            got = next(found)
            assert [text + [END] * (len(ids[0]) - len(text)) for text in got["ids"]] == ids
            assert got["sums"] == pytest.approx(sums, rel=1e-6, abs=1e-6)
            if beams == 1:
                assert got["ids"][0] == greedy[row, : len(got["ids"][0])].tolist()
            elif row == 0:  # alone, to see when it stops
                assert got["steps"] == beam_search(writer(exact, sources[0]), beams, LONGEST, END, alpha)[0].size(2)


class TableWriter:
    """Scores by the last token alone, many of them equal."""

    def __init__(self, scores):
        self.scores = torch.tensor(scores, dtype=torch.float64)

    def begin(self):
        return self.next(torch.tensor([0]))

    def next(self, tokens):
        return self.scores[tokens]

    def reorder(self, rows):
        pass


@pytest.mark.parametrize(("beams", "alpha", "end"), [(1, 0.0, 0), (2, 0.5, 1), (3, 0.0, 0), (4, 1.0, 1)])
def test_beams_settle_ties_as_the_package_does_and_stop_at_the_longest(beams, alpha, end):
    scores = [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [0, -1, 2, 2, 0], [0, 0, 3, 3, 1], [1, 0, 1, 0, 1]]
    script = """
        const { beamSearch } = await import(process.argv[1]);
        const { scores, ...how } = JSON.parse(process.argv[2]);
        const stages = beamSearch((before, token) => ({ logits: scores[token] }), 0, how);
        console.log(JSON.stringify([stages.length - 1, ...stages.at(-1).ended.map(({ tokens, sum }) => [tokens, sum])]));
    """
    how = {"scores": scores, "beams": beams, "longest": 5, "end": end, "alpha": alpha}
    path = (bundle.HERE / "transformer_model.mjs").as_uri()
    command = [NODE, "--input-type=module", "--eval", script, path, json.dumps(how)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    steps, *found = json.loads(done.stdout)
    ids, sums = beam_search(TableWriter(scores), beams, 5, end, alpha)
    assert steps == ids.size(2)
    assert [tokens + [end] * (steps - len(tokens)) for tokens, _ in found] == ids[0].tolist()
    assert [total for _, total in found] == pytest.approx(sums[0].tolist(), rel=1e-12)


def test_halves_are_read_as_numpy_reads_them():
    bits = [0x0000, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xC001, 0x7BFF, 0xFC00]
    wanted = torch.tensor(bits, dtype=torch.int32).to(torch.int16).view(torch.float16).tolist()
    found = computed("transformer_model", *(["half", pattern] for pattern in bits))
    assert found[:-1] == wanted[:-1]
    assert (wanted[-1], found[-1]) == (-torch.inf, None)  # JSON has no infinity


def test_numbers_are_said_as_the_package_says_them_and_read_back():
    task = load().task
    asked = [*range(1100), *(1000 * n for n in range(1, 1000, 7)), 101_021, 999_999, 1_000_000, 1_001_001, LARGEST]
    calls = [[language, number] for number in asked for language in ("english", "german")]
    assert computed("transformer_words", *calls) == [said(n, short) for n in asked for short in ("en", "de")]
    back = computed("transformer_words", *(["numberOf", said(number, "en")] for number in asked))
    assert back == asked
    odd = ["twelve hundred", "two forty", "hundred", "zero zero", "thousand one", "twenty thirteen", "one two"]
    assert computed("transformer_words", *(["numberOf", text.split()] for text in odd)) == [None] * len(odd)
    every = [[word] for word in task.source_vocabulary.tokens[3:]]
    assert all(found.get("words") for found in computed("transformer_words", *(["understood", w[0]] for w in every)))


@pytest.mark.parametrize(
    "text", ["", " , ", "-5", "1.5", "1.001", "million", "two hundred and two", "<pad>", "9999999999", "one " * 21]
)
def test_what_is_no_number_is_refused_in_one_sentence_by_page_and_python(text):
    (found,) = computed("transformer_words", ["understood", text])
    assert found["trouble"].count(". ") == 0
    assert found["trouble"].endswith(".")
    assert ("must be whole, without dots or signs" in found["trouble"]) == (text in ("-5", "1.5", "1.001"))
    with pytest.raises(ValueError, match=r"^text must [^\n]*$"):
        NumberTranslator(text=text)


@pytest.mark.parametrize(
    "text", ["342,087", " 342 087", "Forty-Two", "forty, two", "999999999", "one " * 20, "twelve hundred"]
)
def test_what_can_be_said_is_taken_by_page_and_python(text):
    (found,) = computed("transformer_words", ["understood", text])
    assert found["words"]
    assert NumberTranslator(text=text).text == text.strip()


def test_the_example_is_what_the_model_says(exact):
    ids = exact.task.target_vocabulary.encode([*words(342_087, "de"), "<end>"])
    _, logits, maps = whole(exact, words(342_087, "en"), ids)
    chances, total, lines = logits.softmax(dim=-1), 0.0, []
    for chance, token, weights in zip(chances, ids, maps[:, 1].mean(dim=1), strict=True):
        total += float(chance[token].log())
        top = chance.topk(5)
        names = [exact.task.target_vocabulary.tokens[i] for i in top.indices.tolist()]
        candidates = [[name, round(p, 5)] for name, p in zip(names, top.values.tolist(), strict=True)]
        entry = [
            exact.task.target_vocabulary.tokens[token],
            round(total, 5),
            candidates,
            [round(w, 4) for w in weights.tolist()],
        ]
        lines.append(f"    {json.dumps(entry, ensure_ascii=False)},\n")
    assert f"  tokens: [\n{''.join(lines)}  ],\n" in (bundle.HERE / "transformer.mjs").read_text("utf-8")


# ---- in the browser ---------------------------------------------------------------------------------------------------


def table(page, caption):
    """The rows of a table that are seen, each with its label first."""
    rows = page.locator(f"table:has(caption:text('{caption}')) tbody tr:not(.mha-transformer-off)")
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def loaded(page):
    page.get_by_role("button", name="Load the model").press("Enter")
    page.get_by_text("The model is loaded: 240,320 weights").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Translate"  # the field would open a phone's keyboard


def agrees(page, translator, source, written, attention=lambda maps: maps[:, 1].mean(dim=1)):
    """Compare the map and the candidates shown after so many tokens with the package's."""
    ids = generate(writer(translator, source), LONGEST, END)[0].tolist()
    _, logits, maps = whole(translator, source, ids)
    rows = min(written + 1, len(ids))
    tokens = [translator.task.target_vocabulary.tokens[i] for i in ids]
    shown = table(page, "Cross-attention")
    assert [row[0] for row in shown] == [*tokens[:written], "next: ?"][:rows]
    assert page.locator("table:has(caption:text('Cross-attention')) thead th").all_inner_texts() == source
    for row, weights in zip(shown, attention(maps)[:rows], strict=True):
        assert [float(cell) for cell in row[1:]] == pytest.approx(weights.tolist(), abs=0.0051)
    best = logits[rows - 1].softmax(dim=-1).topk(5)
    candidates = table(page, f"Candidates for token {rows}")
    assert [row[0] for row in candidates] == [
        translator.task.target_vocabulary.tokens[i] for i in best.indices.tolist()
    ]
    assert [float(row[1]) for row in candidates] == pytest.approx(best.values.tolist(), abs=0.00051)


def test_it_translates_what_is_typed_token_by_token_as_the_package_does(opened, exact):
    page = opened(NumberTranslator())
    agrees(page, exact, words(342_087, "en"), 10)
    before = page.locator(".mha table").all_inner_texts()
    page.get_by_role("button", name="To the start").press("Enter")
    agrees(page, exact, words(342_087, "en"), 0)
    page.get_by_role("button", name="Next token").press("Enter")
    agrees(page, exact, words(342_087, "en"), 1)
    field, sentence = page.get_by_role("textbox", name="number"), page.locator(".mha-sentence")
    field.fill("472")
    field.press("Enter")
    assert sentence.inner_text() == "Load the model to see what it makes of “four hundred seventy two”."
    loaded(page)
    agrees(page, exact, words(472, "en"), 6)
    assert sentence.inner_text().startswith("Right: it wrote “vier hundert zwei und siebzig”, with a probability of ")
    field.fill("342,087")
    page.get_by_role("button", name="Translate").click()
    assert page.locator(".mha table").all_inner_texts() == before  # the example was the truth

    field.fill("six hundred twenty-one")
    field.press("Tab")
    agrees(page, exact, words(621, "en"), 0)
    for written in (1, 2, 3):
        page.get_by_role("button", name="Next token").press("Enter")
        agrees(page, exact, words(621, "en"), written)
    assert sentence.inner_text().startswith("3 tokens are written. For the next it looks most at ")
    candidate, chance = table(page, "Candidates")[0]
    assert sentence.inner_text().endswith(f"finds “{candidate}” best, with a probability of {chance}.")
    page.get_by_role("button", name="Back").press("Enter")
    agrees(page, exact, words(621, "en"), 2)
    page.get_by_role("combobox").select_option("head L0H2")
    agrees(page, exact, words(621, "en"), 2, lambda maps: maps[:, 0, 2])

    height = page.locator(".mha").bounding_box()["height"]
    field.fill("two million")
    field.press("Enter")
    assert "“million” is none of them" in sentence.inner_text()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("1,234,567")
    page.get_by_role("button", name="Translate").click()
    agrees(page, exact, said(1_234_567, "en"), 10, lambda maps: maps[:, 0, 2])
    assert sentence.inner_text().startswith("Wrong: it wrote ")
    assert f"by the rules it is “{' '.join(said(1_234_567, 'de'))}”" in sentence.inner_text()
    assert page.locator(".mha").bounding_box()["height"] == height
    page.get_by_text("Wrong", exact=False).and_(page.get_by_role("status")).wait_for(state="attached")


def test_beams_and_the_length_penalty_choose_as_the_package_does(opened, exact):
    page = opened(NumberTranslator(text="twelve hundred forty two", step=2))
    loaded(page)
    source = ["twelve", "hundred", "forty", "two"]
    for name, beams, alpha in (("1 (greedy)", 1, 0.0), ("2", 2, 0.0), ("4", 4, 0.0), ("4", 4, 1.0)):
        page.get_by_role("radio", name=name, exact=True).press("Space")
        assert page.get_by_role("slider").is_visible() == (beams > 1)
        if alpha:
            page.get_by_role("slider").press("End")
        page.get_by_role("button", name="Translate").press("Enter")
        ids, sums = beam_search(writer(exact, source), beams, LONGEST, END, alpha)
        shown = table(page, "The best texts")
        texts = [[*exact.task.target_vocabulary.decode(row), "<end>"] for row in ids[0]]
        assert [row[3].split() for row in shown] == texts
        assert [numbers(row[1])[0] for row in shown] == pytest.approx(sums[0].tolist(), abs=0.00051)
        ranks = [float(total) / len(text) ** alpha for total, text in zip(sums[0], texts, strict=True)]
        assert [numbers(row[2])[0] for row in shown] == pytest.approx(ranks, abs=0.00051)
    assert page.locator(".mha-sentence").inner_text().startswith("It wrote “zwölf hundert zwei und vierzig”")
    assert (
        page.locator(".mha-sentence")
        .inner_text()
        .endswith("isn't a number by the model's rules, so this can't be checked.")
    )
    assert "4 beams, alpha 1.0" in page.locator("caption", has_text="The best texts").inner_text()
    page.get_by_role("button", name="To the start").press("Enter")
    page.get_by_role("button", name="Next token").press("Enter")
    assert table(page, "The best texts")[0][3] == "zwölf …"


def test_what_comes_next_is_held_back_from_who_wants_to_guess(opened):
    page = opened(NumberTranslator())
    page.get_by_role("checkbox", name="let me guess first").check()
    assert table(page, "Candidates for token 10")[0] == ["<end>", "0.999"]  # at the end nothing is left to guess
    height = page.locator(".mha").bounding_box()["height"]
    page.get_by_role("button", name="To the start").click()
    for token in ("drei", "hundert"):
        assert table(page, "Cross-attention")[-1] == ["next: ?", *[""] * 7]
        styles = page.locator("tr:has(th:text('next: ?')):not(.mha-transformer-off) td").evaluate_all(
            "all => all.map(cell => cell.style.background)"
        )
        assert set(styles) == {""}
        assert table(page, "Candidates") == [["", ""]] * 5
        assert token not in page.locator(".mha").inner_text().split()
        assert (
            page.locator(".mha-sentence")
            .inner_text()
            .endswith("Which token comes next, and which word does it look at most? “Next token” shows it.")
        )
        assert page.locator(".mha").bounding_box()["height"] == height
        page.get_by_role("button", name="Next token").click()
        assert token in page.locator(".mha").inner_text().split()
    assert table(page, "Cross-attention")[1][:3] == ["hundert", ".07", ".92"]
    page.get_by_role("checkbox").uncheck()
    assert table(page, "Candidates for token 3")[0] == ["zwei", "0.998"]


def test_a_search_at_its_end_stays_there_when_another_alpha_makes_it_longer(opened):
    page = opened(NumberTranslator(text="1,234,567", beams=4, step=0))
    loaded(page)
    forward, alpha = page.get_by_role("button", name="Next token"), page.get_by_role("slider")
    while forward.get_attribute("aria-disabled") == "false":
        forward.press("Enter")
    lengths = set()
    for _ in range(10):
        alpha.press("ArrowRight")
        assert forward.get_attribute("aria-disabled") == "true"
        lengths.add(page.locator("mha-transformer").evaluate("figure => figure.model.get('step')"))
    assert lengths == {LONGEST}


@pytest.mark.parametrize("width", [344, 640, 720])  # as in the book on pages of 360, 1200 and 1280
def test_texts_and_map_fit_the_page_and_the_steps_stand_near_them(opened, width):
    page = opened(NumberTranslator(), width=width)
    page.get_by_role("button", name="To the start").click()
    page.get_by_role("button", name="Next token").click()
    for box in page.locator(".mha-scroll").all():
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
    button, candidates, drawing = (
        page.locator(of).bounding_box()
        for of in (
            "button:text('Next token')",
            "table:has(caption:text('Candidates'))",
            "table:has(caption:text('Cross'))",
        )
    )
    assert 0 < candidates["y"] - button["y"] < 100
    assert drawing["y"] - button["y"] < 450


def test_state_out_of_range_is_refused():
    figure = NumberTranslator()
    for name, value in (("beams", 5), ("alpha", 1.5), ("step", -1), ("attention", "L2")):
        with pytest.raises(Exception, match=name):
            setattr(figure, name, value)
    assert figure.attention in MAPS
