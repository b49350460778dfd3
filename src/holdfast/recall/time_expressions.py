"""Find expressions of time in a text and resolve them to spans of local time, relative to a given moment. Pure functions.

The rules here cover English and the most common expressions of German, Spanish and French. The tables in `word_tables` cover other
languages. Only expressions for past times are found, because questions ask about past conversations. Weeks begin on Monday. A day
or month without a year means the latest one that has begun.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from holdfast.recall import word_tables

Span = tuple[datetime, datetime]
"""A span of local time without a time zone: its start (included) and its stop (excluded)."""


class NamedTime(NamedTuple):
    """A time that a text names."""

    start: int
    stop: int
    """Start and stop of the expression in the text."""
    span: Span
    """The time that the expression means."""
    relative: bool
    """True if the expression is relative to now: "yesterday" is relative, "in May 2023" is not."""


WORDS: Final = re.compile(r"[^\W\d_]+|\d")
Read = Callable[[re.Match[str], datetime], "Span | None"]
Needs = tuple[AbstractSet[str], ...]
DIGIT: Final = frozenset({"#digit"})
YEAR: Final = frozenset({"#year"})
DENSE: Final = frozenset({"#dense"})
"""Words that do not occur in texts, but can be needed by rules like words: they mean that the text contains a digit (`DIGIT`), a
four-digit year (`YEAR`), or a Chinese, Japanese or Korean character (`DENSE`)."""
_A_DIGIT: Final = re.compile(r"\d")
_A_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_A_DENSE: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class Rule:
    """A rule of the grammar: it matches one kind of expression and resolves it to a span of time.

    Args:
        text: the regular expression, for folded text.
        read: returns the span for a match.
        relative: True if the expression is relative to now.
        needs: sets of folded words. A text that the regular expression matches contains a word of each set. Checking for these
            words is a hundred times faster than matching the regular expression.
    """

    def __init__(self, text: str, read: Read, *, relative: bool, needs: Needs) -> None:
        self.text = text
        self.read = read
        self.relative = relative
        self.needs = needs

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled regular expression.

        It is compiled on first use, because compiling those of all rules would take a tenth of a server's start time.
        """
        return re.compile(self.text)


class Rules:
    """A list of rules, indexed by the words that a matching text must contain.

    Args:
        rules: the rules, in the order in which `find` returns them.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = tuple(rules)
        self._by_word: dict[str, set[int]] = {}
        self._needing_nothing: set[int] = set()
        for at, rule in enumerate(self._rules):
            if not rule.needs:
                self._needing_nothing.add(at)
            for word in rule.needs[0] if rule.needs else ():
                self._by_word.setdefault(word, set()).add(at)
        self._words = self._by_word.keys()

    def find(self, words: AbstractSet[str]) -> list[Rule]:
        """Return the rules that may match a text, given its words from `read_words`."""
        found = self._needing_nothing.union(*(self._by_word[word] for word in self._words & words))
        return [
            rule for rule in (self._rules[at] for at in sorted(found)) if not any(map(words.isdisjoint, rule.needs))
        ]


def fold(text: str) -> str:
    """Return a text in lower case, with the same number of characters, so that positions are those of the original text."""
    folded = text.lower()
    if folded.isascii():
        return folded
    if len(folded) != len(text):
        folded = "".join(character.lower()[:1] for character in text)
    return folded.translate(_ALIKE)


_ALIKE: Final = str.maketrans("ıſ", "is")  # noqa: RUF001 - the letters


def read_words(folded: str) -> set[str]:
    """Return the words of a folded text, plus those of `#digit`, `#year` and `#dense` that apply."""
    words = set(WORDS.findall(folded))
    if _A_DIGIT.search(folded):
        words |= DIGIT
        if _A_YEAR.search(folded):
            words |= YEAR
    if not folded.isascii() and _A_DENSE.search(folded):
        words |= DENSE
    return words


def match_rule(rule: Rule, folded: str, now: datetime) -> Iterator[NamedTime]:
    """Yield the times that a rule finds in a folded text. Dates that do not exist, such as June 31, are left out."""
    for match in rule.pattern.finditer(folded):
        try:
            span = rule.read(match, now)
        except (ValueError, OverflowError):  # June 31, or the year 0
            continue
        if span is not None:
            yield NamedTime(match.start(), match.end(), span, rule.relative)


_TALKS: Final = r"(?:chats?|conversations?|discussions?|messages?|questions?|sessions?|talks?|topics?)\b(?![.-]\w)"
"""Nouns after which a possessive names a time: "yesterday's questions" were asked yesterday, but "yesterday's log" may have been
mentioned on any day."""


def inflect_german(words: str) -> str:
    """Return German adjectives with all their endings, as words separated by spaces."""
    return " ".join(word + end for word in words.split() for end in ("", "n", "r", "s"))


def make_word_rule(pattern: str, read: Read, *needs: str | Iterable[str], relative: bool = True) -> Rule:
    """Make a rule for languages that write words with spaces between them.

    Args:
        pattern: the regular expression. It matches only whole words.
        read: as in `Rule`.
        needs: as in `Rule`. A string is split at its spaces.
        relative: as in `Rule`.
    """
    sets = tuple(frozenset(need.split() if isinstance(need, str) else need) for need in needs)
    text = rf"(?<![\w-])(?:{pattern})(?![\w-]|'s\b(?! {_TALKS}))"
    return Rule(text, read, relative=relative, needs=sets)


def make_dense_rule(pattern: str, read: Read, *, relative: bool = True) -> Rule:
    """Make a rule for Chinese, Japanese and Korean, whose expressions may begin and end within a word."""
    return Rule(pattern, read, relative=relative, needs=(DENSE,))


Value = TypeVar("Value", int, str)
_DAY: Final = timedelta(days=1)
_MONTHS: Final = {
    name: number
    for number, names in enumerate(
        (
            "january jan januar jänner enero janvier",
            "february feb februar febrero février",
            "march mar märz marzo mars",
            "april apr abril avril",
            "may mai mayo",
            "june jun juni junio juin",
            "july jul juli julio juillet",
            "august aug agosto août",
            "september sept sep septiembre septembre",
            "october oct oktober octubre octobre",
            "november nov noviembre novembre",
            "december dec dezember diciembre décembre",
        ),
        start=1,
    )
    for name in names.split()
}
_WEEKDAYS: Final = {
    name: number
    for number, names in enumerate(
        (
            "monday mon montag lunes lundi",
            "tuesday tue tues dienstag martes mardi",
            "wednesday wed mittwoch miércoles miercoles mercredi",
            "thursday thu thurs donnerstag jueves jeudi",
            "friday fri freitag viernes vendredi",
            "saturday sat samstag sonnabend sábado sabado samedi",
            "sunday sun sonntag domingo dimanche",
        )
    )
    for name in names.split()
}
_NUMBERS: Final = {
    name: number
    for number, names in (
        (1, "a an one ein eine einem einer einen un una uno une"),
        (2, "two couple zwei dos deux"),
        (3, "three few drei paar tres trois"),
        (4, "four several vier einigen cuatro quatre quelques"),
        (5, "five fünf cinco cinq"),
        (6, "six sechs seis"),
        (7, "seven sieben siete sept"),
        (8, "eight acht ocho huit"),
        (9, "nine neun nueve neuf"),
        (10, "ten zehn diez dix"),
        (11, "eleven elf once onze"),
        (12, "twelve zwölf doce douze"),
    )
    for name in names.split()
}
_UNITS: Final = {
    name: unit
    for unit, names in (
        ("minute", "minute minutes min mins minuten minuto minutos"),
        ("hour", "hour hours stunde stunden hora horas heure heures"),
        ("day", "day days tag tage tagen día días dia dias jour jours"),
        ("week", "week weeks woche wochen semana semanas semaine semaines"),
        ("month", "month months monat monate monaten mes meses mois"),
        ("year", "year years jahr jahre jahren año años an ans année années"),
    )
    for name in names.split()
}


def join_alternatives(names: Iterable[str]) -> str:
    """Return a regular expression that matches any of these names. Longer names are tried first."""
    return "|".join(sorted(names, key=len, reverse=True))


def _map_names(names: Iterable[tuple[Value, str]]) -> dict[str, Value]:
    return {name: value for value, some in names for name in some.split()}


_MONTH, WEEKDAY, UNIT = join_alternatives(_MONTHS), join_alternatives(_WEEKDAYS), join_alternatives(_UNITS)
NUMBER = rf"(?P<n>\d{{1,4}}|(?:a )?(?:{join_alternatives(_NUMBERS)})(?: of)?)"
_ALL_MONTHS: Final = _map_names(enumerate(word_tables.MONTHS, 1)) | _MONTHS
ALL_WEEKDAYS: Final = (
    _map_names(enumerate(word_tables.WEEKDAYS)) | _map_names(enumerate(word_tables.DENSE_WEEKDAYS)) | _WEEKDAYS
)
UNIT_WORDS, WEEKDAY_WORDS = frozenset(_UNITS), frozenset(_WEEKDAYS)
ALL_UNITS: Final = _map_names(word_tables.UNITS.items()) | _map_names(word_tables.DENSE_UNITS.items()) | _UNITS
_ALL_NUMBERS: Final = (
    _map_names(enumerate(word_tables.NUMBERS, 1)) | _map_names(enumerate(word_tables.DENSE_NUMBERS, 1)) | _NUMBERS
)
"""The value of each number word, in all languages."""
_D, _TH, _Y = r"(?P<d>\d{1,2})", r"(?:st|nd|rd|th|\.)?", r"(?P<y>(?:19|20)\d\d)"
_PART = r"(?P<part>morning|afternoon|evening|night)"
HINTS: Final = frozenset(
    [
        "morning",
        "afternoon",
        "evening",
        "night",
        "tonight",
        "weekend",
        "today",
        "yesterday",
        "heute",
        "gestern",
        "vorgestern",
        "hoy",
        "ayer",
        "hier",
        "anoche",
        "anteayer",
        "antier",
        "aujourd",
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8",
        "9",
    ]
).union(_MONTHS, _WEEKDAYS, _UNITS)
"""Each expression in the main languages contains one of these words. Most questions contain none, which is quick to check."""
_FURTHER_HINTS: Final = frozenset(word_tables.HINTS.split()).union(
    *(names.split() for names in (*word_tables.MONTHS, *word_tables.WEEKDAYS, *word_tables.UNITS.values()))
)
_DENSE_HINT: Final = re.compile(word_tables.DENSE_HINT)
_PARTS: Final = {"morning": (5, 12), "afternoon": (12, 18), "evening": (17, 24), "night": (18, 30)}
"""First hour, and the hour after the last, of each part of the day. Hours from 24 on belong to the next day."""


def find_times(text: str, now: datetime) -> list[NamedTime]:
    """Return the times that a text names, in order. If two expressions overlap, only the longer one is used.

    Args:
        text: a text normalised by `holdfast.recall.terms.normalize`.
        now: the current local time, without a time zone.
    """
    folded = fold(text)
    return find_spans(folded, read_words(folded), now)


def find_spans(folded: str, words: AbstractSet[str], now: datetime) -> list[NamedTime]:
    """Return the times that a folded text names, as `find_times` does. `words` is the result of `read_words` for the text."""
    rules = [] if HINTS.isdisjoint(words) else _GRAMMAR.find(words)
    if not _FURTHER_HINTS.isdisjoint(words):
        rules += FURTHER_RULES
    if not folded.isascii() and _DENSE_HINT.search(folded):
        rules += _DENSE_GRAMMAR.find(words)
    found = [named for rule in rules for named in match_rule(rule, folded, now)]
    found.sort(key=lambda named: (named.start - named.stop, named.start))
    kept: list[NamedTime] = []
    for named in found:
        if all(named.stop <= other.start or named.start >= other.stop for other in kept):
            kept.append(named)
    return sorted(kept)


# -- spans -------------------------------------------------------------------


def make_days(first: date, count: int = 1) -> Span:
    """Return the span of `count` days that begins with the day `first`."""
    begin = datetime.combine(first, time())
    return begin, begin + count * _DAY


def _make_month(year: int, month: int) -> Span:
    return datetime(year, month, 1), datetime(year + month // 12, month % 12 + 1, 1)  # noqa: DTZ001 - local time


def _subtract_months(now: datetime, count: int) -> tuple[int, int]:
    whole = now.year * 12 + now.month - 1 - count
    return whole // 12, whole % 12 + 1


def make_unit(unit: str, now: datetime, back: int) -> Span:
    """Return the calendar day, week, month or year that is `back` units ago. 0 is the current one, -1 the next one."""
    if unit == "week":
        return make_days(now.date() - timedelta(days=now.weekday() + 7 * back), 7)
    if unit == "month":
        return _make_month(*_subtract_months(now, back))
    if unit == "year":
        return datetime(now.year - back, 1, 1), datetime(now.year - back + 1, 1, 1)  # noqa: DTZ001 - local time
    return make_days(now.date() - back * _DAY)


def read_number(match: re.Match[str]) -> int:
    """Return the value of the group `n` of a match, which is a number in digits or as a word."""
    word = match["n"].removesuffix(" of").removeprefix("a ")
    return int(word) if word.isdecimal() else _ALL_NUMBERS[word]


def read_unit(match: re.Match[str]) -> str:
    """Return the unit that the group `unit` of a match names: minute, hour, day, week, month or year."""
    return ALL_UNITS[match["unit"]]


def _read_ago(match: re.Match[str], now: datetime) -> Span:
    """Return the span for "three weeks ago". It is longer for vague numbers such as "a few" and for long units."""
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        step = timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)
        give = max(step / 2, count * step / 4)
        return now - count * step - give, now - count * step + give
    vague = "few" in match["n"] or "couple" in match["n"] or "several" in match["n"]
    if unit == "day":
        return make_days(now.date() - (count + 2 * vague) * _DAY, 1 + 3 * vague)
    if unit == "week":
        return make_days(now.date() - timedelta(days=7 * count + 3 + 4 * vague), 7 + 8 * vague)
    year, month = _subtract_months(now, count if unit == "month" else 12 * count)
    middle = date(year, month, min(now.day, 28))
    give_days = (15 if unit == "month" else 92) * (1 + vague)
    return make_days(middle - give_days * _DAY, 2 * give_days + 1)


def _read_past(match: re.Match[str], now: datetime) -> Span:
    """Return the span for "the last three weeks", which ends now."""
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        return now - count * (timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)), now
    if unit in {"day", "week"}:
        return datetime.combine(now.date() - count * (7 if unit == "week" else 1) * _DAY, time()), now
    year, month = _subtract_months(now, count if unit == "month" else 12 * count)
    return datetime.combine(date(year, month, min(now.day, 28)), time()), now


def _read_past_unit(match: re.Match[str], now: datetime) -> Span:
    """Return the span for "in the past week", which ends now: the last seven days, not the previous calendar week."""
    unit = read_unit(match)
    if unit in {"minute", "hour"}:
        return now - (timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)), now
    day = {"day": 1, "week": 7, "month": 31, "year": 366}[unit]
    return datetime.combine(now.date() - day * _DAY, time()), now


def _read_romance(match: re.Match[str], now: datetime) -> Span | None:
    """Return the span for "los últimos tres días", or None if there is no word for "last" in the match."""
    expression = match.group()
    return (
        _read_past(match, now) if "últim" in expression or "dernièr" in expression or "dernier" in expression else None
    )


def _make_unit_reader(unit: str, count: int) -> Read:
    def read(match: re.Match[str], now: datetime) -> Span:
        return make_unit(unit, now, count)

    return read


def _read_unit_span(match: re.Match[str], now: datetime) -> Span:
    """Return the previous calendar unit ("last month") or the current one ("this month")."""
    return make_unit(read_unit(match), now, 0 if match.groupdict().get("this") else 1)


def _make_part_reader(back: int) -> Read:
    def read(match: re.Match[str], now: datetime) -> Span:
        return _make_hours(now.date() - back * _DAY, *_PARTS[match["part"]])

    return read


def _make_hours(day: date, first: int, last: int) -> Span:
    begin = datetime.combine(day, time())
    return begin + timedelta(hours=first), begin + timedelta(hours=last)


def _read_last_night(match: re.Match[str], now: datetime) -> Span:
    return _make_hours(now.date() - _DAY, 18, 30)


def _read_tonight(match: re.Match[str], now: datetime) -> Span:
    return _make_hours(now.date(), *_PARTS["evening"])


def _read_weekend(match: re.Match[str], now: datetime) -> Span:
    """Return the latest weekend that has begun. On a weekend, "last weekend" means the weekend before."""
    saturday = now.date() - ((now.weekday() + 2) % 7) * _DAY
    if match["last"] and now.weekday() >= 5:
        saturday -= 7 * _DAY
    return make_days(saturday, 2)


def _read_weekday(match: re.Match[str], now: datetime) -> Span:
    """Return the latest day before today with the weekday that matched. With "last week", return that weekday of last week."""
    number = ALL_WEEKDAYS[match["weekday"]]
    groups = match.groupdict()
    if groups.get("week"):
        day = make_unit("week", now, 1)[0].date() + number * _DAY
    else:
        day = now.date() - ((now.weekday() - number - 1) % 7 + 1) * _DAY
    part = groups.get("part")
    return _make_hours(day, *_PARTS[part]) if part else make_days(day)


def _read_date(match: re.Match[str], now: datetime) -> Span:
    """Return the span of a day or a month. Without a year, it is the latest one that has begun."""
    groups = match.groupdict()
    name = groups.get("month")
    month = _ALL_MONTHS[name] if name else _parse_month(match["m"])
    day = int(groups.get("d") or 0)
    if groups.get("y"):
        year = int(match["y"])
    else:
        begun = (month, day) <= (now.month, now.day)
        if begun and groups.get("last") and month == now.month:
            begun = False
        year = now.year - (not begun)
    if day:
        return make_days(date(year, month, day))
    return _make_month(year, month)


def _parse_month(text: str) -> int:
    """Parse a month in digits, or in Chinese numerals up to twelve."""
    if text.isdecimal():
        return int(text)
    ones = text.removeprefix("十")
    return 10 * (ones != text) + ("一二三四五六七八九".index(ones) + 1 if ones else 0)


def _read_slashes(match: re.Match[str], now: datetime) -> Span | None:
    """Return the day of a date with slashes ("3/14/2024"), or None if it is not clear which number is the month."""
    first, second, year = int(match["first"]), int(match["second"]), int(match["y"])
    if (first > 12) == (second > 12) and first != second:
        return None
    return make_days(date(year, second, first) if first > 12 else date(year, first, second))


def _read_year(match: re.Match[str], now: datetime) -> Span:
    return datetime(int(match["y"]), 1, 1), datetime(int(match["y"]) + 1, 1, 1)  # noqa: DTZ001 - local time


_JOINING = "".join(
    f"|(?<=\\b{word} )"
    for word in (
        "between",
        "since",
        "from",
        "and",
        "to",
        "until",
        "before",
        "after",
        "seit",
        "bis",
        "und",
        "desde",
        "y",
    )
).removeprefix("|")
"""Matches after a word that can stand directly before a day or month: "since Monday", "between May and July"."""
_OF_MONTH = rf"(?P<month>{_MONTH})\.?"
RULES: Final = (
    make_word_rule(
        r"earlier today|today|heute|hoy|aujourd'hui", _make_unit_reader("day", 0), "today heute hoy aujourd"
    ),
    make_word_rule(r"yesterday|gestern|ayer|hier", _make_unit_reader("day", 1), "yesterday gestern ayer hier"),
    make_word_rule(
        r"(?:the )?day before yesterday|vorgestern|anteayer|antier|avant-hier",
        _make_unit_reader("day", 2),
        "yesterday vorgestern anteayer antier avant",
    ),
    make_word_rule(rf"this {_PART}", _make_part_reader(0), "this", _PARTS),
    make_word_rule(rf"(?:earlier )?(?:yesterday|last) {_PART}", _make_part_reader(1), "yesterday last", _PARTS),
    make_word_rule(
        r"last night|anoche|gestern (?:nacht|abend)|hier soir", _read_last_night, "night anoche nacht abend soir"
    ),
    make_word_rule(r"tonight", _read_tonight, "tonight"),
    make_word_rule(
        rf"(?:(?P<this>this|diese[nrs]?|esta|este|cette|cet|ce)|last|previous|(?:letzte|vorige|vergangene)[nrs]?) (?P<unit>{UNIT})",
        _read_unit_span,
        _UNITS,
        f"this last previous esta este cette cet ce {inflect_german('diese letzte vorige vergangene')}",
    ),
    make_word_rule(
        rf"(?:(?:la|el|le) |l')?(?P<unit>{UNIT}) (?:pasad[ao]|derni[eè]re?)",
        _read_unit_span,
        _UNITS,
        "pasado pasada dernier derniere dernièr dernière",
    ),
    make_word_rule(
        rf"(?:in |over |during |within )?(?:the |den |die |in den )?(?:last|past|previous|letzten) {NUMBER} (?P<unit>{UNIT})",
        _read_past,
        _UNITS,
        "last past previous letzten",
    ),
    make_word_rule(
        rf"(?:in|over|during|within) the (?:past|last) (?P<unit>{UNIT})", _read_past_unit, _UNITS, "past last"
    ),
    make_word_rule(
        rf"(?:(?:los|las|les) )?(?:últim[oa]s )?{NUMBER} (?:dernier[s]?|dernières )?(?P<unit>{UNIT})(?: pasad[oa]s)?",
        _read_romance,
        {"últimos", "últimas", "dernières", *(f"dernier{s}{unit}" for s in ("", "s") for unit in _UNITS)},
    ),
    make_word_rule(
        rf"(?:about |around |some )?{NUMBER} (?P<unit>{UNIT}) (?:ago|earlier)", _read_ago, _UNITS, "ago earlier"
    ),
    make_word_rule(rf"(?:vor|hace|il y a) {NUMBER} (?P<unit>{UNIT})", _read_ago, _UNITS, "vor hace il"),
    make_word_rule(r"(?:(?:on|over|at) )?(?:the |this |(?P<last>last |past ))weekend", _read_weekend, "weekend"),
    make_word_rule(
        rf"(?:on|last|this past|past|am|letzten|el|le) (?P<weekday>{WEEKDAY})(?: (?:pasado|dernier))?(?: {_PART})?",
        _read_weekday,
        _WEEKDAYS,
        "on last past am letzten el le",
    ),
    make_word_rule(rf"(?P<weekday>{WEEKDAY}) (?:pasado|dernier)", _read_weekday, _WEEKDAYS, "pasado dernier"),
    make_word_rule(rf"(?:{_JOINING})(?P<weekday>{WEEKDAY})", _read_weekday, _WEEKDAYS),
    make_word_rule(rf"(?:{_JOINING}){_OF_MONTH}", _read_date, _MONTHS, relative=False),
    make_word_rule(rf"(?:on )?(?P<weekday>{WEEKDAY}) (?:of )?(?P<week>last week)", _read_weekday, _WEEKDAYS, "week"),
    make_word_rule(
        rf"(?:(?:on|am|el|le) )?(?:the )?{_D}{_TH} (?:of |de )?{_OF_MONTH}(?:,? (?:of |de |del )?{_Y})?",
        _read_date,
        _MONTHS,
        DIGIT,
        relative=False,
    ),
    make_word_rule(
        rf"(?:on )?{_OF_MONTH} (?:the )?{_D}{_TH}(?:,? (?:of )?{_Y})?", _read_date, _MONTHS, DIGIT, relative=False
    ),
    make_word_rule(rf"(?:on )?{_Y}[-/.](?P<m>\d{{1,2}})[-/.]{_D}", _read_date, YEAR, relative=False),
    make_word_rule(rf"(?:on |am )?{_D}\.(?P<m>\d{{1,2}})\.{_Y}", _read_date, YEAR, relative=False),
    make_word_rule(rf"(?:on )?(?P<first>\d{{1,2}})/(?P<second>\d{{1,2}})/{_Y}", _read_slashes, YEAR, relative=False),
    make_word_rule(
        rf"(?:in|during|im|en|(?P<last>last)) (?:early |mid |late |the (?:beginning|middle|end) of )?{_OF_MONTH}(?:,? (?:of |de )?{_Y})?",
        _read_date,
        _MONTHS,
        "in during im en last",
        relative=False,
    ),
    make_word_rule(rf"{_OF_MONTH},? (?:of |de )?{_Y}", _read_date, _MONTHS, YEAR, relative=False),
    make_word_rule(
        rf"(?:in|during|im jahr|en|throughout) {_Y}", _read_year, YEAR, "in during jahr en throughout", relative=False
    ),
)
_FURTHER_N = rf"(?P<n>\d{{1,4}}|{join_alternatives(_ALL_NUMBERS)})"
_FURTHER_MONTH = rf"(?P<month>{join_alternatives(_ALL_MONTHS)})"
FURTHER_RULES: Final = (
    *(make_word_rule(phrases, _make_unit_reader(unit, back)) for (unit, back), phrases in word_tables.BACK.items()),
    *(
        make_word_rule(one.format(n=_FURTHER_N, unit=f"(?P<unit>{join_alternatives(ALL_UNITS)})"), _read_ago)
        for one in word_tables.AGO
    ),
    *(
        make_word_rule(one.format(n=_FURTHER_N, unit=f"(?P<unit>{join_alternatives(ALL_UNITS)})"), _read_past)
        for one in word_tables.PAST
    ),
    *(make_word_rule(one.format(weekday=join_alternatives(ALL_WEEKDAYS)), _read_weekday) for one in word_tables.ON),
    make_word_rule(rf"(?:{word_tables.IN}) {_FURTHER_MONTH}(?:,? (?:de |del )?{_Y})?", _read_date, relative=False),
    make_word_rule(
        rf"(?:{word_tables.AT} )?{_D} (?:de )?{_FURTHER_MONTH}(?: (?:de |del )?{_Y})?", _read_date, relative=False
    ),
)


_DENSE_COUNT = (
    rf"(?<![\d.,:])(?P<n>\d{{1,4}}|{join_alternatives(_map_names(enumerate(word_tables.DENSE_NUMBERS, 1)))})"
    rf" ?(?P<unit>{join_alternatives(_map_names(word_tables.DENSE_UNITS.items()))})"
)
DENSE_RULES: Final = (
    *(
        make_dense_rule(phrases, _make_unit_reader(unit, back))
        for (unit, back), phrases in word_tables.DENSE_BACK.items()
    ),
    make_dense_rule(rf"{_DENSE_COUNT} ?(?:之?前|전)", _read_ago),
    make_dense_rule(
        rf"(?P<week>{word_tables.DENSE_LAST_WEEK})?(?P<weekday>{join_alternatives(_map_names(enumerate(word_tables.DENSE_WEEKDAYS)))})",
        _read_weekday,
    ),
    make_dense_rule(
        r"(?:(?P<y>(?:19|20)\d\d) ?[年년] ?)?(?<!\d)(?P<m>\d{1,2}|十[一二]?|[一二三四五六七八九]) ?[月월](?: ?(?P<d>\d{1,2}) ?[日号號일])?(?!曜)",
        _read_date,
        relative=False,
    ),
)
_GRAMMAR: Final = Rules(RULES)
_DENSE_GRAMMAR: Final = Rules(DENSE_RULES)
