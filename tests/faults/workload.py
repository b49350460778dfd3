"""A short workload on a store, whose every write says when it was acknowledged; and what may stand in the file afterwards.

As a program it runs the workload once for each event of the file system, in a child that dies there:
`python -m tests.faults.workload FOLDER DEATH`. On a copy of `made.db` in the folder, or a new file if there is none.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.messages import Message
from holdfast.domain.session import ModelCall, NewCompaction, NewEntry, SessionRef
from holdfast.stores import open_store
from holdfast.stores.base import Append, NewSession, SavedView, SessionPatch, Store
from tests.faults.vfs import Death, FaultVFS

REF = SessionRef("ann", "s")
END = b"\xff"
OTHER = SessionRef("ann", "t")


def said(text: str, role: str = "user", *, size: int = 0) -> NewEntry:
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
        lambda: store.append(REF, append(said("a0"), said("a1", "assistant"))),
        lambda: store.create(NewSession(id="t", identity="two", user_id="ann", timestamp=1)),
    ]
    several = [partial(store.append, OTHER, append(said(f"t{at}"))) for at in range(4)]
    rest: list[Callable[[], Any]] = [
        lambda: store.append(
            REF,
            append(
                *(said("b0", size=9000), said("b1", "assistant", size=5000)),
                views=view,
                calls=[call],
                compactions=[summary(0), summary(2, size=6000)],
            ),
        ),
        lambda: store.append(
            REF,
            append(
                said("c0"),
                idempotency_key="key",
                fingerprint=b"f",
                state_delta={"k": 2},
                compactions=[summary(4), msgspec.structs.replace(summary(4), error="no")],
            ),
        ),
        lambda: store.append(REF, append(said("d0", "assistant"), retire_from=3)),
        lambda: store.update(REF, SessionPatch(metadata={"m": "x" * 3000}), timestamp=3),
        lambda: store.annotate(REF, 0, pinned=True),
        lambda: store.erase(REF, 1, tokens=2),
        lambda: store.delete(OTHER),
        lambda: store.append(REF, append(said("e0"), said("e1", "assistant"))),
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


async def _until_death(path: Path, after: int, death: Death, told: int) -> None:
    vfs = FaultVFS()
    vfs.dies(after, death)
    store = await open_store(f"sqlite:///{path}", tenant="acme")
    async for done in run(store):
        os.write(told, bytes([done]))
    await store.close()
    os.write(told, END)


def attempt(folder: Path, after: int, death: Death) -> bool:
    """One run in a child that dies behind its `after`-th event; whether it came to its end before."""
    path = folder / f"{after}.db"
    made = folder / "made.db"
    if made.exists():
        shutil.copy(made, path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_until_death(path, after, death, writing))
        except BaseException:  # noqa: BLE001  # the child tells, and ends
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = told.endswith(END)
    if not ended and not os.WIFSIGNALED(status):
        raise AssertionError(f"the workload failed by itself at event {after}")
    (folder / f"{after}.acknowledged").write_text(str(max(told.rstrip(END), default=0)))
    return ended


if __name__ == "__main__":
    event = 1
    while not attempt(Path(sys.argv[1]), event, sys.argv[2]):  # type: ignore[arg-type]
        event += 1
    print(event)
