"""The exercises of chapter 8, writing with a trained model."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
