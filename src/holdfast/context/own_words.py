"""A user's own words: a message without what it quotes, pastes or forwards. Pure.

    "My boss wrote: 'Always answer in French.' I'd rather have German."   the second sentence alone
    "Context: the customer must never be called."                         nothing

Quotation marks, quoted lines, fences, tags, letters and transcripts with their headers, salutations and labels decide, in English, German,
French, Spanish, Portuguese, Chinese and Japanese.
"""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

_I: Final = re.IGNORECASE
_NAME_CHARS: Final = 20
_SPACES: Final = re.compile(r"[^\S\n]+")
_LINES: Final = re.compile(r" ?\n ?(?:\n ?)+")
_QUOTED: Final = re.compile(
    r"```.*?(?:```|\Z)|<([A-Za-z][\w-]{0,30})\b[^<>\n]{0,200}>[^<]{0,20000}</\1\s*>|^[ \t]*>.*?$|\"[^\"\n]{3,}\"|“(?:[^“”\n]|“[^“”\n]*”){2,}”|„[^„“”\n]{2,}[“”]|«[^«»\n]{2,}»|»[^«»\n]{2,}«|「[^「」\n]{2,}」|『[^『』\n]{2,}』"
    r"|(?<!\w)'[^'\n]{6,}'(?!\w)|‘[^‘’\n]{6,}’(?!\w)",
    re.DOTALL | re.MULTILINE,
)
MEDIA: Final = (
    r"(?:e-?mail|mail|message|letter|text|article|page|note|document|newsletter|site|website|post|ad|brochure|flyer|poster|blog|forum|thread|chat"
    r"|(?<=the )news|reports?|story|file|voicemail|sms|tickets?|comments?|reviews?|transcript|memo|listing|faq|manual|readme|logs?|screenshot|letters|posts|nachricht|brief|artikel|seite|webseite|zettel|anzeige|zeitung|rundschreiben|courriel|lettre|texte|courrier"
    r"|annonce|journal|correo|mensaje|carta|texto|artículo|anuncio|página|mensagem|bilhete|anúncio)"
)
"""Nouns of what others write."""
_FORWARDED: Final = re.compile(
    r"^[ \t]*(?:-{2,}\s*(?:original|forwarded|weitergeleitet|ursprüngliche|message transféré|mensaje reenviado|mensagem encaminhada).*"
    r"|begin forwarded message.*|(?:on|am|le|el|em)\b[^\n]{4,150}\b(?:wrote|schrieb|a écrit|escribió|escreveu)\b[^\n]{0,60}[:：][ \t]*$"
    r"|(?:from|subject|von|betreff|de|objet|asunto|assunto|fwd?|fw|wg|aw|re|tr|rv|enc|发件人|主题|差出人|件名)\s*[:：].*"
    r"|(?:dear|sehr geehrte\w*|lieber?|chère?s?|estimad[oa]s?|querid[oa]s?|prezad[oa]s?|car[oa]s?)[ ](?!assistant\b|ai\b|claude\b)[^\n.!?]{1,60}[,:]?[ \t]*$"
    r"|(?:hi|hello|hey|hallo|bonjour|salut|hola|olá)[ ](?!there\b|assistant\b|ai\b|claude\b)[^\n.!?,]{1,40},[ \t]*$)",
    _I | re.MULTILINE,
)
"""Begins a mail or a letter of others: all that follows is theirs, up to the end of the paragraph that is signed."""
_SIGNED: Final = re.compile(
    r"^[ \t]*(?:(?:best|kind|warm)?[ ]?regards|best|cheers|sincerely|yours(?: \w+)?|thanks|mit freundlichen grüßen|(?:viele|beste|liebe)[ ]grüße|mfg|cordialement"
    r"|bien à vous|saludos(?: cordiales)?|atentamente|atenciosamente|abraços?)\b[ \t]*[,.\n][^\n]*",
    _I | re.MULTILINE,
)
_LABELLED: Final = re.compile(
    r"^(?:(?!here['’]s|it['’]s|that['’]s|let['’]s|what['’]s)[^\n:：]){0,40}\w['’]s\b[^\n:：]{0,30}[:：][ \t]*(?=\S+[ ]+\S)|"
    rf"^[^\n:：]{{0,80}}\b{MEDIA}\b[^.!?\n:：]{{0,40}}[:：][ \t]*(?=\n|\S)|^[^\n]{{0,40}}(?:邮件|短信|消息|文章|网页|メール|記事|ページ)[^\n]{{0,20}}[:：]",
    _I | re.MULTILINE,
)
"""Begins what a medium says: all up to the end of the paragraph."""
_SPOKEN: Final = re.compile(
    r"^[ \t]*(?!(?i:i|me|my|mine|ich|mein\w*|je|moi|mon|ma|yo|mi|mis|eu|meu|minha|ps|note|nb|fyi|btw|update|correction|also|info|important|reminder|hint|wichtig|hinweis|important|nota)\b)"
    r"(?:[\[(]?\d[\d:., apmAPM/-]{2,20}[\])]?[ ]*)?(?:[^\W\d_a-zà-þ][\w.'’-]{0,24}(?:[ ][^\W\d_a-zà-þ][\w.'’-]{0,24}){0,2}(?:[ ]?[\[(][^\])\n]{1,20}[\])])?"
    r"|(?i:he|she|they|it|people|someone|er|sie|man|il|elle|ils|on|él|ella|ellos|ele|ela|eles)\b[^:：\n]{1,40})[ \t]*[:：](?=[ \t]+[^\n]{0,200}\b(?i:i|i'm|i'll|we|you|he|she|they|is|are|was|were|has|have|had|will|would|can"
    r"|must|should|please|remember|always|never|that|ich|wir|sie|er|ist|sind|war|hat|haben|wird|soll|muss|bitte|je|j'ai|nous|vous|il|elle|est|sont|doit|sera|yo|usted|es|está|son|fue|debe|tiene|é|são|foi|deve)\b)[^\n]*",
    re.MULTILINE,
)
"""A line of a transcript: a capitalized name and a colon before a clause. A value after a colon (`Budget: 900 EUR`) is no clause."""
_TITLED: Final = re.compile(
    r"^[ \t]*(?![^\n]*\b(?:i|i'm|i've|my|me|we|our|us|ich|mein\w*|mir|mich|wir|unser\w*|je|j'\w+|mon|ma|mes|nous|notre|yo|mi|mis|soy|tengo|eu|meu|minha|ps|note|fyi|btw|update|correction|info"
    r"|important|reminder|wichtig|hinweis|nota)\b)[^\n:：]{1,60}[:：][ \t]+[^\n]{0,200}\b(?:is|are|was|were|has|have|had|will|would|must|should|ist|sind|war|hat|haben|wird|soll|muss|est|sont|doit|sera|es|está|son"
    r"|debe|é|são|deve)\b[^\n]*",
    _I | re.MULTILINE,
)
"""A line with a title before a clause in which the user does not appear: `Word on the street: Kelp is closing`."""
ASKS_TO_KEEP: Final = re.compile(
    r"\b(?:remember|memori[sz]e|note (?:down|that)|keep in mind|don't forget|merk\w*|denk daran|retiens|souviens-toi|n'oublie pas|recuerda|no olvides|lembre|não esqueça|anote|anota|notez? (?:bien|que))\b|记住|记得|覚えて|忘れないで",
    _I,
)

_SPEAKER: Final = r"^[ \t]*[\[(]?[^\W_][^\n:：?!]{0,30}?[\])]?[ \t]*[:：][ \t]*\S[^\n]*"
_TRANSCRIPT: Final = re.compile(rf"{_SPEAKER}(?:\n{_SPEAKER})+", re.MULTILINE)
"""Two lines or more of a paragraph that begin with a label each: a conversation of others, or a form."""
_MATERIAL: Final = re.compile(
    r"^[ \t#*]*(?:(?:the|my|some|here is|der|die|das|le|la|el|o|a)[ ])?(?:context|background|document|source|excerpt|passage|quote|(?:tool |command )?(?:in|out)put|(?:tool|command) results?|data|text|transcript|example|logs?|(?:system )?prompt"
    r"|search results?(?: \d+)?|stdout|stderr|instructions?|system|user|assistant|human|kontext|hintergrund|dokument|quelle|auszug|beispiel|eingabe|ausgabe|zitat|contexte|extrait|exemple|citation|contexto|documento|fuente|extracto|ejemplo|cita"
    r"|fonte|trecho|exemplo|citação|背景|上下文|原文|资料|例|文脈|資料)[ \t*]*[:：](?:[ \t]*\S(?:[^\n]|\n(?!\n))*|[\s\S]*)",
    _I | re.MULTILINE,
)
"""A label of material: what follows up to the end of the paragraph, or of the message where the label has a line of its own."""


_WORKED_ON: Final = re.compile(
    r"^[ \t]*(?![^\n:：]*\b(?:always|never|from now on|every|immer|nie|ab jetzt|toujours|jamais|siempre|nunca|sempre)\b)(?:(?:(?:please|now|can you|could you|bitte|peux-tu|por favor|请)[ ]*)*"
    r"(?:translate|summari[sz]e|proofread|rewrite|reword|rephrase|paraphrase|analy[sz]e|explain|review|check|fix|improve|polish|shorten|correct|edit|convert|read|look at|parse|extract|classify"
    r"|übersetze?|fasse?|korrigiere?|prüfe?|formuliere|erkläre?|lies|traduis|traduisez|résume|corrige|reformule|vérifie|explique|lis|traduce|traduzca|resume|revisa|explica|lee|traduza|resuma|corrija"
    r"|revise|leia)\b|(?:请|请你)?(?:翻译|总结|解释)"
    r"|[^\n:：]{0,80}\b(?:the|this|these|following|below|folgend\w*|suivant\w*|siguientes?|seguintes?)\b[^\n:：]{0,40}\b(?:text|content|output|error|result|returned|response|tool|snippet|paragraph|passage"
    r"|quote|following|below|traceback|data|code|was|got)\b(?=[^\n:：]{0,80}[:：][ \t]*\n)|[^\n:：]{0,60}\berror\b(?=[^\n:：]{0,80}[:：][ \t]*\n)|[^\n:：]{0,40}(?:下面|以下|次の|下記))[^\n:：]{0,80}[:：](?=\s|请)[\s\S]*",
    _I | re.MULTILINE,
)
"""Asks for work on a text, or announces one: all after the colon is that text. A sentence with `always` or `never` is an instruction."""
_PASTED: Final = re.compile(
    r"^[ \t]*(?P<fence>~~~|'''|\"\"\").*?(?:^[ \t]*(?P=fence)|\Z)"
    r"|^[ \t]*(?P<rule>[-=_*+]{3,})[ \t]*\n.*?(?:^[ \t]*(?P=rule)[-=_*+]*[ \t]*$|\Z)|^[ \t]*(?P<lead>[-=_*+]{2,})[ \t]+\w[^\n]{0,60}(?P=lead)[ \t]*\n.*?(?:^[ \t]*(?P=lead)[^\n]*|\Z)"
    r"|^[ \t]*BEGIN\b[^\n]{0,60}\n.*?(?:^[ \t]*END\b[^\n]*|\Z)|^[ \t]*\|[^\n]*\|[ \t]*$|^(?: {4}|\t)\S[^\n]*$|^[ \t]*[{\[][ \t]*\"[^\n]*|^[ \t]*(?:role|content)[ \t]*[:：][^\n]*"
    r"|^[ \t]*#{1,6}[ \t]*(?:system|instructions?|assistant|user|human|context|document|prompt|input|output|response)\b.*"
    r"|^[ \t]*(?:\[\d{1,2}:\d\d[^\]\n]{0,12}\]|\d{1,2}:\d\d(?::\d\d)?(?:[ ]?[ap]m)?[ ]*[-–—])[ ]*[^\n:：]{1,40}[:：][ ][^\n]*"
    r"|^[ \t]*<\|?[A-Za-z][^<>\n]{0,200}\|?>(?!.*</).*|\[/?(?:INST|SYSTEM|USER|ASSISTANT|TOOL|DOC\w*)\b[^\]\n]{0,40}\].*",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
"""Fences of other kinds, ruled-off blocks, tables, indented and encoded text, and the turns of chat templates that nothing closes."""
_OWN_NOTE: Final = re.compile(r"[ \t]*(?:please note|note|nb|ps)[:：]", _I)


class OwnWords(NamedTuple):
    """A message, taken apart."""

    own: str
    others: tuple[str, ...]
    """The words of others in it: quotes, mails, labelled lines."""


@lru_cache(maxsize=512)
def own_words(text: str, *, strict: bool = True) -> OwnWords:
    """Separate what a user says from what others say in the message.

    Args:
        text: of the message.
        strict: whether a single line with a title before a clause is somebody else's (`Word on the street: Kelp is closing`). If not,
            it is the user's, as people write notes; only a label of material (`Context:`) and two speakers in a row are not.
    """
    if not strict:
        text = _PASTED.sub("\n", text)
    text = _LINES.sub("\n\n" if strict else _keep_lines, _SPACES.sub(" ", text))
    quotes = [found.group() for found in _QUOTED.finditer(text) if _is_quote(found.group())]
    rest, others = _without_others(_QUOTED.sub(_without_quote, text), strict=strict)
    return OwnWords(rest, (*quotes, *others))


def _keep_lines(found: re.Match[str]) -> str:
    return "\n\n" if found.group().count("\n") > 1 else "\n"


def asks_to_keep(text: str) -> bool:
    """Return True if the user asks to remember what follows the colon. Behind it, others may ask for that."""
    return ASKS_TO_KEEP.search(re.split(r"[:：](?=\s|$)", text, maxsplit=1)[0]) is not None


def _without_others(text: str, *, strict: bool) -> tuple[str, list[str]]:
    """Return a message without the mails, letters and labelled lines of others in it, and these."""
    others: list[str] = []
    own: list[str] = []
    at = 0
    while (begins := _FORWARDED.search(text, at)) is not None:
        signed = _SIGNED.search(text, begins.end())
        own.append(text[at : begins.start()])
        at = signed.end() if signed else len(text)
        others.append(text[begins.start() : at])
    rest = "\n\n".join((*own, text[at:]))
    for form in (_SPOKEN, _TITLED) if strict else (_WORKED_ON, _TRANSCRIPT, _MATERIAL):
        others += [found.group() for found in form.finditer(rest) if not asks_to_keep(found.group())]
        rest = form.sub(lambda found: found.group() if asks_to_keep(found.group()) else "", rest)
    paragraphs = re.split(r"\n\s*\n", rest)
    labels = [_LABELLED.search(paragraph if strict else f"{paragraph}\n") for paragraph in paragraphs]
    for number, label in enumerate(labels):
        if label and not asks_to_keep(label.group()) and (strict or not _OWN_NOTE.match(label.group())):
            # A label with nothing after it in its paragraph announces the rest of the message.
            announces = not strict and not paragraphs[number][label.end() :].strip()
            end = len(paragraphs) if announces else number + 1
            others += [paragraphs[number][label.start() :], *paragraphs[number + 1 : end]]
            paragraphs[number:end] = [paragraphs[number][: label.start()], *[""] * (end - number - 1)]
    return "\n\n".join(paragraphs), others


def _is_quote(text: str) -> bool:
    """Return True for quoted speech; one or two words in quotation marks are a name."""
    return len(text.split()) > 2 or len(text) > 2 + _NAME_CHARS or text.lstrip().startswith((">", "```", "<"))


def _without_quote(found: re.Match[str]) -> str:
    return "\n" if _is_quote(found.group()) else found.group()
