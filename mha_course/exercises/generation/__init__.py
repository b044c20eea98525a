"""The exercises of chapter 8, writing with a trained model."""

EXERCISES = (  # in the order of the chapter, and in each of its sections from easy to hard
    "greedy_decode",
    "top_k_filter",
    "top_p_filter",
    "step_positions",
    "positions_from_mask",
    "cached_causal_attention",
    "KVCache",
    "CachedSelfAttention",
    "beam_step",
)
