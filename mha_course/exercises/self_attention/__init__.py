"""The exercises of chapter 3."""

EXERCISES = ("scaled_dot_product_attention",)  # from easy to hard
