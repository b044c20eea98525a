"""The page of answers: each question leads to a heading that exists, under the words that people search by."""

import re
from pathlib import Path

import nbformat
import pytest
from mdit_py_plugins.anchors.index import slugify

BOOK = Path(__file__).parents[2] / "book"
PAGE = (BOOK / "answers.md").read_text("utf-8")
HEADING = re.compile(r"^(#{1,3}) (.+)$", re.MULTILINE)
WORDS = (
    "look-ahead mask",
    "subsequent mask",
    "causal mask",
    "padding mask",
    "`attention_mask`",
    "`tgt_mask`",
    "`src_mask`",
    "`key_padding_mask`",
    "`src_key_padding_mask`",
    "`memory_key_padding_mask`",
    "`attn_mask`",
    "`is_causal=True`",
    "`padding_idx`",
    "QKV",
    "residual (skip) connections",
    "LayerNorm",
    "RMSNorm",
    "pre-LN",
    "FFN",
    "RoPE",
    "ALiBi",
    "KV cache",
    "GQA",
    "teacher forcing",
    "beam search",
    "nucleus sampling",
    "attention sink",
    "intra-attention",
    "enable_nested_tensor",
    "`nan_to_num`",
    "`generate_square_subsequent_mask`",
    "`rotate_half`",
    "`pooler_output`",
    "`output_attentions`",
    "`lm_head`",
    "`enable_gqa`",
    "out of memory",
    "perplexity",
    "scheduled sampling",
    "BLEU",
)
TOPICS = (
    "Where attention comes from",
    "Queries, keys and values",
    "Scaling and softmax",
    "Masking",
    "The causal mask",
    "Padding",
    "Masks in libraries",
    "Nothing to see (NaN)",
    "Several heads",
    "Splitting into heads",
    "PyTorch's layers",
    "Speed and memory",
    "Reading attention maps",
    "BERT, GPT-2 and the library transformers",
    "Embeddings",
    "Positions",
    "Normalisation",
    "Residual paths",
    "Dropout",
    "One vector for a text",
    "The architecture",
    "Cross-attention",
    "Pictures, series and learned queries",
    "Loss",
    "Training",
    "Decoding",
    "The KV cache",
)


def anchors(text):
    """The anchors that the book's builder gives to the headings of a text."""
    return [slugify(re.sub(r"[`*]", "", title)) for _, title in HEADING.findall(text)]


def read(name):
    """The text of a page, of a notebook without its code."""
    path = BOOK / name
    if path.suffix != ".ipynb":
        return path.read_text("utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def topics():
    """The questions and answers under each topic."""
    parts = re.split(r"^## (.+)$", PAGE, flags=re.MULTILINE)[1:]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        pieces = re.split(r"^### (.+)$", body, flags=re.MULTILINE)[1:]
        yield title, dict(zip(pieces[::2], pieces[1::2], strict=True))


QUESTIONS = {question: answer for _, answers in topics() for question, answer in answers.items()}
LINK = re.compile(r"\]\(([\w.]+)(?:#([^)]+))?\)")


@pytest.mark.parametrize("page", sorted({page for page, _ in LINK.findall(PAGE)}))
def test_every_link_leads_to_a_heading_that_exists(page):
    there = anchors(read(page))
    assert [anchor for name, anchor in LINK.findall(PAGE) if name == page and anchor and anchor not in there] == []


def test_every_topic_has_questions_in_the_order_of_the_chapters():
    assert tuple(title for title, _ in topics()) == TOPICS
    assert [title for title, answers in topics() if len(answers) < 3] == []


def test_the_page_begins_with_a_list_of_its_topics():
    start, _, _ = PAGE.partition("\n## ")
    listed = [(re.sub(r"[`*]", "", title), anchor) for title, anchor in re.findall(r"\[([^]]+)\]\(#([^)]+)\)", start)]
    assert listed == [(topic, slugify(topic)) for topic in TOPICS]


def test_no_question_is_lost():
    assert len(QUESTIONS) >= 261


def test_no_two_anchors_are_alike():
    there = anchors(PAGE)
    assert sorted(there) == sorted(set(there))


def test_an_answer_is_short_and_says_where_the_rest_stands():
    for question, text in QUESTIONS.items():
        answer, _, places = re.split(r"\*(In full|Nearby):\*", text)
        assert "?" in question
        words = re.sub(r"^```python.*?^```", "", answer, flags=re.DOTALL | re.MULTILINE).split()
        assert 10 <= len(words) <= 90, question
        assert LINK.findall(places), question
        assert all(anchor for _, anchor in LINK.findall(places)), question


def test_the_words_that_people_type_are_there():
    assert [words for words in WORDS if words.lower() not in PAGE.lower()] == []
