"""Shared by tests of transcripts: a store whose sessions have transcripts, and a short form of the files."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.domain.session import Ending, EndReason, NewEntry, Session, SessionRef
from holdfast.hooks import EndedSession
from holdfast.hooks.transcripts import Transcripts
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

NOW = 1_760_000_000_000
REF = SessionRef("default", "s1")


@asynccontextmanager
async def open_store_with_transcripts(
    folder: Path, *, url: str = "sqlite://:memory:"
) -> AsyncIterator[tuple[Store, Transcripts]]:
    """Open a store whose sessions have transcripts in `folder/t`."""
    transcripts = Transcripts(folder / "t")
    store = await open_store(url, tenant="default")
    try:
        yield transcripts.follow(store), transcripts
    finally:
        await transcripts.close()
        await store.close()


async def make(store: Store, ref: SessionRef = REF, *, timestamp: int = NOW, **fields: Any) -> Session:
    return await store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=timestamp, **fields))


async def say(store: Store, *entries: NewEntry, ref: SessionRef = REF, **more: Any) -> None:
    await store.append(ref, Append(entries=entries, timestamp=NOW, **more))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def describe_file(path: Path) -> list[Any]:
    """Return a file in short: its header and texts. Retired texts are in parentheses."""
    return [_short(line) for line in lines(path)]


def _short(line: dict[str, Any]) -> Any:
    if line.get("type") == "session":
        return f"[{line['id']}]"
    return f"({line['content']})" if "retired_by" in line else line["content"]


async def end(store: Store, reason: EndReason, *, ref: SessionRef = REF, withdrawn: bool = False) -> EndedSession:
    """Return the ended session as hooks get it."""
    ending = Ending(
        id=f"end_{reason}",
        user_id=ref.user_id,
        session_id=ref.id,
        withdrawn=withdrawn,
        reason=reason,
        ended_at=NOW,
        due_at=NOW,
        hooks=("transcripts",),
    )
    assert await store.end(ending)
    return EndedSession(store, await store.get(ending.ref), ending)
