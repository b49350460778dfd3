"""What every client of an upstream does: one call over HTTP, tried again while nothing has come back, read to its end.

A call reads as: `stream -> _call -> _respond (retries) -> _send (one attempt) -> AnswerReader`. Whether something may be tried
again is decided before the response begins; afterwards never, because part of an answer was paid for and maybe seen.
What is asked, and how an answer is read, is the provider's business: `holdfast.models.openai`, `holdfast.models.anthropic`.
aiohttp is imported by the first call.
"""

from __future__ import annotations

import asyncio
import io
import math
import random as random_numbers
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import msgspec

from holdfast.errors import InvalidRequest, ModelError, ModelProtocolError, ModelReplyTooLarge, ModelUnavailable
from holdfast.limits import MODEL_EVENT_BYTES, MODEL_STREAM_BYTES
from holdfast.models.failures import error_from, make_upstream_error, worth_retrying
from holdfast.models.http import SECRET_HEADERS, proxy_for
from holdfast.models.retiring import close_behind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import aiohttp

    from holdfast.models.answer import AnswerReader

LONGEST_PAUSE: Final = 30.0
"""Seconds. An upstream that asks for a longer pause gets no retry: the caller is told, and may have another plan."""
FIRST_PAUSE: Final = 0.5
"""Seconds before the first retry when the upstream does not say; doubled for each further one."""
DRAIN_SECONDS: Final = 0.1
"""How long the end of a finished response is waited for, so that its connection can serve the next call."""
ERROR_BODY_BYTES: Final = 1024 * 1024
ERROR_BODY_SECONDS: Final = 10.0
DNS_SECONDS: Final = 60
PIECE_BYTES: Final = 16 * 1024
"""Read of an answer at once: behind a client that reads slowly, this much of it lies decoded."""
CHUNKS_AT_ONCE: Final = 16
"""Chunks of an answer that are passed on before other tasks run: some milliseconds."""
BODY_IN_ONE: Final = 512 * 1024
"""Bytes; longer request bodies are written piece by piece, so that other tasks run in between."""


def load_http() -> None:
    """Import aiohttp, so that the first call of a model does not: it takes tenths of a second of the event loop."""
    import aiohttp  # noqa: F401


class Options(TypedDict, total=False):
    """How calls are made, whatever the upstream; see `UpstreamClient`."""

    connect_timeout: float
    read_timeout: float
    total_timeout: float | None
    max_retries: int
    max_connections: int
    max_event_bytes: int
    max_stream_bytes: int
    sleep: Callable[[float], Awaitable[object]]
    random: Callable[[], float]


class UpstreamClient(ABC):
    """One upstream, and its pool of connections.

    The pool is opened by the first call within the running event loop and closed by `close`. The proxy settings of the
    environment (`HTTPS_PROXY`, `NO_PROXY`, …) are honoured, as they stand at that moment; cookies are not kept and redirects
    not followed. The key is in no error, no log and no repr.

    Args:
        url: where calls are posted to.
        where: what errors call it, without path and query, where a key might be.
        model: what the upstream calls the model. It replaces the request's own; None leaves that in place.
        connect_timeout: seconds to get a connection: name look-up, TLS and the wait for a free one included.
        read_timeout: seconds of silence allowed, before the first chunk and between any two reads.
        total_timeout: seconds for a whole attempt, from the connection to the last chunk; None: no limit.
        headers: sent with every call.
        max_retries: further attempts when nothing was sent back: no connection, connection lost, 408, 409, 425, 429,
            5xx. Pauses follow `Retry-After`, else grow from 0.5 s with jitter. A silence that was too long is not
            tried again: the upstream may still be at work, and be paid for it.
        max_connections: at most so many calls at once; further ones wait, up to `connect_timeout`.
        max_event_bytes: longest event, or whole answer that is not streamed; 16 MiB.
        max_stream_bytes: all that is sent for one reply; 128 MiB.
        sleep, random: how to wait and how to jitter; for tests.
    """

    def __init__(
        self,
        url: str,
        where: str,
        *,
        model: str | None = None,
        connect_timeout: float = 5.0,
        read_timeout: float = 600.0,
        total_timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
        max_retries: int = 2,
        max_connections: int = 1000,
        max_event_bytes: int = MODEL_EVENT_BYTES,
        max_stream_bytes: int = MODEL_STREAM_BYTES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        self._url, self._where = url, where
        self._model = model
        self._headers = dict(headers or {})
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._total_timeout = total_timeout
        self._max_retries = max_retries
        self._max_connections = max_connections
        self._max_event_bytes = max_event_bytes
        self._max_stream_bytes = max_stream_bytes
        self._sleep = sleep
        self._random = random
        self._pool: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._closed = self._retired = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r}, at {self._where!r})"

    @property
    def name(self) -> str:
        """The upstream's name of the model, or its address where the request says which model."""
        return self._model or self._where

    @property
    def origin(self) -> str:
        """Scheme, host and port of where calls go."""
        return self._where

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """See `Model.stream`.

        Raises:
            InvalidRequest: the request has no form that this upstream takes, or a header is not one.
        """
        call = await self._prepared(request, headers or {})
        answer: AnswerReader | None = self._reader(call)
        left = self._max_stream_bytes
        while answer is not None:
            response, deadline = await self._respond(call)
            try:
                while not answer.done:
                    data = await self._read_before(response, deadline)
                    left -= len(data)
                    if left < 0:
                        message = f"{self._where} sent more than {self._max_stream_bytes:,} bytes for one reply"
                        raise ModelReplyTooLarge(message)
                    for at, chunk in enumerate(answer.feed(data) if data else answer.end(), 1):
                        yield chunk
                        if at % CHUNKS_AT_ONCE == 0:  # each passes through the whole turn: others come first
                            await asyncio.sleep(0)
                    if len(data) == PIECE_BYTES:  # there may be more at once
                        await asyncio.sleep(0)
                await _drain(response)
            finally:
                # Closes the connection, unless the response was read to its end. Nothing to wait for: this must also work
                # while the task is being cancelled.
                response.close()
            call, answer = self._further(call, answer)

    def retire(self) -> None:
        """Close its connections as soon as nobody has it any more: whoever began with it goes on."""
        self._retired = True
        if self._pool is not None:
            close_behind(self, self._pool)

    async def close(self) -> None:
        """See `Model.close`."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _prepared(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        """`_call`; for clients with whom that takes long."""
        return self._call(request, headers)

    @abstractmethod
    def _call(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        """What is sent for a Chat Completions body, with the headers of this one call."""

    @abstractmethod
    def _reader(self, call: PreparedRequest) -> AnswerReader:
        """What reads the answer to `call`."""

    def _further(self, call: PreparedRequest, answer: AnswerReader) -> tuple[PreparedRequest, AnswerReader | None]:
        """The call that goes on where a whole answer stopped on the way, and its reader; None where none does."""
        del answer
        return call, None

    async def _respond(self, call: PreparedRequest) -> tuple[aiohttp.ClientResponse, float]:
        """A response that begins well, and the loop's time by which it has to end.

        Attempts that fail before that are repeated as far as it is allowed.
        """
        attempt, now = 0, asyncio.get_running_loop().time
        while True:
            deadline = now() + (math.inf if self._total_timeout is None else self._total_timeout)
            outcome = await self._send(call)
            if not isinstance(outcome, _Failure):
                return outcome, deadline
            pause = self._pause(outcome, attempt)
            if pause is None:
                error, cause = outcome.error, outcome.cause
                del outcome
                try:
                    raise error from cause
                finally:
                    del error, cause  # else this frame and the error hold each other, and all of the prompt with them
            await self._sleep(pause)
            attempt += 1

    def _pause(self, failure: _Failure, attempt: int) -> float | None:
        """Seconds before the next attempt; None if there shall be none."""
        if not failure.again or attempt >= self._max_retries:
            return None
        asked = failure.error.retry_after
        if asked is not None:
            # A little later than asked, each client at another moment.
            return asked * (1 + 0.1 * self._random()) if asked <= LONGEST_PAUSE else None
        return float(FIRST_PAUSE * 2**attempt * (0.5 + 0.5 * self._random()))

    async def _send(self, call: PreparedRequest) -> aiohttp.ClientResponse | _Failure:
        import aiohttp

        body = io.BytesIO(call.body) if len(call.body) > BODY_IN_ONE else call.body
        pool = self._opened()
        try:
            response = await pool.post(
                self._url, data=body, headers=call.headers, allow_redirects=False, proxy=self._proxy
            )
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return self._no_response(exc)
        if response.status == 200:
            return response
        try:
            return await self._refused(response, call.secrets)
        finally:
            response.close()

    async def _refused(self, response: aiohttp.ClientResponse, secrets: tuple[str, ...]) -> _Failure:
        """What a response with another status than 200 means."""
        data = bytearray()
        try:
            async with asyncio.timeout(ERROR_BODY_SECONDS):
                while len(data) < ERROR_BODY_BYTES and (piece := await self._read(response)):
                    data += piece
        except (ModelUnavailable, TimeoutError):
            pass  # The status says enough.
        if 200 <= response.status < 300:
            return _Failure(ModelProtocolError(f"{self._where} answered {response.status}", status=response.status))
        body = error_from(bytes(data), secrets)
        error = make_upstream_error(response.status, body, where=self._where, headers=response.headers)
        return _Failure(error, again=worth_retrying(error, response.headers))

    async def _read_before(self, response: aiohttp.ClientResponse, deadline: float) -> bytes:
        """`_read`, in the time of the attempt. aiohttp's own timer never rings while there is always more to read."""
        if asyncio.get_running_loop().time() >= deadline:
            raise self._too_slow(TimeoutError())
        return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """What has arrived; empty at the end, also at one that came too early, which the reader will notice."""
        import aiohttp

        try:
            return await response.content.read(PIECE_BYTES)
        except TimeoutError as exc:
            raise self._too_slow(exc) from exc
        except (aiohttp.ClientError, OSError, RuntimeError):  # RuntimeError: our own `close` came in between
            return b""

    def _too_slow(self, exc: TimeoutError) -> ModelUnavailable:
        import aiohttp

        if self._total_timeout is not None and not isinstance(exc, aiohttp.SocketTimeoutError):
            return ModelUnavailable(f"{self._where} did not end its answer within {self._total_timeout:g} s")
        return ModelUnavailable(f"{self._where} was silent for {self._read_timeout:g} s")

    def _no_response(self, exc: Exception) -> _Failure:
        """What it means that no response came.

        aiohttp's errors are not all chained on: the repr of some holds the request's headers, of others the proxy's
        password.
        """
        import aiohttp

        if isinstance(exc, aiohttp.ConnectionTimeoutError):
            error = ModelUnavailable(f"{self._where} gave no connection within {self._connect_timeout:g} s")
            return _Failure(error, again=True)
        if isinstance(exc, TimeoutError):
            return _Failure(self._too_slow(exc), exc)
        if isinstance(exc, aiohttp.ClientConnectorError):
            cause = getattr(exc, "os_error", None)
            error = ModelUnavailable(f"{self._where} cannot be reached: {cause or type(exc).__name__}")
            return _Failure(error, cause, again=True)
        if isinstance(exc, aiohttp.ClientResponseError):
            from_proxy = isinstance(exc, aiohttp.ClientHttpProxyError)
            refused = ModelUnavailable(f"the proxy before {self._where} answered {exc.status}")
            return _Failure(refused if from_proxy else ModelProtocolError(f"{self._where} does not speak HTTP"))
        if isinstance(exc, aiohttp.ClientConnectionError | OSError):
            return _Failure(ModelUnavailable(f"{self._where} hung up without an answer"), exc, again=True)
        return _Failure(ModelUnavailable(f"{self._where} cannot be called: {type(exc).__name__}"))

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._closed:
            raise ModelUnavailable(f"the client of {self._where} is closed")
        if self._pool is None:
            self._proxy = proxy_for(self._url)
            self._pool = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, ttl_dns_cache=DNS_SECONDS),
                timeout=aiohttp.ClientTimeout(
                    total=self._total_timeout,
                    connect=self._connect_timeout,
                    sock_connect=self._connect_timeout,
                    sock_read=self._read_timeout,
                ),
                # Cookies of one caller must not travel with another's call.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    "accept": "text/event-stream, application/json",
                    "accept-encoding": "identity",
                    "content-type": "application/json",
                    "user-agent": "holdfast",
                },
            )
            if self._retired:
                close_behind(self, self._pool)
        return self._pool


class PreparedRequest(NamedTuple):
    """One request as it is sent, and the credentials in it."""

    body: bytes
    headers: dict[str, str]
    secrets: tuple[str, ...]
    said: Mapping[str, Any] = {}
    """The body, for a call that goes on with it."""

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: dict[str, str]) -> PreparedRequest:
        """`body` as JSON.

        Args:
            body: what is asked.
            headers: sent with it, `checked_headers`.

        Raises:
            InvalidRequest: the body cannot be written as JSON.
        """
        try:
            encoded = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidRequest(f"the request cannot be sent as JSON: {exc}") from exc
        told = [value for name, value in headers.items() if name in SECRET_HEADERS]
        return cls(encoded, headers, tuple(told + [value.rpartition(" ")[2] for value in told]), body)


class _Failure(NamedTuple):
    """An attempt that gave no answer: the error it will be if it was the last."""

    error: ModelError
    cause: BaseException | None = None
    again: bool = False


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the end of a finished response; a connection is used again only when nothing is left in it."""
    import aiohttp

    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
