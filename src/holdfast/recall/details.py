"""Details: what an index keeps of a text in addition to its terms, in one line that no engine reads. Pure.

    <mentions>;<chunks>; <key>@<chunk>.<chunk> ...

The times that the text names, in days since the epoch; length, traits and place of each chunk, if it was split; the chunks that have a
term. All numbers are hexadecimal. A short text without times has no details.

Times that a message names ("last Friday", "in three weeks", "on the 14th") are resolved to days when it is indexed. Questions look back
(`time_expressions`); messages also look ahead. A date without a year is the nearest one, before or after the message. Where "on Friday"
may be the last one or the next, both count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import Final, NamedTuple

from holdfast.recall import word_tables
from holdfast.recall.chunks import (
    MOST,
    SENTENCE_CHARS,
    Chunk,
    Piece,
    find_sentences,
    join_pieces,
    split_chunks,
    split_pieces,
)
from holdfast.recall.terms import (
    MAX_TERMS,
    MAX_TEXT,
    YOURS,
    Terms,
    key_of,
    normal,
    question_traits,
    terms_of,
    words_language,
    words_of,
)
from holdfast.recall.time_expressions import (
    ALL_UNITS,
    ALL_WEEKDAYS,
    DIGIT,
    HINTS,
    NUMBER,
    UNIT,
    UNIT_WORDS,
    WEEKDAY,
    WEEKDAY_WORDS,
    YEAR,
    Named,
    Rule,
    Rules,
    Span,
    any_of,
    dense_rule,
    find_spans,
    fold,
    inflect_german,
    match_rule,
    read_number,
    read_unit,
    read_words,
    whole_days,
    whole_unit,
    word_rule,
)

MAX_MENTIONS: Final = 32
"""Times of a message that are kept; the first ones."""
MAX_CHARS: Final = 20_000
"""Characters of a message in which times are looked for."""
LONGEST: Final = 62
"""Days of a time that is kept: a whole year says too little."""
_HALF_YEAR: Final = timedelta(days=183)
_EPOCH: Final = date(1970, 1, 1)
_WORDS: Final = re.compile(r"[^\W\d_]+|\d+")
_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_LAST: Final = re.compile(r"last|past|pasad|dernier|letzte|vorige|scors|passad|прошл|上|先|지난", re.IGNORECASE)
_NO_TIME: Final = frozenset("0 1 2 3 4 5 6 7 8 9 mar may mai sat sun dec a un day days".split())  # noqa: SIM905 - words
"""Hints that are too common to mean a time in a message."""
_HINTS: Final = HINTS - _NO_TIME
_AHEAD_HINTS: Final = frozenset(
    """
    tomorrow next coming within in morgen übermorgen nächste nächsten nächster nächstes kommende kommenden mañana próximo próxima
    demain après prochain prochaine dans dentro amanhã domani the am le el by
    """.split()  # noqa: SIM905 - words
)
_DENSE_HINT: Final = re.compile(rf"{word_tables.DENSE_HINT}|[明后後号號]|내일|모레|다음")


def find_mentions(text: str, at: int, zone: tzinfo = UTC) -> tuple[tuple[int, int], ...]:
    """Find the times that a message names.

    Args:
        text: of the message; `MAX_CHARS` characters of it are read.
        at: when it was said, in milliseconds since the epoch.
        zone: whose days are meant.

    Returns:
        First day and the day after the last one, in days since the epoch; each once, in order.
    """
    try:
        now = datetime.fromtimestamp(at / 1000, zone).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return ()
    text = normal(text[:MAX_CHARS])
    found: dict[tuple[int, int], None] = {}
    for sentence in find_dated_sentences(text):
        for span in _spans(sentence, now):
            first, last = (span[0].date() - _EPOCH).days, (span[1] - timedelta(microseconds=1)).date() - _EPOCH
            if last.days + 1 - first <= LONGEST:
                found.setdefault((first, last.days + 1))
        if len(found) >= MAX_MENTIONS:
            break
    return tuple(sorted(list(found)[:MAX_MENTIONS]))


class Sentence(NamedTuple):
    """A sentence, folded, and its words (`read_words`)."""

    folded: str
    words: AbstractSet[str]


def find_dated_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences that may name a time. Most do not, which is seen by the few hints that the whole text has."""
    folded = fold(text)
    words = read_words(folded)
    hints = [*_HINTS.intersection(words), *(word for word in _AHEAD_WORDS if word in folded)]
    patterns = [one for one in (_AHEAD_NUMBER, _YEAR) if one.search(folded)]
    dense = not folded.isascii() and _DENSE_HINT.search(folded) is not None
    # What is left of a sentence that is too long may begin or end with half a word, which is none of the whole text's.
    cut = any(len(line) >= SENTENCE_CHARS for line in folded.split("\n"))
    if not (hints or patterns or dense or cut):
        return
    for start, stop in find_sentences(text):
        said = folded[start:stop]
        likely = dense or stop - start == SENTENCE_CHARS or any(hint in said for hint in hints)
        if likely or any(one.search(said) for one in patterns):
            sentence = Sentence(said, words if len(said) == len(folded) else read_words(said))
            if may_name_time(sentence):
                yield sentence


def may_name_time(sentence: Sentence) -> bool:
    """Return True if a sentence has a word that a time is named with."""
    folded, words = sentence
    if not _HINTS.isdisjoint(words) or (not _AHEAD_HINTS.isdisjoint(words) and _AHEAD.search(folded) is not None):
        return True
    return words >= YEAR or (not folded.isascii() and _DENSE_HINT.search(folded) is not None)


_AHEAD_WORDS: Final = "tomorrow morgen mañana demain amanhã domani next coming nächst kommend próxim prochain".split()  # noqa: SIM905 - words
_NUMBERED: Final = rf"\d(?:st|nd|rd|th)\b|\d\.|\bin {NUMBER}"
_AHEAD_NUMBER: Final = re.compile(_NUMBERED)
_AHEAD: Final = re.compile(rf"{'|'.join(_AHEAD_WORDS)}|{_NUMBERED}")


def _spans(sentence: Sentence, now: datetime) -> Iterator[Span]:
    folded, words = sentence
    ahead = [named for rule in _AHEAD_GRAMMAR.find(words) for named in match_rule(rule, folded, now)]
    for named in find_spans(folded, words, now):
        if any(named.start < other.stop and other.start < named.stop for other in ahead):
            continue
        yield from _both_ways(named, folded[named.start : named.stop], now)
    for named in ahead:
        yield named.span


def _both_ways(named: Named, said: str, now: datetime) -> Iterator[Span]:
    """Yield what a time means in a message, which a question would always look for in the past."""
    begin, end = named.span
    try:
        if not named.relative and now - begin > _HALF_YEAR and not _YEAR.search(said):
            begin, end = begin.replace(year=begin.year + 1), end.replace(year=end.year + 1)
        yield begin, end
        if named.relative and not _LAST.search(said) and _names_weekday(said):
            yield begin + timedelta(days=7), end + timedelta(days=7)
    except (ValueError, OverflowError):  # the 29th of February; the end of the calendar
        return


def _names_weekday(said: str) -> bool:
    return any(word in ALL_WEEKDAYS for word in _WORDS.findall(said))


# -- what lies ahead -----------------------------------------------------------


def _after_days(count: int) -> Callable[[re.Match[str], datetime], Span | None]:
    return lambda _, now: whole_days(now.date() + timedelta(days=count))


def _next_unit(match: re.Match[str], now: datetime) -> Span | None:
    unit = read_unit(match)
    return None if unit in {"minute", "hour", "year"} else whole_unit(unit, now, -1)


def _next_weekday(match: re.Match[str], now: datetime) -> Span | None:
    """Return the next day of that name; where a word for "next week" is before it, the one of that week."""
    number = ALL_WEEKDAYS[match["weekday"]]
    if match.groupdict().get("week"):
        return whole_days(whole_unit("week", now, -1)[0].date() + timedelta(days=number))
    return whole_days(now.date() + timedelta(days=(number - now.weekday() - 1) % 7 + 1))


def _in_units(match: re.Match[str], now: datetime) -> Span | None:
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        return None
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[unit] * count
    give = {"day": 0, "week": 2, "month": 8, "year": 30}[unit]
    return whole_days(now.date() + timedelta(days=days - give), 1 + 2 * give)


def _day_of_month(match: re.Match[str], now: datetime) -> Span | None:
    """The nearest day of that number."""
    number = int(match["d"])
    if not 1 <= number <= 31:
        return None
    near = []
    for months in (-1, 0, 1):
        whole = now.year * 12 + now.month - 1 + months
        try:
            near.append(date(whole // 12, whole % 12 + 1, number))
        except ValueError:
            continue
    return whole_days(min(near, key=lambda day: abs(day - now.date())))


RULES: Final[tuple[Rule, ...]] = (
    word_rule(
        r"day after tomorrow|übermorgen|pasado mañana|après-demain", _after_days(2), "tomorrow übermorgen mañana demain"
    ),
    word_rule(
        r"(?<!after )tomorrow|(?<!über)(?<!am )morgen|(?<!la )(?<!pasado )mañana|demain|amanhã|domani",
        _after_days(1),
        "tomorrow morgen mañana demain amanhã domani",
    ),
    word_rule(
        rf"(?:the )?(?:next|coming|following|nächste[nrs]?|kommende[nrs]?|próxim[oa]) (?P<unit>{UNIT})",
        _next_unit,
        UNIT_WORDS,
        f"next coming following próximo próxima {inflect_german('nächste kommende')}",
    ),
    word_rule(
        rf"(?P<unit>{UNIT}) prochaine?",
        _next_unit,
        UNIT_WORDS,
        "prochain prochaine",
    ),
    word_rule(
        rf"(?:this|next|coming|diese[nrs]?|nächste[nrs]?|kommende[nrs]?|próximo|este|ce) (?P<weekday>{WEEKDAY})",
        _next_weekday,
        WEEKDAY_WORDS,
        f"this next coming próximo este ce {inflect_german('diese nächste kommende')}",
    ),
    word_rule(
        rf"(?P<weekday>{WEEKDAY}) (?:prochain|próximo|que viene)",
        _next_weekday,
        WEEKDAY_WORDS,
        "prochain próximo viene",
    ),
    word_rule(
        rf"(?:in|within|dans|dentro de|en) {NUMBER} (?P<unit>{UNIT})", _in_units, UNIT_WORDS, "in within dans dentro en"
    ),
    word_rule(
        r"(?:on |by |until |before |since )?the (?P<d>\d{1,2})(?:st|nd|rd|th)",
        _day_of_month,
        DIGIT,
        "st nd rd th",
        "the",
        relative=False,
    ),
    word_rule(r"(?:am|bis zum|vom|zum) (?P<d>\d{1,2})\.(?! ?[\w])", _day_of_month, DIGIT, "am zum vom", relative=False),
    dense_rule("(?<!大)后天|(?<!大)後天|明後日|모레", _after_days(2)),
    dense_rule("明天|明日|내일", _after_days(1)),
    dense_rule(
        rf"(?:(?P<week>下(?:个|個)?(?=星期|周|週|礼拜|禮拜))|来週の?|다음 ?주 ?)(?P<weekday>{any_of(ALL_WEEKDAYS)})",
        _next_weekday,
    ),
    dense_rule("(?:下个?月|下個?月|来月|다음 ?달)", lambda _, now: whole_unit("month", now, -1)),
    dense_rule(
        "(?:下个?(?:周|星期)|下個?(?:週|星期)|来週|다음 ?주)(?![一二三四五六日天])",
        lambda _, now: whole_unit("week", now, -1),
    ),
    dense_rule(
        rf"(?<![\d.,:])(?P<n>\d{{1,3}}|[一二两三四五六七八九十]) ?(?P<unit>{any_of(ALL_UNITS)}) ?(?:之?后|之?後|뒤|후)",
        _in_units,
    ),
    dense_rule(r"(?<![\d月/.-])(?P<d>[12]?\d|3[01]) ?[号號](?![楼樓线線])", _day_of_month, relative=False),
)
_AHEAD_GRAMMAR: Final = Rules(RULES)


LONG: Final = 300
"""Characters from which on a text is read sentence by sentence at once: it may have chunks."""
MAX_DETAIL: Final = 64_000
"""Characters of the details of a document; of one with more, the chunks are left out."""


class ChunkShape(NamedTuple):
    """The length, the traits and the place of a chunk."""

    length: int
    traits: int
    start: int
    stop: int
    """Characters of the text, from the first until before the last."""


def analyse(text: str, at: int) -> tuple[Terms, str]:
    """Return the terms of a text that is to be found, and its details.

    Args:
        text: as it was written.
        at: when it was said, in milliseconds since the epoch.
    """
    pieces = split_pieces(text) if LONG < len(text) <= MAX_TEXT else []
    terms = _join_terms(text, pieces) if pieces else None
    chunks: list[Chunk] = []
    if terms is None:
        terms = terms_of(text)
        if terms.length > MOST:
            chunks = split_chunks(text, words_language(words_of(text)))
    elif terms.length > MOST:
        chunks = join_pieces(text, pieces)
    return terms, write_detail(chunks, find_mentions(text, at))


def _join_terms(text: str, pieces: Sequence[Piece]) -> Terms | None:
    """Return the terms of a text that are those of its pieces; None where they may not be, because a word may be in two of them."""
    if any(before.stop == piece.start for before, piece in pairwise(pieces)):
        return None
    counts: dict[str, int] = {}
    length = traits = mine = 0
    for piece in pieces:
        counted = piece.counted
        for term, count in counted.counts.items():
            counts[term] = counts.get(term, 0) + count
        length += counted.length
        traits |= counted.traits
        mine += counted.mine
    if len(counts) >= MAX_TERMS:
        return None
    traits = traits | YOURS if mine < 0 else traits & ~YOURS
    return Terms(counts, length, traits | question_traits(normal(text)))


def write_detail(chunks: Sequence[Chunk], mentions: Sequence[tuple[int, int]]) -> str:
    """Return the details of a text with these chunks and times."""
    if len(chunks) < 2:
        chunks = ()
    if not (chunks or mentions):
        return ""
    times = ",".join(f"{first:x}.{stop - first:x}" for first, stop in mentions)
    if not chunks:
        return times
    shapes = ",".join(f"{one.length:x}.{one.traits:x}.{one.start:x}.{one.stop - one.start:x}" for one in chunks)
    places: dict[str, str] = {}
    for at, chunk in enumerate(chunks):
        number = f"{at:x}"
        for term in chunk.terms:
            places[term] = f"{places[term]}.{number}" if term in places else number
    detail = f"{times};{shapes}; " + " ".join([f"{key_of(term)}@{some}" for term, some in places.items()]) + " "
    return detail if len(detail) <= MAX_DETAIL else times


def read_mentions(detail: str) -> list[tuple[int, int]]:
    """Return the times that a text names: first day and the day after the last one, in days since the epoch."""
    times = detail.partition(";")[0]
    found = []
    for one in times.split(",") if times else ():
        first, _, count = one.partition(".")
        start = int(first, 16)
        found.append((start, start + int(count, 16)))
    return found


def read_chunks(detail: str) -> list[ChunkShape]:
    """Return the shapes of the chunks of a text, in order; none if it was not split."""
    start = detail.find(";") + 1
    if not start:
        return []
    found = []
    for one in detail[start : detail.index(";", start)].split(","):
        length, traits, first, size = (int(number, 16) for number in one.split("."))
        found.append(ChunkShape(length, traits, first, first + size))
    return found


def chunks_with(detail: str, term: str) -> list[int]:
    """Return the numbers of the chunks that have a term, from 0."""
    key = f" {key_of(term)}@"
    start = detail.find(key)
    if start < 0:
        return []
    start += len(key)
    return [int(number, 16) for number in detail[start : detail.index(" ", start)].split(".")]
