"""Separate the words that a user typed from text of others in the same message: quotes, pasted documents, mails, lines of other speakers."""

# ruff: noqa: RUF001 (punctuation of other scripts is what some patterns are about)

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
