"""Markers of sessions in what is sent, for tests whose subject they are not."""

from __future__ import annotations

import re

_MARKER = re.compile(r" #[a-z]{8}(?=[\]:;]| …)")


def strip_markers(text: object) -> str:
    """The text without markers, which differ from store to store."""
    return _MARKER.sub("", str(text))
