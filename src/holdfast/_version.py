"""The version, defined in the one place that both packaging and the program read."""

__version__ = "0.1.0"
