"""The exercises of chapter 6."""

EXERCISES: tuple[str, ...] = (  # from easy to hard
    "sinusoidal_positions",
    "sinusoidal_positions_in",
    "add_positions",
    "TokenAndPositionEmbedding",
    "SinusoidalTokenEmbedding",
    "alibi_slopes",
    "apply_rope",
    "examine_rope",
)
