"""The exercises of chapter 5."""

EXERCISES = (  # from easy to hard
    "mask_from_tokenizer",
    "masked_mean",
    "first_token",
    "most_similar",
    "patch_layers",
    "previous_token_score",
    "PluggedAttention",
)
