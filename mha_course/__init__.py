"""Learn attention by reading, running and writing it: the companion package of the course."""

__version__ = "0.1.0"
