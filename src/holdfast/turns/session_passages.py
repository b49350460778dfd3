"""What a prompt recalls of its own session: passages of what has left it that its current user message asks about.

By words alone unless there are vectors, from a table in memory (`holdfast.overlays.passage_tables`); what is older than the table goes
back, or not analysed yet, from the index. Each passage is read from the log again: what was erased or edited since is not recalled.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.context.build import Draft
from holdfast.context.recalled import RecalledItem
from holdfast.context.units import units_of
from holdfast.context.window import Window
from holdfast.domain.refusals import refusals_of
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.indexes.feeding import words_of
from holdfast.limits import QUERY_CHARS, SESSION_RECALL_INLINE, SESSION_RECALL_SECONDS, SESSION_RECALL_WAITS
from holdfast.overlays.passage_tables import (
    QUESTIONS_CHARS,
    SessionPassages,
    is_recallable,
    least_for,
    questions_in,
)
from holdfast.recall.passages import Finding, Passage
from holdfast.search.asking import Asked
from holdfast.search.searching import rank_session
from holdfast.stores.walk import group_ranges

_log: Final = logging.getLogger("holdfast.recall")
LATE: Final = "recall: late"
FAILED: Final = "recall: failed"
ERASED: Final = "(erased)"
"""Stands for a passage in a prompt that is shown again, where its words are not in the log any more."""
_AT_ONCE: Final = 16
"""Entries that are analysed at once in advance: half as many as a prompt would wait for."""
_GAP: Final = 4
"""Entries that lie so near to each other are read at once, with those between them."""
_HITS: Final = 12
"""Entries that the index is asked for."""
_COVERED: Final = 0.6
"""Part of what a question holds from which a passage of the table is an answer, and the index is not asked for older ones."""
_STRETCH: Final = 12
"""Characters of which two texts hardly have as many in common by accident."""
_SAID: Final = 0.75
"""Part of a sentence that is in the prompt if the sentence is: a digest shortens, and writes marks in another way."""
_WORDS: Final = re.compile(r"\w+")


Search = Callable[[Mapping[int, float]], Awaitable[list[Finding]]]
"""Searches the table for the current message, with what entries count on top, by `seq`."""


class Recollection(NamedTuple):
    """What was found of the session itself, and why there may be more."""

    items: Sequence[RecalledItem] = ()
    missed: tuple[str, ...] = ()


async def recall_session(
    engine: Engine, session: Session, drafted: Draft, *, seconds: float | None = None
) -> Recollection:
    """Find what the current user message of a prompt asks about, in what the prompt does not show as it was said.

    Args:
        engine: of the session.
        session: whose prompt it is.
        drafted: the prompt, without what it recalls of the session.
        seconds: how long to wait; None: as long as a turn waits, `SESSION_RECALL_SECONDS`.
    """
    if not drafted.recalls:
        return Recollection()
    if seconds is None:
        seconds = SESSION_RECALL_SECONDS
    # What is late ends by itself: a thread cannot be stopped.
    task = engine.passages.run(_find(engine, session, drafted, seconds))
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done or task.cancelled():
        return Recollection(missed=(LATE,))
    try:
        return Recollection(task.result())
    except Exception as exc:  # noqa: BLE001 - the last place: no prompt fails for the sake of what it might recall
        _log.warning("nothing of the session recalled: %s", type(exc).__name__)
        return Recollection(missed=(FAILED,))


async def _find(engine: Engine, session: Session, drafted: Draft, seconds: float) -> list[RecalledItem]:
    window, ref = drafted.fitted.window, session.ref
    query = _current_text(window)[:QUERY_CHARS]
    if (least := least_for(query)) is None:
        return []
    passages = engine.passages.of(engine.store, ref, session.identity)
    held = window.whole() | ({window.current} if window.current is not None else set())

    async def search(boosts: Mapping[int, float]) -> list[Finding]:
        long = len(passages.table) > SESSION_RECALL_INLINE
        return await run_cpu(passages.search, query, least, engine.clock(), boosts, window.current, long=long)

    boosts, found = await _catch_up(engine, ref, passages, window, query, search=search, seconds=seconds)
    entries: dict[int, Entry] = {}
    for again in (False, True):  # once more if the log does not show any more what was found
        if again or not found:
            found = await search(boosts)
        if not found:
            return []
        wanted = {one.seq for finding in found for one in (finding.passage, *finding[2:]) if one is not None} - held
        entries |= await _read(engine, ref, wanted - entries.keys())
        if not (gone := wanted - entries.keys()):
            break
        passages.gone |= gone
    sees = drafted.request.policy.sees
    shown = {
        seq: entry
        for seq, entry in entries.items()
        if is_recallable(entry) and not refusals_of(entry.metadata) and sees(units_of([entry])[0]) is not None
    }
    return list(_items(ref, found, shown, held, _Sent(window)))


async def _answer_by_words(search: Search) -> list[Finding]:
    """Return what the table has of a question, if it is so much that the index need not be asked for older passages; else nothing."""
    found = await search({})
    return found if any(one.passage.covered >= _COVERED for one in found) else []


def prepare_recall(engine: Engine, session: Session, drafted: Draft) -> None:
    """Begin to analyse what will leave a window that is half full: nobody waits for it then."""
    window = drafted.fitted.window
    if drafted.request.policy.recall and window.tokens * 2 > window.room.tokens and window.units:
        passages = engine.passages.of(engine.store, session.ref, session.identity)
        if (stop := window.units[-1].first) - passages.table.through >= _AT_ONCE:
            passages.fill(stop)


def _current_text(window: Window) -> str:
    """Return what the current user message says."""
    units = (unit for unit in (*window.head, *window.units) if unit.first == window.current)
    return next((unit.entries[0].message.text for unit in units), "")


async def _catch_up(
    engine: Engine,
    ref: SessionRef,
    passages: SessionPassages,
    window: Window,
    query: str,
    *,
    search: Search,
    seconds: float,
) -> tuple[dict[int, float], list[Finding]]:
    """Have the table hold what has left.

    Returns:
        How near entries are by vectors, by `seq`; and what the table answers, if it was searched for that as it is now.
    """
    missing = _first_whole(window) - passages.table.through
    task, index = passages.fill(window.units[-1].first if window.units else 0), engine.index
    if task is not None and missing > 0 and (index is None or missing <= SESSION_RECALL_WAITS):
        await asyncio.shield(task)
        missing = 0
    if index is None or not (missing > 0 or passages.table.begins > 0 or index.embedder is not None):
        return {}, []
    near: dict[int, float] = {}
    found: list[Finding] = []
    asked = questions_in(query) or ("" if index.embedder is None else query[:QUESTIONS_CHARS])
    if asked and index.embedder is None:
        found = await _answer_by_words(search)
    if asked and not found:
        near = await _look_up(engine, ref, passages, asked, seconds / 2)
    if task is not None and missing > 0 and not near:
        await asyncio.shield(task)
        found = []
    return ({} if index.embedder is None else near), found  # by words the table ranks better


def _first_whole(window: Window) -> int:
    """Return from which `seq` on everything is sent as it was said."""
    cuts = (seq + 1 for seq, cut in window.cuts.items() if not (cut.whole or cut.cleared or seq == window.current))
    return max([window.units[0].first if window.units else 0, *cuts])


async def _look_up(
    engine: Engine, ref: SessionRef, passages: SessionPassages, query: str, patience: float
) -> dict[int, float]:
    """Ask the index, and have the table hold what it finds."""
    asked = Asked(session_id=ref.id, limit=_HITS, time="off", bare=True, patience=patience)
    try:
        seqs = await rank_session(engine, ref, query, asked)
    except HoldfastError as exc:
        _log.warning("the session is recalled without the index: %s", exc.code)
        return {}
    fresh = await _read(engine, ref, {seq for seq in seqs if seq not in passages.table})
    await run_cpu(passages.add, list(fresh.values()))
    return {seq: 1 / (1 + place / 3) for place, seq in enumerate(seqs)}


async def _read(engine: Engine, ref: SessionRef, seqs: Collection[int]) -> dict[int, Entry]:
    """Read entries of the live path, those near each other at once."""
    ranges = group_ranges(sorted(seqs), gap=_GAP)
    read = await asyncio.gather(*(engine.store.entries(ref, start=start, stop=stop) for start, stop in ranges))
    return {entry.seq: entry for entries in read for entry in entries if entry.seq in seqs}


# -- items ---------------------------------------------------------------------


class _Sent:
    """What a prompt says already in other forms: in compactions, and in messages that are cut."""

    def __init__(self, window: Window) -> None:
        said = zip(window.messages(), window.seqs(), strict=True)
        texts = (message.text for message, seq in said if seq is None or (seq in window.cuts and seq != window.current))
        self._text = _plain("\n".join(texts))

    def has(self, text: str) -> bool:
        """Return True if nearly all of a text is there, a stretch of `_STRETCH` characters at a time."""
        text = _plain(text)
        starts = range(0, len(text) - _STRETCH + 1, _STRETCH // 2)
        return bool(starts) and sum(text[at : at + _STRETCH] in self._text for at in starts) >= _SAID * len(starts)


def _plain(text: str) -> str:
    return " ".join(_WORDS.findall(text.casefold()))


def _items(
    ref: SessionRef, found: Sequence[Finding], entries: Mapping[int, Entry], held: Collection[int], sent: _Sent
) -> Iterator[RecalledItem]:
    """Yield the passages as items, each part of an entry once; before an answer its question, and before both what was said later instead."""
    taken: list[Passage] = []

    def is_known(one: Passage) -> bool:
        entry = entries.get(one.seq)
        return one.seq in held or (entry is not None and sent.has(words_of(entry)[one.start : one.stop]))

    for passage, whole, question, newer in found:
        if passage.seq not in entries or is_known(passage) or (newer is not None and newer.seq in held):
            continue
        start = passage.start if is_known(whole._replace(stop=passage.start)) else whole.start
        stop = passage.stop if is_known(whole._replace(start=passage.stop)) else whole.stop
        shown = whole._replace(start=start, stop=stop)
        for one in (newer, question, passage if _overlaps(shown, taken) else shown):
            if one is not None and one.seq in entries and one.seq not in held and not _overlaps(one, taken):
                taken.append(one)
                yield make_item(ref, entries[one.seq], one, score=passage.score)


def _overlaps(one: Passage, taken: Sequence[Passage]) -> bool:
    return any(one.seq == other.seq and one.start < other.stop and other.start < one.stop for other in taken)


def make_item(
    ref: SessionRef, entry: Entry | None, passage: Passage, *, size: int = -1, score: float = 0.0
) -> RecalledItem:
    """Make the item of a passage: the same for the same entry.

    Args:
        ref: of the session.
        entry: as it stands in the log; None: it does not any more.
        passage: which part of its words.
        size: characters that are shown of that; -1: all.
        score: see `RecalledItem.score`.
    """
    words = "" if entry is None else words_of(entry)
    text = " ".join(words[passage.start : passage.stop].split()) or ERASED
    author = "" if entry is None else entry.message.role
    if entry is not None and (name := entry.message.name or entry.agent) and name != author:
        author = f"{author} {name}"
    return RecalledItem(
        kind="session",
        id=f"{ref.id}#{passage.seq}",
        text=text if size < 0 else text[:size] + "…",
        at=0 if entry is None else entry.timestamp,
        author=author,
        score=score,
        seq=passage.seq,
        cut=size >= 0,
        span=(passage.start, passage.stop),
    )
