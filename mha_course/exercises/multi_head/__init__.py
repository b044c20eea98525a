"""The exercises of chapter 4."""

# From easy to hard.
EXERCISES = (
    "split_heads",
    "merge_heads",
    "heads_in_turn",
    "masked_heads",
    "MultiHeadAttention",
    "grouped_query_attention",
    "examine_split_heads",
)
