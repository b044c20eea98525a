"""The exercises of chapter 7."""

EXERCISES: tuple[str, ...] = ()  # from easy to hard
