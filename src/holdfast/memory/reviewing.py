"""Reviews: what becomes of a memory that is held, or of a merge that a model proposes, when somebody decides."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.memory import Memory, Owner, is_held
from holdfast.errors import InvalidRequest
from holdfast.limits import PAGE
from holdfast.memory.likeness import same
from holdfast.stores.memories import MemoryStore

Decide = Literal["accept", "reject"]
DECISIONS: Final = ("accept", "reject")
AT_ONCE: Final = 200
"""Rejected memories that are compared at once with what is said again, in a thread."""


def reviewed(old: Memory, beside: Sequence[Memory], decision: Decide, now: int) -> tuple[Memory, ...]:
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


async def rejected(store: MemoryStore, owner: Owner, content: str) -> list[Memory]:
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
        if one is None or one.status != "active" or is_held(one):
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
