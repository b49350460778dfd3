"""A process that runs jobs in forks of itself, several at once, each of which may be told when to die.

It reads lines of JSON: one begins a job, `{"wait": true}` waits for all jobs and prints `ended` with their exit codes. Jobs print
acknowledged writes, one per line, and `put SOURCE SEQ…` after each write to the index.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.indexes import embeddings, sources, tenants
from holdfast.indexes.service import IndexService
from holdfast.indexes.settings import IndexSettings
from holdfast.recall.base import Batch, Space
from holdfast.stores import mysql, postgres, sqlite  # noqa: F401  # loaded here, once for all jobs
from tests.service.index_kit import TENANT
from tests.service.recall_kit import LetterEmbedder
from tests.service.search_kit import lasting

USER = "ada"
WORD = "brass"
"""All that is said has it."""


def say(*words: object) -> None:
    """Print a line atomically, so that lines of several processes do not mix."""
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


# -- dying -----------------------------------------------------------------------


class Killer:
    """Kills the process during a write to the index, as suddenly as `kill -9`.

    Args:
        write: Index of the write, from 0; None means no write.
        after: Microseconds after the beginning of the write.
    """

    def __init__(self, write: int | None, after: int) -> None:
        self._left = write
        self._after = after

    def begins(self) -> None:
        """A write begins."""
        if self._left == 0:
            signal.setitimer(signal.ITIMER_REAL, max(self._after, 1) / 1_000_000)
        self._left = None if self._left is None else self._left - 1


def watch_index(index: Any, death: Killer) -> None:
    """Kill the process when its time has come, and print what was put."""
    write: Callable[[Space, Batch], Awaitable[bool]] = index.write

    async def report_and_die(space: Space, batch: Batch) -> bool:
        death.begins()
        append_messages = await write(space, batch)
        if append_messages and batch.put:
            say("put", batch.source.id or space.name, *(one.seq for one in batch.put))
        return append_messages

    index.write = report_and_die


# -- jobs ------------------------------------------------------------------------


async def feed(hf: Holdfast, name: str) -> None:
    """Write to own sessions and to one shared by all jobs; erase, rewind and delete; remember and forget."""
    index = _index(hf)
    own, gone = SessionRef(USER, f"own{name}"), SessionRef(USER, f"gone{name}")
    await append_messages(hf, gone.id, *(f"{name}g{at}" for at in range(3)))
    await append_messages(hf, own.id, *(f"{name}s{at}" for at in range(10)))
    await append_messages(hf, "all", *(f"{name}a{at}" for at in range(5)))
    await index.settled()
    await _going(hf.erase(own, 2), f"{name}s2")
    await _going((await hf.session(own.id, user_id=USER)).rewind(2), *(f"{name}s{at}" for at in range(6, 10)))
    await append_messages(hf, own.id, *(f"{name}t{at}" for at in range(4)))
    await _going(hf.delete(gone), *(f"{name}g{at}" for at in range(3)))
    await index.settled()
    for text in (f"key{name} is made of {WORD}", f"tin{name} is empty"):
        made = await hf.memories.remember(text, user_id=USER)
        say("remembered", made.memory.id)
    await hf.memories.recall(WORD, user_id=USER)
    say("forgetting", made.memory.id)
    await hf.memories.forget(made.memory.id)
    say("forgotten", made.memory.id)
    await hf.memories.recall(WORD, user_id=USER)


async def append_messages(hf: Holdfast, session_id: str, *names: str) -> None:
    """Append to a session: one message per name, all with one common word."""
    session = await hf.session(session_id, user_id=USER)
    roles = ("user", "assistant")
    await session.append([{"role": roles[at % 2], "content": f"{WORD} {name}"} for at, name in enumerate(names)])
    say("said", *names)


async def _going(work: Coroutine[Any, Any, object], *names: str) -> None:
    say("going", *names)
    await work
    say("gone", *names)


async def talk(hf: Holdfast, name: str) -> None:
    """Write to the same sessions as all other jobs, and have them indexed."""
    for at in range(8):
        await append_messages(hf, f"s{at % 3}", f"{name}u{at}", f"{name}v{at}")
        await _index(hf).settled()


async def remember(hf: Holdfast, name: str) -> None:
    """Remember and forget for the same user as all other jobs, and recall."""
    for at in range(8):
        kept, gone = [
            (await hf.memories.remember(f"{what}{name}{at} is made of {WORD}", user_id=USER)).memory
            for what in ("key", "tin")
        ]
        say("remembered", kept.id)
        await hf.memories.recall(f"key{name}{at}", user_id=USER)
        await hf.memories.forget(gone.id)
        say("forgotten", gone.id)


async def rebuild(hf: Holdfast, _: str) -> None:
    """Rebuild the index."""
    done = await _index(hf).rebuild()
    say("rebuilt", done.sessions, done.entries, done.owners, int(done.resumed))


def _index(hf: Holdfast) -> IndexService:
    assert hf.engine.index is not None
    return hf.engine.index


JOBS = {"feed": feed, "talk": talk, "remember": remember, "rebuild": rebuild}


class Job(msgspec.Struct, kw_only=True):
    """A job as described by a line."""

    do: str = ""
    wait: bool = False
    """For all that were begun."""
    store: str = ""
    index: str = ""
    name: str = ""
    write: int | None = None
    after: int = 0
    """When it dies: see `Killer`."""
    vectors: bool = False


async def run(job: Job) -> None:
    """Run a job."""
    embedder = LetterEmbedder(told=lambda text: say("embedded", text)) if job.vectors else None
    settings = IndexSettings(url=job.index, embedder=embedder, mode="hybrid" if job.vectors else "keyword")
    async with Holdfast(job.store, tenant=TENANT, index=settings, life=lasting()) as hf:
        watch_index(_index(hf).index, Killer(job.write, job.after))
        await JOBS[job.do](hf, job.name)


def main() -> None:
    """Process lines until the end of the input."""
    patched = (
        (sources, "INDEX_PAGE", 4),  # so that there are several writes
        (tenants, "INDEX_FIRST_WALK_SECONDS", 3600),  # only what it was told
        (embeddings, "_ELSEWHERE", 0.05),  # until one looks whether the other has embedded all
    )
    for module, name, value in patched:
        setattr(module, name, value)
    begun: list[int] = []
    for line in sys.stdin:
        job = msgspec.json.decode(line, type=Job)
        if not job.wait:
            begun.append(_start_job(job))
            continue
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in begun]
        begun.clear()
        say("ended", *ended)


def _start_job(job: Job) -> int:
    """Fork the process of a job."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        asyncio.run(run(job))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        os._exit(code)


if __name__ == "__main__":
    main()
