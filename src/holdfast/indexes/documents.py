"""Documents of an index: the words of an entry or a memory that can be found, and the documents made of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from holdfast.domain.memory import Memory
from holdfast.domain.messages import UNSPOKEN_PARTS, Message, Part
from holdfast.domain.participants import SPEAKER
from holdfast.domain.session import JOINED, Entry
from holdfast.recall.base import Channel, Document
from holdfast.recall.details import analyse

DIGEST_BYTES: Final = 16
_TOLD: Final = ("transcript", "caption", "alt_text")
"""Fields of media, or of what is inside them, that say in words what is heard or seen there."""
_ROLES: Final = frozenset({"user", "assistant", "tool"})


class Said(NamedTuple):
    """An entry that can be found, or could be before it was erased: one that was has no words."""

    entry: Entry
    words: str
    digest: bytes


def find_said(entries: Iterable[Entry]) -> Iterator[Said]:
    """Those of some entries that can be found, with their words, and those that were erased.

    An erased one keeps its place, empty: so an index made anew has the neighbours that it had, and gives the same answers.
    """
    for entry in entries:
        words = words_of(entry)
        if words or (entry.erased and _is_said(entry)):
            yield Said(entry, words, digest_of(words))


def words_of(entry: Entry) -> str:
    """What an entry says in words: text, and what its media are said to hold. Empty: it is not indexed.

    So are system messages, what was erased, reasoning, and the text of a branch that a reply joins with others.
    """
    if entry.erased or not _is_said(entry):
        return ""
    words = "\n".join(filter(None, _texts(entry.message)))
    return "" if words.isspace() else words


def _is_said(entry: Entry) -> bool:
    return entry.message.role in _ROLES and not (entry.metadata or {}).get(JOINED)


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    elif isinstance(message.content, tuple):
        for part in message.content:
            if part.type not in UNSPOKEN_PARTS:
                yield from _told_by(part)
    yield from _told_in(message.extra)


def _told_by(part: Part) -> Iterator[str]:
    if part.text is not None:
        yield part.text
    else:
        yield from _told_in(part.extra)
        yield from _named(part.extra)


def _told_in(fields: Mapping[str, Any]) -> Iterator[str]:
    for inner in fields.values():
        if isinstance(inner, Mapping):
            yield from _named(inner)


def _named(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in _TOLD:
        told = fields.get(name)
        if isinstance(told, str):
            yield told


def digest_of(words: str) -> bytes:
    """What stands for words: equal ones are embedded once. Half a character counts as itself."""
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def channel_of(entry: Entry) -> Channel:
    """Where its document stands."""
    return "tool" if entry.message.role == "tool" else "talk"


class Places(NamedTuple):
    """The next place of each channel."""

    talk: int = 0
    tool: int = 0


def documents_of(said: Sequence[Said], places: Places) -> tuple[list[Document], Places]:
    """The documents of some entries, and the places behind them.

    Args:
        said: in order.
        places: those that the first ones get.
    """
    documents: list[Document] = []
    talk, tool = places
    for one in said:
        in_talk = channel_of(one.entry) == "talk"
        if one.words:
            documents.append(document_of(one, talk if in_talk else tool))
        talk, tool = talk + in_talk, tool + (not in_talk)
    return documents, Places(talk, tool)


def document_of(said: Said, place: int) -> Document:
    """The document of one entry."""
    entry = said.entry
    terms, detail = analyse(said.words, entry.timestamp)
    return Document(
        seq=entry.seq,
        channel=channel_of(entry),
        place=place,
        role=entry.message.role,
        agent=entry.agent,
        name=speaker_of(entry),
        at=entry.timestamp,
        digest=said.digest,
        length=terms.length,
        terms=terms.counts,
        traits=terms.traits,
        detail=detail,
    )


def speaker_of(entry: Entry) -> str | None:
    """Return who speaks: the name that the message gives, else whose it is where several take part, else which agent's. None: none of them."""
    if entry.message.name is not None:
        return entry.message.name
    if entry.message.role == "user":
        user = (entry.metadata or {}).get(SPEAKER)
        return user if isinstance(user, str) else None
    return entry.agent if entry.message.role == "assistant" else None


def document_of_memory(memory: Memory) -> Document:
    """The document of a memory: its number is `seq` and place."""
    terms, detail = analyse(memory.words, memory.updated_at)
    return Document(
        seq=memory.number,
        place=memory.number,
        role="user",
        agent=memory.agent,
        at=memory.updated_at,
        digest=digest_of(memory.words),
        length=terms.length,
        terms=terms.counts,
        traits=terms.traits,
        detail=detail,
    )
