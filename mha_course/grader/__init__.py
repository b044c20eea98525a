"""Decide what a piece of learner code is worth, without ever running it in the process that decides."""
