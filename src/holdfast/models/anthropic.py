"""The client for Anthropic's Messages API: Chat Completions go in, and chunks come out, as from any other model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Unpack
from urllib.parse import urlsplit

from holdfast.accounting import run_cpu
from holdfast.models.answer import AnswerReader
from holdfast.models.anthropic_access import HOST, credentials_of, headers_of, path_of
from holdfast.models.anthropic_stream import Json, MessageReader, ReplyChunks
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.http import address_of, check_headers
from holdfast.wire.anthropic_requests import betas_in, body_to

GOES_ON: Final = 10
"""Times that a model which pauses in the middle of its turn, because its provider's own tools take long, is asked to go on."""
THREAD_MESSAGES: Final = 100
"""Messages from which a request is made off the event loop: one takes about 0.01 ms."""
_CREDENTIALS: Final = frozenset({"authorization", "x-api-key"})


class AnthropicModel(UpstreamClient):
    """Anthropic, or whoever speaks its Messages API. What becomes of each field of a request is in docs/upstreams.md.

    Args:
        base_url: with or without `/v1` at its end; a query in it is kept.
        api_key: sent as `x-api-key`, to other hosts as bearer token too; a login's token (`sk-ant-oat…`) as bearer alone. None
            sends none.
        model: what the upstream calls the model. It replaces the request's own; None leaves that in place.
        max_tokens: of a reply whose request does not say, which the API wants to know; None: what `holdfast.domain.budget` keeps free.
        headers: sent with every call, and stronger than the client's own; `anthropic-beta` is added to that of a request.
        clock: Unix seconds, which chunks tell as `created`.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
    """

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
        url, where = address_of(base_url, lambda path: f"{path_of(path)}/messages")
        self._host = urlsplit(url).hostname or ""
        own = headers_of(self._host, api_key)
        super().__init__(url, where, model=model, headers=own | check_headers(headers or {}), **options)
        self._max_tokens = max_tokens
        self._clock = clock

    async def _prepared(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        long = len(request.get("messages") or ()) >= THREAD_MESSAGES
        return await run_cpu(self._call, request, headers, long=long)

    def _call(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        named = request if self._model is None else {**request, "model": self._model}
        body = body_to(named, max_tokens=self._max_tokens)
        return PreparedRequest.of({**body, "stream": True}, self._sent(check_headers(headers), betas_in(request)))

    def _sent(self, handed: dict[str, str], betas: list[str]) -> dict[str, str]:
        """The headers of one call. With a key of its own, none of ours goes along."""
        if handed.keys() & _CREDENTIALS:
            handed = {**_as_anthropic(self._host, handed), **_without(handed, _CREDENTIALS)}
            sent = {**_without(self._headers, _CREDENTIALS), **handed}
        else:
            sent = {**self._headers, **handed}
        told = (self._headers.get("anthropic-beta", ""), handed.get("anthropic-beta", ""), *betas)
        named = dict.fromkeys(name.strip() for text in told for name in text.split(",") if name.strip())
        return sent | check_headers({"anthropic-beta": ",".join(named)} if named else {})

    def _reader(self, call: PreparedRequest) -> AnswerReader:
        reply = ReplyChunks(int(self._clock()), pauses=GOES_ON)
        return MessageReader(self._where, reply, call.secrets, self._max_event_bytes)

    def _further(self, call: PreparedRequest, answer: AnswerReader) -> tuple[PreparedRequest, AnswerReader | None]:
        """A reply that paused is given back as it came, for its model to go on with it."""
        if not isinstance(answer, MessageReader) or not answer.reply.paused:
            return call, None
        said = {**call.said, "messages": _with(call.said["messages"], answer.reply.blocks)}
        further = MessageReader(self._where, answer.reply, call.secrets, self._max_event_bytes)
        return PreparedRequest.of(said, call.headers)._replace(said=call.said), further


def _as_anthropic(host: str, handed: Mapping[str, str]) -> dict[str, str]:
    """A client's key as this host takes it: clients of OpenAI have it as bearer."""
    kind, _, token = handed.get("authorization", "").partition(" ")
    if "x-api-key" in handed or kind.lower() != "bearer":
        return {name: value for name, value in handed.items() if name in _CREDENTIALS}
    return credentials_of(host, token.strip())


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in names}


def _with(messages: list[Json], said: list[Json]) -> list[Json]:
    """The messages of a request and behind them what was answered so far, without texts that say nothing."""
    blocks = [block for block in said if block["type"] != "text" or block["text"].strip()]
    return [*messages, {"role": "assistant", "content": blocks}] if blocks else messages
