"""Remember, change, review and forget memories, which belong to a user, an agent or the app and are kept across sessions.

    remember -> redact secrets -> compare with existing memories -> at most one write
    recall   -> search the memories of each visible owner -> one signal per hit, written later

Each change is one call of the store's `change_memories`, with the owner's version on which the change is based. If another process
has changed the memories in the meantime, the change is computed again. A recall right after a change already returns the new state.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.accounting import run_cpu
from holdfast.domain.memory import Memory, MemoryDelta, MemorySource, MemoryType, Origin, Owner
from holdfast.domain.session import Session
from holdfast.errors import HoldfastError, InvalidRequest, MemoryNotFound, StaleMemories
from holdfast.limits import MEMORIES_AT_ONCE, MEMORY_TAG_CHARS, PAGE
from holdfast.memory.checks import (
    check_words,
    choose_owner,
    clean_metadata,
    clean_tags,
    make_origin_fields,
    remove_source,
    to_tuple,
)
from holdfast.memory.lookup import IndexService, MemorySettings
from holdfast.memory.reader import MemoryReader
from holdfast.memory.similarity import Outcome, can_replace, decide_merge, is_same
from holdfast.secrets.guard import Guard
from holdfast.stores.checks import check_new_id
from holdfast.stores.logic.memories import MemoryStore
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.walk import iterate_memory_pages, iterate_owners
from holdfast.wire.sendable import check_text

T = TypeVar("T")
ReviewDecision = Literal["accept", "reject"]
DECISIONS: Final = ("accept", "reject")
AT_ONCE: Final = 200
"""Number of rejected memories that are read at once, and then compared with a new statement in one run of a thread."""


def plan_review(old: Memory, decision: ReviewDecision, now: int) -> Memory:
    """Return a memory after it was accepted or rejected.

    Args:
        old: the memory.
        decision: `accept` or `reject`.
        now: the current time, in milliseconds since the epoch.

    Raises:
        InvalidRequest: `old` is not held for review and was not reviewed before.
    """
    status = "active" if decision == "accept" else "rejected"
    if old.status == status and old.reviewed_at is not None:
        return old
    if old.status != "quarantined" and (old.reviewed_at is None or old.status == "superseded"):
        raise InvalidRequest(f"{old.id} is {old.status}, not held for review", param="id")
    if decision == "accept":
        return msgspec.structs.replace(old, status="active", reviewed_at=now)
    return msgspec.structs.replace(old, status="rejected", reviewed_at=now, promoted_at=None, score=None)


async def find_rejected(store: MemoryStore, owner: Owner, content: str) -> list[Memory]:
    """Return rejected memories of an owner that say the same as a new statement.

    The rejected memories are read in pages, newest first. The search stops at the first page with memories that match, so older matches
    are not returned.

    Args:
        store: the store of memories.
        owner: the owner.
        content: the new statement.
    """
    async for page in iterate_memory_pages(store, owner, status="rejected", limit=AT_ONCE, descending=True):
        if page.memories and (found := await run_cpu(_filter_same, content, page.memories)):
            return found
    return []


def _filter_same(content: str, memories: Sequence[Memory]) -> list[Memory]:
    return [one for one in memories if is_same(content, one.content)]


_log = logging.getLogger("holdfast.memories")
TRIES: Final = 50
"""Maximum number of attempts at a change while other processes keep changing the same owner's memories."""
OnChanged = Callable[[Owner], Awaitable[None]]
"""Called after each change of an owner's memories, when the change is durable and recalls use the new state."""


LIKE: Final = 40
"""Number of memories that a new memory is compared with. The memories with the most words in common are chosen."""


def make_random_id() -> str:
    """Return an id that cannot be guessed: 122 random bits."""
    return f"mem_{uuid.uuid4().hex}"


class _Overtaken(Exception):  # not an error: an outcome
    """Raised if another process has changed an owner's memories since they were read."""

    def __init__(self, error: StaleMemories) -> None:
        self.error = error


class Remembered(msgspec.Struct, frozen=True):
    """The result of remembering something."""

    memory: Memory
    """The memory that now contains the statement."""
    outcome: Outcome
    """`new`: the statement is a new memory. `merged`: a memory that says the same existed already. `superseded`: the memory replaces
    those listed in its `supersedes`."""
    others: tuple[Memory, ...] = ()
    """Similar memories, most similar first. They are not changed."""


class Memories(MemoryReader):
    """The memories of one tenant.

    Attributes:
        on_changed: functions that are called with the owner, one after the other, after each change of the owner's memories.

    Args:
        store: the store of memories.
        clock: returns the current time, in milliseconds since the epoch.
        guard: redacts secrets before anything is compared, looked up, embedded or stored. None: nothing is redacted.
        index: returns the index service; None if there is no index.
        settings: settings of memories.
        new_id: returns a new id for a memory.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        *,
        guard: Guard | None = None,
        index: Callable[[], IndexService | None] = lambda: None,
        settings: MemorySettings | None = None,
        new_id: Callable[[], str] = make_random_id,
    ) -> None:
        super().__init__(store, clock, guard=guard, index=index, settings=settings)
        self._new_id = new_id
        self.on_changed: list[OnChanged] = []
        self._changing: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    # -- remembering ---------------------------------------------------------

    async def remember(
        self,
        content: str,
        *,
        user_id: str | None = None,
        agent: str | None = None,
        app: bool = False,
        type: MemoryType = "semantic",  # noqa: A002 - what it is called
        tags: Collection[str] = (),
        importance: float = 0.5,
        valid_from: int | None = None,
        valid_until: int | None = None,
        origin: Origin = "user",
        sources: Collection[MemorySource] = (),
        supersedes: Collection[str] = (),
        metadata: Mapping[str, Any] | None = None,
        held: bool = False,
    ) -> Remembered:
        """Remember a statement.

        If a memory that says the same exists, the statement is merged with it. A memory that has an older value for the same fact is
        superseded: it is kept, but not recalled any more.

        Args:
            content: the text, at most `MEMORY_CHARS` characters.
            user_id: the user that the memory belongs to; None: it belongs to the agent or, without an agent, to the default user.
            agent: if a user is given, the agent that remembers it for the user; otherwise the agent that the memory belongs to.
            app: True: the memory belongs to the whole app of the tenant.
            type: `semantic`, `episodic`, `procedural`, `user`, `feedback`, `project` or `reference`.
            tags: additional words by which the memory is found.
            importance: 0 to 1.
            valid_from, valid_until: the time during which the memory is valid, in milliseconds since the epoch; None: no bound.
            origin: the origin of the words. If a source in `sources` has a less trusted origin, the memory gets that origin.
            sources: the entries that the memory was made from.
            supersedes: ids of memories of the same owner that the new memory replaces. A memory is not replaced if the new one is
                held for review or trusted less.
            metadata: any JSON object.
            held: True: hold the memory for review, regardless of its origin.

        Raises:
            InvalidRequest: an argument is invalid.
            MemoryNotFound: an id in `supersedes` does not exist.
            SecretBlocked: the memory contains a secret, and secrets are refused.
            TooLarge: the memory exceeds a limit.
        """
        check_words(content, type, importance, origin, (valid_from, valid_until))
        now = self.clock()
        owner = choose_owner(user_id, agent, app=app)
        if owner.kind != "app":
            check_new_id(owner.id, "user_id" if owner.kind == "user" else "agent")
        new = Memory(
            id=self._new_id(),
            owner=owner,
            content=content.strip(),
            type=type,
            tags=clean_tags(tags),
            importance=importance,
            agent=agent,
            valid_from=valid_from,
            valid_until=valid_until,
            supersedes=tuple(dict.fromkeys(to_tuple(supersedes, str, "supersedes"))),
            metadata=clean_metadata(metadata),
            **make_origin_fields(origin, sources, now, held=held),
        )
        return await self._store_new(self._redact(new), now)

    async def _store_new(self, new: Memory, now: int) -> Remembered:
        """Compare a new memory with existing ones, and write the result. Repeat if another process has changed the memories."""

        async def attempt() -> Remembered:
            version, known = await self._read_similar(new)
            decision = decide_merge(new, known, now)
            if not decision.put:
                return Remembered(decision.memory, decision.outcome, decision.others)
            (stored,) = await self._write(new.owner, version, [MemoryDelta(put=decision.put)], now)
            return Remembered(_get_stored(decision.memory, stored), decision.outcome, decision.others)

        return await self._repeat(new.owner, attempt)

    async def _repeat(self, owner: Owner, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run a change of an owner's memories alone in this process, again while other processes change them before it writes."""
        # Without the lock, changes would often be computed twice.
        async with self._changing.setdefault(owner, asyncio.Lock()):
            for _ in range(TRIES):
                try:
                    return await attempt()
                except _Overtaken as exc:
                    stale = exc.error
            raise stale

    async def _write(self, owner: Owner, version: int, deltas: Sequence[MemoryDelta], now: int) -> list[OwnedMemories]:
        """Write changes that are based on a version of an owner, and return what the store returned for each.

        Raises:
            _Overtaken: the owner has another version.
        """
        written: list[OwnedMemories] = []
        for delta in deltas:
            try:
                written.append(await self.store.change_memories(owner, delta, timestamp=now, expect=version))
            except StaleMemories as exc:
                raise _Overtaken(exc) from exc
            version = written[-1].version
        if any(delta.forget for delta in deltas):
            self._recaller.local.evict(owner)
        if deltas:
            await self._handle_change(owner)
        return written

    async def _read_similar(self, new: Memory) -> tuple[int, list[Memory]]:
        """Return the owner's version, and the memories with which a new memory is compared.

        Raises:
            MemoryNotFound: a memory in `new.supersedes` does not exist.
        """
        version, known = await self._recaller.find_similar(new.owner, new.content, LIKE)
        found = {one.id: one for one in known}
        if new.supersedes:
            named = await self.store.memories(new.owner, ids=new.supersedes, limit=len(new.supersedes))
            found |= {one.id: one for one in named.memories}
            for memory_id in new.supersedes:
                if memory_id not in found:
                    raise MemoryNotFound(memory_id)
        if new.origin != "user":
            found |= {one.id: one for one in await find_rejected(self.store, new.owner, new.content)}
        return version, list(found.values())

    async def update(
        self,
        memory_id: str,
        *,
        owners: Collection[Owner] | None = None,
        expect: int | None = None,
        content: str | UnsetType = UNSET,
        type: MemoryType | UnsetType = UNSET,  # noqa: A002 - what it is called
        tags: Collection[str] | UnsetType = UNSET,
        importance: float | UnsetType = UNSET,
        valid_from: int | None | UnsetType = UNSET,
        valid_until: int | None | UnsetType = UNSET,
        metadata: Mapping[str, Any] | UnsetType = UNSET,
        origin: Origin = "user",
        sources: Collection[MemorySource] = (),
    ) -> Remembered:
        """Change a memory. Arguments that are not given leave their field unchanged.

        If the content changes, a new memory replaces the old one, which is kept as history. But in three cases the old memory stays
        unchanged, and the new one is stored as a separate memory: the new memory is held for review, it is trusted less than the old one,
        or the old one is rejected.

        Args:
            memory_id: the memory's id.
            owners: the owners that the memory may belong to; None: any owner.
            expect: the version that the memory must have; None: any version.
            content: the new text.
            type: as in `remember`.
            tags: the new tags, which replace all old ones.
            importance: 0 to 1.
            valid_from, valid_until: milliseconds since the epoch; None: no bound.
            metadata: the new metadata, which replaces all old metadata.
            origin: the origin of the new content.
            sources: the entries that the new content was made from.

        Raises:
            MemoryNotFound: there is no memory with this id, or it belongs to another owner.
            StaleMemories: the memory does not have the version `expect`.
            InvalidRequest: an argument is invalid, or the memory was replaced by another one already.
            SecretBlocked: the memory contains a secret, and secrets are refused.
        """
        given: dict[str, Any] = {
            "type": type,
            "importance": importance,
            "valid_from": valid_from,
            "valid_until": valid_until,
        }
        given["tags"] = tags if isinstance(tags, UnsetType) else clean_tags(tags)
        given["metadata"] = metadata if isinstance(metadata, UnsetType) else clean_metadata(metadata)
        changes = {name: value for name, value in given.items() if value is not UNSET}
        words = None if isinstance(content, UnsetType) else (content, origin, sources)
        if words is not None and origin != "user":
            owner = (await self.get(memory_id, owners=owners)).owner
            if again := await find_rejected(self.store, owner, words[0]):
                return Remembered(again[0], "merged")
        first, *rest = await self._change(
            memory_id, lambda old, now: self._plan_update(old, now, changes, words), owners=owners, expect=expect
        )
        return Remembered(first, "superseded" if rest else "merged" if first.id == memory_id else "new")

    def _plan_update(
        self,
        old: Memory,
        now: int,
        changes: Mapping[str, Any],
        words: tuple[str, Origin, Collection[MemorySource]] | None,
    ) -> tuple[Memory, ...]:
        """Return the memories to write for an update.

        If the content stays the same, this is one memory with the same id. If `words` contains a new content, it is the new memory,
        followed by the old memory if that is superseded.
        """
        if old.status == "superseded":
            raise InvalidRequest(f"{old.id} was replaced by {old.superseded_by}: change that one", param="id")
        made = msgspec.structs.replace(old, updated_at=max(now, old.updated_at), **changes)
        content, origin, sources = (old.content, old.origin, ()) if words is None else words
        check_words(content, made.type, made.importance, origin, (made.valid_from, made.valid_until))
        if content.strip() == old.content:
            return (self._redact(made),)
        new = self._redact(self._make_replacement(made, content, origin, sources, now))
        if not can_replace(new, old):
            return (msgspec.structs.replace(new, supersedes=()),)
        superseded = {"status": "superseded", "superseded_by": new.id, "updated_at": max(now, old.updated_at)}
        return new, msgspec.structs.replace(old, **superseded)

    def _make_replacement(
        self, old: Memory, content: str, origin: Origin, sources: Collection[MemorySource], now: int
    ) -> Memory:
        """Make a new memory from an old one, with new content and sources. Its trust and status depend on the origin of the new content."""
        return msgspec.structs.replace(
            old,
            id=self._new_id(),
            number=0,
            version=0,
            content=content.strip(),
            supersedes=(old.id,),
            promoted_at=None,
            score=None,
            reviewed_at=None,
            **make_origin_fields(origin, sources, now),
        )

    async def review(
        self, memory_id: str, decision: ReviewDecision, *, owners: Collection[Owner] | None = None
    ) -> Memory:
        """Accept or reject a memory that is held for review, and return it.

        An accepted memory is treated like any other memory, but its trust does not change.

        Raises:
            MemoryNotFound: there is no memory with this id, or it belongs to another owner.
            InvalidRequest: the memory is not held for review, or `decision` is unknown.
        """
        if decision not in DECISIONS:
            raise InvalidRequest(f"decision must be accept or reject, not {decision!r:.80}", param="decision")
        (memory,) = await self._change(memory_id, lambda old, now: (plan_review(old, decision, now),), owners=owners)
        return memory

    async def _change(
        self,
        memory_id: str,
        change: Callable[[Memory, int], tuple[Memory, ...]],
        *,
        owners: Collection[Owner] | None = None,
        expect: int | None = None,
    ) -> tuple[Memory, ...]:
        """Read a memory, write the result of `change`, and return the written memories as stored.

        Args:
            memory_id: the memory to change.
            change: returns the memories to write. It gets the memory and the current time.
            owners: the owners that the memory may belong to; None: any owner.
            expect: the version that the memory must have; None: any version.
        """
        owner = (await self.get(memory_id, owners=owners)).owner

        async def attempt() -> tuple[Memory, ...]:
            read = await self.store.memories(owner, ids=[memory_id], limit=1)
            if not read.memories:
                raise MemoryNotFound(memory_id)
            old, now = read.memories[0], self.clock()
            if expect is not None and old.version != expect:
                raise StaleMemories(expected=expect, version=old.version)
            put = change(old, now)
            if put == (old,):
                return put
            (stored,) = await self._write(owner, read.version, [MemoryDelta(put=put)], now)
            return tuple(_get_stored(one, stored) for one in put)

        return await self._repeat(owner, attempt)

    # -- forgetting --------------------------------------------------------------

    async def forget(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> tuple[str, ...]:
        """Delete a memory and the memories that it replaced.

        Their signals and index data are deleted as well.

        Args:
            memory_id: the memory's id.
            owners: the owners that the memory may belong to; None: any owner.

        Returns:
            The ids of all deleted memories.

        Raises:
            MemoryNotFound: there is no memory with this id, or it belongs to another owner.
        """
        found = await self.get(memory_id, owners=owners)
        memories = await self._collect_history(found)
        return await self._forget(found.owner, [one.id for one in memories])

    async def forget_source(
        self, user_id: str, session_id: str, *, seqs: Collection[int] | None = None
    ) -> tuple[str, ...]:
        """Delete the memories that were made only from a session, or only from some entries of a session.

        A memory that has other sources too loses only this source and keeps its trust. All memories of the user, the agents and the
        app are read, so the cost grows with the number of memories.

        Args:
            user_id: the user of the session.
            session_id: the session.
            seqs: the entries of the session to remove as sources; None: all entries.

        Returns:
            The ids of the deleted memories.
        """
        check_text(user_id, "user_id")
        check_text(session_id, "session_id")
        seqs = None if seqs is None else to_tuple(seqs, int, "seqs")
        owners = [Owner("user", user_id), *await self._list_agents(), Owner("app")]
        source, only = (user_id, session_id), None if seqs is None else set(seqs)
        return await self._forget_source(owners, source, only)

    async def forget_entry(self, session: Session, seq: int) -> tuple[str, ...]:
        """Delete the memories that were made only from an entry, like `forget_source`, also if the session had another id then."""
        owners = [Owner("user", session.user_id), *await self._list_agents(), Owner("app")]
        source, identity = (session.user_id, session.id), session.identity
        return await self._forget_source(owners, source, {seq}, identity)

    async def forget_user_sources(self, user_id: str) -> tuple[str, ...]:
        """Delete the memories of agents and of the app that were made only from a user's sessions. Return their ids.

        A memory that has other sources too loses only the sources of this user.
        """
        return await self._forget_source([*await self._list_agents(), Owner("app")], (user_id, None), None)

    async def _list_agents(self) -> list[Owner]:
        """Return the agents that own memories. The store lists agents before other owners."""
        found: list[Owner] = []
        async for owner, _ in iterate_owners(self.store):
            if owner.kind != "agent":
                break
            found.append(owner)
        return found

    async def _forget_source(
        self, owners: Iterable[Owner], source: tuple[str, str | None], seqs: set[int] | None, identity: str = ""
    ) -> tuple[str, ...]:
        """Remove a source from the memories of several owners. The arguments are those of `remove_source`; return the deleted ids."""
        return tuple([one for owner in owners for one in await self._forget_source_of(owner, source, seqs, identity)])

    async def _forget_source_of(
        self, owner: Owner, source: tuple[str, str | None], seqs: set[int] | None, identity: str
    ) -> tuple[str, ...]:
        async def attempt() -> tuple[str, ...]:
            version, left, lost = await self._split_by_source(owner, source, seqs, identity)
            most = MEMORIES_AT_ONCE
            deltas = [MemoryDelta(forget=tuple(lost[start : start + most])) for start in range(0, len(lost), most)]
            deltas += [MemoryDelta(put=tuple(left[start : start + most])) for start in range(0, len(left), most)]
            await self._write(owner, version, deltas, self.clock())
            return tuple(lost)

        return await self._repeat(owner, attempt)

    async def _split_by_source(
        self, owner: Owner, source: tuple[str, str | None], seqs: set[int] | None, identity: str
    ) -> tuple[int, list[Memory], list[str]]:
        """Return the changes that remove a source from an owner's memories.

        Returns:
            Three values: the owner's version; the memories that have other sources too, without this one; and the ids of the memories to
            delete.
        """
        left, lost, versions = list[Memory](), list[str](), list[int]()
        async for page in iterate_memory_pages(self.store, owner, limit=PAGE):
            versions.append(page.version)
            for one in page.memories:
                sources = remove_source(one.sources, source, seqs, identity)
                if sources and sources != one.sources:
                    left.append(msgspec.structs.replace(one, sources=sources))
                elif sources != one.sources:
                    lost.append(one.id)
        return versions[0], left, lost

    async def handle_forgotten_owner(self, owner: Owner) -> None:
        """Update caches and notify listeners after all memories of an owner were deleted directly in the store."""
        self._recaller.local.evict(owner)
        await self._notify(owner)

    async def _forget(self, owner: Owner, ids: Sequence[str]) -> tuple[str, ...]:
        for start in range(0, len(ids), MEMORIES_AT_ONCE):
            delta = MemoryDelta(forget=tuple(ids[start : start + MEMORIES_AT_ONCE]))
            await self.store.change_memories(owner, delta, timestamp=self.clock())
        if ids:
            self._recaller.local.evict(owner)
            await self._handle_change(owner)
        return tuple(ids)

    async def _collect_history(self, found: Memory) -> list[Memory]:
        """Return a memory, and the memories that it replaced directly or indirectly."""
        known, ask = {found.id: found}, list(found.supersedes)
        while ask:
            some, ask = ask[:PAGE], ask[PAGE:]
            read = await self.store.memories(found.owner, ids=some, limit=len(some))
            for one in read.memories:
                if one.id not in known and one.status == "superseded":
                    known[one.id] = one
                    ask += [other for other in one.supersedes if other not in known]
        return list(known.values())

    # -- after every change ------------------------------------------------------

    async def _handle_change(self, owner: Owner) -> None:
        """Update the index and notify listeners after an owner's memories have changed."""
        service = self._index()
        if service is not None:
            try:
                await service.index_memories(owner)
            except HoldfastError as exc:  # the next lookup tries again, and reads every hit from the store
                _log.warning("the index does not have the changed memories yet: %s", exc.code)
        await self._notify(owner)

    async def _notify(self, owner: Owner) -> None:
        for listener in self.on_changed:
            try:
                await listener(owner)
            except Exception as exc:  # noqa: BLE001 - the change is durable and must not seem to have failed
                _log.error("a listener to changes of memories failed", exc_info=exc)

    # -- internals -----------------------------------------------------------

    def _redact(self, memory: Memory) -> Memory:
        """Return a memory with secrets redacted. Raises `SecretBlocked` if secrets are refused."""
        if self._guard is None:
            return memory
        sweep = self._guard.sweep()
        sent = memory.origin == "user" and memory.agent is None and not memory.number
        made = msgspec.structs.replace(
            memory,
            content=sweep.clean_text(memory.content, "content", sent=sent),
            tags=tuple(sweep.clean_text(tag, "tags", sent=sent)[:MEMORY_TAG_CHARS] for tag in memory.tags),
            metadata=sweep.clean_value(memory.metadata, "metadata", sent=sent),
        )
        sweep.raise_if_blocked()
        self._guard.record(sweep.findings, "")
        return made


def _get_stored(memory: Memory, stored: OwnedMemories) -> Memory:
    return next((one for one in stored.memories if one.id == memory.id), memory)
