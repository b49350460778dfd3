"""Options in the URL of a server's database (`?pool=10`): which there are, and those that are numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from holdfast.errors import InvalidRequest

MOST_POOL: Final = 1000
"""Connections that `pool` may allow."""


def check_options(name: str, given: Collection[str], known: Collection[str]) -> None:
    """Refuse an option that a store does not have; `name` is told of the store."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        there = ", ".join(sorted(known))
        raise InvalidRequest(f"{name}: {unknown[0]} is no option of this store: it has {there}", param="url")


def parse_pool_size(name: str, options: Mapping[str, str], default: int) -> int:
    """How many connections there may be, from 1 on. Raises `InvalidRequest`."""
    text = options.get("pool")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_POOL):
        raise InvalidRequest(f"{name}: pool must be a number from 1 to {MOST_POOL}, not {text!r}", param="url")
    return int(text)
