"""Send requests to a server over HTTP, and retry them where that cannot write anything twice."""

from __future__ import annotations

import asyncio
import inspect
import io
import random as random_numbers
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET

from holdfast import errors
from holdfast.accounting import run_cpu
from holdfast.errors import (
    HoldfastError,
    InvalidRequest,
    ServerError,
    ServerUnavailable,
    StoreClosed,
    TooLarge,
    WrongEventLoop,
)
from holdfast.limits import (
    CONNECT_ANSWER_BYTES,
    CONNECT_CALL_SECONDS,
    CONNECT_PAGE,
    CONNECT_RETRIES,
    CONNECT_SECONDS,
    INLINE_BODY_BYTES,
)
from holdfast.models.client import BODY_IN_ONE, compute_pause
from holdfast.models.failures import parse_retry_after, scrub
from holdfast.models.http import check_api_key, find_proxy, parse_base_url
from holdfast.numbers import check_number, check_whole
from holdfast.remote.objects import Page

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
KEY: Final = "idempotency-key"
_NOT_OPEN: Final = "this connection is not open: use it as `async with holdfast.connect(…) as hf`"
_DAY: Final = 86_400.0


class Request(NamedTuple):
    """A request to the server."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, Any] = {}
    content: bytes | None = None
    headers: Mapping[str, str] = {}
    repeatable: bool = False
    """True if the request may be sent again after the server may have received it."""


class Answer(NamedTuple):
    """A complete answer of the server."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class _Failure(NamedTuple):
    """A failed attempt."""

    error: Exception
    again: bool
    """True if another attempt may succeed, and cannot write anything twice."""
    pause: float | None = None
    """Seconds for which the server asked, or None."""


def make_key(key: str | None = None) -> dict[str, str]:
    """Return a header with an idempotency key, so that a retried write is not done twice. None: a new key."""
    return {KEY: uuid.uuid4().hex if key is None else key}


def leave_out(value: object, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that do not have this value, None or UNSET."""
    return {name: one for name, one in fields.items() if one is not value}


def name_order(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as query parameters: `descending` becomes `order`."""
    named = {name: one for name, one in given.items() if name != "descending"}
    return {**named, "order": "desc" if given["descending"] else "asc"}


def match(expect: int | None) -> dict[str, str]:
    """Return the header that requires a version, or no header for None."""
    if expect is None:
        return {}
    check_whole(expect, "expect")
    return {"if-match": f'"{expect}"'}


class Transport:
    """The connections to one server. The key appears in no error, log or repr.

    Args:
        url: address of the server, for example `http://127.0.0.1:8377`.
        api_key: key of the server; None: the server needs none.
        timeout: longest time in seconds of a call with all its tries and pauses.
        max_retries: maximum number of retries of a call.
        sleep: waits for a number of seconds; tests replace it.
        random: returns a number from 0 to 1.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        *,
        timeout: float = CONNECT_CALL_SECONDS,
        max_retries: int = CONNECT_RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random_numbers.random,
    ) -> None:
        check_number(timeout, "timeout", 0.001, _DAY)
        check_whole(max_retries, "max_retries")
        self._base, self.where = _parse_url(url)
        self._key = None if api_key is None else _check_key(api_key)
        self._timeout, self._max_retries = timeout, max_retries
        self._sleep, self._random = sleep, random
        self._pool: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._proxy: str | None = None

    def __repr__(self) -> str:
        return f"<connections to {self.where}>"

    async def open(self) -> None:
        """Create the pool of connections. It connects with the first request."""
        import aiohttp

        self._loop, self._proxy = asyncio.get_running_loop(), find_proxy(self._base)
        self._pool = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"accept": "application/json", "user-agent": "holdfast"},
        )

    async def close(self) -> None:
        """Close the connections. Closing twice is allowed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    async def call(
        self,
        method: str,
        *path: str,
        parse: Callable[[bytes], T],
        query: Mapping[str, Any] | None = None,
        body: Any = UNSET,
        headers: Mapping[str, str] | None = None,
        repeatable: bool | None = None,
    ) -> T:
        """Send a request with a JSON body, and return the parsed answer.

        Args:
            method: the HTTP method.
            path: segments of the path, not encoded.
            parse: converts the body of the answer. It runs in a thread if the body is large.
            query: query parameters; those that are None are left out.
            body: JSON data; UNSET: no body.
            headers: further headers.
            repeatable: True if the request may be sent again after the server may have received it; None: if it only reads, or has an
                idempotency key.

        Raises:
            ServerError: the server did not answer, or its answer is not one of Holdfast.
            HoldfastError: the error that the server reported.
        """
        sent = dict(headers or {})
        content = None
        if body is not UNSET:
            content, sent["content-type"] = encode_body(body), "application/json"
        again = (method == "GET" or KEY in sent) if repeatable is None else repeatable
        answer = await self.send(Request(method, path, query or {}, content, sent, again))
        try:
            return await run_cpu(parse, answer.data, long=len(answer.data) > INLINE_BODY_BYTES)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, LookupError, TypeError):
            pass
        raise make_foreign_error(answer.status, answer.headers, where=self.where)

    async def read_all(self, *path: str, query: Mapping[str, Any], parse: Callable[[bytes], Page[T]]) -> tuple[T, ...]:
        """Return the items of all pages of a list. The arguments and errors are those of `call`."""
        found: list[T] = []
        after, has_more = None, True
        while has_more:
            some = {**query, "limit": CONNECT_PAGE, "after": after}
            page = await self.call("GET", *path, query=some, parse=parse)
            found += page.items
            has_more, after = page.has_more, page.last_id
        return tuple(found)

    async def send(self, request: Request) -> Answer:
        """Send a request, with retries, and return the answer. Raises the errors of `call`."""
        if self._pool is None:
            raise StoreClosed(_NOT_OPEN)
        if asyncio.get_running_loop() is not self._loop:
            raise WrongEventLoop
        late = False
        try:
            async with asyncio.timeout(self._timeout):
                outcome = await self._send_until_answered(request)
        except TimeoutError:
            late = True
        if late:
            raise ServerUnavailable(f"{self.where} did not answer within {self._timeout:g} s")
        if isinstance(outcome, _Failure):
            raise outcome.error
        return outcome

    async def _send_until_answered(self, request: Request) -> Answer | _Failure:
        attempt = 0
        while True:
            outcome = await self._send_once(request)
            if isinstance(outcome, Answer) or not outcome.again or attempt >= self._max_retries:
                return outcome
            pause = compute_pause(outcome.pause, attempt, self._random)
            if pause is None:
                return outcome
            await self._sleep(pause)
            attempt += 1

    async def _send_once(self, request: Request) -> Answer | _Failure:
        import aiohttp
        from yarl import URL

        pool = self._pool
        if pool is None:
            return _Failure(StoreClosed(_NOT_OPEN), again=False)
        headers = dict(request.headers)
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            async with pool.request(
                request.method,
                URL(make_url(self._base, request.path, request.query), encoded=True),
                data=_to_body(request.content),
                headers=headers,
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                data = await self._read(response)
                answer = Answer(response.status, response.headers, data)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            failure = self._explain(exc, request)
        else:
            if 200 <= answer.status < 300:
                return answer
            error = make_error(answer.status, answer.data, answer.headers, where=self.where, api_key=self._key)
            # A server that answers 429 has not begun to handle the request.
            again = answer.status == 429 or (answer.status in UNAVAILABLE and request.repeatable)
            pause = error.retry_after if isinstance(error, ServerError) else None
            return _Failure(error, again, pause)
        return failure

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        data = bytearray()
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > CONNECT_ANSWER_BYTES:
                response.close()
                raise TooLarge(
                    f"{self.where} sent more than {CONNECT_ANSWER_BYTES:,} bytes: read fewer messages at once"
                )
        return bytes(data)

    def _explain(self, exc: Exception, request: Request) -> _Failure:
        """Return the failure for a request without a complete answer. The errors of aiohttp may contain the key, so they are not kept."""
        import aiohttp

        if isinstance(exc, aiohttp.ConnectionTimeoutError):
            message = f"{self.where} did not accept a connection within {CONNECT_SECONDS:g} s"
            return _Failure(ServerUnavailable(message), again=True)
        if isinstance(exc, aiohttp.ClientConnectorError):
            return _Failure(ServerUnavailable(f"{self.where} cannot be reached: {exc.os_error}"), again=True)
        if isinstance(exc, aiohttp.ClientHttpProxyError):
            return _Failure(ServerUnavailable(f"the proxy before {self.where} answered {exc.status}"), again=True)
        if isinstance(exc, aiohttp.ClientResponseError):
            return _Failure(ServerError(f"{self.where} does not speak HTTP"), again=False)
        return _Failure(ServerUnavailable(f"{self.where} closed the connection without an answer"), request.repeatable)


def _to_body(content: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body that is sent in pieces if it is large, so that other tasks can run in between."""
    return io.BytesIO(content) if content is not None and len(content) > BODY_IN_ONE else content


def make_url(base: str, path: tuple[str, ...], query: Mapping[str, Any]) -> str:
    """Return the URL of a request. Every segment of the path is percent-encoded, so that ids may contain slashes and dots."""
    encoded = "/".join(quote(one, safe="").replace(".", "%2E") for one in path)
    given = {name: _format(value) for name, value in query.items() if value is not None}
    return f"{base}/{encoded}" + (f"?{urlencode(given, quote_via=quote)}" if given else "")


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def encode_body(body: Any) -> bytes:
    """Return a body as JSON. Raises `InvalidRequest` if it has no JSON form."""
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidRequest(f"the arguments cannot be sent as JSON: {exc}") from exc


def _parse_url(url: Any) -> tuple[str, str]:
    if not isinstance(url, str):
        raise InvalidRequest(f"url must be a string, not {type(url).__name__}", param="url")
    try:
        base, where = parse_base_url(url, lambda path: path.removesuffix("/v1"))
    except InvalidRequest as exc:
        raise InvalidRequest(str(exc).replace("base_url", "url"), param="url") from exc
    if "?" in base:
        raise InvalidRequest("url must not have a query", param="url")
    return base, where


def _check_key(api_key: Any) -> str:
    if not isinstance(api_key, str) or not api_key.strip():
        raise InvalidRequest("api_key must be a key, or None if the server needs none", param="api_key")
    return check_api_key(api_key)


UNAVAILABLE: Final = frozenset({429, 502, 503, 504})
"""Statuses after which the same request may succeed soon."""


def make_error(
    status: int, data: bytes, headers: Mapping[str, str], *, where: str, api_key: str | None
) -> HoldfastError:
    """Return the error that an answer with a status other than 2xx describes.

    Args:
        status: the status.
        data: the body.
        headers: headers of the answer, in any case.
        where: address of the server, for the message.
        api_key: the key, which is removed from the message.
    """
    error = _read_error_object(data)
    retry_after = parse_retry_after(headers)
    if error is None:
        return make_foreign_error(status, headers, where=where, retry_after=retry_after)
    message = scrub(str(error.get("message") or f"{where} answered {status}"), [api_key] if api_key else [])
    code, param = error.get("code"), error.get("param")
    kind = _KINDS.get(code) if isinstance(code, str) else None
    if kind is None:
        unknown = ServerUnavailable if status in UNAVAILABLE else ServerError
        code = code if isinstance(code, str) else None
        return unknown(message, code=code, status=status, retry_after=retry_after)
    made = _make(kind, message)
    if isinstance(made, errors.InvalidRequest):
        made.param = param if isinstance(param, str) else None
    return made


def make_foreign_error(
    status: int, headers: Mapping[str, str], *, where: str, retry_after: float | None = None
) -> ServerError:
    """Return the error for an answer that is not one of Holdfast, such as the HTML page of a proxy."""
    kind = ServerUnavailable if status in UNAVAILABLE else ServerError
    media_type = (headers.get("content-type") or "no content type").partition(";")[0][:80]
    what = (
        "a redirect, which is not followed" if 300 <= status < 400 else f"{media_type} instead of an answer of Holdfast"
    )
    hint = "" if status in UNAVAILABLE else "; check the address, and the proxy before the server if there is one"
    return kind(f"{where} answered {status} with {what}{hint}", status=status, retry_after=retry_after)


def _read_error_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else None


def _make(kind: type[HoldfastError], message: str) -> HoldfastError:
    """Return an error of a class with the server's message. Attributes that the answer does not contain are None."""
    made = kind.__new__(kind)
    Exception.__init__(made, message)
    for name in inspect.signature(kind.__init__).parameters:  # a class without its own initializer has no signature
        if name not in ("self", "message", "args", "kwargs"):
            vars(made)[name] = None
    return made


_CLASSES: Final[tuple[type[HoldfastError], ...]] = tuple(getattr(errors, name) for name in errors.__all__)
_KINDS: Final = {kind.code: kind for kind in _CLASSES if not issubclass(kind, ServerError)}
