"""Base classes of all HTTP clients for upstreams: send a request, retry it if necessary, and read the response to its end.

The methods call each other in this order: `stream_deltas -> _build_request -> _respond (retries) -> _send (one attempt) -> AnswerReader`. A
request is retried only before its response begins, because the start of an answer has been paid for, and the user may have seen it.
Subclasses in `holdfast.models.openai` and `holdfast.models.anthropic` define the request format and parse the answers. The first call
imports aiohttp.
"""

from __future__ import annotations

import asyncio
import io
import math
import random as random_numbers
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypedDict
from urllib.parse import urlsplit

import msgspec

from holdfast.errors import (
    InvalidRequest,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelReplyTooLarge,
    ModelUnavailable,
)
from holdfast.limits import MODEL_EVENT_BYTES, MODEL_STREAM_BYTES
from holdfast.models.base import ModelRequest, close_after
from holdfast.models.deltas import DeltaModel
from holdfast.models.failures import is_retryable, make_upstream_error, parse_error_body, scrub
from holdfast.models.http import SECRET_HEADERS, check_headers, find_proxy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

    import aiohttp
    from yarl import URL

    from holdfast.log.items import Delta
    from holdfast.models.answer import AnswerReader

LONGEST_PAUSE: Final = 30.0
"""Maximum pause before a retry, in seconds. If an upstream asks for a longer pause, the caller gets the error, because the caller may have
an alternative.
"""
FIRST_PAUSE: Final = 0.5
"""Seconds before the first retry if the upstream asks for no pause. The pause doubles with each retry after that."""
DRAIN_SECONDS: Final = 0.1
"""Maximum seconds to wait for the end of a response after its answer is complete, so that the connection can be used again."""
ERROR_BODY_BYTES: Final = 1024 * 1024
ERROR_BODY_SECONDS: Final = 10.0
DNS_SECONDS: Final = 60
PIECE_BYTES: Final = 16 * 1024
"""Maximum bytes of an answer that are read at once. The data stays in memory while a slow client reads."""
CHUNKS_AT_ONCE: Final = 16
"""Number of events that are yielded before other tasks may run. It corresponds to some milliseconds of work."""
CONTENT_HEADERS: Final = ("accept", "content-length", "content-type")
"""Headers that describe the body of a forwarded request and the answer that its client expects."""
BODY_IN_ONE: Final = 512 * 1024
"""Maximum bytes of a request body that is sent at once. A larger body is sent in pieces, so that other tasks can run in between."""


def load_http() -> None:
    """Import aiohttp before the first call of a model, because the import blocks the event loop for tenths of a second."""
    import aiohttp  # noqa: F401


class Options(TypedDict, total=False):
    """Keyword arguments for every subclass of `HttpClient`. The docstring of `HttpClient` describes them."""

    connect_timeout: float
    read_timeout: float
    total_timeout: float | None
    max_retries: int
    max_connections: int
    max_event_bytes: int
    max_stream_bytes: int
    sleep: Callable[[float], Awaitable[object]]
    random: Callable[[], float]


class HttpClient:
    """A client for one upstream, with its pool of connections. It sends requests, and repeats them if that may help.

    The first call opens the pool in the running event loop, and reads the proxy settings of the environment (`HTTPS_PROXY`, `NO_PROXY`, …).
    `close` closes the pool. Cookies are not stored, and redirects are not followed. The key never appears in an error, a log or a repr.

    Args:
        url: URL to which requests are posted.
        where: Name of the upstream in errors: its URL without path and query, which may contain a key.
        model: Name of the model at the upstream. It replaces the name in the request. None: the name in the request is sent.
        connect_timeout: Maximum seconds to get a connection. This includes DNS, TLS and the wait for a free connection.
        read_timeout: Maximum seconds without data, before the first chunk and between two reads.
        total_timeout: Maximum seconds of a whole attempt, from the connection to the last chunk. None: no limit.
        headers: Headers of every call.
        max_retries: Maximum number of retries after a failure before the answer began: no connection, a lost connection, or one of the
            statuses 408, 409, 425, 429 and 5xx. The pause before a retry is the one that `Retry-After` asks for. Without this header, it
            grows from 0.5 s, with jitter. A read timeout is not retried, because the upstream may still be generating the answer, and
            charge for it.
        max_connections: Maximum number of concurrent calls. Other calls wait, at most `connect_timeout`.
        max_event_bytes: Maximum bytes of an event, or of an answer that is not streamed. Default: 16 MiB.
        max_stream_bytes: Maximum bytes of all data of one reply. Default: 128 MiB.
        sleep: Function that waits for a number of seconds. Tests replace it.
        random: Function that returns a random number from 0 to 1, for jitter. Tests replace it.
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
        """Name of the model at the upstream, or the address of the upstream if each request names its model."""
        return self._model or self._where

    @property
    def origin(self) -> str:
        """Scheme, host and port of the upstream."""
        return self._where

    def _make_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return the headers of one call: those of this client, and those of the call, which override them."""
        return self._headers | check_headers(headers)

    async def fetch(self, call: PreparedRequest) -> bytes:
        """Send a request, and return the complete response without decoding it.

        Raises:
            ModelError: The upstream did not answer, or refused the request.
        """
        import aiohttp

        response, deadline = await self._respond(call)
        data = bytearray()
        try:
            while piece := await response.content.read(PIECE_BYTES):
                data += piece
                if len(data) > self._max_event_bytes:
                    most = f"{self._max_event_bytes:,} bytes"
                    raise ModelReplyTooLarge(f"{self._where} sent an answer longer than {most}")
                if asyncio.get_running_loop().time() >= deadline:
                    raise self._make_timeout_error(TimeoutError())
        except (aiohttp.ClientError, OSError, RuntimeError) as exc:
            self._explain_no_data(exc)
        finally:
            response.close()
        return bytes(data)

    def retire(self) -> None:
        """Close the connections as soon as no caller uses the client any more. Running calls continue."""
        self._retired = True
        if self._pool is not None:
            close_after(self, self._pool)

    async def close(self) -> None:
        """Close the connections. Calls after that raise `ModelUnavailable`."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def _respond(self, call: PreparedRequest) -> tuple[aiohttp.ClientResponse, float]:
        """Send a request until a response begins, and return the response and its deadline in the event loop's time.

        A failed attempt is repeated if the failure may be temporary.
        """
        attempt, now = 0, asyncio.get_running_loop().time
        while True:
            deadline = now() + (math.inf if self._total_timeout is None else self._total_timeout)
            outcome = await self._send(call)
            if not isinstance(outcome, _Failure):
                return outcome, deadline
            pause = None
            if outcome.again and attempt < self._max_retries:
                pause = compute_pause(outcome.error.retry_after, attempt, self._random)
            if pause is None:
                error, cause = outcome.error, outcome.cause
                del outcome
                try:
                    raise error from cause
                finally:
                    del error, cause  # else the frame and the error form a cycle that keeps the prompt in memory
            await self._sleep(pause)
            attempt += 1

    async def _open(
        self,
        url: str | URL,
        body: bytes | AsyncIterable[bytes] | None,
        headers: Mapping[str, str],
        method: str = "POST",
    ) -> aiohttp.ClientResponse | _Failure:
        import aiohttp

        data = io.BytesIO(body) if isinstance(body, bytes) and len(body) > BODY_IN_ONE else body
        pool = self._open_pool()
        try:
            return await pool.request(method, url, data=data, headers=headers, allow_redirects=False, proxy=self._proxy)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return self._explain_no_response(exc)

    async def _send(self, call: PreparedRequest) -> aiohttp.ClientResponse | _Failure:
        """Make one attempt, and return the response if its status is 200."""
        response = await self._open(
            call.url or self._url, call.body, {"content-type": "application/json", **call.headers}
        )
        if isinstance(response, _Failure) or response.status == 200:
            return response
        try:
            data = await self._read_error(response)
        finally:
            response.close()
        if 200 <= response.status < 300:
            return _Failure(ModelProtocolError(f"{self._where} answered {response.status}", status=response.status))
        body = parse_error_body(data, call.secrets)
        error = make_upstream_error(response.status, body, where=self._where, headers=response.headers)
        return _Failure(error, again=is_retryable(error, response.headers))

    async def _read_error(self, response: aiohttp.ClientResponse) -> bytes:
        """Return the body of an error, or as much of it as arrives in time: the status alone is sufficient."""
        import aiohttp

        data = bytearray()
        with suppress(aiohttp.ClientError, OSError, RuntimeError):
            async with asyncio.timeout(ERROR_BODY_SECONDS):
                while len(data) < ERROR_BODY_BYTES and (piece := await response.content.read(PIECE_BYTES)):
                    data += piece
        return bytes(data)

    def _explain_no_data(self, error: Exception) -> bytes:
        """Return no data, as at the end of a response, after an error of the connection. The parser detects that the answer is incomplete.

        Raises:
            ModelUnavailable: The upstream was silent for too long.
        """
        import aiohttp

        if isinstance(error, TimeoutError):
            raise self._make_timeout_error(error) from error
        if isinstance(
            error, aiohttp.ClientError | OSError | RuntimeError
        ):  # RuntimeError: `close` was called meanwhile
            return b""
        raise error

    def _make_limit_error(self, left: int) -> ModelError:
        """Return the error for an answer that has too many bytes, or that takes too long.

        The time limit of aiohttp does not suffice: its timer never fires while more data is always available.
        """
        if left < 0:
            return ModelReplyTooLarge(f"{self._where} sent more than {self._max_stream_bytes:,} bytes for one reply")
        return self._make_timeout_error(TimeoutError())

    def _make_timeout_error(self, exc: TimeoutError) -> ModelUnavailable:
        import aiohttp

        if self._total_timeout is not None and not isinstance(exc, aiohttp.SocketTimeoutError):
            return ModelUnavailable(f"{self._where} did not end its answer within {self._total_timeout:g} s")
        return ModelUnavailable(f"{self._where} sent nothing for {self._read_timeout:g} s")

    def _explain_no_response(self, exc: Exception) -> _Failure:
        """Return the failure for a call that got no response.

        Some of aiohttp's errors do not become the cause of the failure, because their repr contains the request's headers or the proxy's
        password.
        """
        import aiohttp

        if isinstance(exc, aiohttp.ConnectionTimeoutError):
            error = ModelUnavailable(f"{self._where} did not accept a connection within {self._connect_timeout:g} s")
            return _Failure(error, again=True)
        if isinstance(exc, TimeoutError):
            return _Failure(self._make_timeout_error(exc), exc)
        if isinstance(exc, aiohttp.ClientConnectorError):
            cause = getattr(exc, "os_error", None)
            error = ModelUnavailable(f"{self._where} cannot be reached: {cause or type(exc).__name__}")
            return _Failure(error, cause, again=True)
        if isinstance(exc, aiohttp.ClientResponseError):
            from_proxy = isinstance(exc, aiohttp.ClientHttpProxyError)
            refused = ModelUnavailable(f"the proxy before {self._where} answered {exc.status}")
            return _Failure(refused if from_proxy else ModelProtocolError(f"{self._where} does not speak HTTP"))
        if isinstance(exc, aiohttp.ClientConnectionError | OSError):
            return _Failure(ModelUnavailable(f"{self._where} closed the connection without an answer"), exc, again=True)
        return _Failure(ModelUnavailable(f"{self._where} cannot be called: {type(exc).__name__}"))

    def _open_pool(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._closed:
            raise ModelUnavailable(f"the client of {self._where} is closed")
        if self._pool is None:
            self._proxy = find_proxy(self._url)
            self._pool = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._max_connections, ttl_dns_cache=DNS_SECONDS),
                timeout=aiohttp.ClientTimeout(
                    total=self._total_timeout,
                    connect=self._connect_timeout,
                    sock_connect=self._connect_timeout,
                    sock_read=self._read_timeout,
                ),
                # Cookies of one caller must not be sent with another caller's request.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={
                    "accept": "text/event-stream, application/json",
                    "accept-encoding": "identity",
                    "user-agent": "holdfast",
                },
            )
            if self._retired:
                close_after(self, self._pool)
        return self._pool


class UpstreamClient(HttpClient, DeltaModel):
    """A client for one model, or for all models of one upstream. Subclasses define its API.

    The arguments are those of `HttpClient`.
    """

    _path: ClassVar[str] = ""
    """Path of the API below the base URL. Subclasses replace it."""

    async def forward(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | AsyncIterable[bytes] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Send a request for another path of the API, once and unchanged. Yield a `ForwardedHead`, then the body in pieces.

        Args:
            method: HTTP method.
            path: Path below the base URL, percent-encoded, with a query if there is one.
            headers: Headers of the request. Those of `CONTENT_HEADERS` describe its body and the expected answer.
            body: The body. None: there is none.

        Raises:
            ModelUnavailable: There was no response.
            ModelProtocolError: The response is a redirect, or was cut off.
        """
        import aiohttp

        sent = self._make_headers(headers)
        sent |= {name: headers[name] for name in CONTENT_HEADERS if name in headers}
        outcome = await self._open(self._make_url(path), body, sent, method)
        if isinstance(outcome, _Failure):
            raise outcome.error from outcome.cause
        try:
            if 300 <= outcome.status < 400:
                raise make_upstream_error(outcome.status, None, where=self._where)
            yield ForwardedHead(outcome.status, outcome.headers)
            if outcome.status >= 400:  # an error is short, and may quote the key
                text = (await self._read_error(outcome)).decode("latin-1")
                yield scrub(text, find_secrets(sent)).encode("latin-1")
                return
            async for piece in outcome.content.iter_any():
                yield piece
        except TimeoutError as exc:
            raise self._make_timeout_error(exc) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ModelProtocolError(f"{self._where} closed the connection before its answer was complete") from exc
        finally:
            outcome.close()

    def _make_url(self, path: str) -> URL:
        """Return the URL of another path of the API, with the query of the base URL."""
        from yarl import URL

        own = urlsplit(self._url)
        path, _, query = path.partition("?")
        url = own._replace(
            path=own.path.removesuffix(self._path) + path, query="&".join(filter(None, (own.query, query)))
        )
        return URL(url.geturl(), encoded=True)

    async def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """Send the request and yield the deltas of each event of the answer, as described in `Model.stream`.

        Raises:
            InvalidRequest: The request cannot be expressed in this upstream's format, or a header is invalid.
        """
        call = await self._prepare_request(request, headers or {})
        answer: AnswerReader | None = self._create_reader(call)
        left, now = self._max_stream_bytes, asyncio.get_running_loop().time
        while answer is not None:
            url = self._url
            try:
                response, deadline = await self._respond(call)
            except ModelRejected as error:
                if not self._changes_url(error, url):
                    raise
                continue
            try:
                while not answer.done:
                    if left < 0 or now() >= deadline:
                        raise self._make_limit_error(left)
                    try:
                        data = await response.content.read(PIECE_BYTES)
                    except Exception as exc:  # noqa: BLE001 - raised again if it is not the connection's
                        data = self._explain_no_data(exc)
                    left -= len(data)
                    for at, deltas in enumerate(answer.feed(data) if data else answer.end(), 1):
                        yield deltas
                        if at % CHUNKS_AT_ONCE == 0:  # the caller works on each list: let other tasks run
                            await asyncio.sleep(0)
                    if len(data) == PIECE_BYTES:  # more data may be available already
                        await asyncio.sleep(0)
                await _drain(response)
            finally:
                # Closes the connection unless the response was read to its end. Must not await, because it must also work
                # while the task is being cancelled.
                response.close()
            call, answer = self._continue_call(call, answer)

    async def _prepare_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        """Build the HTTP request. Subclasses override this method if `_build_request` may take long and should run in a thread."""
        return self._build_request(request, headers)

    @abstractmethod
    def _build_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        """Return the HTTP request for a request.

        Args:
            request: The request.
            headers: Headers of this call, which override those of the client.
        """

    @abstractmethod
    def _create_reader(self, call: PreparedRequest) -> AnswerReader:
        """Return the parser for the answer to `call`."""

    def _changes_url(self, error: ModelRejected, url: str) -> bool:
        """Return True if a refusal shows that `url` was wrong, and the client has another one now."""
        return False

    def _continue_call(
        self, call: PreparedRequest, answer: AnswerReader
    ) -> tuple[PreparedRequest, AnswerReader | None]:
        """Return the call that continues an incomplete answer, and the parser for the rest of the answer.

        The parser is None if the answer is complete. The caller then ignores the returned call.

        Args:
            call: The call that was just answered.
            answer: Parser of that answer.
        """
        del answer
        return call, None


def compute_pause(requested: float | None, attempt: int, random: Callable[[], float]) -> float | None:
    """Return the seconds to wait before the next attempt, or None if the server asks for a pause longer than `LONGEST_PAUSE`.

    Args:
        requested: The pause that the server asks for, in seconds, or None.
        attempt: Number of failed attempts before the last one.
        random: Returns a number from 0 to 1.
    """
    if requested is not None:
        # A little later than asked, with jitter, so that clients do not all return at once.
        return requested * (1 + 0.1 * random()) if requested <= LONGEST_PAUSE else None
    return float(FIRST_PAUSE * 2**attempt * (0.5 + 0.5 * random()))


class PreparedRequest(NamedTuple):
    """An HTTP request that can be sent, and the credentials in its headers."""

    body: bytes
    headers: dict[str, str]
    secrets: tuple[str, ...]
    fields: Mapping[str, Any] = {}
    """The body before encoding. A call that continues the answer needs these fields."""
    url: str | None = None
    """URL of the call. None: that of the client."""

    @classmethod
    def from_body(cls, body: Mapping[str, Any], headers: dict[str, str]) -> PreparedRequest:
        """Return a request whose body is `body`, encoded as JSON.

        Args:
            body: Body of the request.
            headers: Headers of the request, validated by `check_headers`.

        Raises:
            InvalidRequest: The body cannot be encoded as JSON.
        """
        try:
            encoded = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as exc:
            raise InvalidRequest(f"the request cannot be sent as JSON: {exc}") from exc
        return cls(encoded, headers, find_secrets(headers), body)


class ForwardedHead(NamedTuple):
    """Status and headers of the response to a forwarded request."""

    status: int
    headers: Mapping[str, str]


def find_secrets(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the credentials in the headers of a request, with and without the name of their scheme."""
    credentials = [value for name, value in headers.items() if name in SECRET_HEADERS]
    return (*credentials, *(value.rpartition(" ")[2] for value in credentials))


class _Failure(NamedTuple):
    """A failed attempt: the error to raise, its cause, and if a retry may succeed (`again`)."""

    error: ModelError
    cause: BaseException | None = None
    again: bool = False


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the rest of a response after its answer is complete. Its connection can be used again only after all data has been read."""
    import aiohttp

    if response.content.at_eof():  # the end came together with the answer
        return
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
