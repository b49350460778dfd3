"""Options in the URL of a database server, such as `?pool=10`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from holdfast.errors import InvalidRequest

MOST_POOL: Final = 1000
"""Highest value of the option `pool`."""


def check_options(name: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise `InvalidRequest` if a URL has an option that its store does not support.

    Args:
        name: name of the store, for the message.
        given: names of the options in the URL.
        known: names of the options that the store supports.
    """
    unknown = sorted(set(given) - set(known))
    if unknown:
        options = ", ".join(sorted(known))
        raise InvalidRequest(f"{name}: unknown option {unknown[0]}; this store supports {options}", param="url")


def parse_pool_size(name: str, options: Mapping[str, str], default: int) -> int:
    """Return the option `pool`, the maximum number of connections. Return `default` if the URL does not have the option.

    Raises:
        InvalidRequest: the option is not a number from 1 to `MOST_POOL`.
    """
    text = options.get("pool")
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_POOL):
        raise InvalidRequest(f"{name}: pool must be a number from 1 to {MOST_POOL}, not {text!r}", param="url")
    return int(text)
