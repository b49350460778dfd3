"""Recall for a turn: search once, before the first call of the model, and use the same result in all prompts of the turn.

Past conversations and memories are searched concurrently, for a limited time. If a search is late or fails, its results
are left out. The record of the call says so, and the turn continues. Recalled text is data, not instructions:
`holdfast.context.recalled` puts it into the prompt.

Messages of the session itself that are no longer in the prompt are recalled as *passages*. These come from a table in
memory, the *passage table* (`holdfast.overlays.passage_tables`), which is searched by words, and by vectors if the
index has any. Passages that are older than the table, or are not analysed yet, come from the index. Each passage is
read from the log again, so erased or edited text is not recalled.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import anyio
import msgspec

from holdfast.accounting import run_cpu
from holdfast.context.build import Draft, WorkingSet
from holdfast.context.recalled import PromptContent, Recall, RecalledItem, RecalledKind, RecallSettings, format_time
from holdfast.context.units import group_units
from holdfast.context.window import Window
from holdfast.domain.refusals import is_refused
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.indexes.documents import extract_words
from holdfast.limits import (
    MEMORY_FILES_NAMED,
    QUERY_CHARS,
    RECALL_FRESH_SECONDS,
    RECALL_SECONDS,
    RECALL_VECTOR_SECONDS,
    RECALLED_CHARS,
    SESSION_RECALL_INLINE,
    SESSION_RECALL_SECONDS,
    SESSION_RECALL_WAITS,
)
from holdfast.memory.files import ROOT, MemoryFiles
from holdfast.overlays.passage_tables import (
    QUESTIONS_CHARS,
    SessionPassages,
    choose_threshold,
    extract_questions,
    is_recallable,
)
from holdfast.recall.passages import Finding, Passage
from holdfast.recall.questions import is_asking_for_many
from holdfast.search.conversations import rank_session, search_conversations
from holdfast.search.queries import SearchHit, SearchOptions, parse_search_zone
from holdfast.stores.walk import group_ranges
from holdfast.tools.context import FoundMessage, SearchRequest
from holdfast.tools.memory_origin import is_from_user
from holdfast.turns.turn import Turn
from holdfast.wire.strict_json import parse_time

_log: Final = logging.getLogger("holdfast.recall")
Recalling = Callable[[Turn], Awaitable[Sequence[RecalledItem]]]
"""Function that returns the items of one kind that match the turn's message; see `Engine.recalling`."""
_LOOKED_BACK: Final = 64
"""Number of log entries that are searched for the user's message if the request has none."""


async def recall_other_sessions(turn: Turn) -> None:
    """Search past conversations and memories for the turn's prompts.

    Do nothing if the results for this agent are known already.
    """
    name, budgets = turn.request.responder.agent_name, turn.request.responder.recall_budgets
    if not budgets or name in turn.recalls:
        return
    found: dict[RecalledKind, Sequence[RecalledItem]] = {}
    missed: list[str] = []
    async with anyio.create_task_group() as tasks:
        for kind in budgets:
            lists = kind == "memory" and turn.request.responder.lists_files
            recalling = list_memory_files if lists else turn.engine.recalling.get(kind)
            if recalling is not None:
                tasks.start_soon(_recall_kind, turn, kind, recalling, found, missed)
    items = tuple(item for kind in budgets for item in found.get(kind, ()))
    turn.recalls[name] = Recall(budgets=budgets, items=items, missed=tuple(sorted(missed)))


async def _recall_kind(
    turn: Turn,
    kind: RecalledKind,
    recalling: Recalling,
    found: dict[RecalledKind, Sequence[RecalledItem]],
    missed: list[str],
) -> None:
    """Search for items of one kind, for a limited time.

    Args:
        turn: the turn.
        kind: the kind of items.
        recalling: the function that searches.
        found: a mapping to which the items are added.
        missed: a list to which the reason is added if the search is late or fails.
    """
    try:
        with anyio.fail_after(RECALL_SECONDS):
            found[kind] = await recalling(turn)
    except TimeoutError:
        missed.append(f"{kind}: late")
    except Exception as exc:  # noqa: BLE001 - no turn may fail because of recall
        missed.append(f"{kind}: failed")
        # The log line must not contain the message or what was found, so it only names the type of the error.
        _log.warning("nothing recalled of kind %s in session %r: %s", kind, turn.request.ref.id, type(exc).__name__)


def keep_recalled(turn: Turn, built: WorkingSet) -> None:
    """Store the recalled text of the turn's first prompt, so that all later prompts of the turn contain the same text."""
    recall = built.request.recall
    turn.recalls[turn.request.responder.agent_name] = msgspec.structs.replace(
        recall, items=(), block=built.recalled, searched=True, spare=False
    )


async def find_user_text(turn: Turn) -> str:
    """Return the text of the user's message that the turn answers; empty if there is none."""
    for message in reversed(turn.request.incoming):
        if message.role == "user":
            return message.text
    last = await turn.engine.store.entries(turn.request.ref, limit=_LOOKED_BACK, descending=True)
    return next((entry.message.text for entry in last if entry.message.role == "user"), "")


LATE: Final = "recall: late"
FAILED: Final = "recall: failed"
ERASED: Final = "(erased)"
"""Text in a rebuilt prompt for a passage that was erased from the log."""
_AT_ONCE: Final = 16
"""Minimum number of new entries that are analysed in advance. It is half of the number that a prompt would wait for."""
_GAP: Final = 4
"""Maximum distance of two entries that are read together with the entries between them."""
_HITS: Final = 12
"""Number of entries that are requested from the index."""
_COVERAGE: Final = 0.6
"""Minimum fraction of a question's terms that a passage in the table must contain to count as an answer. If there is
such a passage, the index is not searched.
"""
_STRETCH: Final = 12
"""Length in characters of the pieces of text that are compared. Two texts hardly have a piece of this length in common
by accident.
"""
_SAID: Final = 0.75
"""Minimum fraction of a text's pieces that must be in the prompt for the text to count as included. It is below 1
because a digest shortens and reformats text.
"""
_WORDS: Final = re.compile(r"\w+")


Search = Callable[[Mapping[int, float]], Awaitable[list[Finding]]]
"""Function that searches the passage table for the current message. Its argument is a bonus per entry, by `seq`."""


class Recollection(NamedTuple):
    """The passages found in the session itself, and the reasons why the result may be incomplete."""

    items: Sequence[RecalledItem] = ()
    missed: tuple[str, ...] = ()


async def recall_session(
    engine: Engine, session: Session, drafted: Draft, *, seconds: float | None = None
) -> Recollection:
    """Find answers to the current user message in those parts of the session that the prompt does not contain verbatim.

    Args:
        engine: the engine of the session.
        session: the session of the prompt.
        drafted: the prompt before recalled passages of the session are added.
        seconds: seconds to wait; None: `SESSION_RECALL_SECONDS`, as in a turn.
    """
    if not drafted.needs_recall:
        return Recollection()
    if seconds is None:
        seconds = SESSION_RECALL_SECONDS
    # A late search is left to end by itself, because a thread cannot be stopped.
    task = engine.passages.run(_find_passages(engine, session, drafted, seconds))
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done or task.cancelled():
        return Recollection(missed=(LATE,))
    try:
        return Recollection(task.result())
    except Exception as exc:  # noqa: BLE001 - no prompt may fail because of recall
        _log.warning("recall from the session failed: %s", type(exc).__name__)
        return Recollection(missed=(FAILED,))


async def _find_passages(engine: Engine, session: Session, drafted: Draft, seconds: float) -> list[RecalledItem]:
    window, ref = drafted.fitted.window, session.ref
    query = _find_current_text(window)[:QUERY_CHARS]
    if (least := choose_threshold(query)) is None:
        return []
    passages = engine.passages.get_table(engine.store, ref, session.identity)
    held = window.list_whole_seqs() | ({window.current} if window.current is not None else set())

    async def search(boosts: Mapping[int, float]) -> list[Finding]:
        long = len(passages.table) > SESSION_RECALL_INLINE
        return await run_cpu(passages.search, query, least, engine.clock(), boosts, window.current, long=long)

    boosts, found = await _catch_up(engine, ref, passages, window, query, search=search, seconds=seconds)
    entries: dict[int, Entry] = {}
    for again in (False, True):  # again if found passages are no longer in the log
        if again or not found:
            found = await search(boosts)
        if not found:
            return []
        wanted = {one.seq for finding in found for one in (finding.passage, *finding[2:]) if one is not None} - held
        entries |= await _read(engine, ref, wanted - entries.keys())
        if not (gone := wanted - entries.keys()):
            break
        passages.gone |= gone
    sees = drafted.request.strategy.view_unit
    passage_shown = {
        seq: entry
        for seq, entry in entries.items()
        if is_recallable(entry) and not is_refused(entry.metadata) and sees(group_units([entry])[0]) is not None
    }
    return list(_make_items(ref, found, passage_shown, held, _SentText(window, passages)))


async def _answer_by_words(search: Search) -> list[Finding]:
    """Search the passage table by words.

    Return no results unless one covers the question so well that the index is not needed.
    """
    found = await search({})
    return found if any(one.passage.covered >= _COVERAGE for one in found) else []


def prepare_recall(engine: Engine, session: Session, drafted: Draft) -> None:
    """Start to analyse, in the background, entries that will leave the prompt soon.

    Do nothing unless the prompt is more than half full.
    """
    window = drafted.fitted.window
    if drafted.request.strategy.recall and window.tokens * 2 > window.room.tokens and window.units:
        passages = engine.passages.get_table(engine.store, session.ref, session.identity)
        if (stop := window.units[-1].first) - passages.table.through >= _AT_ONCE:
            passages.fill(stop)


def _find_current_text(window: Window) -> str:
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
    """Update the passage table with entries that are no longer in the prompt.

    If that takes too long, search the index instead.

    Returns:
        The vector similarity of entries, by `seq`; and the results of the passage table, if the table did not change
        after it was searched.
    """
    missing = _find_first_whole(window) - passages.table.through
    task, index = passages.fill(window.units[-1].first if window.units else 0), engine.index
    if task is not None and missing > 0 and (index is None or missing <= SESSION_RECALL_WAITS):
        await asyncio.shield(task)
        missing = 0
    if index is None or not (missing > 0 or passages.table.begins > 0 or index.embedder is not None):
        return {}, []
    near: dict[int, float] = {}
    found: list[Finding] = []
    questions = extract_questions(query) or ("" if index.embedder is None else query[:QUESTIONS_CHARS])
    if questions and index.embedder is None:
        found = await _answer_by_words(search)
    if questions and not found:
        near = await _look_up(engine, ref, passages, questions, seconds / 2)
    if task is not None and missing > 0 and not near:
        await asyncio.shield(task)
        found = []
    return ({} if index.embedder is None else near), found  # the table ranks words better


def _find_first_whole(window: Window) -> int:
    """Return the lowest `seq` such that the prompt contains this entry and all later ones verbatim."""
    cuts = (seq + 1 for seq, cut in window.cuts.items() if not (cut.whole or cut.cleared or seq == window.current))
    return max([window.units[0].first if window.units else 0, *cuts])


async def _look_up(
    engine: Engine, ref: SessionRef, passages: SessionPassages, query: str, patience: float
) -> dict[int, float]:
    """Search the index, and add the entries found to the passage table.

    Args:
        engine: the engine of the session.
        ref: the session.
        passages: the session's passage table.
        query: the text to search for.
        patience: maximum number of seconds to wait for the vector of the query.

    Returns:
        A score per entry, by `seq`. The best entry has the score 1, and each later one a lower score.
    """
    options = SearchOptions(session_id=ref.id, limit=_HITS, time="off", bare=True, patience=patience)
    try:
        seqs = await rank_session(engine, ref, query, options)
    except HoldfastError as exc:
        _log.warning("recall from the session works without the index: %s", exc.code)
        return {}
    fresh = await _read(engine, ref, {seq for seq in seqs if seq not in passages.table})
    await run_cpu(passages.add, list(fresh.values()))
    return {seq: 1 / (1 + place / 3) for place, seq in enumerate(seqs)}


async def _read(engine: Engine, ref: SessionRef, seqs: Collection[int]) -> dict[int, Entry]:
    """Return entries of the log by `seq`, without replaced ones.

    Entries that are close to each other are read together.
    """
    ranges = group_ranges(sorted(seqs), gap=_GAP)
    read = await asyncio.gather(*(engine.store.entries(ref, start=start, stop=stop) for start, stop in ranges))
    return {entry.seq: entry for entries in read for entry in entries if entry.seq in seqs}


# -- items ---------------------------------------------------------------------


class _SentText:
    """The text that a prompt contains in changed form: digests and summaries of older messages, and messages that are cut."""

    def __init__(self, window: Window, passages: SessionPassages) -> None:
        pairs = zip(window.list_messages(), window.list_seqs(), strict=True)
        texts = [
            message.text for message, seq in pairs if seq is None or (seq in window.cuts and seq != window.current)
        ]
        if passages.changed[0] != texts:
            passages.changed = texts, _fold_words("\n".join(texts))
        self._text = passages.changed[1]

    def has(self, text: str) -> bool:
        """Return True if the prompt contains nearly all of a text, compared in pieces of `_STRETCH` characters."""
        text = _fold_words(text)
        starts = range(0, len(text) - _STRETCH + 1, _STRETCH // 2)
        return bool(starts) and sum(text[at : at + _STRETCH] in self._text for at in starts) >= _SAID * len(starts)


def _fold_words(text: str) -> str:
    return " ".join(_WORDS.findall(text.casefold()))


def _make_items(
    ref: SessionRef, found: Sequence[Finding], entries: Mapping[int, Entry], held: Collection[int], sent: _SentText
) -> Iterator[RecalledItem]:
    """Yield the found passages as items, without duplicates.

    If a passage was corrected later, the correction comes first. If a passage answers a question, the question comes
    before the answer.
    """
    taken: list[Passage] = []

    def is_known(one: Passage) -> bool:
        entry = entries.get(one.seq)
        return one.seq in held or (entry is not None and sent.has(extract_words(entry)[one.start : one.stop]))

    for passage, whole, question, newer in found:
        if passage.seq not in entries or is_known(passage) or (newer is not None and newer.seq in held):
            continue
        start = passage.start if is_known(whole._replace(stop=passage.start)) else whole.start
        stop = passage.stop if is_known(whole._replace(start=passage.stop)) else whole.stop
        passage_shown = whole._replace(start=start, stop=stop)
        for one in (newer, question, passage if _has_overlap(passage_shown, taken) else passage_shown):
            if one is not None and one.seq in entries and one.seq not in held and not _has_overlap(one, taken):
                taken.append(one)
                yield make_item(ref, entries[one.seq], one, score=passage.score)


def _has_overlap(one: Passage, taken: Sequence[Passage]) -> bool:
    return any(one.seq == other.seq and one.start < other.stop and other.start < one.stop for other in taken)


def make_item(
    ref: SessionRef, entry: Entry | None, passage: Passage, *, size: int = -1, score: float = 0.0
) -> RecalledItem:
    """Return a passage in the form in which a prompt shows recalled text.

    The same entry and passage always give the same item.

    Args:
        ref: the session.
        entry: the passage's entry in the log; None: the entry was deleted from the log.
        passage: the part of the entry's text.
        size: maximum number of characters of the text; -1: the whole passage.
        score: see `RecalledItem.score`.
    """
    words = "" if entry is None else extract_words(entry)
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


_SPARE: Final = 2
"""Factor for the number of requested hits, because some hits may already be in the prompt."""
_MANY: Final = 20
"""Minimum number of hits if a message asks for a list or a count."""
_MANY_CHARS: Final = 400
"""Maximum length of each hit in characters if a message asks for a list or a count."""
LEAST_SHARE: Final = 0.5
"""Minimum score of a hit as a fraction of the best hit's score. Hits with lower scores are not put into the prompt."""
_DEFAULT: Final = RecallSettings()


async def recall_conversations(turn: Turn) -> list[RecalledItem]:
    """Return messages of past conversations, and of earlier parts of this one, that match the turn's message."""
    settings, query = _search_settings(turn), (await find_user_text(turn))[:QUERY_CHARS]
    if turn.engine.index is None or not query.strip():
        return []
    own, since, tail = turn.request.ref.id, _find_first_sent(turn), turn.session.tail.turn_id
    many = is_asking_for_many(query)
    most = max(settings.max_results, _MANY) if many else settings.max_results  # the budget of the block limits them
    options = SearchOptions(
        limit=most * (_SPARE if since is None else 1),
        zone=settings.zone,
        not_session=own if since == 0 else None,  # otherwise an index might return only its own messages on a subject
        width=_MANY_CHARS if many else RECALLED_CHARS,
        fresh=RECALL_FRESH_SECONDS,
        known=turn.request.ref,
        bare=True,
        least=LEAST_SHARE,
        sure=True,
        rerank=False,
        patience=RECALL_VECTOR_SECONDS,
    )
    results = await search_conversations(
        turn.engine,
        turn.request.ref.user_id,
        query,
        options,
        leave_out=lambda session, seq: session == own and since is not None and seq >= since,
    )
    hits = [hit for hit in results.hits if hit.session_id != own or hit.turn_id != tail]
    return [_make_conversation_item(hit, own) for hit in hits[:most]]


def _search_settings(turn: Turn) -> RecallSettings:
    return turn.request.responder.recalls.get("conversation", _DEFAULT)


def _find_first_sent(turn: Turn) -> int | None:
    """Return the `seq` of the first entry that the prompt contains together with all later ones; None if it is unknown.

    Entries from this one on need not be searched.
    """
    if turn.plan is not None and turn.session.messages == len(turn.plan.append):
        return 0
    warm = turn.engine.warm.get(turn.request.ref)
    view = None if warm is None else warm.find_view(turn.key)
    return None if view is None else view.saved


def _make_conversation_item(hit: SearchHit, own: str) -> RecalledItem:
    return RecalledItem(
        kind="conversation",
        id=hit.id,
        text=hit.snippet,
        at=hit.timestamp,
        author=_name_author(hit),
        score=hit.score,
        source="" if hit.session_id == own else hit.session_id,
        seq=hit.seq if hit.session_id == own else None,
        cut=hit.snippet.startswith("…") or hit.snippet.endswith("…"),
    )


def _name_author(hit: SearchHit) -> str:
    who = hit.name or hit.agent
    return f"{hit.role} {who}" if who and who != hit.role else hit.role


def has_foreign_quotes(turn: Turn) -> bool:
    """Return True if the turn's prompt contains recalled messages of other users."""
    block, user = turn.working_set.recalled if turn.working_set else None, turn.request.ref.user_id
    return block is not None and any(
        one.kind == "conversation" and not is_from_user(one.author, user) for one in block.items
    )


def open_files(turn: Turn) -> MemoryFiles:
    """Return the memory files of the turn's user and agent."""
    assert turn.engine.open_files is not None, "Holdfast sets it"
    return turn.engine.open_files(turn.request.ref.user_id, turn.request.responder.agent_name)


async def list_memory_files(turn: Turn) -> list[RecalledItem]:
    """Return the names of the memory files as one item, if messages of the session were evicted from earlier prompts.

    Nothing is listed if no earlier prompt is cached, so that the store is not read for it.
    """
    warm, files = turn.engine.warm.get(turn.request.ref), open_files(turn)
    view = None if warm is None else warm.find_view(turn.key)
    if view is None or view.view.frontier == 0:
        return []
    paths = await files.list_paths(MEMORY_FILES_NAMED + 1)
    if not paths:
        return []
    text = ", ".join(paths[:MEMORY_FILES_NAMED]) + (", and more" if len(paths) > MEMORY_FILES_NAMED else "")
    now = turn.engine.clock()
    return [RecalledItem(kind="memory", id=ROOT, text=text, at=now, author="assistant", note="files in your directory")]


# -- the tool ------------------------------------------------------------------


async def search_for_tool(turn: Turn, wanted: SearchRequest) -> list[FoundMessage]:
    """Return the results of the tool `search_conversations` for the turn's user, without text that the prompt already contains.

    Raises:
        InvalidRequest: the search request is invalid.
    """
    settings, built = _search_settings(turn), turn.working_set
    sent = built.window.list_whole_seqs() if built else set()
    injected = {item.id: item for item in built.recalled.items} if built and built.recalled else {}
    whole = {id_ for id_, item in injected.items() if not item.cut and item.span is None}
    own = turn.request.ref.id
    zone = parse_search_zone(settings.zone)
    options = SearchOptions(
        limit=min(wanted.most or settings.max_results, settings.max_results),
        session_id=wanted.session_id,
        since=None if wanted.since is None else parse_time(wanted.since, "since", zone),
        until=None if wanted.until is None else parse_time(wanted.until, "until", zone),
        zone=settings.zone,
        width=RECALLED_CHARS,
        bare=True,
        sure=True,
    )
    results = await search_conversations(
        turn.engine,
        turn.request.ref.user_id,
        wanted.query,
        options,
        leave_out=lambda session, seq: (session == own and seq in sent) or f"{session}#{seq}" in whole,
    )
    held = PromptContent(sent, [message.text for message in built.messages] if built else ())
    new = [
        hit
        for hit in results.hits
        if (hit.id not in injected or hit.snippet not in injected[hit.id].text)
        and not held.contains(
            msgspec.structs.replace(_make_conversation_item(hit, own), text=hit.snippet.strip("… \n"))
        )
    ]
    return [FoundMessage(hit.session_id, format_time(hit.timestamp), _name_author(hit), hit.snippet) for hit in new]


LEAST_SCORE: Final = 0.12
"""Minimum score of a memory that is put into the prompt. It is above `holdfast.memory.lookup.BROAD_RELEVANCE`."""
USUAL: Final = 5


async def recall_memories(turn: Turn) -> list[RecalledItem]:
    """Return the memories of the user, the agent and the app that match the turn's message.

    Memories in quarantine are excluded.
    """
    query = (await find_user_text(turn))[:QUERY_CHARS]
    if not query.strip():
        return []
    ref, settings = turn.request.ref, turn.request.responder.recalls.get("memory")
    found = await turn.engine.memories.recall(
        query,
        user_id=ref.user_id,
        agent=turn.request.responder.agent_name,
        limit=settings.max_results if settings else USUAL,
        min_score=LEAST_SCORE,
        include_quarantined=False,
        sure=True,
        session=turn.root or ref.id,
        patience=RECALL_VECTOR_SECONDS,
    )
    return [
        RecalledItem(
            kind="memory",
            id=one.memory.id,
            text=one.memory.content,
            at=one.memory.updated_at,
            author=one.memory.origin,
            score=one.score,
            note=one.memory.type,
        )
        for one in found.found
    ]
