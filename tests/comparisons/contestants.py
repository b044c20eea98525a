"""Every comparison there is, library by library."""

from . import (
    keras_library,
    pytorch_attention,
    pytorch_functions,
    pytorch_layers,
    transformers_bert,
    transformers_gpt2,
    transformers_positions,
)

BY_LIBRARY = {
    "PyTorch": pytorch_functions.COMPARISONS + pytorch_attention.COMPARISONS + pytorch_layers.COMPARISONS,
    "transformers": transformers_bert.COMPARISONS + transformers_positions.COMPARISONS + transformers_gpt2.COMPARISONS,
    "Keras": keras_library.COMPARISONS,
}
ALL = tuple(comparison for comparisons in BY_LIBRARY.values() for comparison in comparisons)
