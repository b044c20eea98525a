"""The exercises of chapter 4."""

EXERCISES = ("split_heads", "merge_heads", "MultiHeadAttention")  # from easy to hard
