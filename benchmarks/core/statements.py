"""Find the sentences of an entry that may be worth keeping as standing facts, when the entry is appended. Pure functions.

Sentences, terms and traits come from the analysis of the entry. A statement is a whole sentence of the user's own words, or a promise or a
finding of the assistant. A logistic regression over `benchmarks/statements/dev` rates it.
"""

# ruff: noqa: RUF001 (words and marks of other scripts)

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.context.standing_facts import _extract_values as extract_values
from holdfast.context.statements import (
    ASKED,
    DENSE_LANGUAGES,
    DENSE_WORD,
    count_cues,
    detect_language,
    separate_own_words,
)
from holdfast.domain.session import Entry
from holdfast.recall.terms import NUMBERED

if TYPE_CHECKING:
    from benchmarks.core.postings import Postings

LONGEST_MESSAGE: Final = 4_000
"""Of a longer message of the user, which probably contains pasted text, only the last paragraph is read."""
MOST: Final = 60
"""Number of sentences of an entry that are rated."""
LONG: Final = 100
"""A transcript of speech has no punctuation: its sentences are split before conjunctions if they have more characters than this."""
LEAST_WORDS, LEAST_TERMS = 3, 2
LEAST_SCORE: Final = math.log(0.04 / 0.96)
"""Log odds below which a sentence is no statement."""

Position = tuple[int, int]
"""`seq` of the message, and number of the sentence in the message."""


class Statement(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sentence that may be worth keeping."""

    seq: int
    place: int
    text: str
    score: float
    """Log odds that the sentence is worth keeping, independent of other statements."""
    cost: float
    """Estimated tokens: the sentence's share of the entry's tokens."""
    terms: frozenset[str]
    values: Collection[tuple[str, str]] = ()
    """Numbers and days that the sentence mentions, each with its unit."""
    speaker: str = "user"
    """Name or role of the writer."""
    instructs: bool = False
    """True if it is an instruction of the user for later replies."""
    sounds_corrected: bool = False
    """True if the sentence says that something has changed."""
    replaces: tuple[Position, ...] = ()
    """The statements that it probably corrects."""
    day: str = ""
    """The date of the message, with a space, if the sentence speaks of a time that only this makes clear, such as "tomorrow"."""

    @property
    def position(self) -> Position:
        """`seq` of the message, and number of the sentence in it."""
        return self.seq, self.place


class Read(NamedTuple):
    """A sentence of the analysis: its position in the text, its terms and traits."""

    start: int
    stop: int
    terms: frozenset[str]
    traits: int


# -- whole sentences -----------------------------------------------------------------

_TOKEN: Final = re.compile(r"[\w'-]+")
_BULLET: Final = re.compile(r"\A(?:[-*#>•–(]+|\d{1,3}[.)])\s*(?=\S)")
_FILLER: Final = re.compile(
    r"\A(?:(?:and|also|oh|ok(?:ay)?|so|um|uh|well|btw|by the way|plus|hey|yeah|yes|und|ach|also|et|ah|alors)\b[\s,]*)+(?=\S{2})",
    re.IGNORECASE,
)
"""Words at the beginning of a sentence that say nothing."""
_QUOTES: Final = frozenset('"”»」…')
"""Marks after which a text is the rest of a sentence that began with a quotation."""
_GOES_ON: Final = ",;:)，；：）、"
_CODE: Final = re.compile(r"[{}<>=;$|\\]|\w/\w|\w_\w|\w\(\)|^\s*(?:\$|>>>|import|def|class|git|npm|pip|cd|ls)\b")
_STOPS: Final = re.compile(r"[,.;:!?]\s")
_JOINT: Final = re.compile(
    r"\s+(?=(?:and|but|so|oh|okay|um|uh|because|then|anyway|und|aber|weil|et|mais|donc|parce)\b)"
)
_MARGIN: Final = 25


def _iter_whole(text: str, read: Sequence[Read], own: str | None) -> Iterator[tuple[int, str, Read]]:
    """Yield number and text of the sentences of the writer's own words, without bullets and fillers; fragments are left out."""
    for at, one in enumerate(read):
        sentence = " ".join(text[one.start : one.stop].split())
        if own is not None and (sentence not in own or text[: one.start].rstrip()[-1:] in _QUOTES):
            continue
        sentence = _BULLET.sub("", sentence)
        if sentence and sentence[0] not in _GOES_ON and sentence[-1] not in ":：":
            if len(sentence) <= LONG or _STOPS.search(sentence):
                yield at, _FILLER.sub("", sentence), one
            else:
                yield from ((at, _FILLER.sub("", piece), one) for piece in _split_speech(sentence))


def _split_speech(sentence: str) -> Iterator[str]:
    places = [found.end() for found in _JOINT.finditer(sentence) if _MARGIN < found.end() < len(sentence) - _MARGIN]
    if len(sentence) <= LONG or not places:
        yield sentence
        return
    middle = min(places, key=lambda place: abs(2 * place - len(sentence)))
    yield from _split_speech(sentence[:middle].strip())
    yield from _split_speech(sentence[middle:].strip())


# -- rating --------------------------------------------------------------------------

_PROMISE: Final = re.compile(
    r"\b(?:(?:i|we)(?:['’]ll| will| shall| won['’]t)|i(?:['’]m| am) going to)\b|\b(?:ich|wir) (?:werde|werden|schicke|sende|melde|prüfe|kümmere|erinnere|erstelle|schreibe|bereite)\b"
    r"|\b(?:je vais|on va|nous allons)\b|\bje (?:vous |te |t['’]|l['’])?\w+rai\b|\b(?:voy|vamos) a\b|\b(?:te|le|os|les) \w+(?:aré|eré|iré)\b|\b(?:vou|vamos) \w+r\b|我(?:会|將|将|们会|来|去|都|把|给)|します",
    re.IGNORECASE,
)
_RELATIVE: Final = re.compile(
    r"\b(?:today|tonight|tomorrow|yesterday|(?:this|next|last) (?:week|month|year|weekend|monday|tuesday|wednesday|thursday|friday|saturday|sunday)|heute|morgen|gestern|(?:nächste|letzte|diese)[nrs]? (?:woche|monat|jahr)"
    r"|aujourd['’]hui|demain|hier|(?:semaine|mois) prochaine?|hoy|mañana|ayer|hoje|amanhã|ontem)\b|今天|明天|昨天|下周|下个月|今日|明日|昨日",
    re.IGNORECASE,
)
_FINDING: Final = re.compile(
    r"\b(?:so|therefore|thus|cause|reason|because|conclusion|finding|means|turns out|comes out|in short|the only|daher|deshalb|fazit|ergebnis|donc|bilan|résultat)\b|结论|所以|原因",
    re.IGNORECASE,
)
_TELLING: Final = re.compile(f"{_PROMISE.pattern}|{_FINDING.pattern}", re.IGNORECASE)
WEIGHTS: Final[Mapping[str, tuple[float, float]]] = {
    "standing": (0.56, 0.25),
    "prohibition": (0.36, 0.06),
    "preference": (0.86, -0.11),
    "name": (1.25, -0.1),
    "correction": (0.48, -0.14),
    "decision": (0.31, 0.0),
    "hedge": (-0.35, -0.07),
    "time": (0.79, 0.35),
    "number": (0.22, 0.53),
    "health": (1.0, 0.0),
    "passing": (-1.5, -1.5),
    "only": (-0.4, 0.0),
    "first": (-0.88, 0.06),
    "length": (1.55, 1.08),
    "names": (0.58, 0.85),
    "order": (0.52, -0.17),
    "scope": (0.23, 0.24),
    "long_entry": (-0.25, -0.3),
    "promise": (0.0, 1.75),
    "finding": (0.39, 0.54),
    "numbered": (0.77, 0.62),
    "figures": (-0.32, 0.0),
    "base": (-6.16, -7.48),
}
"""Log odds that a property of a sentence adds, for the user and for the assistant. `health` and `passing` were set by hand."""


def find_statements(entry: Entry, text: str, read: Sequence[Read], language: str) -> tuple[Statement, ...]:
    """Return the statements of an entry.

    Args:
        entry: the entry.
        text: its text.
        read: its sentences.
        language: the language of its text.
    """
    role = entry.message.role
    if role not in ("user", "assistant") or not text or entry.message.tool_calls:
        return ()
    own = None
    if role == "user":
        if len(text) > LONGEST_MESSAGE:
            read = [one for one in read if one.start > text.rstrip().rfind("\n\n")]
        lines = separate_own_words(text[read[0].start :] if read else "").own.splitlines()
        own = "\n".join(" ".join(line.split()) for line in lines)
    found = []
    day = datetime.fromtimestamp(entry.timestamp / 1000, UTC).strftime("%Y-%m-%d ")
    speaker = entry.message.name or entry.agent or role
    sentences = [*_iter_whole(text, read, own)][:MOST]
    for place, (at, sentence, one) in enumerate(sentences):
        if role == "assistant" and not (one.traits & NUMBERED or _TELLING.search(sentence)):
            continue
        spoken = detect_language(sentence, language)
        length = len(sentence) / DENSE_WORD if spoken in DENSE_LANGUAGES else len(_TOKEN.findall(sentence))
        if (
            ASKED.search(sentence)
            or length < LEAST_WORDS
            or len(one.terms) < LEAST_TERMS
            or 4 * len(_CODE.findall(sentence)) > length
        ):
            continue
        cues = count_cues(sentence, spoken)
        features = read_features(sentence, spoken, one, (at, len(read), entry.tokens, length))
        features |= {name: min(2.0, number) for name, number in cues.items() if name in WEIGHTS}
        score = sum(WEIGHTS[name][role == "assistant"] * value for name, value in features.items())
        instructs = role == "user" and features["order"] * features["scope"] > 0 and not _CHEERING.search(sentence)
        corrects = role == "user" and cues.get("correction", 0) > 0
        if score >= LEAST_SCORE or instructs or corrects:
            found.append(
                Statement(
                    seq=entry.seq,
                    place=place,
                    text=sentence,
                    score=round(score, 2),
                    cost=round(entry.tokens * len(sentence) / len(text), 1),
                    terms=one.terms,
                    values=extract_values(sentence),
                    speaker=speaker,
                    instructs=instructs,
                    sounds_corrected=corrects,
                    day=day if _RELATIVE.search(sentence) else "",
                )
            )
    return tuple(found)


def read_features(sentence: str, language: str, read: Read, around: tuple[int, int, int, float]) -> dict[str, float]:
    """Return the properties by which a sentence is rated, but its cues. `around`: its number, all sentences, the entry's tokens, its words."""
    at, among, tokens, length = around
    words = sentence.split()
    names = (language != "german") * sum(word[:1].isupper() and not word.startswith("I") for word in words[1:])
    figures = sum(any(map(str.isdigit, word)) for word in words)
    return {
        "base": 1.0,
        "only": float(among == 1),
        "first": float(at == 0 and among > 1),
        "length": math.log(length),
        "names": min(2.0, names),
        "order": float(_ORDER.search(sentence) is not None),
        "scope": float(_SCOPE.search(sentence) is not None),
        "long_entry": max(0.0, math.log(tokens / 60)),
        "promise": float(_PROMISE.search(sentence) is not None),
        "finding": float(_FINDING.search(sentence) is not None),
        "numbered": float(bool(read.traits & NUMBERED)),
        "figures": float(figures > len(words) / 4),
    }


# -- instructions ----------------------------------------------------------------

_SCOPE: Final = re.compile(
    r"\b(?:always|never|ever|anything|again|from now on|going forward|in (?:the )?future|every ?time|each time|whenever|(?:when|if) (?:I|we|you|it['’]s) \w+|by default|for (?:all|any|every) \w+|every (?:single )?\w+|at all times|in my name"
    r"|until (?:I say|further notice)|as a rule|immer|nie(?:mals)?|ab (?:jetzt|sofort)|künftig|jedes Mal|wenn (?:ich|wir|es)|toujours|jamais|désormais|à partir de maintenant|chaque fois|quand (?:je|on)"
    r"|siempre|nunca|a partir de ahora|cada vez|cuando (?:yo|te)|sempre|a partir de agora)\b|以后|从现在|总是|每次|每个|永远|绝对|一律|凡是|千万|不要再|今後|いつも|必ず|毎回",
    re.IGNORECASE,
)
"""Words that show that an order holds for later replies too."""
_VERB: Final = (
    r"(?:make sure|be|ensure|remember|keep|use|give|write|answer|reply|respond|call|address|speak|confirm|include|avoid|stop|start|stick|show|tell|ask|remind|check|mention|refer|format|cite|list|limit|convert|round"
    r"|assume|treat|present|provide|add|begin|end|skip|suggest|recommend|prioriti[sz]e|translate|explain|put|flag|read|number|name|leave|quote|say|send|read|book|route|bring|compare|summari[sz]e|label|round|double-check"
    r"|antworte|schreib|nenn|benutz|verwende|gib|frag|erinner|sprich|setz|zeig|mach|halt|réponds|répondez|écris|écrivez|utilise|utilisez|donne|donnez|appelle|mets|mettez|garde|gardez|dis|dites"
    r"|responde|escribe|usa|dame|llámame|pon|responda|escreva|use)\b"
)
_START: Final = r"^\W*(?:(?:and|also|but|so|then|ok(?:ay)?|just|please|remember|und|auch|bitte|et|y|por favor)[\s,:]+)*"
_ORDER: Final = re.compile(
    rf"{_START}(?:{_VERB}|(?:always|never|do not|don['’]t|immer|nie|niemals|toujours|jamais|siempre|nunca|sempre|não)\s+(?!(?:been|had|was|were|is|are|seen|mind|worry|a|an|the|in|on|my|know|get|got)\b)\w+)"
    rf"|{_START}(?:from now on|(?:whenever|when|if|for|in|wenn|für|quand|si|pour|cuando|para|ab)\b[^.!?]{{1,80}}?[,:])\s(?:always |never |please |just |immer |bitte |toujours |siempre )*{_VERB}"
    rf"|(?<!\bI )(?<!\bwe )(?<!\bhe )(?<!she )(?<!they )(?<!\bit )(?<!you )(?<!['’]ve )(?<!['’]d )(?<!['’]ll )(?<!can )(?<!said )\b(?:please|always|never|from now on|do not|don['’]t)(?: ever| always| never)? {_VERB}"
    r"|\bI (?:want|need|expect|prefer|would like|['’]d like) you to\b|\byou must\b|\bmust (?:always|never)\b|\b(?:du|sie) (?:sollst|sollen|musst|müssen)\b|\btu dois|vous devez|debes\b"
    r"|请|不要|别|必须|不能|不许|先|一定要|记得|叫我|してください|しないで",
    re.IGNORECASE,
)
_CHEERING: Final = re.compile(
    r"\b(?:let['’]s|keep (?:it up|going|up the)|good luck|thank|never mind|be (?:ready|prepared)|(?:you['’]?d?|properly) (?:better|ready)|as always|I(?:['’]ve| have)? (?:always|never)|we (?:can |could )?(?:always|never)|(?:he|she|they|who) (?:\w+ )*(?:says?|said))\b",
    re.IGNORECASE,
)


# -- corrections -----------------------------------------------------------------------

LEAST_EVIDENCE, SAME_KIND, NO_VALUE = 2.7, 3.0, 2.0
"""Evidence that one statement corrects another: the sum of the rarities of the terms and values of both. It must reach `LEAST_EVIDENCE` plus
the logarithm of the number of entries. `SAME_KIND` is added if a value of the same unit differs, `NO_VALUE` subtracted if no value is shared."""
MOST_REPLACED: Final = 3
FEWEST, COMMON, NEWEST = 150, 0.1, 50
"""Rarity is computed as if there were `FEWEST` entries or more. Terms in more than the share `COMMON` of them are no evidence. Of each term,
the `NEWEST` entries are looked at."""


def find_replaced(
    one: Statement, postings: Postings, statements: Callable[[int], Sequence[Statement]]
) -> tuple[Position, ...]:
    """Return the positions of the earlier statements of the same speaker that a new one probably corrects, the likeliest first.

    Args:
        one: the statement.
        postings: the postings of the entries before it.
        statements: returns the statements of one of these entries.
    """
    total = max(len(postings), FEWEST)
    topics: dict[Position, float] = {}
    others: dict[Position, Statement] = {}
    terms = [
        (term, often) for term in one.terms if 0 < (often := postings.count(term, len(postings))) <= COMMON * total
    ]
    for term, seqs, _ in postings.read(terms):
        rarity = math.log(total / len(seqs))
        for seq in seqs[-NEWEST:]:
            for other in statements(seq):
                if term in other.terms and other.speaker == one.speaker:
                    topics[other.position] = topics.get(other.position, 0.0) + rarity
                    others[other.position] = other
    least = LEAST_EVIDENCE + math.log(max(len(postings), 1))
    found = []
    for position, topic in topics.items():
        before, after = others[position].values, one.values
        same = {text for _, text in before} & {text for _, text in after}
        changes = any(
            unit and (unit, text) not in before and any(unit == was for was, _ in before) for unit, text in after
        )
        evidence = topic + (SAME_KIND if changes else 0.0 if same else -NO_VALUE)
        if evidence >= least:
            found.append((evidence, position))
    return tuple(position for _, position in sorted(found, reverse=True)[:MOST_REPLACED])
