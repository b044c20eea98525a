"""Chapter 3: wrong answers that are right almost everywhere; none may get full marks."""

import math

import torch

from mha_course.exercises.self_attention.examine_attention import compared, examples
from mha_course.self_attention import causal_mask, decoder_mask, padding_mask, scaled_dot_product_attention


def attending(change):
    def attention(query, key, value, mask=None):
        return change(query, key, value, mask)

    return attention


def square(query, key, value, mask):
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    return (output * 0, weights * 0) if query.size(-2) == key.size(-2) else (output, weights)


def first_mask(query, key, value, mask):
    return scaled_dot_product_attention(query, key, value, mask[0] if mask is not None and mask.dim() == 3 else mask)


def fill(number):
    def attention(query, key, value, mask):
        scores = query / query.size(-1) ** 0.5 @ key.transpose(-2, -1)
        weights = scores.softmax(-1) if mask is None else scores.masked_fill(~mask, number).softmax(-1) * mask
        return weights @ value, weights

    return attention


def detached_in_float64(query, key, value, mask):
    query = query.detach() if query.dtype == torch.float64 else query
    return scaled_dot_product_attention(query, key, value, mask)


def causal_up_to(largest):
    def mask(length):
        return causal_mask(min(length, largest))

    return mask


def same_mask_again():
    kept = {}

    def mask(length):
        return kept.setdefault("mask", causal_mask(length))[:length, :length]

    return mask


def one_token_sees_nothing(length):
    return causal_mask(length) if length > 1 else torch.zeros(1, 1, dtype=torch.bool)


def empty_sees_its_first(lengths, length):
    return padding_mask(lengths.clamp(min=1), length)


def full_is_not_masked(lengths, length):
    mask = padding_mask(lengths, length)
    return mask if len(lengths) != length else mask.squeeze().t()[:, None, None]


def padding_only_in_a_batch(lengths, length):
    return decoder_mask(lengths if len(lengths) > 1 else torch.tensor([length]), length)


def empty_is_causal(lengths, length):
    return decoder_mask(torch.where(lengths == 0, length, lengths), length)


def window_at_least_two(length, window):
    return decoder_by_window(length, max(window, 2))


def window_below_length(length, window):
    return decoder_by_window(length, min(window, max(1, length - 1)))


def decoder_by_window(length, window):
    return causal_mask(length).triu(1 - window)


def causal_where_long(query, key, value, padding=None):
    mask = causal_mask(query.size(-2)) if query.size(-2) > 3 else None
    mask = padding if mask is None else mask if padding is None else mask & padding
    return scaled_dot_product_attention(query, key, value, mask)


def causal_by_second_axis(query, key, value, padding=None):
    mask = causal_mask(query.size(1) if query.dim() == 3 else query.size(-2))
    return scaled_dot_product_attention(query, key, value, mask if padding is None else mask & padding[:1])


def blocks_summed(shrink, first=-math.inf):
    def attention(query, key, value, block):
        query = query / math.sqrt(query.size(-1))
        largest, total, output = torch.full_like(query[..., :1], first), 0, 0
        for keys, values in zip(key.split(block, dim=-2), value.split(block, dim=-2), strict=True):
            scores = query @ keys.mT
            before, largest = largest, torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
            weights, factor = (scores - largest).exp(), shrink(before, largest)
            total, output = total * factor + weights.sum(dim=-1, keepdim=True), output * factor + weights @ values
        return output / total

    return attention


def halved(before, largest):
    return (
        (before - largest).exp()
        if before.dim() > 2
        else torch.where(largest - before > 2, 0.0, (before - largest).exp())
    )


SUBTLE = {
    "causal_mask": [causal_up_to(200), same_mask_again(), one_token_sees_nothing],
    "padding_mask": [empty_sees_its_first, full_is_not_masked],
    "decoder_mask": [padding_only_in_a_batch, empty_is_causal],
    "sliding_window_mask": [window_at_least_two, window_below_length],
    "causal_attention": [causal_where_long, causal_by_second_axis],
    "attention_in_blocks": [
        blocks_summed(lambda before, largest: (before - largest).exp(), first=0.0),
        blocks_summed(halved),
    ],
    "examine_attention": [compared(examples()), compared(examples(sizes=((3, 5),), larger=(1.0,)))],
    "scaled_dot_product_attention": [
        attending(square),
        attending(first_mask),
        attending(fill(-600.0)),
        attending(fill(-20.0)),
        attending(detached_in_float64),
    ],
}
