"""The exercises of chapter 2."""

# From easy to hard.
EXERCISES = (
    "softmax",
    "soft_lookup",
    "kernel_regression",
    "additive_scores",
    "cosine_scores",
    "examine_softmax",
)
