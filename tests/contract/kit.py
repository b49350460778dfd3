"""What the checks share: short ways to write entries, and what a log looks like."""

from __future__ import annotations

from typing import Any

from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry, NewCompaction, NewEntry, SessionRef, StoredCompaction
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

REF = SessionRef("ann", "s1")


def user(text: str, **fields: Any) -> NewEntry:
    """A user message about to be appended."""
    return new(Message(role="user", content=text), **fields)


def assistant(text: str, **fields: Any) -> NewEntry:
    """A reply about to be appended."""
    return new(Message(role="assistant", content=text), **fields)


def calls(*ids: str, **fields: Any) -> NewEntry:
    """An assistant message with tool calls of those ids."""
    tool_calls = tuple(ToolCall(id_, "look", '{"at": 1}') for id_ in ids)
    return new(Message(role="assistant", content=None, tool_calls=tool_calls), **fields)


def result(id_: str, text: str = "seen", **fields: Any) -> NewEntry:
    """What a tool answered to the call `id_`."""
    return new(Message(role="tool", content=text, tool_call_id=id_), **fields)


def note(payload: Any = None, **fields: Any) -> NewEntry:
    """A note about to be appended."""
    return new(Message(role="note", origin=payload), **fields)


def new(message: Message, *, tokens: int = 10, timestamp: int = 1, **fields: Any) -> NewEntry:
    """An entry about to be appended."""
    return NewEntry(message=message, tokens=tokens, timestamp=timestamp, **fields)


def session(ref: SessionRef = REF, *, timestamp: int = 1, **fields: Any) -> NewSession:
    """A session about to be made."""
    return NewSession(id=ref.id, user_id=ref.user_id, timestamp=timestamp, **fields)


def compaction(first: int, last: int, text: str = "what was said", **fields: Any) -> NewCompaction:
    """A compaction about to be laid, of the view `v` unless told otherwise."""
    given = {
        "view": "v",
        "kind": "summary",
        "tokens": 3,
        "source_tokens": 30,
        "total": 10 * (last + 1),
        "created_at": 5,
    }
    return NewCompaction(first=first, last=last, text=text, **{**given, "through": last, **fields})


def make_failed(
    first: int = 0, last: int = 0, error: str = "it was longer than its source", **fields: Any
) -> NewCompaction:
    """An attempt at a compaction that failed."""
    return compaction(first, last, "", error=error, **fields)


async def lay(store: Store, *new: NewCompaction, ref: SessionRef = REF) -> tuple[StoredCompaction, ...]:
    """What became of compactions that were laid by a write of their own."""
    return (await store.append(ref, Append(compactions=new, timestamp=9))).compactions


async def fates(store: Store, ref: SessionRef = REF) -> list[tuple[int, str]]:
    """The compactions that are kept, and what became of each."""
    return [(one.id, one.status) for one in await store.compactions(ref)]


def texts(entries: tuple[Entry, ...]) -> list[str]:
    """What the entries say."""
    return [entry.message.text for entry in entries]


def seqs(entries: tuple[Entry, ...]) -> list[int]:
    """Where the entries stand."""
    return [entry.seq for entry in entries]


async def live(store: Store, ref: SessionRef = REF) -> list[str]:
    """What the live path says."""
    return texts(await store.entries(ref))
