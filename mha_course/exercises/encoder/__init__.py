"""The exercises of chapter 7."""

EXERCISES = (  # from easy to hard
    "layer_norm",
    "hidden_states",
    "examine_layer_norm",
    "EncoderLayer",
    "PreNormEncoderLayer",
    "Encoder",
    "TrimmedEncoder",
)
