"""The exercises of chapter 8, the decoder and its training."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
