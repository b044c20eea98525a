"""The exercises of chapter 6."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
