"""Write to a session's log outside of turns: append under conditions, replace an entry, remove the newest one, clear the log."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.history import to_new_entry
from holdfast.domain.log import erase_content
from holdfast.domain.messages import Message, encode_payload
from holdfast.domain.refusals import choose_refusals
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.entries import count_tokens, is_long, link_repeated, make_entries
from holdfast.engine.erasure import erase_everywhere
from holdfast.errors import Conflict, EntryNotFound, InvalidMessage, InvalidRequest, StaleSession, StoreError, TooLarge
from holdfast.limits import MIB, REPLACED_BEHIND, REPLACED_BEHIND_BYTES
from holdfast.stores.base import Store
from holdfast.stores.checks import check_int
from holdfast.stores.log import Append, Appended
from holdfast.stores.walk import ENTRIES

TRIES: Final = 64
"""Maximum number of attempts at a write that needs the session's current version, while other writers change the session."""
_NEVER: Final = 2**53 - 1
"""A version that no session reaches."""


async def append_to_log(
    engine: Engine,
    ref: SessionRef,
    write: Append,
    *,
    log_marker: str | None = None,
    identity: str | None = None,
    copy_of: Sequence[int | None] = (),
) -> Appended:
    """Append to a session's log, and update the cached state from which prompts are built, so that the next prompt reads only new entries.

    Args:
        engine: the tenant's engine.
        ref: the session.
        write: the write.
        log_marker: the `Session.log_marker` that the session must have; None: any. A repeated write with the same idempotency
            key returns the earlier result, whatever the marker is now.
        identity: the identity that the session must have if the write changes records; None: any.
        copy_of: for each entry of the write the `seq` of the entry that it copies, or None; empty: no entry is a copy.

    Raises:
        InvalidRequest: `copy_of` is invalid, or the write does not expect a version.
        StaleSession: the log has changed since the marker was read, or the session is not at version `write.expect`.
        SessionNotFound: there is no such session.
    """
    if write.records and identity is not None:
        write = msgspec.structs.replace(write, identity=engine.get_current_identity(identity))
    if copy_of:
        write = await _link_copies(engine, ref, write, copy_of)
    if log_marker is None:
        return await _write(engine, ref, write)
    for _ in range(TRIES):
        session = await engine.store.get(ref)
        is_current = session.log_marker == log_marker and write.expect in (None, session.version)
        if not is_current and write.idempotency_key is None:
            raise StaleSession(ref.id, expected=None, version=session.version)
        try:
            expect = session.version if is_current else _NEVER
            return await _write(engine, ref, msgspec.structs.replace(write, expect=expect))
        except StaleSession as exc:
            if not is_current:
                raise StaleSession(ref.id, expected=None, version=session.version) from exc
    raise _make_conflict(ref)


async def _link_copies(engine: Engine, ref: SessionRef, write: Append, copy_of: Sequence[int | None]) -> Append:
    """Return a write that records the origins of its entries."""
    if write.expect is None:
        raise InvalidRequest("copy_of needs expect: the version at which the copied messages were read", param="expect")
    session = await engine.store.get(ref)
    if session.version > write.expect and write.idempotency_key is not None:
        return write  # the store returns the result of the first attempt, or raises StaleSession
    if session.version != write.expect:
        raise StaleSession(ref.id, expected=write.expect, version=session.version)
    first = session.tail.next_seq
    if len(copy_of) != len(write.entries) or any(seq is not None and not 0 <= seq < first for seq in copy_of):
        raise InvalidRequest(f"copy_of must have one seq below {first}, or None, for each message", param="copy_of")
    return msgspec.structs.replace(write, origins=await link_repeated(engine.store, session, copy_of))


async def pop_entry(engine: Engine, ref: SessionRef) -> Entry | None:
    """Take the newest message out of the conversation and return it, or None if there is none. It stays in the log.

    Concurrent calls get different messages.

    Raises:
        SessionNotFound: there is no such session.
        InvalidRequest: a turn of the session is open in this task.
        SessionBusy: another turn of the session did not end in time.
    """
    async with engine.lock_between_turns(ref):
        for _ in range(TRIES):
            session = await engine.store.get(ref)
            newest = await engine.store.entries(ref, limit=1, descending=True)
            if not newest:
                return None
            try:
                write = Append(retire_from=newest[0].seq, timestamp=engine.clock(), expect=session.version)
                await _write_once(engine, ref, write)
            except StaleSession:
                continue
            return newest[0]
    raise _make_conflict(ref)


async def clear_log(engine: Engine, ref: SessionRef) -> Session:
    """Take all messages out of the conversation. They stay in the log, and the session keeps its fields and its state.

    Raises:
        SessionNotFound: there is no such session.
        InvalidRequest: a turn of the session is open in this task.
        SessionBusy: another turn of the session did not end in time.
    """
    async with engine.lock_between_turns(ref):
        return (await _write_once(engine, ref, Append(retire_from=0, timestamp=engine.clock()))).session


async def replace_entry(
    engine: Engine, ref: SessionRef, seq: int, message: Message, fields: Mapping[str, Any], *, erase: bool
) -> Entry:
    """Replace a message of the conversation, and return its new entry. Later messages are appended again after it, in the same turns.

    The new copies of later messages remain linked to the old ones, so erasing one of them erases every copy. The new entry has the turn,
    the agent and the pin of the old one, unless `fields` says otherwise.

    Args:
        engine: the tenant's engine.
        ref: the session.
        seq: the message to replace.
        message: the new message.
        fields: Holdfast's own fields of the new message, as arguments of `NewEntry`.
        erase: True to erase the old content afterwards, in this session and in sessions that have a copy.

    Raises:
        EntryNotFound: the session has no such message, or the message was replaced or removed.
        InvalidMessage: tool calls would be left without results, or results without calls.
        TooLarge: more than `REPLACED_BEHIND` messages and notes, or `REPLACED_BEHIND_BYTES` bytes, follow the message.
        SessionNotFound: there is no such session.
        InvalidRequest: a turn of the session is open in this task.
        SessionBusy: another turn of the session did not end in time.
    """
    async with engine.lock_between_turns(ref):
        for _ in range(TRIES):
            session = await engine.store.get(ref)
            found = await engine.store.entries(ref, start=seq, stop=seq + 1)
            if not found:
                raise EntryNotFound(ref.id, seq)
            old, later = found[0], await _read_later(engine, ref, seq)
            _check_replacement(old, message)
            kept = {"turn_id": old.turn_id, "agent": old.agent, "pinned": old.pinned}
            new = await make_entries([message], [{**kept, **fields}], timestamp=engine.clock())
            write = Append(
                entries=[*new, *map(to_new_entry, later)],
                timestamp=engine.clock(),
                expect=session.version,
                retire_from=seq,
                origins=await link_repeated(engine.store, session, [None, *(entry.seq for entry in later)]),
            )
            try:
                written = (await _write_once(engine, ref, write)).entries[0]
            except StaleSession:
                continue
            if erase:
                tokens = (await count_tokens([erase_content(old.message)]))[0]
                await erase_everywhere(engine, ref, seq, tokens=tokens)
            return written
    raise _make_conflict(ref)


async def _read_later(engine: Engine, ref: SessionRef, seq: int) -> list[Entry]:
    """Return the live entries after a message, notes included. Reads a few at a time, and stops at the limit.

    Raises:
        TooLarge: there are too many, or they are too large.
    """
    later: list[Entry] = []
    size = 0
    while True:
        start = later[-1].seq + 1 if later else seq + 1
        page = await engine.store.entries(ref, start=start, limit=ENTRIES, notes=True)
        later += page
        size += await run_cpu(_measure_messages, page, long=is_long([entry.message for entry in page]))
        if len(later) > REPLACED_BEHIND or size > REPLACED_BEHIND_BYTES:
            most = f"{REPLACED_BEHIND:,} messages or {REPLACED_BEHIND_BYTES // MIB} MiB"
            raise TooLarge(
                f"message {seq} cannot be replaced, because the messages after it would be written again, and these are more than"
                f" {most}: append a correction, continue from it with append(…, retire_from={seq}), or erase it with hf.erase",
                param="seq",
            )
        if len(page) < ENTRIES:
            return later


def _measure_messages(entries: Sequence[Entry]) -> int:
    return sum([len(encode_payload(entry.message)) for entry in entries])


def _check_replacement(old: Entry, message: Message) -> None:
    """Check that every tool call keeps its result, and every result its call.

    Raises:
        InvalidMessage: a call would lose its result, or a result its call.
    """
    before = old.message
    if before.role == "tool" and (message.role, message.tool_call_id) != ("tool", before.tool_call_id):
        wanted = f"it must be a tool message with tool_call_id {before.tool_call_id!r}"
    elif before.role != "tool" and message.role == "tool":
        wanted = "a tool message can only replace the result of the same call"
    elif _list_call_ids(before) != _list_call_ids(message):
        ids = ", ".join(_list_call_ids(before))
        wanted = (
            f"it must have the tool calls {ids}" if ids else "it cannot have tool calls, which would have no results"
        )
    else:
        return
    raise InvalidMessage(f"message {old.seq} cannot be replaced by this one: {wanted}", param="message")


def _list_call_ids(message: Message) -> list[str]:
    return sorted(call.id for call in message.tool_calls)


async def _write_once(engine: Engine, ref: SessionRef, write: Append) -> Appended:
    """Write with an idempotency key of its own. If the store's answer is lost, the key shows whether the write is in the log."""
    write = msgspec.structs.replace(write, idempotency_key=uuid.uuid4().hex)
    try:
        return await _write(engine, ref, write)
    except StoreError:
        return await _write(engine, ref, write)


async def _write(engine: Engine, ref: SessionRef, write: Append) -> Appended:
    appended = await engine.store.append(ref, write)
    engine.warm.take(ref, appended, write)
    return appended


def _make_conflict(ref: SessionRef) -> Conflict:
    return Conflict(f"session {ref.id!r} is being written to constantly: try again")


async def annotate(store: Store, ref: SessionRef, seq: int, *, refused_by: object = None, **changes: Any) -> Entry:
    """Set a message's pin or importance, or the upstreams (model providers) that must not receive the message.

    Args:
        store: the store.
        ref: the session.
        seq: the message.
        refused_by: names of upstreams whose prompts leave the message out; an empty list sends it to all again; None leaves
            the list unchanged.
        changes: `pinned` and `importance`, as for `Store.annotate`.

    Raises:
        EntryNotFound: the session has no such message, or the message was replaced or removed.
        InvalidMessage: `refused_by` is not a list of names.
    """
    if refused_by is None:
        return await store.annotate(ref, seq, **changes)
    choose_refusals(None, refused_by)
    check_int(seq, "seq")
    found = await store.entries(ref, start=seq, stop=seq + 1)
    if not found:
        raise EntryNotFound(ref.id, seq)
    return await store.annotate(ref, seq, refused_by=choose_refusals(found[0].metadata, refused_by), **changes)
