"""Encode the details of a text: the times that it names and its chunks. Pure functions.

An index stores the details next to the text's terms, as one line of text that it does not interpret:

    <mentions>;<chunks>; <key>@<chunk>.<chunk> ...

- Mentions: the times that the text names, in days since the epoch.
- Chunks, if the text was split: the length, traits and position of each chunk.
- For each term (`key`), the numbers of the chunks that contain it.

All numbers are hexadecimal. A short text that names no time has empty details.

Times in a message ("last Friday", "in three weeks", "on the 14th") are resolved to days when the message is indexed. In a
question, only past times are found (`time_expressions`); in a message, future times as well. A date without a year means the
nearest such date, before or after the message. If "on Friday" may mean the last or the next Friday, both are stored.
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
    choose_language,
    extract_terms,
    find_question_traits,
    normalize,
    split_words,
    to_key,
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
    NamedTime,
    Rule,
    Rules,
    Span,
    find_spans,
    fold,
    inflect_german,
    join_alternatives,
    make_days,
    make_dense_rule,
    make_unit,
    make_word_rule,
    match_rule,
    read_number,
    read_unit,
    read_words,
)

MAX_MENTIONS: Final = 32
"""Maximum number of dates and other times that are stored for a message. If it names more, the first ones are kept."""
MAX_CHARS: Final = 20_000
"""Number of characters at the beginning of a message that are searched for dates and other times."""
LONGEST: Final = 62
"""Maximum length, in days, of a time that is stored. Longer times, such as a whole year, are too vague."""
_HALF_YEAR: Final = timedelta(days=183)
_EPOCH: Final = date(1970, 1, 1)
_WORDS: Final = re.compile(r"[^\W\d_]+|\d+")
_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_LAST: Final = re.compile(r"last|past|pasad|dernier|letzte|vorige|scors|passad|прошл|上|先|지난", re.IGNORECASE)
_NO_TIME: Final = frozenset("0 1 2 3 4 5 6 7 8 9 mar may mai sat sun dec a un day days".split())  # noqa: SIM905 - words
"""Words of `HINTS` that are too common in messages to suggest that a sentence names a time."""
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
        text: the message. Only the first `MAX_CHARS` characters are read.
        at: the time of the message, in milliseconds since the epoch.
        zone: the time zone in which days begin.

    Returns:
        One pair for each distinct time, in order: its first day and the day after its last day, in days since the epoch.
    """
    try:
        now = datetime.fromtimestamp(at / 1000, zone).replace(tzinfo=None)
    except (OverflowError, ValueError, OSError):
        return ()
    text = normalize(text[:MAX_CHARS])
    found: dict[tuple[int, int], None] = {}
    for sentence in find_dated_sentences(text):
        for span in _iter_spans(sentence, now):
            first, last = (span[0].date() - _EPOCH).days, (span[1] - timedelta(microseconds=1)).date() - _EPOCH
            if last.days + 1 - first <= LONGEST:
                found.setdefault((first, last.days + 1))
        if len(found) >= MAX_MENTIONS:
            break
    return tuple(sorted(list(found)[:MAX_MENTIONS]))


class Sentence(NamedTuple):
    """A sentence, folded by `fold`, and its words from `read_words`."""

    folded: str
    words: AbstractSet[str]


def find_dated_sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences that may name a time.

    Most texts have no such sentence. A quick check of the whole text for hint words finds that out.
    """
    folded = fold(text)
    words = read_words(folded)
    hints = [*_HINTS.intersection(words), *(word for word in _AHEAD_WORDS if word in folded)]
    patterns = [one for one in (_AHEAD_NUMBER, _YEAR) if one.search(folded)]
    dense = not folded.isascii() and _DENSE_HINT.search(folded) is not None
    # A sentence that is too long is cut, perhaps within a word. The pieces of that word are not among the text's words.
    cut = any(len(line) >= SENTENCE_CHARS for line in folded.split("\n"))
    if not (hints or patterns or dense or cut):
        return
    for start, stop in find_sentences(text):
        text_part = folded[start:stop]
        likely = dense or stop - start == SENTENCE_CHARS or any(hint in text_part for hint in hints)
        if likely or any(one.search(text_part) for one in patterns):
            sentence = Sentence(text_part, words if len(text_part) == len(folded) else read_words(text_part))
            if can_name_time(sentence):
                yield sentence


def can_name_time(sentence: Sentence) -> bool:
    """Return True if a sentence contains a word or a number that occurs in expressions of time."""
    folded, words = sentence
    if not _HINTS.isdisjoint(words) or (not _AHEAD_HINTS.isdisjoint(words) and _AHEAD.search(folded) is not None):
        return True
    return words >= YEAR or (not folded.isascii() and _DENSE_HINT.search(folded) is not None)


_AHEAD_WORDS: Final = "tomorrow morgen mañana demain amanhã domani next coming nächst kommend próxim prochain".split()  # noqa: SIM905 - words
_NUMBERED: Final = rf"\d(?:st|nd|rd|th)\b|\d\.|\bin {NUMBER}"
_AHEAD_NUMBER: Final = re.compile(_NUMBERED)
_AHEAD: Final = re.compile(rf"{'|'.join(_AHEAD_WORDS)}|{_NUMBERED}")


def _iter_spans(sentence: Sentence, now: datetime) -> Iterator[Span]:
    folded, words = sentence
    ahead = [named for rule in _AHEAD_GRAMMAR.find(words) for named in match_rule(rule, folded, now)]
    for named in find_spans(folded, words, now):
        if any(named.start < other.stop and other.start < named.stop for other in ahead):
            continue
        yield from _resolve_mention(named, folded[named.start : named.stop], now)
    for named in ahead:
        yield named.span


def _resolve_mention(named: NamedTime, expression: str, now: datetime) -> Iterator[Span]:
    """Yield the possible meanings of a time in a message, past and future. The grammar in `time_expressions` only finds past ones."""
    begin, end = named.span
    try:
        if not named.relative and now - begin > _HALF_YEAR and not _YEAR.search(expression):
            begin, end = begin.replace(year=begin.year + 1), end.replace(year=end.year + 1)
        yield begin, end
        if named.relative and not _LAST.search(expression) and _has_weekday(expression):
            yield begin + timedelta(days=7), end + timedelta(days=7)
    except (ValueError, OverflowError):  # February 29, or the end of the calendar
        return


def _has_weekday(expression: str) -> bool:
    return any(word in ALL_WEEKDAYS for word in _WORDS.findall(expression))


# -- future times --------------------------------------------------------------


def _make_day_reader(count: int) -> Callable[[re.Match[str], datetime], Span | None]:
    return lambda _, now: make_days(now.date() + timedelta(days=count))


def _read_next_unit(match: re.Match[str], now: datetime) -> Span | None:
    unit = read_unit(match)
    return None if unit in {"minute", "hour", "year"} else make_unit(unit, now, -1)


def _read_next_weekday(match: re.Match[str], now: datetime) -> Span | None:
    """Return the next day with the weekday that matched. After a word for "next week", return that weekday of next week."""
    number = ALL_WEEKDAYS[match["weekday"]]
    if match.groupdict().get("week"):
        return make_days(make_unit("week", now, -1)[0].date() + timedelta(days=number))
    return make_days(now.date() + timedelta(days=(number - now.weekday() - 1) % 7 + 1))


def _read_ahead(match: re.Match[str], now: datetime) -> Span | None:
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        return None
    days = {"day": 1, "week": 7, "month": 30, "year": 365}[unit] * count
    give = {"day": 0, "week": 2, "month": 8, "year": 30}[unit]
    return make_days(now.date() + timedelta(days=days - give), 1 + 2 * give)


def _read_day_of_month(match: re.Match[str], now: datetime) -> Span | None:
    """Return the nearest day, before or after now, with the day of the month that matched."""
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
    return make_days(min(near, key=lambda day: abs(day - now.date())))


RULES: Final[tuple[Rule, ...]] = (
    make_word_rule(
        r"day after tomorrow|übermorgen|pasado mañana|après-demain",
        _make_day_reader(2),
        "tomorrow übermorgen mañana demain",
    ),
    make_word_rule(
        r"(?<!after )tomorrow|(?<!über)(?<!am )morgen|(?<!la )(?<!pasado )mañana|demain|amanhã|domani",
        _make_day_reader(1),
        "tomorrow morgen mañana demain amanhã domani",
    ),
    make_word_rule(
        rf"(?:the )?(?:next|coming|following|nächste[nrs]?|kommende[nrs]?|próxim[oa]) (?P<unit>{UNIT})",
        _read_next_unit,
        UNIT_WORDS,
        f"next coming following próximo próxima {inflect_german('nächste kommende')}",
    ),
    make_word_rule(
        rf"(?P<unit>{UNIT}) prochaine?",
        _read_next_unit,
        UNIT_WORDS,
        "prochain prochaine",
    ),
    make_word_rule(
        rf"(?:this|next|coming|diese[nrs]?|nächste[nrs]?|kommende[nrs]?|próximo|este|ce) (?P<weekday>{WEEKDAY})",
        _read_next_weekday,
        WEEKDAY_WORDS,
        f"this next coming próximo este ce {inflect_german('diese nächste kommende')}",
    ),
    make_word_rule(
        rf"(?P<weekday>{WEEKDAY}) (?:prochain|próximo|que viene)",
        _read_next_weekday,
        WEEKDAY_WORDS,
        "prochain próximo viene",
    ),
    make_word_rule(
        rf"(?:in|within|dans|dentro de|en) {NUMBER} (?P<unit>{UNIT})",
        _read_ahead,
        UNIT_WORDS,
        "in within dans dentro en",
    ),
    make_word_rule(
        r"(?:on |by |until |before |since )?the (?P<d>\d{1,2})(?:st|nd|rd|th)",
        _read_day_of_month,
        DIGIT,
        "st nd rd th",
        "the",
        relative=False,
    ),
    make_word_rule(
        r"(?:am|bis zum|vom|zum) (?P<d>\d{1,2})\.(?! ?[\w])", _read_day_of_month, DIGIT, "am zum vom", relative=False
    ),
    make_dense_rule("(?<!大)后天|(?<!大)後天|明後日|모레", _make_day_reader(2)),
    make_dense_rule("明天|明日|내일", _make_day_reader(1)),
    make_dense_rule(
        rf"(?:(?P<week>下(?:个|個)?(?=星期|周|週|礼拜|禮拜))|来週の?|다음 ?주 ?)(?P<weekday>{join_alternatives(ALL_WEEKDAYS)})",
        _read_next_weekday,
    ),
    make_dense_rule("(?:下个?月|下個?月|来月|다음 ?달)", lambda _, now: make_unit("month", now, -1)),
    make_dense_rule(
        "(?:下个?(?:周|星期)|下個?(?:週|星期)|来週|다음 ?주)(?![一二三四五六日天])",
        lambda _, now: make_unit("week", now, -1),
    ),
    make_dense_rule(
        rf"(?<![\d.,:])(?P<n>\d{{1,3}}|[一二两三四五六七八九十]) ?(?P<unit>{join_alternatives(ALL_UNITS)}) ?(?:之?后|之?後|뒤|후)",
        _read_ahead,
    ),
    make_dense_rule(r"(?<![\d月/.-])(?P<d>[12]?\d|3[01]) ?[号號](?![楼樓线線])", _read_day_of_month, relative=False),
)
_AHEAD_GRAMMAR: Final = Rules(RULES)


LONG: Final = 300
"""Texts with more characters than this are analysed sentence by sentence, because they may be split into chunks."""
MAX_DETAIL: Final = 64_000
"""Maximum characters of a document's encoded details. If they are longer, the chunks are left out."""


class ChunkShape(NamedTuple):
    """The length (in terms), traits and position of a chunk."""

    length: int
    traits: int
    start: int
    stop: int
    """Position of the first character, and the position after the last character, in the text."""


def analyse(text: str, at: int) -> tuple[Terms, str]:
    """Return the terms of a text that is to be indexed, and its encoded details.

    Args:
        text: the original text.
        at: the time of the message, in milliseconds since the epoch.
    """
    pieces = split_pieces(text) if LONG < len(text) <= MAX_TEXT else []
    terms = _join_terms(text, pieces) if pieces else None
    chunks: list[Chunk] = []
    if terms is None:
        terms = extract_terms(text)
        if terms.length > MOST:
            chunks = split_chunks(text, choose_language(split_words(text)))
    elif terms.length > MOST:
        chunks = join_pieces(text, pieces)
    return terms, write_detail(chunks, find_mentions(text, at))


def _join_terms(text: str, pieces: Sequence[Piece]) -> Terms | None:
    """Combine the terms of a text's sentences into the terms of the text.

    Return None if `extract_terms` might return something else for the whole text. There are two reasons: a word was cut between two
    pieces, or the text has too many distinct terms.
    """
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
    return Terms(counts, length, traits | find_question_traits(normalize(text)))


def write_detail(chunks: Sequence[Chunk], mentions: Sequence[tuple[int, int]]) -> str:
    """Encode the chunks of a text and the times that it names as one line; see the docstring of the module."""
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
    detail = f"{times};{shapes}; " + " ".join([f"{to_key(term)}@{some}" for term, some in places.items()]) + " "
    return detail if len(detail) <= MAX_DETAIL else times


def read_mentions(detail: str) -> list[tuple[int, int]]:
    """Decode the times that a text names: for each, its first day and the day after its last day, in days since the epoch."""
    times = detail.partition(";")[0]
    found = []
    for one in times.split(",") if times else ():
        first, _, count = one.partition(".")
        start = int(first, 16)
        found.append((start, start + int(count, 16)))
    return found


def read_chunks(detail: str) -> list[ChunkShape]:
    """Decode the shapes of a text's chunks, in order. The list is empty if the text was not split."""
    start = detail.find(";") + 1
    if not start:
        return []
    found = []
    for one in detail[start : detail.index(";", start)].split(","):
        length, traits, first, size = (int(number, 16) for number in one.split("."))
        found.append(ChunkShape(length, traits, first, first + size))
    return found


def find_chunks(detail: str, term: str) -> list[int]:
    """Return the numbers, from 0, of the chunks that contain a term."""
    key = f" {to_key(term)}@"
    start = detail.find(key)
    if start < 0:
        return []
    start += len(key)
    return [int(number, 16) for number in detail[start : detail.index(" ", start)].split(".")]
