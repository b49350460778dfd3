"""Compute how a write changes a session. Pure functions, which all included stores use; stores of your own may use them too."""

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
    Entry,
    NewCompaction,
    NewEntry,
    Session,
    SessionRef,
    StoredCompaction,
    Tail,
)
from holdfast.domain.state import is_same_json, list_key_turns, merge_delta
from holdfast.errors import Conflict, InvalidMessage, SessionBusy, SessionExpired, StaleSession, StaleState
from holdfast.liveness import is_alive, is_dead
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch

STALL_EXTENSION_MS: Final = 25_000
"""Milliseconds by which a claim is extended after its expiry, if the holder's process is running on this host."""


def make_session(tenant: str, new: NewSession) -> Session:
    """Return a new session with an empty log."""
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
    """Return the session that `replace` stores.

    Args:
        tenant: the tenant.
        new: the session to install.
        past: the history of `new`: times, end and usage.
        before: the session to replace, whose version numbers continue; None if there is none.
        tail: the tail of the installed log.
        live: number of live entries in the installed log.
        size: payload bytes of the installed log.
    """
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


def refuse_reshaped(session: Session, version: int) -> None:
    """Raise `StaleSession` if entries of a session were retired, erased or pinned after `version`."""
    if session.reshaped > version:
        raise StaleSession(session.id, expected=version, version=session.version)


def patch_session(old: Session, patch: SessionPatch, timestamp: int) -> Session:
    """Return the session after applying `patch`. Raises `StoreCorrupt` unless the patch replaces all damaged fields."""
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
    """Return True if a write means that the session was used. Saving views and compactions, or changing claims, does not."""
    if write.entries or write.calls or write.state_delta or write.records or write.retire_from is not None:
        return True
    return not (write.views or write.compactions or write.claim or write.release)


def refuse_stale(session: Session, write: Append) -> None:
    """Check that a session is in the state that a write expects.

    Raises:
        StaleSession: the session has another version.
        SessionExpired: the session has been idle for too long.
        StaleState: the session's state has other values.
    """
    check_version(session, write.expect)
    if write.ttl is not None and is_use(write) and session.is_expired(write.timestamp, write.ttl):
        raise SessionExpired(session)
    check_expected(write.state_expect, session.state, session.version)


def advance_session(
    session: Session, write: Append, tail: Tail, claim: Claim | None, *, live: int, size: int
) -> Session:
    """Return the session after a write. If the write only saves views and failed compactions, return `session` itself.

    Args:
        session: the session before the write.
        write: the write.
        tail: the tail of the log after the write.
        claim: the session's claim after the write.
        live: number of live entries that the write adds; negative if there are fewer than before.
        size: payload bytes of the appended entries.
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


def count_messages(written: Sequence[Entry]) -> int:
    """Return the number of entries that are messages, not notes."""
    return sum(not entry.is_note for entry in written)


def resolve_claim(session: Session, write: Append) -> Claim | None:
    """Return the claim that the session has after `write`, or None.

    Raises:
        SessionBusy: the write contains a claim, but another holder's claim has not expired.
    """
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
    """Return the time at which a claim ends, in milliseconds since the epoch.

    A holder may be too slow to renew its claim, for example if its event loop is blocked or its process was stopped for a
    moment. If its process is known to be running on this host at `now`, the claim ends `STALL_EXTENSION_MS` milliseconds later.
    """
    is_slow = claim.until <= now < claim.until + STALL_EXTENSION_MS and is_alive(claim.holder)
    return claim.until + STALL_EXTENSION_MS if is_slow else claim.until


def is_claimed(session: Session, now: int) -> bool:
    """Return True if a turn holds the session at the time `now`: its claim has not ended, and its process is not known to have ended."""
    claim = session.claim
    return claim is not None and compute_claim_end(claim, now) > now and not is_dead(claim.holder)


def check_version(session: Session, expect: int | None) -> None:
    """Raise `StaleSession` if the session has another version than `expect`. None allows any version."""
    if expect is not None and expect != session.version:
        raise StaleSession(session.id, expected=expect, version=session.version)


def refuse_other_contents(ref: SessionRef, actual: int, expected: int | None, what: str) -> None:
    """Raise `Conflict` if the number or version of a session's contents is not the expected one. None allows any."""
    if expected not in {None, actual}:
        raise Conflict(f"session {ref.id!r} has {actual} {what}, not {expected}: read them again")


def check_expected(expected: Mapping[str, Any] | None, state: Mapping[str, Any], version: int) -> None:
    """Raise `StaleState` if values differ from those that a write expects. The error names the key, but not its value.

    Args:
        expected: the expected values by key with prefix; None as a value: the key must not exist.
        state: the present values of the same keys.
        version: version of the scope, or of the session for its own state; part of the error.
    """
    for key, value in (expected or {}).items():
        if not is_same_json(state.get(key), value):
            actual = "none" if state.get(key) is None else "another one"
            raise StaleState(
                f"the state key {key!r:.80} does not have the expected value: it has {actual}", version=version, key=key
            )


def fill_unset(value: Any, old: Any) -> Any:
    """Return `value`, or `old` if `value` is UNSET."""
    return old if isinstance(value, UnsetType) else value


# -- media and compactions -----------------------------------------------------


def list_media(entry: NewEntry) -> tuple[bytes, ...]:
    """Return the hashes of the contents to which `entry` refers; empty for an erased entry."""
    return () if isinstance(entry, OldEntry) and entry.stands_for is not None else entry.media


def refuse_missing_media(new: Sequence[NewEntry], there: Collection[bytes]) -> None:
    """Raise `InvalidMessage` if an entry refers to a content whose hash is not in `there`.

    Args:
        new: the entries.
        there: hashes of the contents that are stored or part of the write.
    """
    for at, entry in enumerate(new):
        for sha256 in list_media(entry):
            if sha256 not in there:
                raise InvalidMessage(
                    f"messages[{at}] names the content {sha256.hex()}, which the session does not have: send it with the write",
                    param=f"messages[{at}]",
                )


def is_late(new: NewCompaction, compactions_from: int) -> bool:
    """Return True if something was erased or dropped while the compaction was made. The text may then quote what was erased."""
    return new.built_at is not None and new.built_at < compactions_from


def make_stored_compaction(id_: int, new: NewCompaction, *, late: bool, holds: bool) -> StoredCompaction:
    """Return the compaction to store, with its status.

    Args:
        id_: the compaction's id.
        new: the compaction.
        late: True if the text must not be stored, see `is_late`.
        holds: True if neither the log nor the view has changed since the compaction was made. The status is then `live`, otherwise
            `dead`.
    """
    fields = asdict(new)
    del fields["built_at"]
    if late:
        fields |= {"text": "", "report": None, "error": new.error and ERASED}
    status: CompactionStatus = "failed" if new.error is not None else "live" if holds and not late else "dead"
    return StoredCompaction(id=id_, status=status, **fields)
