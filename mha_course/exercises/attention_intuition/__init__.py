"""The exercises of chapter 1."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
