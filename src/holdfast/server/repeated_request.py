"""Recognize a repeated request by its idempotency key, or by the header with which official SDKs mark retries."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.session import Session
from holdfast.errors import SessionNotFound
from holdfast.matching.retries import Attempt
from holdfast.server.body_limits import get_declared_size
from holdfast.server.http import Call
from holdfast.server.requester import Requester
from holdfast.turns.placement import Placement

RETRY_COUNT: Final = "x-stainless-retry-count"
"""Header in which the official SDKs of OpenAI and Anthropic count the retries of a request."""
_LONG: Final = 1_000_000
"""Size in bytes above which the digest of a body is computed in a thread."""


async def digest_attempt(
    call: Call, sent: Mapping[str, Any], key: str | None, requester: Requester, session_id: str | None
) -> bytes | None:
    """Return a hash that is equal for all attempts of a request, or None if attempts cannot be recognised.

    They are recognised by an idempotency key. Without one, they are recognised if the client marks retries, but only those of an identified
    user: other people may have sent the same body.

    Args:
        call: the request.
        sent: body of the request.
        key: idempotency key of the request, or None.
        requester: user of the request, whom a header may name.
        session_id: id of the session that the body or a header names; None: they name none.
    """
    principal = call.principal
    caller = [principal.tenant, principal.user_id, principal.key_id, requester.user_id]
    headers = [call.get_header(name) for name in ("authorization", "x-api-key")]
    what = [caller, headers, call.request.url.path, session_id]
    if key is not None:
        return _compute_digest([*what, key])
    if not requester.identified or call.get_header(RETRY_COUNT) is None:
        return None
    return await run_cpu(_compute_digest, [*what, sent], long=(get_declared_size(call.request.headers) or 0) > _LONG)


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

    async def resume(self, find_again: Callable[[bool], Awaitable[Placement]]) -> Placement | None:
        """Return the session of the earlier attempt that this request repeats, as a `Placement`, or None if the request repeats none.

        Args:
            find_again: finds the session of a new request; see `Placement`.
        """
        if self._digest is None or not self._is_repeated():
            return None
        attempt = self._call.hf.engine.retries.resume(self._digest)
        session = None if attempt is None else await self._get_session(attempt)
        return None if session is None else Placement(session, "retry", attempt=attempt, find_again=find_again)

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
        placement.record_attempt(attempt)
        return placement
