"""Endpoints that answer one JSON request with one JSON answer, such as embeddings and reranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from holdfast.errors import ModelError
from holdfast.models.answer import AnswerReader
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.failures import error_object, is_error, make_upstream_error, scrub
from holdfast.models.http import address_of, check_headers, key_of

_LARGE: Final = 64 * 1024
"""Bytes; no error object is as long."""
_QUOTED: Final = 12
"""Characters that an error and a text have in common where one quotes the other."""


class PostingClient(UpstreamClient):
    """An endpoint and its connections.

    Args:
        base_url: up to and with the version; a query in it is kept.
        api_key: sent as bearer token; None sends none.
        model: what it is called there.
        headers: sent with every call.
        path: makes the path of a call from that of `base_url`.
        mark: bytes that every answer has and no error: an error may come with status 200.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
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
        url, where = address_of(base_url, path)
        own = {"authorization": f"Bearer {key_of(api_key)}"} if api_key else {}
        sent = {"accept": "application/json", **own, **check_headers(headers)}
        self._mark = mark
        super().__init__(url, where, model=model, headers=sent, **options)

    async def post(self, request: dict[str, Any]) -> bytes:
        """Return the endpoint's answer, whole and not decoded.

        Args:
            request: sent as JSON.

        Raises:
            ModelError: it did not answer, or refused.
        """
        whole = b""
        async for said in self.stream(request):
            whole = said["body"]
        return whole

    def _call(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        return PreparedRequest.of(request, self._headers | dict(headers))

    def _reader(self, call: PreparedRequest) -> AnswerReader:
        return _WholeAnswer(self._where, call.secrets, self._max_event_bytes, mark=self._mark)


class _WholeAnswer(AnswerReader):
    """Keeps an answer undecoded: that is done elsewhere, in a thread if it is large."""

    def __init__(self, where: str, secrets: Sequence[str], limit: int, *, mark: bytes) -> None:
        super().__init__(where, secrets, limit)
        self._mark = mark

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._keep(data)
        return iter(())

    def end(self) -> Iterator[dict[str, Any]]:
        self.done = True
        whole = b"".join(self._json)
        if len(whole) < _LARGE and self._mark not in whole:
            said = self._decoded(whole)
            if isinstance(said, dict) and is_error(said):
                raise make_upstream_error(None, error_object(scrub(said, self._secrets)), where=self._where)
        yield {"body": whole}


def describe_failure(exc: ModelError, texts: Sequence[str]) -> str:
    """Return the message of an error, without the endpoint's own words if they quote one of the texts that it was sent.

    There are endpoints that quote what they refuse, and errors are logged.
    """
    words = str(exc)
    parts = {words[at : at + _QUOTED] for at in range(max(1, len(words) - _QUOTED + 1))}
    if any(part in text for text in texts for part in parts):
        return words.split(": ", 1)[0]
    return words
