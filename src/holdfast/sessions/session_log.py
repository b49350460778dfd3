"""The methods of a session's handle that read and write its log, outside of turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from holdfast.domain.record import RecordChange
from holdfast.domain.session import Entry, NewEntry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.engine.entries import make_entries
from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE
from holdfast.media.outgoing import restore_entries
from holdfast.numbers import check_whole
from holdfast.sessions.fields import to_state_delta
from holdfast.sessions.interruption import TRIES
from holdfast.sessions.log_writes import annotate, append_to_log, clear_log, pop_entry, replace_entry
from holdfast.stores.base import Store
from holdfast.stores.checks import check_entries
from holdfast.stores.log import Append, Appended
from holdfast.wire.exports import parse_own_fields
from holdfast.wire.openai import to_chat_message
from holdfast.wire.sendable import Sendable, check_flag, make_note, parse_sendable, refuse_notes

T = TypeVar("T")


class SessionLog:
    """Adds the methods for the log to `SessionHandle`."""

    @property
    def _engine(self) -> Engine:
        raise NotImplementedError

    ref: SessionRef
    _identity: str | None

    async def messages(self) -> list[dict[str, Any]]:
        """Return the live path as Chat Completions messages."""
        return [to_chat_message(entry.message) for entry in await self.entries() if not entry.is_note]

    async def entries(
        self,
        start: int = 0,
        limit: int | None = None,
        *,
        stop: int | None = None,
        descending: bool = False,
        retired: bool = False,
    ) -> tuple[Entry, ...]:
        """Return entries of the log, notes included, with all fields of each message and with media.

        Args:
            start: the lowest `seq`.
            limit: maximum number of entries; None: all.
            stop: the end of the range of `seq`, exclusive; None: the end of the log.
            descending: True: newest first; `limit` then selects the newest ones.
            retired: True includes messages that have left the live path.
        """
        for name, value in (("start", start), ("limit", limit), ("stop", stop)):
            if value is not None:
                check_whole(value, name)
        store = self._engine.store
        read = await store.entries(
            self.ref, start=start, stop=stop, limit=limit, descending=descending, retired=retired, notes=True
        )
        return await restore_entries(store, self.ref, read)

    async def pop(self) -> Entry | None:
        """Take the newest message off the live path and return it; None if there is none. The log keeps it.

        Concurrent calls return different messages.

        Raises:
            SessionNotFound: there is no such session.
            InvalidRequest, SessionBusy: a turn of the session is open in this task; another one did not end in time.
        """
        popped = await pop_entry(self._engine, self.ref)
        return None if popped is None else (await restore_entries(self._engine.store, self.ref, [popped]))[0]

    async def clear(self) -> Session:
        """Take all messages off the live path, and return the session. Its fields and its state stay, and the log keeps the messages.

        Use `erase` of the `Holdfast` to remove content for good.

        Raises:
            SessionNotFound: there is no such session.
            InvalidRequest, SessionBusy: a turn of the session is open in this task; another one did not end in time.
        """
        return await clear_log(self._engine, self.ref)

    async def append(
        self,
        messages: Sendable | Sequence[Sendable] = (),
        *,
        note: Any = None,
        expect: int | None = None,
        expect_log: str | None = None,
        retire_from: int | None = None,
        state: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        fingerprint: bytes = b"",
        records: Sequence[RecordChange] = (),
        copy_of: Sequence[int | None] = (),
    ) -> Appended:
        """Append messages to the log, in one transaction with the other requested changes. If anything is invalid, nothing is written.

        Args:
            messages: one message or several. A dict may also have `pinned`, `importance` (0 to 1), `timestamp` (milliseconds),
                `metadata` and `origin`. A dict with the role `note` is a note with its payload in `origin`.
            note: the payload of a note to write after the messages: any JSON value, which no model receives. None: no note.
            expect: the version that the session must have; None: any.
            expect_log: the `log_marker` that the session must have, which only changes of the log change; None: any.
            retire_from: before writing, take the message with this `seq` and all later ones off the live path; None: keep all.
            state: keys of the session's state to set, with their values; the value None deletes a key. Keys that begin with
                `user:` or `app:` are shared.
            idempotency_key: if this key was used before, nothing is written, and the earlier result is returned.
            fingerprint: identifies the request that uses the key.
            records: changes of the session's records, from `Records.make_put` and `make_delete`, in the same transaction.
            copy_of: for each message the `seq` of the message of this session that it repeats, or None. Erasing a message erases its
                copies too. Needs `expect`.

        Raises:
            InvalidMessage, InvalidRequest: one of `messages`, or `copy_of`, is not valid.
            StaleSession: the session is not at version `expect`, or its log is not at `expect_log`.
            IdempotencyConflict: the key was already used with another fingerprint.
            StaleRecord: a record is not at the version that its change expects.
        """
        delta = to_state_delta(state)
        with self._engine.mask_errors():
            made, own = parse_sendable(messages)
        if note is not None:
            made, own, copy_of = [*made, make_note(note)], [*own, {}], [*copy_of, None] if copy_of else ()
        entries = await make_entries(made, own, timestamp=self._engine.clock())
        write = Append(
            entries=entries,
            timestamp=self._engine.clock(),
            expect=expect,
            retire_from=retire_from,
            state_delta=delta or None,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint,
            records=records,
        )
        return await self._write(write, log_marker=expect_log, copy_of=copy_of)

    async def replace(self, seq: int, message: Sendable, *, erase: bool = False) -> Entry:
        """Replace a message of the live path, and return its new entry. Later messages stay in order, with new numbers.

        The new message has the turn, agent and pin of the old one.

        Args:
            seq: the message to replace.
            message: the new message, with the same fields as in `append`; a text is a message of the user.
            erase: True erases the old content for good, also in sessions that share it. False keeps it in the log, off the live
                path.

        Raises:
            EntryNotFound, TooLarge: the live path has no such message; more than 1,000 messages or 32 MiB follow it.
            InvalidMessage: the message is not valid, or tool calls would be left without results, or results without calls.
            InvalidRequest, SessionBusy: a turn of the session is open in this task; another one did not end in time.
        """
        check_whole(seq, "seq")
        check_flag(erase, "erase")
        with self._engine.mask_errors():
            made, own = parse_sendable(message)
            refuse_notes(made)
        if len(made) != 1:
            raise InvalidRequest("message must be one message", param="message")
        entry = await replace_entry(self._engine, self.ref, seq, made[0], own[0], erase=erase)
        return (await restore_entries(self._engine.store, self.ref, [entry]))[0]

    async def write(
        self,
        entries: Sequence[NewEntry],
        *,
        expect: int | None = None,
        idempotency_key: str | None = None,
        fingerprint: bytes = b"",
        records: Sequence[RecordChange] = (),
    ) -> Appended:
        """Append entries that are already built. The other arguments and the errors are the same as in `append`."""
        write = Append(
            entries=entries,
            timestamp=self._engine.clock(),
            expect=expect,
            idempotency_key=idempotency_key,
            fingerprint=fingerprint,
            records=records,
        )
        return await self._write(write)

    async def _write(self, write: Append, **more: Any) -> Appended:
        check_entries(write.entries)
        await self._engine.ensure_present(self.ref)
        return await append_to_log(self._engine, self.ref, write, identity=self._identity, **more)

    async def annotate(
        self,
        seq: int,
        *,
        pinned: bool | None = None,
        importance: float | None | UnsetType = UNSET,
        refused_by: Collection[str] | None = None,
    ) -> Entry:
        """Set a message's pin, its importance, or the upstreams (model providers) that must not receive the message.

        A pinned message stays in every prompt. The strategy `salience` uses the importance.

        Args:
            seq: the message.
            pinned: True pins the message, False unpins it; None leaves the pin unchanged.
            importance: from 0 to 1; None removes the importance.
            refused_by: names of upstreams whose prompts leave the message out; an empty list sends it to all again; None
                leaves the list unchanged.

        Raises:
            EntryNotFound: the live path has no such message.
            InvalidMessage: `importance` is not a number from 0 to 1, `pinned` is not a boolean, or `refused_by` is not a list of names.
        """
        own = parse_own_fields({"pinned": pinned, **({} if importance is UNSET else {"importance": importance})})
        given = UNSET if importance is UNSET else own.get("importance")
        return await annotate(self._engine.store, self.ref, seq, pinned=pinned, importance=given, refused_by=refused_by)


async def read_history(store: Store, ref: SessionRef, convert: Callable[[Sequence[Entry]], list[T]]) -> list[T]:
    """Return a session's current messages, all as of one moment, converted to another form.

    The log is read and converted page by page, so that a long log is not held in memory as entries.

    Args:
        store: the store.
        ref: the session.
        convert: converts one page of consecutive entries.

    Raises:
        SessionNotFound: there is no such session.
    """
    for _ in range(TRIES):
        version = (await store.get(ref)).version
        page = await store.entries(ref, limit=PAGE)
        found, pages = convert(page), 1
        while len(page) == PAGE:
            page = await store.entries(ref, start=page[-1].seq + 1, limit=PAGE)
            found, pages = found + convert(page), pages + 1
        if pages == 1 or (await store.get(ref)).version == version:
            return found
    return convert(await store.entries(ref))  # the session changes too fast: read everything in one query
