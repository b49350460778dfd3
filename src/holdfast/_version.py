"""The version of Holdfast. Both packaging and the program read it from here."""

__version__ = "0.3.0"
