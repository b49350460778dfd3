"""Recognize a repeated request by its idempotency key, or by the header with which official SDKs mark retries."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.errors import SessionNotFound
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
    if key is None and not (requester.identified and call.get_header(RETRY_COUNT) is not None):
        return None
    principal = call.principal
    caller = [principal.tenant, principal.user_id, principal.key_id, requester.user_id]
    headers = [call.get_header(name) for name in ("authorization", "x-api-key")]
    what = [caller, headers, call.request.url.path, session_id]
    if key is not None:
        return _compute_digest([*what, key])
    return await run_cpu(_compute_digest, [*what, sent], long=(get_declared_size(call.request.headers) or 0) > _LONG)


def _compute_digest(what: Any) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(what, order="sorted"), digest_size=16).digest()


async def find_attempt(
    call: Call, digest: bytes | None, find_again: Callable[[bool], Awaitable[Placement]]
) -> Placement | None:
    """Return the session of the earlier attempt that a request repeats, as a `Placement`; None if the request repeats none.

    Args:
        call: the request. It may be a retry if it has an idempotency key, or a retry count above 0.
        digest: result of `digest_attempt`. None: the request is treated as new.
        find_again: finds the session of a new request; see `Placement`.
    """
    count = call.get_header(RETRY_COUNT) or ""
    is_retry = count.isascii() and count.isdigit() and int(count[:9]) > 0
    if digest is None or not (is_retry or call.get_header("idempotency-key")):
        return None
    attempt = call.hf.engine.retries.resume(digest)
    if attempt is None or attempt.ref is None:
        return None
    try:
        session = await call.hf.store.get(attempt.ref)
    except SessionNotFound:
        return None
    if session.identity != attempt.identity:
        return None
    return Placement(session, "retry", attempt=attempt, find_again=find_again)
