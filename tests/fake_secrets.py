"""Made-up things that look like real ones."""

from __future__ import annotations

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
"""A secret, as the built-in rules know one."""
