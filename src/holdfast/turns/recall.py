"""Recall for a turn: search once, before the first call of the model, and use the same result in all prompts of the turn.

Past conversations and memories are searched concurrently, for a limited time. If a search is late or fails, its results
are left out. The record of the call says so, and the turn continues. Recalled text is data, not instructions:
`holdfast.context.recalled` puts it into the prompt.

`holdfast.turns.session_recall` recalls messages of the session itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio
import msgspec

from holdfast.context.build import WorkingSet
from holdfast.context.recalled import PromptContent, Recall, RecalledItem, RecalledKind, RecallSettings, format_time
from holdfast.limits import (
    MEMORY_FILES_NAMED,
    QUERY_CHARS,
    RECALL_FRESH_SECONDS,
    RECALL_SECONDS,
    RECALL_VECTOR_SECONDS,
    RECALLED_CHARS,
)
from holdfast.memory.files import ROOT, MemoryFiles
from holdfast.recall.questions import is_asking_for_many
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchHit, SearchOptions, parse_search_zone
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
    whole = {id_ for id_, item in injected.items() if not item.cut}
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
