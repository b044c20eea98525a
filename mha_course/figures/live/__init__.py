"""Figures that compute in the page, and are the same inside a notebook, where Python can set and read their state.

Each is one ES module; `kit.mjs` has what they are drawn with, `maths.mjs` what they calculate with.
"""
