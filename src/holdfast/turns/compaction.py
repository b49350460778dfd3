"""Compact a session because a request asks for it, and seal the result for the client.

A compaction is a summary of the session like any other: it can be listed and undone, and prompts begin with it. It is written by the
model that the strategy has for summaries, or else without a model. The client gets it as a sealed item, which stands for the whole log
so far: the summary, and the text of the messages after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Responder
from holdfast.context.build import Request
from holdfast.context.summaries import iter_records, shorten
from holdfast.context.units import group_units
from holdfast.domain.sealed_items import SealedItem
from holdfast.domain.session import Entry, Session, StoredCompaction
from holdfast.engine.engine import Engine
from holdfast.errors import Conflict
from holdfast.limits import SEALED_ENTRIES, SEALED_TEXT_CHARS
from holdfast.overlays.compactor import STRATEGY
from holdfast.overlays.summarizers import DIGEST
from holdfast.wire.anthropic_compaction import hash_text

_TARGET: Final = 0.4
"""Share of the conversation's tokens that is still used after a compaction, if the strategy does not say it."""


class CompactionOrder(msgspec.Struct, frozen=True, kw_only=True):
    """When a request wants its session to be compacted, and what it gets."""

    threshold: int | None = None
    """The session is compacted if the prompt has more tokens than this; None: only because of `summarized`."""
    summarized: int = -1
    """The session is compacted if its summary does not cover this `seq`. The client has an item of a summary that does, made for another
    model; it gets no new item."""
    prompt: str | None = None
    """Instructions for the model that writes the summary; None: those of the strategy."""
    is_alone: bool = False
    """True: the session is always compacted, and no model answers."""
    pauses: bool = False
    """True: if the session was compacted, no model answers."""


def add_summarized(order: CompactionOrder | None, summarized: int) -> CompactionOrder | None:
    """Return the order for a request with an item whose summary covers the messages up to `summarized`; unchanged if that is -1."""
    return order if summarized < 0 else msgspec.structs.replace(order or CompactionOrder(), summarized=summarized)


class Compacted(NamedTuple):
    """A compaction as a client gets it."""

    text: str
    """Text of the client's item about the messages that it replaces."""
    token: str
    """The sealed item, with the text."""
    signature: str
    """The sealed item, with a hash of the text in its place, for clients that get the text apart."""
    through: int
    """`seq` of the last message that the item stands for."""
    made: StoredCompaction | None
    """The new summary; None if there was nothing to summarize, or if the summary failed."""

    def to_metadata(self) -> dict[str, Any]:
        """Return what the log stores with the reply, from which `restore_item` makes the item again."""
        return {"id": None if self.made is None else self.made.id, "through": self.through}

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the model that wrote the summary, in the format of Chat Completions."""
        made = self.made
        sent, written = (0, 0) if made is None else (made.prompt_tokens, made.completion_tokens)
        return {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": sent + written}


async def compact_session(
    engine: Engine, session: Session, responder: Responder, request: Request, *, prompt: str | None = None
) -> Compacted:
    """Summarize the older messages of a session now, and return the item for the client.

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
        made = None
    stored = made if isinstance(made, StoredCompaction) and made.status == "live" else None
    return await _seal(engine, session, responder, stored)


async def _seal(engine: Engine, session: Session, responder: Responder, made: StoredCompaction | None) -> Compacted:
    live = made
    if live is None:
        found = await engine.store.compactions(session.ref, view=responder.view_key, live=True)
        live = found[-1] if found else None
    through = session.tail.last_seq
    text = await make_item_text(engine, session, live, through)
    token = await seal_item(engine, session, live, through, text)
    signature = await seal_item(engine, session, live, through, hash_text(text))
    return Compacted(text, token, signature, through, made)


async def seal_item(engine: Engine, session: Session, live: StoredCompaction | None, through: int, text: str) -> str:
    """Return the sealed item for a text from `make_item_text`, whose arguments these are."""
    summarized = -1 if live is None else live.last
    item = SealedItem(
        session=session.id,
        identity=session.identity,
        through=through,
        summarized=summarized,
        text=text,
        reshaped=session.reshaped,
    )
    return await engine.seals.seal(item, session.user_id)


async def make_item_text(engine: Engine, session: Session, live: StoredCompaction | None, through: int) -> str:
    """Return the text of a client's item: the summary in use, and the messages after it.

    Args:
        engine: the tenant's engine.
        session: the session.
        live: the summary; None: there is none.
        through: `seq` of the last message that the item stands for.
    """
    start = 0 if live is None else live.last + 1
    found = await engine.store.entries(
        session.ref, start=start, stop=through + 1, limit=SEALED_ENTRIES, descending=True
    )
    return await run_cpu(lambda: _write(live, found[::-1]), long=len(found) > SEALED_ENTRIES // 10)


def _write(live: StoredCompaction | None, entries: Sequence[Entry]) -> str:
    records = "\n".join(iter_records(group_units(entries)))
    summary = "" if live is None else live.text
    return shorten("\n".join(filter(None, [summary, records])), SEALED_TEXT_CHARS)


async def restore_item(engine: Engine, session: Session, stored: Mapping[str, Any]) -> str | None:
    """Return the sealed item of a stored reply; None if one of its messages was erased.

    Args:
        engine: the tenant's engine.
        session: the session.
        stored: the result of `Compacted.to_metadata`.
    """
    found = await engine.store.compactions(session.ref)
    live = next((one for one in found if one.id == stored.get("id")), None)
    if stored.get("id") is not None and (live is None or not live.text):
        return None
    through = stored["through"]
    text = await make_item_text(engine, session, live, through)
    return await seal_item(engine, session, live, through, text)
