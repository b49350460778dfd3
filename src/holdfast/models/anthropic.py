"""Client for Anthropic's Messages API."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Unpack
from urllib.parse import urlsplit

from holdfast.accounting import run_cpu
from holdfast.domain.profiles import find_profile
from holdfast.models.answer import AnswerReader
from holdfast.models.anthropic_access import HOST, make_credentials, make_headers, normalize_path
from holdfast.models.anthropic_stream import Json, MessageReader, ReplyDecoder
from holdfast.models.base import ModelRequest
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.http import check_headers, parse_base_url
from holdfast.wire.anthropic_requests import build_body, list_betas

MAX_CONTINUATIONS: Final = 10
"""Maximum number of times that a paused reply is continued. A model pauses its reply (`pause_turn`) when the provider's own tools take
long.
"""
THREAD_MESSAGES: Final = 100
"""Minimum number of messages of a request that is built in a thread. Each message takes about 0.01 ms."""
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key"})


class AnthropicModel(UpstreamClient):
    """A model of Anthropic, or of any other upstream that offers Anthropic's Messages API.

    docs/anthropic-models.md describes how the fields of a request are converted.

    Args:
        base_url: URL of the API, with or without `/v1` at its end. A query is kept.
        api_key: Key, which is sent as `x-api-key`. Hosts other than Anthropic's also get it as a bearer token. A login token
            (`sk-ant-oat…`) is sent as a bearer token only. None: no credentials are sent.
        model: Name of the model at the upstream. It replaces the name in the request. None: the name in the request is sent.
        max_tokens: Maximum tokens of a reply, for requests that set no limit. The API requires one. None: the reply tokens that
            `holdfast.domain.budget` reserves.
        headers: Headers of every call. They override the headers that this client sets. `anthropic-beta` is merged with that of the
            request.
        clock: Returns Unix seconds, which become `created` of replies.
        options: Timeouts, retries and limits, as described in `UpstreamClient`.

    Raises:
        InvalidRequest: The address, the key or a header is invalid.
    """

    _path = "/messages"

    def __init__(
        self,
        base_url: str = f"https://{HOST}/v1",
        api_key: str | None = None,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        headers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
        **options: Unpack[Options],
    ) -> None:
        url, where = parse_base_url(base_url, lambda path: normalize_path(path) + self._path)
        self._host = urlsplit(url).hostname or ""
        self.profile = find_profile(base_url, "anthropic")
        own = make_headers(self._host, api_key)
        super().__init__(url, where, model=model, headers=own | check_headers(headers or {}), **options)
        self._max_tokens = max_tokens
        self._clock = clock

    async def _prepare_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        long = len(request.messages) >= THREAD_MESSAGES
        return await run_cpu(self._build_request, request, headers, long=long)

    def _build_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        fields = request.fields if self._model is None else {**request.fields, "model": self._model}
        body = build_body(request.messages, fields, max_tokens=self._max_tokens)
        return PreparedRequest.from_body(
            {**body, "stream": True}, self._make_headers(headers, list_betas(request.fields))
        )

    def _make_headers(self, headers: Mapping[str, str], betas: Sequence[str] = ()) -> dict[str, str]:
        """Return the headers of one call. If the caller passed a key, this client's own credentials are not sent.

        Args:
            headers: Headers of this call.
            betas: Names of beta features that the request needs, as comma-separated lists.
        """
        passed = check_headers(headers)
        if passed.keys() & _CREDENTIALS:
            passed = {**_convert_credentials(self._host, passed), **_drop_headers(passed, _CREDENTIALS)}
            sent = {**_drop_headers(self._headers, _CREDENTIALS), **passed}
        else:
            sent = {**self._headers, **passed}
        beta_lists = (self._headers.get("anthropic-beta", ""), passed.get("anthropic-beta", ""), *betas)
        betas_by_name = dict.fromkeys(name.strip() for text in beta_lists for name in text.split(",") if name.strip())
        return sent | check_headers({"anthropic-beta": ",".join(betas_by_name)} if betas_by_name else {})

    def _create_reader(self, call: PreparedRequest) -> AnswerReader:
        reply = ReplyDecoder(int(self._clock()), pauses=MAX_CONTINUATIONS)
        return MessageReader(self._where, reply, call.secrets, self._max_event_bytes)

    def _continue_call(
        self, call: PreparedRequest, answer: AnswerReader
    ) -> tuple[PreparedRequest, AnswerReader | None]:
        """Return the call that continues a paused reply, and the parser for the answer.

        The call sends the reply's blocks back unchanged.
        """
        if not isinstance(answer, MessageReader) or not answer.reply.paused:
            return call, None
        fields = {**call.fields, "messages": _append_answer(call.fields["messages"], answer.reply.blocks)}
        reader = MessageReader(self._where, answer.reply, call.secrets, self._max_event_bytes)
        return PreparedRequest.from_body(fields, call.headers)._replace(fields=call.fields), reader


def _convert_credentials(host: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Return the credential headers of a client in the form that `host` expects.

    A key that OpenAI's clients send as a bearer token is converted. A key in `x-api-key` is kept.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    if "x-api-key" in headers or kind.lower() != "bearer":
        return {name: value for name, value in headers.items() if name in _CREDENTIALS}
    return make_credentials(host, token.strip())


def _drop_headers(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


def _append_answer(messages: list[Json], answered: list[Json]) -> list[Json]:
    """Return the messages of a request with the blocks of an incomplete reply appended.

    Empty texts are left out: Anthropic rejects them.
    """
    blocks = [block for block in answered if block["type"] != "text" or block["text"].strip()]
    return [*messages, {"role": "assistant", "content": blocks}] if blocks else messages
