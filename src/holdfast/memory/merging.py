"""What becomes of a new memory beside those that are there: it stands by itself, is one of them again, or takes a place. Pure.

Nothing here raises trust. A memory's words are those of its own sources, and it is trusted as the least of them is: what comes
from a less trusted place adds nothing to what is there, and what comes from a more trusted one stands by itself, with its own
sources alone, in place of the other.

Nor does anybody but the user take something away from a review: what is held stays held, and what was rejected stays away, whatever
the model, a program or a tool says again; neither takes the place of what is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.domain.memory import Memory, MemorySource, origin_of
from holdfast.limits import MEMORY_BYTES, MEMORY_SOURCES, MEMORY_TAGS
from holdfast.memory.likeness import ALIKE, likeness, replaces, same

Outcome = Literal["new", "merged", "superseded"]
"""`merged`: it was there, and is the one that is returned. `superseded`: it stands in place of others, whose ids it names."""
OTHERS: Final = 5
"""Memories that are alike which are told."""


class Decision(NamedTuple):
    """What becomes of a new memory."""

    outcome: Outcome
    memory: Memory
    """The one that says it from now on."""
    put: tuple[Memory, ...] = ()
    """What is to be written."""
    others: tuple[Memory, ...] = ()
    """Those that are alike, the likest first, and stay as they are."""


def decided(new: Memory, known: Sequence[Memory], now: int) -> Decision:
    """What becomes of `new`.

    Args:
        new: as it would stand by itself. What it names in `supersedes` it takes the place of, whatever that says, if it `may_replace` it.
        known: the owner's memories that may be like it, those that it names among them.
        now: milliseconds since the epoch.
    """
    named = [one for one in known if one.id in new.supersedes and may_replace(new, one)]
    new = msgspec.structs.replace(new, supersedes=tuple(one.id for one in named))
    twins = [one for one in known if _twin(new, one, now)]
    if named and not any(_waits(new, one) for one in twins):
        return _in_place_of(new, named, known, now)
    kept = max((one for one in twins if _keeps(new, one)), key=_best, default=None)
    weaker = [one for one in twins if one is not kept and _gives_way(new, one)]
    if kept is not None:
        held = (
            new.status == "quarantined" and kept.status == "active"
        )  # that somebody has accepted: its tags nobody has
        stays = held or kept.status == "rejected" or kept.trust > new.trust
        put = () if stays else (merged(kept, new, now),)
        memory = put[0] if put else kept
        gone = tuple(_superseded(one, memory, now) for one in weaker if memory.status == "active")
        return Decision("merged", memory, (*put, *gone), _alike(new, known, [kept, *weaker]))
    old = [*weaker, *(one for one in known if one not in weaker and _older_value(new, one))]
    if old:
        return _in_place_of(new, old, known, now)
    return Decision("new", new, (new,), _alike(new, known, ()))


def merged(kept: Memory, new: Memory, now: int) -> Memory:
    """A memory that was said again: its words stay, tags and sources are united, the greater importance counts.

    It is trusted as the least of both, and of another kind than `semantic` where either said so.
    """
    sources = united(kept.sources, new.sources)
    made = msgspec.structs.replace(
        kept,
        tags=tuple(dict.fromkeys((*kept.tags, *new.tags)))[:MEMORY_TAGS],
        importance=max(kept.importance, new.importance),
        type=new.type if kept.type == "semantic" else kept.type,
        sources=sources,
        origin=origin_of((kept.origin, new.origin)),
        trust=min(kept.trust, new.trust),
        agent=kept.agent or new.agent,
        metadata={**kept.metadata, **new.metadata},
        updated_at=max(now, kept.updated_at),
    )
    if len(msgspec.json.encode(made)) <= MEMORY_BYTES:
        return made
    return msgspec.structs.replace(made, metadata=kept.metadata, sources=kept.sources, tags=kept.tags)


def _in_place_of(new: Memory, old: Sequence[Memory], known: Sequence[Memory], now: int) -> Decision:
    ids = dict.fromkeys((*new.supersedes, *(one.id for one in old)))
    made = msgspec.structs.replace(new, supersedes=tuple(ids))
    gone = tuple(_superseded(one, made, now) for one in old)
    return Decision("superseded", made, (made, *gone), _alike(new, known, old))


def _superseded(old: Memory, by: Memory, now: int) -> Memory:
    return msgspec.structs.replace(old, status="superseded", superseded_by=by.id, updated_at=max(now, old.updated_at))


def may_replace(new: Memory, one: Memory) -> bool:
    """Whether a memory may stand in place of another one that is named to it: nobody but the user undoes a review, or waives one.

    Args:
        new: the one that would stand there.
        one: the one that is there.
    """
    if one.status == "rejected":
        return False  # it would be forgotten that it was
    if new.origin == "user":
        return new.status == "active"
    held = new.status == "quarantined", one.status == "quarantined"
    return held in {(True, True), (False, False)} and one.trust <= new.trust


def _twin(new: Memory, one: Memory, now: int) -> bool:
    """Whether `one` says the same of the same time; of what was rejected no time counts."""
    if one.status == "superseded" or one.is_proposal:
        return False
    timed = new.valid_from is not None or new.valid_until is not None
    times = (new.valid_from, new.valid_until) == (one.valid_from, one.valid_until)
    if one.status != "rejected" and not (one.holds(now) and (times or not timed)):
        return False
    return same(new.content, one.content)


def _keeps(new: Memory, one: Memory) -> bool:
    """Whether a twin stays: it is trusted as much, or it waits for a review, or did, or the new one does."""
    if _waits(new, one):
        return True
    if one.status == "rejected":
        return False
    return one.trust >= new.trust or (one.status == "active" and new.status == "quarantined")


def _waits(new: Memory, one: Memory) -> bool:
    """Whether a twin was for a review to say, or is, and it is not the user who says it again."""
    return one.status in ("rejected", "quarantined") and new.origin != "user"


def _gives_way(new: Memory, one: Memory) -> bool:
    if one.status == "rejected" or _waits(new, one):
        return False
    return one.trust <= new.trust and new.status == "active"


def _best(one: Memory) -> tuple[bool, bool, float, int]:
    return one.status == "active", one.status == "rejected", one.trust, -one.number


def _older_value(new: Memory, one: Memory) -> bool:
    """Whether `one` gives an older value for what `new` gives a value for; see `holdfast.memory.likeness.replaces`."""
    if new.status != "active" or one.status != "active" or one.trust > new.trust or "episodic" in (new.type, one.type):
        return False
    if any(time is not None for time in (new.valid_from, new.valid_until, one.valid_from, one.valid_until)):
        return False
    return replaces(new.content, one.content, personal=new.owner.kind == "user")


def _alike(new: Memory, known: Sequence[Memory], without: Sequence[Memory]) -> tuple[Memory, ...]:
    told = (one for one in known if one.is_recalled)
    left = (one for one in told if one not in without)
    rated = [(likeness(new.content, one.content), one) for one in left]
    near = sorted((found for found in rated if found[0] >= ALIKE), key=lambda found: (-found[0], -found[1].number))
    return tuple(one for _, one in near[:OTHERS])


def united(sources: Sequence[MemorySource], others: Iterable[MemorySource]) -> tuple[MemorySource, ...]:
    """Sources of both; those of one session and origin as one."""
    found = {(one.session_id, one.user_id, one.identity, one.origin): one for one in sources}
    for one in others:
        key = (one.session_id, one.user_id, one.identity, one.origin)
        there = found.get(key)
        seqs = one.seqs if there is None else tuple(sorted({*there.seqs, *one.seqs}))
        found[key] = msgspec.structs.replace(one, seqs=seqs)
    return tuple(found.values())[-MEMORY_SOURCES:]
