"""Recall messages of the session itself for a prompt, once per turn.

The whole session is ranked for the current message with the search's ranking, by its own words, and by vectors if the index has any. What is
recalled is read from the log again, so erased or edited text is not. Without vectors, the result follows from the log alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from holdfast.context.build import Draft
from holdfast.context.recalled import RecalledItem
from holdfast.context.session_recall import (
    Sent,
    choose_excerpts,
    is_asking,
    is_early,
    join_spans,
    list_wanted,
    plan_recall,
)
from holdfast.context.standing_facts import map_corrections
from holdfast.context.units import group_units
from holdfast.context.window import Window
from holdfast.domain.refusals import is_refused
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.engine.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.indexes.documents import find_speaker
from holdfast.limits import RECALL_VECTOR_SECONDS
from holdfast.overlays.session_postings import get_recall_text
from holdfast.recall.questions import parse_question
from holdfast.recall.snippets import TermMatcher
from holdfast.recall.terms import choose_language, split_words
from holdfast.search.conversations import rank_session
from holdfast.search.queries import SearchOptions

_log: Final = logging.getLogger("holdfast.recall")
FAILED: Final = "recall: failed"
_MOST_CHARS: Final = 2_000
"""Number of first characters of the current message that are searched for."""
_AHEAD: Final = 16
"""Maximum number of entries that a turn analyses although its prompt recalls nothing yet."""
_AHEAD_SHARE: Final = 4
"""Entries are analysed ahead once the prompt takes 1/`_AHEAD_SHARE` of its budget."""
_VECTORS: Final = 50
"""Number of entries that are looked up by vectors."""


class Recollection(NamedTuple):
    """What was recalled from the session, and the reasons why it may be incomplete."""

    items: Sequence[RecalledItem] = ()
    missed: tuple[str, ...] = ()


async def recall_session(engine: Engine, session: Session, drafted: Draft) -> tuple[Draft, Recollection]:
    """Recall messages for the current user message that the prompt does not have whole.

    Returns:
        The draft, with fewer messages if those to recall needed their tokens; and what was recalled.

    Args:
        engine: the engine of the session.
        session: the session of the prompt.
        drafted: the prompt before it recalls messages of the session.
    """
    window = drafted.fitted.window
    if not drafted.needs_recall:
        if drafted.request.strategy.recall and window.tokens * _AHEAD_SHARE > window.room.tokens:
            await engine.postings.load(engine.store, session, most=_AHEAD)
        return drafted, Recollection()
    try:
        return await _recall(engine, session, drafted)
    except HoldfastError as exc:  # no prompt may fail because of recall
        _log.warning("recall from the session failed: %s", exc.code)
        return drafted, Recollection(missed=(FAILED,))


async def _recall(engine: Engine, session: Session, drafted: Draft) -> tuple[Draft, Recollection]:
    current = _find_current(drafted.fitted.window)
    if current is None:
        return drafted, Recollection()
    postings = await engine.postings.load(engine.store, session)
    text = current.message.text[:_MOST_CHARS]
    asks = is_asking(text)
    question = parse_question(text, now=current.timestamp, timed=asks, everyday=True)
    ranked = postings.rank(question, current.seq, await _find_similar(engine, session.ref, text))
    sent = Sent.from_window(drafted.fitted.window)
    plan = plan_recall(ranked, sent, drafted.limit, asks=asks)
    if is_early(drafted, plan) and (stepped := drafted.step_early()) is not None:
        drafted, sent = stepped, Sent.from_window(stepped.fitted.window)
        plan = plan_recall(ranked, sent, drafted.limit, asks=asks)
    plan = plan._replace(tokens=min(plan.tokens, drafted.session_room))
    window = drafted.fitted.window
    wanted = list_wanted(ranked, sent, plan)
    corrected = {
        seq: [pair for pair in pairs if not sent.has(pair[1].seq)] for seq, pairs in map_corrections(window).items()
    }
    seqs = {row.seq for row in wanted}
    seqs |= {later.seq for of in seqs & corrected.keys() for _, later in corrected[of]}
    entries = await _read(engine, session, seqs)
    sees = drafted.request.strategy.view_unit
    said = [one.text for one in window.list_compactions()]
    texts = {
        seq: text
        for seq, entry in entries.items()
        if (text := get_recall_text(entry))
        and not is_refused(entry.metadata)
        and sees(group_units([entry])[0]) is not None
        and not any(text in one for one in said)
    }
    matcher = TermMatcher(ranked.rarity, choose_language(split_words(text)))
    found = choose_excerpts(wanted, texts, corrected, matcher, plan.tokens)
    items = [
        _make_item(session.ref, entries[one.seq], texts[one.seq], tuple(one.spans), -float(at))
        for at, one in enumerate(found)
    ]
    return drafted, Recollection(items)


def _find_current(window: Window) -> Entry | None:
    units = (unit for unit in (*window.head, *window.units) if unit.first == window.current)
    return next((unit.entries[0] for unit in units), None)


async def _find_similar(engine: Engine, ref: SessionRef, text: str) -> Mapping[int, float] | None:
    """Return the similarity of entries that the index finds by vectors, by `seq`; None if it has no vectors, or they are late."""
    if engine.index is None or engine.index.embedder is None or not text.strip():
        return None
    options = SearchOptions(
        session_id=ref.id, limit=_VECTORS, mode="vector", time="off", bare=True, patience=RECALL_VECTOR_SECONDS
    )
    try:
        seqs = await rank_session(engine, ref, text, options)
    except HoldfastError as exc:
        _log.warning("recall from the session works without vectors: %s", exc.code)
        return None
    return {seq: 1 / (1 + place) for place, seq in enumerate(seqs)}


async def _read(engine: Engine, session: Session, seqs: AbstractSet[int]) -> dict[int, Entry]:
    """Return live entries of the log by `seq`, with one statement."""
    ref = session.ref
    found = await engine.store.entries_at(ref.user_id, [(ref.id, seq) for seq in seqs]) if seqs else {}
    return {
        seq: entry for one in found.values() if one.identity == session.identity for seq, entry in one.entries.items()
    }


def _make_item(
    ref: SessionRef, entry: Entry, text: str, spans: tuple[tuple[int, int], ...], score: float
) -> RecalledItem:
    """Return a message of the session in the form in which a prompt recalls it. `spans`: the parts of its text that are shown."""
    author = entry.message.role
    if (name := find_speaker(entry)) and name != author:
        author = f"{author} {name}"
    return RecalledItem(
        kind="session",
        id=f"{ref.id}#{entry.seq}",
        text=join_spans(text, spans),
        at=entry.timestamp,
        author=author,
        score=score,
        seq=entry.seq,
        cut=spans != ((0, len(text)),),
        spans=spans,
    )
