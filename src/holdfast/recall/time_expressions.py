"""Time expressions: where in a text a time is named, and which span of the calendar that is, seen from a moment. Pure.

A small grammar for English and the most common expressions of German, Spanish and French; further languages come from the tables of
`word_tables`. Only the past is understood, because questions ask about past conversations. Weeks begin on Monday. A day or month without a
year is the newest that has begun.
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
"""From a moment until before another, in local time without a zone."""


class Named(NamedTuple):
    """A time that a text names."""

    start: int
    stop: int
    """Where in the text it is named."""
    span: Span
    relative: bool
    """Whether it is named as seen from now: "yesterday" is, "in May 2023" is not."""


WORDS: Final = re.compile(r"[^\W\d_]+|\d")
Read = Callable[[re.Match[str], datetime], "Span | None"]
Needs = tuple[AbstractSet[str], ...]
DIGIT: Final = frozenset({"#digit"})
YEAR: Final = frozenset({"#year"})
DENSE: Final = frozenset({"#dense"})
"""What a text may need that is no word: a digit, four digits of a year, a character of Chinese, Japanese or Korean."""
_A_DIGIT: Final = re.compile(r"\d")
_A_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_A_DENSE: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class Rule:
    """A way to name a time.

    Args:
        text: the pattern of it, for text without capitals.
        read: what it means.
        relative: whether that is as seen from now.
        needs: sets of words, folded. The pattern only matches a text that has a word of each; this is a hundred times
            quicker to see than whether the pattern matches.
    """

    def __init__(self, text: str, read: Read, *, relative: bool, needs: Needs) -> None:
        self.text = text
        self.read = read
        self.relative = relative
        self.needs = needs

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Made when it is first asked for: all of them together would be a tenth of a server's start."""
        return re.compile(self.text)


class Rules:
    """Some rules, found by the words that they need.

    Args:
        rules: in the order in which `find` returns them.
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
        """Return the rules that may match in a text with these words; see `read_words`."""
        found = self._needing_nothing.union(*(self._by_word[word] for word in self._words & words))
        return [
            rule for rule in (self._rules[at] for at in sorted(found)) if not any(map(words.isdisjoint, rule.needs))
        ]


def fold(text: str) -> str:
    """Return a text without capitals, each character in its place: rules match in it."""
    folded = text.lower()
    if folded.isascii():
        return folded
    if len(folded) != len(text):
        folded = "".join(character.lower()[:1] for character in text)
    return folded.translate(_ALIKE)


_ALIKE: Final = str.maketrans("ıſ", "is")  # noqa: RUF001 - the letters


def read_words(folded: str) -> set[str]:
    """Return the words of a folded text, and what a rule may need beside words."""
    words = set(WORDS.findall(folded))
    if _A_DIGIT.search(folded):
        words |= DIGIT
        if _A_YEAR.search(folded):
            words |= YEAR
    if not folded.isascii() and _A_DENSE.search(folded):
        words |= DENSE
    return words


def match_rule(rule: Rule, folded: str, now: datetime) -> Iterator[Named]:
    """Yield the times that a rule finds in a folded text; dates that do not exist are left out."""
    for match in rule.pattern.finditer(folded):
        try:
            span = rule.read(match, now)
        except (ValueError, OverflowError):  # the 31st of June, the year 0
            continue
        if span is not None:
            yield Named(match.start(), match.end(), span, rule.relative)


_TALKS: Final = r"(?:chats?|conversations?|discussions?|messages?|questions?|sessions?|talks?|topics?)\b(?![.-]\w)"
"""What a day may have of which somebody asks: "yesterday's questions"; what else is its own ("yesterday's log") is not of that day."""


def inflect_german(words: str) -> str:
    """Return German adjectives with all their endings."""
    return " ".join(word + end for word in words.split() for end in ("", "n", "r", "s"))


def word_rule(pattern: str, read: Read, *needs: str | Iterable[str], relative: bool = True) -> Rule:
    """Return a rule for scripts that put spaces between words; of `needs`, a text is the words in it."""
    sets = tuple(frozenset(need.split() if isinstance(need, str) else need) for need in needs)
    text = rf"(?<![\w-])(?:{pattern})(?![\w-]|'s\b(?! {_TALKS}))"
    return Rule(text, read, relative=relative, needs=sets)


def dense_rule(pattern: str, read: Read, *, relative: bool = True) -> Rule:
    """Return a rule for scripts that show no bounds of words."""
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


def any_of(names: Iterable[str]) -> str:
    """Return a pattern for any of some names, the longest first."""
    return "|".join(sorted(names, key=len, reverse=True))


def _each(names: Iterable[tuple[Value, str]]) -> dict[str, Value]:
    return {name: value for value, some in names for name in some.split()}


_MONTH, WEEKDAY, UNIT = any_of(_MONTHS), any_of(_WEEKDAYS), any_of(_UNITS)
NUMBER = rf"(?P<n>\d{{1,4}}|(?:a )?(?:{any_of(_NUMBERS)})(?: of)?)"
_ALL_MONTHS: Final = _each(enumerate(word_tables.MONTHS, 1)) | _MONTHS
ALL_WEEKDAYS: Final = _each(enumerate(word_tables.WEEKDAYS)) | _each(enumerate(word_tables.DENSE_WEEKDAYS)) | _WEEKDAYS
UNIT_WORDS, WEEKDAY_WORDS = frozenset(_UNITS), frozenset(_WEEKDAYS)
ALL_UNITS: Final = _each(word_tables.UNITS.items()) | _each(word_tables.DENSE_UNITS.items()) | _UNITS
_ALL_NUMBERS: Final = (
    _each(enumerate(word_tables.NUMBERS, 1)) | _each(enumerate(word_tables.DENSE_NUMBERS, 1)) | _NUMBERS
)
"""With those of further languages."""
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
"""One of these stands in every expression: most questions have none, and that is seen at once."""
_FURTHER_HINTS: Final = frozenset(word_tables.HINTS.split()).union(
    *(names.split() for names in (*word_tables.MONTHS, *word_tables.WEEKDAYS, *word_tables.UNITS.values()))
)
_DENSE_HINT: Final = re.compile(word_tables.DENSE_HINT)
_PARTS: Final = {"morning": (5, 12), "afternoon": (12, 18), "evening": (17, 24), "night": (18, 30)}
"""Hours of the day; those from 24 on are the next day's."""


def spans_in(text: str, now: datetime) -> list[Named]:
    """The times that a text names, in order; of two that overlap the longer one.

    Args:
        text: as `holdfast.recall.terms.normal` gives it.
        now: local time, without a zone.
    """
    folded = fold(text)
    return find_spans(folded, read_words(folded), now)


def find_spans(folded: str, words: AbstractSet[str], now: datetime) -> list[Named]:
    """Do as `spans_in` does, for a folded text with these words."""
    rules = [] if HINTS.isdisjoint(words) else _GRAMMAR.find(words)
    if not _FURTHER_HINTS.isdisjoint(words):
        rules += FURTHER_RULES
    if not folded.isascii() and _DENSE_HINT.search(folded):
        rules += _DENSE_GRAMMAR.find(words)
    found = [named for rule in rules for named in match_rule(rule, folded, now)]
    found.sort(key=lambda named: (named.start - named.stop, named.start))
    kept: list[Named] = []
    for named in found:
        if all(named.stop <= other.start or named.start >= other.stop for other in kept):
            kept.append(named)
    return sorted(kept)


# -- spans -------------------------------------------------------------------


def whole_days(first: date, count: int = 1) -> Span:
    """Return the span of so many days."""
    begin = datetime.combine(first, time())
    return begin, begin + count * _DAY


def _month(year: int, month: int) -> Span:
    return datetime(year, month, 1), datetime(year + month // 12, month % 12 + 1, 1)  # noqa: DTZ001 - local time


def _months_back(now: datetime, count: int) -> tuple[int, int]:
    whole = now.year * 12 + now.month - 1 - count
    return whole // 12, whole % 12 + 1


def whole_unit(unit: str, now: datetime, back: int) -> Span:
    """Return the week, month or year so many back; 0 is the current one, -1 the next."""
    if unit == "week":
        return whole_days(now.date() - timedelta(days=now.weekday() + 7 * back), 7)
    if unit == "month":
        return _month(*_months_back(now, back))
    if unit == "year":
        return datetime(now.year - back, 1, 1), datetime(now.year - back + 1, 1, 1)  # noqa: DTZ001 - local time
    return whole_days(now.date() - back * _DAY)


def read_number(match: re.Match[str]) -> int:
    """Return the number in the group `n`, in digits or as a word."""
    word = match["n"].removeprefix("a ").removesuffix(" of")
    return int(word) if word.isdecimal() else _ALL_NUMBERS[word]


def read_unit(match: re.Match[str]) -> str:
    """Return the unit in the group `unit`: minute, hour, day, week, month or year."""
    return ALL_UNITS[match["unit"]]


def _ago(match: re.Match[str], now: datetime) -> Span:
    """So long ago, give or take what such words leave open."""
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        step = timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)
        give = max(step / 2, count * step / 4)
        return now - count * step - give, now - count * step + give
    vague = "few" in match["n"] or "couple" in match["n"] or "several" in match["n"]
    if unit == "day":
        return whole_days(now.date() - (count + 2 * vague) * _DAY, 1 + 3 * vague)
    if unit == "week":
        return whole_days(now.date() - timedelta(days=7 * count + 3 + 4 * vague), 7 + 8 * vague)
    year, month = _months_back(now, count if unit == "month" else 12 * count)
    middle = date(year, month, min(now.day, 28))
    give_days = (15 if unit == "month" else 92) * (1 + vague)
    return whole_days(middle - give_days * _DAY, 2 * give_days + 1)


def _past(match: re.Match[str], now: datetime) -> Span:
    """The last N of them, up to now."""
    count, unit = read_number(match), read_unit(match)
    if unit in {"minute", "hour"}:
        return now - count * (timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)), now
    if unit in {"day", "week"}:
        return datetime.combine(now.date() - count * (7 if unit == "week" else 1) * _DAY, time()), now
    year, month = _months_back(now, count if unit == "month" else 12 * count)
    return datetime.combine(date(year, month, min(now.day, 28)), time()), now


def _past_one(match: re.Match[str], now: datetime) -> Span:
    """So long back from now: "in the past week" are seven days, not the week before."""
    unit = read_unit(match)
    if unit in {"minute", "hour"}:
        return now - (timedelta(minutes=1) if unit == "minute" else timedelta(hours=1)), now
    day = {"day": 1, "week": 7, "month": 31, "year": 366}[unit]
    return datetime.combine(now.date() - day * _DAY, time()), now


def _romance(match: re.Match[str], now: datetime) -> Span | None:
    """Los últimos tres días: only with the word that says so."""
    said = match.group()
    return _past(match, now) if "últim" in said or "dernièr" in said or "dernier" in said else None


def _back(unit: str, count: int) -> Read:
    def read(match: re.Match[str], now: datetime) -> Span:
        return whole_unit(unit, now, count)

    return read


def _week_or_more(match: re.Match[str], now: datetime) -> Span:
    """The one before ("last month"), or the one that runs ("this month")."""
    return whole_unit(read_unit(match), now, 0 if match.groupdict().get("this") else 1)


def _part_of(back: int) -> Read:
    def read(match: re.Match[str], now: datetime) -> Span:
        return _hours(now.date() - back * _DAY, *_PARTS[match["part"]])

    return read


def _hours(day: date, first: int, last: int) -> Span:
    begin = datetime.combine(day, time())
    return begin + timedelta(hours=first), begin + timedelta(hours=last)


def _last_night(match: re.Match[str], now: datetime) -> Span:
    return _hours(now.date() - _DAY, 18, 30)


def _tonight(match: re.Match[str], now: datetime) -> Span:
    return _hours(now.date(), *_PARTS["evening"])


def _weekend(match: re.Match[str], now: datetime) -> Span:
    """The last one that has begun; with "last", before this week's."""
    saturday = now.date() - ((now.weekday() + 2) % 7) * _DAY
    if match["last"] and now.weekday() >= 5:
        saturday -= 7 * _DAY
    return whole_days(saturday, 2)


def _weekday(match: re.Match[str], now: datetime) -> Span:
    """The last day of that name before today; in "last week" that week's."""
    number = ALL_WEEKDAYS[match["weekday"]]
    groups = match.groupdict()
    if groups.get("week"):
        day = whole_unit("week", now, 1)[0].date() + number * _DAY
    else:
        day = now.date() - ((now.weekday() - number - 1) % 7 + 1) * _DAY
    part = groups.get("part")
    return _hours(day, *_PARTS[part]) if part else whole_days(day)


def _dated(match: re.Match[str], now: datetime) -> Span:
    """A day of a month, or a month; without a year the newest that has begun."""
    groups = match.groupdict()
    name = groups.get("month")
    month = _ALL_MONTHS[name] if name else _month_number(match["m"])
    day = int(groups.get("d") or 0)
    if groups.get("y"):
        year = int(match["y"])
    else:
        begun = (month, day) <= (now.month, now.day)
        if begun and groups.get("last") and month == now.month:
            begun = False
        year = now.year - (not begun)
    if day:
        return whole_days(date(year, month, day))
    return _month(year, month)


def _month_number(text: str) -> int:
    """A month in digits, or in Chinese numerals up to twelve."""
    if text.isdecimal():
        return int(text)
    ones = text.removeprefix("十")
    return 10 * (ones != text) + ("一二三四五六七八九".index(ones) + 1 if ones else 0)


def _slashes(match: re.Match[str], now: datetime) -> Span | None:
    """A day written with strokes: whether day or month comes first shows only where one is above 12."""
    first, second, year = int(match["first"]), int(match["second"]), int(match["y"])
    if (first > 12) == (second > 12) and first != second:
        return None
    return whole_days(date(year, second, first) if first > 12 else date(year, first, second))


def _year(match: re.Match[str], now: datetime) -> Span:
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
"""Behind these words a day or a month needs no other: "since Monday", "between May and July"."""
_OF_MONTH = rf"(?P<month>{_MONTH})\.?"
RULES: Final = (
    word_rule(r"earlier today|today|heute|hoy|aujourd'hui", _back("day", 0), "today heute hoy aujourd"),
    word_rule(r"yesterday|gestern|ayer|hier", _back("day", 1), "yesterday gestern ayer hier"),
    word_rule(
        r"(?:the )?day before yesterday|vorgestern|anteayer|antier|avant-hier",
        _back("day", 2),
        "yesterday vorgestern anteayer antier avant",
    ),
    word_rule(rf"this {_PART}", _part_of(0), "this", _PARTS),
    word_rule(rf"(?:earlier )?(?:yesterday|last) {_PART}", _part_of(1), "yesterday last", _PARTS),
    word_rule(r"last night|anoche|gestern (?:nacht|abend)|hier soir", _last_night, "night anoche nacht abend soir"),
    word_rule(r"tonight", _tonight, "tonight"),
    word_rule(
        rf"(?:(?P<this>this|diese[nrs]?|esta|este|cette|cet|ce)|last|previous|(?:letzte|vorige|vergangene)[nrs]?) (?P<unit>{UNIT})",
        _week_or_more,
        _UNITS,
        f"this last previous esta este cette cet ce {inflect_german('diese letzte vorige vergangene')}",
    ),
    word_rule(
        rf"(?:(?:la|el|le) |l')?(?P<unit>{UNIT}) (?:pasad[ao]|derni[eè]re?)",
        _week_or_more,
        _UNITS,
        "pasado pasada dernier derniere dernièr dernière",
    ),
    word_rule(
        rf"(?:in |over |during |within )?(?:the |den |die |in den )?(?:last|past|previous|letzten) {NUMBER} (?P<unit>{UNIT})",
        _past,
        _UNITS,
        "last past previous letzten",
    ),
    word_rule(rf"(?:in|over|during|within) the (?:past|last) (?P<unit>{UNIT})", _past_one, _UNITS, "past last"),
    word_rule(
        rf"(?:(?:los|las|les) )?(?:últim[oa]s )?{NUMBER} (?:dernier[s]?|dernières )?(?P<unit>{UNIT})(?: pasad[oa]s)?",
        _romance,
        {"últimos", "últimas", "dernières", *(f"dernier{s}{unit}" for s in ("", "s") for unit in _UNITS)},
    ),
    word_rule(rf"(?:about |around |some )?{NUMBER} (?P<unit>{UNIT}) (?:ago|earlier)", _ago, _UNITS, "ago earlier"),
    word_rule(rf"(?:vor|hace|il y a) {NUMBER} (?P<unit>{UNIT})", _ago, _UNITS, "vor hace il"),
    word_rule(r"(?:(?:on|over|at) )?(?:the |this |(?P<last>last |past ))weekend", _weekend, "weekend"),
    word_rule(
        rf"(?:on|last|this past|past|am|letzten|el|le) (?P<weekday>{WEEKDAY})(?: (?:pasado|dernier))?(?: {_PART})?",
        _weekday,
        _WEEKDAYS,
        "on last past am letzten el le",
    ),
    word_rule(rf"(?P<weekday>{WEEKDAY}) (?:pasado|dernier)", _weekday, _WEEKDAYS, "pasado dernier"),
    word_rule(rf"(?:{_JOINING})(?P<weekday>{WEEKDAY})", _weekday, _WEEKDAYS),
    word_rule(rf"(?:{_JOINING}){_OF_MONTH}", _dated, _MONTHS, relative=False),
    word_rule(rf"(?:on )?(?P<weekday>{WEEKDAY}) (?:of )?(?P<week>last week)", _weekday, _WEEKDAYS, "week"),
    word_rule(
        rf"(?:(?:on|am|el|le) )?(?:the )?{_D}{_TH} (?:of |de )?{_OF_MONTH}(?:,? (?:of |de |del )?{_Y})?",
        _dated,
        _MONTHS,
        DIGIT,
        relative=False,
    ),
    word_rule(rf"(?:on )?{_OF_MONTH} (?:the )?{_D}{_TH}(?:,? (?:of )?{_Y})?", _dated, _MONTHS, DIGIT, relative=False),
    word_rule(rf"(?:on )?{_Y}[-/.](?P<m>\d{{1,2}})[-/.]{_D}", _dated, YEAR, relative=False),
    word_rule(rf"(?:on |am )?{_D}\.(?P<m>\d{{1,2}})\.{_Y}", _dated, YEAR, relative=False),
    word_rule(rf"(?:on )?(?P<first>\d{{1,2}})/(?P<second>\d{{1,2}})/{_Y}", _slashes, YEAR, relative=False),
    word_rule(
        rf"(?:in|during|im|en|(?P<last>last)) (?:early |mid |late |the (?:beginning|middle|end) of )?{_OF_MONTH}(?:,? (?:of |de )?{_Y})?",
        _dated,
        _MONTHS,
        "in during im en last",
        relative=False,
    ),
    word_rule(rf"{_OF_MONTH},? (?:of |de )?{_Y}", _dated, _MONTHS, YEAR, relative=False),
    word_rule(
        rf"(?:in|during|im jahr|en|throughout) {_Y}", _year, YEAR, "in during jahr en throughout", relative=False
    ),
)
_FURTHER_N = rf"(?P<n>\d{{1,4}}|{any_of(_ALL_NUMBERS)})"
_FURTHER_MONTH = rf"(?P<month>{any_of(_ALL_MONTHS)})"
FURTHER_RULES: Final = (
    *(word_rule(phrases, _back(unit, back)) for (unit, back), phrases in word_tables.BACK.items()),
    *(word_rule(one.format(n=_FURTHER_N, unit=f"(?P<unit>{any_of(ALL_UNITS)})"), _ago) for one in word_tables.AGO),
    *(word_rule(one.format(n=_FURTHER_N, unit=f"(?P<unit>{any_of(ALL_UNITS)})"), _past) for one in word_tables.PAST),
    *(word_rule(one.format(weekday=any_of(ALL_WEEKDAYS)), _weekday) for one in word_tables.ON),
    word_rule(rf"(?:{word_tables.IN}) {_FURTHER_MONTH}(?:,? (?:de |del )?{_Y})?", _dated, relative=False),
    word_rule(rf"(?:{word_tables.AT} )?{_D} (?:de )?{_FURTHER_MONTH}(?: (?:de |del )?{_Y})?", _dated, relative=False),
)


_DENSE_COUNT = (
    rf"(?<![\d.,:])(?P<n>\d{{1,4}}|{any_of(_each(enumerate(word_tables.DENSE_NUMBERS, 1)))})"
    rf" ?(?P<unit>{any_of(_each(word_tables.DENSE_UNITS.items()))})"
)
DENSE_RULES: Final = (
    *(dense_rule(phrases, _back(unit, back)) for (unit, back), phrases in word_tables.DENSE_BACK.items()),
    dense_rule(rf"{_DENSE_COUNT} ?(?:之?前|전)", _ago),
    dense_rule(
        rf"(?P<week>{word_tables.DENSE_LAST_WEEK})?(?P<weekday>{any_of(_each(enumerate(word_tables.DENSE_WEEKDAYS)))})",
        _weekday,
    ),
    dense_rule(
        r"(?:(?P<y>(?:19|20)\d\d) ?[年년] ?)?(?<!\d)(?P<m>\d{1,2}|十[一二]?|[一二三四五六七八九]) ?[月월](?: ?(?P<d>\d{1,2}) ?[日号號일])?(?!曜)",
        _dated,
        relative=False,
    ),
)
_GRAMMAR: Final = Rules(RULES)
_DENSE_GRAMMAR: Final = Rules(DENSE_RULES)
