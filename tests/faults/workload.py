"""A short workload on a store, whose every write says when it was acknowledged; and what may stand in the file afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.session import ModelCall, NewCompaction, NewEntry, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import NewSession, SessionPatch
from tests.faults.vfs import Death, faulty

REF = SessionRef("ann", "s")
OTHER = SessionRef("ann", "t")


def make_entry(text: str, role: str = "user", *, size: int = 0) -> NewEntry:
    return NewEntry(message=Message(role=role, content=text + "." * size), tokens=5, timestamp=1)


def summary(last: int, *, size: int = 0) -> NewCompaction:
    """A compaction up to `last`, about to be laid."""
    return NewCompaction(
        view="v",
        first=0,
        last=last,
        kind="summary",
        text=f"up to {last}" + "." * size,
        tokens=5,
        source_tokens=50,
        total=5 * last,
        created_at=2,
        through=last,
        report={"k": last},
    )


def append(*entries: NewEntry, **more: Any) -> Append:
    return Append(entries=entries, timestamp=2, **more)


async def run(store: Store, *, together: bool = True) -> AsyncIterator[int]:
    """Writes of all kinds; behind each one how many are done.

    Args:
        together: some at once, to be committed as one; otherwise one after the other.
    """
    view = {"v": SavedView(0, b"view")}
    call = ModelCall(model="m", timestamp=2, through=3, view="v", hash=b"h" * 16, build=b"b" * 900)
    first = [
        lambda: store.create(NewSession(id="s", identity="one", user_id="ann", timestamp=1, state={"k": 1})),
        lambda: store.append(REF, append(make_entry("a0"), make_entry("a1", "assistant"))),
        lambda: store.create(NewSession(id="t", identity="two", user_id="ann", timestamp=1)),
    ]
    several = [partial(store.append, OTHER, append(make_entry(f"t{at}"))) for at in range(4)]
    rest: list[Callable[[], Any]] = [
        lambda: store.append(
            REF,
            append(
                *(make_entry("b0", size=9000), make_entry("b1", "assistant", size=5000)),
                views=view,
                calls=[call],
                compactions=[summary(0), summary(2, size=6000)],
            ),
        ),
        lambda: store.append(
            REF,
            append(
                make_entry("c0"),
                idempotency_key="key",
                fingerprint=b"f",
                state_delta={"k": 2},
                compactions=[summary(4), msgspec.structs.replace(summary(4), error="no")],
            ),
        ),
        lambda: store.append(REF, append(make_entry("d0", "assistant"), retire_from=3)),
        lambda: store.update(REF, SessionPatch(metadata={"m": "x" * 3000}), timestamp=3),
        lambda: store.annotate(REF, 0, pinned=True),
        lambda: store.erase(REF, 1, tokens=2),
        lambda: store.remove(OTHER),
        lambda: store.append(REF, append(make_entry("e0"), make_entry("e1", "assistant"))),
    ]
    done = 0
    batches = [[write] for write in first] + ([several] if together else [[w] for w in several]) + [[w] for w in rest]
    for batch in batches:
        await asyncio.gather(*(write() for write in batch))
        done += len(batch)
        yield done


async def look(store: Store) -> Any:
    """All that can be seen of both sessions; None for one that is not there."""
    seen: list[Any] = []
    for ref in (REF, OTHER):
        page = [session for session in (await store.list(limit=10)).sessions if session.ref == ref]
        entries = await store.entries(ref, retired=True) if page else None
        if not page:
            seen.append(None)
            continue
        rows = await store.window(ref, "v")
        seen.append(
            (page[0], entries, rows.view, rows.compaction, await store.compactions(ref), await store.calls(ref))
        )
    return seen


async def dying(folder: Path, death: Death, *, made: bool) -> list[int]:
    """Run the workload once, in `folder`; behind each event of the file system, what a death would leave is in `N.db`.

    Returns:
        How many writes were acknowledged by each event, the first one first.
    """
    path, done = folder / "run.db", 0
    acknowledged: list[int] = []
    if made:
        await (await open_store(f"sqlite:///{path}", tenant="acme")).close()

    def copy_path(event: int) -> Path:
        acknowledged.append(done)
        return folder / f"{event}.db"

    with faulty() as vfs:
        vfs.deaths(death, path, copy_path)
        store = await open_store(f"sqlite:///{path}", tenant="acme")
        async for done in run(store):  # noqa: B007  # `left` reads it
            pass
        await store.close()
    return acknowledged
