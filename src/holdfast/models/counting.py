"""Client for a provider's endpoint that counts the tokens of a prompt. The first call imports aiohttp.

Holdfast can work without the provider's count. After a failure or a timeout, the provider is not called for a while, and the local count is
used instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.models.base import ModelRequest, close_after
from holdfast.models.count_endpoints import Endpoint
from holdfast.models.failures import parse_error_body, scrub
from holdfast.models.http import SECRET_HEADERS, check_headers, find_proxy

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger("holdfast.models")

CACHE_COUNTS: Final = 1_024
"""Maximum number of counts in the cache. Its keys are hashes of prompts."""
SECONDS: Final = 3.0
"""Maximum seconds to wait for a count. The limit is low, because a turn waits for the count."""
PAUSE: Final = 60.0
"""Seconds after a failure during which the provider is not called."""
LONG_PAUSE: Final = 3_600.0
"""Seconds during which the provider is not called if it answered that the endpoint does not exist or that the key may not use it."""
ANSWER_BYTES: Final = 64 * 1024
WORDS: Final = 300
"""Maximum number of characters of a provider's error message that `failure` contains."""
_FINAL: Final = frozenset({401, 403, 404, 405, 410, 501})
"""Statuses that will probably not change soon. They cause `LONG_PAUSE`."""
_PROMPT_REJECTED: Final = frozenset({400, 413, 422})
"""Statuses that concern a single prompt. They cause no pause, because the next prompt may be counted."""


class _NoCountError(Exception):
    """Raised if the provider returns no count.

    The message gives the reason, and `pause` is the number of seconds until the next attempt.
    """

    def __init__(self, why: str, pause: float = PAUSE) -> None:
        super().__init__(why)
        self.pause = pause


class PromptCounter(Protocol):
    """Counts the tokens of complete prompts as the provider of a model does."""

    @property
    def failure(self) -> str | None:
        """The reason why the last count failed, or None if it succeeded."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the tokens of the prompt of a request, including tools and media, or None if there is no count.

        The method raises no error except cancellation, and takes no longer than a few seconds.
        """

    async def close(self) -> None:
        """Close all connections."""


class ProviderCounter:
    """Counts prompts with a provider's endpoint, and caches the counts.

    Args:
        endpoint: The endpoint, from `find_count_endpoint`.
        headers: Headers of every call. They override those of the endpoint.
        seconds: Maximum seconds to wait for a count, including the connection.
        clock: Returns monotonic seconds. Tests replace it.

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
        """The reason why the last count failed, with keys removed, or None if it succeeded."""
        return self._failure

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the tokens of the prompt of a request, from the cache or from the provider, or None if there is no count.

        The method raises no error except cancellation.
        """
        try:
            data = msgspec.json.encode(self._endpoint.make_request(request))
        except (HoldfastError, msgspec.MsgspecError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            # Other prompts may be counted, so there is no pause.
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
            tokens = await self._ask(self._endpoint.make_url(request), data)
        except _NoCountError as exc:
            self._record_failure(exc)
            return None
        self._failure = None
        self._known[key] = tokens
        if len(self._known) > CACHE_COUNTS:
            self._known.popitem(last=False)
        return tokens

    def retire(self) -> None:
        """Close the connections as soon as no caller uses the counter any more."""
        self._retired = True
        if self._pool is not None:
            close_after(self, self._pool)

    async def close(self) -> None:
        """Close the connections. The provider is not called after that."""
        self._closed = True
        if self._pool is not None:
            await self._pool.close()

    # -- calls of the provider -----------------------------------------------------

    async def _ask(self, url: str, data: bytes) -> int:
        import aiohttp

        try:
            async with asyncio.timeout(self._seconds):
                status, answer = await self._post(url, data)
        except TimeoutError as exc:
            raise _NoCountError(f"no answer within {self._seconds:g} s") from exc
        except (aiohttp.ClientError, OSError, ValueError, RuntimeError, InvalidRequest) as exc:
            # Report only the type, and do not chain the error, because the text of some errors contains the request's headers.
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
