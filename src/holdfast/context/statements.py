"""Find the sentences in which a user states facts or wishes, and rate how probably each is worth keeping. No model is used.

Quoted and pasted text is removed from a message, and the rest is split into sentences. Each sentence is rated by cue words and by its form.
The weights come from logistic regressions over labelled conversations (`benchmarks/statements`, the six kinds under `dev`) and over sentences
from long chats with assistants. People want a full sentence of a longer message remembered more often than a first sentence, an only
sentence, a question, a request for the moment, or a reaction to a reply.
"""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about; lists of words stay readable)

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from holdfast.context.analysis_cache import ANALYSES, make_analysis_key
from holdfast.context.values import estimate_tokens
from holdfast.domain.fact_choices import Choice
from holdfast.recall.chunks import is_abbreviated
from holdfast.recall.terms import extract_terms
from holdfast.recall.word_tables import ENGLISH, find_language

DENSE_LANGUAGES: Final = frozenset({"chinese", "japanese"})
"""Languages without spaces between words. Their cues are found at any position in a text, not only at the beginning of a word."""
_SPACED_LANGUAGES: Final = (ENGLISH, "german", "french", "spanish", "portuguese")
_LANGUAGES: Final = frozenset({*_SPACED_LANGUAGES, *DENSE_LANGUAGES})
_CUES: Final = Path(__file__).parents[1] / "data" / "cues"
_KANA: Final = re.compile("[\u3041-\u30ff]")
_HAN: Final = re.compile("[\u3041-\u30ff\u2e80-\u9fff]")
_TOKEN: Final = re.compile(r"[\w'-]+")
_SPOKEN_WORD: Final = re.compile(r"[\w'\u2019]+")


@cache
def load_cues(language: str) -> Mapping[str, re.Pattern[str]]:
    """Return a pattern for each category of a language's cues. A language without a file of cues gets those of English."""
    return {
        category: _compile_pattern(words, dense=language in DENSE_LANGUAGES)
        for category, words in _read_cues(language).items()
    }


def count_cues(text: str, language: str) -> Mapping[str, int]:
    """Return the number of cues of each category in a sentence. Cues of one category that overlap are counted once.

    Args:
        text: the sentence.
        language: the language, as returned by `detect_language`.
    """
    if language in DENSE_LANGUAGES:
        return {category: len(pattern.findall(text)) for category, pattern in load_cues(language).items()}
    phrases, words = _load_phrases(language), [word.strip("'-") for word in _TOKEN.findall(_fold(text))]
    counts: dict[str, int] = {}
    ends: dict[str, int] = {}
    for at, word in enumerate(words):
        for rest, category in phrases.get(word, ()):
            end = at + 1 + len(rest)
            if at >= ends.get(category, 0) and (not rest or words[at + 1 : end] == rest):
                counts[category] = counts.get(category, 0) + 1
                ends[category] = end
    return counts


@cache
def _load_phrases(language: str) -> Mapping[str, list[tuple[list[str], str]]]:
    """Return a language's cues, grouped by their first word. A cue is the list of its other words, and its category. Longer cues come first."""
    found: dict[str, list[tuple[list[str], str]]] = {}
    for category, phrases in _read_cues(language).items():
        for phrase in phrases:
            first, *rest = [word.strip("'-") for word in _TOKEN.findall(_fold(phrase))]
            found.setdefault(first, []).append((rest, category))
    return {first: sorted(entries, key=lambda one: -len(one[0])) for first, entries in found.items()}


def _fold(text: str) -> str:
    return text.casefold().replace("\u2019", "'")


def _read_cues(language: str) -> dict[str, list[str]]:
    name = language if language in _LANGUAGES else ENGLISH
    data: dict[str, list[str]] = json.loads((_CUES / f"{name}.json").read_bytes())
    return data


def _compile_pattern(words: list[str], *, dense: bool) -> re.Pattern[str]:
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(longest_first if dense else rf"(?<![\w'\u2019-])(?:{longest_first})(?!\w)", re.IGNORECASE)


def detect_language(text: str, otherwise: str = ENGLISH) -> str:
    """Return the language of a text, found by its script or else by its stop words.

    Args:
        text: one or more sentences.
        otherwise: the language to return if the text shows none for which there are cues.
    """
    if not text.isascii() and 2 * len(_HAN.findall(text)) > len(text.replace(" ", "")):
        return "japanese" if _KANA.search(text) else "chinese"
    found = find_language(word.casefold() for word in _SPOKEN_WORD.findall(text))
    return found if found in _LANGUAGES else otherwise


_I: Final = re.IGNORECASE
_NAME_CHARS: Final = 20
_SPACES: Final = re.compile(r"[^\S\n]+")
_LINES: Final = re.compile(r" ?\n ?(?:\n ?)+")
_QUOTED: Final = re.compile(
    r"```.*?(?:```|\Z)|<([A-Za-z][\w-]{0,30})\b[^<>\n]{0,200}>[^<]{0,20000}</\1\s*>|^[ \t]*>.*?$|\"[^\"\n]{3,}\"|“(?:[^“”\n]|“[^“”\n]*”){2,}”|„[^„“”\n]{2,}[“”]|«[^«»\n]{2,}»|»[^«»\n]{2,}«|「[^「」\n]{2,}」|『[^『』\n]{2,}』"
    r"|(?<!\w)'[^'\n]{6,}'(?!\w)|‘[^‘’\n]{6,}’(?!\w)",
    re.DOTALL | re.MULTILINE,
)
_MEDIA: Final = (
    r"(?:e-?mail|mail|message|letter|text|article|page|note|document|newsletter|site|website|post|ad|brochure|flyer|poster|blog|forum|thread|chat"
    r"|(?<=the )news|reports?|story|file|voicemail|sms|tickets?|comments?|reviews?|transcript|memo|listing|faq|manual|readme|logs?|screenshot|letters|posts|nachricht|brief|artikel|seite|webseite|zettel|anzeige|zeitung|rundschreiben|courriel|lettre|texte|courrier"
    r"|annonce|journal|correo|mensaje|carta|texto|artículo|anuncio|página|mensagem|bilhete|anúncio)"
)
"""Pattern of nouns for texts that other people write, such as `e-mail` or `article`."""
_FORWARDED: Final = re.compile(
    r"^[ \t]*(?:-{2,}\s*(?:original|forwarded|weitergeleitet|ursprüngliche|message transféré|mensaje reenviado|mensagem encaminhada).*"
    r"|begin forwarded message.*|(?:on|am|le|el|em)\b[^\n]{4,150}\b(?:wrote|schrieb|a écrit|escribió|escreveu)\b[^\n]{0,60}[:：][ \t]*$"
    r"|(?:from|subject|von|betreff|de|objet|asunto|assunto|fwd?|fw|wg|aw|re|tr|rv|enc|发件人|主题|差出人|件名)\s*[:：].*"
    r"|(?:dear|sehr geehrte\w*|lieber?|chère?s?|estimad[oa]s?|querid[oa]s?|prezad[oa]s?|car[oa]s?)[ ](?!assistant\b|ai\b|claude\b)[^\n.!?]{1,60}[,:]?[ \t]*$"
    r"|(?:hi|hello|hey|hallo|bonjour|salut|hola|olá)[ ](?!there\b|assistant\b|ai\b|claude\b)[^\n.!?,]{1,40},[ \t]*$)",
    _I | re.MULTILINE,
)
"""Matches the beginning of another person's mail or letter. The mail continues to the end of the paragraph with the signature."""
_SIGNED: Final = re.compile(
    r"^[ \t]*(?:(?:best|kind|warm)?[ ]?regards|best|cheers|sincerely|yours(?: \w+)?|thanks|mit freundlichen grüßen|(?:viele|beste|liebe)[ ]grüße|mfg|cordialement"
    r"|bien à vous|saludos(?: cordiales)?|atentamente|atenciosamente|abraços?)\b[ \t]*[,.\n][^\n]*",
    _I | re.MULTILINE,
)
_LABELLED: Final = re.compile(
    r"^(?:(?!here['’]s|it['’]s|that['’]s|let['’]s|what['’]s)[^\n:：]){0,40}\w['’]s\b[^\n:：]{0,30}[:：][ \t]*(?=\S+[ ]+\S)|"
    rf"^[^\n:：]{{0,80}}\b{_MEDIA}\b[^.!?\n:：]{{0,40}}[:：][ \t]*(?=\n|\S)|^[^\n]{{0,40}}(?:邮件|短信|消息|文章|网页|メール|記事|ページ)[^\n]{{0,20}}[:：]",
    _I | re.MULTILINE,
)
"""Matches a label that introduces another person's text, such as that of a mail. The text continues to the end of the paragraph."""
_ASKS_TO_KEEP: Final = re.compile(
    r"\b(?:remember|memori[sz]e|note (?:down|that)|keep in mind|don't forget|merk\w*|denk daran|retiens|souviens-toi|n'oublie pas|recuerda|no olvides|lembre|não esqueça|anote|anota|notez? (?:bien|que))\b|记住|记得|覚えて|忘れないで",
    _I,
)

_SPEAKER: Final = r"^[ \t]*[\[(]?[^\W_][^\n:：?!]{0,30}?[\])]?[ \t]*[:：][ \t]*\S[^\n]*"
_TRANSCRIPT: Final = re.compile(rf"{_SPEAKER}(?:\n{_SPEAKER})+", re.MULTILINE)
"""Matches two or more lines of a paragraph that each begin with a label. They are a conversation of others, or a form."""
_MATERIAL: Final = re.compile(
    r"^[ \t#*]*(?:(?:the|my|some|here is|der|die|das|le|la|el|o|a)[ ])?(?:context|background|document|source|excerpt|passage|quote|(?:tool |command )?(?:in|out)put|(?:tool|command) results?|data|text|transcript|example|logs?|(?:system )?prompt"
    r"|search results?(?: \d+)?|stdout|stderr|instructions?|system|user|assistant|human|kontext|hintergrund|dokument|quelle|auszug|beispiel|eingabe|ausgabe|zitat|contexte|extrait|exemple|citation|contexto|documento|fuente|extracto|ejemplo|cita"
    r"|fonte|trecho|exemplo|citação|背景|上下文|原文|资料|例|文脈|資料)[ \t*]*[:：](?:[ \t]*\S(?:[^\n]|\n(?!\n))*|[\s\S]*)",
    _I | re.MULTILINE,
)
"""Matches a label that introduces pasted text, such as `Context:`. The text continues to the end of the paragraph or, if the label is on a
line of its own, to the end of the message."""


_WORKED_ON: Final = re.compile(
    r"^[ \t]*(?![^\n:：]*\b(?:always|never|from now on|every|immer|nie|ab jetzt|toujours|jamais|siempre|nunca|sempre)\b)(?:(?:(?:please|now|can you|could you|bitte|peux-tu|por favor|请)[ ]*)*"
    r"(?:translate|summari[sz]e|proofread|rewrite|reword|rephrase|paraphrase|analy[sz]e|explain|review|check|fix|improve|polish|shorten|correct|edit|convert|read|look at|parse|extract|classify"
    r"|übersetze?|fasse?|korrigiere?|prüfe?|formuliere|erkläre?|lies|traduis|traduisez|résume|corrige|reformule|vérifie|explique|lis|traduce|traduzca|resume|revisa|explica|lee|traduza|resuma|corrija"
    r"|revise|leia)\b|(?:请|请你)?(?:翻译|总结|解释)"
    r"|[^\n:：]{0,80}\b(?:the|this|these|following|below|folgend\w*|suivant\w*|siguientes?|seguintes?)\b[^\n:：]{0,40}\b(?:text|content|output|error|result|returned|response|tool|snippet|paragraph|passage"
    r"|quote|following|below|traceback|data|code|was|got)\b(?=[^\n:：]{0,80}[:：][ \t]*\n)|[^\n:：]{0,60}\berror\b(?=[^\n:：]{0,80}[:：][ \t]*\n)|[^\n:：]{0,40}(?:下面|以下|次の|下記))[^\n:：]{0,80}[:：](?=\s|请)[\s\S]*",
    _I | re.MULTILINE,
)
"""Matches a request to work on a text, or the announcement of a text, together with the text, which is everything after the colon.

A sentence with `always` or `never` is not matched, because it is an instruction."""
_PASTED: Final = re.compile(
    r"^[ \t]*(?P<fence>~~~|'''|\"\"\").*?(?:^[ \t]*(?P=fence)|\Z)"
    r"|^[ \t]*(?P<rule>[-=_*+]{3,})[ \t]*\n.*?(?:^[ \t]*(?P=rule)[-=_*+]*[ \t]*$|\Z)|^[ \t]*(?P<lead>[-=_*+]{2,})[ \t]+\w[^\n]{0,60}(?P=lead)[ \t]*\n.*?(?:^[ \t]*(?P=lead)[^\n]*|\Z)"
    r"|^[ \t]*BEGIN\b[^\n]{0,60}\n.*?(?:^[ \t]*END\b[^\n]*|\Z)|^[ \t]*\|[^\n]*\|[ \t]*$|^(?: {4}|\t)\S[^\n]*$|^[ \t]*[{\[][ \t]*\"[^\n]*|^[ \t]*(?:role|content)[ \t]*[:：][^\n]*"
    r"|^[ \t]*#{1,6}[ \t]*(?:system|instructions?|assistant|user|human|context|document|prompt|input|output|response)\b.*"
    r"|^[ \t]*(?:\[\d{1,2}:\d\d[^\]\n]{0,12}\]|\d{1,2}:\d\d(?::\d\d)?(?:[ ]?[ap]m)?[ ]*[-–—])[ ]*[^\n:：]{1,40}[:：][ ][^\n]*"
    r"|^[ \t]*<\|?[A-Za-z][^<>\n]{0,200}\|?>(?!.*</).*|\[/?(?:INST|SYSTEM|USER|ASSISTANT|TOOL|DOC\w*)\b[^\]\n]{0,40}\].*",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
"""Matches other pasted text: fenced and ruled-off blocks, tables, indented and encoded text, and turns of chat templates without an end."""
_OWN_NOTE: Final = re.compile(r"[ \t]*(?:please note|note|nb|ps)[:：]", _I)


class OwnWords(NamedTuple):
    """A user's message, divided into the user's own words and words of others."""

    own: str
    others: tuple[str, ...]
    """Texts of others in the message: blocks, quotes, mails, labelled lines."""


@lru_cache(maxsize=512)
def separate_own_words(text: str) -> OwnWords:
    """Separate a user's own words from words of others in the user's message.

    A single line with a title and a clause (`Word on the street: Kelp is closing`) is the user's own, because people write notes in this form.
    A label of pasted text (`Context:`) and two speakers in a row mark a quote.
    """
    blocks = [found.group() for found in _PASTED.finditer(text)]
    text = _LINES.sub(_keep_lines, _SPACES.sub(" ", _PASTED.sub("\n", text)))
    quotes = [found.group() for found in _QUOTED.finditer(text) if _is_quote(found.group())]
    rest, others = _separate_others(_QUOTED.sub(_replace_quote, text))
    return OwnWords(rest, (*blocks, *quotes, *others))


def _keep_lines(found: re.Match[str]) -> str:
    return "\n\n" if found.group().count("\n") > 1 else "\n"


def _is_asking_to_keep(text: str) -> bool:
    """Return True if a text asks to remember what follows its first colon. A request after that colon may be another person's."""
    return _ASKS_TO_KEEP.search(re.split(r"[:：](?=\s|$)", text, maxsplit=1)[0]) is not None


def _separate_others(text: str) -> tuple[str, list[str]]:
    """Remove text written by other people from a message. Return the rest of the message, and the removed texts.

    Such text includes quoted e-mails and letters, lines with a speaker's name, and texts after a label such as `Context:`.
    """
    others: list[str] = []
    own: list[str] = []
    at = 0
    while (begins := _FORWARDED.search(text, at)) is not None:
        signed = _SIGNED.search(text, begins.end())
        own.append(text[at : begins.start()])
        at = signed.end() if signed else len(text)
        others.append(text[begins.start() : at])
    rest = "\n\n".join((*own, text[at:]))
    for form in (_WORKED_ON, _TRANSCRIPT, _MATERIAL):
        others += [found.group() for found in form.finditer(rest) if not _is_asking_to_keep(found.group())]
        rest = form.sub(lambda found: found.group() if _is_asking_to_keep(found.group()) else "", rest)
    paragraphs = re.split(r"\n\s*\n", rest)
    labels = [_LABELLED.search(f"{paragraph}\n") for paragraph in paragraphs]
    for number, label in enumerate(labels):
        if label and not _is_asking_to_keep(label.group()) and not _OWN_NOTE.match(label.group()):
            # A label with nothing after it in its paragraph announces the rest of the message.
            announces = not paragraphs[number][label.end() :].strip()
            end = len(paragraphs) if announces else number + 1
            others += [paragraphs[number][label.start() :], *paragraphs[number + 1 : end]]
            paragraphs[number:end] = [paragraphs[number][: label.start()], *[""] * (end - number - 1)]
    return "\n\n".join(paragraphs), others


def _is_quote(text: str) -> bool:
    """Return True if a text in quotation marks or a fence is a quote. One or two words in quotation marks are a name."""
    return len(text.split()) > 2 or len(text) > 2 + _NAME_CHARS or text.lstrip().startswith((">", "```", "<"))


def _replace_quote(found: re.Match[str]) -> str:
    return "\n" if _is_quote(found.group()) else found.group()


LONGEST: Final = 220
"""A sentence with more characters than this is split, if there is a suitable position."""
LONG_MESSAGE: Final = 4_000
"""A message with more characters than this, about 1,000 tokens, probably contains pasted text. Only its last paragraph is read."""
MOST_SENTENCES: Final = 60
"""Number of first sentences of a message that are rated."""
WEIGHTS: Final[Mapping[str, float]] = {
    "base": -4.5,
    "length": 0.9,
    "question": -1.7,
    "asking word": -0.4,
    "only": -0.5,
    "first": -0.65,
    "names": 0.35,
    "digits": 0.4,
    "few": -1.0,
    "pasted": -0.4,
    "pointing": -0.7,
    "now": -0.6,
    "reaction": -1.6,
    "wish": 0.65,
    "preference": 1.15,
    "standing": 0.85,
    "duty": 0.85,
    "prohibition": 0.5,
    "name": 1.9,
    "correction": 0.4,
    "decision": 0.5,
    "time": 1.0,
    "number": 0.3,
    "hedge": -0.55,
    "health": 1.2,
    "passing": -1.5,
}
"""Log odds that properties of a sentence add. Those from `pointing` on are categories of cues; at most two of a category are counted. The
others:

- `base`: for every sentence. `length`: multiplied by the logarithm of its number of words.
- `question`: it is a question. `asking word`: its first word is one that asks.
- `only`: it is the only sentence of the message. `first`: it is the first of several sentences.
- `names`: for each word with a capital letter. `digits`: for each number in digits. At most three of them are counted.
- `few`: it has at most one word that says something by itself.
- `pasted`: it does not mention the speaker. Multiplied by the logarithm of the message's length, because long texts are pasted.

`pointing` counts at the beginning only ("That's what I need"): what it points to is gone. `now` is for what matters only at the moment,
`reaction` for approval or complaint about a reply. `health` and `passing` were set by hand, the others by hand between two regressions.
"""
LEAST_CONTENT: Final = 2
"""A sentence with a courtesy is kept only if it has at least this many other words that say something by themselves."""
LEAST_WORDS: Final = 3
"""Words that a sentence must have. A plain statement may have one fewer."""
PLAIN: Final = frozenset({"standing", "duty", "preference", "name", "health"})
SHORT: Final = PLAIN - {"duty"}
"""Categories of cues of plain statements that may be short. "I must stop" says nothing."""
UNCERTAIN: Final = frozenset({"hedge", "passing", "now", "reaction"})
SHORT_SENTENCE: Final = 40
"""Characters of a sentence whose language is not sure: `en` is a word of French and of Spanish."""
PASTED_LENGTH: Final = 600
"""Characters of a message. In longer ones, a text that does not mention the speaker is probably pasted."""
PLAIN_LENGTH: Final = 12
"""A plain statement, such as "Always answer briefly", forbids something or has a cue of a category in `PLAIN`, none in `UNCERTAIN`, and asks
nothing. It is rated as if it had at least this many words, and is not rated lower for being the first or only sentence of its message.

The labelled conversations have hardly any statements of three or four words, so the learned weights would drop nearly all of these."""
STATEMENT_BYTES: Final = 250
"""Bytes that a statement takes in memory in addition to its text."""
DENSE_WORD: Final = 1.7
"""About this many characters of a script without spaces make one word."""
_DENSE: Final = re.compile("[\u2e80-\u9fff\u3041-\u30ff\uac00-\ud7ff]")
_WORD: Final = re.compile(r"[\w'\u2019]+")
_END: Final = re.compile(r"[.!?…]+[\"')\]]*(?=\s|$)|[。！？；]+|;(?=\s)")
_NO_END: Final = re.compile(r"(?:(?:^|\s)\d\d?|\betc)\.\Z")
"""Matches the number of a list item, or `etc.`, at the end of a text. The full stop there does not end a sentence."""
_BULLET: Final = re.compile(r"\A(?:[-*#>•–]+|\d{1,3}[.)])\s+")
_JOINTS: Final = (
    re.compile(r",\s+(?=(?:and|but|so|because|which|then|also)\b)|\s[-–—]\s|，|:\s+", re.IGNORECASE),
    re.compile(r"\s+(?=(?:and|but|so|oh|okay|um|uh|because|then|anyway)\b)", re.IGNORECASE),
    re.compile(r"[,，]\s*|\s+"),
)
"""Patterns after which a long sentence may be split, the best first. The second is for transcripts of speech, which lack punctuation."""
_MARGIN: Final = 30
_GOES_ON: Final = ",;:)，；：）、"
"""Characters that cannot begin a sentence. If one does, the beginning of the sentence was a quote that was removed."""
_BROKEN_OFF: Final = re.compile(
    r"(?:[:：]|\w(?:\.{3}|…)|\b(?:an?|the|of|to|with|as|for|about|within|by|from|than|called|mit|von|zu|für|de|le|les|des|du|el|los|las|con|para|com))\Z",
    _I,
)
"""Matches the end of a sentence that goes on elsewhere: in a list, or in a quote that was removed."""
_LEAD: Final = re.compile(
    r"(?:(?:and|but|so|plus|also|oh|well|yes|no|okay|ok|alright|und|aber|et|mais|y|pero|e|mas)\b,?\s+)*", _I
)
_FORBIDS: Final = re.compile(
    r"(?:please |bitte |por favor )?(?:do(?:n['’]t|nt| not)|avoid|keine?n?|ne|não|evita|别|不要|请不要)\b", _I
)
"""Matches the beginning of a sentence that forbids something."""
_NAME: Final = re.compile(r"(?<=[^.!?:*\s]\s)[*\"'(]{0,3}[A-ZÀ-Þ][a-zß-ÿ]+")
"""Matches a word with a capital letter that does not begin the sentence."""
_DIGITS: Final = re.compile(r"\d[\d.,:]*")
_CODE: Final = re.compile(r"[{}<>=;$|\\]|\w/\w|\w_\w|\w\(\)|^\s*(?:\$|>>>|import|def|class|git|npm|pip|cd|ls)\b")
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
    """Estimated tokens."""
    corrects: bool = False
    """True if the sentence says that something has changed."""
    at: int = 0
    """Time at which the message was written, in milliseconds since the epoch."""
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


def find_statements(
    text: str, seq: int, *, at: int = 0, choices: Mapping[int, Choice] = MappingProxyType({})
) -> list[Statement]:
    """Return the statements of a user's message in order. Courtesies, fragments and code are left out.

    Args:
        text: the text of the message.
        seq: `seq` of the message.
        at: time at which the message was written, in milliseconds since the epoch.
        choices: the caller's decisions to pin or drop statements, by the number of the sentence.
    """
    return [
        msgspec.structs.replace(one, seq=seq, at=at, choice=choices.get(one.place) if choices else None)
        for one in _analyse(text)
    ]


def _analyse(text: str) -> tuple[Statement, ...]:
    """Return the rated sentences of a text.

    Cached, because they are needed twice: to reserve tokens before a message is evicted, and when it is evicted.
    """
    key = make_analysis_key(b"statements", text.encode(errors="surrogatepass"))
    kept: tuple[Statement, ...] | None = ANALYSES.get(key)
    if kept is None:
        kept = _rate_all(text)
        ANALYSES.put(key, kept, sum(STATEMENT_BYTES + len(one.text) for one in kept))
    return kept


def _rate_all(text: str) -> tuple[Statement, ...]:
    if len(text) > LONG_MESSAGE:
        text = text.rstrip().rpartition("\n\n")[2][-LONG_MESSAGE:]
    own = separate_own_words(text).own
    language = detect_language(own)
    sentences = split_sentences(own)[:MOST_SENTENCES]
    rated = (_rate(one, at, len(sentences), len(text), language) for at, one in enumerate(sentences))
    return tuple(one for one in rated if one is not None)


def rate_sentence(sentence: str) -> float:
    """Return the probability that a user's sentence is worth keeping, ignoring its position; 0.0 for a courtesy, a fragment or code."""
    rated = _rate_form(sentence, ENGLISH)
    return 1 / (1 + math.exp(-rated.score)) if rated else 0.0


class _Rated(NamedTuple):
    """The rating of a sentence without regard to its position in the message."""

    score: float
    corrects: bool
    is_plain: bool
    is_personal: bool
    """True if the sentence mentions the speaker."""


def _rate(sentence: str, at: int, among: int, length: int, otherwise: str) -> Statement | None:
    """Return a sentence as a rated statement; None for a courtesy, a fragment or code.

    Args:
        sentence: the sentence.
        at: number of the sentence in the message, from 0.
        among: number of sentences of the message.
        length: characters of the message.
        otherwise: language of the message, used if the sentence alone does not show its language.
    """
    rated = _rate_form(sentence, otherwise)
    if rated is None:
        return None
    score = rated.score
    if not rated.is_plain:
        score += WEIGHTS["only"] if among == 1 else WEIGHTS["first"] if at == 0 else 0.0
    if not rated.is_personal:
        score += WEIGHTS["pasted"] * math.log(max(1.0, length / PASTED_LENGTH))
    return Statement(0, at, sentence, round(score, 2), round(estimate_tokens(sentence) + 2, 1), rated.corrects)


@lru_cache(maxsize=4_096)
def _rate_form(sentence: str, otherwise: str) -> _Rated | None:
    """Rate a sentence without regard to its position; None for a courtesy, a fragment or code.

    Cached, because the digest rates the same sentences.
    """
    language, counts = _find_cues(sentence, otherwise)
    if counts.get("standing"):
        counts = {**counts, "now": 0}  # from now on
    words, cues = _WORD.findall(sentence), load_cues(language)
    length = len(sentence) / DENSE_WORD if language in DENSE_LANGUAGES else len(words)
    asks, forbids = ASKED.search(sentence) is not None, _FORBIDS.match(sentence) is not None
    is_plain = not asks and (_has_cue(counts, PLAIN) or forbids) and not _has_cue(counts, UNCERTAIN)
    least = LEAST_WORDS - 1 if is_plain else LEAST_WORDS
    if length < least or sentence[0] in _GOES_ON or len(_CODE.findall(sentence)) * 4 > length:
        return None
    if _BROKEN_OFF.search(sentence) or (counts.get("courtesy") and _is_courtesy(sentence, cues["courtesy"])):
        return None
    found: dict[str, float] = {name: min(2, number) for name, number in counts.items() if name in WEIGHTS}
    found |= {
        "base": 1,
        "length": math.log(max(length, PLAIN_LENGTH) if is_plain else length),
        "question": asks,
        "asking word": bool(words) and cues["question"].fullmatch(words[0]) is not None,
        "names": 0 if language == "german" else min(3, len(_NAME.findall(sentence))),
        "digits": min(3, len(_DIGITS.findall(sentence))),
        "few": len(extract_terms(sentence).counts) < LEAST_CONTENT and not (forbids or _has_cue(counts, SHORT)),
        "pointing": cues["pointing"].match(_LEAD.sub("", sentence, count=1)) is not None,
    }
    corrections = counts.get("correction", 0)
    found["correction"] = min(2, max(0, corrections - counts.get("now", 0)))  # "now" alone may mean anything
    if found["correction"] or is_plain:
        found["pointing"] = 0  # at what it corrects, or the sentence stands without it
    if found["correction"] or found.get("time"):
        found["now"] = 0
    score = sum(WEIGHTS[name] * value for name, value in found.items())
    return _Rated(score, not asks and corrections > 0, is_plain, bool(counts.get("self")))


def _find_cues(sentence: str, otherwise: str) -> tuple[str, Mapping[str, int]]:
    """Return the language of a sentence and its cues.

    If no stop word shows the language, or few, because the sentence is short, the cues of plain statements do.
    """
    detected = detect_language(sentence, "")
    language = detected or otherwise
    usual = count_cues(sentence, language)
    if _has_cue(usual, PLAIN) or (detected and len(sentence) > SHORT_SENTENCE):
        return language, usual
    found = ((one, count_cues(sentence, one)) for one in _SPACED_LANGUAGES if one != language)
    return next(((one, counts) for one, counts in found if _has_cue(counts, PLAIN)), (language, usual))


def _has_cue(counts: Mapping[str, int], categories: Iterable[str]) -> bool:
    return any(counts.get(category) for category in categories)


def _is_courtesy(sentence: str, courtesies: re.Pattern[str]) -> bool:
    """Return True if a sentence contains nothing but courtesies and words that say nothing by themselves."""
    rest = courtesies.sub(" ", sentence)
    return len(rest) < len(sentence) and len(extract_terms(rest).counts) < LEAST_CONTENT


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences and list items. Long ones are split into parts."""
    return [piece for line in text.splitlines() for piece in _split_line(line)]


def _split_line(line: str) -> Iterator[str]:
    line, start = _BULLET.sub("", " ".join(line.split()), count=1), 0
    for end in _END.finditer(line):
        stop = end.end()
        if end.group() != "." or not (_NO_END.search(line, max(0, stop - 8), stop) or is_abbreviated(line, stop)):
            yield from _split_long(line[start : end.end()].strip())
            start = end.end()
    if rest := line[start:].strip():
        yield from _split_long(rest)


def _split_long(sentence: str) -> Iterator[str]:
    weight = 2.2 if _DENSE.search(sentence) else 1.0
    if len(sentence) * weight <= LONGEST:
        if sentence:
            yield sentence
        return
    last = len(sentence) - _MARGIN / weight
    for joint in _JOINTS:
        places = [found.end() for found in joint.finditer(sentence) if _MARGIN / weight < found.end() < last]
        if places:
            middle = min(places, key=lambda place: abs(2 * place - len(sentence)))
            yield from _split_long(sentence[:middle].strip())
            yield from _split_long(sentence[middle:].strip())
            return
    yield sentence[: 4 * LONGEST]
