"""Compare a new memory with existing ones: does it say the same, or does it give a new value? Decide what to write. Pure functions.

**The same statement.** A wrong merge silently loses information, but a duplicate does little harm. So two texts say the same only if
they have the same words in the same order. Inflection, case, punctuation, articles, forms of "be" and a few words that add nothing
are ignored. Numbers, negations, names, prepositions and identifiers are not ignored: "room 12" is not "room 13", and "from Rome to
Paris" is not "to Rome from Paris". Texts that share half of their terms are similar; they are reported, but not changed.

**Trust.** No function here raises the trust of a memory. A memory has the trust of its least trusted source. If a less trusted source
repeats a memory, the memory does not change. If a more trusted source repeats it, it is replaced by a new memory that has only the new
sources.

**Review.** Only the user can end a review. Memories that are held for review stay held, and rejected memories stay rejected, even if
the model, a program or a tool repeats them. Such memories cannot replace an active memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

from holdfast.domain.memory import Memory, MemorySource, find_least_trusted
from holdfast.limits import MEMORY_BYTES, MEMORY_SOURCES, MEMORY_TAGS
from holdfast.recall.terms import extract_terms, iter_tokens, normalize, stem
from holdfast.recall.word_tables import ENGLISH, find_language

ALIKE: Final = 0.5
"""Minimum share of terms that similar texts have in common (Jaccard)."""
MAX_WORDS: Final = 400
"""Maximum number of words of texts that are compared word by word. Longer texts say the same only if they are equal, apart from case
and white space."""
_LANGUAGE_CHARS: Final = 800
"""Number of characters of a text, the first ones, that are used to detect its language."""
_FACT_CHARS: Final = 240
"""Maximum characters of a text that can be parsed as a fact."""
_SUBJECT_WORDS: Final = 6
_VALUE_WORDS: Final = 6


def _split_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_EMPTY: Final = _split_set("""
    a an the is are am be being do does really very quite just simply actually currently presently now please kindly
    indeed certainly definitely that using
    """)
"""English words that do not change what a memory says."""
_NOTS: Final = {
    "cannot": "can", "cant": "can", "dont": "", "doesnt": "", "didnt": "did", "isnt": "", "arent": "", "wasnt": "was",
    "werent": "were", "hasnt": "has", "havent": "have", "hadnt": "had", "wouldnt": "would", "couldnt": "could",
    "shouldnt": "should", "wont": "will", "shant": "shall", "mustnt": "must", "neednt": "need", "aint": "",
}  # fmt: skip
"""English contractions of "not" without their apostrophe, each with the word before "not". An empty string: that word is ignored."""
_MARKS: Final = re.compile(
    "[\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe00-\ufe0f\ufeff\U000e0000-\U000e007f]"
)
"""Matches invisible characters, which could make equal words look different."""

# -- facts ---------------------------------------------------------------------

_FACT: Final = re.compile(
    r"(?P<subject>[^:=.;!?\n]{3,120}?)(?:\s+is(?:\s+(?:now|currently))?\s+|\s*[:=]\s+)(?P<value>[^;!?\n]{1,120}?)[.!]?\s*"
)
_SINGLE: Final = frozenset(
    stem(word, ENGLISH)
    for word in _split_set("""
    name nickname surname username login email mail phone telephone address postcode zip age birthday birthdate timezone
    locale currency deadline status version budget salary price height weight size employer
    """)
)
"""Attributes that have only one value at a time, so that a new value replaces the old one."""
_SINGLE_PAIRS: Final = frozenset(
    {("phone", "number"), ("time", "zone"), ("date", "birth"), ("job", "titl"), ("shoe", "size")}
)
_CHOSEN: Final = frozenset(
    stem(word, ENGLISH)
    for word in _split_set("""
    favourite favorite preferred default primary current
    """)
)
"""Words that give any attribute a single value: a person may like many colours, but has one favourite colour."""
_SEVERAL: Final = frozenset(
    stem(word, ENGLISH)
    for word in _split_set("""
    friend colleague coworker child kid son daughter brother sister sibling cousin uncle aunt nephew niece neighbour
    neighbor pet dog cat horse client customer guest student teacher room page file item task ticket order account
    card device server
    """)
)
"""Words for persons and things of which people have several. Two statements about "my friend" may be about different friends."""
_OF: Final = frozenset({"of", "for"})
_CONDITIONS: Final = _split_set("""
    and or but if when whenever unless until while during since because except also too either neither nor not never no
    without who whom whose which where than then maybe perhaps might may could would should was were in at on for with by
    from to about usually sometimes often mostly partly instead like via as
    """)
"""Words that show that an attribute has several values, or that the value only holds under a condition or at times."""
_PERSONAL: Final = frozenset({"my", "our", "i", "we"})


class Fact(NamedTuple):
    """An attribute that has only one value at a time, and its value."""

    subject: tuple[str, ...]
    value: tuple[str, ...]
    personal: bool
    """True if the attribute belongs to the speaker ("my name")."""


def remove_invisible(text: str) -> str:
    """Remove invisible characters from a text."""
    return text if text.isascii() else _MARKS.sub("", text)


def normalize_words(text: str, language: str = ENGLISH) -> tuple[str, ...]:
    """Return the stemmed words of a text for a comparison, without words that add nothing to its meaning."""
    plain = normalize(remove_invisible(text))
    tokens = [token.text for token in iter_tokens(plain)]
    words: list[str] = []
    for token in tokens:
        words += _normalize_word(token, language)
    return tuple(words) or tuple(plain.casefold().split())


def is_same(text: str, other: str) -> bool:
    """Return True if two texts say the same: they have the same normalised words in the same order."""
    language = find_language(
        token.text.casefold() for one in (text, other) for token in iter_tokens(normalize(one[:_LANGUAGE_CHARS]))
    )
    words, others = normalize_words(text, language or ENGLISH), normalize_words(other, language or ENGLISH)
    if len(words) > MAX_WORDS or len(others) > MAX_WORDS:
        return text.casefold().split() == other.casefold().split()
    return words == others and _find_signs(text) == _find_signs(other)


def parse_fact(text: str) -> Fact | None:
    """Parse a text such as "My favourite colour is blue" as a fact.

    Return None if the text says something else, or if its attribute may have several values.
    """
    plain = normalize(remove_invisible(text)).strip()
    found = _FACT.fullmatch(plain) if len(plain) <= _FACT_CHARS else None
    if found is None:
        return None
    raw = [token.text.casefold() for token in iter_tokens(found["subject"])]
    values = [token.text.casefold() for token in iter_tokens(found["value"])]
    subject, value = normalize_words(found["subject"]), normalize_words(found["value"])
    if not (2 <= len(subject) <= _SUBJECT_WORDS and 1 <= len(value) <= _VALUE_WORDS) or "," in found["value"]:
        return None
    if any(word in _CONDITIONS for word in values) or any(
        word in _CONDITIONS - _OF for word in [*raw, *subject, *value]
    ):
        return None
    return Fact(subject, value, not _PERSONAL.isdisjoint(raw)) if _is_single_valued(subject) else None


def is_newer_value(text: str, other: str, *, personal: bool = True) -> bool:
    """Return True if a new text states another value for the same attribute as an older text.

    Args:
        text: the new text.
        other: the older text.
        personal: True if "my" means the same person in both texts.
    """
    new, old = parse_fact(text), parse_fact(other)
    if new is None or old is None or new.subject != old.subject or new.value == old.value:
        return False
    return personal or not new.personal


def compute_similarity(text: str, other: str) -> float:
    """Return the number of terms that two texts have in common, divided by the number of all their terms (Jaccard), 0 to 1."""
    terms, others = (
        extract_terms(remove_invisible(text)).counts.keys(),
        extract_terms(remove_invisible(other)).counts.keys(),
    )
    return len(terms & others) / len(terms | others) if terms or others else 0.0


# -- one word ------------------------------------------------------------------


def _normalize_word(token: str, language: str) -> list[str]:
    folded = token.casefold().replace("\u2019", "'")
    negated = _NOTS.get(folded.replace("'", ""))
    if negated is not None:
        return [stem(negated, language), "not"] if negated else ["not"]
    head, joined, tail = folded.partition("'")
    if joined and tail in {"s", "re", "m"}:
        folded = head
    if language == ENGLISH and folded in _EMPTY:
        return []
    return [stem(folded, language) if folded.isalpha() else folded.strip("_-'")]


def _find_signs(text: str) -> list[str]:
    """Return the signs in a text that have a meaning: signs of negative numbers and of currencies, emoji and the like."""
    plain = remove_invisible(text)
    marks = [mark for mark in plain if not (mark.isalnum() or mark.isspace() or mark in _PUNCTUATION)]
    return sorted(marks) + _SIGNED.findall(plain)


_SIGNED: Final = re.compile(r"(?<![\w)])[-\u2212]\d+")


_PUNCTUATION: Final = frozenset(
    ".,;:!?'\"()[]{}\u2018\u2019\u201c\u201d\u00ab\u00bb\u2026\u2013\u2014-_*`\u3002\u3001\uff0c\uff01\uff1f"
)


def _is_single_valued(subject: tuple[str, ...]) -> bool:
    """Return True if an attribute, given by its normalised words, has only one value at a time."""
    of = next((at for at, word in enumerate(subject) if word in _OF), len(subject))
    head = subject[:of]
    if not head or any(word in _SEVERAL for word in subject):
        return False
    chosen = any(word in _CHOSEN for word in head[:-1])
    return chosen or head[-1] in _SINGLE or head[-2:] in _SINGLE_PAIRS


Outcome = Literal["new", "merged", "superseded"]
"""The result of comparing a new memory with existing ones.

- `new`: the statement is stored as a new memory.
- `merged`: a memory that says the same existed already; that memory is returned.
- `superseded`: the new memory replaces others, whose ids it lists.
"""
OTHERS: Final = 5
"""Maximum number of similar memories that are returned."""


class Decision(NamedTuple):
    """The decision how to store a new memory."""

    outcome: Outcome
    memory: Memory
    """The memory that contains the new statement afterwards: the new one, or an existing one."""
    put: tuple[Memory, ...] = ()
    """The memories to write; empty if nothing changes."""
    others: tuple[Memory, ...] = ()
    """Similar memories, most similar first. They are not changed."""


def decide_merge(new: Memory, known: Sequence[Memory], now: int) -> Decision:
    """Decide how to store a new memory.

    Args:
        new: the new memory. It replaces the memories in its `supersedes`, whatever they say, as far as `can_replace` allows it.
        known: the owner's memories that may be similar, and those in `supersedes`.
        now: the current time, in milliseconds since the epoch.
    """
    named = [one for one in known if one.id in new.supersedes and can_replace(new, one)]
    new = msgspec.structs.replace(new, supersedes=tuple(one.id for one in named))
    twins = [one for one in known if _is_twin(new, one, now)]
    if named and not any(_is_under_review(new, one) for one in twins):
        return _make_replacement(new, named, known, now)
    kept = max((one for one in twins if _should_keep(new, one)), key=_make_priority, default=None)
    weaker = [one for one in twins if one is not kept and _should_give_way(new, one)]
    if kept is not None:
        accepted_before = (
            new.status == "quarantined" and kept.status == "active"
        )  # the content was accepted, but not the new tags
        stays = accepted_before or kept.status == "rejected" or kept.trust > new.trust
        put = () if stays else (merge_memories(kept, new, now),)
        memory = put[0] if put else kept
        superseded = tuple(_supersede(one, memory, now) for one in weaker if memory.status == "active")
        return Decision("merged", memory, (*put, *superseded), _find_similar(new, known, [kept, *weaker]))
    old = [*weaker, *(one for one in known if one not in weaker and _has_older_value(new, one))]
    if old:
        return _make_replacement(new, old, known, now)
    return Decision("new", new, (new,), _find_similar(new, known, ()))


def merge_memories(kept: Memory, new: Memory, now: int) -> Memory:
    """Merge a new memory into an existing one that says the same, and return the result.

    The result has the text of the existing memory, the tags, metadata and sources of both, the higher importance and the lower trust. If the
    existing memory is of type `semantic`, the result has the type of the new one. If the result would be longer than `MEMORY_BYTES`, it has
    only the tags, metadata and sources of the existing memory.

    Args:
        kept: the existing memory.
        new: the new memory.
        now: the current time, in milliseconds since the epoch.
    """
    sources = unite_sources(kept.sources, new.sources)
    made = msgspec.structs.replace(
        kept,
        tags=tuple(dict.fromkeys((*kept.tags, *new.tags)))[:MEMORY_TAGS],
        importance=max(kept.importance, new.importance),
        type=new.type if kept.type == "semantic" else kept.type,
        sources=sources,
        origin=find_least_trusted((kept.origin, new.origin)),
        trust=min(kept.trust, new.trust),
        agent=kept.agent or new.agent,
        metadata={**kept.metadata, **new.metadata},
        updated_at=max(now, kept.updated_at),
    )
    if len(msgspec.json.encode(made)) <= MEMORY_BYTES:
        return made
    return msgspec.structs.replace(made, metadata=kept.metadata, sources=kept.sources, tags=kept.tags)


def _make_replacement(new: Memory, old: Sequence[Memory], known: Sequence[Memory], now: int) -> Decision:
    ids = dict.fromkeys((*new.supersedes, *(one.id for one in old)))
    made = msgspec.structs.replace(new, supersedes=tuple(ids))
    superseded = tuple(_supersede(one, made, now) for one in old)
    return Decision("superseded", made, (made, *superseded), _find_similar(new, known, old))


def _supersede(old: Memory, by: Memory, now: int) -> Memory:
    return msgspec.structs.replace(old, status="superseded", superseded_by=by.id, updated_at=max(now, old.updated_at))


def can_replace(new: Memory, one: Memory) -> bool:
    """Return True if `new` may replace `one`, an existing memory that `new.supersedes` lists.

    A rejected memory is never replaced. A new memory from the user may replace any other memory if the new one is active. A new memory from
    another origin may replace `one` if its trust is at least that of `one`, and if both or neither are held for review.
    """
    if one.status == "rejected":
        return False  # replacing it would lose the rejection
    if new.origin == "user":
        return new.status == "active"
    held_states = new.status == "quarantined", one.status == "quarantined"
    return held_states in {(True, True), (False, False)} and one.trust <= new.trust


def _is_twin(new: Memory, one: Memory, now: int) -> bool:
    """Return True if an existing memory says the same as the new one and has a matching time of validity.

    The time of validity matches if the existing memory is valid now, and the new memory has the same bounds or none. If the existing
    memory is rejected, its time of validity does not matter.
    """
    if one.status == "superseded":
        return False
    timed = new.valid_from is not None or new.valid_until is not None
    times = (new.valid_from, new.valid_until) == (one.valid_from, one.valid_until)
    if one.status != "rejected" and not (one.is_valid_at(now) and (times or not timed)):
        return False
    return is_same(new.content, one.content)


def _should_keep(new: Memory, one: Memory) -> bool:
    """Return True if `one`, an existing memory that says the same as `new`, is kept instead of being replaced by `new`.

    It is kept in each of these cases:

    - Its trust is at least that of `new`, and it is not rejected.
    - It is active, and `new` is held for review.
    - It is held for review or rejected, and `new` does not come from the user.
    """
    if _is_under_review(new, one):
        return True
    if one.status == "rejected":
        return False
    return one.trust >= new.trust or (one.status == "active" and new.status == "quarantined")


def _is_under_review(new: Memory, one: Memory) -> bool:
    """Return True if the existing memory is held for review or rejected, and the new one does not come from the user."""
    return one.status in ("rejected", "quarantined") and new.origin != "user"


def _should_give_way(new: Memory, one: Memory) -> bool:
    if one.status == "rejected" or _is_under_review(new, one):
        return False
    return one.trust <= new.trust and new.status == "active"


def _make_priority(one: Memory) -> tuple[bool, bool, float, int]:
    return one.status == "active", one.status == "rejected", one.trust, -one.number


def _has_older_value(new: Memory, one: Memory) -> bool:
    """Return True if an existing memory states an older value for the attribute that the new memory states."""
    if new.status != "active" or one.status != "active" or one.trust > new.trust or "episodic" in (new.type, one.type):
        return False
    if any(time is not None for time in (new.valid_from, new.valid_until, one.valid_from, one.valid_until)):
        return False
    return is_newer_value(new.content, one.content, personal=new.owner.kind == "user")


def _find_similar(new: Memory, known: Sequence[Memory], without: Sequence[Memory]) -> tuple[Memory, ...]:
    recalled = (one for one in known if one.is_recalled)
    left = (one for one in recalled if one not in without)
    rated = [(compute_similarity(new.content, one.content), one) for one in left]
    near = sorted((found for found in rated if found[0] >= ALIKE), key=lambda found: (-found[0], -found[1].number))
    return tuple(one for _, one in near[:OTHERS])


def unite_sources(sources: Sequence[MemorySource], others: Iterable[MemorySource]) -> tuple[MemorySource, ...]:
    """Return all sources of two lists. Sources of the same session and origin become one. Only the last `MEMORY_SOURCES` are kept."""
    found = {(one.session_id, one.user_id, one.identity, one.origin): one for one in sources}
    for one in others:
        key = (one.session_id, one.user_id, one.identity, one.origin)
        there = found.get(key)
        seqs = one.seqs if there is None else tuple(sorted({*there.seqs, *one.seqs}))
        found[key] = msgspec.structs.replace(one, seqs=seqs)
    return tuple(found.values())[-MEMORY_SOURCES:]
