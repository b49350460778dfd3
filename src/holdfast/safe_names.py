"""Create and check file names that are safe on any file system."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

_PLAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?=[a-z0-9_-])){0,119}")
"""Excludes capitals, because some file systems ignore case, and a final dot, because Windows drops it."""
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.DOTALL)
"""Names of Windows devices, with or without an extension."""
_READABLE: Final = 40
"""Characters of the original name that stay readable at the beginning of a generated name."""
_DIGEST_SIZE: Final = 20


def is_safe_name(name: str) -> bool:
    """Return True if the name is safe as a file name on any file system."""
    return _PLAIN.fullmatch(name) is not None and not _RESERVED.fullmatch(name)


def make_safe_name(readable: str, *whole: str) -> str:
    """Return a safe file name, unique for `whole`. It never equals a name that `is_safe_name` accepts.

    Args:
        readable: text that people should recognise in the name.
        whole: the values that together identify the named thing.

    >>> make_safe_name("../Support 42", "default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512'
    """
    digest = hashlib.blake2b(msgspec.json.encode(whole), digest_size=_DIGEST_SIZE).hexdigest()
    # `is_safe_name` rejects every name with `~`.
    return f"{re.sub('[^a-z0-9_]', '-', readable[:_READABLE].lower())}~{digest}"
