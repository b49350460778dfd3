"""Client for a provider's endpoint that counts the tokens of a prompt. aiohttp is imported by the first call.

A provider's count is optional: after a failure or a timeout the provider is not called for a while, and the local count
is used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.models.client_shutdown import close_after
from holdfast.models.count_endpoints import Endpoint
from holdfast.models.failures import parse_error_body, scrub
from holdfast.models.http import SECRET_HEADERS, check_headers, find_proxy

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger("holdfast.models")

CACHED: Final = 1_024
"""Maximum number of cached counts, by hash of the prompt."""
SECONDS: Final = 3.0
"""Maximum time to wait for a count, in seconds: a turn waits for it."""
PAUSE: Final = 60.0
"""Seconds during which a provider is not called again after a failure."""
LONG_PAUSE: Final = 3_600.0
"""The same, after a response that says there is no such endpoint or that the key is not allowed to use it."""
ANSWER_BYTES: Final = 64 * 1024
WORDS: Final = 300
"""Maximum number of characters of an upstream's message that are reported."""
_FINAL: Final = frozenset({401, 403, 404, 405, 410, 501})
"""Statuses after which asking again soon is pointless."""
_PROMPT_REJECTED: Final = frozenset({400, 413, 422})
"""Statuses that reject one prompt and say nothing about the next."""


class _NoCountError(Exception):
    """The reason for a missing count, and the seconds until the next attempt."""

    def __init__(self, why: str, pause: float = PAUSE) -> None:
        super().__init__(why)
        self.pause = pause


class PromptCounter(Protocol):
    """Counts whole prompts in the way a provider does."""

    @property
    def failure(self) -> str | None:
        """The reason why the last count failed, for reports; None if it succeeded."""

    async def count_prompt(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a Chat Completions request's prompt, tools and media included, or None if there is no count.

        Never raises except for cancellation, and never takes longer than a few seconds.
        """

    async def close(self) -> None:
        """Close all connections."""


class ProviderCounter:
    """A provider's count endpoint, with a cache.

    Args:
        endpoint: The endpoint, from `find_count_endpoint`.
        headers: Sent with every call, overriding the endpoint's own.
        seconds: Maximum time to wait for a count, including the connection.
        clock: Returns monotonic seconds; replaced in tests.

    Raises:
        InvalidRequest: A header is invalid.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._headers = endpoint.headers | check_headers(headers or {})
        self._secrets = tuple(value for name, value in self._headers.items() if name in SECRET_HEADERS)
        self._secrets += tuple(value.removeprefix("Bearer ") for value in self._secrets)
        self._seconds = seconds
        self._clock = clock
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._silent_until = 0.0
        self._pool: aiohttp.ClientSession | None = None
        self._proxy: str | None = None
        self._closed = self._retired = False
        self._failure: str | None = None

    def __repr__(self) -> str:
        return f"ProviderCounter({self._endpoint.model!r}, {self._endpoint.kind})"

    @property
    def failure(self) -> str | None:
        """The reason why the last count failed, without any key; None if it succeeded."""
        return self._failure

    async def count_prompt(self, body: Mapping[str, Any]) -> int | None:
        """Return the tokens of a request's prompt, from the cache or the provider, or None. Never raises."""
        try:
            data = msgspec.json.encode(self._endpoint.make_request(body))
        except (HoldfastError, msgspec.MsgspecError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            # One unusual prompt is no reason to stop using the endpoint.
            self._failure = f"the prompt cannot be expressed in {self._endpoint.kind}'s format: {exc}"
            return None
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            self._failure = None
            return self._known[key]
        if self._closed or self._clock() < self._silent_until:
            return None
        try:
            tokens = await self._ask(self._endpoint.make_url(body), data)
        except _NoCountError as exc:
            self._record_failure(exc)
            return None
        self._failure = None
        self._known[key] = tokens
        if len(self._known) > CACHED:
            self._known.popitem(last=False)
        return tokens

    def retire(self) -> None:
        """Close the connections as soon as no caller uses the counter any more."""
        self._retired = True
        if self._pool is not None:
            close_after(self, self._pool)

    async def close(self) -> None:
        """Close the connections and stop counting."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    # -- asking ----------------------------------------------------------------

    async def _ask(self, url: str, data: bytes) -> int:
        import aiohttp

        try:
            async with asyncio.timeout(self._seconds):
                status, answer = await self._post(url, data)
        except TimeoutError as exc:
            raise _NoCountError(f"no answer within {self._seconds:g} s") from exc
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError, InvalidRequest) as exc:
            # Only the type, and not chained: the text of some of these contains the request's headers.
            raise _NoCountError(type(exc).__name__) from None
        if status != 200:
            words = (parse_error_body(answer, self._secrets) or {}).get("message")
            outcome = f"answered {status}" + (f": {words[:WORDS]}" if isinstance(words, str) else "")
            # A rejected prompt (400) says nothing about the next one, which may be counted.
            raise _NoCountError(
                outcome, LONG_PAUSE if status in _FINAL else 0.0 if status in _PROMPT_REJECTED else PAUSE
            )
        try:
            tokens = self._endpoint.parse_answer(msgspec.json.decode(answer))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            tokens = None
        if tokens is None:
            raise _NoCountError("answered without a token count")
        return tokens

    async def _post(self, url: str, data: bytes) -> tuple[int, bytes]:
        pool = self._open_pool()
        async with pool.post(
            url, data=data, headers=self._headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            answer = bytearray()
            while len(answer) < ANSWER_BYTES and (piece := await response.content.readany()):
                answer += piece
            return response.status, bytes(answer)

    def _record_failure(self, failure: _NoCountError) -> None:
        self._failure = str(scrub(f"{self._endpoint.kind}'s count endpoint: {failure}", self._secrets))
        self._silent_until = self._clock() + failure.pause
        if failure.pause:
            _log.warning("%s; prompts are counted locally for the next %g s", self._failure, failure.pause)

    def _open_pool(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._pool is None:
            self._proxy = find_proxy(self._endpoint.url)
            self._pool = aiohttp.ClientSession(
                # Cookies of one caller must not be sent with another caller's request.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept": "application/json", "content-type": "application/json", "user-agent": "holdfast"},
            )
            if self._retired:
                close_after(self, self._pool)
        return self._pool
