"""What a text says."""

from __future__ import annotations

import re


def says(text: str, word: str) -> bool:
    """Whether a text has a word by itself: short ones stand within a hash or an identifier now and then."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", text) is not None
