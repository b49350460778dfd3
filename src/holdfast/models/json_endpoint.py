"""Client for endpoints that answer a JSON request with a single JSON response, for example embeddings and reranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Unpack

from holdfast.errors import ModelError
from holdfast.models.answer import decode_answer
from holdfast.models.client import HttpClient, Options, PreparedRequest
from holdfast.models.failures import find_error_object, is_error, make_upstream_error, scrub
from holdfast.models.http import check_api_key, check_headers, parse_base_url

_LARGE: Final = 64 * 1024
"""Responses of at least this many bytes are not checked for an error, because error objects are smaller."""
_QUOTED: Final = 12
"""An error message that contains at least this many consecutive characters of a text is treated as a quotation of the text."""


class PostingClient(HttpClient):
    """Client for one endpoint, with its pool of connections.

    Args:
        base_url: Base URL including the version. Its query is kept.
        api_key: Key, which is sent as a bearer token. None: no key is sent.
        model: Name of the model at the endpoint.
        headers: Headers of every call.
        path: Function that returns the path of the call for the path of `base_url`.
        mark: Bytes that every valid response contains, but no error. They detect errors that have status 200.
        options: Timeouts, retries and limits, as described in `HttpClient`.

    Raises:
        InvalidRequest: The address, the key or a header is invalid.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        headers: Mapping[str, str],
        *,
        path: Callable[[str], str],
        mark: bytes,
        **options: Unpack[Options],
    ) -> None:
        url, where = parse_base_url(base_url, path)
        own = {"authorization": f"Bearer {check_api_key(api_key)}"} if api_key else {}
        sent = {"accept": "application/json", **own, **check_headers(headers)}
        self._mark = mark
        super().__init__(url, where, model=model, headers=sent, **options)

    async def post(self, request: dict[str, Any]) -> bytes:
        """Send a request, and return the complete response. The caller decodes it, in a thread if it is large.

        Args:
            request: The request, which is sent as JSON.

        Raises:
            ModelError: The endpoint did not answer, or rejected the request.
        """
        call = PreparedRequest.from_body(request, self._headers)
        whole = await self.fetch(call)
        if len(whole) < _LARGE and self._mark not in whole:
            decoded = decode_answer(whole, self._where, call.secrets)
            if isinstance(decoded, dict) and is_error(decoded):
                raise make_upstream_error(None, find_error_object(scrub(decoded, call.secrets)), where=self._where)
        return whole


def describe_failure(exc: ModelError, texts: Sequence[str]) -> str:
    """Return the message of an error. Leave out the endpoint's own words if they quote one of the texts that were sent to it.

    Some endpoints quote the texts that they reject. Texts of users must not be logged with the error.
    """
    words = str(exc)
    parts = {words[at : at + _QUOTED] for at in range(max(1, len(words) - _QUOTED + 1))}
    if any(part in text for text in texts for part in parts):
        return words.split(": ", 1)[0]
    return words
