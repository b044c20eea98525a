"""The exercises of chapter 3."""

EXERCISES = (  # from easy to hard
    "causal_mask",
    "padding_mask",
    "decoder_mask",
    "sliding_window_mask",
    "scaled_dot_product_attention",
    "causal_attention",
    "attention_in_blocks",
    "examine_attention",
)
