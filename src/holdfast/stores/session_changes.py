"""Compute how a write changes a session. Pure functions that every store uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict
from msgspec.structs import replace as evolve

from holdfast.domain.history import OldEntry, Past
from holdfast.domain.session import (
    ERASED,
    Claim,
    CompactionStatus,
    NewCompaction,
    NewEntry,
    Session,
    StoredCompaction,
    Tail,
)
from holdfast.domain.state import is_same_json, list_key_turns, merge_delta
from holdfast.errors import InvalidMessage, SessionBusy, SessionExpired, StaleSession, StaleState
from holdfast.liveness import is_alive
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch

STALLED: Final = 25_000
"""Milliseconds for which an expired claim still holds if its process is running on this host."""


def make_session(tenant: str, new: NewSession) -> Session:
    """Return a session with an empty log."""
    state = merge_delta({}, new.state)
    return Session(
        tenant=tenant,
        user_id=new.user_id,
        id=new.id,
        agent=new.agent,
        identity=new.identity,
        created_at=new.timestamp,
        updated_at=new.timestamp,
        accessed_at=new.timestamp,
        system_messages=new.system_messages,
        state=state,
        state_turns=dict.fromkeys(state, -1),
        metadata=new.metadata,
        ttl=new.ttl,
        tail=Tail(),
    )


def install_session(
    tenant: str, new: NewSession, past: Past, before: Session | None, tail: Tail, *, live: int, size: int
) -> Session:
    """Return a session that replaces `before`, with `live` entries on the live path and `size` bytes."""
    session = make_session(tenant, new)
    return evolve(
        session,
        version=0 if before is None else before.version + 1,
        created_at=past.created_at,
        updated_at=past.updated_at,
        accessed_at=max(past.updated_at, new.timestamp),
        status="active" if past.ended_at is None else "closed",
        ended_at=past.ended_at,
        end_reason=past.end_reason,
        messages=live,
        bytes=size,
        usage=past.usage,
        tail=tail,
        state_turns=dict.fromkeys(session.state, tail.turn_id),
    )


def patch_session(old: Session, patch: SessionPatch, timestamp: int) -> Session:
    """Return the session after `patch`. Raises `StoreCorrupt` unless the patch replaces every damaged field."""
    given = {name for name in old.damaged if not isinstance(getattr(patch, name, UNSET), UnsetType)}
    evolve(old, damaged=tuple(name for name in old.damaged if name not in given)).require_intact()
    delta = {} if isinstance(patch.state, UnsetType) else patch.state
    state = merge_delta(old.state, delta) if delta else old.state
    return evolve(
        old,
        version=old.version + 1,
        updated_at=timestamp,
        accessed_at=timestamp,
        agent=fill_unset(patch.agent, old.agent),
        ttl=fill_unset(patch.ttl, old.ttl),
        system_messages=fill_unset(patch.system_messages, old.system_messages),
        metadata=fill_unset(patch.metadata, old.metadata),
        state=state,
        state_turns=list_key_turns(old.state_turns, old.state, state, old.tail.turn_id) if delta else old.state_turns,
        damaged=(),
    )


def is_use(write: Append) -> bool:
    """Return True if a write counts as use of the session; saving only what was derived from it does not."""
    if write.entries or write.calls or write.state_delta or write.retire_from is not None:
        return True
    return not (write.views or write.compactions or write.claim or write.release)


def refuse_stale(session: Session, write: Append) -> None:
    """Refuse a write whose expectations the session does not meet. Raises `StaleSession`, `SessionExpired`, `StaleState`."""
    check_version(session, write.expect)
    if write.ttl is not None and is_use(write) and session.is_expired(write.timestamp, write.ttl):
        raise SessionExpired(session)
    check_expected(write.state_expect, session.state, session.version)


def advance_session(
    session: Session, write: Append, tail: Tail, claim: Claim | None, *, live: int, size: int
) -> Session:
    """Return the session after a write that grows its live path by `live` entries and its log by `size` bytes.

    Returns the same object if the write only saves views and failed compactions.
    """
    if claim != session.claim:
        session = evolve(session, claim=claim)
    if not is_use(write):
        lays = any(one.error is None for one in write.compactions)
        return evolve(session, version=session.version + 1) if lays else session
    usage = session.usage
    for call in write.calls:
        usage = usage.add(call)
    if write.state_delta:
        state = merge_delta(session.state, write.state_delta)
        turns = list_key_turns(session.state_turns, session.state, state, tail.turn_id)
        session = evolve(session, state=state, state_turns=turns) if state is not session.state else session
    return evolve(
        session,
        version=session.version + 1,
        updated_at=write.timestamp,
        accessed_at=write.timestamp,
        status="active" if write.entries else session.status,
        ended_at=None if write.entries else session.ended_at,
        end_reason=None if write.entries else session.end_reason,
        messages=session.messages + live,
        bytes=session.bytes + size,
        usage=usage,
        tail=tail,
    )


def resolve_claim(session: Session, write: Append) -> Claim | None:
    """Return the session's claim after `write`; None if it has none. Raises `SessionBusy`."""
    claim = session.claim if write.claim is None else _take_claim(session, write.claim, write.timestamp)
    return None if claim is not None and claim.holder == write.release else claim


def _take_claim(session: Session, new: Claim, timestamp: int) -> Claim:
    old = session.claim
    if old is None or old.holder != new.holder:
        if old is not None and (until := compute_claim_end(old, timestamp)) > timestamp:
            raise SessionBusy(session.id, until=until)
        return new
    # A holder that renews may not have seen yet that the claim is wanted.
    return Claim(new.holder, new.until, new.wanted or old.wanted)


def compute_claim_end(claim: Claim, now: int) -> int:
    """Return the time until which a claim keeps other turns out, as known now, in milliseconds since the epoch.

    A slow holder, for example with a blocked event loop or in a process that was stopped for a moment, does not renew its claim.
    On its own host it can be distinguished from a dead one, so its turn keeps the session for longer.
    """
    is_slow = claim.until <= now < claim.until + STALLED and is_alive(claim.holder)
    return claim.until + STALLED if is_slow else claim.until


def check_version(session: Session, expect: int | None) -> None:
    """Refuse a session at another version than `expect`. Raises `StaleSession`."""
    if expect is not None and expect != session.version:
        raise StaleSession(session.id, expected=expect, version=session.version)


def check_expected(expected: Mapping[str, Any] | None, state: Mapping[str, Any], version: int) -> None:
    """Refuse a write whose expected values differ from the present ones.

    Args:
        expected: the values that some keys must have, None: no value.
        state: the present values of the same keys, prefix included.
        version: of the scope, or of the session for its own state.

    Raises:
        StaleState: names the key, but not its value.
    """
    for key, value in (expected or {}).items():
        if not is_same_json(state.get(key), value):
            actual = "none" if state.get(key) is None else "another one"
            raise StaleState(
                f"the state key {key!r:.80} does not have the expected value: it has {actual}", version=version, key=key
            )


def fill_unset(value: Any, old: Any) -> Any:
    """Return `value`, or `old` if it is UNSET."""
    return old if isinstance(value, UnsetType) else value


# -- media and compactions -----------------------------------------------------


def list_media(entry: NewEntry) -> tuple[bytes, ...]:
    """Return the hashes of the contents that `entry` names; none for an erased entry."""
    return () if isinstance(entry, OldEntry) and entry.stands_for is not None else entry.media


def refuse_missing_media(new: Sequence[NewEntry], there: Collection[bytes]) -> None:
    """Refuse entries that name contents which are neither stored nor part of the write. Raises `InvalidMessage`."""
    for at, entry in enumerate(new):
        for sha256 in list_media(entry):
            if sha256 not in there:
                raise InvalidMessage(
                    f"messages[{at}] names the content {sha256.hex()}, which the session does not have: send it with the write",
                    param=f"messages[{at}]",
                )


def is_late(new: NewCompaction, compactions_from: int) -> bool:
    """Return True for a compaction that may quote something that was erased or dropped while it was made."""
    return new.built_at is not None and new.built_at < compactions_from


def make_stored_compaction(id_: int, new: NewCompaction, *, late: bool, holds: bool) -> StoredCompaction:
    """Return a compaction in its stored form: `live` only if log and view are unchanged since it was made."""
    fields = asdict(new)
    del fields["built_at"]
    if late:
        fields |= {"text": "", "report": None, "error": new.error and ERASED}
    status: CompactionStatus = "failed" if new.error is not None else "live" if holds and not late else "dead"
    return StoredCompaction(id=id_, status=status, **fields)
