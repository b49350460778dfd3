"""Parse questions: the concepts to search for, the time and the speaker that the question refers to, and likely typos.

**Concepts.** A concept is a word of the question with alternatives: its stems in several languages if the language is uncertain,
the parts of an identifier, and everyday words with the same meaning. Each alternative has a weight. Questions have no query
syntax. Words about the conversation itself ("did I mention") and about its time ("yesterday") are not concepts.

**Times.**

- "What did I ask about yesterday?" asks for yesterday's messages.
- "What did Ana do last week?" asks for an event of last week. The event may have been mentioned last week or later.
- "What did I say about the trip in May?" may mean a trip in May or a message from May. So messages from May are preferred, but
  others are found as well.
- "What happens tomorrow?" says nothing about the time of the message.

**Typos.** If no word of a question occurs in the index, similar words are tried. This module generates them by removing, adding
or changing one letter, or by exchanging two adjacent letters. The first letter is assumed to be correct. The index is only asked
how often each similar word occurs, so no text of the user is read.
"""

# ruff: noqa: RUF001 (words of other scripts are what some patterns are about)

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.recall import word_tables
from holdfast.recall.details import find_mentions
from holdfast.recall.terms import (
    MAX_TERM,
    PART,
    SPARE,
    WHOLE,
    Token,
    bound_term,
    is_code,
    is_dense,
    iter_readings,
    iter_tokens,
    normalize,
    stem,
)
from holdfast.recall.time_expressions import NamedTime, find_times
from holdfast.recall.word_tables import ASKING, ENGLISH, KINDRED, LANGUAGES, TALKING, find_language


class TimeRange(msgspec.Struct, frozen=True):
    """A range of time, in milliseconds since the epoch: `start` is included, `stop` is excluded. None means no bound."""

    start: int | None
    stop: int | None
    words: tuple[tuple[int, int], ...] = ()
    """Start and stop, in the normalised question, of the words that name the range. These words are not searched for."""


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
    rf"|{word_tables.CONVERSATION}|{word_tables.DENSE_CONVERSATION}",
    re.IGNORECASE,
)
_LOOKS_BACK: Final = re.compile(
    r"\b(?:did|was|were|had|been|happened|went|came|what's new|hatte|hatten|war|waren|hizo|hice|fue|fui|estaba|pasó|était|étaient|a-t-il|a-t-elle|ai|avons)\b"
    r"|\b(?:have|has)\b(?=(?: \w+){0,3} (?:done|gone|made|had|got|met|seen|(?!need|feed|speed)\w{2,16}(?:ed|en))\b)"
    r"|\b(?:habe|haben|hat|hast)\b(?=[^.?!]*\b\w{0,12}ge\w{2,16}(?:t|en)\b)",
    re.IGNORECASE,
)
"""Matches verb forms that refer to the past. Auxiliary verbs that may also refer to the present ("I have a meeting on Monday")
match only if a past participle follows."""
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


def find_question_times(text: str, now: int, zone: str = "UTC") -> tuple[TimeRange | None, tuple[tuple[int, int], ...]]:
    """Return the time range of the messages that a question asks for, and all times that the question names.

    The range is None if messages of any time may answer. Times are in milliseconds since the epoch, as start (included) and stop
    (excluded).

    Args:
        text: the question.
        now: the current time, in milliseconds since the epoch.
        zone: IANA name of the time zone in which days begin.

    Raises:
        InvalidRequest: `zone` is not a time zone, or `now` is out of range.
    """
    text = normalize(text)
    place = parse_zone(zone)
    named = find_times(text, _to_local(now, place))
    if not named:
        return None, ()
    spans = tuple((_to_moment(one.span[0], place), _to_moment(one.span[1], place)) for one in named)
    return _find_range(text, named, place), spans


@lru_cache(maxsize=256)
def parse_zone(name: str) -> tzinfo:
    """Return the time zone with an IANA name, such as `Europe/Berlin`.

    Raises:
        InvalidRequest: there is no time zone with this name.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise InvalidRequest(
            f"there is no time zone {name[:64]!r}; one is named like Europe/Berlin", param="timezone"
        ) from exc


# -- the time that is meant --------------------------------------------------


def _find_range(text: str, named: list[NamedTime], place: tzinfo) -> TimeRange | None:
    begin, end, words, relative = _join_times(text, named)
    if begin is not None and end is not None and end <= begin:
        return None
    first, last = _find_sentence(text, words[0])
    sentence = text[first:last]
    asks = sentence.endswith("?") or sentence.strip() == text.strip()
    if _CONVERSATION.search(_remove_times(sentence, first, named)) and (
        relative or not _is_attribute(text[first : words[0][0]])
    ):
        stop = end
    elif begin is not None and relative and asks and _LOOKS_BACK.search(sentence) and not _AHEAD.search(sentence):
        stop = None
    else:
        return None
    return TimeRange(
        None if begin is None else _to_moment(begin, place), None if stop is None else _to_moment(stop, place), words
    )


_JoinedTimes = tuple["datetime | None", "datetime | None", tuple[tuple[int, int], ...], bool]


def _join_times(text: str, named: list[NamedTime]) -> _JoinedTimes:
    """Combine the first one or two named times into one range, according to the words before and between them.

    Returns:
        Start and stop of the range, the positions of the words that name it, and True if it is relative to now.
    """
    first = named[0]
    before = text[: first.start]
    (begin, end), relative = first.span, first.relative
    if len(named) > 1:
        second = named[1]
        joint = _TO.fullmatch(text[first.stop : second.start])
        from_there = _FROM.search(before)
        if joint and from_there:
            if second.span[0] < begin:  # "between May and July", asked in May, means last year's
                begin = begin - timedelta(days=7) if relative else _subtract_year(begin)
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


def _subtract_year(moment: datetime) -> datetime:
    return moment.replace(year=moment.year - 1, day=min(moment.day, 28))


def _find_sentence(text: str, words: tuple[int, int]) -> tuple[int, int]:
    """Return the start and stop of the sentence that contains these words. Only this sentence shows what the time refers to."""
    ends = [found.end() for found in _ENDS.finditer(text)]
    first = max((end for end in ends if end <= words[0]), default=0)
    return first, min((end for end in ends if end > words[1]), default=len(text.rstrip()))


def _remove_times(sentence: str, first: int, named: list[NamedTime]) -> str:
    """Remove the named times from a sentence that begins at position `first` of the text."""
    for one in reversed(named):
        if first <= one.start < first + len(sentence):
            sentence = sentence[: one.start - first] + " " + sentence[one.stop - first :]
    return sentence


def _is_attribute(before: str) -> bool:
    """Return True if a time after these words may be the time of the topic ("about the trip in May"), not that of the conversation."""
    return _ABOUT_SOMETHING.search(before.rstrip()) is not None


def _to_local(now: int, place: tzinfo) -> datetime:
    try:
        return (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=now)).astimezone(place).replace(tzinfo=None)
    except OverflowError as exc:
        raise InvalidRequest(f"{now} is no time, in milliseconds since the epoch", param="now") from exc


def _to_moment(local: datetime, place: tzinfo) -> int:
    """Convert a local time to milliseconds since the epoch.

    A local time that a clock change skipped is shifted by the length of the change: 2:30 becomes 3:30.
    """
    try:
        moment = local.replace(tzinfo=place).astimezone(UTC)
    except OverflowError:  # the first or last day of the calendar, which is out of range in another zone
        moment = local.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


MAX_QUESTION: Final = 8_000
"""Number of characters at the beginning of a question that are read."""
MAX_ASKING: Final = 500
"""Number of characters at the beginning of a question that are searched for times and for the kind of answer that it asks for. A longer
text is probably not a question."""
MAX_CONCEPTS: Final = 48
"""Maximum number of concepts of a question. The first ones are kept."""
PART_WEIGHT, SPARE_WEIGHT, SINGLE_WEIGHT, KIN_WEIGHT, OTHER_LANGUAGE = 0.4, 0.7, 0.25, 0.5, 0.9
"""Weights of a word's alternatives, in this order: a part of an identifier, a second reading of a word, a single character of a
Chinese word, a related word, and a stem of another language. The word itself has weight 1."""

_TIME_NOUNS: Final = "day|date|week|weekday|month|year|time|season|minute|hour|moment|deadline"
DENSE: Final = "dense"
"""Value of `Question.language` for a question in a script without spaces."""
EVERYDAY_WEIGHT: Final = 0.5
"""Weight of an alternative that is an everyday word for the same thing."""
_EVERYDAY: Final = Path(__file__).parents[1] / "data" / "everyday"
_ASKS_TIME = re.compile(
    rf"\bwhen\b|\b(?:what|which)(?: is| was|'s)?(?: the| my| our)? (?:{_TIME_NOUNS})\b|\bhow long ago\b"
    r"|\bwann\b|\bum wie ?viel uhr\b|\ban welchem (?:tag|datum)\b|\bcu[áa]ndo\b|\b(?:a|en) qu[ée] (?:hora|d[íi]a|fecha)\b"
    r"|\bquand\b|\b[àa] quelle (?:heure|date)\b|\bquel jour\b|\bquando\b|\b(?:a|em) que (?:horas?|dia|data)\b"
    r"|\bwanneer\b|\bкогда\b|什么时候|什么时间|何时|几点|几号|哪天|哪一天|星期几|周几|いつ|何時|何日|何曜日",
    re.IGNORECASE,
)
_NUMBER_NOUNS: Final = (
    "age|amount|budget|cost|costs|count|deposit|dosage|dose|distance|fee|fees|height|income|interest|length|limit|minute|minutes"
    "|number|percent|percentage|price|prices|quantity|rate|rent|salary|share|size|speed|strength|sum|temperature|threshold|time"
    "|total|version|wage|wages|weight|width|year"
)
_ASKS_NUMBER = re.compile(
    r"\bhow (?:many|much|long|old|often|far|tall|big|high|late|early|fast|strong|large|heavy|deep|wide|hot|cold|soon)\b"
    rf"|\b(?:{_NUMBER_NOUNS})\b"
    r"|\bwie\s?(?:viele?|lange|alt|oft|weit|hoch|groß|stark|schwer|teuer|schnell)\b"
    r"|\b(?:alter|anzahl|betrag|budget|dosis|gebühr|gehalt|größe|höhe|kosten|lohn|menge|miete|nummer|preis|summe|temperatur)\b"
    r"|\bcu[áa]nt[oa]s?\b|\b(?:edad|cantidad|coste|costo|precio|presupuesto|alquiler|salario|sueldo|tarifa|dosis|n[úu]mero|tamaño)\b"
    r"|\bcombien\b|\b(?:[âa]ge|co[ûu]t|dose|loyer|montant|nombre|num[ée]ro|prix|salaire|tarif|taille)\b"
    r"|\bquant[oaie]s?\b|\b(?:idade|custo|preço|orçamento|aluguel|renda|tarifa|tamanho)\b"
    r"|\bhoeveel\b|\bсколько\b"
    r"|多少|几[个次天岁点年月号块元]|多[大久长高重远]|价格|价钱|费用|学费|预算|房租|租金|工资|薪水|年龄|剂量|号码|数量"
    r"|いくら|いくつ|何[個人回歳円年月分本枚度]|値段|料金|費用|予算|家賃|給料|年齢|番号",
    re.IGNORECASE,
)
_NO_PLURAL: Final = (
    "is|was|does|has|this|his|hers|its|us|as|always|perhaps|yes|yours|ours|theirs|besides|less|plus|news|unless|address|boss|class|bus|gas"
    "|status|access|process|business|campus|virus|focus|bonus|lens|series|express|dress|glass|press|success|thus"
)
_ASKS_MANY: Final = re.compile(
    rf"\b(?:how many|(?:which|what)(?: of (?:my|our|the|your))?(?: [a-z'-]+)?? (?!(?:{_NO_PLURAL})\b)[a-z-]{{2,}}s)\b"
    rf"|\b(?:what|which) (?:are|were) (?:the|my|our|your|all)(?: [a-z-]+)?? (?!(?:{_NO_PLURAL})\b)[a-z-]{{2,}}s\b"
    r"|\b(?:wie ?viele|welche (?:\w+e )?\w+(?:en|er|s)|combien de|quels|quelles|cu[áa]les|cu[áa]nt[oa]s|quais|quant[oa]s|quali|quant[ie]"
    r"|какие|сколько)\b|哪些|几[个個种種次位家件款]|多少[个個种種次位家]|都有(?:谁|什么|哪)|都是谁",
    re.IGNORECASE,
)
_LISTS: Final = re.compile(r"(?:please )?(?:list|name all|enumerate|zähl|nenne alle|列出)\b", re.IGNORECASE)
_TALK = "say|said|ask|asked|tell|told|mention|mentioned|talk|talked|write|wrote|promise|promised|decide|decided|show|showed|want|wanted"
_BY_USER = re.compile(
    rf"\b(?:did|have|had|what|that) I (?:{_TALK})\b|\bI (?:{_TALK})\b|\bmy (?:questions?|messages?|requests?)\b"
    r"|\bich\b[^.?!]{0,40}\b(?:gesagt|gefragt|erzählt|erwähnt|geschrieben)\b|\bmeine (?:fragen?|nachrichten?)\b"
    r"|\bj'ai (?:dit|demandé)|\bmes (?:questions|messages)\b|\bpregunt[ée]\b|\bdije\b|\bmis (?:preguntas|mensajes)\b",
    re.IGNORECASE,
)
_MADE: Final = (
    "advice|answer|calculation|draft|email|estimate|example|explanation|figure|formula|letter|list|math|opinion|outline|plan|proposal"
    "|reckoning|recommendation|reply|replies|rule|schedule|suggestion|sum|summary|table|template|text|version|view"
)
_BY_ASSISTANT = re.compile(
    r"\b(?:did|had|have|didn't|haven't) you\b|\byou (?:\w{3,14}ed|said|told|gave|put|wrote|came up|drew|made|found|thought|chose)\b"
    rf"|\byour (?:\w+ ){{0,2}}(?:{_MADE})s?\b|\baccording to you\b"
    r"|\b(?:hast du|du|haben sie)\b[^.?!]{0,60}\b(?:ge\w{2,14}(?:t|en)|vorge\w{2,14}|ausge\w{2,14}|empfohlen|er\w{2,14}t|be\w{2,14}t)\b"
    r"|\b(?:dein|ihr)(?:e[mnrs]?)? (?:\w+ )?(?:vorschl[aä]ge?|rechnung|empfehlung|rat|antwort|entwurf|plan|liste|tabelle|schätzung|meinung|text|brief)\b"
    r"|\blaut dir\b|\b(?:dijiste|recomendaste|sugeriste|calculaste|propusiste|aconsejaste)\b|\bme (?:has|habías) \w+do\b"
    r"|\b(?:tu m'as|tu as|as-tu|m'as-tu|vous m'avez|vous avez|avez-vous)\b[^.?!]{0,24}\b\w{2,14}(?:é|it|u|is)\b"
    r"|\b(?:ton|votre|tes|vos) (?:conseils?|calcul|avis|estimation|réponse|proposition|liste|brouillon|plan)\b"
    r"|[你您][^。?!,，？！]{0,8}(?:说|說|算|估|让|讓|建议|建議|推荐|推薦|列|写|寫|给|給|提|认为|認為|觉得|覺得|讲|講|教)",
    re.IGNORECASE,
)


class Concept(msgspec.Struct, frozen=True, gc=False):
    """A word of a question, with the terms that match it."""

    word: str
    """The word as written, case-folded, without an apostrophe and what follows it."""
    variants: tuple[tuple[str, float], ...]
    """Terms that match the word, each with its weight. The first is the word's own term; the others are its alternatives."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed question."""

    text: str
    concepts: tuple[Concept, ...]
    language: str | None = None
    """The language of the question: the name of a stemmer, or `dense` for a script without spaces. None: not recognised."""
    range: TimeRange | None = None
    """The question asks only for messages from this time. None: messages of any time may answer."""
    mentioned: tuple[tuple[int, int], ...] = ()
    """If `range` is None: the times that the question names, as start (included) and stop (excluded) in milliseconds since the epoch.
    Messages from these times are slightly preferred."""
    days: tuple[tuple[int, int], ...] = ()
    """All times that the question names, each as its first day and the day after its last day, in days since the epoch."""
    role: str | None = None
    """The role that probably said the answer: `user` or `assistant`. Its messages are slightly preferred. None: not known."""
    asks_time: bool = False
    asks_number: bool = False
    asks_many: bool = False
    """True if several messages together may answer the question, as for a list or a count."""

    @property
    def terms(self) -> tuple[str, ...]:
        """The distinct terms to look up in the index: those of all concepts."""
        return tuple(dict.fromkeys(term for concept in self.concepts for term, _ in concept.variants))

    @property
    def spans(self) -> tuple[tuple[int | None, int | None], ...]:
        """The time range if there is one, otherwise all named times, as start (included) and stop (excluded).

        In milliseconds since the epoch; None means no bound.
        """
        return self.mentioned if self.range is None else ((self.range.start, self.range.stop),)

    def has_time(self, at: int) -> bool:
        """Return True if a moment (milliseconds since the epoch) is within one of the `spans`."""
        return any((start is None or start <= at) and (stop is None or at < stop) for start, stop in self.spans)

    @property
    def only_time(self) -> bool:
        """True if the question names a time and no topic, as in "What did I ask about yesterday?"."""
        return self.range is not None and not self.concepts


def parse_question(
    text: str, *, now: int, zone: str = "UTC", narrow: bool = True, timed: bool = True, everyday: bool = False
) -> Question:
    """Parse a question.

    Args:
        text: the question. Only the first `MAX_QUESTION` characters are read.
        now: the current time, in milliseconds since the epoch.
        zone: IANA name of the time zone for expressions like "yesterday".
        narrow: True if "yesterday" may restrict the search to yesterday's messages. If False, or if the text is longer than
            `MAX_ASKING`, `range` is None and expressions of time are searched for like other words.
        timed: False: do not look for expressions of time. Then `range` is None, and `mentioned` and `days` are empty.
        everyday: True: everyday words for the same thing (`holdfast/data/everyday`) match as well.

    Raises:
        InvalidRequest: `zone` is not a time zone, or `now` is out of range.
    """
    text = normalize(text[:MAX_QUESTION])
    asks = text[:MAX_ASKING]
    when, about = find_question_times(asks, now, zone) if timed else (None, ())
    if not narrow or len(text) > MAX_ASKING:
        when = None
    tokens = list(_iter_tokens(text, when))
    language = find_language(token.text.casefold() for token in tokens)
    return Question(
        text=text,
        concepts=_find_concepts(tokens, language, narrowed=when is not None, everyday=everyday),
        language=DENSE if any(is_dense(token.text) for token in tokens) else language,
        range=when,
        mentioned=() if when else about,
        days=find_mentions(asks, now, parse_zone(zone)) if timed else (),
        role=_find_role(asks) or (_find_role(asks, further=True) if when else None),
        asks_time=bool(_ASKS_TIME.search(asks)),
        asks_number=bool(_ASKS_NUMBER.search(asks)),
        asks_many=is_asking_for_many(asks),
    )


def is_asking_for_many(text: str) -> bool:
    """Return True if several messages together may answer a question ("which countries", "how many dogs")."""
    asks = text[:MAX_ASKING].strip()
    if _LISTS.match(asks) is not None:
        return True
    found = _ASKS_MANY.search(asks)
    return found is not None and (found.start() == 0 or "?" in asks[found.end() :] or is_dense(found.group()))


def _find_role(text: str, *, further: bool = False) -> str | None:
    """Return the role whose words the question asks for ("did I say": `user`), or None.

    Args:
        text: the question.
        further: use the patterns of the other languages (`word_tables`) instead of those of the main languages.
    """
    by_user, by_assistant = (_FURTHER_BY_USER, _FURTHER_BY_ASSISTANT) if further else (_BY_USER, _BY_ASSISTANT)
    return "assistant" if by_assistant.search(text) else "user" if by_user.search(text) else None


_FURTHER_BY_USER: Final = re.compile(word_tables.BY_USER, re.IGNORECASE)
_FURTHER_BY_ASSISTANT: Final = re.compile(word_tables.BY_ASSISTANT, re.IGNORECASE)


def _iter_tokens(text: str, when: TimeRange | None) -> Iterator[Token]:
    """Yield the tokens of a question, without the words that name its time range.

    If the question has a time range, words about the conversation are removed as well from runs of scripts without spaces.
    """
    taken = when.words if when else ()
    for token in iter_tokens(text):
        if not when or not is_dense(token.text):
            if not any(start <= token.start < stop for start, stop in taken):
                yield token
            continue
        rest = list(token.text)
        for start, stop in taken:
            for at in range(max(start - token.start, 0), min(stop - token.start, len(rest))):
                rest[at] = " "
        left = _DENSE_TALK.sub(lambda found: " " * len(found.group()), "".join(rest))
        yield from (Token(token.start + one.start, token.start + one.stop, one.text) for one in iter_tokens(left))


_DENSE_TALK: Final = re.compile(word_tables.DENSE_TALK)


def _find_concepts(tokens: list[Token], language: str | None, *, narrowed: bool, everyday: bool) -> tuple[Concept, ...]:
    about = [token for token in tokens if token.text.casefold() not in ASKING]
    found = _read_concepts(about, language, everyday=everyday)
    if narrowed:
        return () if all(concept.word in TALKING for concept in found) else found
    return found or _read_concepts(tokens, language, everyday=everyday)


def _read_concepts(tokens: list[Token], language: str | None, *, everyday: bool) -> tuple[Concept, ...]:
    concepts: dict[str, Concept] = {}
    for token in tokens:
        read = _read_cached if len(token.text) <= MAX_TERM else _read_token
        for concept in read(token.text, language, everyday):
            concepts.setdefault(concept.variants[0][0], concept)
            if len(concepts) == MAX_CONCEPTS:
                return tuple(concepts.values())
    return tuple(concepts.values())


def _read_token(text: str, language: str | None, everyday: bool) -> tuple[Concept, ...]:  # noqa: FBT001
    """Return the concepts of a token."""
    word = bound_term(_strip_suffix(text))
    found = []
    for variants in _iter_variants(text, language):
        wider = _add_everyday(variants, language or ENGLISH) if everyday else variants
        found.append(Concept(word, wider))
    return tuple(found)


_read_cached = lru_cache(maxsize=4_096)(_read_token)
"""`_read_token` with a cache, because words repeat and each turn reads the current message. Callers do not use it for very long tokens."""


def _strip_suffix(word: str) -> str:
    return word.casefold().partition("'")[0]


def _iter_variants(word: str, language: str | None) -> Iterator[tuple[tuple[str, float], ...]]:
    """Yield the variants of each concept of a token.

    A word is one concept, and a code with its parts is one concept. Each of several joined words is a concept of its own.
    """
    if _strip_suffix(word).isalpha() and not is_dense(word) and not is_code(word):
        yield from _iter_word_variants(word, language)
        return
    code: list[tuple[str, float]] = []
    for term, kind in iter_readings(word, language or ENGLISH):
        if kind in {WHOLE, PART}:
            code.append((bound_term(term), PART_WEIGHT if kind == PART else 1.0))
        else:
            yield ((bound_term(term), (SPARE_WEIGHT if len(term) > 1 else SINGLE_WEIGHT) if kind == SPARE else 1.0),)
    if code:
        yield tuple(dict(reversed(code)).items())[::-1]


def _iter_word_variants(word: str, language: str | None) -> Iterator[tuple[tuple[str, float], ...]]:
    """Yield the variants of a word: its stem, stems of other languages if the language is uncertain, and related words.

    Yields nothing for a stop word.
    """
    found: dict[str, float] = {}
    if language is not None and not any(True for _ in iter_readings(word, language)):
        return
    for other in _list_languages(language):
        for term, kind in iter_readings(word, other):
            weight = SPARE_WEIGHT if kind == SPARE else 1.0 if other == (language or ENGLISH) else OTHER_LANGUAGE
            found.setdefault(bound_term(term), weight)
    if not found:
        return
    if language in {ENGLISH, None}:
        for kin in _load_kindred().get(stem(_strip_suffix(word), ENGLISH), ()):
            found.setdefault(kin, KIN_WEIGHT)
    yield tuple(found.items())


def _list_languages(language: str | None) -> tuple[str, ...]:
    if language is None:
        return LANGUAGES
    return (ENGLISH,) if language == ENGLISH else (language, ENGLISH)


def _add_everyday(variants: tuple[tuple[str, float], ...], language: str) -> tuple[tuple[str, float], ...]:
    """Return the variants of a word, with the everyday words for the same thing added."""
    found = dict(variants)
    for other in _load_everyday(language).get(variants[0][0], ()):
        found.setdefault(other, EVERYDAY_WEIGHT)
    return tuple(found.items())


@cache
def _load_everyday(language: str) -> dict[str, tuple[str, ...]]:
    """Load the everyday synonyms of a language: for each term, the terms that mean about the same."""
    path = _EVERYDAY / f"{language}.json"
    groups: list[list[str]] = json.loads(path.read_bytes()) if path.exists() else []
    found: dict[str, dict[str, None]] = {}
    for words in groups:
        terms = [bound_term(term) for word in words for term, kind in iter_readings(word, language) if kind != SPARE]
        for term in terms:
            found.setdefault(term, {}).update(dict.fromkeys(other for other in terms if other != term))
    return {term: tuple(others) for term, others in found.items()}


@cache
def _load_kindred() -> dict[str, tuple[str, ...]]:
    """Return `KINDRED` by stem: for the stem of each word, the stems of its related words."""
    found: dict[str, dict[str, None]] = {}
    for word, others in KINDRED.items():
        stems = found.setdefault(stem(word, ENGLISH), {})
        stems.update(dict.fromkeys(stem(other, ENGLISH) for other in others))
    return {word: tuple(stems) for word, stems in found.items()}


SHORTEST: Final = 4
"""Minimum letters of a word that is checked for a typo. Shorter words are similar to too many others."""
LONGEST: Final = 24
"""Maximum letters of a word that is checked for a typo."""
MOST: Final = 4
"""Number of words at the beginning of a question that are checked for typos."""
CORRECTIONS: Final = 3
"""Maximum number of corrections of a word. The most frequent ones are kept."""
WEIGHT: Final = 0.7
"""Weight of a correction. The word itself would have weight 1."""

_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
)


def list_typo_candidates(question: Question) -> tuple[str, ...]:
    """Return terms that are similar to the question's terms. The caller looks them up if the index has none of the question's own terms."""
    return tuple(
        dict.fromkeys(
            term for concept in _select_typo_words(question) for term in _iter_similar(concept.variants[0][0])
        )
    )


def correct_typos(question: Question, frequencies: Mapping[str, int]) -> Question | None:
    """Return the question with its words corrected, or None if none of the similar terms occurs in the index.

    Args:
        question: a question without any term that is in the index.
        frequencies: for each term of `list_typo_candidates` that occurs in the index, the number of documents that contain it.
    """
    found: list[Concept] = []
    for concept in _select_typo_words(question):
        near = {term for term in _iter_similar(concept.variants[0][0]) if frequencies.get(term)}
        if near:
            best = sorted(near, key=lambda term: (-frequencies[term], term))[:CORRECTIONS]
            found.append(Concept(concept.word, tuple((term, WEIGHT) for term in best)))
    return msgspec.structs.replace(question, concepts=tuple(found)) if found else None


def _select_typo_words(question: Question) -> list[Concept]:
    words = [
        concept
        for concept in question.concepts
        if SHORTEST <= len(term := concept.variants[0][0]) <= LONGEST and term.isalpha() and not is_dense(term)
    ]
    return words[:MOST]


def _iter_similar(term: str) -> Iterator[str]:
    """Yield all terms that result from one typo after the first letter: a missing, extra or wrong letter, or two exchanged ones."""
    letters = next((alphabet for alphabet in _ALPHABETS if term[0] in alphabet), "")
    for at in range(1, len(term) + 1):
        head, tail = term[:at], term[at:]
        yield from (head + letter + tail for letter in letters)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in letters if letter != tail[0])
        if len(tail) > 1 and tail[0] != tail[1]:
            yield head + tail[1] + tail[0] + tail[2:]
