"""Find out which words of a user's message are asserted, and which are only reported, asked, denied or wished. Pure functions.

The result helps to decide if a memory that a model wants to make really is the user's statement.

    "The mail claims that I owe 900 EUR. Sounds like fraud to me."   reported, and doubted
    "Is my account at risk"                                          asked, without a question mark
    "Why do my invoices go to evil@corp.example?"                    asked: a question does not state what it asks about
    "Maybe I'll move to Oslo"                                        hedged
    "Translate: I live in Oslo"                                      a text to work on
    "I don't live in Oslo"                                           denied
    "I'd love to live in Oslo"                                       wished
    "I'm vegan, where can I eat?"                                    asserted, then asked
    "Can you remember that I'm vegan?"                               asserted: the user wants it to be remembered
    "I'm vegan, and my sister lives in Oslo."                        asserted

Two methods are combined:

- `find_unasserted` looks for cue words in English, German, French, Spanish, Portuguese, Chinese and Japanese, and for forms:
  quotation marks, quoted lines, code fences, letters and transcripts (headers, salutations, labels), and the order of words in
  questions. If it mistakes a statement for a report, the memory is not lost, but held for review.
- `read_message_terms` also looks at punctuation and at a few English words with which parts of a sentence begin. If it mistakes a
  statement for a question, this rarely matters: questions are ignored only if another source says the same; see
  `holdfast.memory.provenance`.
"""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from holdfast.context.statements import ASKS_TO_KEEP, MEDIA, is_asking_to_keep, separate_own_words
from holdfast.memory.similarity import normalize_words
from holdfast.recall.terms import get_terms, iter_tokens, normalize
from holdfast.recall.word_tables import ENGLISH, find_language

_I: Final = re.IGNORECASE
TYPED_CHARS: Final = 8_000
"""Maximum number of characters of a message that may be the user's own assertions. The rest is treated as pasted text."""
_MATERIAL: Final = re.compile(
    r"^[^:：]{0,80}\b(?:this|following|below|dies\w*|folgend\w*|daraus|hieraus|ceci|suivant\w*|esto|siguiente|isto|seguinte)\b[^:：]{0,40}[:：]"
    r"|^\W*(?:(?:please|now|can you|could you|bitte|peux-tu|por favor)\s+)*(?:translate|summari[sz]e|proofread|rewrite|reword|rephrase|paraphrase|draft|compose|pretend|imagine|role-?play|analy[sz]e|(?:fix|improve|polish|shorten|correct|edit|check|convert|spell)\b[^:：]{0,40}[:：]|(?:play|act|be)(?: as)? an?|(?:spiele?|sei) eine?n?|joue|actúa como|finge|aja como"
    r"|(?:write|make up|tell)(?:\s+me)?\s+(?:an?|the|some)\b|übersetze?|fasse?\b|korrigiere?|formuliere|verfasse?|entwirf|stell dir vor|schreib(?:e|t)?\s+(?:mir\s+)?ein\w*"
    r"|traduis|traduisez|résume|corrige|rédige|reformule|imagine|(?:écris|raconte)(?:-moi)?\s+une?|traduce|traduzca|resume|corrige|redacta|reescribe|imagina|escribe(?:me)?\s+una?"
    r"|traduza|resuma|corrija|redija|reescreva|imagine|escreva(?:-me)?\s+uma?)\b|^\W*(?:please\s+)?(?:reply|respond|answer|tell|write|text|e?mail|message|inform|let)\s+(?!me\b)(?:\S+\s+){1,5}?that\b|^\W*(?:请)?(?:翻译|总结|写一)|(?:訳して|要約して)",
    _I,
)
"""Matches a request to work on a text ("translate", "summarize"). The text is the rest of the sentence or, if the sentence has a
colon, everything after it."""
_STANDING: Final = re.compile(
    r"\b(?:always|never|from now on|every|immer|nie|niemals|ab jetzt|toujours|jamais|désormais|siempre|nunca|sempre)\b",
    _I,
)
_SENTENCES: Final = re.compile(r"(?:[^.!?。！？؟;；\n]|[.](?=\S))+[.!?。！？؟;；]*[\"')\]]*")
_CLAUSES: Final = re.compile(
    r"[,，、]\s*(?=(?:but|though|(?:and|so) (?:i|we|my)|aber|(?:und|also) (?:ich|wir)|mais|(?:et|donc) (?:je|j|nous)|pero|y yo|mas|e eu|where|what|who|how|why|when|which|can|could|is|are|do|does|should|wo|was|wer"
    r"|wie|wann|warum|kann|où|comment|quand|pourquoi|dónde|qué|cómo|cuándo|onde|quando)\b)|[,，、]\s*(?=但|でも|けど|哪|怎|什么)|\s+(?=(?:but|sondern|mais|sino)\s)",
    _I,
)
"""Matches between two clauses of a sentence, one of which may be a question or a report while the other is not."""
_AGAIN: Final = re.compile(r"[,;]\s*(?=(?:i|we|my|our|ich|wir|mein\w*|je|j['’]|nous|mon|ma|yo|mi|eu|meu|minha)\b)", _I)
"""Matches between two parts of a clause if the second part is a new statement about the speaker. A denial in the first part does not
apply to the second."""
_REPORT: Final = re.compile(
    r"\b(?:claim(?:s|ed|ing)?|alleg(?:es|ed|edly|ing)|according to|supposedly|reportedly|apparently|rumou?r|i(?:'ve| have)? (?:heard|read|been told|was told)"
    r"|it is said|has it|(?<!i'm )(?<!i am )(?:saying|telling|claiming|stating|warning|announcing)|they say|people say|sounds like|tells me|told me|(?<!i )(?<!we )(?<!i have )(?<!i've )(?:says|said|states|stated|writes|wrote|insists|asserts"
    r"|announce[sd]?|suggest(?:s|ed)|mention(?:s|ed)|warns|warned|reads|thinks|thought|believes|believed|argue[sd]|promise[sd]|pretends|reckons|reckoned|suspect(?:s|ed)|assume[sd]"
    r"|figure[sd]|guess(?:es|ed)|repl(?:ies|ied)|answer(?:s|ed)|explain(?:s|ed)|report(?:s|ed)|confirm(?:s|ed)|estimate[sd]|predict(?:s|ed)|complain(?:s|ed)|recommend(?:s|ed)|advise[sd]"
    r"|swears|swore|hint(?:s|ed)|implie[sd]|denie[sd]|texted|emailed))\b"
    r"|(?<!i )(?<!we )\b(?:want(?:s|ed)|ask(?:s|ed)|told|tells|order(?:s|ed)|beg(?:s|ged)|urge[sd]|instruct(?:s|ed)|expects|expected|require[sd]|demand(?:s|ed))\s+(?:me|us|that|every\w*|all|people|him|her|them)\b"
    rf"|^\W*(?:in|on|from|per)\s+(?:the|an?|this|that|my|his|her|their)\s+(?:\w+\s+)?{MEDIA}\b"
    rf"|\b(?:saw|found|read|noticed|there (?:is|was)|stood)\b.{{0,40}}\b(?:in|on)\s+(?:the|an?|this|that|my|his|her|their)\s+(?:\w+\s+)?{MEDIA}\b"
    r"|\b(?:behaupte(?:t|n|te)|angeblich|anscheinend|scheinbar|offenbar|wohl|laut|zufolge|es heißt|heißt es|hieß es|steht,? dass|gehört,? dass|gelesen,? dass|(?<!ich )(?:sagt|sagte|meint|meinte|glaubt|glaubte|denkt|vermutet|verlangt|verlangte|wollte|will|bat|bittet|schreibt|schrieb|erzählt"
    r"|erzählte|hat gesagt|hat geschrieben|hat erzählt))\b"
    r"|\b(?:prétend(?:ent)?|affirme(?:nt)?|selon|d'après|paraît|soi-disant|prétendument|j'ai (?:lu|entendu)|on m'a dit|m'a dit|dit que|disent que|écrit que|annonce que|raconte que|(?:pense|croit|trouve|suppose|veut|voulait|demande|exige) que)\b"
    r"|\b(?:afirma(?:n|m)?|según|supuestamente|al parecer|asegura(?:n)?|dice(?:n)? que|dijo que|me dijo|me dijeron|he (?:leído|oído)|cuenta que|escribe que|pone que|(?:cree|piensa|opina|sospecha|quiere|quería|pide|exige) que)\b"
    r"|\b(?:segundo (?:o|a|os|as)|supostamente|alegadamente|alega(?:m)?|diz(?:em)? que|disse que|me disse|me disseram|li que|ouvi (?:dizer )?que|escreve(?:u)? que|conforme (?:o|a)|(?:acha|acredita|pensa|suspeita|quer|queria|pede|exige) que)\b"
    r"|声称|据说|据称|听说|写着|写道|宣称|表示|(?<!我)(?<!我想)说|告诉我|と言っ|と言う|と主張|だそう|らしい|によると|によれば|とのこと|と書い|と聞い|って言って",
    _I,
)
_THEY: Final = r"(?:he|she|they|people|er|sie|man|il(?! faut\b)|elle|ils|elles|on|él|ella|ellos|ele|ela|eles|(?-i:[A-ZÀ-Þ][\w’'-]+)(?=\s+\w+(?:s|ed)\b))"
_THEIRS: Final = (
    r"(?:the|an?|my|our|his|her|their|this|that|some|one of|der|die|das|ein\w*|mein\w*|unser\w*|dein\w*|sein\w*|le|la|les|un|une|mon|ma|mes|notre|ce|cette"
    r"|el|los|las|una|mi|mis|su|este|esta|o|a|os|as|um|uma|meu|minha)"
)
_WORD: Final = r"(?:(?!(?:and|so|but|because|since|when|while|where|if|before|after|until|which|who|than|as|fact|reason|means?)\b)[^\s,;:]+\s+)"
_EMBEDDED: Final = re.compile(
    rf"^\W*(?:{_THEY}\s+{_WORD}{{1,6}}?|{_THEIRS}\s+{_WORD}{{2,6}}?)(?:that\s+(?:i|we|my|our|you|he|she|it|they|the|this|all|every)\b"
    r"|(?<!give )(?<!gave )(?<!gives )(?<!made )(?<!bought )(?<!brought )(?:me|us)\s+(?:i|we|my|our|he|she|they|you)\s"
    r"|(?:en |de )?que\s|qu['’])"
    rf"|^\W*(?:{_THEY}\s+{_WORD}{{0,4}}?|{_THEIRS}\s+{_WORD}{{1,4}}?)(?!\w*(?:days|weeks|months|years|mornings|afternoons|evenings|nights|times|weekends|hours)\b)"
    r"(?:\w+(?:s|ed)|said|thought|knew|felt|swore|wrote|found)\s+(?:i|we)\s+\w"
    r"|^(?!.*\b(?:du|bitte)\b)(?!.*\b(?:ich|wir)\b.*,)[^,]*\b(?-i:[a-zäöüß]+(?:t|te|en))\s*,\s*(?:dass|ich|wir|mein\w*|unser\w*|der|die|das|er|sie|es|(?-i:[A-ZÄÖÜ]\w+\s+\w+t))\b",
    _I,
)
"""Matches a clause in which another person says, thinks or wants something: `Her doctor is sure that I …`,
`The clerk assured me my …`, `Mi jefe insiste en que …`."""
_OFMEDIA: Final = re.compile(
    rf"^\W*(?:the|an?|this|that|some|der|die|das|ein\w*|dies\w*|two|three|several|many|most|all|zwei|mehrere|viele|alle|le|la|les|l['’]|un|une|ce|cette|plusieurs|el|los|una|varios|este|esta|o|a|os|um|uma)\s*(?:\w+\s+){{0,2}}?{MEDIA}\b",
    _I,
)
"""Matches a clause about something that is written somewhere, such as in a mail."""
_HEDGE: Final = re.compile(
    r"^\W*if\b|\b(?:hopefully|maybe|perhaps|possibly|might|could be|may be|not sure|i wonder|i guess|i'?m (?:considering|thinking (?:of|about))|suppose|imagine|hypothetically|what if|assuming|as if|would be"
    r"|if (?:i|we|my|the|it|you|she|he|they)\b|i may\b|i might|probably|unless i|once i|say (?:i|we|my)\b|let's say|i (?:think|believe|assume|suspect|fear|hope) (?:that )?(?:i|we|my|the|it|he|she|they|there|this|that)\b"
    r"|as far as i know|(?:it )?(?:looks|seems) (?:like|as if)|thinking (?:of|about))\b"
    r"|\b(?:vielleicht|hoffentlich|eventuell|möglicherweise|womöglich|könnte|wäre|nicht sicher|weiß nicht|falls|angenommen|wahrscheinlich|überlege|frage mich|ich (?:glaube|denke|vermute|schätze|hoffe)|soweit ich weiß|meines wissens)\b|\bwenn ich .{0,30}(?:würde|hätte|wäre)\b"
    r"|\b(?:peut-être|pourrai[st]|je ne sais pas|pas sûre?|il se peut|supposons|imaginons|probablement|j'hésite|je (?:crois|pense|suppose) que|à ma connaissance|je songe)\b|\bsi (?:je|j'|nous)\b|\bje me demande\b"
    r"|\b(?:quizás?|tal vez|a lo mejor|podría|no sé si|no estoy segur[oa]|supongamos|probablemente|me pregunto|(?:creo|supongo|pienso) que|que yo sepa)\b"
    r"|\b(?:talvez|poderia|pode ser|não sei se|não tenho certeza|suponha|provavelmente|(?:acho|creio|suponho) que)\b"
    r"|也许|可能|或许|大概|不确定|如果|假设|说不定|かもしれ|たぶん|もしかし|多分|もし|分からない|わからない|だろうか",
    _I,
)
_QUESTION: Final = re.compile(
    r"[?？؟]|^\W*(?:(?:is|are|was|were|do|does|did|has|am|(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should)n['’]t|should|shall)\s+(?:i|we|my|our|you|your|it|he|she|they|the|this|that|there|his|her|a|an|any|all)\b"
    r"|(?:who|whom|whose|which|why|how come)\b|(?:what|where|when|how)(?!\s+(?:i|we|my)\b)(?:'s|\s+(?:is|are|was|were|do|does|did|would|will|can|could|should|much|many|long|often|about|kind|time))\b"
    r"|(?:so\s+)?any(?:\s+(?:chance|idea|way|news|word|clue)|one know)\b|(?:have|can|could|will|would|should|did)\s+(?:i|we|they|he|she|it|my|the|this|that)\b"
    r"|(?:ist|sind|war|hat|haben|habe|kann|können|soll|sollte|wird|muss|darf|stimmt|gibt|gilt)\s+(?:ich|wir|mein\w*|er|sie|es|das|die|der|den|dies\w*|man|ein\w*)\b"
    r"|ob\b|(?!(?:dass|weil|wenn|und|aber|als|da|damit|nur|auch|ja|nein|denn|also|oder|was|wo|wie|hier|so|bis|seit|sobald|bevor|nachdem|obwohl|hi|hallo|danke|ok|okay)\b)[^\W\d_]{3,}\s+(?:ich|wir)\b|(?!(?:nicht|jetzt|mit|seit|erst|fast|samt|statt|selbst|heut|sonst|oft)\b)[^\W\d_]{2,}t\s+(?:mir|mich|uns|mein\w*|unser\w*|der|die|das|es|er|sie|man|ein\w*)\b"
    r"|(?:wer|warum|wieso|weshalb|wem|wen|welche[rsnm]?|wohin|woher|wie (?:viel|lange|oft|ist|kann|komme))\b"
    r"|(?:est-ce|qu'est|pourquoi|qui est|quel(?:le)?s? (?:est|sont)|combien|est-il|est-elle|c'est vrai)\b|(?:qué|quién|cuál|cuándo|dónde|por qué|cómo|cuánto|es verdad|es cierto)\b"
    r"|(?:o que|quem|qual|será que|é verdade|por que|quanto)\b)|,\s*(?:right|no|correct|yes|eh|huh|oder|ne|gell|non|hein|verdad|né|certo)\W*$|^\W*so\b.*\bthen\W*$|¿|吗|呢\W*$|是不是|有没有|为什么|怎么|什么|哪里|哪个|多少|(?:ですか|ますか|でしょうか|のか|かな|ますかね|ましたか|か)\W*$",
    _I,
)
_REQUEST: Final = re.compile(r"^\W*(?:please\s+)?(?:can|could|would|will)\s+you\b", _I)
_NO: Final = re.compile(r"^\s*(?:no|nope|nah|nein|non|não)\s*[,.;:!–—-]+", _I)
"""Matches a "no" at the beginning that answers something and does not deny the rest of the text."""
_IRONY: Final = re.compile(
    r"^\W*(?:yeah|yes|sure|of course|right|oh (?:great|sure|yeah)|ja|na|klar|klar doch|sicher|natürlich|oui|bien sûr|mais oui|ouais|sí|si|claro|sim)\b[\w ]{0,12}[,.!…]*\s+(?:and|und|et|y|e)\s+(?:i|we|ich|moi|yo|eu)\b"
    r"|\byeah,? right\b|\bas if\b|\boh great, so\b|\bvon wegen\b|\bmon œil\b|^\W*(?:sí|si),? claro\b",
    _I,
)
_DENIED: Final = re.compile(
    r"(?:n['’]t|n't)\b|\b(?:not|never|neither|used to|formerly|hardly|rarely|seldom|barely|no longer|stopped|quit|cannot|nicht|früher|kaum|selten|rarement|rara vez|raramente|kein\w*|nie|niemals|pas|jamais|nunca|jamás|não)\b|\bn(?:e\b|['’]).{1,30}\bplus\b|(?<!^)(?<!^¡)\bno\b|^\W*no\s+\w|不(?![错过仅但同])|没(?:有)?|ない|ません",
    _I,
)
_WISHED: Final = re.compile(
    r"\b(?:i|we)(?:'d|’d| would) (?:love|like|prefer|rather|hate)\b.{0,20}\bto\b|\b(?:i|we) (?:wish|dream of)\b|\b(?:würde|hätte|wäre) (?:ich|wir)?\s*(?:gern|gerne|lieber)\b|\b(?:ich|wir) (?:würde|hätte|wäre)n?\b.{0,20}\bgerne?\b"
    r"|\b(?:j'aimerais|je voudrais|je rêve)\b|\b(?:me gustaría|quisiera|ojalá)\b|\b(?:gostaria|quem me dera|adoraria)\b",
    _I,
)
_WISHING: Final = re.compile(
    r"\b(?:want|would|like|love|wish|hope|plan|prefer|dream|intend|möchte|gern|wünsch|will|aimerait|voudrait|souhait|quisiera|gustaría|quiere|gostaria|quer)\w*",
    _I,
)
_DENYING: Final = re.compile(
    r"\b(?:avoid|dislike|hate|refuse|reject|stop|quit|cancel|declin|without|unable|lack|except|instead|rather|against|exclud|vermeide|ohne|hasst|lehnt|évite|déteste|sans|refuse|evita|odia|sin|rechaza|sem)\w*",
    _I,
)
_DOUBT: Final = re.compile(
    r"\b(?:sounds? (?:like|fishy|wrong|suspicious|odd)|looks? like (?:a )?(?:scam|fraud|phishing|spam)|i (?:do not|don't) (?:believe|trust|buy)|i doubt|(?:is|isn't) (?:that|this|it) (?:true|real|right|correct|legit\w*|so)"
    r"|can (?:that|this|it) be|not true|is (?:a|probably a) (?:scam|lie|fraud)|what do you (?:think|make)"
    r"|klingt nach|glaube ich nicht|ich glaube (?:das|dem|es) nicht|stimmt das|kann das (?:sein|stimmen)|betrug|ça sent l'arnaque|arnaque|je n'y crois pas|est-ce vrai|c'est vrai"
    r"|estafa|no me lo creo|no lo creo|es verdad|es cierto|golpe|não acredito|é verdade|será verdade)\b|诈骗|骗局|不相信|是真的|詐欺|信じられ|本当(?:です)?か",
    _I,
)
"""Matches an expression of doubt, which concerns the sentences before it."""


class Clause(NamedTuple):
    """A clause of a user's message that the user does not simply assert.

    The kind `claimed` means that another person says the clause, that it is quoted or doubted, or that the user is not sure.
    """

    text: str
    kind: Literal["claimed", "asked", "denied", "wished"]


def find_unasserted(text: str) -> Iterator[Clause]:
    """Yield the clauses of a message that the user does not simply assert.

    The text after the first `TYPED_CHARS` characters is one such clause, because users do not type that much.
    """
    if len(text) > TYPED_CHARS:
        yield Clause(text[TYPED_CHARS:], "claimed")
        text = text[:TYPED_CHARS]
    rest, others = separate_own_words(text)
    yield from (Clause(other, "claimed") for other in others)
    own = _SENTENCES.findall(rest)
    doubted = max((at for at, sentence in enumerate(own) if _DOUBT.search(sentence)), default=-1)
    for at, sentence in enumerate(own):
        if at <= doubted or _IRONY.search(sentence):
            yield Clause(sentence, "claimed")
        elif _MATERIAL.search(sentence) and not _STANDING.search(sentence) and not is_asking_to_keep(sentence):
            upto = at + 1 if ":" not in sentence else len(own)
            yield from (Clause(one, "claimed") for one in own[at:upto])
            if upto > at + 1:
                return
        else:
            yield from _classify_clauses(sentence)


def _classify_clauses(sentence: str) -> Iterator[Clause]:
    keep = ASKS_TO_KEEP.search(sentence) is not None
    for clause in _CLAUSES.split(sentence):
        asked = not keep and _is_question(clause)
        if _is_report(clause) or (_HEDGE.search(clause) and not asked):
            yield Clause(clause, "claimed")
        elif asked:
            yield Clause(clause, "asked")
        elif _WISHED.search(clause):
            yield Clause(clause, "wished")
        elif not keep:
            own = [part for part in _AGAIN.split(clause) if _DENIED.search(_NO.sub("", part))]
            yield from (Clause(part, "denied") for part in own)


def _is_report(clause: str) -> bool:
    """Return True if a clause reports another person's statement, by its words or its form."""
    if ASKS_TO_KEEP.search(clause) is not None:
        return _REPORT.search(clause) is not None
    return any(form.search(clause) is not None for form in (_REPORT, _OFMEDIA, _EMBEDDED))


def has_same_sense(content: str, kind: Literal["denied", "wished"]) -> bool:
    """Return True if a memory is itself a denial (for `denied`) or a wish (for `wished`), like the clause that it is made from."""
    if kind == "wished":
        return _WISHING.search(content) is not None
    return _DENIED.search(content) is not None or _DENYING.search(content) is not None


def _is_question(clause: str) -> bool:
    return _QUESTION.search(clause) is not None and _REQUEST.match(clause) is None


_SENTENCE: Final = re.compile(
    r"(?:[^.!?\u3002\uff01\uff1f\u061f\u037e\n]|\.(?=\S))+[.!?\u3002\uff01\uff1f\u061f\u037e]*"
)
"""Matches a sentence. A full stop within an address or a number does not end it."""
_SPACES: Final = re.compile(r"[^\S\n]+")
_PARTS: Final = re.compile(r"\s*[,;:\u2013\u2014](?=\s)\s*|\s*[\uff0c\u3001]\s*|\s+(?=but\s)", re.IGNORECASE)
_ASKING: Final = re.compile(r"[?\u037e\u061f\uff1f][\"')\]!\s]*$")
_ASKS: Final = re.compile(
    r"(?:(?:please|now|so|and|or|then|also|ok|okay|hey|hi|well)[\s,]+)*"
    r"(?:(?:can|could|would|will)\s+(?:you|we)\s+(?:please\s+)?)?"
    r"(?:tell|find|look|check|search|summari[sz]e|show|list|explain|read|give|fetch|translate|confirm|verify|see|say|compare|describe"
    r"|would|will|what|which|who|whom|whose|where|why|how|is|are|was|were|does|did|has|have\s+you|should|shall)\b",
    re.IGNORECASE,
)
_ORDERS: Final = re.compile(r"(?:please[\s,]+|and\s+)*(?:can|could)\s+you\s", re.IGNORECASE)
"""Matches "can you" at the beginning. If `_ASKS` does not match as well, it is a request for something that the user states."""
_OWN: Final = re.compile(
    r"\b(?:i|we|my|our|mine|me|us|ich|wir|mein\w*|unser\w*|yo|mis?|je|j|nous|mon|ma|mes|io|mio|mia|eu|meu|minha)\b",
    re.IGNORECASE,
)
"""Matches words for the speaker."""
_ANEW: Final = re.compile(
    r"\W*(?:but|i|we|it|he|she|they|you|the|an?|my|our|his|her|their|this|that|these|those|there|instead|rather)\b",
    re.IGNORECASE,
)
"""Matches the beginning of a new statement, to which a negation before it does not apply."""
_KEEP: Final = re.compile(r"\b(?:remember|memori[sz]e|note\s+down|keep\s+in\s+mind|forget)\b", re.IGNORECASE)
_RECALLS: Final = re.compile(
    r"\W*(?:what|which|who|where|why|when|how|do|does|did|is|are|should|shall)\b", re.IGNORECASE
)
"""Matches the beginning of a question whether something is remembered ("What do you remember about …")."""
_NOT_FORGET: Final = re.compile(r"\b(?:don['\u2019]?t|do\s+not|never)\s+(?:ever\s+)?forget\b", re.IGNORECASE)
_NEGATION: Final = re.compile(r"^\s*(?:no|nope|nah|not\s+really|never\s+mind)\s*[,.;:!\u2013\u2014-]+", re.IGNORECASE)
"""Matches an English "no" at the beginning that answers something and does not deny the rest of the text."""
_IS_IT: Final = re.compile(
    r"\W*(?:(?:is|isn['\u2019]?t|are|aren['\u2019]?t|does|doesn['\u2019]?t|do|don['\u2019]?t|was|wasn['\u2019]?t)\s+"
    r"(?:it|that|this|they|he|she|you|i)(?:\s+(?:so|true|right|correct|the case))?|right|really|correct|true|seriously|yes|no|eh|huh)\W*",
    re.IGNORECASE,
)
"""Matches words at the end of a sentence that turn the whole sentence into a question (", isn't it?", ", right?")."""
_QUOTES: Final = " \t\"'("
NOT: Final = frozenset({"not", "no", "never", "none", "without", "nor", "neither"})


class MessageTerms(NamedTuple):
    """The terms of a user's message, grouped by how the user uses them. A term may be in several sets."""

    stated: frozenset[str]
    """Terms that the user states."""
    asked: frozenset[str]
    """Terms in questions."""
    denied: frozenset[str]
    """Terms in denials."""
    unasserted: frozenset[str] = frozenset()
    """Terms that occur only in clauses that are reported, quoted, asked or hedged. They are treated as not said by the user, except for
    the terms in `questioned` under the condition given there."""
    questioned: frozenset[str] = frozenset()
    """Terms in `unasserted` that occur only in questions. They are treated as said by the user if the user states most of the memory."""
    negative: frozenset[str] = frozenset()
    """Terms, not in `unasserted`, that occur only in denials or in reported, quoted, asked or hedged clauses."""
    wished: frozenset[str] = frozenset()
    """Terms, not in `unasserted`, that occur only in wishes or in reported, quoted, asked or hedged clauses."""


def is_negated(text: str) -> bool:
    """Return True if a text contains a negation."""
    return not NOT.isdisjoint(normalize_words(text))


def read_message_terms(text: str) -> MessageTerms:
    """Group the terms of a user's message by how the user uses them."""
    text = normalize(text)
    language = find_language(token.text.casefold() for token in iter_tokens(text)) or ENGLISH
    found: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for sentence in _SENTENCE.findall(_NEGATION.sub("", _SPACES.sub(" ", text))):
        for part, into in _split_parts(_NEGATION.sub("", _NOT_FORGET.sub("remember", sentence))):
            found[into].update(*(get_terms(token.text, language) for token in iter_tokens(part)))
    whole = Counter(term for sentence in _SENTENCE.findall(text) for term in _iter_terms(sentence, language))
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in ("claimed", "asked", "denied", "wished")}
    for clause in find_unasserted(text):
        counts[clause.kind].update(_iter_terms(clause.text, language))

    def select_only_in(*kinds: str) -> frozenset[str]:
        """Return the terms that occur in the message only in clauses of these kinds."""
        within = sum((counts[kind] for kind in kinds), Counter[str]())
        return frozenset(term for term, times in within.items() if times >= whole[term])

    apart = select_only_in("claimed", "asked")
    stated, asked, denied = map(frozenset, found)
    return MessageTerms(
        stated - apart,
        asked,
        denied - apart,
        apart,
        apart - counts["claimed"].keys(),
        select_only_in("claimed", "asked", "denied") - apart,
        select_only_in("claimed", "asked", "wished") - apart,
    )


def _iter_terms(text: str, language: str) -> Iterator[str]:
    return (term for token in iter_tokens(text) for term in get_terms(token.text, language))


def _split_parts(sentence: str) -> Iterator[tuple[str, int]]:
    """Yield the parts of a sentence, each with its kind: 0 for stated, 1 for asked, 2 for denied."""
    keep = _KEEP.search(sentence) is not None and _RECALLS.match(sentence) is None
    asking = _ASKING.search(sentence) is not None
    parts = [part for part in _PARTS.split(sentence) if part.strip()]
    whole = asking and (len(parts) == 1 or _IS_IT.fullmatch(parts[-1]) is not None)
    denies, behind = False, asking
    for at, part in enumerate(parts, 1):
        begins = _ASKS.match(part.lstrip(_QUOTES)) is not None
        behind = behind or begins
        if not begins and _ORDERS.match(part.lstrip(_QUOTES)):
            asked = False
        else:
            asked = begins or whole or (asking and at == len(parts)) or (behind and _OWN.search(part) is None)
        denies = is_negated(part) or (denies and _ANEW.match(part) is None)
        yield part, 1 if asked and not keep else 2 if denies else 0
