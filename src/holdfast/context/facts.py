"""Standing facts: a block of earlier statements of the user that are still valid, in the user's own words. No model is used.

When messages of the user are evicted from a prompt, their statements (`holdfast.context.statements`) become candidates for the block. One
rule ranks them: the probability that a statement is worth keeping, for its tokens. Instructions for later replies get a tier of their own. A
statement that was corrected never appears without its correction. The block changes only when more messages are evicted. The time that this
takes depends on the evicted messages and the candidates, never on the length of the session.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, Final, Literal, cast

import msgspec

from holdfast.context.corrections import Corrections, find_corrections, read_words
from holdfast.context.escaping import END, escape_inline, format_tag
from holdfast.context.statements import Position, Statement, find_statements
from holdfast.context.units import Unit
from holdfast.context.values import estimate_tokens
from holdfast.context.window import Block, Compaction, DeferredBlock, Room, Window
from holdfast.domain.fact_choices import Choice, read_choices
from holdfast.domain.messages import Message
from holdfast.domain.objects import Count, Time
from holdfast.limits import FACT_DROPS, FACT_PINS

HEADER: Final = "[Earlier statements of the user{tag}; the system prompt and newer messages take precedence]"
INSTRUCTIONS, OTHERS = "Instructions for later replies:", "Other statements:"
"""Lines above the two parts of the block, which appear only if there are instructions."""
EARLIER: Final = " (earlier: {text})"
"""Format of a corrected statement. It follows its correction and never appears alone."""
SHARES: Final = ((1_024, 0.52), (2_048, 0.42), (4_096, 0.4), (8_192, 0.28), (16_384, 0.18), (65_536, 0.06))
"""Largest fraction of a window's token limit that the block may take, by token limit. Between two limits it is interpolated."""
MOST: Final = 4_000
"""Maximum tokens of the block in a window with a higher limit than the last of `SHARES`."""
AGENT_SHARE: Final = 0.65
"""Fraction of these tokens that the block may take in a window with tool calls, because a digest keeps their values."""
LEAST_ROOM: Final = 768
"""Smallest token limit of a window with a block. Below it, the heading would take half of the block; the digest quotes users anyway."""
INSTRUCTION_SHARE: Final = 1 / 3
"""Largest fraction of the block that instructions take before other statements."""
CANDIDATES: Final = 500
"""Maximum number of candidates that are kept. Those that are least worth their tokens are removed first."""
_MOST_CANDIDATES: Final[Mapping[Choice | None, int]] = {None: CANDIDATES, "pinned": FACT_PINS, "dropped": FACT_DROPS}
LEAST: Final = math.log(0.03 / 0.97)
"""Minimum log odds that a statement is worth keeping (a probability of 3 %). Less probable statements are left out even if they fit."""
REPETITION_PENALTY, REPETITION_COUNT = 1.5, 5
"""Log odds that a statement loses if at least `REPETITION_COUNT` candidates have each of its words, as in twenty requests of one form. It
loses this in proportion to the share of such words."""
POWER: Final = 0.6
"""Candidates are ranked by the probability that they are worth keeping, divided by their tokens raised to this power."""
LINE_TOKENS, LEAST_LINE = 2, 8
"""`LINE_TOKENS` is the number of tokens of a line in addition to its statements. `LEAST_LINE` is the number of tokens of the shortest
line."""
_UNFINISHED: Final = re.compile(r"[\w)]\Z")
"""Matches a text that ends like a list item, without a full stop."""
_RELATIVE: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|(?:this|next|last) (?:week|month|year|weekend|monday|tuesday|wednesday|thursday|friday|saturday|sunday)|heute|morgen|gestern|(?:nächste|letzte|diese)[nrs]? (?:woche|monat|jahr)"
    r"|aujourd['’]hui|demain|hier|(?:semaine|mois) prochaine?|hoy|mañana|ayer|hoje|amanhã|ontem)\b|今天|明天|昨天|下周|下个月|今日|明日|昨日",  # noqa: RUF001 - the apostrophe
    re.IGNORECASE,
)
"""Matches a time that only the date of the message makes clear."""


class Candidates(msgspec.Struct, array_like=True):
    """The statements of evicted messages, in their saved form."""

    statements: list[Statement]
    chosen: list[Position]
    """Positions of the statements that are in the block."""
    corrected: list[Position] = []
    """Positions of the statements that a later statement corrects."""


class FactFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a statement of the user that do not depend on a prompt."""

    id: str
    """The message's `seq`, a dot, and the number of the sentence. Unique within the session."""
    seq: Count
    """`seq` of the message that contains the statement."""
    text: str
    """The statement: one sentence, as the user wrote it."""
    at: Time
    pinned: bool
    """True if the statement is always in the block of standing facts, before all others."""
    dropped: bool
    """True if the statement never appears in the block of standing facts."""


class Fact(FactFields, frozen=True, gc=False, kw_only=True):
    """A statement of the user, and whether the prompt contains it."""

    source: Literal["block", "message"] | None
    """The part of the prompt that contains the statement: `block` is the block of standing facts, `message` is the statement's own message,
    which is still sent. None if the prompt does not contain the statement."""
    corrected_by: str | None
    """Id of the later statement that corrects this one; None if there is none."""

    @property
    def in_prompt(self) -> bool:
        """True if the prompt contains the statement."""
        return self.source is not None


_position = attrgetter("seq", "place")
"""Returns `Statement.position`, but five times as fast. Each eviction reads positions thousands of times."""
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Candidates)


@lru_cache(maxsize=8)
def decode_candidates(saved: bytes) -> Candidates:
    """Decode saved candidates. The caller must not modify the result, which is cached because each eviction needs it several times."""
    return _decoder.decode(saved)


def merge_statements(known: Iterable[Statement], new: Iterable[Statement]) -> list[Statement]:
    """Return the statements of both, in the order of the log. Of too many, those that are least worth their tokens are left out."""
    merged = {_position(one): one for one in (*known, *new)}
    kept: list[Statement] = []
    for choice, most in _MOST_CANDIDATES.items():
        same = [one for one in merged.values() if one.choice == choice]
        kept += same if len(same) <= most else sorted(same, key=_rank)[:most]
    return sorted(kept, key=_position)


class StandingFacts(DeferredBlock):
    """The block of the user's statements, written at the first access.

    Args:
        statements: statements of all evicted messages, in the order of the log.
        head: units that stay in the prompt although they are older than the tail. Their statements may be corrected by those in the block.
        most: maximum tokens of the block.
        room: the token counter and the session's marker.
    """

    def __init__(self, statements: Sequence[Statement], head: Sequence[Unit], *, most: int, room: Room) -> None:
        super().__init__(most=most)
        self.statements = statements
        self._head, self._room = head, room

    def save(self) -> bytes:
        """Return the encoded candidates."""
        return self._written[1]

    def write(self) -> Compaction | None:
        return self._written[0]

    @cached_property
    def _written(self) -> tuple[Compaction | None, bytes]:
        statements, task = [*self.statements], [*_iter_statements(self._head)]
        corrected = find_corrections(sorted((*task, *statements), key=_position))
        first = {corrected.sure[one.position].position for one in task if one.position in corrected.sure}
        selected = _select(statements, corrected, first, self.most - self._heading, self._room.factor)
        block, chosen = _write(selected, corrected, self.most, self._room)
        self._head = ()
        return block, _encoder.encode(
            Candidates(statements, [*map(_position, chosen)], sorted({*corrected.sure, *corrected.possible}))
        )

    @property
    def _heading(self) -> int:
        return _count_heading(cast(Hashable, self._room.count), self._room.marker)


def _measure_limit(window: Window) -> int:
    """Return the maximum tokens of the block in a window."""
    calls = any(unit.entries[0].kind == "calls" for unit in chain(window.head, window.left, window.units))
    return int(compute_limit(window.room.tokens) * (AGENT_SHARE if calls else 1.0))


def compute_limit(room: int) -> int:
    """Return the maximum tokens of the block in a window of `room` tokens without tool calls."""
    if room < LEAST_ROOM:
        return 0
    for (low, more), (high, less) in pairwise(SHARES):
        if room <= high:
            grade = max(0.0, math.log(room / low)) / math.log(high / low)
            return int(room * (more + (less - more) * grade))
    return MOST


def reserve_for_facts(window: Window) -> int:
    """Return the maximum number of tokens that the block can take after the next eviction, whichever units are evicted."""
    limit = _measure_limit(window)
    if not limit:
        return 0
    known = _get_statements(window.statements)
    positions = {_position(one) for one in known}
    coming = (one for unit in window.units for one in _find_in_unit(window, unit))
    new = (one for one in coming if _position(one) not in positions)
    return _estimate(chain(known, new), limit, window.room)


def add_facts(window: Window, room: int, *, exact: bool = False) -> Window:
    """Add the statements of newly evicted units to the window's block; return the same window if nothing changes.

    Args:
        window: a window with the evicted units in `left`.
        room: maximum tokens of the block, if this is less than the limit of `compute_limit`.
        exact: True to write the block now and count its actual tokens instead of an estimate. Set if no digest can use the difference.
    """
    limit = max(0, min(_measure_limit(window), room))
    new = [one for unit in window.left for one in _find_in_unit(window, unit)]
    for unit in window.left:
        window.analysed.pop(unit.first, None)
    if not new and window.statements.most <= limit:
        return window
    statements = merge_statements(_get_statements(window.statements), new)
    most = _estimate(statements, limit, window.room)
    block = StandingFacts(statements, window.head, most=most, room=window.room)
    if exact:
        block.most = block.compaction.tokens if block.compaction else 0
    return window.with_statements(block)


def _get_statements(block: Block) -> Sequence[Statement]:
    return block.statements if isinstance(block, StandingFacts) else decode_candidates(block.saved).statements


def _estimate(statements: Iterable[Statement], limit: int, room: Room) -> int:
    """Return the tokens of a block of all statements that are worth keeping, but at most `limit`."""
    total = 0.0
    for one in filter(_is_worth_it, statements):
        total += one.cost * room.factor + LINE_TOKENS
        if total > limit:
            return limit
    return min(limit, math.ceil(total) + _count_heading(cast(Hashable, room.count), room.marker)) if total else 0


@lru_cache(maxsize=64)
def _count_heading(count: Any, marker: str) -> int:
    text = "\n".join((HEADER.format(tag=format_tag(marker)), INSTRUCTIONS, OTHERS, END))
    tokens: int = count.message(Message(role="user", content=text))
    return tokens


def _find_in_unit(window: Window, unit: Unit) -> Sequence[Statement]:
    """Return the statements in the user's own message of a unit; empty for any other unit. The window caches them."""
    if not unit.asks:
        return ()
    entry = unit.entries[0]
    known = window.analysed.get(unit.first)
    if known is None or known[0] is not entry:
        known = window.analysed[unit.first] = (entry, tuple(_iter_statements((unit,))))
    found: tuple[Statement, ...] = known[1]
    return found


def _iter_statements(units: Iterable[Unit]) -> Iterator[Statement]:
    """Yield the statements of the user's own messages in `units`."""
    for unit in units:
        override = unit.overrides[0] if unit.overrides else None
        if unit.asks and not unit.by and not unit.refused and (override is None or not override.heading):
            entry = unit.entries[0]
            message = (override or entry).message
            yield from find_statements(
                message.text,
                unit.first,
                tokens=estimate_tokens(message.text) if message.media else (override or entry).tokens,
                at=entry.timestamp,
                speaker=message.name or "",
                choices=read_choices(entry.metadata),
            )


def collect_facts(window: Window) -> list[Fact]:
    """Return all known statements of the user, from evicted messages and from messages that are still sent, in the order of the log.

    A statement is not reported as being in the prompt if only a digest or a summary repeats its words.
    """
    known = decode_candidates(window.candidates)
    places: dict[Position, Literal["block", "message"]] = {}
    if window.facts is not None:
        places.update(dict.fromkeys(known.chosen, "block"))
    sent = {seq: " ".join(cut.message.text.split()) for seq, cut in window.cuts.items() if not cut.whole}
    verbatim = [*_iter_statements((*window.head, *window.units))]
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
            corrected_by=later.id if (later := corrected.sure.get(position)) else None,
        )
        for one in statements
        for position in (one.position,)
    ]


def map_stated_texts(window: Window) -> dict[int, str]:
    """Return, by the `seq` of the message, the texts of statements that the digest should not repeat.

    These are the statements in the block, and those that are left out because they are corrected or a caller dropped them.
    """
    known = decode_candidates(window.candidates)
    hidden = {*known.chosen, *known.corrected}
    texts: dict[int, str] = {}
    for one in known.statements:
        if one.position in hidden or one.choice == "dropped":
            texts[one.seq] = f"{texts[one.seq]} {one.text}" if one.seq in texts else one.text
    return texts


# -- choosing -------------------------------------------------------------------


def _is_worth_it(one: Statement) -> bool:
    return one.choice == "pinned" or (one.choice is None and (one.instructs or one.score >= LEAST))


@lru_cache(maxsize=4_096)
def _compute_rate(score: float, cost: float) -> float:
    """Return the probability that a statement is worth keeping, divided by a power of its tokens.

    Args:
        score: log odds that the statement is worth keeping.
        cost: estimated tokens.
    """
    return float(1 / (1 + math.exp(-score)) / max(cost, 6.0) ** POWER)


def _rank(one: Statement) -> tuple[float, Position]:
    """Return a sort key for candidates, the best first: those that a caller pinned or dropped, then instructions, then by `_compute_rate`.

    The newer of two equal ones comes first.
    """
    rate = math.inf if one.choice is not None else _compute_rate(one.score, one.cost) + one.instructs
    return -rate, (-one.seq, -one.place)


def _rate_all(statements: Sequence[Statement]) -> dict[Position, float]:
    """Return the rate of each statement. A statement is rated lower the more of its words many statements have."""
    words = [read_words(one.text) for one in statements]
    often = Counter(chain.from_iterable(words))
    rates = {}
    for one, own in zip(statements, words, strict=True):
        share = sum(often[word] >= REPETITION_COUNT for word in own) / len(own) if own else 0.0
        rates[_position(one)] = _compute_rate(one.score - REPETITION_PENALTY * share, one.cost)
    return rates


def _select(
    statements: Sequence[Statement],
    corrected: Corrections,
    first: Container[Position],
    limit: float,
    factor: float,
) -> list[Statement]:
    """Return the statements for a block, the most important first. Each comes after its correction.

    Args:
        statements: the candidates, in the order of the log.
        corrected: the corrections among the candidates and in the task.
        first: positions of statements that correct a message in the prompt's head. They are chosen before all others.
        limit: maximum tokens of the lines.
        factor: multiply costs by this factor to get tokens as the model counts them.
    """
    pinned_last = sorted(statements, key=lambda one: one.choice == "pinned")
    newest = {one.text.casefold(): one for one in pinned_last if one.choice != "dropped"}
    known = {_position(one): one for one in newest.values()}
    rates = _rate_all([*known.values()])
    by_hand = [one for one in known.values() if one.choice == "pinned" or _position(one) in first]
    instructions = [one for one in known.values() if one.instructs]
    others = sorted(
        (one for one in known.values() if one.score >= LEAST), key=lambda one: (-rates[_position(one)], -one.seq)
    )
    chosen: dict[Position, Statement] = {}
    left, tier = limit, limit * INSTRUCTION_SHARE
    ranked = chain(
        ((one, False) for one in reversed(by_hand)),
        ((one, True) for one in reversed(instructions)),
        ((one, False) for one in others),
    )
    for one, of_tier in ranked:
        if left < LEAST_LINE:
            break
        whole = [newest.get(other.text.casefold(), other) for other in corrected.follow(one)]
        # A correction that is not a candidate is in a message of the prompt's head, which is sent anyway.
        needed = [other for other in whole if _position(other) in known and _position(other) not in chosen]
        cost = sum(other.cost * factor + LINE_TOKENS for other in needed)
        if not needed or cost > left or (of_tier and cost > tier) or any(other.choice == "dropped" for other in whole):
            continue
        left -= cost
        tier -= cost if of_tier else 0.0
        chosen.update((_position(other), other) for other in reversed(needed))
    return [*chosen.values()]


# -- the text -------------------------------------------------------------------


def _write(
    chosen: list[Statement], corrected: Corrections, limit: int, room: Room
) -> tuple[Compaction | None, list[Statement]]:
    """Return the block with as many of the first statements as fit in `limit` tokens, or None, and the statements in it."""
    while chosen:
        text = _format_block(chosen, corrected, room.marker)
        tokens = room.count.message(Message(role="user", content=text))
        if tokens <= limit:
            seqs = [one.seq for one in chosen]
            return Compaction(min(seqs), max(seqs), text, tokens, kind="facts"), chosen
        chosen = chosen[:-1]
    return None, []


def _format_block(chosen: Sequence[Statement], corrected: Corrections, marker: str) -> str:
    """Return the text of the block: one line for each message, in the order of the log. A corrected statement follows its correction."""
    ordered = sorted(chosen, key=_position)
    there = {_position(one) for one in ordered}
    earlier: dict[Position, list[Statement]] = {}
    for one in ordered:
        newest = one
        while (later := corrected.sure.get(_position(newest))) is not None and _position(later) in there:
            newest = later
        if newest is not one:
            earlier.setdefault(_position(newest), []).append(one)
    hidden = {_position(one) for several in earlier.values() for one in several}
    parts = [
        [one for one in ordered if one.instructs == instructs and _position(one) not in hidden]
        for instructs in (True, False)
    ]
    lines = [HEADER.format(tag=format_tag(marker))]
    for heading, part in zip((INSTRUCTIONS, OTHERS), parts, strict=True):
        lines += [heading] if part and parts[0] else []
        lines += [f"- {escape_inline(line, marker)}" for line in _iter_lines(part, earlier)]
    return "\n".join((*lines, END))


def _iter_lines(statements: Sequence[Statement], earlier: Mapping[Position, Sequence[Statement]]) -> Iterator[str]:
    """Yield the statements of each message as a line, with the speaker's name if there is one, and the date if they speak of a time."""
    by_message: dict[int, list[Statement]] = {}
    for one in statements:
        by_message.setdefault(one.seq, []).append(one)
    for some in by_message.values():
        line = ""
        for before, one in zip((None, *some), some, strict=False):
            if before is not None and before.place < one.place - 1:
                line += " … "
            elif before is not None:
                line += " / " if _UNFINISHED.search(line) and one.text[0].isupper() else " "
            line += one.text + "".join(EARLIER.format(text=old.text) for old in earlier.get(_position(one), ()))
        speaks_of_time = any(_RELATIVE.search(one.text) for one in some)
        is_dated = some[0].at > 0 and speaks_of_time
        day = f"{datetime.fromtimestamp(some[0].at / 1000, UTC):%Y-%m-%d}: " if is_dated else ""
        yield f"{f'{some[0].speaker}: ' if some[0].speaker else ''}{day}{line}"
