"""Define the base class of all errors."""

from __future__ import annotations

import re
from typing import ClassVar, Final
from urllib.parse import urlsplit

ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\",;)]*[^\s'\",;):.]")
CAUSE: Final = re.compile(r"( cannot be reached): .*", re.DOTALL)
"""The cause of a failed connection contains host and port."""


def hide_addresses(words: str, name: str) -> str:
    """Return `words` with `name` in place of every address in them, which only the operator should see.

    A host of one of these addresses is replaced too where it is written without a scheme: `10.0.0.5:8000`.
    """
    places = {urlsplit(address).netloc.rpartition("@")[2] for address in ADDRESS.findall(words)}
    places |= {host for place in places if "." in (host := place.partition(":")[0])}
    words = ADDRESS.sub(name, CAUSE.sub(r"\1", words))
    for place in sorted(places, key=len, reverse=True):
        if "." in place or ":" in place:
            words = re.sub(rf"(?<![\w.-]){re.escape(place)}(?![\w-])", name, words)
    return words


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose."""

    code: ClassVar[str] = "holdfast_error"
    """Stable code for programs: `error.code` in responses. Every class has its own."""
    http_status: ClassVar[int | None] = None
    """Status of the HTTP response; None: reported as a server error, without the message."""
    public: str | None = None
    """Text for clients and models in place of the message, if the message contains paths, addresses or advice for the operator."""

    @property
    def public_message(self) -> str:
        """The message as shown to clients and models."""
        return str(self) if self.public is None else self.public
