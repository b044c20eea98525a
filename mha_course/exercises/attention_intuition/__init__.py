"""The exercises of chapter 1."""

EXERCISES = ("weighted_average", "look", "glimpse", "examine_weighted_average")  # from easy to hard
