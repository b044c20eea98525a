"""The exercises of chapter 2."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
