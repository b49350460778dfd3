"""Which names are safe as those of files on any file system, and what stands in place of those that are not."""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

_PLAIN: Final = re.compile(r"[a-z0-9](?:[a-z0-9_-]|\.(?=[a-z0-9_-])){0,119}")
"""No capitals: some file systems do not tell them apart. No dot at the end, which Windows drops."""
_RESERVED: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.DOTALL)
"""Devices of Windows, whatever stands behind a dot."""
_READABLE: Final = 40
"""Characters of a name that are still recognised in one that is made for it."""
_DIGEST_SIZE: Final = 20


def is_safe_name(name: str) -> bool:
    """Whether a name is safe as it is, wherever the file is."""
    return _PLAIN.fullmatch(name) is not None and not _RESERVED.fullmatch(name)


def make_safe_name(readable: str, *whole: str) -> str:
    """A safe name that nothing else has, and that no plain name is.

    Args:
        readable: what of it people are to recognise.
        whole: all that tells it from others.

    >>> with_digest("../Support 42", "default", "ada", "../Support 42")
    '---support-42~3862ca8b0646b105cf4b26b0f0cb509ca0c8c512'
    """
    digest = hashlib.blake2b(msgspec.json.encode(whole), digest_size=_DIGEST_SIZE).hexdigest()
    # `~` stands in no plain name.
    return f"{re.sub('[^a-z0-9_]', '-', readable[:_READABLE].lower())}~{digest}"
