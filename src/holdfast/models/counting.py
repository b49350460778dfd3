"""Client for a provider's endpoint that counts the tokens of a prompt. The first call imports aiohttp.

Holdfast can work without the provider's count. After a failure or a timeout, the provider is not called for a while, and the local count is
used instead.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import msgspec

from holdfast.errors import HoldfastError, ModelError
from holdfast.models.base import ModelRequest
from holdfast.models.client import HttpClient, PreparedRequest
from holdfast.models.count_endpoints import Endpoint
from holdfast.models.http import check_headers

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
_FINAL: Final = frozenset({401, 403, 404, 405, 410, 501})
"""Statuses that will probably not change soon. They cause `LONG_PAUSE`."""
_PROMPT_REJECTED: Final = frozenset({400, 413, 422})
"""Statuses that concern a single prompt. They cause no pause, because the next prompt may be counted."""


class PromptCounter(Protocol):
    """Counts the tokens of complete prompts as the provider of a model does."""

    @property
    def failure(self) -> str | None:
        """The reason why the last count failed, or None if it succeeded."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the tokens of the prompt of a Chat Completions request, including tools and media, or None if there is no count.

        The method raises no error except cancellation, and takes no longer than a few seconds.
        """

    async def close(self) -> None:
        """Close all connections."""


class ProviderCounter(HttpClient):
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
        super().__init__(
            endpoint.url,
            f"{endpoint.kind}'s count endpoint",
            model=endpoint.model,
            headers={"accept": "application/json", **endpoint.headers, **check_headers(headers or {})},
            connect_timeout=seconds,
            total_timeout=seconds,
            max_retries=0,
            max_event_bytes=ANSWER_BYTES,
        )
        self._endpoint = endpoint
        self._clock = clock
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._silent_until = 0.0
        self.failure: str | None = None
        """The reason why the last count failed, with keys removed, or None if it succeeded."""

    async def count_prompt(self, request: ModelRequest) -> int | None:
        """Return the tokens of the prompt of a request, from the cache or from the provider, or None if there is no count.

        The method raises no error except cancellation.
        """
        try:
            call = PreparedRequest.from_body(self._endpoint.make_request(request), self._headers)
        except (HoldfastError, TypeError, ValueError, AttributeError, RecursionError) as exc:
            # Other prompts may be counted, so there is no pause.
            self.failure = f"the prompt cannot be expressed in {self._endpoint.kind}'s format: {exc}"
            return None
        key = hashlib.blake2b(call.body, digest_size=16).digest()
        if key in self._known:
            self._known.move_to_end(key)
            self.failure = None
            return self._known[key]
        if self._closed or self._clock() < self._silent_until:
            return None
        try:
            answer = await self.fetch(call._replace(url=self._endpoint.make_url(request)))
            tokens = self._endpoint.parse_answer(msgspec.json.decode(answer))
        except (HoldfastError, RuntimeError) as exc:
            self._record_failure(str(exc), exc.status if isinstance(exc, ModelError) else None)
            return None
        except (ValueError, RecursionError):
            tokens = None
        if tokens is None:
            self._record_failure(f"{self._where} answered without a token count", None)
            return None
        self.failure = None
        self._known[key] = tokens
        if len(self._known) > CACHE_COUNTS:
            self._known.popitem(last=False)
        return tokens

    def _record_failure(self, failure: str, status: int | None) -> None:
        """Record why there is no count, and do not call the provider for a while.

        A rejected prompt causes no pause, because the next one may be counted.
        """
        self.failure = failure
        pause = LONG_PAUSE if status in _FINAL else 0.0 if status in _PROMPT_REJECTED else PAUSE
        self._silent_until = self._clock() + pause
        if pause:
            _log.warning("%s; prompts are counted locally for the next %g s", failure, pause)
