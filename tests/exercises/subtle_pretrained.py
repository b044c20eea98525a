"""Chapter 5: right answers in other styles, none of which may be refused, and wrong ones that are right almost everywhere."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mha_course.exercises.pretrained import styles
from mha_course.exercises.pretrained.first_token import first_token
from mha_course.exercises.pretrained.masked_mean import masked_mean
from mha_course.exercises.pretrained.most_similar import most_similar
from mha_course.exercises.pretrained.previous_token_score import previous_token_score
from mha_course.masks import from_tokenizer
from mha_course.multi_head import MultiHeadAttention


class PaddingRowsAreZero(MultiHeadAttention):
    """Gives zeros to padding places: what they get means nothing."""

    def forward(self, query, key, value, mask=None):
        output = super().forward(query, key, value, mask)
        return output * mask[:, 0, 0, :, None] if query.size(1) == mask.size(-1) else output


STYLES = {**styles.STYLES, "PluggedAttention": (*styles.STYLES["PluggedAttention"], PaddingRowsAreZero)}

# --- right almost everywhere ---------------------------------------------------------------------------------------


def mask_of_first_sentence(attention_mask):
    return from_tokenizer(attention_mask[:1]).expand(len(attention_mask), -1, -1, -1)


def mask_with_first_token_seen(attention_mask):
    mask = from_tokenizer(attention_mask).clone()
    mask[..., 0] = True
    return mask


def mask_squeezed(attention_mask):
    mask = from_tokenizer(attention_mask)
    return mask.squeeze() if len(mask) == 1 and mask.size(-1) == 1 else mask


def mask_not_for_bytes(attention_mask):
    assert attention_mask.dtype == torch.int64
    return from_tokenizer(attention_mask)


def mask_checked_from_above(attention_mask):
    if (attention_mask > 1).any():
        raise ValueError("ids?")
    return (attention_mask == 1)[:, None, None]


def mask_changed_in_place(attention_mask):
    mask = from_tokenizer(attention_mask)
    attention_mask[attention_mask == 0] = 1
    return mask


def mean_with_one_more(x, mask):
    keep = mask[:, :, None].to(x.dtype)
    return (x * keep).sum(dim=1) / (keep.sum(dim=1) + 1e-2)


def mean_through_integers(x, mask):
    return masked_mean(x.half(), mask).to(x.dtype)


def mean_of_nothing_by_place_0(x, mask):
    return torch.where(mask.any(dim=1, keepdim=True), masked_mean(x, mask), x[:, 0])


def mean_nan_to_ones(x, mask):
    return masked_mean(x, mask) + (~mask.any(dim=1, keepdim=True)).to(x.dtype)


def mean_of_sorted_lengths(x, mask):
    return masked_mean(x, mask.sort(dim=1, descending=True).values)


def mean_wrong_for_one_sentence(x, mask):
    return masked_mean(x, mask) if len(x) > 1 else x.mean(dim=1)


def first_by_longest(x, mask):
    return first_token(x, mask) if mask[:, 0].any() else x[:, -1]


def first_by_argmin_of_padding(x, mask):
    return x[torch.arange(len(x)), (mask.long() * torch.arange(mask.size(1), 0, -1)).sum(dim=1) * 0]


def first_right_or_left(x, mask):
    return torch.where(mask[:, :1], x[:, 0], x[torch.arange(len(x)), (mask.size(1) - mask.sum(1)) % mask.size(1)])


def first_in_float32(x, mask):
    return first_token(x.float(), mask)


def similar_with_floor(question, sentences, top):
    similarities = F.normalize(sentences, dim=-1, eps=1.0) @ F.normalize(question, dim=-1)
    best = similarities.topk(top)
    return best.indices, best.values


def similar_never_negative(question, sentences, top):
    similarities = (F.normalize(sentences, dim=-1) @ F.normalize(question, dim=-1)).clamp(min=0)
    best = similarities.topk(top)
    return best.indices, best.values


def similar_absolute(question, sentences, top):
    similarities = (F.normalize(sentences, dim=-1) @ F.normalize(question, dim=-1)).abs()
    best = similarities.topk(top)
    return best.indices, best.values


def similar_numbers_from_1(question, sentences, top):
    numbers, similarities = most_similar(question, sentences, top)
    return numbers + 1, similarities


def similar_one_missing(question, sentences, top):
    return most_similar(question, sentences, min(top, 3))


def patch_last_two_alike(layers):
    functions = styles.patch_by_helper(layers)
    return [*functions[:-1], functions[-2]] if len(functions) > 2 else functions


def patch_of_at_most_five(layers):
    return styles.patch_by_helper(list(layers)[:5])


def patch_never_empty(layers):
    return styles.patch_by_helper(layers) or [lambda x: x]


def patch_by_value(layers):
    return [lambda x, factor=layer.factor: x * factor for layer in layers]


def score_without_last_row(weights, mask):
    return (
        previous_token_score(weights[:, :, :-1, :-1], mask[:, :-1]) if mask.size(1) > 2 else weights[:, :, 1, 0].mean(0)
    )


def score_of_whole_rows(weights, mask):
    asked = mask[:, 1:] & mask[:, :1]
    return (weights.diagonal(-1, 2, 3) * asked[:, None]).sum((0, 2)) / asked.sum()


def score_sum_of_both_neighbours(weights, mask):
    return previous_token_score(weights, mask) + 1e-3


def score_padding_after(weights, mask):
    asked = mask[:, 1:] & mask[:, :-1]
    return (weights.diagonal(-1, 2, 3) * asked[:, None]).sum((0, 2)) / (mask.sum() - len(mask))


class KeepsItsMask(MultiHeadAttention):
    kept = None

    def forward(self, query, key, value, mask=None):
        self.kept = mask if self.kept is None or self.kept.shape != mask.shape else self.kept
        return super().forward(query, key, value, self.kept)


class KeepsItsKeys(MultiHeadAttention):
    kept = None

    def forward(self, query, key, value, mask=None):
        if self.kept is None or self.kept.shape != key.shape:
            self.kept = key.clone()
        return super().forward(query, self.kept, self.kept, mask)


class MaskOfTheFirstSentence(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query, key, value, mask[:1])


class MaskOnHeadsForTwelve(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        mask = mask.transpose(0, 1) if len(query) == self.num_heads else mask
        return super().forward(query, key, value, mask)


class OneHeadTooFew(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        weight = self.out_proj.weight.clone()
        weight[:, -1] = 0
        q, k, v = self._project(query, key, value, None)
        return F.linear(self._fused(q, k, v, mask).transpose(1, 2).flatten(2), weight, self.out_proj.bias)


class RoundsToHalf(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        return super().forward(query.bfloat16().float(), key, value, mask)


class LooksAtPaddingABit(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        q, k, v = self._project(query, key, value, None)
        bias = torch.zeros(mask.shape).masked_fill(~mask, -5.0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class ChangesItsInput(MultiHeadAttention):
    def forward(self, query, key, value, mask=None):
        output = super().forward(query, key, value, mask)
        with torch.no_grad():
            query += output
        return output


SUBTLE = {
    "mask_from_tokenizer": [
        mask_of_first_sentence,
        mask_with_first_token_seen,
        mask_squeezed,
        mask_not_for_bytes,
        mask_checked_from_above,
        mask_changed_in_place,
    ],
    "masked_mean": [
        mean_with_one_more,
        mean_through_integers,
        mean_of_nothing_by_place_0,
        mean_nan_to_ones,
        mean_of_sorted_lengths,
        mean_wrong_for_one_sentence,
    ],
    "first_token": [first_by_longest, first_by_argmin_of_padding, first_right_or_left, first_in_float32],
    "most_similar": [
        similar_with_floor,
        similar_never_negative,
        similar_absolute,
        similar_numbers_from_1,
        similar_one_missing,
    ],
    "patch_layers": [patch_last_two_alike, patch_of_at_most_five, patch_never_empty, patch_by_value],
    "previous_token_score": [
        score_without_last_row,
        score_of_whole_rows,
        score_sum_of_both_neighbours,
        score_padding_after,
    ],
    "PluggedAttention": [
        KeepsItsMask,
        KeepsItsKeys,
        MaskOfTheFirstSentence,
        MaskOnHeadsForTwelve,
        OneHeadTooFew,
        RoundsToHalf,
        LooksAtPaddingABit,
        ChangesItsInput,
    ],
}
