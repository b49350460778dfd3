"""Paths and headers of Anthropic's API, and of other servers that implement it."""

from __future__ import annotations

import re
from typing import Final

from holdfast.models.http import check_api_key

HOST: Final = "api.anthropic.com"
VERSION: Final = "2023-06-01"
"""Version of the API, sent as `anthropic-version`."""
_LOGIN: Final = "sk-ant-oat"
"""Prefix of a token that a user gets by logging in, in contrast to an API key."""
_VERSIONED: Final = re.compile(r"/v\d+[a-z0-9]*$")


def make_headers(host: str, api_key: str | None) -> dict[str, str]:
    """Return the headers that every request to an Anthropic-compatible API at `host` needs: the API version and the key.

    Raises:
        InvalidRequest: The key is invalid.
    """
    version = {"anthropic-version": VERSION}
    return version | (make_credentials(host, check_api_key(api_key)) if api_key else {})


def make_credentials(host: str, key: str) -> dict[str, str]:
    """Return the headers that contain the key for an Anthropic-compatible API at `host`.

    A login token is sent as a bearer token. Anthropic's own host gets an API key as `x-api-key`. Routers expect their keys in one of these
    two headers, so they get both.
    """
    bearer = {"authorization": f"Bearer {key}"}
    if key.startswith(_LOGIN):
        return bearer
    return {"x-api-key": key} if host == HOST else {"x-api-key": key, **bearer}


def normalize_path(path: str) -> str:
    """Return the API's path from the path of a configured URL: without `/messages` at the end, and with `/v1` if there is no version."""
    plain = path.rstrip("/").removesuffix("/messages")
    return plain if _VERSIONED.search(plain) else f"{plain}/v1"
