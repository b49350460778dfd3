"""Find the sentences of a message that may be worth keeping, and rate how probably each is. Pure functions, without a model.

A statement is a whole sentence of a user's own words; quoted and pasted text is left out. The weights come from a logistic regression over
labelled conversations (`benchmarks/statements/dev`). An instruction for later replies is recognized by its form: an order with a scope.
"""

# ruff: noqa: RUF001 (words and marks of other scripts)

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from holdfast.context.analysis_cache import ANALYSES, make_analysis_key
from holdfast.context.cues import DENSE_LANGUAGES, count_cues, detect_language, load_cues
from holdfast.context.own_words import separate_own_words
from holdfast.domain.fact_choices import Choice
from holdfast.recall.chunks import find_sentences
from holdfast.recall.terms import extract_terms
from holdfast.recall.word_tables import ENGLISH

LONGEST_MESSAGE: Final = 4_000
"""Of a longer message of the user, which probably contains pasted text, only the last paragraph is read."""
MOST_SENTENCES: Final = 60
"""Number of first sentences of a message that are rated."""
SPEECH: Final = 100
"""A sentence without inner punctuation that has more characters is a transcript of speech. It is split before conjunctions."""
LEAST_WORDS: Final = 3
"""A sentence with fewer words is a fragment."""
LONGEST_COURTESY: Final = 80
"""A sentence with more characters than this is no courtesy."""
PLAIN: Final = frozenset({"standing", "preference", "name", "health"})
UNCERTAIN: Final = frozenset({"hedge", "passing"})
PLAIN_LENGTH: Final = 8
"""A plain statement, such as "Always answer briefly", has a cue of a category in `PLAIN` and none in `UNCERTAIN`. It is rated as if it had at
least this many words. The labelled conversations have hardly any statements of three or four words."""
DENSE_WORD: Final = 1.7
"""About this many characters of a script without spaces make one word."""
STATEMENT_BYTES: Final = 250
"""Bytes that a statement takes in memory in addition to its text."""
ASKED: Final = re.compile(r"[?？؟]\W*\Z|[吗呢]\W*\Z|(?:ですか|ますか)\W*\Z")

Position = tuple[int, int]
"""The position of a statement: the `seq` of its message, and the number of the sentence in the message, from 0."""


class Statement(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sentence of a user that may be worth keeping."""

    seq: int
    """`seq` of the message that contains the sentence."""
    place: int
    """Number of the sentence in the message, from 0."""
    text: str
    """The sentence, unchanged except for white space."""
    score: float
    """Log odds that the sentence is worth keeping, independent of other statements."""
    cost: float
    """Estimated tokens: the sentence's share of the message's tokens."""
    instructs: bool = False
    """True if it is an instruction for later replies."""
    corrects: bool = False
    """True if the sentence says that something has changed."""
    at: int = 0
    """Time at which the message was written, in milliseconds since the epoch."""
    speaker: str = ""
    """Name of the person who wrote the message; empty if the message has none."""
    choice: Choice | None = None
    """The caller's decision to pin or drop the statement; None if there is none, so that the rating decides."""

    @property
    def position(self) -> Position:
        """`seq` of the message, and number of the sentence in it."""
        return self.seq, self.place

    @property
    def id(self) -> str:
        """Id in the form `message.sentence`, unique within the session."""
        return f"{self.seq}.{self.place}"


# -- whole sentences -----------------------------------------------------------------

_TOKEN: Final = re.compile(r"[\w'’-]+")
_BULLET: Final = re.compile(r"\A(?:(?:[-#>•–(]|(?<!\*)\*(?!\*))+|\d{1,3}[.)])\s*(?=\S)")
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


def _iter_whole(text: str) -> Iterator[str]:
    """Yield the sentences of the writer's own words, without bullets and fillers; fragments are left out."""
    first = text.rstrip().rfind("\n\n") if len(text) > LONGEST_MESSAGE else 0
    lines = separate_own_words(text[first:].strip()[-LONGEST_MESSAGE:]).own.splitlines()
    own = "\n".join(" ".join(line.split()) for line in lines)
    for start, stop in find_sentences(text, max(0, first)):
        sentence = " ".join(text[start:stop].split())
        if sentence not in own or text[:start].rstrip()[-1:] in _QUOTES:
            continue
        sentence = _BULLET.sub("", sentence)
        if sentence and sentence[0] not in _GOES_ON and sentence[-1] not in ":：":
            pieces = [sentence] if len(sentence) <= SPEECH or _STOPS.search(sentence) else _split_speech(sentence)
            yield from (_FILLER.sub("", piece) for piece in pieces)


def _split_speech(sentence: str) -> list[str]:
    places = [found.end() for found in _JOINT.finditer(sentence) if _MARGIN < found.end() < len(sentence) - _MARGIN]
    if len(sentence) <= SPEECH or not places:
        return [sentence]
    middle = min(places, key=lambda place: abs(2 * place - len(sentence)))
    return [*_split_speech(sentence[:middle].strip()), *_split_speech(sentence[middle:].strip())]


# -- rating --------------------------------------------------------------------------

_PROMISE: Final = re.compile(
    r"\b(?:(?:i|we)(?:['’]ll| will| shall| won['’]t)|i(?:['’]m| am) going to)\b|\b(?:ich|wir) (?:werde|werden|schicke|sende|melde|prüfe|kümmere|erinnere|erstelle|schreibe|bereite)\b"
    r"|\b(?:je vais|on va|nous allons)\b|\bje (?:vous |te |t['’]|l['’])?\w+rai\b|\b(?:voy|vamos) a\b|\b(?:te|le|os|les) \w+(?:aré|eré|iré)\b|\b(?:vou|vamos) \w+r\b|我(?:会|將|将|们会|来|去|都|把|给)|します",
    re.IGNORECASE,
)
_FINDING: Final = re.compile(
    r"\b(?:so|therefore|thus|cause|reason|because|conclusion|finding|means|turns out|comes out|in short|the only|daher|deshalb|fazit|ergebnis|donc|bilan|résultat)\b|结论|所以|原因",
    re.IGNORECASE,
)
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
    "request": (-1.0, 0.0),
    "base": (-6.16, -7.48),
}
"""Log odds that a property of a sentence adds, for a user and for an assistant. At most two cues of a category count. `health`,
`passing` (what matters only at the moment) and `request` (an order without a scope, which a reply fulfils) were set by hand."""


def find_statements(
    text: str,
    seq: int,
    *,
    tokens: float,
    at: int = 0,
    speaker: str = "",
    choices: Mapping[int, Choice] = MappingProxyType({}),
) -> list[Statement]:
    """Return the statements of a user's message in order. Questions, courtesies, fragments and code are left out.

    Args:
        text: the text of the message.
        seq: `seq` of the message.
        tokens: tokens of the text.
        at: time at which the message was written, in milliseconds since the epoch.
        speaker: name of the writer.
        choices: the caller's decisions to pin or drop statements, by the number of the sentence.
    """
    return [
        msgspec.structs.replace(
            one,
            seq=seq,
            at=at,
            cost=round(one.cost * tokens, 1),
            speaker=speaker,
            choice=choices.get(one.place) if choices else None,
        )
        for one in _analyse(text)
    ]


def _analyse(text: str) -> tuple[Statement, ...]:
    """Return the rated sentences of a text. The cost of each is its share of the text.

    Cached, because they are needed twice: to reserve tokens before a message is evicted, and when it is evicted.
    """
    key = make_analysis_key(b"statements", text.encode(errors="surrogatepass"))
    kept: tuple[Statement, ...] | None = ANALYSES.get(key)
    if kept is None:
        kept = tuple(_rate_all(text))
        ANALYSES.put(key, kept, sum(STATEMENT_BYTES + len(one.text) for one in kept))
    return kept


def _rate_all(text: str) -> Iterator[Statement]:
    sentences = [*_iter_whole(text)][:MOST_SENTENCES]
    language = detect_language(" ".join(sentences))
    for place, sentence in enumerate(sentences):
        rated = rate_sentence(sentence, language, alone=len(sentences) == 1, first=place == 0, message_chars=len(text))
        if rated is not None:
            cost = len(sentence) / len(text)
            yield Statement(0, place, sentence, round(rated.score, 2), cost, rated.instructs, rated.corrects)


class Rating(NamedTuple):
    """The properties of a sentence that is no question, courtesy, fragment or code."""

    score: float
    """Log odds that the sentence is worth keeping."""
    instructs: bool
    """True if it is an order that holds for later replies too."""
    corrects: bool
    """True if it says that something has changed."""


@lru_cache(maxsize=4_096)
def rate_sentence(
    sentence: str,
    otherwise: str = ENGLISH,
    *,
    assistant: bool = False,
    alone: bool = False,
    first: bool = False,
    message_chars: int = 0,
) -> Rating | None:
    """Rate how probably a sentence is worth keeping; return None for a question, a courtesy, a fragment or code.

    Args:
        sentence: the sentence.
        otherwise: language of the message, used if the sentence alone does not show its language.
        assistant: True if an assistant wrote it, False if a user did.
        alone: True if it is the only sentence of its message.
        first: True if it is the first sentence of its message.
        message_chars: characters of the message.
    """
    language = detect_language(sentence, otherwise)
    words = sentence.split()
    length = len(sentence) / DENSE_WORD if language in DENSE_LANGUAGES else len(_TOKEN.findall(sentence))
    if length < LEAST_WORDS or ASKED.search(sentence):
        return None
    cues = count_cues(sentence, language)
    if 4 * len(_CODE.findall(sentence)) > length or (cues.get("courtesy") and is_courtesy(sentence, language)):
        return None
    is_plain = not PLAIN.isdisjoint(cues) and UNCERTAIN.isdisjoint(cues)
    order, scope = _ORDER.search(sentence) is not None, _SCOPE.search(sentence) is not None
    figures = sum(any(map(str.isdigit, word)) for word in words)
    names = (language != "german") * sum(word[:1].isupper() and not word.startswith("I") for word in words[1:])
    features = {
        "base": 1.0,
        "only": float(alone and not is_plain),
        "first": float(first and not alone and not is_plain),
        "length": math.log(max(length, PLAIN_LENGTH) if is_plain else length),
        "names": min(2.0, names),
        "order": float(order),
        "scope": float(scope),
        "request": float(not scope and not is_plain and _REQUEST.search(sentence) is not None),
        "long_entry": max(0.0, math.log((message_chars + 1) / 240)),
        "promise": float(assistant and _PROMISE.search(sentence) is not None),
        "finding": float(_FINDING.search(sentence) is not None),
        "numbered": float(figures > 0 or "number" in cues),
        "figures": float(figures > len(words) / 4),
        **{name: min(2.0, number) for name, number in cues.items() if name in WEIGHTS},
    }
    score = sum(WEIGHTS[name][assistant] * value for name, value in features.items())
    return Rating(score, order and scope and _CHEERING.search(sentence) is None, "correction" in cues)


def is_courtesy(sentence: str, language: str | None = None) -> bool:
    """Return True if a sentence contains nothing but courtesies and words that say nothing by themselves.

    Args:
        sentence: the sentence.
        language: its language; None to detect it.
    """
    if len(sentence) > LONGEST_COURTESY:
        return False
    rest = load_cues(language or detect_language(sentence))["courtesy"].sub(" ", sentence)
    return len(rest) < len(sentence) and not extract_terms(rest).counts


# -- instructions ----------------------------------------------------------------

_SCOPE: Final = re.compile(
    r"\b(?:always|never|(?:don['’]t|do not) ever|(?:don['’]t|do not|not)\b[^.!?]{1,80}\bagain|from now on|going forward|in (?:the )?future|every ?time|each time|whenever|(?<!even )(?:when|if) (?:I|we|you|it['’]s) \w+|by default|for (?:all|any|every) \w+|every (?:single )?\w+|at all times|in my name"
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
    rf"|{_START}(?:(?:from now on|going forward|ab (?:jetzt|sofort)|künftig|désormais|à partir de maintenant|a partir de ahora|a partir de agora),?|(?:whenever|when|if|for|in|wenn|für|quand|si|pour|cuando|para|ab)\b[^.!?]{{1,80}}?[,:])\s(?:always |never |please |just |immer |bitte |toujours |siempre )*{_VERB}"
    rf"|(?:(?:\b(?:so|and|but|then|please)|[:;—])\s+(?:please )?(?:always|never)|(?<!\bI )(?<!\bwe )(?<!\bhe )(?<!she )(?<!they )(?<!\bit )(?<!you )(?<!['’]ve )(?<!['’]d )(?<!['’]ll )(?<!can )(?<!said )\b(?:please|from now on|do not|don['’]t))(?: ever| always| never)? {_VERB}"
    r"|\bI (?:want|need|expect|prefer|would like|['’]d like) you to\b|\byou must\b|\bmust (?:always|never)\b|\b(?:du|sie) (?:sollst|sollen|musst|müssen)\b|\btu dois|vous devez|debes\b"
    r"|请|不要|别|必须|不能|不许|先|一定要|记得|叫我|してください|しないで",
    re.IGNORECASE,
)
_REQUEST: Final = re.compile(
    rf"{_START}(?:(?:can|could|would|will) you (?:please )?)?(?:write|explain|create|draft|summari[sz]e|translate|list|show|tell|give|help|find|search"
    r"|generate|compare|describe|suggest|provide|plan|calculate|check|rewrite|design|build|let['’]s)\b",
    re.IGNORECASE,
)
"""Matches the beginning of a request for something that one reply gives."""
_CHEERING: Final = re.compile(
    r"\b(?:let['’]s|keep (?:it up|going|up the)|good luck|thank|never mind|be (?:ready|prepared)|(?:you['’]?d?|properly) (?:better|ready)|as always|I(?:['’]ve| have)? (?:always|never)|we (?:can |could )?(?:always|never)|(?:he|she|they|who) (?:\w+ )*(?:says?|said))\b",
    re.IGNORECASE,
)
