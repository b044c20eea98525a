import importlib.util

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mha_course import pretrained
from mha_course.multi_head import MultiHeadAttention

SENTENCES = [
    "The cat sat on the mat",
    "Attention!",
    "The animal did not cross the street because it was too tired, and so it lay down where it was.",
    "Words that nobody knows: zxqvly, Überraschung, 注意力.",
    "",
]

needs_weights = pytest.mark.skipif(not pretrained.is_installed(), reason=f"no weights here: {pretrained.INSTALL}")


@pytest.fixture(scope="module")
def model():
    return pretrained.load()


@pytest.fixture(scope="module")
def reference():
    from transformers import BertModel

    folder = importlib.util.find_spec(pretrained.CARRIER).submodule_search_locations[0]
    return BertModel.from_pretrained(f"{folder}/model", attn_implementation="eager").eval()


@needs_weights
def test_hidden_states_and_attention_maps_agree_with_the_transformers_library(model, reference):
    ids, mask = model.tokenize(SENTENCES)
    assert not mask.all()  # some sentences are padded
    with torch.no_grad():
        right = reference(ids, attention_mask=mask.long(), output_attentions=True)
        hidden = model(ids, mask)
    assert_close(hidden[mask], right.last_hidden_state[mask], rtol=0.0, atol=1e-5)
    maps = model.attention_maps(ids, mask)
    assert maps.shape == (6, len(SENTENCES), 12, ids.size(1), ids.size(1))
    assert_close(maps, torch.stack(right.attentions), rtol=0.0, atol=1e-5)


@needs_weights
def test_tokens_are_those_of_the_transformers_library(model):
    from transformers import AutoTokenizer

    folder = importlib.util.find_spec(pretrained.CARRIER).submodule_search_locations[0]
    right = AutoTokenizer.from_pretrained(f"{folder}/model")(SENTENCES, padding=True, return_tensors="pt")
    ids, mask = model.tokenize(SENTENCES)
    assert torch.equal(ids, right["input_ids"])
    assert torch.equal(mask, right["attention_mask"].bool())
    assert model.tokens("The cat sat") == ["[CLS]", "the", "cat", "sat", "[SEP]"]


@needs_weights
def test_embeddings_have_length_one_and_do_not_depend_on_padding(model):
    together = model.embed(SENTENCES)
    assert_close(together.norm(dim=-1), torch.ones(len(SENTENCES)))
    for number, sentence in enumerate(SENTENCES):
        assert_close(model.embed([sentence])[0], together[number], rtol=0.0, atol=1e-5)


@needs_weights
def test_sentences_of_like_meaning_are_closer_than_others(model):
    cat, dog, law = model.embed(
        ["A cat sleeps on the sofa.", "A dog naps on the couch.", "The court ruled on the tax."]
    )
    assert cat @ dog > 0.4 > 0.1 > cat @ law


@needs_weights
def test_padding_gets_no_attention(model):
    ids, mask = model.tokenize(SENTENCES)
    maps = model.attention_maps(ids, mask)
    hidden = (~mask)[None, :, None, None, :].expand_as(maps)
    assert (maps[hidden] == 0).all()


@needs_weights
def test_a_class_of_ones_own_runs_inside_the_model(model):
    class Mine(MultiHeadAttention):
        calls = 0

        def forward(self, query, key, value, mask=None):
            Mine.calls += 1
            return self.with_weights(query, key, value, mask)[0]

    ids, mask = model.tokenize(SENTENCES)
    with torch.no_grad():
        assert_close(pretrained.load(attention=Mine)(ids, mask), model(ids, mask), rtol=0.0, atol=1e-4)
    assert Mine.calls == 6


@needs_weights
def test_an_attention_that_keeps_its_weights_to_itself_cannot_be_shown():
    class Silent(nn.Module):
        def __init__(self, d_model, num_heads, dropout):
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(self, name, nn.Linear(d_model, d_model))

    model = pretrained.load(attention=Silent)
    with pytest.raises(TypeError, match="Silent has no method with_weights"):
        model.attention_maps(*model.tokenize(SENTENCES))


@needs_weights
def test_sentences_of_one_meaning_are_more_alike_than_others(model):
    questions = ["A cat is sleeping.", "The bank lends money."]
    answers = ["The kitten naps.", "You can get a loan there.", "It rains."]
    alike = model.similarity(questions, answers)
    assert alike.shape == (2, 3)
    assert alike.argmax(dim=1).tolist() == [0, 1]
    assert_close(model.similarity(questions, questions).diagonal(), torch.ones(2))


@needs_weights
@pytest.mark.parametrize("wrong", ["The cat", []])
def test_anything_but_a_list_of_sentences_is_refused(model, wrong):
    with pytest.raises(ValueError, match="tokenize needs a list of sentences"):
        model.tokenize(wrong)


@needs_weights
def test_a_text_longer_than_the_position_table_is_refused(model):
    with pytest.raises(ValueError, match="a sentence has 602 tokens, but the model knows only 512 positions"):
        model.tokenize(["short", "word " * 600])


def test_missing_weights_are_named_with_the_command_that_brings_them(monkeypatch):
    monkeypatch.setattr(pretrained, "CARRIER", "no_such_package_here")
    assert not pretrained.is_installed()
    with pytest.raises(ModuleNotFoundError, match=pretrained.INSTALL):
        pretrained.load()
