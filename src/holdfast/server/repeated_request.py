"""Recognize a repeated request by its idempotency key, or by the header with which official SDKs mark retries."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Mapping
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.session import Session
from holdfast.errors import SessionNotFound
from holdfast.matching.retries import Attempt
from holdfast.server.body_limits import get_declared_size
from holdfast.server.http import Call
from holdfast.turns.placement import Placement

RETRY_COUNT: Final = "x-stainless-retry-count"
"""Header in which the official SDKs of OpenAI and Anthropic count the retries of a request."""
_LONG: Final = 1_000_000
"""Size in bytes above which the digest of a body is computed in a thread."""


async def digest_attempt(call: Call, sent: Mapping[str, Any], key: str | None, *, identified: bool) -> bytes | None:
    """Return a hash that is equal for all attempts of a request, or None if the client neither sends an idempotency key nor marks retries.

    Args:
        call: the request.
        sent: body of the request.
        key: idempotency key of the request, or None.
        identified: True if the user of the request is known. If False, the client's address is part of the digest.
    """
    client = call.request.client
    address = None if identified or client is None else client.host
    caller = [call.principal.tenant, call.principal.user_id, call.principal.key_id, call.request.url.path, address]
    headers = [call.get_header(name) for name in ("authorization", "x-api-key", "x-session-id")]
    if key is not None:
        return _compute_digest([caller, headers, *(sent.get(name) for name in ("user_id", "user", "session_id")), key])
    if call.get_header(RETRY_COUNT) is None:
        return None
    return await run_cpu(
        _compute_digest, [caller, headers, sent], long=(get_declared_size(call.request.headers) or 0) > _LONG
    )


def _compute_digest(what: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(what, order="sorted"), digest_size=16).digest()


class RepeatedRequest:
    """Finds the session of the earlier attempt that a request may repeat, and records the first attempt.

    Args:
        call: the request.
        digest: result of `digest_attempt`. None: the request is treated as new.
    """

    def __init__(self, call: Call, digest: bytes | None) -> None:
        self._call = call
        self._digest = digest

    async def resume(self) -> Placement | None:
        """Return the session of the earlier attempt that this request repeats, as a `Placement`, or None if the request repeats none."""
        if self._digest is None or not self._is_repeated():
            return None
        attempt = self._call.hf.engine.retries.resume(self._digest)
        session = None if attempt is None else await self._get_session(attempt)
        return None if session is None else Placement(session, "retry", attempt=attempt)

    def _is_repeated(self) -> bool:
        """Return True if the request may be a retry, because it has an idempotency key or a retry count above 0."""
        count = self._call.get_header(RETRY_COUNT)
        if self._call.get_header("idempotency-key"):
            return True
        return count is not None and count.isascii() and count.isdigit() and int(count[:9]) > 0

    async def _get_session(self, attempt: Attempt) -> Session | None:
        assert attempt.ref is not None, "only attempts with a session are resumed"
        try:
            session = await self._call.hf.store.get(attempt.ref)
        except SessionNotFound:
            return None
        return session if session.identity == attempt.identity else None

    async def begin(self, placing: Awaitable[Placement]) -> Placement:
        """Find the session of a first attempt, and record both, so that a retry finds the same session.

        Args:
            placing: awaitable that finds the session.

        Returns:
            The result of `placing`.
        """
        if self._digest is None:
            return await placing
        attempt = self._call.hf.engine.retries.begin(self._digest)
        placement = await placing
        attempt.assign_session(placement.session.ref, placement.session.identity)
        placement.attempt = attempt
        return placement
