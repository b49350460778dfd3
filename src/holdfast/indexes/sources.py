"""Read from the store what an index needs: the changes of a source since it was indexed, and texts by number.

A *source* is one session, all memories of one owner, or all searchable records of one owner. A text of a source has a number, its
`seq`: the position in the log, or the number of the memory or record. The *progress* of a source is stored in the index, and says which
changes are indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import Owner
from holdfast.domain.record import RecordOwner, SearchablePage, TenantRef, decode_place
from holdfast.domain.session import Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.indexes.documents import Text, extract_words, make_entry_texts, make_memory_text, make_record_text
from holdfast.limits import INDEX_PAGE
from holdfast.recall.base import Index, Progress, Space
from holdfast.stores.base import Store

PAGE: Final = 100
"""Maximum number of memories, records or texts that are read at a time."""
_DIGEST_PAGE: Final = 1000


class SourceName(NamedTuple):
    """The space and the id of a source."""

    space: Space
    id: str = ""

    @property
    def session(self) -> SessionRef:
        """The session that is the source, or that owns the records of the source."""
        return SessionRef(self.space.name, self.id)


def to_session_source(ref: SessionRef) -> SourceName:
    """Return the source that contains a session."""
    return SourceName(Space("talk", ref.user_id), ref.id)


def to_memory_source(owner: Owner) -> SourceName:
    """Return the source that contains an owner's memories."""
    return SourceName(Space(owner.kind, owner.id))


def to_record_source(owner: RecordOwner) -> SourceName:
    """Return the source that contains an owner's searchable records."""
    return SourceName(Space("record", getattr(owner, "user_id", "")), owner.id if isinstance(owner, SessionRef) else "")


class Changes(NamedTuple):
    """Some changes of a source that are not indexed yet, and the progress of the source once they are.

    If that is not `complete`, there are more.
    """

    progress: Progress
    texts: Sequence[Text] = ()
    drop: Sequence[int] = ()
    """Numbers of documents to delete."""
    number: int = 0
    """Number of entries, memories or records that were read."""


class StoredSource(Protocol):
    """A source as the store has it."""

    async def read_changes(self, known: Progress | None) -> Changes | None:
        """Return the next changes after a progress; None if the store does not have the source.

        The progress is returned unchanged if there are none. If the identity is another one, the source is new, and the changes are empty.
        """

    async def read_texts(self, identity: str, seqs: Sequence[int]) -> Mapping[int, str | None]:
        """Return the texts with these numbers that the source still has, by number. A damaged text is None.

        Args:
            identity: the identity that the source must have.
            seqs: the numbers, at most `PAGE`.
        """


def restart(known: Progress) -> Progress:
    """Return the progress of a source whose documents are all written again. They stay in the index until then."""
    return Progress(known.identity, epoch=known.epoch, removals=known.removals + 1, complete=False)


class StoredSession:
    """A session. A *retired* entry is one that an edit has removed from the current conversation, together with all later entries.

    Args:
        name: the source.
        store: the store.
        index: the index, whose documents of retired entries are found.
    """

    def __init__(self, name: SourceName, store: Store, index: Index) -> None:
        self._name = name
        self._ref = name.session
        self._store = store
        self._index = index

    async def read_changes(self, known: Progress | None) -> Changes | None:
        try:
            session = (await self._store.get(self._ref)).require_intact()
        except SessionNotFound:
            return None
        if known is None or known.identity != session.identity:
            # An empty source is written first, and the session is read again: so a deletion meanwhile is noticed.
            return Changes(Progress(session.identity, complete=False))
        if known.version > session.version:  # an older copy of the store was restored
            return Changes(restart(known))
        if known.complete and known.version == session.version:
            return Changes(known)
        if known.version < session.reshaped and known.next_seq:
            newest = await self._store.entries(self._ref, stop=known.next_seq, limit=1, descending=True)
            start = newest[0].seq + 1 if newest else 0
            if start < known.next_seq:
                return await self._find_retired(known, session, start)
        return await self._read_page(known, session)

    async def _find_retired(self, known: Progress, session: Session, start: int) -> Changes:
        """Return the documents of the entries from `start` on, which are all retired. Later entries take their places."""
        retired: list[int] = []
        talk, tool, at = known.talk, known.tool, start
        while page := await self._index.list_digests(*self._name, start=at, limit=_DIGEST_PAGE):
            seqs = [seq for seq, _ in page]
            for one in await self._index.at(*self._name, seqs):
                talk, tool = (talk, min(tool, one.place)) if one.role == "tool" else (min(talk, one.place), tool)
            retired += seqs
            at = seqs[-1] + 1
        progress = replace(known, version=session.reshaped, next_seq=start, talk=talk, tool=tool, complete=False)
        return Changes(progress, drop=retired)

    async def _read_page(self, known: Progress, session: Session) -> Changes:
        page = await self._store.entries(self._ref, start=known.next_seq, limit=INDEX_PAGE)
        is_last = len(page) < INDEX_PAGE
        texts, talk, tool = make_entry_texts(page, known.talk, known.tool)
        end = max(page[-1].seq + 1 if page else known.next_seq, session.tail.next_seq if is_last else 0)
        progress = replace(known, version=session.version, next_seq=end, talk=talk, tool=tool, complete=is_last)
        return Changes(progress, texts, number=len(page))

    async def read_texts(self, identity: str, seqs: Sequence[int]) -> Mapping[int, str | None]:
        found = await self._store.entries_at(self._ref.user_id, [(self._ref.id, seq) for seq in seqs])
        same = {seq: one for (_, seq), one in found.items() if one.identity == identity}
        texts = {seq: None if one.damage else extract_words(one.entries[seq]) for seq, one in same.items()}
        return {seq: words for seq, words in texts.items() if words != ""}


class StoredMemories:
    """All memories of an owner. They are read in the order of their numbers.

    While some are indexed and others are not, `Progress.talk` contains the version up to which all will be.
    """

    def __init__(self, name: SourceName, store: Store) -> None:
        self._owner = Owner(name.space.kind, name.space.name)  # type: ignore[arg-type]  # a kind of owners
        self._store = store

    async def read_changes(self, known: Progress | None) -> Changes | None:
        since, after = (known.version, known.next_seq) if known else (0, 0)
        page = await self._store.memories(self._owner, since=since or None, after=after or None, limit=PAGE)
        if not page.version:
            return None
        if known is None:
            return Changes(Progress("", complete=False))
        if known.version > page.version:
            return Changes(restart(known))
        if known.complete and known.version == page.version:
            return Changes(known)
        until = known.talk or page.version
        if page.has_more:
            last = max([*page.damaged, *(one.number for one in page.memories)])
            progress = replace(known, next_seq=last, talk=until, complete=False)
        else:
            progress = replace(known, version=until, next_seq=0, talk=0, complete=True)
        texts = [make_memory_text(one) for one in page.memories if one.is_recalled]
        drop = [one.number for one in page.memories if not one.is_recalled]
        return Changes(progress, texts, drop, len(page.memories))

    async def read_texts(self, identity: str, seqs: Sequence[int]) -> Mapping[int, str | None]:
        found = await self._store.memories(self._owner, numbers=seqs, limit=len(seqs))
        return {one.number: one.words for one in found.memories if one.is_recalled} | dict.fromkeys(found.damaged)


class StoredRecords:
    """All searchable records of an owner, in order of version and number. An owner that never had any is not in the index.

    Args:
        name: the source.
        store: the store.
        index: the index, which knows the names of the records.
        clock: returns the current time, in milliseconds since the epoch.
    """

    def __init__(self, name: SourceName, store: Store, index: Index, clock: Callable[[], int]) -> None:
        self._name = name
        self._owner: RecordOwner = name.session if name.id else UserRef(name.space.name)
        if not name.id and not name.space.name:
            self._owner = TenantRef()
        self._store = store
        self._index = index
        self._clock = clock

    async def read_changes(self, known: Progress | None) -> Changes | None:
        page = await self._read_page((known.version, known.next_seq) if known else (0, 0))
        if page is None or (known is None and not page.records):
            return None
        if known is None or known.identity != page.identity:
            return Changes(Progress(page.identity, complete=False))
        if known.version > page.version:
            return Changes(restart(known))
        progress = replace(known, complete=not page.has_more)
        if page.records:
            progress = replace(progress, version=page.records[-1].version, next_seq=page.records[-1].number)
        return Changes(progress, [make_record_text(one) for one in page.records], number=len(page.records))

    async def _read_page(self, since: tuple[int, int]) -> SearchablePage | None:
        try:
            return await self._store.searchable_records(self._owner, now=self._clock(), since=since, limit=PAGE)
        except SessionNotFound:
            return None

    async def read_texts(self, identity: str, seqs: Sequence[int]) -> Mapping[int, str | None]:
        there = await self._index.at(*self._name, seqs)
        names = list({decode_place(one.name.encode()) for one in there if one.name is not None})
        try:
            page = await self._store.searchable_records(self._owner, now=self._clock(), names=names)
        except SessionNotFound:
            return {}
        found = {one.number: one.text for one in page.records if page.identity == identity}
        return {seq: found[seq] for seq in seqs if seq in found}
