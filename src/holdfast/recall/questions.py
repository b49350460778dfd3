"""Questions: what somebody wants to find, as concepts to look up, and what else the question tells about where to look.

A concept is a word of the question with whatever may stand for it in a text: its stems where the language is not certain, the parts of
an identifier, words that everyday speech swaps for it; each with a weight. Nothing in a question is syntax. Words that are about
the conversation ("did I mention"), and those that name its time, are no concepts.
"""

# ruff: noqa: RUF001 (words of other scripts are what some patterns are about)

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from holdfast.recall import timewords
from holdfast.recall.mentions import find_mentions
from holdfast.recall.stops import ASKING, ENGLISH, LANGUAGES, TALKING, language_of
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
from holdfast.recall.times import TimeRange, times_of, zone_of
from holdfast.recall.wordforms import KINDRED

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
    """All times that it names, as messages name them; see `holdfast.recall.mentions`."""
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


_FURTHER_BY_USER: Final = re.compile(timewords.BY_USER, re.IGNORECASE)
_FURTHER_BY_ASSISTANT: Final = re.compile(timewords.BY_ASSISTANT, re.IGNORECASE)


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


_DENSE_TALK: Final = re.compile(timewords.DENSE_TALK)


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
