"""A store wrapper that checks every text for secrets before it is written.

It can wrap any store, and no writer can bypass it: turns, the REST API, imports and summaries all write through it. If the guard
refuses a text, nothing is written. The tokens of a message with masked text are counted again, because the token count is stored
with the message. The secrets found are counted and reported only after the write has succeeded, so that a failed attempt is not
reported as a stored secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.artifact import Artifact, NewArtifact, Scope
from holdfast.domain.history import Past
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner
from holdfast.domain.messages import Message
from holdfast.domain.record import (
    ChangedRecords,
    PutRecord,
    RecordChange,
    RecordOwner,
    encode_record_value,
)
from holdfast.domain.session import Ending, ModelCall, NewCompaction, NewEntry, Session, SessionRef
from holdfast.domain.state import Change, Extend
from holdfast.engine.entries import is_long
from holdfast.errors import InvalidRequest
from holdfast.limits import MEMORY_TAG_CHARS
from holdfast.secrets.guard import Guard, Sweep
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.state import ScopedState
from holdfast.stores.wrapper import StoreWrapper
from holdfast.tokens import STORED
from holdfast.wire.exports import Imported

R = TypeVar("R", bound=RecordChange)
T = TypeVar("T")
_LONG_CHARS: Final = 64_000
"""Maximum number of characters of memories that are checked on the event loop. Longer ones are checked in a thread."""

TEXTLESS: Final = frozenset(
    {
        "add_deletion",
        "add_key",
        "add_to_job",
        "annotate",
        "delete_blobs",
        "drop_artifacts",
        "drop_compaction",
        "drop_memories",
        "drop_records",
        "drop_state",
        "end",
        "erase",
        "finish_due",
        "forget_ending",
        "forget_index",
        "learn",
        "lease",
        "ping",
        "put_blob",
        "rate",
        "register_index",
        "release",
        "remove",
        "revoke_key",
        "share",
        "start_job",
        "sweep_records",
        "sweep_turn_keys",
        "touch",
        "use_key",
        "want",
    }
)
"""Methods of a store that write, but whose arguments contain no text in which a secret could be, only bytes, ids and numbers. They are
passed on unchanged.

Methods for API keys are among them, because an operator chooses the names of keys.
"""


class RedactingStore(StoreWrapper):
    """A store that masks or refuses secrets in writes before it passes them on to another store.

    Methods that this class does not define are passed on unchanged; a test compares those that write with `TEXTLESS`.

    Args:
        inner: the wrapped store.
        guard: finds and masks secrets.
    """

    def __init__(self, inner: Store, guard: Guard) -> None:
        super().__init__(inner)
        self._guard = guard

    def wrap(self, inner: Store) -> Self:
        """Return a wrapper with the same guard around another store handle."""
        return type(self)(inner, self._guard)

    # -- methods that write text --------------------------------------------

    async def create(self, new: NewSession) -> Session:
        """Create a session.

        Like most methods of this class, this raises `SecretBlocked` if the guard refuses a secret in the data.
        """
        cleaned, sweep = await self._clean(lambda sweep: _clean_session(sweep, new), long=is_long(new.system_messages))
        session = await self.inner.create(cleaned)
        self._guard.record(sweep.findings, new.id)
        return session

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """Update a session."""
        cleaned, sweep = await self._clean(lambda sweep: _clean_patch(sweep, patch))
        session = await self.inner.update(ref, cleaned, timestamp=timestamp, expect=expect)
        self._guard.record(sweep.findings, ref.id)
        return session

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """Append entries to a session's log."""
        long = is_long([entry.message for entry in write.entries])
        cleaned, sweep = await self._clean(lambda sweep: _clean_append(sweep, write), long=long)
        if write.state_expect:
            cleaned = msgspec.structs.replace(cleaned, state_expect=self._clean_expected(write.state_expect))
        appended = await self.inner.append(ref, cleaned)
        if not appended.replayed:
            self._guard.record(sweep.findings, ref.id)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """Replace a session together with its log."""
        records = more.get("records", ())

        def clean(sweep: Sweep) -> tuple[NewSession, Sequence[NewEntry], Sequence[RecordChange]]:
            return _clean_session(sweep, new), _clean_entries(sweep, entries), _clean_records(sweep, records)

        long = is_long([entry.message for entry in entries]) or has_long_value(records)
        (cleaned, kept, kept_records), sweep = await self._clean(clean, long=long)
        if records:
            more["records"] = kept_records
        appended = await self.inner.replace(cleaned, kept, **more)
        self._guard.record(sweep.findings, new.id)
        return appended

    async def fork(self, new: NewSession, source: Session, stop: int) -> Session | None:
        """Copy the beginning of a log to a new session. The copied messages are in the store already, so only the session is cleaned."""
        cleaned, sweep = await self._clean(lambda sweep: _clean_session(sweep, new))
        forked = await self.inner.fork(cleaned, source, stop)
        self._guard.record(sweep.findings, new.id)
        return forked

    async def record_ending(self, ending: Ending) -> None:
        """Record that a session has ended. Error texts of hooks are masked, because they may quote the data that a hook received."""
        cleaned = ending.error and self._guard.mask_text(ending.error)
        await self.inner.record_ending(msgspec.structs.replace(ending, error=cleaned))

    async def settle(self, ending_id: str, *, error: str | None = None, **more: Any) -> Ending:
        """Record the result of a hook. The hook's error text is masked, because it may quote the data that the hook received."""
        return await self.inner.settle(ending_id, error=error and self._guard.mask_text(error), **more)

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """Add a version of an artifact.

        Only the artifact's metadata is checked: its content consists of bytes, and was stored before.
        """
        metadata, sweep = await self._clean(lambda sweep: sweep.clean_value(new.metadata, "metadata", sent=True))
        cleaned = msgspec.structs.replace(new, metadata=metadata)
        added = await self.inner.add_artifact(scope, cleaned, expect=expect, room=room, identity=identity)
        self._guard.record(sweep.findings, getattr(scope, "id", ""))
        return added

    async def change_state(
        self,
        user_id: str | None,
        delta: Mapping[str, Change],
        *,
        timestamp: int,
        expect: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> ScopedState:
        """Change shared state. Expected values are masked too, so that they compare equal to stored values."""
        cleaned, sweep = await self._clean(lambda sweep: _clean_changes(sweep, delta, sent=True))
        expected = self._clean_expected(values)
        changed = await self.inner.change_state(user_id, cleaned, timestamp=timestamp, expect=expect, values=expected)
        self._guard.record(sweep.findings, "")
        return changed

    async def change_records(
        self, owner: RecordOwner, changes: Sequence[RecordChange], *, timestamp: int, identity: str | None = None
    ) -> ChangedRecords:
        """Change records. Values that are bytes are not checked. Raises `InvalidRequest` for a name that contains a secret."""
        cleaned, sweep = await self._clean(lambda sweep: _clean_records(sweep, changes), long=has_long_value(changes))
        changed = await self.inner.change_records(owner, cleaned, timestamp=timestamp, identity=identity)
        self._guard.record(sweep.findings, getattr(owner, "id", ""))
        return changed

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """Change memories.

        A memory that a user asked for is refused if the guard refuses secrets; in all others, secrets are only masked.
        """
        long = sum(len(memory.content) for memory in delta.put) > _LONG_CHARS or bool(delta.diary)
        cleaned, sweep = await self._clean(lambda sweep: _clean_memories(sweep, delta), long=long)
        changed = await self.inner.change_memories(owner, cleaned, timestamp=timestamp, expect=expect)
        self._guard.record(sweep.findings, "")
        return changed

    def _clean_expected(self, values: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Mask values that are only compared with stored ones. The secrets found in them are neither counted nor reported."""
        return values and _clean_changes(self._guard.sweep(), values, sent=False)

    async def _clean(self, clean: Callable[[Sweep], T], *, long: bool = False) -> tuple[T, Sweep]:
        """Run `clean`, which masks the secrets of a write, and return its result and the secrets found.

        Raises `SecretBlocked` if the guard refuses a secret.

        Args:
            clean: masks the secrets of the write with the given `Sweep`.
            long: True to use a thread, because it may take long.
        """
        sweep = self._guard.sweep()
        cleaned = await run_cpu(lambda: clean(sweep), long=long)
        sweep.raise_if_blocked()
        return cleaned, sweep


async def mask_messages(guard: Guard | None, messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return messages with secrets masked, as the log would store them."""
    if guard is None:
        return tuple(messages)
    return await run_cpu(lambda: guard.mask_messages(messages), long=is_long(messages))


async def clean_import(guard: Guard | None, read: Imported) -> Imported:
    """Return imported data with secrets masked, as the store would store it. The result is compared with stored data.

    Raises:
        SecretBlocked: the data contains a secret, and the guard refuses secrets.
    """
    if guard is None:
        return read
    sweep = guard.sweep()

    def clean() -> Imported:
        messages = tuple(sweep.clean_message(message, f"messages[{at}]") for at, message in enumerate(read.messages))
        fields = [
            {**own, "metadata": sweep.clean_value(own.get("metadata"), "metadata", sent=False)} for own in read.fields
        ]
        return msgspec.structs.replace(
            read,
            system_messages=_clean_system_messages(sweep, read.system_messages),
            state=sweep.clean_value(read.state, "state", sent=True),
            metadata=sweep.clean_value(read.metadata, "metadata", sent=True),
            records=tuple(_clean_records(sweep, read.records)),
            past=_clean_past(sweep, read.past),
            messages=messages,
            fields=tuple(fields),
        )

    cleaned = await run_cpu(clean, long=is_long(read.messages))
    sweep.raise_if_blocked()
    return cleaned


# -- cleaning the texts of each kind of write ----------------------------------


def _clean_session(sweep: Sweep, new: NewSession) -> NewSession:
    return msgspec.structs.replace(
        new,
        system_messages=_clean_system_messages(sweep, new.system_messages),
        state=_clean_changes(sweep, new.state, sent=True),
        metadata=sweep.clean_value(new.metadata, "metadata", sent=True),
        past=_clean_past(sweep, new.past),
    )


def _clean_past(sweep: Sweep, past: Past | None) -> Past | None:
    if past is None or not any(call.texts for call in past.calls):
        return past
    calls = tuple(_clean_call(sweep, call, f"calls[{at}]") for at, call in enumerate(past.calls))
    return msgspec.structs.replace(past, calls=calls)


def _clean_changes(sweep: Sweep, delta: Mapping[str, Change], *, sent: bool) -> Mapping[str, Change]:
    """Return changes of the state with secrets masked, or `delta` itself if it contains no secrets."""
    plain = {key: list(change.values) if isinstance(change, Extend) else change for key, change in delta.items()}
    cleaned = sweep.clean_value(plain, "state", sent=sent)
    if cleaned is plain:
        return delta
    pairs = zip(cleaned.items(), delta.values(), strict=True)
    return {key: Extend(tuple(kept)) if isinstance(change, Extend) else kept for (key, kept), change in pairs}


def _clean_patch(sweep: Sweep, patch: SessionPatch) -> SessionPatch:
    changed: dict[str, Any] = {}
    if isinstance(patch.state, Mapping):
        changed["state"] = _clean_changes(sweep, patch.state, sent=True)
    if isinstance(patch.metadata, Mapping):
        changed["metadata"] = sweep.clean_value(patch.metadata, "metadata", sent=True)
    if isinstance(patch.system_messages, tuple):
        changed["system_messages"] = _clean_system_messages(sweep, patch.system_messages)
    return msgspec.structs.replace(patch, **changed) if changed else patch


def _clean_append(sweep: Sweep, write: Append) -> Append:
    return msgspec.structs.replace(
        write,
        entries=_clean_entries(sweep, write.entries),
        # If a write has messages, its state changes come from a turn's tools and model; otherwise they come from a caller.
        state_delta=write.state_delta and _clean_changes(sweep, write.state_delta, sent=not write.entries),
        compactions=[_clean_compaction(sweep, new, f"compactions[{at}]") for at, new in enumerate(write.compactions)],
        records=_clean_records(sweep, write.records),
        calls=[_clean_call(sweep, call, f"calls[{at}]") for at, call in enumerate(write.calls)],
    )


def _clean_call(sweep: Sweep, call: ModelCall, place: str) -> ModelCall:
    """Mask secrets in the texts of a prompt. What comes from the log has none, but a system prompt may."""
    if not call.texts:
        return call
    texts = []
    for text in call.texts:
        value = msgspec.json.decode(text.data)
        # A list of parts has only numbers and no words.
        cleaned = value if isinstance(value, list) else sweep.clean_value(value, f"{place}.texts", sent=False)
        texts.append(text if cleaned == value else msgspec.structs.replace(text, data=msgspec.json.encode(cleaned)))
    return msgspec.structs.replace(call, texts=tuple(texts))


def has_long_value(changes: Sequence[RecordChange]) -> bool:
    """Return True if checking the values may take long: one of them is a long text, or a list or object, whose size is unknown."""
    values = [value for change in changes if isinstance(change, PutRecord) for value in (change.value, change.text)]
    return any(len(value) > _LONG_CHARS if isinstance(value, str) else bool(value) for value in values)


def _clean_records(sweep: Sweep, changes: Sequence[R]) -> list[R]:
    return [_clean_record(sweep, change, f"records[{at}]") for at, change in enumerate(changes)]


def _clean_record(sweep: Sweep, change: R, place: str) -> R:
    for part in (*change.name.namespace, change.name.key):
        # A masked name would not be found under the name that the caller uses.
        if sweep.clean_text(part, f"{place}.name", sent=False) != part:
            raise InvalidRequest(f"the name of {place} contains a secret: choose another name", param="key")
    if not isinstance(change, PutRecord):
        return change
    text = change.text and sweep.clean_text(change.text, f"{place}.text", sent=True)
    value = change.value
    if not isinstance(value, bytes | bytearray | memoryview):
        plain = msgspec.json.decode(encode_record_value(value)[1])
        cleaned = sweep.clean_value(plain, f"{place}.value", sent=True)
        value = value if cleaned is plain else cleaned
    if value is change.value and text == change.text:
        return change
    return msgspec.structs.replace(change, value=value, text=text)


def _clean_memories(sweep: Sweep, delta: MemoryDelta) -> MemoryDelta:
    return msgspec.structs.replace(
        delta,
        put=tuple(_clean_memory(sweep, memory, f"put[{at}]") for at, memory in enumerate(delta.put)),
        diary=tuple(_clean_diary_entry(sweep, entry, f"diary[{at}]") for at, entry in enumerate(delta.diary)),
    )


def _clean_memory(sweep: Sweep, memory: Memory, place: str) -> Memory:
    # No user is waiting who could correct a memory of an agent, or an existing memory, so these are never refused.
    sent = memory.origin == "user" and memory.agent is None and not memory.number
    return msgspec.structs.replace(
        memory,
        content=sweep.clean_text(memory.content, f"{place}.content", sent=sent),
        tags=tuple(sweep.clean_text(tag, f"{place}.tags", sent=sent)[:MEMORY_TAG_CHARS] for tag in memory.tags),
        metadata=sweep.clean_value(memory.metadata, f"{place}.metadata", sent=sent),
    )


def _clean_diary_entry(sweep: Sweep, entry: DiaryEntry, place: str) -> DiaryEntry:
    return msgspec.structs.replace(entry, report=sweep.clean_value(entry.report, f"{place}.report", sent=False))


def _clean_system_messages(sweep: Sweep, messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(sweep.clean_message(message, f"system_messages[{at}]") for at, message in enumerate(messages))


def _clean_entries(sweep: Sweep, entries: Sequence[NewEntry]) -> list[NewEntry]:
    return [_clean_entry(sweep, entry, f"messages[{at}]") for at, entry in enumerate(entries)]


def _clean_entry(sweep: Sweep, entry: NewEntry, place: str) -> NewEntry:
    message = sweep.clean_message(entry.message, place)
    metadata = sweep.clean_value(entry.metadata, f"{place}.metadata", sent=sweep.can_block(entry.message))
    if message is entry.message and metadata is entry.metadata:
        return entry
    tokens = entry.tokens if message is entry.message else STORED.message(message)
    return msgspec.structs.replace(entry, message=message, metadata=metadata, tokens=tokens)


def _clean_compaction(sweep: Sweep, new: NewCompaction, place: str) -> NewCompaction:
    return msgspec.structs.replace(
        new,
        text=sweep.clean_text(new.text, f"{place}.text", sent=False),
        report=sweep.clean_value(new.report, f"{place}.report", sent=False),
        error=new.error and sweep.clean_text(new.error, f"{place}.error", sent=False),
    )
