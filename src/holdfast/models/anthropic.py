"""Client for Anthropic's Messages API."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack
from urllib.parse import urlsplit

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.profiles import find_profile
from holdfast.errors import ModelProtocolError
from holdfast.limits import MODEL_EVENT_BYTES
from holdfast.models.answer import AnswerReader
from holdfast.models.base import ModelRequest
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.codecs.messages.errors import STATUSES
from holdfast.models.codecs.messages.events import split_message
from holdfast.models.codecs.messages.reply_decoder import ReplyDecoder
from holdfast.models.codecs.messages.requests import encode_request, get_betas
from holdfast.models.failures import find_error_object, is_error, make_upstream_error, scrub
from holdfast.models.http import check_api_key, check_headers, parse_base_url

if TYPE_CHECKING:
    from holdfast.log.items import Delta
    from holdfast.models.sse import Event

Json = dict[str, Any]
HOST: Final = "api.anthropic.com"
VERSION: Final = "2023-06-01"
"""Version of the API, sent as `anthropic-version`."""
MAX_CONTINUATIONS: Final = 10
"""Maximum number of times that a paused reply is continued. A model pauses its reply (`pause_turn`) when the provider's own tools take
long.
"""
THREAD_MESSAGES: Final = 100
"""Minimum number of messages of a request that is built in a thread. Each message takes about 0.01 ms."""
_LOGIN: Final = "sk-ant-oat"
"""Prefix of a token that a user gets by logging in, in contrast to an API key."""
_VERSIONED: Final = re.compile(r"/v\d+[a-z0-9]*$")
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
        body = encode_request(request.messages, fields, max_tokens=self._max_tokens)
        return PreparedRequest.from_body({**body, "stream": True}, self._make_headers(headers, get_betas(fields)))

    def _make_headers(self, headers: Mapping[str, str], betas: Sequence[str] = ()) -> dict[str, str]:
        """Return the headers of one call. If the caller passed a key, this client's own credentials are not sent.

        Args:
            headers: Headers of this call.
            betas: Names of beta features that the request needs, as comma-separated lists.
        """
        own, passed = self._headers, check_headers(headers)
        if keys := {name: value for name, value in passed.items() if name in _CREDENTIALS}:
            kind, _, token = keys.get("authorization", "").partition(" ")
            if "x-api-key" not in keys and kind.lower() == "bearer":  # from a client of OpenAI's API
                keys = make_credentials(self._host, token.strip())
            own, passed = ({n: v for n, v in one.items() if n not in _CREDENTIALS} for one in (own, passed))
            passed |= keys
        beta_lists = (own.get("anthropic-beta", ""), passed.get("anthropic-beta", ""), *betas)
        named = dict.fromkeys(name.strip() for text in beta_lists for name in text.split(",") if name.strip())
        return {**own, **passed, **check_headers({"anthropic-beta": ",".join(named)} if named else {})}

    def _create_reader(self, call: PreparedRequest) -> AnswerReader:
        reply = ReplyDecoder(int(self._clock()), pauses=MAX_CONTINUATIONS)
        return MessageReader(self._where, reply, call.secrets, self._max_event_bytes)

    def _continue_call(
        self, call: PreparedRequest, answer: AnswerReader
    ) -> tuple[PreparedRequest, AnswerReader | None]:
        """Return the call that continues a paused reply, and the parser for the answer.

        The call sends the reply's blocks back unchanged, except for empty texts, which Anthropic rejects.
        """
        if not isinstance(answer, MessageReader) or not answer.reply.paused:
            return call, None
        blocks = [block for block in answer.reply.blocks if block["type"] != "text" or block["text"].strip()]
        answered = [{"role": "assistant", "content": blocks}] if blocks else []
        fields = {**call.fields, "messages": [*call.fields["messages"], *answered]}
        reader = MessageReader(self._where, answer.reply, call.secrets, self._max_event_bytes)
        return PreparedRequest.from_body(fields, call.headers)._replace(fields=call.fields), reader


class MessageReader(AnswerReader):
    """Parse the body of a successful response: Anthropic's event stream, or one complete message from an upstream that ignored `stream`.

    Args:
        where: Address of the upstream, for error messages.
        reply: Decodes the events. For a continued reply, it is the decoder of the previous response.
        secrets: Credentials to remove from error messages.
        limit: Maximum size in bytes of one event, or of a JSON answer.
    """

    def __init__(
        self, where: str, reply: ReplyDecoder, secrets: Iterable[str] = (), limit: int = MODEL_EVENT_BYTES
    ) -> None:
        super().__init__(where, secrets, limit)
        self.reply = reply
        reply.begin_part()

    def _read_event(self, event: Event) -> Iterable[list[Delta]]:
        if self.done:
            return ()
        data = self._decode(event.data)
        if event.name == "error" or (isinstance(data, dict) and is_error(data)):
            raise self._make_error(data)
        deltas = self._convert_event(data)
        return (deltas,) if deltas else ()

    def _convert_event(self, event: Any) -> list[Delta]:
        kind = event.get("type") if isinstance(event, dict) else None
        if not isinstance(kind, str):
            raise ModelProtocolError(f"{self._where} sent an event that is not part of Anthropic's Messages API")
        try:
            deltas = list(self.reply.decode(event))
        except (AttributeError, KeyError, TypeError, msgspec.MsgspecError, ValueError) as exc:
            raise ModelProtocolError(f"{self._where} sent a malformed {kind}") from exc
        self._finished[0] = self.reply.finished
        if kind == "message_stop":
            if not self.reply.finished:
                raise ModelProtocolError(f"{self._where} ended its stream in the middle of the answer")
            self.done = True
        return deltas

    def _read_json(self, data: bytes) -> Iterator[list[Delta]]:
        message = self._decode(data)
        if not isinstance(message, dict) or is_error(message):
            raise self._make_error(message)
        if message.get("type") != "message" or not isinstance(message.get("content"), list):
            raise ModelProtocolError(f"{self._where} answered with JSON that is not an Anthropic message")
        for event in split_message(message):
            if deltas := self._convert_event(event):
                yield deltas

    def _make_error(self, data: Any) -> Exception:
        error = find_error_object(scrub(data, self._secrets))
        kind = (error or {}).get("type")
        return make_upstream_error(STATUSES.get(kind) if isinstance(kind, str) else None, error, where=self._where)


# -- access --------------------------------------------------------------------------


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
