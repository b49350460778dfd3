"""Times of a question: whether it asks for what was said at some time, and when that was, in milliseconds since the epoch.

"What did I ask about yesterday?" asks for yesterday's messages. "What did Ana do last week?" asks for something of last week that was said
since. "What did I say about the trip in May?" may mean a trip in May: then what was said in May is only likelier. "What happens tomorrow?"
says nothing about when it was said.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.recall import timewords
from holdfast.recall.expressions import spans_in
from holdfast.recall.terms import normal
from holdfast.recall.time_rules import Named


class TimeRange(msgspec.Struct, frozen=True):
    """From a moment until before another, in milliseconds since the epoch; None: no such end."""

    start: int | None
    stop: int | None
    words: tuple[tuple[int, int], ...] = ()
    """Where in the (normal) text it is named: no words to search for."""


_VERBS = (
    "ask|asked|asking|say|said|saying|tell|told|telling|talk|talked|talking|speak|spoke|mention|mentioned|discuss|discussed|discussing"
    "|chat|chatted|write|wrote|written|show|showed|shown|decide|decided|agree|agreed|promise|promised|suggest|suggested|recommend"
    "|recommended|explain|explained|answer|answered|send|sent|share|shared|request|requested|note|noted|work on|worked on|conclude|concluded"
)
_CONVERSATION: Final = re.compile(
    rf"\b(?:I|we|you|me|us)\b[^.?!]{{0,24}}?\b(?:{_VERBS})\b|\b(?:conversations?|chats?|discussions?|sessions|messages|questions|topics)\b"
    r"|(?:\b(?:my|our|your|that)|'s) (?:session|message|question|topic)\b"
    r"|\b(?:ich|wir|du)\b[^.?!]{0,60}\b(?:gefragt|gesagt|erzählt|besprochen|geredet|gesprochen|erwähnt|geschrieben|gezeigt|diskutiert"
    r"|entschieden|beschlossen|vereinbart|vorgeschlagen|empfohlen|geantwortet|erklärt|geraten)\b|\b(?:gespräche?|unterhaltung)\b"
    r"|\b(?:meine|deine|unsere|alle)n? (?:fragen?|antworten|nachrichten|themen)\b"
    r"|\b(?:pregunt|habl|dij|cont|mencion|coment|discut|escrib)\w*|\b(?:conversaci[óo]n|conversaciones|charla)\b"
    r"|\b(?:ai|as|avons|avez|a)(?:-je|-tu|-vous|-nous|-t-on)?\b[^.?!]{0,24}\b(?:demandé|dit|parlé|mentionné|raconté|discuté|écrit|conseillé|recommandé|proposé|expliqué|répondu)\b|\bparl(?:é|ions)\b"
    rf"|{timewords.CONVERSATION}|{timewords.DENSE_CONVERSATION}",
    re.IGNORECASE,
)
_LOOKS_BACK: Final = re.compile(
    r"\b(?:did|was|were|had|been|happened|went|came|what's new|hatte|hatten|war|waren|hizo|hice|fue|fui|estaba|pasó|était|étaient|a-t-il|a-t-elle|ai|avons)\b"
    r"|\b(?:have|has)\b(?=(?: \w+){0,3} (?:done|gone|made|had|got|met|seen|(?!need|feed|speed)\w{2,16}(?:ed|en))\b)"
    r"|\b(?:habe|haben|hat|hast)\b(?=[^.?!]*\b\w{0,12}ge\w{2,16}(?:t|en)\b)",
    re.IGNORECASE,
)
"""In a word that may be of today too ("I have a meeting on Monday") only together with what was done."""
_ENDS: Final = re.compile(r"[!?](?=\s)|[!?](?=[\u3040-\u9fff\uac00-\ud7ff])|\.(?=\s+(?![a-z]))|[\n\u3002]")
_AHEAD: Final = re.compile(
    r"\b(?:will|going to|tomorrow|next (?:week|month|year)|morgen früh|übermorgen|nächste[nrs]?|mañana|demain|prochaine?)\b",
    re.IGNORECASE,
)
_SINCE: Final = re.compile(r"\b(?:since|seit(?: dem)?|desde(?: el)?|depuis(?: le)?|starting)\s*$", re.IGNORECASE)
_AFTER: Final = re.compile(r"\b(?:after|nach(?: dem)?|después de(?:l)?|après(?: le)?)\s*$", re.IGNORECASE)
_BEFORE: Final = re.compile(r"\b(?:before|prior to|vor(?: dem)?|antes de(?:l)?|avant(?: le)?)\s*$", re.IGNORECASE)
_UNTIL: Final = re.compile(r"\b(?:until|till|up to|by|bis(?: zum)?|hasta(?: el)?|jusqu'(?:à|au))\s*$", re.IGNORECASE)
_FROM: Final = re.compile(r"\b(?:between|from|zwischen|von|vom|entre|desde|de|du)\s*(?:dem |el |le )?$", re.IGNORECASE)
_TO: Final = re.compile(
    r"\s*(?:and|to|until|till|through|und|bis(?: zum)?|y|hasta|et|al?|au|[-\u2013])\s*(?:dem |el |le )?", re.IGNORECASE
)
_ABOUT_SOMETHING: Final = re.compile(
    r"\b(?:about|regarding|concerning|of|on|über|sobre|de|propos de)\s+(?!on\b|in\b|during\b|since\b|between\b|before\b|after\b)\w+.*$",
    re.IGNORECASE,
)


def times_of(text: str, now: int, zone: str = "UTC") -> tuple[TimeRange | None, tuple[tuple[int, int], ...]]:
    """Find the time in which something was said that a question asks for, None: any; and all times that it names, whatever for.

    Args:
        text: the question.
        now: milliseconds since the epoch.
        zone: name of the time zone (IANA) that days begin in.

    Raises:
        InvalidRequest: there is no such zone, or no such time.
    """
    text = normal(text)
    place = zone_of(zone)
    named = spans_in(text, _local(now, place))
    if not named:
        return None, ()
    spans = tuple((_moment(one.span[0], place), _moment(one.span[1], place)) for one in named)
    return _range(text, named, place), spans


@lru_cache(maxsize=256)
def zone_of(name: str) -> tzinfo:
    """A time zone by its IANA name.

    Raises:
        InvalidRequest: there is none.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise InvalidRequest(
            f"there is no time zone {name[:64]!r}; one is named like Europe/Berlin", param="timezone"
        ) from exc


# -- which time is meant -----------------------------------------------------


def _range(text: str, named: list[Named], place: tzinfo) -> TimeRange | None:
    begin, end, words, relative = _joined(text, named)
    if begin is not None and end is not None and end <= begin:
        return None
    first, last = _sentence(text, words[0])
    said = text[first:last]
    asks = said.endswith("?") or said.strip() == text.strip()
    if _CONVERSATION.search(_without(said, first, named)) and (
        relative or not _is_attribute(text[first : words[0][0]])
    ):
        stop = end
    elif begin is not None and relative and asks and _LOOKS_BACK.search(said) and not _AHEAD.search(said):
        stop = None
    else:
        return None
    return TimeRange(
        None if begin is None else _moment(begin, place), None if stop is None else _moment(stop, place), words
    )


_Joined = tuple["datetime | None", "datetime | None", tuple[tuple[int, int], ...], bool]


def _joined(text: str, named: list[Named]) -> _Joined:
    """The named times as one: what stands before and between them tells how."""
    first = named[0]
    before = text[: first.start]
    (begin, end), relative = first.span, first.relative
    if len(named) > 1:
        second = named[1]
        joint = _TO.fullmatch(text[first.stop : second.start])
        from_there = _FROM.search(before)
        if joint and from_there:
            if second.span[0] < begin:  # "between May and July", asked in May: those of last year
                begin = begin - timedelta(days=7) if relative else _year_before(begin)
            span = min(begin, second.span[0]), max(begin, second.span[1])
            return *span, ((from_there.start(), second.stop),), relative and second.relative
    opened: tuple[tuple[re.Pattern[str], datetime | None, datetime | None], ...] = (
        (_SINCE, begin, None),
        (_AFTER, end, None),
        (_BEFORE, None, begin),
        (_UNTIL, None, end),
    )
    for pattern, start, stop in opened:
        found = pattern.search(before)
        if found:
            return start, stop, ((found.start(), first.stop),), relative
    return begin, end, ((first.start, first.stop),), relative


def _year_before(moment: datetime) -> datetime:
    return moment.replace(year=moment.year - 1, day=min(moment.day, 28))


def _sentence(text: str, words: tuple[int, int]) -> tuple[int, int]:
    """Where the sentence begins and ends that a time stands in: what is said elsewhere does not tell what it is for."""
    ends = [found.end() for found in _ENDS.finditer(text)]
    first = max((end for end in ends if end <= words[0]), default=0)
    return first, min((end for end in ends if end > words[1]), default=len(text.rstrip()))


def _without(said: str, first: int, named: list[Named]) -> str:
    """A sentence, which begins at `first`, without the times that are named."""
    for one in reversed(named):
        if first <= one.start < first + len(said):
            said = said[: one.start - first] + " " + said[one.stop - first :]
    return said


def _is_attribute(before: str) -> bool:
    """Whether a time behind these words may belong to what was talked about, and not to the talk: "about the trip in May"."""
    return _ABOUT_SOMETHING.search(before.rstrip()) is not None


def _local(now: int, place: tzinfo) -> datetime:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=now)).astimezone(place).replace(tzinfo=None)
    except OverflowError as exc:
        raise InvalidRequest(f"{now} is no time, in milliseconds since the epoch", param="now") from exc


def _moment(local: datetime, place: tzinfo) -> int:
    """Milliseconds since the epoch of a local time; one that a change of the clock leaves out is the moment of the change."""
    try:
        moment = local.replace(tzinfo=place).astimezone(UTC)
    except OverflowError:  # the first or the last day of the calendar, which elsewhere is behind its end
        moment = local.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
