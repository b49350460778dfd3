"""A step: the stored outcome of an eviction. `advance` makes the next one from the log and the step before. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from benchmarks.core.analysis import Analysis
from benchmarks.core.facts import Facts, add_statements, compute_facts_room, write_facts
from holdfast.context.cut import compute_cut_floor, cut, make_stub
from holdfast.context.digest.block import FIRM, NAMING, YIELDING, compute_reserve
from holdfast.context.digest.facts import list_argument_names
from holdfast.context.digest.page import SentContext
from holdfast.context.digest.pool import EMPTY, decode_pool, fold, fold_in, render_pool
from holdfast.context.units import Unit, list_messages
from holdfast.context.values import split_pieces
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.tokens import STORED

TASK_SHARE, AGENT_TASK_SHARE, LEAST_TASK = 0.08, 0.25, 64
LEAST_FACTS_ROOM: Final = 512
"""The smallest budget with facts; twice as much after tool calls."""
AGENT_FACTS_SHARE, AGENT_FULL = 0.3, 4_096
"""After tool calls, facts may take this share of their usual room, because a digest has the rest; less below a budget of `AGENT_FULL`."""
RECENT: Final = 0.5
"""The newest units keep at least this share of the target, however large the digest is."""
CLIPPED, VERBATIM_SHARE = 96, 0.5
"""Older than the newest `VERBATIM_SHARE` of the tail, replies are cut to `CLIPPED` tokens, so that the tail holds more of the user's words."""


class TokenWindow(msgspec.Struct, frozen=True, tag="token_window"):
    """The task and the newest units that fit."""

    trigger: float = 1.0
    target: float = 0.33
    condenses = facts = recalls = clips = False


class Digest(msgspec.Struct, frozen=True, tag="digest"):
    """The newest units; what was evicted stays as facts and, after tool calls, as a digest, and is recalled when it is needed."""

    trigger: float = 0.97
    target: float = 0.33
    condenses = facts = recalls = clips = True


class Salience(msgspec.Struct, frozen=True, tag="salience"):
    """The units that say most for their tokens."""

    trigger: float = 0.85
    target: float = 0.5
    condenses = clips = False
    facts = recalls = True


Strategy = TokenWindow | Digest | Salience


class Block(msgspec.Struct, frozen=True, gc=False):
    """A text that stands for evicted messages."""

    text: str
    tokens: int


class Step(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What a view decided at its last eviction."""

    number: int = 0
    frontier: int = 0
    """Entries from this one on are in the prompt."""
    kept: tuple[int, ...] = ()
    """First entries of the units before the frontier that are in the prompt too."""
    cuts: dict[int, Message] = {}
    """Shortened messages, by entry."""
    saved: int = 0
    """Tokens that the cuts of entries from the frontier on save."""
    facts: Facts = Facts()
    pool: bytes = EMPTY
    agentic: bool = False
    """True if an evicted unit had tool calls, so that a digest is written."""
    blocks: tuple[Block, ...] = ()
    head: int = 0
    """Tokens of kept units and blocks."""


class Room(msgspec.Struct, frozen=True):
    """The budget of the conversation and its shares."""

    budget: int
    strategy: Strategy
    marker: str = ""

    @property
    def trigger(self) -> int:
        """Tokens above which units are evicted."""
        return int(self.budget * self.strategy.trigger)


def advance(
    step: Step, units: Sequence[Unit], room: Room, *, current: int, analyses: Sequence[Analysis], task: Unit | None
) -> Step:
    """Return the next step.

    Args:
        step: the step before.
        units: the units from `step.frontier` on, as the agent sees them.
        current: the unit of the current message. It and the newest unit always stay.
        analyses: the analyses of all entries.
        task: the unit of the user's first message; None if it is among `units`, or if there is none.
        room: the budget and the strategy.
    """
    how, budget, usual = room.strategy, room.budget, compute_reserve(room.budget)
    agentic = step.agentic or any(len(unit.entries) > 1 for unit in units)
    reserve = usual if how.condenses and agentic else 0
    states = how.facts and budget >= LEAST_FACTS_ROOM * (2 if agentic else 1)
    share = AGENT_FACTS_SHARE * min(1.0, budget / AGENT_FULL) if agentic else 1.0
    facts_room = int(compute_facts_room(budget) * share) if states else 0
    goal = max(int(how.target * budget) - reserve - facts_room // 2, int(how.target * (budget - reserve) * RECENT))
    must = {current, units[-1].first}
    clips = how.clips and not agentic
    stay = (
        choose_salient(units, must, analyses, goal)
        if isinstance(how, Salience)
        else choose_newest(units, must, goal, clips=clips)
    )
    first = next(at for at, unit in enumerate(units) if all(one.first in stay for one in units[at:]))
    left = [unit for unit in units[:first] if unit.first not in stay]
    kept = [unit for unit in units[:first] if unit.first in stay]
    first_task = task if task is not None else units[0] if units[0].asks and not step.frontier else None
    if first_task is not None and first_task not in units[first:]:
        kept = [first_task, *(unit for unit in kept if unit is not first_task)]
    facts = step.facts
    if facts_room and left:
        new = [one for unit in left for entry in unit.entries for one in analyses[entry.seq].statements]
        facts = add_statements(facts, new, {unit.first for unit in kept}, facts_room)
    pool = fold(step.pool, left, room=reserve) if reserve and left else step.pool
    made = Step(
        number=step.number + 1,
        frontier=units[first].first,
        kept=tuple(unit.first for unit in kept),
        facts=facts,
        pool=pool,
        agentic=agentic,
    )
    cuts = {
        entry.seq: short for unit in kept for entry, short in _shorten_task(unit, first_task, room, agentic=agentic)
    }
    if clips:
        cuts |= _clip_replies(units[first:], goal, room.marker)
    return _fit(made, (kept, units[first:]), cuts, current=current, reserve=reserve, room=room)


def choose_newest(units: Sequence[Unit], must: Collection[int], goal: int, *, clips: bool = False) -> set[int]:
    """Return the newest units that fit in `goal` tokens, and those that must stay.

    Args:
        units: the units.
        must: the units that must stay.
        goal: maximum tokens.
        clips: True if older replies will be clipped.
    """
    stay, size = set(must), sum(count_unit(unit) for unit in units if unit.first in must)
    for unit in reversed(units):
        if unit.first not in stay:
            tokens = count_unit(unit)
            size += min(tokens, CLIPPED) if clips and size > goal * VERBATIM_SHARE and not unit.asks else tokens
            if size > goal:
                break
            stay.add(unit.first)
    return stay


def _clip_replies(tail: Sequence[Unit], goal: int, marker: str) -> dict[int, Message]:
    """Return the shortened replies of the older part of the tail, by entry."""
    clipped: dict[int, Message] = {}
    size = 0
    for unit in reversed(tail):
        entry = unit.entries[0]
        if size > goal * VERBATIM_SHARE and not unit.asks and not unit.instructs and count_unit(unit) > CLIPPED:
            clipped[entry.seq] = cut(entry.message, CLIPPED, seq=entry.seq, count=STORED, marker=marker)
        size += count_unit(unit)
    return clipped


def choose_salient(units: Sequence[Unit], must: Collection[int], analyses: Sequence[Analysis], goal: int) -> set[int]:
    """Return the units with the best statements for their tokens that fit in `goal` tokens, and those that must stay."""

    def rate(at: int) -> float:
        said = max(
            (one.score for one in analyses[units[at].first].statements if one.speaker != "assistant"), default=-5.0
        )
        return float((said + 5 + 4 * 0.5 ** ((len(units) - 1 - at) / 4)) / count_unit(units[at]) ** 0.5)

    stay, size = set(must), sum(count_unit(unit) for unit in units if unit.first in must)
    for at in sorted(range(len(units)), key=rate, reverse=True):
        if units[at].first not in stay and size + count_unit(units[at]) <= goal:
            size += count_unit(units[at])
            stay.add(units[at].first)
    return stay


def count_unit(unit: Unit) -> int:
    """Return the tokens of a unit."""
    return unit.entries[-1].total - unit.entries[0].total + unit.entries[0].tokens


def _shorten_task(unit: Unit, task: Unit | None, room: Room, *, agentic: bool) -> Iterable[tuple[Entry, Message]]:
    entry = unit.entries[0]
    limit = max(LEAST_TASK, int((AGENT_TASK_SHARE if agentic else TASK_SHARE) * room.budget))
    if unit is task and entry.tokens > limit:
        yield entry, make_stub(entry.message, limit, seq=entry.seq, count=STORED, marker=room.marker)


def _fit(
    step: Step,
    placed: tuple[Sequence[Unit], Sequence[Unit]],
    cuts: dict[int, Message],
    *,
    current: int,
    reserve: int,
    room: Room,
) -> Step:
    """Return the step with its blocks, and with the messages cut that do not fit: results before words, oldest first."""
    kept, tail = placed
    facts = write_facts(step.facts, room.marker)
    blocks = [_make_block(facts)] if facts else []
    limit = room.budget if step.agentic else room.trigger
    stated = sum(one.tokens for one in blocks)
    allowed, most = (limit - stated - int(reserve * share) for share in (FIRM, YIELDING))
    entries = [entry for unit in (*kept, *tail) for entry in unit.entries]
    size = sum(_count(entry, cuts) for entry in entries)
    for which in ("tool", "assistant", "user"):
        for entry in entries:
            if which == "user" and tail[-1].asks:  # let the digest shrink before the user's message is cut
                allowed = most
            if size > allowed and entry.message.role == which and entry.seq not in cuts:
                floor = compute_cut_floor(room.budget) * (2 if entry.seq == current else 1)
                least = max(floor, entry.tokens - (size - allowed))
                if least < entry.tokens:
                    cuts[entry.seq] = cut(entry.message, least, seq=entry.seq, count=STORED, marker=room.marker)
                    size -= entry.tokens - _count(entry, cuts)
    if reserve:
        tokens = max(0, min(reserve, limit - size - stated)) - 4
        pool, units = decode_pool(step.pool), (*kept, *tail)
        short = [unit for unit in units if any(entry.seq in cuts for entry in unit.entries)]
        if short:
            fold_in(pool, short, room=reserve)
        last = max(0, step.frontier - 1)
        shown = _collect(units, cuts, room.marker)
        text = render_pool(pool, tokens, first=0, last=last, count=STORED, shown=shown, marker=room.marker)
        blocks += [_make_block(text)] if text else []
    saved = sum(entry.tokens - _count(entry, cuts) for unit in tail for entry in unit.entries)
    head = sum(_count(entry, cuts) for unit in kept for entry in unit.entries) + sum(one.tokens for one in blocks)
    return msgspec.structs.replace(step, cuts=cuts, saved=saved, blocks=tuple(blocks), head=head)


def _make_block(text: str) -> Block:
    return Block(text, STORED.message(Message(role="user", content=text)))


def _count(entry: Entry, cuts: dict[int, Message]) -> int:
    return STORED.message(cuts[entry.seq]) if entry.seq in cuts else entry.tokens


def _collect(units: Sequence[Unit], cuts: dict[int, Message], marker: str) -> SentContext:
    """Return the words that are sent with the digest, so that it does not repeat them."""
    shown = SentContext()
    for unit in units:
        parts = []
        for seq, message in list_messages(unit, marker):
            sent = message if seq is None else cuts.get(seq, message)
            text = "\n".join((sent.text, *(call.arguments for call in sent.tool_calls)))
            shown.add(unit.first, text, said=sent.role != "tool")
            parts.append(text)
            if unit.asks:
                shown.naming |= split_pieces(sent.text[:NAMING])
            for call in sent.tool_calls:
                shown.asked.update(list_argument_names(call.arguments))
        if any(entry.seq in cuts for entry in unit.entries):
            shown.parts[unit.first] = "\n".join(parts)
    return shown
