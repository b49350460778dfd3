"""Compact a session because a request asks for it.

A compaction is a summary of the session like any other: it can be listed and undone, and prompts begin with it. It is written by the
model that the strategy has for summaries, or else without a model. The client gets an item that stands for the whole log so far. The item
is a reference to a note in the log; its text is the summary, followed by the messages after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.build import Request
from holdfast.context.summaries import iter_records, shorten
from holdfast.context.units import group_units
from holdfast.domain.session import Entry, Session, StoredCompaction
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict
from holdfast.limits import COMPACTION_TEXT_CHARS, COMPACTION_TEXT_ENTRIES
from holdfast.models.codecs.responses.notes import CompactionNote
from holdfast.overlays.compactor import STRATEGY
from holdfast.overlays.summarizers import DIGEST

_TARGET: Final = 0.4
"""Share of the conversation's tokens that is still used after a compaction, if the strategy does not say it."""


class Compacted(NamedTuple):
    """A compaction as a client gets it."""

    text: str
    """Text about the messages that the item replaces."""
    reference: str
    """Text that the client sends back; see `holdfast.models.codecs.responses.ids`."""
    through: int
    """`seq` of the last message that the item stands for."""
    made: StoredCompaction | None
    """The new summary; None if there was nothing to summarize, or if the summary failed."""

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the model that wrote the summary, in the format of Chat Completions."""
        made = self.made
        sent, written = (0, 0) if made is None else (made.prompt_tokens, made.completion_tokens)
        return {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}


async def compact_session(
    engine: Engine, session: Session, responder: Responder, request: Request, *, prompt: str | None = None
) -> StoredCompaction | None:
    """Summarize the older messages of a session now. Return the summary; None if there was nothing to summarize, or if it failed.

    Args:
        engine: the tenant's engine.
        session: the session as last read.
        responder: the agent and model whose prompts will contain the summary.
        request: the request for which these prompts are built.
        prompt: instructions for the model that writes the summary; None: those of the strategy. Without a model they have no effect.
    """
    own = responder.context.strategy == STRATEGY and responder.summarizer is not None
    options: dict[str, Any] = {} if own else {"target": _TARGET}
    if own and prompt:
        options["prompt"] = prompt
    try:
        made = await engine.compactor.compact(session.ref, responder, request, options, writer=DIGEST)
    except Conflict:  # another process summarizes the session; the item has the text of its messages
        return None
    return made if isinstance(made, StoredCompaction) and made.status == "live" else None


async def find_summary(engine: Engine, session: Session, view: str) -> StoredCompaction | None:
    """Return the summary that is in use in the prompts of a view; None if there is none."""
    found = await engine.store.compactions(session.ref, view=view, live=True)
    return found[-1] if found else None


async def restore_item_text(engine: Engine, session: Session, note: CompactionNote, seq: int) -> str | None:
    """Return the text of an item as the log has it now: without what was erased since, and with what was edited or rewound since.

    Return None if its summary was erased, or is not kept any more.

    Args:
        engine: the tenant's engine.
        session: the session.
        note: the item's note.
        seq: `seq` of the note.
    """
    summary = None
    if note.summary is not None:
        found = await engine.store.compactions(session.ref)
        summary = next((one for one in found if one.id == note.summary), None)
        if summary is None or not summary.text:
            return None
    return await make_item_text(engine, session, summary, note.through, before=seq)


async def make_item_text(
    engine: Engine, session: Session, summary: StoredCompaction | None, through: int, *, before: int | None = None
) -> str:
    """Return the text of an item: the summary, and the messages after it.

    Args:
        engine: the tenant's engine.
        session: the session.
        summary: the summary; None: there is none.
        through: `seq` of the last message that the item stands for.
        before: `seq` before which the messages were in force; None: they are in force now.
    """
    start = 0 if summary is None else summary.last + 1
    found = await engine.store.entries(
        session.ref,
        start=start,
        stop=through + 1,
        limit=COMPACTION_TEXT_ENTRIES,
        descending=True,
        retired=before is not None,
    )
    entries = [
        one for one in reversed(found) if one.retired_by is None or (before is not None and one.retired_by > before)
    ]
    long = len(entries) > COMPACTION_TEXT_ENTRIES // 10
    return await run_cpu(lambda: _format_text(summary, entries), long=long)


def _format_text(summary: StoredCompaction | None, entries: Sequence[Entry]) -> str:
    records = "\n".join(iter_records(group_units(entries)))
    text = "" if summary is None else summary.text
    return shorten("\n".join(filter(None, [text, records])), COMPACTION_TEXT_CHARS)
