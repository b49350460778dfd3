"""How Anthropic's API is reached, or who speaks for it: paths, and the headers that every request has."""

from __future__ import annotations

import re
from typing import Final

from holdfast.models.http import key_of

HOST: Final = "api.anthropic.com"
VERSION: Final = "2023-06-01"
"""Of the API."""
_LOGIN: Final = "sk-ant-oat"
"""How the token of a login begins."""
_VERSIONED: Final = re.compile(r"/v\d+[a-z0-9]*$")


def headers_of(host: str, api_key: str | None) -> dict[str, str]:
    """What every request to Anthropic, or to who speaks for it at `host`, has: the API's version, and the key.

    Raises:
        InvalidRequest: the key is none.
    """
    version = {"anthropic-version": VERSION}
    return version | (credentials_of(host, key_of(api_key)) if api_key else {})


def credentials_of(host: str, key: str) -> dict[str, str]:
    """The headers in which Anthropic, or who speaks for it at `host`, takes a key.

    Tokens of a login are bearers. A router knows its own keys, and takes them as everybody else's too.
    """
    bearer = {"authorization": f"Bearer {key}"}
    if key.startswith(_LOGIN):
        return bearer
    return {"x-api-key": key} if host == HOST else {"x-api-key": key, **bearer}


def path_of(path: str) -> str:
    """The path of Anthropic's API at an address that may have its version at the end or not, as both are usual."""
    plain = path.rstrip("/").removesuffix("/messages")
    return plain if _VERSIONED.search(plain) else f"{plain}/v1"
