"""Questions: what is looked for, as concepts; and what else a question tells about where to look: its time, its speaker, its typos.

**Concepts.** A concept is a word of the question with whatever may replace it in a text: its stems where the language is not certain, the
parts of an identifier, words that everyday speech exchanges for it; each with a weight. Nothing in a question is syntax. Words
about the conversation ("did I mention"), and those that name its time, are no concepts.

**Times.** "What did I ask about yesterday?" asks for yesterday's messages. "What did Ana do last week?" asks for something of last week that
was said since. "What did I say about the trip in May?" may mean a trip in May: then what was said in May is only more likely. "What happens
tomorrow?" says nothing about when it was said.

**Typos.** Where no word of a question was ever said, words that differ in one letter are tried. An index knows how many documents have a
term, by one lookup for each: so candidates are made here and looked up, with one letter less, more or changed, or two exchanged. Nothing
reads all that a user has said. The first letter is assumed to be right.
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
    PART,
    SPARE,
    WHOLE,
    Token,
    bounded,
    is_code,
    is_dense,
    normal,
    readings,
    stem,
    tokens_of,
)
from holdfast.recall.time_expressions import Named, spans_in
from holdfast.recall.word_tables import ASKING, ENGLISH, KINDRED, LANGUAGES, TALKING, language_of


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
    rf"|{word_tables.CONVERSATION}|{word_tables.DENSE_CONVERSATION}",
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


MAX_QUESTION: Final = 8_000
"""Characters of a question that are read."""
MAX_ASKING: Final = 500
"""Characters of it in which times are looked for, and what kind of answer is asked for: what is longer is no question but a text."""
MAX_CONCEPTS: Final = 48
"""Most concepts of a question; the first ones are kept."""
PART_WEIGHT, SPARE_WEIGHT, SINGLE_WEIGHT, KIN_WEIGHT, OTHER_LANGUAGE = 0.4, 0.7, 0.25, 0.5, 0.9
"""What counts less than the word itself: parts of an identifier, second readings, among them single characters of a Chinese word,
words swapped for it, stems of other languages."""

_TIME_NOUNS: Final = "day|date|week|weekday|month|year|time|season|minute|hour|moment|deadline"
DENSE: Final = "dense"
"""The language of a question in a script without spaces."""
EVERYDAY_WEIGHT: Final = 0.5
"""What an everyday word for the same thing counts."""
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
    """A word of a question."""

    word: str
    """As it stands there, folded, without what an apostrophe joins to it."""
    variants: tuple[tuple[str, float], ...]
    """Terms that stand for it, and how much each counts; the first is its own."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for."""

    text: str
    concepts: tuple[Concept, ...]
    language: str | None = None
    """In which it is asked: one of those whose words are stemmed, `dense` for a script without spaces; None: it does not show."""
    range: TimeRange | None = None
    """What was said then is asked for."""
    mentioned: tuple[tuple[int, int], ...] = ()
    """Times that the question names otherwise, in milliseconds since the epoch: what was said then is a little likelier."""
    days: tuple[tuple[int, int], ...] = ()
    """All times that it names, as messages name them; see `holdfast.recall.details`."""
    role: str | None = None
    """Who seems to have said it, `user` or `assistant`: a little likelier."""
    asks_time: bool = False
    asks_number: bool = False
    asks_many: bool = False
    """Whether several things may answer it together: a list, a count."""

    @property
    def terms(self) -> tuple[str, ...]:
        """All terms to look up, each once."""
        return tuple(dict.fromkeys(term for concept in self.concepts for term, _ in concept.variants))

    @property
    def spans(self) -> tuple[tuple[int | None, int | None], ...]:
        """The times that it names, in milliseconds since the epoch: from a moment until before another; None: no such end."""
        return self.mentioned if self.range is None else ((self.range.start, self.range.stop),)

    def covers(self, at: int) -> bool:
        """Return True for a moment of one of these times, in milliseconds since the epoch."""
        return any((start is None or start <= at) and (stop is None or at < stop) for start, stop in self.spans)

    @property
    def only_time(self) -> bool:
        """Whether nothing is asked for but a time, as in "What did I ask about yesterday?"."""
        return self.range is not None and not self.concepts


def question_of(
    text: str, *, now: int, zone: str = "UTC", narrow: bool = True, timed: bool = True, everyday: bool = False
) -> Question:
    """A question as it is looked up.

    Args:
        text: what was asked; at most `MAX_QUESTION` characters of it count.
        now: milliseconds since the epoch.
        zone: name of the time zone that "yesterday" is meant in.
        narrow: whether a time expression may ask for what was said then; without it, it is words like others. A long text asks for
            no time.
        timed: whether time expressions are looked for at all; without it, none is `mentioned` either.
        everyday: whether words count as well that people use for the same thing (`holdfast/data/everyday`).
    """
    text = normal(text[:MAX_QUESTION])
    asks = text[:MAX_ASKING]
    when, about = times_of(asks, now, zone) if timed else (None, ())
    if not narrow or len(text) > MAX_ASKING:
        when = None
    tokens = list(_asked_for(text, when))
    return Question(
        text=text,
        concepts=_concepts(tokens, narrowed=when is not None, everyday=everyday),
        language=_language(tokens),
        range=when,
        mentioned=() if when else about,
        days=find_mentions(asks, now, zone_of(zone)) if timed else (),
        role=_role(asks) or (_role(asks, further=True) if when else None),
        asks_time=bool(_ASKS_TIME.search(asks)),
        asks_number=bool(_ASKS_NUMBER.search(asks)),
        asks_many=asks_many(asks),
    )


def asks_many(text: str) -> bool:
    """Return True for a question that several things may answer together: "which countries", "how many dogs"."""
    asks = text[:MAX_ASKING].strip()
    if _LISTS.match(asks) is not None:
        return True
    found = _ASKS_MANY.search(asks)
    return found is not None and (found.start() == 0 or "?" in asks[found.end() :] or is_dense(found.group()))


def _role(text: str, *, further: bool = False) -> str | None:
    """Who a question says has said it."""
    by_user, by_assistant = (_FURTHER_BY_USER, _FURTHER_BY_ASSISTANT) if further else (_BY_USER, _BY_ASSISTANT)
    return "assistant" if by_assistant.search(text) else "user" if by_user.search(text) else None


_FURTHER_BY_USER: Final = re.compile(word_tables.BY_USER, re.IGNORECASE)
_FURTHER_BY_ASSISTANT: Final = re.compile(word_tables.BY_ASSISTANT, re.IGNORECASE)


def _asked_for(text: str, when: TimeRange | None) -> Iterator[Token]:
    """The tokens of a question, without its time. In scripts without spaces that, and what is about the talk, is cut out of them."""
    taken = when.words if when else ()
    for token in tokens_of(text):
        if not when or not is_dense(token.text):
            if not any(start <= token.start < stop for start, stop in taken):
                yield token
            continue
        rest = list(token.text)
        for start, stop in taken:
            for at in range(max(start - token.start, 0), min(stop - token.start, len(rest))):
                rest[at] = " "
        left = _DENSE_TALK.sub(lambda found: " " * len(found.group()), "".join(rest))
        yield from (Token(token.start + one.start, token.start + one.stop, one.text) for one in tokens_of(left))


_DENSE_TALK: Final = re.compile(word_tables.DENSE_TALK)


def _language(tokens: list[Token]) -> str | None:
    if any(is_dense(token.text) for token in tokens):
        return DENSE
    return language_of(token.text.casefold() for token in tokens)


def _concepts(tokens: list[Token], *, narrowed: bool, everyday: bool) -> tuple[Concept, ...]:
    language = language_of(token.text.casefold() for token in tokens)
    about = [token for token in tokens if token.text.casefold() not in ASKING]
    found = _read(about, language, everyday=everyday)
    if narrowed:
        return () if all(concept.word in TALKING for concept in found) else found
    return found or _read(tokens, language, everyday=everyday)


def _read(tokens: list[Token], language: str | None, *, everyday: bool) -> tuple[Concept, ...]:
    concepts: dict[str, Concept] = {}
    for token in tokens:
        word = bounded(_bare(token.text))
        for variants in _variants(token.text, language):
            wider = _with_everyday(variants, language or ENGLISH) if everyday else variants
            concepts.setdefault(variants[0][0], Concept(word, wider))
            if len(concepts) == MAX_CONCEPTS:
                return tuple(concepts.values())
    return tuple(concepts.values())


def _bare(word: str) -> str:
    return word.casefold().partition("'")[0]


def _variants(word: str, language: str | None) -> Iterator[tuple[tuple[str, float], ...]]:
    """The concepts of a token: a word is one, a code with its parts another, of words that are joined each is one."""
    if _bare(word).isalpha() and not is_dense(word) and not is_code(word):
        yield from _of_word(word, language)
        return
    code: list[tuple[str, float]] = []
    for term, kind in readings(word, language or ENGLISH):
        if kind in {WHOLE, PART}:
            code.append((bounded(term), PART_WEIGHT if kind == PART else 1.0))
        else:
            yield ((bounded(term), (SPARE_WEIGHT if len(term) > 1 else SINGLE_WEIGHT) if kind == SPARE else 1.0),)
    if code:
        yield tuple(dict(reversed(code)).items())[::-1]


def _of_word(word: str, language: str | None) -> Iterator[tuple[tuple[str, float], ...]]:
    """A word as its language stems it, as others would where that is not certain, and what is swapped for it."""
    found: dict[str, float] = {}
    if language is not None and not any(True for _ in readings(word, language)):
        return
    for other in _languages(language):
        for term, kind in readings(word, other):
            weight = SPARE_WEIGHT if kind == SPARE else 1.0 if other == (language or ENGLISH) else OTHER_LANGUAGE
            found.setdefault(bounded(term), weight)
    if not found:
        return
    if language in {ENGLISH, None}:
        for kin in _kindred().get(stem(_bare(word), ENGLISH), ()):
            found.setdefault(kin, KIN_WEIGHT)
    yield tuple(found.items())


def _languages(language: str | None) -> tuple[str, ...]:
    if language is None:
        return LANGUAGES
    return (ENGLISH,) if language == ENGLISH else (language, ENGLISH)


def _with_everyday(variants: tuple[tuple[str, float], ...], language: str) -> tuple[tuple[str, float], ...]:
    """Add the everyday words for the same thing."""
    found = dict(variants)
    for other in _everyday(language).get(variants[0][0], ()):
        found.setdefault(other, EVERYDAY_WEIGHT)
    return tuple(found.items())


@cache
def _everyday(language: str) -> dict[str, tuple[str, ...]]:
    """Return the terms of a language that mean much the same in everyday speech, by term."""
    path = _EVERYDAY / f"{language}.json"
    groups: list[list[str]] = json.loads(path.read_bytes()) if path.exists() else []
    found: dict[str, dict[str, None]] = {}
    for words in groups:
        terms = [bounded(term) for word in words for term, kind in readings(word, language) if kind != SPARE]
        for term in terms:
            found.setdefault(term, {}).update(dict.fromkeys(other for other in terms if other != term))
    return {term: tuple(others) for term, others in found.items()}


@cache
def _kindred() -> dict[str, tuple[str, ...]]:
    """By stem, the stems of what may have been said instead."""
    found: dict[str, dict[str, None]] = {}
    for word, others in KINDRED.items():
        stems = found.setdefault(stem(word, ENGLISH), {})
        stems.update(dict.fromkeys(stem(other, ENGLISH) for other in others))
    return {word: tuple(stems) for word, stems in found.items()}


SHORTEST: Final = 4
"""Letters of a word from which on it is looked at: a shorter one differs in a letter from too many."""
LONGEST: Final = 24
MOST: Final = 4
"""Words of a question that are looked at, the first."""
KEPT: Final = 3
"""What one of them may have been, those that were said most."""
WEIGHT: Final = 0.7
"""What such a word counts for, where the word itself would count 1."""

_ALPHABETS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "αβγδεζηθικλμνξοπρστυφχψω",
)


def guesses(question: Question) -> tuple[str, ...]:
    """The terms to ask an index for that has none of the question's."""
    return tuple(dict.fromkeys(term for concept in _looked_at(question) for term in _near(concept.variants[0][0])))


def corrected(question: Question, frequencies: Mapping[str, int]) -> Question | None:
    """The question with what its words may have been; None where they were nothing that was said.

    Args:
        question: none of whose terms was.
        frequencies: in how many documents those of the `guesses` stand that were said.
    """
    found: list[Concept] = []
    for concept in _looked_at(question):
        near = {term for term in _near(concept.variants[0][0]) if frequencies.get(term)}
        if near:
            best = sorted(near, key=lambda term: (-frequencies[term], term))[:KEPT]
            found.append(Concept(concept.word, tuple((term, WEIGHT) for term in best)))
    return msgspec.structs.replace(question, concepts=tuple(found)) if found else None


def _looked_at(question: Question) -> list[Concept]:
    words = [
        concept
        for concept in question.concepts
        if SHORTEST <= len(term := concept.variants[0][0]) <= LONGEST and term.isalpha() and not is_dense(term)
    ]
    return words[:MOST]


def _near(term: str) -> Iterator[str]:
    """All that differs from a term in one letter, but the first."""
    letters = next((alphabet for alphabet in _ALPHABETS if term[0] in alphabet), "")
    for at in range(1, len(term) + 1):
        head, tail = term[:at], term[at:]
        yield from (head + letter + tail for letter in letters)
        if tail:
            yield head + tail[1:]
            yield from (head + letter + tail[1:] for letter in letters if letter != tail[0])
        if len(tail) > 1 and tail[0] != tail[1]:
            yield head + tail[1] + tail[0] + tail[2:]
