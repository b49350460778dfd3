"""A store that nothing gets past: every text on its way in goes through the guard first.

It wraps any other store, and is the one place that no writer can go around: turns, the REST API, imports, summaries. What the
guard refuses is refused before anything is written; what it replaces is counted anew, since a message's tokens are stored with
it; and what was found is counted and told once the write has succeeded, so that a try that failed is no secret stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.artifact import Artifact, NewArtifact, Scope
from holdfast.domain.memory import DiaryEntry, Memory, MemoryDelta, Owner
from holdfast.domain.messages import Message
from holdfast.domain.session import Ending, NewCompaction, NewEntry, Session, SessionRef
from holdfast.domain.state import Change, Extend
from holdfast.engine.entries import is_long
from holdfast.limits import MEMORY_TAG_CHARS
from holdfast.secrets import Guard, Sweep
from holdfast.stores.base import Store
from holdfast.stores.log import Append, Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.state import ScopedState
from holdfast.stores.wrapper import StoreWrapper
from holdfast.tokens import STORED
from holdfast.wire.exports import Imported

_LONG_CHARS: Final = 64_000
"""Characters from which looking at messages leaves the event loop."""

TEXTLESS: Final = frozenset(
    {
        "active",
        "add_key",
        "annotate",
        "artifact",
        "artifact_versions",
        "artifacts",
        "blob",
        "blobs",
        "blobs_in_use",
        "calls",
        "close",
        "compactions",
        "delete_blobs",
        "diary",
        "drop_artifacts",
        "drop_compaction",
        "drop_memories",
        "drop_state",
        "end",
        "endings",
        "endings_of",
        "entries",
        "erase",
        "find",
        "find_memory",
        "forget_ending",
        "get",
        "idle",
        "key_of",
        "keys",
        "learn",
        "learned",
        "lease",
        "leased_by",
        "list",
        "media",
        "memories",
        "memory_owners",
        "oldest",
        "origins",
        "ping",
        "put_blob",
        "rate",
        "release",
        "remove",
        "revoke_key",
        "sightings",
        "share",
        "sharing",
        "signals",
        "state",
        "tenants",
        "touch",
        "use_key",
        "want",
        "window",
    }
)
"""Methods of a store that bring no text into it, or only bytes that are no text, ids and numbers: they pass as they are. So do API
keys, whose names are an operator's own words."""


class RedactingStore(StoreWrapper):
    """See the module. What it does not know it passes on: a test holds that to `TEXTLESS`.

    Args:
        inner: where things go.
        guard: what may.
    """

    def __init__(self, inner: Store, guard: Guard) -> None:
        super().__init__(inner)
        self._guard = guard

    def wrap(self, inner: Store) -> Self:
        """The same around another handle."""
        return type(self)(inner, self._guard)

    # -- what writes text --------------------------------------------------

    async def create(self, new: NewSession) -> Session:
        """See `Store`. Raises `SecretBlocked`, as all of these do."""
        told, sweep = await self._clean(lambda sweep: _clean_session(sweep, new), new.system_messages)
        session = await self.inner.create(told)
        self._guard.record(sweep.findings, new.id)
        return session

    async def update(
        self, ref: SessionRef, patch: SessionPatch, *, timestamp: int, expect: int | None = None
    ) -> Session:
        """See `Store`."""
        told, sweep = await self._clean(lambda sweep: _clean_patch(sweep, patch), ())
        session = await self.inner.update(ref, told, timestamp=timestamp, expect=expect)
        self._guard.record(sweep.findings, ref.id)
        return session

    async def append(self, ref: SessionRef, write: Append) -> Appended:
        """See `Store`."""
        messages = [entry.message for entry in write.entries]
        told, sweep = await self._clean(lambda sweep: _clean_append(sweep, write), messages)
        if write.state_expect:
            told = msgspec.structs.replace(told, state_expect=self._clean_expected(write.state_expect))
        appended = await self.inner.append(ref, told)
        if not appended.replayed:
            self._guard.record(sweep.findings, ref.id)
        return appended

    async def replace(self, new: NewSession, entries: Sequence[NewEntry], **more: Any) -> Appended:
        """See `Store`."""
        messages = [entry.message for entry in entries]
        (told, kept), sweep = await self._clean(
            lambda sweep: (_clean_session(sweep, new), _clean_entries(sweep, entries)), messages
        )
        appended = await self.inner.replace(told, kept, **more)
        self._guard.record(sweep.findings, new.id)
        return appended

    async def record_ending(self, ending: Ending) -> None:
        """See `Store`. An error may quote what a hook was given."""
        told = ending.error and self._guard.mask_text(ending.error)
        await self.inner.record_ending(msgspec.structs.replace(ending, error=told))

    async def settle(
        self, ending_id: str, *, delivered: str | None = None, due_at: int | None = None, error: str | None = None
    ) -> Ending:
        """See `Store`, and above."""
        told = error and self._guard.mask_text(error)
        return await self.inner.settle(ending_id, delivered=delivered, due_at=due_at, error=told)

    async def add_artifact(
        self,
        scope: Scope,
        new: NewArtifact,
        *,
        expect: int | None = None,
        room: int | None = None,
        identity: str | None = None,
    ) -> Artifact:
        """See `Store`. Its content is bytes, and was stored before."""
        sweep = self._guard.sweep()
        told = msgspec.structs.replace(new, metadata=sweep.clean_value(new.metadata, "metadata", sent=True))
        sweep.raise_if_blocked()
        added = await self.inner.add_artifact(scope, told, expect=expect, room=room, identity=identity)
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
        """See `Store`. What is expected is compared as it would have been stored."""
        sweep = self._guard.sweep()
        told, expected = _clean_changes(sweep, delta, sent=True), self._clean_expected(values)
        sweep.raise_if_blocked()
        changed = await self.inner.change_state(user_id, told, timestamp=timestamp, expect=expect, values=expected)
        self._guard.record(sweep.findings, "")
        return changed

    async def change_memories(
        self, owner: Owner, delta: MemoryDelta, *, timestamp: int, expect: int | None = None
    ) -> OwnedMemories:
        """See `Store`. What a user asked to be remembered can be refused; all else is masked."""
        sweep = self._guard.sweep()
        long = sum(len(memory.content) for memory in delta.put) > _LONG_CHARS or bool(delta.diary)
        told = await run_cpu(lambda: _clean_memories(sweep, delta), long=long)
        sweep.raise_if_blocked()
        changed = await self.inner.change_memories(owner, told, timestamp=timestamp, expect=expect)
        self._guard.record(sweep.findings, "")
        return changed

    def _clean_expected(self, values: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Values that are compared, not written: nothing of them is counted, or told."""
        return values and _clean_changes(self._guard.sweep(), values, sent=False)

    async def _clean(self, look: Callable[[Sweep], Any], messages: Sequence[Message]) -> tuple[Any, Sweep]:
        """What `look` makes of a write, and what it found. Raises `SecretBlocked`."""
        sweep = self._guard.sweep()
        told = await run_cpu(lambda: look(sweep), long=is_long(messages))
        sweep.raise_if_blocked()
        return told, sweep


def redact(store: Store, guard: Guard) -> Store:
    """`store`, with `guard` before everything that writes text."""
    return RedactingStore(store, guard)  # type: ignore[abstract]  # the rest is passed on


async def mask_messages(guard: Guard | None, messages: Sequence[Message]) -> tuple[Message, ...]:
    """What a request brings as a log would have it; see `Guard.masked`."""
    if guard is None:
        return tuple(messages)
    return await run_cpu(lambda: guard.mask_messages(messages), long=is_long(messages))


async def clean_import(guard: Guard | None, read: Imported) -> Imported:
    """What an import brings as a store would keep it, to be compared with what is there. Raises `SecretBlocked`."""
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
            messages=messages,
            fields=tuple(fields),
        )

    told = await run_cpu(clean, long=is_long(read.messages))
    sweep.raise_if_blocked()
    return told


# -- what has texts ------------------------------------------------------------


def _clean_session(sweep: Sweep, new: NewSession) -> NewSession:
    return msgspec.structs.replace(
        new,
        system_messages=_clean_system_messages(sweep, new.system_messages),
        state=_clean_changes(sweep, new.state, sent=True),
        metadata=sweep.clean_value(new.metadata, "metadata", sent=True),
    )


def _clean_changes(sweep: Sweep, delta: Mapping[str, Change], *, sent: bool) -> Mapping[str, Change]:
    """Changes of the state without secrets; the same object when there are none."""
    plain = {key: list(change.values) if isinstance(change, Extend) else change for key, change in delta.items()}
    told = sweep.clean_value(plain, "state", sent=sent)
    if told is plain:
        return delta
    pairs = zip(told.items(), delta.values(), strict=True)
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
        # What comes with messages is the doing of a turn's tools and its model; alone it is a caller's own.
        state_delta=write.state_delta and _clean_changes(sweep, write.state_delta, sent=not write.entries),
        compactions=[_clean_compaction(sweep, new, f"compactions[{at}]") for at, new in enumerate(write.compactions)],
    )


def _clean_memories(sweep: Sweep, delta: MemoryDelta) -> MemoryDelta:
    return msgspec.structs.replace(
        delta,
        put=tuple(_clean_memory(sweep, memory, f"put[{at}]") for at, memory in enumerate(delta.put)),
        diary=tuple(_clean_diary_entry(sweep, entry, f"diary[{at}]") for at, entry in enumerate(delta.diary)),
    )


def _clean_memory(sweep: Sweep, memory: Memory, place: str) -> Memory:
    # One that an agent remembered, or that is there already, nobody is waiting to correct.
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
