"""Wording: sentences that say nothing worth keeping, and those that bind who said them, by their form and a few words.

The lists are short and of several languages; what they do not know is kept.
"""

# ruff: noqa: RUF001, SIM905 (punctuation of other scripts is what some patterns are about; lists of words stay readable)

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from holdfast.context.statements import LEAST_CONTENT
from holdfast.context.values import QUESTION, SHORT, weight_of, words_of
from holdfast.recall.terms import terms_of

COURTESY_WORDS, COURTESY_CHARS = 9, 12
"""Words, and characters of a script without spaces, up to which a sentence can be a courtesy."""
LONGEST = 100
"""Characters from which nothing is a courtesy."""
CALLED = 3
"""Words up to which a name in an exclamation may be an answer: "Great, Berlin!"."""
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
"""Words of thanks, greeting and delight: a short sentence that has one of them, and nothing that could be a fact."""
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
"""Words that may stand next to those."""
_DENSE_COURTESY: Final = re.compile(
    r"^(?:[哈呵嘿]+|(?:谢谢|多谢|感谢|太好了|太棒了|你好|您好|不客气|再见|辛苦了|真好|真棒|好耶)[你您啦了呀啊哦大家的帮助]*"
    r"|(?:どうも)?(?:ありがとう(?:ございま(?:す|した))?|こんにちは|おはよう(?:ございます)?|すごい|やった|よかった|お疲れ様(?:です|でした)?|どういたしまして)"
    r"|(?:감사합니다|고마워요?|안녕하세요|좋아요))[\s!！。.~～ねよ]*$"
)
_EXCLAMATION: Final = re.compile(r"^[^\W\d]+\s*[!！]+$")
"""One word, called out: delight in any language, unless it answers."""
_ANSWERS: Final = frozenset(
    """
    yes yep yeah yup no nope ok okay sure right correct exactly agreed stop cancel wait confirm confirmed deal go
    never always ja nein doch genau richtig halt oui non si sí sim não claro vale certo はい いいえ 네 아니요 好 是 对 不 да нет
    """.split()
)
"""Words that answer: what begins with one of them is no courtesy, however it goes on."""
_GREETINGS: Final = frozenset(
    """
    thanks thank thx hello hi hey bye goodbye goodnight morning danke hallo merci bonjour salut gracias hola
    obrigado obrigada olá grazie ciao
    """.split()
)
"""Words after which somebody is addressed by name."""
_OFFER: Final = re.compile(
    r"^(?:(?:please )?(?:let me know|feel free|don't hesitate)|(?:how|what else) (?:can|may) i (?:help|assist|do)|(?:is there )?anything else"
    r"|i(?:'m| am) (?:here|happy|glad) to (?:help|assist)|(?:kann|darf) ich (?:ihnen|dir) (?:sonst|noch)|sag(?:en sie)? (?:mir )?(?:einfach )?bescheid"
    r"|n'hésitez? pas|puis-je vous aider|no (?:dudes?|duden?) en|¿?(?:puedo|en qué puedo) ayudar|posso ajudar|还有什么|如果您?还?有(?:任何|其他)|他に(?:何か)?)",
    re.IGNORECASE,
)
"""How an assistant ends what it says when it has nothing to say."""
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
"""Asks to do what was just spoken of."""
_GENERIC: Final = frozenset(
    "ahead case continu detail do get go help info know look let proceed request sorri start tell thing try way".split()
)
"""Stems of words that say nothing in a request."""
_PRONOUNS: Final = re.compile(r"I(?:['’]\w+)?")


def has_value(sentence: str) -> bool:
    """Return True if a sentence holds a number, an identifier or a name."""
    words = words_of(sentence)
    return any(
        weight_of(word) >= SHORT or (at and word[0].isupper() and not _PRONOUNS.match(word))
        for at, word in enumerate(words)
    )


@lru_cache(maxsize=4_096)
def is_idle(sentence: str) -> bool:
    """Return True for a question, a request to proceed or a promise that names nothing: later messages say what became of it."""
    sentence = sentence.replace("’", "'")
    asks = sentence.endswith(QUESTION) or _PROCEED.match(sentence) is not None or is_promise(sentence)
    return asks and not has_value(sentence) and len(terms_of(sentence).counts.keys() - _GENERIC) < LEAST_CONTENT


def is_courtesy(sentence: str) -> bool:
    """Return True for a sentence of thanks, greeting or delight, and for an offer to help: it is never a fact."""
    if len(sentence) > LONGEST or any(map(str.isdigit, sentence)):
        return False
    dense = len(sentence) <= COURTESY_CHARS and not sentence.isascii() and _DENSE_COURTESY.match(sentence)
    if dense or _OFFER.match(sentence):
        return True
    words = _WORDS.findall(sentence.replace("’", "'"))
    return not words or (len(words) <= COURTESY_WORDS and _is_kind(sentence, words))


def _is_kind(sentence: str, words: list[str]) -> bool:
    """Whether words thank, greet or delight and do nothing else."""
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
    """Return True for a sentence in which its speaker says what they will do."""
    return not sentence.endswith(("?", "？")) and _PROMISE.search(sentence) is not None


def has_promise(text: str) -> bool:
    """Return True if any sentence of a text is a promise, for a quick look."""
    return _PROMISE.search(text) is not None
