"""Define the base class of all errors."""

from __future__ import annotations

import re
from typing import ClassVar, Final
from urllib.parse import urlsplit

ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\",;)]*[^\s'\",;):.]")
CAUSE: Final = re.compile(r"( cannot be reached): .*", re.DOTALL)
"""Matches the part of a message that gives the cause of a failed connection, which contains host and port."""


def hide_addresses(words: str, name: str) -> str:
    """Return a message in which every URL is replaced by `name`, because only the operator should see URLs.

    The host of such a URL is also replaced where the message contains it without a scheme, for example as `10.0.0.5:8000`.

    Args:
        words: The message.
        name: Text that replaces a URL.
    """
    places = {urlsplit(address).netloc.rpartition("@")[2] for address in ADDRESS.findall(words)}
    places |= {host for place in places if "." in (host := place.partition(":")[0])}
    words = ADDRESS.sub(name, CAUSE.sub(r"\1", words))
    for place in sorted(places, key=len, reverse=True):
        if "." in place or ":" in place:
            words = re.sub(rf"(?<![\w.-]){re.escape(place)}(?![\w-])", name, words)
    return words


class HoldfastError(Exception):
    """Base class of all errors that Holdfast raises on purpose."""

    code: ClassVar[str] = "holdfast_error"
    """Stable code for programs, which is `error.code` in HTTP responses. Every class has its own code."""
    http_status: ClassVar[int | None] = None
    """Status of the HTTP response. None: the client gets a server error without the message."""
    public: str | None = None
    """Message for clients and models, if the message of the error contains paths, addresses or advice for the operator. None: they get the
    message of the error.
    """

    @property
    def public_message(self) -> str:
        """The message that clients and models get."""
        return str(self) if self.public is None else self.public
