"""Standing facts: a block of earlier statements of the user that are still valid, in the user's own words. No model is used.

When messages of the user are evicted from a prompt, their statements (`holdfast.context.statements`) become candidates for the block. The
block contains the candidates that are most probably worth their tokens, verbatim and in the order of the log. It changes only when more
messages are evicted. The time that this takes depends on the evicted messages and the candidates, never on the length of the session.
"""

from __future__ import annotations

import math
import re
from bisect import insort
from collections import Counter
from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, lru_cache
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec

from holdfast.context.analysis_cache import ANALYSES, STRING_BYTES, make_analysis_key
from holdfast.context.cut import count_piece
from holdfast.context.escaping import END, escape_inline, format_tag
from holdfast.context.statements import (
    DENSE_LANGUAGES,
    Position,
    Statement,
    detect_language,
    find_statements,
    load_cues,
)
from holdfast.context.units import Unit
from holdfast.context.window import Block, Compaction, DeferredBlock, Room, Window
from holdfast.domain.fact_choices import Choice, read_choices
from holdfast.domain.messages import Message
from holdfast.domain.objects import Count, Time
from holdfast.limits import FACT_DROPS, FACT_PINS
from holdfast.recall.terms import extract_terms

LEAST_EVIDENCE: Final = 2.7
"""Minimum evidence that one statement corrects another. The logarithm of the number of statements is added to this minimum.

Evidence is a sum over the words that both statements have: the logarithm of how rare each word is. Among many statements more evidence is
needed, because more of them have words in common by chance."""
SAME_KIND: Final = 3.0
"""Evidence that is added if both statements have a value of the same kind, such as a time or a day, and the values differ."""
POSSIBLE: Final = 5.5
"""Minimum evidence for a possible correction."""
OTHER_KIND: Final = 4.0
"""Evidence for a possible correction that is added if both statements have values, but none in common and none of the same kind."""
NO_VALUE: Final = 2.0
"""Evidence that is subtracted if the statements have no value in common and no differing values of the same kind."""
FEWEST: Final = 150
"""Rarity of a word is computed as if there were at least this many statements, because every word is rare in a short conversation."""
COMMON: Final = 0.1
"""A word or number is evidence only if at most this fraction of the statements contains it."""
_NUMBER: Final = re.compile(
    r"(?P<sign>[£$€¥])?(?P<number>\d(?:[\d.,:]*\d)?)(?P<unit>(?:st|nd|rd|th|er|e|º)\b|\s?[^\W\d_]+|\s?[%€£°]|)"
)
_HAN_NUMBER: Final = re.compile(
    r"(?P<number>[一二三四五六七八九十百千万两]+)(?P<unit>[^\W\d_一二三四五六七八九十百千万两])"
)
_NEXT_WORD: Final = re.compile(r"\s([^\W\d_]+)")
_ARTICLES: Final = frozenset(
    {"one", "half", "un", "une", "demi", "ein", "eins", "halb", "uno", "um", "uma", "medio", "media", "meia"}
)
_SIGNS: Final = "£$€¥%°"
_ORDINALS: Final = frozenset({"st", "nd", "rd", "th", "er", "e", "º"})


class Value(NamedTuple):
    """A number or a day that a sentence mentions."""

    kind: str
    """The number's unit, or `time` or `day`; empty for a number without a unit."""
    text: str


class Corrections(NamedTuple):
    """The correction of each corrected statement, by the position of the corrected one."""

    sure: dict[Position, Statement]
    possible: dict[Position, Statement]
    """Later statements that say that something has changed, and may mean this statement."""


def find_corrections(
    statements: Sequence[Statement], known: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Corrections:
    """Find statements that later ones correct.

    A statement that a caller dropped cannot correct one that a caller pinned.

    Args:
        statements: the statements in the order of the log.
        known: words and values of statements that were read before, by the statements' texts.
    """
    features = [known.get(one.text) or _extract_features(one.text) for one in statements]
    wanted = frozenset[str]().union(*(of for one, of in zip(statements, features, strict=True) if one.corrects))
    corrected = Corrections({}, {})
    if not wanted:
        return corrected
    shareable = [wanted.intersection(of) for of in features]
    index = _Index(len(statements), Counter(chain.from_iterable(shareable)))
    for one, of, shared in zip(statements, features, shareable, strict=True):
        if one.corrects and (found := index.find_replaced(one, of)) is not None:
            earlier, is_sure = found
            (corrected.sure if is_sure else corrected.possible)[earlier.position] = one
        index.add(one, shared)
    return corrected


class _Index:
    """Index of statements by their rare words and values, used to find the statement that a later one corrects.

    Args:
        number: number of all statements.
        frequency: number of statements that contain a word or value, for each one that occurs in a possible correction.
    """

    def __init__(self, number: int, frequency: Mapping[str, int]) -> None:
        total = max(number, FEWEST)
        self._rarity = {
            feature: math.log(total / often) for feature, often in frequency.items() if often <= COMMON * total
        }
        self._holders: dict[str, list[int]] = {feature: [] for feature in self._rarity}
        self._statements: list[Statement] = []
        self._least = LEAST_EVIDENCE + math.log(max(number, 1))

    def add(self, one: Statement, features: AbstractSet[str]) -> None:
        """Add the next statement, with those of its words and values that occur in a possible correction."""
        for feature in features:
            if (holders := self._holders.get(feature)) is not None:
                holders.append(len(self._statements))
        self._statements.append(one)

    def find_replaced(self, later: Statement, features: Iterable[str]) -> tuple[Statement, bool] | None:
        """Return the indexed statement that `later` corrects, and False if this is only possible; None if there is none.

        If several are equally likely, return the newest.

        Args:
            later: the later statement.
            features: its words and values, from `_extract_features`.
        """
        topics: dict[int, float] = {}
        repeated: dict[int, list[float]] = {}
        for feature in features:
            rarity = self._rarity.get(feature, 0.0)
            for number in self._holders.get(feature, ()):
                if feature[0] == "=":
                    repeated.setdefault(number, []).append(rarity)
                else:
                    topics[number] = topics.get(number, 0.0) + rarity
        values = _extract_values(later.text)
        least, most_added = min(POSSIBLE, self._least), SAME_KIND if values else -NO_VALUE
        best: tuple[Statement, bool] | None = None
        most = (False, POSSIBLE, -1)
        for number in topics.keys() | repeated.keys():
            topic, same, earlier = topics.get(number, 0.0), repeated.get(number, ()), self._statements[number]
            if topic + sum(same) + most_added < least or earlier.seq == later.seq:
                continue
            if earlier.choice == "pinned" and later.choice == "dropped":
                continue
            before = _extract_values(earlier.text)
            evidence = _weigh(topic, same, before, values)
            is_sure = evidence >= self._least
            if before and values and not is_sure and evidence < topic:
                evidence += OTHER_KIND
            if (found := (is_sure, evidence, number)) >= most:
                best, most = (earlier, is_sure), found
        return best


def _weigh(topic: float, same: Sequence[float], before: Collection[Value], after: Collection[Value]) -> float:
    """Return the evidence that one sentence corrects an earlier one.

    Values that both sentences have are evidence only if the sentences also have words in common, or if the later one changes a value.

    Args:
        topic: sum of the rarities of the words that both sentences have.
        same: rarity of each value that both sentences have.
        before: values of the earlier sentence.
        after: values of the later sentence.
    """
    changes = any(old.kind and old.kind == new.kind and old.text != new.text for old in before for new in after)
    changes = changes and len({value.text for value in after}) > len(same)
    if not (topic or changes):
        return 0.0
    return topic + sum(same) + (SAME_KIND if changes else 0.0 if same else -NO_VALUE)


def _extract_features(text: str) -> tuple[str, ...]:
    """Return the words that show the topic of a sentence, and its values, each value with a leading `=`.

    Words with digits, days, and words that announce a correction are not topic words.
    """
    key = make_analysis_key(b"features", text.encode(errors="surrogatepass"))
    kept: tuple[str, ...] | None = ANALYSES.get(key)
    if kept is None:
        kept = _read_features(text)
        ANALYSES.put(key, kept, sum(STRING_BYTES + len(feature) for feature in kept))
    return kept


def _read_features(text: str) -> tuple[str, ...]:
    language = detect_language(text)
    topic = load_cues(language)["correction"].sub(" ", load_cues(language)["time"].sub(" ", text))
    terms = (term for term in extract_terms(topic).counts if not any(map(str.isdigit, term)))
    if language in DENSE_LANGUAGES:
        terms = (term for term in terms if len(term) > 1)
    return (*terms, *dict.fromkeys(f"={value.text}" for value in _extract_values(text)))


@lru_cache(maxsize=2_048)
def _extract_values(text: str) -> frozenset[Value]:
    """Return the numbers and days that a sentence mentions."""
    language = detect_language(text)
    cues = load_cues(language)
    found = {
        Value(_classify_number(match), match["number"])
        for form in (_NUMBER, _HAN_NUMBER)
        for match in form.finditer(text)
    }
    words = (match for match in cues["number"].finditer(text) if match.group().casefold() not in _ARTICLES)
    if language not in DENSE_LANGUAGES:
        found |= {Value(_find_next_word(text, match.end()), match.group().casefold()) for match in words}
    days = cues["time"].findall(text)
    return frozenset(found | {Value("day", day.casefold().rstrip("s")) for day in days})


def _classify_number(number: re.Match[str]) -> str:
    unit, sign = number["unit"].strip().casefold(), number.groupdict().get("sign") or ""
    if ":" in number["number"] or unit in {"am", "pm", "uhr"}:
        return "time"
    if sign or unit in _SIGNS:
        return sign or unit
    return "date" if unit in _ORDINALS else unit


def _find_next_word(text: str, at: int) -> str:
    found = _NEXT_WORD.match(text, at)
    return found.group(1).casefold() if found else ""


HEADER: Final = "[Earlier statements of the user{tag}; the system prompt and newer messages take precedence]"
SHARE: Final = 0.25
"""Largest fraction of the window's token limit that the block may take."""
MOST: Final = 2_000
"""Maximum tokens of the block."""
LEAST_ROOM: Final = 768
"""Smallest token limit of a window with a block. Below it, the heading would take half of the block; the digest quotes users anyway."""
CANDIDATES: Final = 500
"""Maximum number of candidates that are kept. Those that are least worth their tokens are removed first."""
_KEPT_BY_HAND: Final[Mapping[Choice, int]] = {"pinned": FACT_PINS, "dropped": FACT_DROPS}
LEAST: Final = math.log(0.03 / 0.97)
"""Minimum log odds that a statement is worth keeping (a probability of 3 %). Less probable statements are left out even if they fit."""
REPETITION_PENALTY: Final = 2.0
"""Log odds that a statement loses if all its phrases are used again and again, as in twenty requests of one form. It loses this in
proportion to the share of such phrases."""
CORRECTION: Final = 2.0
"""Log odds that a statement gains if it surely corrects another one, and that the other one loses."""
REPETITION_COUNT: Final = 4
"""Number of statements that must contain a phrase for it to count as used again and again."""
_WORD_OR_NUMBER: Final = re.compile(r"\d[\d.,:]*|[^\W\d_]+")
POWER: Final = 0.6
"""Candidates are ranked by the probability that they are worth keeping, divided by their tokens raised to this power."""
LINE_TOKENS, LEAST_LINE = 3, 5
"""`LINE_TOKENS` is the number of tokens of a line in addition to its statement. `LEAST_LINE` is the number of tokens of the shortest
line."""
EARLIER: Final = " (earlier: {text})"
"""Format of a corrected statement. It follows its correction and never appears alone."""


_UNFINISHED: Final = re.compile(r"[\w)]\Z")
"""Matches a text that ends like a list item, without a full stop."""


class Candidates(msgspec.Struct, array_like=True):
    """The statements of evicted messages, in their saved form."""

    statements: list[Statement]
    chosen: list[Position]
    """Positions of the statements that are in the block."""
    corrected: list[tuple[int, int]] = []
    """Indexes of a statement and of the one that corrects it; the second is -1 if that one is in a message that is always sent."""
    perhaps: list[tuple[int, int]] = []
    """Indexes of a statement and of the one that possibly corrects it."""


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


class StatementPool:
    """The candidates for the block, ranked. Immutable after creation, except for `features`, which a block adds when it is written.

    Args:
        statements: the candidates. If there are too many, those that are least worth their tokens are left out.
    """

    def __init__(self, statements: Iterable[Statement] = ()) -> None:
        self.by_position = {_position(one): one for one in statements}
        self._ranked = sorted(_rank(one) for one in self.by_position.values() if one.choice is None)
        self._by_hand = len(self._ranked) < len(self.by_position)
        self.features: dict[str, Sequence[str]] = {}
        """Words and values of statements, as far as they are known, for `find_corrections`."""
        self._trim()

    def with_added(self, new: Iterable[Statement]) -> StatementPool:
        """Return a new pool that also has the statements `new`."""
        added = [one for one in new if self.by_position.get(_position(one)) != one]
        if self._by_hand or any(one.choice is not None or _position(one) in self.by_position for one in added):
            return StatementPool([*self.by_position.values(), *added])
        after = StatementPool()
        after.features = self.features
        after.by_position, after._ranked = {**self.by_position}, [*self._ranked]
        for one in added:
            after.by_position[_position(one)] = one
            insort(after._ranked, _rank(one))
        after._trim()
        return after

    def sort_statements(self) -> list[Statement]:
        """Return the statements in the order of the log."""
        return sorted(self.by_position.values(), key=_position)

    def _trim(self) -> None:
        """Remove the statements that exceed the limits, the lowest-ranked first. The order in which they were added does not matter."""
        for _, (seq, place) in self._ranked[CANDIDATES:]:
            del self.by_position[-seq, -place]
        del self._ranked[CANDIDATES:]
        for choice, most in _KEPT_BY_HAND.items() if self._by_hand else ():
            same = [one for one in self.by_position.values() if one.choice == choice]
            for one in sorted(same, key=_rank)[most:]:
                del self.by_position[_position(one)]


class StandingFacts(DeferredBlock):
    """The block of the user's statements, written at the first access.

    Args:
        pool: statements of all evicted messages.
        head: units that stay in the prompt although they are older than the tail. Their statements may be corrected by those in the block.
        most: maximum tokens of the block.
        room: the token counter and the session's marker.
    """

    def __init__(self, pool: StatementPool, head: Sequence[Unit], *, most: int, room: Room) -> None:
        super().__init__(most=most)
        self.pool = pool
        self._head, self._room = head, room

    def save(self) -> bytes:
        """Return the encoded candidates."""
        return self._written[1]

    def write(self) -> Compaction | None:
        return self._written[0]

    @cached_property
    def _written(self) -> tuple[Compaction | None, bytes]:
        statements, task = self.pool.sort_statements(), [*_iter_statements(self._head)]
        known = self.pool.features
        known = self.pool.features = {
            one.text: known.get(one.text) or _extract_features(one.text) for one in statements
        }
        corrected = find_corrections(sorted((*task, *statements), key=_position), known)
        links = {**corrected.possible, **corrected.sure}
        first = {links[one.position].position for one in task if one.position in links}
        block, chosen = _compose(statements, corrected.sure, first, self.most, self._room)
        self._head = ()
        indexes = {_position(one): at for at, one in enumerate(statements)}
        pairs = (
            [(indexes[of], indexes.get(_position(by), -1)) for of, by in some.items() if of in indexes]
            for some in corrected
        )
        return block, _encoder.encode(Candidates(statements, [*map(_position, chosen)], *pairs))


def compute_limit(room: int) -> int:
    """Return the maximum tokens of the block in a window of `room` tokens."""
    return min(MOST, int(SHARE * room)) if room >= LEAST_ROOM else 0


def reserve_for_facts(window: Window) -> int:
    """Return the maximum number of tokens that the block can take after the next eviction, whichever units are evicted."""
    limit = compute_limit(window.room.tokens)
    if not limit:
        return 0
    pool = _get_pool(window.statements)
    coming = (one for unit in window.units for one in _find_statements(window, unit))
    new = (one for one in coming if _position(one) not in pool.by_position)
    return _estimate(chain(pool.by_position.values(), new), limit, window.room)


def add_facts(window: Window, room: int, *, exact: bool = False) -> Window:
    """Add the statements of newly evicted units to the window's block; return the same window if nothing changes.

    Args:
        window: a window with the evicted units in `left`.
        room: maximum tokens of the block, if this is less than the limit of `compute_limit`.
        exact: True to write the block now and count its actual tokens instead of an estimate. Set if no digest can use the difference.
    """
    limit = max(0, min(compute_limit(window.room.tokens), room))
    new = [one for unit in window.left for one in _find_statements(window, unit)]
    for unit in window.left:
        window.analysed.pop(unit.first, None)
    if not new and window.statements.most <= limit:
        return window
    pool = _get_pool(window.statements).with_added(new)
    most = _estimate(pool.by_position.values(), limit, window.room)
    block = StandingFacts(pool, window.head, most=most, room=window.room)
    if exact:
        block.most = block.compaction.tokens if block.compaction else 0
    return window.with_statements(block)


def _get_pool(block: Block) -> StatementPool:
    return block.pool if isinstance(block, StandingFacts) else _read_pool(block.saved)


@lru_cache(maxsize=8)
def _read_pool(saved: bytes) -> StatementPool:
    return StatementPool(decode_candidates(saved).statements)


def _estimate(statements: Iterable[Statement], limit: int, available: Room) -> int:
    """Return the tokens of a block of all statements that are worth keeping, but at most `limit`."""
    total = 0
    for one in filter(_is_worth_it, statements):
        total += count_piece(available.count, one.text) + LINE_TOKENS
        if total > limit:
            return limit
    return min(limit, total + _count_heading(cast(Hashable, available.count), available.marker)) if total else 0


@lru_cache(maxsize=64)
def _count_heading(count: Any, marker: str) -> int:
    tokens: int = count.message(Message(role="user", content=_format_block((), {}, marker)))
    return tokens


def _find_statements(window: Window, unit: Unit) -> Sequence[Statement]:
    """Return the statements in the user's own message of a unit; empty for any other unit. The window caches them."""
    if not unit.asks:
        return ()
    entry = unit.entries[0]
    known = window.analysed.get(unit.first)
    if known is None or known[0] is not entry:
        known = window.analysed[unit.first] = (entry, tuple(_iter_statements((unit,))))
    found: tuple[Statement, ...] = known[1]
    return found


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
    hidden = {*known.chosen, *(_position(known.statements[at]) for at, _ in known.corrected)}
    texts: dict[int, str] = {}
    for one in known.statements:
        if one.position in hidden or one.choice == "dropped":
            texts[one.seq] = f"{texts[one.seq]} {one.text}" if one.seq in texts else one.text
    return texts


def map_corrections(window: Window) -> dict[int, list[tuple[Statement, Statement]]]:
    """Return statements that were corrected, or possibly, by the `seq` of their message, each with its correction.

    Corrections that the block shows, or that are in a message that is always sent, are left out.
    """
    known = decode_candidates(window.candidates)
    chosen = set(known.chosen)
    found: dict[int, list[tuple[Statement, Statement]]] = {}
    for at, by in (*known.corrected, *known.perhaps):
        one, correction = known.statements[at], known.statements[by]
        if by >= 0 and _position(correction) not in chosen:
            found.setdefault(one.seq, []).append((one, correction))
    return found


def _iter_statements(units: Iterable[Unit]) -> Iterator[Statement]:
    """Yield the statements of the user's own messages in `units`."""
    for unit in units:
        override = unit.overrides[0] if unit.overrides else None
        if unit.asks and not unit.by and not unit.refused and (override is None or not override.heading):
            entry = unit.entries[0]
            text, choices = (override or entry).message.text, read_choices(entry.metadata)
            yield from find_statements(text, unit.first, at=entry.timestamp, choices=choices)


def _is_worth_it(one: Statement) -> bool:
    return one.choice == "pinned" or (one.choice is None and one.score >= LEAST)


@lru_cache(maxsize=4_096)
def _compute_promise(score: float, cost: float) -> float:
    """Return the rank value of a statement: the probability that it is worth keeping, divided by a power of its tokens.

    Args:
        score: log odds that the statement is worth keeping.
        cost: estimated tokens.
    """
    return float(1 / (1 + math.exp(-score)) / cost**POWER)


def measure_repetition(statements: Sequence[Statement]) -> list[float]:
    """Return for each statement the share of its phrases that at least `REPETITION_COUNT` of the statements contain."""
    phrases = [_list_phrases(one.text) for one in statements]
    often = Counter(chain.from_iterable(phrases))
    repeated = {phrase for phrase, number in often.items() if number >= REPETITION_COUNT}
    return [sum(map(repeated.__contains__, of)) / len(of) if of else 0.0 for of in phrases]


@lru_cache(maxsize=4_096)
def _list_phrases(text: str) -> tuple[tuple[str, str, str], ...]:
    """Return the different sequences of three words in a sentence. All numbers count as the same word."""
    words = ["0" if word[0].isdecimal() else word.casefold() for word in _WORD_OR_NUMBER.findall(text)]
    return tuple(dict.fromkeys(zip(words, words[1:], words[2:], strict=False)))


def _rank(one: Statement, first: Container[Position] = (), penalty: float = 0.0) -> tuple[float, Position]:
    """Return a sort key for statements, the best first.

    Statements that a caller pinned or dropped, or that are in `first`, come before all others. The others are sorted by
    `_compute_promise`, the newest first if equal. `penalty` is subtracted from the log odds that the statement is worth keeping.
    """
    seq, place = one.position
    by_hand = one.choice is not None or (seq, place) in first
    return -math.inf if by_hand else -_compute_promise(one.score - penalty, one.cost), (-seq, -place)


# -- the block -----------------------------------------------------------------


def _compose(
    statements: Sequence[Statement],
    corrected: Mapping[Position, Statement],
    first: Container[Position],
    limit: int,
    available: Room,
) -> tuple[Compaction | None, list[Statement]]:
    """Return the block in at most `limit` tokens, or None if no statement fits, and the statements in the block.

    Args:
        statements: the candidates, in the order of the log.
        corrected: the correction of each corrected statement, by the position of the corrected one.
        first: positions of statements that correct a message in the prompt's head. They are chosen before all others.
        limit: maximum tokens of the block.
        available: the token counter and the session's marker.
    """
    count, marker = available.count, available.marker
    pinned = _find_pinned(statements, corrected, first)
    room = limit - _count_heading(cast(Hashable, count), marker)
    chosen: dict[Position, Statement] = {}
    said: set[str] = set()
    worthy = [one for one in statements if one.choice != "dropped" and (_is_worth_it(one) or _position(one) in pinned)]
    is_crowded = sum(one.cost for one in worthy) > room
    shares = measure_repetition(worthy) if is_crowded else repeat(0.0, len(worthy))
    corrections = {later.position for later in corrected.values()}
    ranked = []
    for one, share in zip(worthy, shares, strict=True):
        change = (one.position in corrected) - (one.position in corrections)
        ranked.append((_rank(one, pinned, share * REPETITION_PENALTY + change * CORRECTION), one))
    for _, one in sorted(ranked, key=itemgetter(0)):
        if room < LEAST_LINE:
            break
        later = corrected.get(one.position)
        if one.cost > 3 * room or one.text in said or not (later is None or later.position in chosen):
            continue
        if (tokens := count_piece(count, one.text) + LINE_TOKENS) <= room:
            chosen[one.position] = one
            said.add(one.text)
            room -= tokens
    kept = list(chosen.values())
    while kept:
        text = _format_block(kept, corrected, marker)
        tokens = count.message(Message(role="user", content=text))
        if tokens <= limit:
            seqs = [one.seq for one in kept]
            return Compaction(min(seqs), max(seqs), text, tokens, kind="facts"), kept
        kept = _drop_last(kept, corrected)
    return None, []


def _find_pinned(
    statements: Sequence[Statement], corrected: Mapping[Position, Statement], first: Container[Position]
) -> set[Position]:
    """Return the positions of the pinned statements, of those in `first`, and of the corrections of all these.

    The corrections are included because no statement appears without its correction.
    """
    pinned: set[Position] = set()
    for one in statements:  # in the order of the log: a correction comes after what it corrects
        if one.choice == "pinned" or one.position in first or one.position in pinned:
            pinned.add(one.position)
            if (later := corrected.get(one.position)) is not None:
                pinned.add(later.position)
    return pinned


def _drop_last(kept: list[Statement], corrected: Mapping[Position, Statement]) -> list[Statement]:
    """Return the statements without the last one and without those that it corrects."""
    dropped = {kept[-1].position}
    return [one for one in kept[:-1] if (later := corrected.get(one.position)) is None or later.position not in dropped]


def _format_block(kept: Iterable[Statement], corrected: Mapping[Position, Statement], marker: str) -> str:
    """Return the text of the block: one line for each message, in the order of the log. A corrected statement follows its correction."""
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
    return "\n".join((HEADER.format(tag=format_tag(marker)), *written, END))
