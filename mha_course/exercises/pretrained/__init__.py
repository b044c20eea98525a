"""The exercises of chapter 5."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
