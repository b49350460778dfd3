"""Standing facts: what the user said earlier that still holds, in the user's own words, before the digest. Made without a model. Pure.

As messages of the user leave the verbatim part of a prompt, their statements (`holdfast.context.statements`) become candidates. Those that
promise the most for their tokens are sent, each verbatim, in the order of the log. The block changes only when more has left, and a step costs
what has left and the candidates, never what the session holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final, Literal

import msgspec

from holdfast.context.corrections import find_corrections
from holdfast.context.digest.page import count_piece
from holdfast.context.escaping import END, escape_inline, tag
from holdfast.context.statements import Position, Statement, statements_of
from holdfast.context.units import Unit
from holdfast.context.window import Compaction, Room, Window
from holdfast.domain.fact_choices import Choice, choices_of
from holdfast.domain.messages import Message
from holdfast.limits import FACT_DROPS, FACT_PINS

HEADER: Final = "[Earlier statements of the user{tag}; the system prompt and newer messages take precedence]"
SHARE: Final = 0.25
MOST: Final = 2_000
"""The part of the room that the block may take, and its tokens, at most."""
LEAST_ROOM: Final = 768
"""Tokens of a room below which there is no block: its heading would take half of it, and the digest has what people said."""
CANDIDATES: Final = 500
"""Most statements that are remembered; the least promising leave first."""
_KEPT: Final[Mapping[Choice | None, int]] = {None: CANDIDATES, "pinned": FACT_PINS, "dropped": FACT_DROPS}
LEAST: Final = math.log(0.03 / 0.97)
"""Log odds of being worth keeping below which a statement is not sent, however much room there is: of 3 in 100."""
POWER: Final = 0.6
"""How strongly cost counts against promise."""
LINE_TOKENS, LEAST_LINE = 3, 8
"""Tokens of a line besides its statement, and those that the shortest one takes."""
EARLIER: Final = " (earlier: {text})"
"""How a statement follows the one that corrects it: never alone."""


_UNFINISHED: Final = re.compile(r"[\w)]\Z")
"""Ends a line of a list, rather than a sentence."""


class Candidates(msgspec.Struct, array_like=True):
    """Every statement that may still be sent."""

    statements: list[Statement]
    chosen: list[Position]
    """Those in the block."""
    corrected: list[Position] = []
    """Those that a later one corrects."""


class Fact(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A statement of the user, and whether the prompt has it."""

    id: str
    """`message.sentence`, within its session."""
    seq: int
    """Of its message."""
    text: str
    at: int
    """When its message was written, milliseconds since the epoch."""
    source: Literal["block", "message"] | None
    """Where the prompt has it: in the block of standing facts, or in its message, which is still sent; None: in neither."""
    pinned: bool
    dropped: bool
    corrected_by: str | None
    """Id of the later statement that corrects it."""

    @property
    def in_prompt(self) -> bool:
        """True if the prompt has it, in the block or in its message."""
        return self.source is not None


_position = attrgetter("seq", "place")
"""`Statement.position`, at a fifth of its price: a step asks for it thousands of times."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Candidates)


@lru_cache(maxsize=8)
def decode_candidates(saved: bytes) -> Candidates:
    """Return the candidates as they were saved, not to be changed. A step asks for the same ones several times."""
    return _decoder.decode(saved)


def limit_of(room: int) -> int:
    """Return the most tokens that the block may take of a room of so many."""
    return min(MOST, int(SHARE * room)) if room >= LEAST_ROOM else 0


def reserve_for_facts(window: Window) -> int:
    """Return about how many tokens the block will take after a step, whatever leaves in it."""
    limit = limit_of(window.room.tokens)
    if not limit:
        return 0
    costs: dict[Position, float] = {}
    total, overhead = 0.0, 2 * len(HEADER) // 5
    for one in chain(decode_candidates(window.candidates).statements, _stated_in(window.units)):
        if _is_worth_it(one) and (position := _position(one)) not in costs:
            costs[position] = one.cost
            total += one.cost
            if total + overhead > limit:
                return limit
    return int(total + overhead) if costs else 0


def lay_facts(window: Window, room: int) -> Window:
    """Return the window with the statements of what has left in its block; the same one if nothing changes.

    Args:
        window: what has left is in `left`.
        room: tokens that the block may take, besides its own limit.
    """
    limit = max(0, min(limit_of(window.room.tokens), room))
    known = decode_candidates(window.candidates)
    new = [*_stated_in(window.left)]
    if not new and (window.facts is None or window.facts.tokens <= limit):
        return window
    merged = {_position(one): one for one in (*known.statements, *new)}
    statements = sorted(_most_promising(merged.values()), key=_position)
    task = [*_stated_in(window.head)]
    corrected = find_corrections(sorted((*task, *statements), key=_position))
    first = {corrected[one.position].position for one in task if one.position in corrected}
    block, chosen = _compose(statements, corrected, first, limit, window.room)
    saved = _encoder.encode(Candidates(statements, [*map(_position, chosen)], sorted(corrected)))
    return window.with_facts(block, saved)


def facts_of(window: Window) -> list[Fact]:
    """Return the candidates of what has left, and the statements of the messages that are still sent, in the order of the log.

    A digest or a summary may repeat words of a statement; that does not count as being in the prompt.
    """
    known = decode_candidates(window.candidates)
    places: dict[Position, Literal["block", "message"]] = {}
    if window.facts is not None:
        places.update(dict.fromkeys(known.chosen, "block"))
    sent = {seq: " ".join(cut.message.text.split()) for seq, cut in window.cuts.items() if not cut.whole}
    verbatim = [*_stated_in((*window.head, *window.units))]
    for one in verbatim:
        if one.seq not in sent or one.text in sent[one.seq]:
            places[one.position] = "message"
    merged = {one.position: one for one in (*known.statements, *verbatim)}
    statements = [merged[position] for position in sorted(merged)]
    corrected = find_corrections(statements)
    return [
        Fact(
            id=one.id,
            seq=one.seq,
            text=one.text,
            at=one.at,
            source=places.get(position),
            pinned=one.choice == "pinned",
            dropped=one.choice == "dropped",
            corrected_by=later.id if (later := corrected.get(position)) else None,
        )
        for one in statements
        for position in (one.position,)
    ]


def texts_stated(window: Window) -> dict[int, str]:
    """Return what the block says, by message, and what it leaves out because it was corrected or dropped: the digest need not tell it."""
    known = decode_candidates(window.candidates)
    hidden = {*known.chosen, *known.corrected}
    texts: dict[int, str] = {}
    for one in known.statements:
        if one.position in hidden or one.choice == "dropped":
            texts[one.seq] = f"{texts[one.seq]} {one.text}" if one.seq in texts else one.text
    return texts


def _stated_in(units: Iterable[Unit]) -> Iterator[Statement]:
    """Yield the statements of the user's own messages among `units`."""
    for unit in units:
        told = unit.told[0] if unit.told else None
        if unit.asks and not unit.by and not unit.refused and (told is None or not told.heading):
            entry = unit.entries[0]
            text, choices = (told or entry).message.text, choices_of(entry.metadata)
            yield from statements_of(text, unit.first, at=entry.timestamp, choices=choices)


def _is_worth_it(one: Statement) -> bool:
    return one.choice == "pinned" or (one.choice is None and one.score >= LEAST)


@lru_cache(maxsize=4_096)
def _promise(score: float, cost: float) -> float:
    """Return the probability of being worth keeping for what a statement costs."""
    return float(1 / (1 + math.exp(-score)) / cost**POWER)


def _rank(one: Statement, first: Container[Position] = ()) -> tuple[float, Position]:
    """Order statements by promise for their cost, after those that are chosen by hand or `first`; of equal ones the newest is first."""
    seq, place = one.position
    by_hand = one.choice is not None or (seq, place) in first
    return -math.inf if by_hand else -_promise(one.score, one.cost), (-seq, -place)


def _most_promising(statements: Collection[Statement]) -> list[Statement]:
    """Keep `CANDIDATES` of them, and those that were chosen by hand; whatever order they come in, the same ones stay."""
    kept: list[Statement] = []
    for choice, most in _KEPT.items():
        same = [one for one in statements if one.choice == choice]
        kept += same if len(same) <= most else sorted(same, key=_rank)[:most]
    return kept


# -- the block -----------------------------------------------------------------


def _compose(
    statements: Sequence[Statement],
    corrected: Mapping[Position, Statement],
    first: Container[Position],
    limit: int,
    available: Room,
) -> tuple[Compaction | None, list[Statement]]:
    """Return the block in at most `limit` tokens, and the statements in it; None where none fits.

    Args:
        statements: the candidates, in the order of the log.
        corrected: by the position of a statement, the one that corrects it.
        first: those that correct what the prompt has anyway: they come before all others.
        limit: tokens of the block.
        available: how tokens are counted, and the session's marker.
    """
    count, marker = available.count, available.marker
    pinned = _pinned(statements, corrected, first)
    room = limit - count.message(Message(role="user", content=_text((), {}, marker)))
    chosen: dict[Position, Statement] = {}
    worthy = [one for one in statements if one.choice != "dropped" and (_is_worth_it(one) or _position(one) in pinned)]
    ranked = [(_rank(one, pinned), one) for one in worthy]
    for _, one in sorted(ranked, key=itemgetter(0)):
        if room < LEAST_LINE:
            break
        later = corrected.get(one.position)
        if one.cost > 3 * room or not (later is None or later.position in chosen):
            continue
        if (tokens := count_piece(count, one.text) + LINE_TOKENS) <= room:
            chosen[one.position] = one
            room -= tokens
    kept = list(chosen.values())
    while kept:
        text = _text(kept, corrected, marker)
        tokens = count.message(Message(role="user", content=text))
        if tokens <= limit:
            seqs = [one.seq for one in kept]
            return Compaction(min(seqs), max(seqs), text, tokens, kind="facts"), kept
        kept = _without_last(kept, corrected)
    return None, []


def _pinned(
    statements: Sequence[Statement], corrected: Mapping[Position, Statement], first: Container[Position]
) -> set[Position]:
    """Return the pinned statements, those that come first, and what corrects one of them: none appears without its correction."""
    pinned: set[Position] = set()
    for one in statements:  # in the order of the log: a correction comes after what it corrects
        if one.choice == "pinned" or one.position in first or one.position in pinned:
            pinned.add(one.position)
            if (later := corrected.get(one.position)) is not None:
                pinned.add(later.position)
    return pinned


def _without_last(kept: list[Statement], corrected: Mapping[Position, Statement]) -> list[Statement]:
    """Leave out the least promising statement, and what stands only because it does."""
    gone = {kept[-1].position}
    return [one for one in kept[:-1] if (later := corrected.get(one.position)) is None or later.position not in gone]


def _text(kept: Iterable[Statement], corrected: Mapping[Position, Statement], marker: str) -> str:
    """Write statements in the order of the log, a line a message; one that was corrected stands after its correction."""
    kept = sorted(kept, key=_position)
    earlier: dict[Position, list[str]] = {}
    for one in kept:
        if (later := corrected.get(one.position)) is not None:
            earlier.setdefault(later.position, []).append(one.text)
    lines: dict[int, str] = {}
    places: dict[int, int] = {}
    for one in kept:
        if one.position not in corrected:
            between = " … "
            if places.get(one.seq) == one.place - 1:
                between = " / " if _UNFINISHED.search(lines[one.seq]) and one.text[0].isupper() else " "
            before = f"{lines[one.seq]}{between}" if one.seq in lines else ""
            after = "".join(EARLIER.format(text=text) for text in earlier.get(one.position, ()))
            lines[one.seq], places[one.seq] = f"{before}{one.text}{after}", one.place
    written = [f"- {escape_inline(line, marker)}" for line in lines.values()]
    return "\n".join((HEADER.format(tag=tag(marker)), *written, END))
