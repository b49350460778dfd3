"""What the model calls the tools of a server: providers take letters, digits, `_` and `-`, at most 64 of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final

_LONGEST: Final = 64
_HASHED: Final = 8
"""Characters of a hash that tells two names apart which are the same otherwise."""


def told_name(before: str, name: str, taken: Collection[str]) -> str:
    """A name for the tool `name`: the same each time, and none of those that are `taken`.

    >>> told_name("files_", "read.file", ())
    'files_read_file'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", before + name)
    if plain and len(plain) <= _LONGEST and plain not in taken:
        return plain
    mark = hashlib.blake2b(f"{before}{name}".encode("utf-8", "replace"), digest_size=_HASHED // 2).hexdigest()
    return f"{plain[: _LONGEST - _HASHED - 1]}_{mark}"
