"""Holdfast: session memory for LLM agents."""

from __future__ import annotations

from holdfast._version import __version__

__all__ = ["__version__"]
