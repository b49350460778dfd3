"""Read the sentences of users and assistants. Words of others that a user quotes are separated from the user's own words.

Promises, and sentences that are not worth keeping, are recognised by their form and by lists of words in several languages. A sentence is
kept if it has other words than those in the lists.
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
"""Longest courtesy: `COURTESY_WORDS` words or, in a script without spaces, `COURTESY_CHARS` characters."""
LONGEST = 100
"""A sentence with more characters than this is no courtesy."""
EXCLAMATION_WORDS = 3
"""In an exclamation with at most this many words, such as "Great, Berlin!", an unknown word may be an answer. Longer ones may contain the
name of a person."""
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
"""Words of thanks, greeting and delight. A courtesy is a short sentence that has one of them and no word that could be a fact."""
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
"""Words that may be in a courtesy together with those in `_THANKS`."""
_DENSE_COURTESY: Final = re.compile(
    r"^(?:[哈呵嘿]+|(?:谢谢|多谢|感谢|太好了|太棒了|你好|您好|不客气|再见|辛苦了|真好|真棒|好耶)[你您啦了呀啊哦大家的帮助]*"
    r"|(?:どうも)?(?:ありがとう(?:ございま(?:す|した))?|こんにちは|おはよう(?:ございます)?|すごい|やった|よかった|お疲れ様(?:です|でした)?|どういたしまして)"
    r"|(?:감사합니다|고마워요?|안녕하세요|좋아요))[\s!！。.~～ねよ]*$"
)
_EXCLAMATION: Final = re.compile(r"^[^\W\d]+\s*[!！]+$")
"""Matches a single word with an exclamation mark. It expresses delight in any language, unless the word is in `_ANSWERS`."""
_ANSWERS: Final = frozenset(
    """
    yes yep yeah yup no nope ok okay sure right correct exactly agreed stop cancel wait confirm confirmed deal go
    never always ja nein doch genau richtig halt oui non si sí sim não claro vale certo はい いいえ 네 아니요 好 是 对 不 да нет
    """.split()
)
"""Words that answer a question. A sentence that begins with one of them is no courtesy, whatever follows."""
_GREETINGS: Final = frozenset(
    """
    thanks thank thx hello hi hey bye goodbye goodnight morning danke hallo merci bonjour salut gracias hola
    obrigado obrigada olá grazie ciao
    """.split()
)
"""Words after which the name of the person who is addressed may follow."""
_OFFER: Final = re.compile(
    r"^(?:(?:please )?(?:let me know|feel free|don't hesitate)|(?:how|what else) (?:can|may) i (?:help|assist|do)|(?:is there )?anything else"
    r"|i(?:'m| am) (?:here|happy|glad) to (?:help|assist)|(?:kann|darf) ich (?:ihnen|dir) (?:sonst|noch)|sag(?:en sie)? (?:mir )?(?:einfach )?bescheid"
    r"|n'hésitez? pas|puis-je vous aider|no (?:dudes?|duden?) en|¿?(?:puedo|en qué puedo) ayudar|posso ajudar|还有什么|如果您?还?有(?:任何|其他)|他に(?:何か)?)",
    re.IGNORECASE,
)
"""Matches an offer of further help, with which assistants often end a message."""
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
"""Matches a request to do what was just discussed."""
_ACKNOWLEDGEMENT: Final = re.compile(
    r"^(?:(?:ok(?:ay)?|ah|oh)\b[,.! ]*)?(?:(?:duly )?noted|got it|gotcha|understood|i (?:see|understand)|(?:that )?makes sense|(?:that['’]s )?good to know"
    r"|acknowledged|roger(?: that)?|copy that|you['’]re (?:very |most )?welcome|no worries|next(?: (?:one|question|point|item|step))?|go on|keep going"
    r"|(?:ist )?(?:notiert|vermerkt)|(?:ich )?verstehe|verstanden|gut zu wissen|nächste(?:r|s)?(?: (?:frage|punkt))?|(?:mach )?weiter"
    r"|(?:c['’]est )?noté|bien reçu|compris|je (?:vois|comprends)|(?:question |point )?suivante?"
    r"|(?:lo )?(?:anotado|apuntado)|entendido|entiendo|(?:siguiente|próxim[ao])(?: pregunta| pergunta)?|ya veo|anotado|entendi|capito|ricevuto"
    r"|(?:好的?[，, ]?)?(?:明白|知道|了解|记下|收到)了?|下一[个題题]|(?:了解|承知|かしこまり)(?:しました|ました|です)?|分かりました|わかりました|次|알겠습니다|다음)"
    r"(?:[,;]? (?:thanks|thank you|please|so far|then|danke|merci|gracias|obrigad[ao]|bitte))?[\s.!。！…~～]*$",
    re.IGNORECASE,
)
"""Matches a sentence with which a speaker confirms that they have read something, or asks for the next thing."""
_GENERIC: Final = frozenset(
    "ahead case continu detail do get go help info know look let proceed request sorri start tell thing try way".split()
)
"""Stems of words that say nothing by themselves in a request."""
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
    """Return True if a sentence of the user is not worth keeping, unless it answers a question.

    It is a question, request to proceed or promise without specific content, or an acknowledgement. Later messages contain the outcome of
    such a sentence.
    """
    if is_acknowledgement(sentence):
        return True
    sentence = sentence.replace("’", "'")
    asks = sentence.endswith(QUESTION) or _PROCEED.match(sentence) is not None or is_promise(sentence)
    return asks and not has_value(sentence) and len(extract_terms(sentence).counts.keys() - _GENERIC) < LEAST_CONTENT


def is_courtesy(sentence: str) -> bool:
    """Return True if a sentence only thanks, greets, expresses delight or offers help, so that it contains no fact."""
    if len(sentence) > LONGEST or any(map(str.isdigit, sentence)):
        return False
    dense = len(sentence) <= COURTESY_CHARS and not sentence.isascii() and _DENSE_COURTESY.match(sentence)
    if dense or _OFFER.match(sentence):
        return True
    words = _WORDS.findall(sentence.replace("’", "'"))
    return not words or (len(words) <= COURTESY_WORDS and _is_only_courtesy(sentence, words))


def is_acknowledgement(sentence: str) -> bool:
    """Return True if a sentence only says that the speaker has understood or wants to go on, so that it is a fact only as an answer."""
    return len(sentence) <= LONGEST and _ACKNOWLEDGEMENT.match(sentence) is not None


def _is_only_courtesy(sentence: str, words: list[str]) -> bool:
    """Return True if a sentence consists of words of thanks, greeting or delight, with at most the name of a person.

    Args:
        sentence: the sentence.
        words: the words of the sentence.
    """
    folded = [word.lower() for word in words]
    if folded[0] in _ANSWERS:
        return False
    if _EXCLAMATION.match(sentence) or _THANKS.isdisjoint(folded):
        return _EXCLAMATION.match(sentence) is not None
    called = sentence.endswith(("!", "！")) and len(words) > EXCLAMATION_WORDS
    named = called or not _GREETINGS.isdisjoint(folded)
    strange = sum(
        word not in _THANKS and word not in _FILLING and not (named and at and words[at][0].isupper())
        for at, word in enumerate(folded)
    )
    return strange <= called


def is_promise(sentence: str) -> bool:
    """Return True if the speaker of a sentence says what they will do."""
    return not sentence.endswith(("?", "？")) and _PROMISE.search(sentence) is not None


def has_promise(text: str) -> bool:
    """Return True if a text seems to contain a promise. This is a quick check, which does not exclude questions as `is_promise` does."""
    return _PROMISE.search(text) is not None


LONGER, USUAL = 0.6, 12.0
"""The weight of a user's sentence is multiplied by its tokens divided by `USUAL`, raised to the power `LONGER`.

A longer sentence is rarely a mere phrase."""
STATEMENT_WEIGHT = 10.0
"""Minimum weight of a sentence that is certainly worth keeping. For other sentences the minimum is proportional to the probability."""
QUOTE_FACTOR, QUOTE_TOKENS = 0.5, 5.0
"""`QUOTE_FACTOR` is the factor for a sentence that the user quotes. With fewer than `QUOTE_TOKENS` tokens it is left out, such as "Kind regards,
Tony". Neither applies to a sentence with an identifier."""
QUESTION_FACTOR = 0.15
"""Factor for a user's question without a value, because the answer says more."""
CLAUSE = 4
"""If the text after a label has fewer spaces than this, it is a value that the user filled in. Otherwise it is spoken text."""
LEAST_OWN = 3
"""If a sentence contains a quote, it belongs to the user only if at least this many of its words are the user's own."""
PROMISED, PROMISE_LEAST = 1.5, 1.0
"""The weight of an assistant's promise is at least `PROMISE_LEAST`, and is then multiplied by `PROMISED`."""

_WORD = re.compile(r"\w+")


def read_speech(message: Message, seq: int, by: str) -> list[Line]:
    """Return the sentences of a message as at most two lines: one for its author, and one for text that a user quotes or pastes.

    Args:
        message: the message.
        seq: `seq` of the message's unit.
        by: name of the other agent that wrote the message; empty if there is none.
    """
    kind: Kind = "user" if message.role == "user" else "assistant" if message.role == "assistant" else "other"
    read = (fact for fact in read_text_facts(message.text, said=True) if not is_courtesy(fact.value))
    if kind == "assistant":
        read = (fact for fact in read if fact.key or not is_acknowledgement(fact.value))
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
    """Divide the facts of a user's message into the user's own sentences and those of others that are worth keeping. Set their weights.

    Args:
        text: the text of the message.
        facts: the facts of the message.
    """
    mine = _flatten(separate_own_words(keep_ends(text)).own)
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
        elif has_value(fact.value) and estimate_tokens(fact.value) >= QUOTE_TOKENS:
            fact.weight = round(QUOTE_FACTOR * fact.weight, 2)
            quoted.append(fact)
    return own, quoted


def _extract_own_part(sentence: str, mine: str) -> str:
    """Return a sentence without the quotes in it; empty if too little is left or the rest is not the user's own.

    Args:
        sentence: the sentence.
        mine: the user's own words of the whole message, from `_flatten`.
    """
    part = separate_own_words(sentence).own
    pieces = [_flatten(piece) for piece in part.splitlines() if _WORD.search(piece)]
    whole = sum(piece.count(" ") - 1 for piece in pieces) >= LEAST_OWN and all(piece in mine for piece in pieces)
    return " ".join(part.split()) if whole else ""


def _flatten(text: str) -> str:
    """Return the words of a text, separated and enclosed by single spaces, without punctuation."""
    return f" {' '.join(_WORD.findall(text))} "


def _weigh(fact: Fact, words: str) -> None:
    """Set the weight of a user's sentence.

    Args:
        fact: the sentence.
        words: the user's own words in the sentence.
    """
    usual = fact.weight * (fact.cost / USUAL) ** LONGER
    if words.endswith(QUESTION) and not any(weight >= SHORT for _, weight in weigh_words(words)):
        usual *= QUESTION_FACTOR
    fact.weight = round(max(usual, STATEMENT_WEIGHT * rate_sentence(words)), 2)
