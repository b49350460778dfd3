"""Speech: sentences of users and assistants, with quoted words of others separated from the user's own.

Sentences that say nothing worth keeping, and promises, are recognised by their form and a few words of several languages. Whatever the
lists do not contain is kept.
"""

# ruff: noqa: RUF001, SIM905 (punctuation of other scripts is what some patterns are about; lists of words stay readable)

from __future__ import annotations

import re
from functools import lru_cache
from itertools import islice
from typing import Final

from holdfast.context.digest.texts import MAX_LEAVES, Fact, Kind, Line, deduplicate_facts, keep_ends, read_text_facts
from holdfast.context.statements import LEAST_CONTENT, rate_sentence, separate_own_words
from holdfast.context.values import (
    NUMBERED,
    QUESTION,
    SHORT,
    clean,
    estimate_tokens,
    split_words,
    weigh_value,
    weigh_words,
)
from holdfast.domain.messages import Message
from holdfast.recall.terms import extract_terms

COURTESY_WORDS, COURTESY_CHARS = 9, 12
"""Most words of a courtesy; most characters in a script without spaces."""
LONGEST = 100
"""Characters from which nothing is a courtesy."""
CALLED = 3
"""Most words of an exclamation in which a name may be an answer: "Great, Berlin!"."""
_THANKS: Final = frozenset(
    """
    thanks thank thx ty cheers welcome pleasure hello hi hey bye goodbye goodnight morning wow yay haha hahaha lol
    hooray congrats congratulations awesome amazing fantastic wonderful lovely great cool nice excellent perfect
    brilliant super glad danke dank vielen dankeschön bitteschön hallo tschüss servus moin prima toll wunderbar
    klasse herrlich freut gerngeschehen merci bonjour salut bonsoir génial parfait bravo enchanté formidable gracias
    hola adiós genial estupendo maravilloso encantado encantada perfecto obrigado obrigada olá ótimo maravilha legal
    grazie ciao prego perfetto fantastico
    """.split()
)
"""Words of thanks, greeting and delight: a courtesy is a short sentence with one of them and with nothing that could be a fact."""
_FILLING: Final = frozenset(
    """
    you so much very a lot the for your my that's that is it's it sounds good to hear really all again have day one
    just indeed be happy help here glad i'm am can could always anytime sir madam friend guys everyone team this was
    what and of oh ah well too job work news und vielen dank sehr schön gut das ist freut mich sie dir dich euch ja
    doch ganz herzlichen guten tag abend morgen es wirklich beaucoup très bien bonne journée c'est je vous te tout
    super de rien à la pour votre ton muchas muchísimas qué bien muy buenos buenas días tardes de nada por su tu es
    un placer me alegra muito muita bom boa dia noite de nada por que é um prazer
    """.split()
)
"""Words that may accompany them."""
_DENSE_COURTESY: Final = re.compile(
    r"^(?:[哈呵嘿]+|(?:谢谢|多谢|感谢|太好了|太棒了|你好|您好|不客气|再见|辛苦了|真好|真棒|好耶)[你您啦了呀啊哦大家的帮助]*"
    r"|(?:どうも)?(?:ありがとう(?:ございま(?:す|した))?|こんにちは|おはよう(?:ございます)?|すごい|やった|よかった|お疲れ様(?:です|でした)?|どういたしまして)"
    r"|(?:감사합니다|고마워요?|안녕하세요|좋아요))[\s!！。.~～ねよ]*$"
)
_EXCLAMATION: Final = re.compile(r"^[^\W\d]+\s*[!！]+$")
"""One word with an exclamation mark: delight in any language, unless it answers."""
_ANSWERS: Final = frozenset(
    """
    yes yep yeah yup no nope ok okay sure right correct exactly agreed stop cancel wait confirm confirmed deal go
    never always ja nein doch genau richtig halt oui non si sí sim não claro vale certo はい いいえ 네 아니요 好 是 对 不 да нет
    """.split()
)
"""Words that answer: a sentence that begins with one of them is no courtesy, whatever follows."""
_GREETINGS: Final = frozenset(
    """
    thanks thank thx hello hi hey bye goodbye goodnight morning danke hallo merci bonjour salut gracias hola
    obrigado obrigada olá grazie ciao
    """.split()
)
"""Words that may be followed by the name of the person addressed."""
_OFFER: Final = re.compile(
    r"^(?:(?:please )?(?:let me know|feel free|don't hesitate)|(?:how|what else) (?:can|may) i (?:help|assist|do)|(?:is there )?anything else"
    r"|i(?:'m| am) (?:here|happy|glad) to (?:help|assist)|(?:kann|darf) ich (?:ihnen|dir) (?:sonst|noch)|sag(?:en sie)? (?:mir )?(?:einfach )?bescheid"
    r"|n'hésitez? pas|puis-je vous aider|no (?:dudes?|duden?) en|¿?(?:puedo|en qué puedo) ayudar|posso ajudar|还有什么|如果您?还?有(?:任何|其他)|他に(?:何か)?)",
    re.IGNORECASE,
)
"""The end of an assistant's message that says nothing."""
_PROMISE: Final = re.compile(
    r"\b(?:i(?:'ll| will| shall|'m going to| am going to)|we(?:'ll| will))\s+(?!be (?:happy|glad)\b|need\b|help\b|do my best\b)\w+"
    r"|\b(?:ich|wir) (?:werde|werden)\b|\bich (?:schicke|sende|melde|prüfe|kümmere|erinnere|erstelle|schreibe|bereite)\b"
    r"|\b(?:je|on) (?:vais|va) \w+|\bje (?:vous |te |t'|l')?(?:enverrai|ferai|reviendrai|préparerai|rappellerai|tiendrai)\b|\bnous allons \w+"
    r"|\b(?:voy|vamos) a \w+|\b(?:te|le|os|les) \w+(?:aré|eré|iré)\b|\b(?:eu )?(?:vou|vamos) \w+r\b"
    r"|我(?:会|將|将|们会|来|去)|(?:いた)?します(?:ね)?[。.]?$|しておきます|お送りします",
    re.IGNORECASE,
)
_WORDS: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


_PROCEED: Final = re.compile(
    r"^(?:(?:yes|yeah|sure|okay|ok|all ?right|great|perfect|ja|oui|sí|sim)\b[,.! ]*)*(?:please |bitte )?(?:go ahead|proceed|continue|carry on|do (?:it|that|so)\b"
    r"|let['’]s (?:proceed|go|do)|mach (?:das|weiter)|nur zu|allez-y|vas-y|continuez|adelante|proceda|siga|pode (?:seguir|continuar))",
    re.IGNORECASE,
)
"""A request to do what was just discussed."""
_GENERIC: Final = frozenset(
    "ahead case continu detail do get go help info know look let proceed request sorri start tell thing try way".split()
)
"""Stems of words without content in a request."""
_PRONOUNS: Final = re.compile(r"I(?:['’]\w+)?")


def has_value(sentence: str) -> bool:
    """Return True if a sentence contains a number, an identifier or a name."""
    words = split_words(sentence)
    return any(
        weigh_value(word) >= SHORT or (at and word[0].isupper() and not _PRONOUNS.match(word))
        for at, word in enumerate(words)
    )


@lru_cache(maxsize=4_096)
def is_idle(sentence: str) -> bool:
    """Return True for a question, a request to proceed or a promise that names nothing: later messages contain the outcome."""
    sentence = sentence.replace("’", "'")
    asks = sentence.endswith(QUESTION) or _PROCEED.match(sentence) is not None or is_promise(sentence)
    return asks and not has_value(sentence) and len(extract_terms(sentence).counts.keys() - _GENERIC) < LEAST_CONTENT


def is_courtesy(sentence: str) -> bool:
    """Return True for a sentence of thanks, greeting or delight, and for an offer to help: it is never a fact."""
    if len(sentence) > LONGEST or any(map(str.isdigit, sentence)):
        return False
    dense = len(sentence) <= COURTESY_CHARS and not sentence.isascii() and _DENSE_COURTESY.match(sentence)
    if dense or _OFFER.match(sentence):
        return True
    words = _WORDS.findall(sentence.replace("’", "'"))
    return not words or (len(words) <= COURTESY_WORDS and _is_only_courtesy(sentence, words))


def _is_only_courtesy(sentence: str, words: list[str]) -> bool:
    """Return True if words thank, greet or delight and do nothing else."""
    folded = [word.lower() for word in words]
    if folded[0] in _ANSWERS:
        return False
    if _EXCLAMATION.match(sentence) or _THANKS.isdisjoint(folded):
        return _EXCLAMATION.match(sentence) is not None
    called = sentence.endswith(("!", "！")) and len(words) > CALLED
    named = called or not _GREETINGS.isdisjoint(folded)
    strange = sum(
        word not in _THANKS and word not in _FILLING and not (named and at and words[at][0].isupper())
        for at, word in enumerate(folded)
    )
    return strange <= called


def is_promise(sentence: str) -> bool:
    """Return True for a sentence in which the speaker says what they will do."""
    return not sentence.endswith(("?", "？")) and _PROMISE.search(sentence) is not None


def has_promise(text: str) -> bool:
    """Return True if any sentence of a text is a promise. This is a quick check."""
    return _PROMISE.search(text) is not None


LONGER, USUAL = 0.6, 12.0
"""Exponent with which the weight of a user's sentence grows with its length, and the usual length: of two sentences, the longer one is rarely
a mere phrase."""
STATED = 10.0
"""Least weight of a sentence that its user certainly wants to keep."""
QUOTED, LEAST_QUOTED = 0.5, 5.0
"""Factor for a sentence that the user quotes, and its least cost: "Kind regards, Tony" is not worth keeping. Identifiers count in full."""
ASKED = 0.15
"""Factor for a user's question without a value: its answer says more."""
CLAUSE = 4
"""Spaces from which the text after a label is a spoken clause, and not a value that the user filled in."""
LEAST_OWN = 3
"""Least words of the user's own in a sentence with a quote for which the sentence is the user's."""
PROMISED, PROMISE_LEAST = 1.5, 1.0
"""Factor for a promise of the assistant, and its least weight before that."""

_WORD = re.compile(r"\w+")


def read_speech(message: Message, seq: int, by: str) -> list[Line]:
    """Return the content of a message: a line for its author, and one for what a user quotes or pastes."""
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    read = (fact for fact in read_text_facts(message.text, said=True) if not is_courtesy(fact.value))
    facts = deduplicate_facts(islice(read, MAX_LEAVES))
    role = clean(message.role)[:20]
    if kind != "user":
        if kind == "assistant":
            for fact in facts:
                if is_promise(fact.value):
                    fact.weight = round(max(fact.weight, PROMISE_LEAST) * PROMISED, 2)
        return _make_lines(f"{role} said", seq, kind, facts, by)
    own, quoted = _separate_quotes(message.text, facts)
    return _make_lines(f"{role} said", seq, kind, own, by) + _make_lines(f"{role} quoted", seq, "other", quoted, by)


def _make_lines(said: str, seq: int, kind: Kind, facts: list[Fact], by: str) -> list[Line]:
    if not facts:
        return []
    handle = f"agent {by} {said.rpartition(' ')[2]}" if by else said
    return [Line(handle, f"{said}#{seq}", seq, kind, facts, cost=2.0 + round(estimate_tokens(handle), 1))]


def _separate_quotes(text: str, facts: list[Fact]) -> tuple[list[Fact], list[Fact]]:
    """Return the sentences of a user, weighed by the user's own words, and sentences of others with a value."""
    mine = _flatten(separate_own_words(keep_ends(text), strict=False).own)
    own, quoted = [], []
    for fact in facts:
        sentence = f"{fact.key}: {fact.value}" if fact.key else fact.value
        filled_in = fact.key and fact.value.count(" ") < CLAUSE
        words = fact.value if filled_in or _flatten(sentence) in mine else _extract_own_part(sentence, mine)
        if words:
            _weigh(fact, words)
            own.append(fact)
        elif any(weight >= NUMBERED for _, weight in weigh_words(fact.value)):
            quoted.append(fact)
        elif has_value(fact.value) and estimate_tokens(fact.value) >= LEAST_QUOTED:
            fact.weight = round(QUOTED * fact.weight, 2)
            quoted.append(fact)
    return own, quoted


def _extract_own_part(sentence: str, mine: str) -> str:
    """Return a sentence without the quotes in it, if enough of it is left and is the user's."""
    part = separate_own_words(sentence, strict=False).own
    pieces = [_flatten(piece) for piece in part.splitlines() if _WORD.search(piece)]
    whole = sum(piece.count(" ") - 1 for piece in pieces) >= LEAST_OWN and all(piece in mine for piece in pieces)
    return " ".join(part.split()) if whole else ""


def _flatten(text: str) -> str:
    """Return the words of a text separated by single spaces, whatever is between them."""
    return f" {' '.join(_WORD.findall(text))} "


def _weigh(fact: Fact, words: str) -> None:
    """Weigh a sentence by the user's own words in it."""
    usual = fact.weight * (fact.cost / USUAL) ** LONGER
    if words.endswith(QUESTION) and not any(weight >= SHORT for _, weight in weigh_words(words)):
        usual *= ASKED
    fact.weight = round(max(usual, STATED * rate_sentence(words)), 2)
