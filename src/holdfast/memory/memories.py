"""Memories: what is remembered across sessions, of a user, an agent or the app; how it changes, is reviewed and forgotten.

    remember -> secrets removed -> compared with existing memories -> one write, or none
    recall   -> looked up in every owner that may be seen -> a signal for each hit, written later

Every change is one `change_memories` with the version that it was decided on, and is decided again if another process was faster. The next
recall finds what was remembered.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.accounting import run_cpu
from holdfast.domain.memory import Memory, MemoryDelta, MemorySource, MemoryType, Origin, Owner, is_awaiting_review
from holdfast.errors import HoldfastError, InvalidRequest, MemoryNotFound, StaleMemories
from holdfast.limits import MEMORIES_AT_ONCE, MEMORY_TAG_CHARS, PAGE
from holdfast.memory.checks import check_words, list_of, metadata_of, owner_of, said_by, tags_of, without
from holdfast.memory.lookup import IndexService, MemorySettings
from holdfast.memory.reader import Recollection
from holdfast.memory.similarity import Decision, Outcome, decide_merge, may_replace, same
from holdfast.secrets import Guard
from holdfast.stores.memories import MemoryStore, OwnedMemories
from holdfast.stores.walk import iterate_owners
from holdfast.wire.sendable import check_text

Decide = Literal["accept", "reject"]
DECISIONS: Final = ("accept", "reject")
AT_ONCE: Final = 200
"""Rejected memories that are compared at once with what is said again, in a thread."""


def plan_review(old: Memory, beside: Sequence[Memory], decision: Decide, now: int) -> tuple[Memory, ...]:
    """What is to be written when somebody decides about `old`; it comes first, and alone unless it is a merge.

    A merge that is accepted takes the place of those that it merges, and is promoted where any of these was; one that is
    rejected behind that gives them their place back.

    Args:
        old: the memory.
        beside: those that it merges, as far as they are there.
        decision: `accept` or `reject`.
        now: milliseconds since the epoch.

    Raises:
        InvalidRequest: it is not held for review, or what it merges is not as it was.
    """
    status = "active" if decision == "accept" else "rejected"
    if old.status == status and old.reviewed_at is not None:
        return (old,)
    if old.status != "quarantined" and (old.reviewed_at is None or old.status == "superseded"):
        raise InvalidRequest(f"{old.id} is {old.status}, and not held for review", param="id")
    if decision == "accept":
        made = msgspec.structs.replace(old, status="active", reviewed_at=now)
        return _merged(made, beside, now) if old.merges else (made,)
    made = msgspec.structs.replace(old, status="rejected", reviewed_at=now, promoted_at=None, score=None)
    return _parted(made, beside, now) if old.merges else (made,)


async def proposals(store: MemoryStore, owner: Owner, *, naming: Collection[str] | None = None) -> list[Memory]:
    """The merges that were proposed of an owner's memories and not accepted, rejected ones included.

    It reads all that is held or was rejected.

    Args:
        store: where memories are.
        owner: whose.
        naming: only those that merge any of these ids; None: all.
    """
    found: list[Memory] = []
    for status in ("quarantined", "rejected"):
        after: int | None = None
        while True:
            page = await store.memories(owner, status=status, after=after, limit=PAGE)
            found += [one for one in page.memories if one.is_proposal]
            if not page.has_more:
                break
            after = page.memories[-1].number
    return found if naming is None else [one for one in found if not set(naming).isdisjoint(one.merges)]


async def find_rejected(store: MemoryStore, owner: Owner, content: str) -> list[Memory]:
    """What a review has rejected that says the same, however long ago; of several the newest.

    Args:
        store: where memories are.
        owner: whose.
        content: what is said again.
    """
    after: int | None = None
    while True:
        page = await store.memories(owner, status="rejected", after=after, limit=AT_ONCE, descending=True)
        there = [one for one in page.memories if not one.is_proposal]
        found = await run_cpu(_saying, content, there) if there else []
        if found or not page.has_more:
            return found
        after = page.memories[-1].number


def _saying(content: str, memories: Sequence[Memory]) -> list[Memory]:
    return [one for one in memories if same(content, one.content)]


def _merged(made: Memory, beside: Sequence[Memory], now: int) -> tuple[Memory, ...]:
    there = {one.id: one for one in beside}
    for name in made.merges:
        one = there.get(name)
        if one is None or one.status != "active" or is_awaiting_review(one):
            state = "forgotten" if one is None else "held for review" if one.status == "active" else one.status
            message = (
                f"{name}, which {made.id} merges, is {state} by now: reject it, the next sweep may propose another"
            )
            raise InvalidRequest(message, param="id")
    old = [there[name] for name in made.merges]
    promoted = [one.score or 0.0 for one in old if one.promoted_at is not None]
    made = msgspec.structs.replace(
        made,
        supersedes=made.merges,
        trust=min(made.trust, *(one.trust for one in old)),
        updated_at=max(now, made.updated_at),
        promoted_at=now if promoted else None,
        score=max(promoted, default=None),
    )
    gone = {"status": "superseded", "superseded_by": made.id}
    return made, *(msgspec.structs.replace(one, **gone, updated_at=max(now, one.updated_at)) for one in old)


def _parted(made: Memory, beside: Sequence[Memory], now: int) -> tuple[Memory, ...]:
    back = [one for one in beside if one.status == "superseded" and one.superseded_by == made.id]
    made = msgspec.structs.replace(made, supersedes=(), updated_at=max(now, made.updated_at))
    again = {"status": "active", "superseded_by": None}
    return made, *(msgspec.structs.replace(one, **again, updated_at=max(now, one.updated_at)) for one in back)


_log = logging.getLogger("holdfast.memories")
TRIES: Final = 50
"""Times that a change is decided anew, where others keep changing the same owner's memories."""
OnChanged = Callable[[Owner], Awaitable[None]]
"""Called behind every change of an owner's memories, when it is durable and looked up no more."""


class Forgetting(Recollection):
    """The memories of one tenant, to be read and forgotten.

    Attributes:
        on_changed: called behind every change, with the owner, one after the other.

    Args:
        store: where they are.
        clock: milliseconds since the epoch.
        settings: the rest; see `Recollection`.
    """

    def __init__(self, store: MemoryStore, clock: Callable[[], int], **settings: Any) -> None:
        super().__init__(store, clock, **settings)
        self.on_changed: list[OnChanged] = []
        self._changing: WeakValueDictionary[Owner, asyncio.Lock] = WeakValueDictionary()

    async def forget(self, memory_id: str, *, owners: Collection[Owner] | None = None) -> tuple[str, ...]:
        """Forget a memory with its history, those that it stands in place of: rows, signals, what an index has of them.

        Args:
            memory_id: which.
            owners: whose it may be; None: anybody's.

        Returns:
            The ids of all that are gone.

        Raises:
            MemoryNotFound: there is none of that id, or it is another owner's.
        """
        found = await self.get(memory_id, owners=owners)
        gone = await self._with_history(found)
        return await self._forget(found.owner, [one.id for one in gone])

    async def forget_source(
        self, user_id: str, session_id: str, *, seqs: Collection[int] | None = None
    ) -> tuple[str, ...]:
        """Forget what was remembered from a session, or from some of its entries, and from nothing else.

        Of a memory that has other sources too, that source is taken away; its trust stays what it was.
        The user's memories are looked at, the agents' and the app's: all of them, so this costs what they have.

        Args:
            user_id: whose session it is.
            session_id: which.
            seqs: only what comes from these entries; None: from any.

        Returns:
            The ids of those that are gone.
        """
        check_text(user_id, "user_id")
        check_text(session_id, "session_id")
        seqs = None if seqs is None else list_of(seqs, int, "seqs")
        owners = [Owner("user", user_id), *await self._agents(), Owner("app")]
        source, only = (user_id, session_id), None if seqs is None else set(seqs)
        return tuple([one for owner in owners for one in await self._forget_source(owner, source, only)])

    async def _agents(self) -> list[Owner]:
        """The agents for whom something was ever remembered; they come first among all owners."""
        found: list[Owner] = []
        async for owner, _ in iterate_owners(self.store):
            if owner.kind != "agent":
                break
            found.append(owner)
        return found

    async def _forget_source(self, owner: Owner, source: tuple[str, str], seqs: set[int] | None) -> tuple[str, ...]:
        async with self._alone(owner):
            for _ in range(TRIES):
                version, left, lost = await self._from_source(owner, source, seqs)
                try:
                    await self._written(owner, version, left, lost)
                except StaleMemories as exc:
                    stale = exc
                    continue
                if lost:
                    self._recaller.local.forget(owner)
                if left or lost:
                    await self._changed(owner)
                return tuple(lost)
            raise stale

    async def _from_source(
        self, owner: Owner, source: tuple[str, str], seqs: set[int] | None
    ) -> tuple[int, list[Memory], list[str]]:
        """The version of an owner, its memories that come from a source and others, without it, and ids of those from it alone."""
        left, lost = list[Memory](), list[str]()
        first = page = await self.store.memories(owner, limit=PAGE)
        while True:
            for one in page.memories:
                sources = without(one.sources, source, seqs)
                if sources and sources != one.sources:
                    left.append(msgspec.structs.replace(one, sources=sources))
                elif sources != one.sources:
                    lost.append(one.id)
            if not page.has_more:
                break
            page = await self.store.memories(owner, after=page.memories[-1].number, limit=PAGE)
        also = {one.id for one in await proposals(self.store, owner, naming=lost)} if lost else set[str]()
        return first.version, [one for one in left if one.id not in also], list(dict.fromkeys((*lost, *sorted(also))))

    async def _written(self, owner: Owner, version: int, put: Sequence[Memory], lost: Sequence[str]) -> None:
        """Put and forget any number of memories, those first that are forgotten. Raises `StaleMemories`."""
        most = MEMORIES_AT_ONCE
        deltas = [MemoryDelta(forget=tuple(lost[start : start + most])) for start in range(0, len(lost), most)]
        deltas += [MemoryDelta(put=tuple(put[start : start + most])) for start in range(0, len(put), most)]
        for delta in deltas:
            version = (await self.store.change_memories(owner, delta, timestamp=self.clock(), expect=version)).version

    async def forgotten_owner(self, owner: Owner) -> None:
        """What is to be done where all memories of an owner were dropped: nothing of them is looked up any more."""
        self._recaller.local.forget(owner)
        await self._tell(owner)

    async def _forget(self, owner: Owner, ids: Sequence[str]) -> tuple[str, ...]:
        for start in range(0, len(ids), MEMORIES_AT_ONCE):
            delta = MemoryDelta(forget=tuple(ids[start : start + MEMORIES_AT_ONCE]))
            await self.store.change_memories(owner, delta, timestamp=self.clock())
        if ids:
            self._recaller.local.forget(owner)
            await self._changed(owner)
        return tuple(ids)

    async def _with_history(self, found: Memory) -> list[Memory]:
        """A memory, all those in whose place it stands, whatever they stood in place of, and merges with them that are proposed."""
        known, ask = {found.id: found}, list(found.supersedes)
        while ask:
            some, ask = ask[:PAGE], ask[PAGE:]
            read = await self.store.memories(found.owner, ids=some, limit=len(some))
            for one in read.memories:
                if one.id not in known and one.status == "superseded":
                    known[one.id] = one
                    ask += [other for other in one.supersedes if other not in known]
        return [*known.values(), *await proposals(self.store, found.owner, naming=known)]

    # -- behind every change -------------------------------------------------

    def _alone(self, owner: Owner) -> asyncio.Lock:
        """One change of an owner's memories at a time in this process: they would only have to be decided anew."""
        return self._changing.setdefault(owner, asyncio.Lock())

    async def _changed(self, owner: Owner) -> None:
        """Have the index take in what has changed, and tell those who want to know."""
        service = self._index()
        if service is not None:
            try:
                await service.take_memories(owner)
            except HoldfastError as exc:  # the next lookup tries again, and reads every hit from the store
                _log.warning("the index has not taken memories in yet: %s", exc.code)
        await self._tell(owner)

    async def _tell(self, owner: Owner) -> None:
        for told in self.on_changed:
            try:
                await told(owner)
            except Exception as exc:  # noqa: BLE001 - what is done already must not seem to have failed
                _log.error("what follows a change of memories failed", exc_info=exc)


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
                decision = decide_merge(new, known, now)
                if not decision.put:
                    return Remembered(decision.memory, decision.outcome, decision.others)
                delta = MemoryDelta(put=decision.put)
                try:
                    stored = await self.store.change_memories(new.owner, delta, timestamp=now, expect=version)
                except StaleMemories as exc:
                    stale = exc
                    continue
                await self._changed(new.owner)
                return _make_remembered(decision, stored)
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
            if again := await find_rejected(self.store, owner, words[0]):
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

        A merge that a model proposed takes the place of those that it names when it is accepted; see `holdfast.consolidation.proposals`.

        Raises:
            MemoryNotFound: there is none of that id, or it is another owner's.
            InvalidRequest: it is not held for review, that is no decision, or what it merges is not as it was.
        """
        if decision not in DECISIONS:
            raise InvalidRequest(f"decision must be accept or reject, not {decision!r:.80}", param="decision")
        merges = (await self.get(memory_id, owners=owners)).merges
        memory, *_ = await self._change(
            memory_id, lambda read, now: plan_review(read[0], read[1:], decision, now), owners=owners, beside=merges
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
            content=sweep.clean_text(memory.content, "content", sent=sent),
            tags=tuple(sweep.clean_text(tag, "tags", sent=sent)[:MEMORY_TAG_CHARS] for tag in memory.tags),
            metadata=sweep.clean_value(memory.metadata, "metadata", sent=sent),
        )
        sweep.raise_if_blocked()
        self._guard.record(sweep.findings, "")
        return made


def _make_remembered(decision: Decision, stored: OwnedMemories) -> Remembered:
    return Remembered(_stored(decision.memory, stored), decision.outcome, decision.others)


def _stored(memory: Memory, stored: OwnedMemories) -> Memory:
    return next((one for one in stored.memories if one.id == memory.id), memory)
