"""Memories: what is remembered across sessions, of a user, of an agent, of all; and what can be done with it.

    remember -> guarded -> compared with what is there -> one write, or none
    recall   -> looked up in every owner that may be seen -> a signal for each hit, behind

Every change is one `change_memories` with the version that it was decided on, and is decided anew where somebody was faster. What was
remembered is found by the next recall.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.domain.memory import Memory, MemoryDelta, MemorySource, MemoryType, Origin, Owner
from holdfast.errors import InvalidRequest, MemoryNotFound, StaleMemories
from holdfast.limits import MEMORY_TAG_CHARS
from holdfast.memory.checks import check_words, list_of, metadata_of, owner_of, said_by, tags_of
from holdfast.memory.forgetting import TRIES, Forgetting
from holdfast.memory.lookup import IndexService, MemorySettings
from holdfast.memory.merging import Decision, Outcome, decided, may_replace
from holdfast.memory.reviewing import DECISIONS, Decide, rejected, reviewed
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore, OwnedMemories

LIKE: Final = 40
"""Memories that a new one is compared with: those that share most words with it."""


def random_id() -> str:
    """An id that nobody guesses: 122 random bits."""
    return f"mem_{uuid.uuid4().hex}"


class Remembered(msgspec.Struct, frozen=True):
    """What became of something that was to be remembered."""

    memory: Memory
    """That says it from now on."""
    outcome: Outcome
    """`merged`: it was there already. `superseded`: it stands in the place of those that it names in `supersedes`."""
    others: tuple[Memory, ...] = ()
    """Those that are alike, the likest first, and stay as they are."""


class Memories(Forgetting):
    """The memories of one tenant.

    Attributes:
        on_changed: called behind every change, with the owner, one after the other.

    Args:
        store: where they are.
        clock: milliseconds since the epoch.
        guard: what happens to secrets, before anything is compared, looked up, embedded or stored. None: nothing.
        index: the index service; None: there is none.
        settings: how they are found.
        new_id: makes ids.
    """

    def __init__(
        self,
        store: MemoryStore,
        clock: Callable[[], int],
        *,
        guard: Guard | None = None,
        index: Callable[[], IndexService | None] = lambda: None,
        settings: MemorySettings | None = None,
        new_id: Callable[[], str] = random_id,
    ) -> None:
        super().__init__(store, clock, guard=guard, index=index, settings=settings)
        self._new_id = new_id

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
        """Remember something. What says the same is merged with it, what it gives a new value for is superseded; visibly.

        It belongs to the user, where one is named, who then was told it by `agent`; else to the agent, or with `app` to all.

        Args:
            content: what it says, at most `MEMORY_CHARS` characters.
            user_id: whose it is.
            agent: whose it is, or who remembers it for the user.
            app: it is everybody's of the tenant.
            type: `semantic`, `episodic`, `procedural`, `user`, `feedback`, `project` or `reference`.
            tags: words that it is found by, too.
            importance: 0 to 1.
            valid_from, valid_until: when it holds, milliseconds since the epoch; None: always did, and who knows how long.
            origin: where its words come from; with `sources` the least trusted of all.
            sources: the entries that it was made from.
            supersedes: ids of memories of the same owner in whose place it stands; beside them where it is held, or trusted less.
            metadata: anything that JSON can say.
            held: hold it for review, wherever its words come from.

        Raises:
            InvalidRequest: something of it cannot be.
            MemoryNotFound: there is none of an id in `supersedes`.
            SecretBlocked: it holds a secret, and secrets are refused.
            TooLarge: a limit would be passed.
        """
        check_words(content, type, importance, origin, (valid_from, valid_until))
        now = self.clock()
        new = Memory(
            id=self._new_id(),
            owner=owner_of(user_id, agent, app=app),
            content=content.strip(),
            type=type,
            tags=tags_of(tags),
            importance=importance,
            agent=agent,
            valid_from=valid_from,
            valid_until=valid_until,
            supersedes=tuple(dict.fromkeys(list_of(supersedes, str, "supersedes"))),
            metadata=metadata_of(metadata),
            **said_by(origin, sources, now, held=held),
        )
        return await self._taken_in(self._without_secrets(new), now)

    async def _taken_in(self, new: Memory, now: int) -> Remembered:
        """Compare, decide and write, until nobody was faster."""
        async with self._alone(new.owner):
            for _ in range(TRIES):
                version, known = await self._known(new)
                decision = decided(new, known, now)
                if not decision.put:
                    return Remembered(decision.memory, decision.outcome, decision.others)
                delta = MemoryDelta(put=decision.put)
                try:
                    stored = await self.store.change_memories(new.owner, delta, timestamp=now, expect=version)
                except StaleMemories as exc:
                    stale = exc
                    continue
                await self._changed(new.owner)
                return _remembered(decision, stored)
            raise stale

    async def _known(self, new: Memory) -> tuple[int, list[Memory]]:
        """The memories that a new one is compared with, and the version that they are of. Raises `MemoryNotFound`."""
        version, known = await self._recaller.like(new.owner, new.content, LIKE)
        found = {one.id: one for one in known}
        if new.supersedes:
            named = await self.store.memories(new.owner, ids=new.supersedes, limit=len(new.supersedes))
            found |= {one.id: one for one in named.memories}
            for memory_id in new.supersedes:
                if memory_id not in found:
                    raise MemoryNotFound(memory_id)
        if new.origin != "user":
            found |= {one.id: one for one in await rejected(self.store, new.owner, new.content)}
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
        """Change a memory. Another content makes a new one in its place, and the old one stays as its history.

        A content that is held for review, or trusted less than the old one, stands beside it; so does one for what was rejected.

        Args:
            memory_id: which.
            owners: whose it may be; None: anybody's.
            expect: the version that it must be at; None: any.
            content: what it says from now on.
            type: see `remember`; as the others, unset: as it is.
            tags: all of them.
            importance: 0 to 1.
            valid_from: None: always did hold.
            valid_until: None: not known.
            metadata: all of it.
            origin: where a new content comes from.
            sources: the entries that it was made from.

        Raises:
            MemoryNotFound: there is none of that id, or it is another owner's.
            StaleMemories: it is at another version.
            InvalidRequest: something of it cannot be, or another one stands in its place already.
            SecretBlocked: it holds a secret, and secrets are refused.
        """
        given: dict[str, Any] = {
            "type": type,
            "importance": importance,
            "valid_from": valid_from,
            "valid_until": valid_until,
        }
        given["tags"] = tags if isinstance(tags, UnsetType) else tags_of(tags)
        given["metadata"] = metadata if isinstance(metadata, UnsetType) else metadata_of(metadata)
        changes = {name: value for name, value in given.items() if value is not UNSET}
        words = None if isinstance(content, UnsetType) else (content, origin, sources)
        if words is not None and origin != "user":
            owner = (await self.get(memory_id, owners=owners)).owner
            if again := await rejected(self.store, owner, words[0]):
                return Remembered(again[0], "merged")
        first, *rest = await self._change(
            memory_id, lambda read, now: self._altered(read[0], now, changes, words), owners=owners, expect=expect
        )
        return Remembered(first, "superseded" if rest else "merged" if first.id == memory_id else "new")

    def _altered(
        self,
        old: Memory,
        now: int,
        changes: Mapping[str, Any],
        words: tuple[str, Origin, Collection[MemorySource]] | None,
    ) -> tuple[Memory, ...]:
        """A memory with changes; where `words` differ from its content, a new one in its place, and what becomes of it."""
        if old.status == "superseded":
            raise InvalidRequest(f"{old.superseded_by} stands in place of {old.id}: change that one", param="id")
        if old.is_proposal:
            raise InvalidRequest(f"{old.id} is the proposal of a model: accept or reject it, as it is", param="id")
        made = msgspec.structs.replace(old, updated_at=max(now, old.updated_at), **changes)
        content, origin, sources = (old.content, old.origin, ()) if words is None else words
        check_words(content, made.type, made.importance, origin, (made.valid_from, made.valid_until))
        if content.strip() == old.content:
            return (self._without_secrets(made),)
        new = self._without_secrets(self._in_place_of(made, content, origin, sources, now))
        if not may_replace(new, old):
            return (msgspec.structs.replace(new, supersedes=()),)
        gone = {"status": "superseded", "superseded_by": new.id, "updated_at": max(now, old.updated_at)}
        return new, msgspec.structs.replace(old, **gone)

    def _in_place_of(
        self, old: Memory, content: str, origin: Origin, sources: Collection[MemorySource], now: int
    ) -> Memory:
        """A memory with another content, of other sources, and so trusted as these are."""
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
            **said_by(origin, sources, now),
        )

    async def review(self, memory_id: str, decision: Decide, *, owners: Collection[Owner] | None = None) -> Memory:
        """Take a memory out of quarantine: `accept`, and it is recalled and promoted as others are, trusted as before; or `reject`.

        A merge that a model proposed takes the place of those that it names when it is accepted; see `holdfast.dreams.proposals`.

        Raises:
            MemoryNotFound: there is none of that id, or it is another owner's.
            InvalidRequest: it is not held for review, that is no decision, or what it merges is not as it was.
        """
        if decision not in DECISIONS:
            raise InvalidRequest(f"decision must be accept or reject, not {decision!r:.80}", param="decision")
        merges = (await self.get(memory_id, owners=owners)).merges
        memory, *_ = await self._change(
            memory_id, lambda read, now: reviewed(read[0], read[1:], decision, now), owners=owners, beside=merges
        )
        return memory

    async def _change(
        self,
        memory_id: str,
        change: Callable[[Sequence[Memory], int], tuple[Memory, ...]],
        *,
        owners: Collection[Owner] | None = None,
        expect: int | None = None,
        beside: Collection[str] = (),
    ) -> tuple[Memory, ...]:
        """Put what `change` makes of a memory and those `beside` it, as they stand then; that, as it is stored."""
        owner = (await self.get(memory_id, owners=owners)).owner
        async with self._alone(owner):
            for _ in range(TRIES):
                read = await self.store.memories(owner, ids=[memory_id, *beside], limit=1 + len(beside))
                there = sorted(read.memories, key=lambda one: one.id != memory_id)
                if not there or there[0].id != memory_id:
                    raise MemoryNotFound(memory_id)
                old, now = there[0], self.clock()
                if expect is not None and old.version != expect:
                    raise StaleMemories(expected=expect, version=old.version)
                put = change(there, now)
                if put == (old,):
                    return put
                try:
                    stored = await self.store.change_memories(
                        owner, MemoryDelta(put=put), timestamp=now, expect=read.version
                    )
                except StaleMemories as exc:
                    stale = exc
                    continue
                await self._changed(owner)
                return tuple(_stored(one, stored) for one in put)
            raise stale

    # -- inside --------------------------------------------------------------

    def _without_secrets(self, memory: Memory) -> Memory:
        """A memory as it may be stored. Raises `SecretBlocked`."""
        if self._guard is None:
            return memory
        sweep = self._guard.sweep()
        sent = memory.origin == "user" and memory.agent is None and not memory.number
        made = msgspec.structs.replace(
            memory,
            content=sweep.text(memory.content, "content", sent=sent),
            tags=tuple(sweep.text(tag, "tags", sent=sent)[:MEMORY_TAG_CHARS] for tag in memory.tags),
            metadata=sweep.value(memory.metadata, "metadata", sent=sent),
        )
        sweep.refuse()
        self._guard.note(sweep.findings, "")
        return made


def _remembered(decision: Decision, stored: OwnedMemories) -> Remembered:
    return Remembered(_stored(decision.memory, stored), decision.outcome, decision.others)


def _stored(memory: Memory, stored: OwnedMemories) -> Memory:
    return next((one for one in stored.memories if one.id == memory.id), memory)
