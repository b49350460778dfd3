"""Extract the searchable text of entries, memories and records, and make documents for an index from this text. Pure functions.

A document has a *place*: its position among the documents of the same session and channel. The two *channels* are messages of
user and assistant, and tool results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.memory import Memory
from holdfast.domain.messages import UNSPOKEN_PARTS, Message
from holdfast.domain.record import SearchableRecord, encode_place
from holdfast.domain.session import JOINED, SPEAKER, Entry
from holdfast.limits import INDEX_TERMS
from holdfast.recall.base import PLACES, Document
from holdfast.recall.details import analyse

DIGEST_BYTES: Final = 16
_DESCRIPTION_FIELDS: Final = ("transcript", "caption", "alt_text")
"""Fields of media parts, or of objects nested in these parts, whose text describes the sound or the image."""
_ROLES: Final = frozenset({"user", "assistant", "tool"})


class Text(NamedTuple):
    """A text to index, and its document, which is not analysed yet."""

    document: Document
    words: str

    def analyse(self) -> Document:
        """Return the document with the terms of its text."""
        terms, detail = analyse(self.words, self.document.at)
        return msgspec.structs.replace(
            self.document, length=terms.length, terms=terms.counts, traits=terms.traits, detail=detail
        )


def extract_words(entry: Entry) -> str:
    """Return the searchable text of an entry: its own text, and the descriptions of its media.

    The result is empty for entries that are not indexed: system messages, erased entries, and texts of parallel agents that
    become part of a joined reply. Reasoning is not indexed either.
    """
    if entry.erased or not _is_indexable(entry):
        return ""
    words = "\n".join(filter(None, _iter_texts(entry.message)))
    return "" if words.isspace() else words


def _is_indexable(entry: Entry) -> bool:
    return entry.message.role in _ROLES and not (entry.metadata or {}).get(JOINED)


def _iter_texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
    elif isinstance(message.content, tuple):
        for part in message.content:
            if part.type not in UNSPOKEN_PARTS:
                if part.text is not None:
                    yield part.text
                else:
                    yield from _iter_nested_texts(part.extra)
                    yield from _iter_descriptions(part.extra)
    yield from _iter_nested_texts(message.extra)


def _iter_nested_texts(fields: Mapping[str, Any]) -> Iterator[str]:
    for inner in fields.values():
        if isinstance(inner, Mapping):
            yield from _iter_descriptions(inner)


def _iter_descriptions(fields: Mapping[str, Any]) -> Iterator[str]:
    for name in _DESCRIPTION_FIELDS:
        text = fields.get(name)
        if isinstance(text, str):
            yield text


def compute_digest(words: str) -> bytes:
    """Return the digest of a text. Equal texts share one embedding. The text may contain lone surrogates."""
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


def make_entry_texts(entries: Iterable[Entry], talk: int = 0, tool: int = 0) -> tuple[list[Text], int, int]:
    """Return the texts of consecutive entries, and the next free place of each channel.

    An erased entry has no document, but still takes a place. So the distance between its neighbours does not change by a rebuild,
    and searches give the same results.

    Args:
        entries: the entries, in order.
        talk: the first free place of messages of user and assistant.
        tool: the first free place of tool results.
    """
    texts: list[Text] = []
    for entry in entries:
        words = extract_words(entry)
        in_talk = entry.message.role != "tool"
        if words:
            texts.append(Text(_make_entry_document(entry, words, talk if in_talk else tool), words))
        if words or (entry.erased and _is_indexable(entry)):
            talk, tool = talk + in_talk, tool + (not in_talk)
    return texts, talk, tool


def _make_entry_document(entry: Entry, words: str, place: int) -> Document:
    return Document(
        seq=entry.seq,
        channel="tool" if entry.message.role == "tool" else "talk",
        place=place,
        role=entry.message.role,
        agent=entry.agent,
        name=find_speaker(entry),
        at=entry.timestamp,
        digest=compute_digest(words),
    )


def find_speaker(entry: Entry) -> str | None:
    """Return the speaker's name, or None if it is not known.

    The speaker's name is the message's `name`, if it has one. Otherwise it is `metadata.user` for a user's message,
    and the agent's name for an assistant's message.
    """
    if entry.message.name is not None:
        return entry.message.name
    if entry.message.role == "user":
        user = (entry.metadata or {}).get(SPEAKER)
        return user if isinstance(user, str) else None
    return entry.agent if entry.message.role == "assistant" else None


def split_for_writes(documents: Sequence[Document]) -> list[list[Document]]:
    """Split documents into parts that are small enough for one write each. Return an empty list if there are no documents."""
    parts: list[list[Document]] = []
    terms = 0
    for one in documents:
        if not parts or terms + len(one.terms) > INDEX_TERMS:
            parts.append([])
            terms = 0
        parts[-1].append(one)
        terms += len(one.terms)
    return parts


def make_memory_text(memory: Memory) -> Text:
    """Return the text of a memory. The memory's number serves as the `seq` and the place of the document."""
    number, words = memory.number, memory.words
    at, digest = memory.updated_at, compute_digest(words)
    return Text(Document(seq=number, place=number, role="user", agent=memory.agent, at=at, digest=digest), words)


def make_record_text(record: SearchableRecord) -> Text:
    """Return the text of a searchable record. Its `seq` is the record's number, and its `name` the record's namespace and key.

    An owner that has created more searchable records than there are places uses the first places again.
    """
    document = Document(
        seq=record.number,
        place=record.number % PLACES,
        role="user",
        name=encode_place(record.name).decode(),
        at=record.updated_at,
        digest=compute_digest(record.text),
    )
    return Text(document, record.text)
