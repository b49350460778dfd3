"""Asks a provider how many tokens a prompt has. aiohttp is imported by the first call.

An answer is worth having and nothing more: whoever does not answer soon, or cannot, is left alone for a while, and the
local count stands.
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
from holdfast.models.count_endpoints import Endpoint
from holdfast.models.failures import error_from, scrub
from holdfast.models.http import SECRET_HEADERS, check_headers, proxy_for
from holdfast.models.retiring import close_behind

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger("holdfast.models")

CACHED: Final = 1_024
"""Counts remembered, by what was counted."""
SECONDS: Final = 3.0
"""How long an answer is waited for: a turn waits with it."""
PAUSE: Final = 60.0
"""Seconds for which a provider is not asked again after it failed."""
LONG_PAUSE: Final = 3_600.0
"""The same, where it said that it has no such endpoint, or that the key may not ask."""
ANSWER_BYTES: Final = 64 * 1024
WORDS: Final = 300
"""Characters of an upstream's own words that are told."""
_FINAL: Final = frozenset({401, 403, 404, 405, 410, 501})
_ITS_OWN: Final = frozenset({400, 413, 422})


class _NoCountError(Exception):
    """Why there is no count, and for how many seconds none is asked for."""

    def __init__(self, why: str, pause: float = PAUSE) -> None:
        super().__init__(why)
        self.pause = pause


class PromptCounter(Protocol):
    """Counts whole prompts as a provider does."""

    @property
    def failure(self) -> str | None:
        """Why the last count was none, for reports; None when it was one."""

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Tokens of the prompt of a Chat Completions request, tools and media included; None when nobody says.

        Never raises but for cancellation, and never takes longer than a few seconds.
        """

    async def close(self) -> None:
        """Let go of all connections."""


class ProviderCounter:
    """A provider's count endpoint, with a memory.

    Args:
        endpoint: see `holdfast.models.count_endpoints`.
        headers: sent with every call, and stronger than the endpoint's own.
        seconds: how long an answer is waited for, connection included.
        clock: seconds on a clock that only goes forward; for tests.

    Raises:
        InvalidRequest: a header is not one.
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
        """See `PromptCounter.failure`. Never holds a key."""
        return self._failure

    async def prompt_tokens(self, body: Mapping[str, Any]) -> int | None:
        """See `PromptCounter.prompt_tokens`."""
        try:
            data = msgspec.json.encode(self._endpoint.request(body))
        except (HoldfastError, msgspec.MsgspecError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            # One odd prompt says nothing against the endpoint.
            self._failure = f"the prompt has no form that {self._endpoint.kind} counts: {exc}"
            return None
        key = hashlib.blake2b(data, digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            self._failure = None
            return self._known[key]
        if self._closed or self._clock() < self._silent_until:
            return None
        try:
            tokens = await self._ask(self._endpoint.address(body), data)
        except _NoCountError as exc:
            self._note(exc)
            return None
        self._failure = None
        self._known[key] = tokens
        if len(self._known) > CACHED:
            self._known.popitem(last=False)
        return tokens

    def retire(self) -> None:
        """Close its connections as soon as nobody has it any more."""
        self._retired = True
        if self._pool is not None:
            close_behind(self, self._pool)

    async def close(self) -> None:
        """See `PromptCounter.close`."""
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
            # Only the kind, and not chained: the text of some of these holds the request's headers.
            raise _NoCountError(type(exc).__name__) from None
        if status != 200:
            words = (error_from(answer, self._secrets) or {}).get("message")
            said = f"answered {status}" + (f": {words[:WORDS]}" if isinstance(words, str) else "")
            # A prompt that is refused as it is (400) is that prompt's affair; the next one may be counted.
            raise _NoCountError(said, LONG_PAUSE if status in _FINAL else 0.0 if status in _ITS_OWN else PAUSE)
        try:
            tokens = self._endpoint.answer(msgspec.json.decode(answer))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            tokens = None
        if tokens is None:
            raise _NoCountError("answered with something that is no count")
        return tokens

    async def _post(self, url: str, data: bytes) -> tuple[int, bytes]:
        pool = self._opened()
        async with pool.post(
            url, data=data, headers=self._headers, allow_redirects=False, proxy=self._proxy
        ) as response:
            answer = bytearray()
            while len(answer) < ANSWER_BYTES and (piece := await response.content.readany()):
                answer += piece
            return response.status, bytes(answer)

    def _note(self, why: _NoCountError) -> None:
        self._failure = str(scrub(f"{self._endpoint.kind}'s count endpoint: {why}", self._secrets))
        self._silent_until = self._clock() + why.pause
        if why.pause:
            _log.warning("%s; prompts are counted here for %g s", self._failure, why.pause)

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._pool is None:
            self._proxy = proxy_for(self._endpoint.url)
            self._pool = aiohttp.ClientSession(
                # Cookies of one caller must not travel with another's call.
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept": "application/json", "content-type": "application/json", "user-agent": "holdfast"},
            )
            if self._retired:
                close_behind(self, self._pool)
        return self._pool
