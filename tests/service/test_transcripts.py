"""Transcripts: one file per session with the content of the store, for any writer and after any failure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.background import run_in_thread
from holdfast.cli.jsonl import SessionRecord, read_sessions
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from holdfast.hooks.transcripts import Transcripts
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.wrapper import StoreWrapper
from tests.contract.kit import assistant, user
from tests.service.transcripts_kit import REF, describe_file, end, make, open_store_with_transcripts, say

# -- file content ----------------------------------------------------------------


def read_back(path: Path) -> SessionRecord:
    """Return the session of a file as an import reads it."""
    with path.open("rb") as file:
        (record,) = read_sessions(file, path.name)
    return record


def list_live(record: SessionRecord) -> list[Message]:
    """Return the messages of a session without retired ones."""
    both = zip(record.session.messages, record.session.fields, strict=True)
    return [message for message, fields in both if "retired_by" not in fields]


STEPS = st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 3), st.booleans())


@given(st.lists(STEPS, min_size=1, max_size=8))
async def test_any_text_is_read_back_unchanged(steps: list[tuple[str, int, bool]]) -> None:
    with TemporaryDirectory() as folder:
        async with open_store_with_transcripts(Path(folder)) as (store, transcripts):
            await make(store)
            for text, back_by, settles in steps:
                next_seq = (await store.get(REF)).tail.next_seq
                await say(store, user(text), retire_from=max(0, next_seq - back_by))
                if settles:
                    await transcripts.wait_until_settled()
            await transcripts.wait_until_settled()
            stored = [entry.message for entry in await store.entries(REF)]
            path = transcripts.path("default", "default", "s1")
            before, read = path.read_bytes(), read_back(path)
            await transcripts(await end(store, "close"))
            # Incremental writing gives the same file as writing everything at once.
            assert path.read_bytes() == before
    assert list_live(read) == stored


class Hasty(StoreWrapper):
    """A store to which another writer writes once, after the `at`-th read of entries."""

    def __init__(self, inner: Store, reads: list[int]) -> None:
        super().__init__(inner)
        self._reads = reads

    def wrap(self, inner: Store) -> Self:
        return type(self)(inner, self._reads)

    async def entries(self, *args: Any, **kwargs: Any) -> tuple[Entry, ...]:
        found = await self.inner.entries(*args, **kwargs)
        if self._reads:
            self._reads[0] -= 1
            if self._reads[0] == 0:
                await say(self.inner, user("instead"), retire_from=0)
        return found


def wrap_hasty(inner: Store, reads: list[int]) -> Store:
    kind: Any = Hasty
    made: Store = kind(inner, reads)
    return made


@pytest.mark.parametrize("at", range(1, 4))
async def test_edit_during_a_transcript_write_reaches_the_file(tmp_path: Path, at: int) -> None:
    transcripts = Transcripts(tmp_path / "t")
    reads: list[int] = []
    store = transcripts.follow(wrap_hasty(await open_store("sqlite://:memory:", tenant="default"), reads))
    await make(store)
    await say(store, user("one"))
    await transcripts.wait_until_settled()
    reads.append(at)
    await say(store, assistant("two"), user("three"))
    await transcripts.wait_until_settled()
    reads.clear()
    await say(store, assistant("last"))
    await transcripts.wait_until_settled()
    path = tmp_path / "t" / "s1.jsonl"
    before, read = path.read_bytes(), read_back(path)
    await transcripts(await end(store, "close"))
    assert path.read_bytes() == before
    assert list_live(read) == [entry.message for entry in await store.entries(REF)]
    await transcripts.close()
    await store.close()


# -- time of writing --------------------------------------------------------------


WRITER = """
import asyncio, sys
from holdfast.hooks.transcripts import Transcripts
from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.log import Append
from tests.contract.kit import user

async def write(url, folder, name, count):
    transcripts = Transcripts(folder)
    store = await open_store(url, tenant="default")
    watched = transcripts.follow(store)
    print("ready", flush=True)
    sys.stdin.readline()
    for at in range(int(count)):
        await watched.append(SessionRef("default", "s1"), Append(entries=[user(f"{name} {at}")], timestamp=at))
        print(at, flush=True)
    await transcripts.close()
    await store.close()

asyncio.run(write(*sys.argv[1:]))
"""


def start_writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    """Start a process that is ready to write and reports each write."""
    url = f"sqlite:///{folder}/chat.db"
    command = [sys.executable, "-c", WRITER, url, str(folder / "t"), name, str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_killed_process_leaves_no_duplicate_and_no_missing_entry(tmp_path: Path) -> None:
    path = tmp_path / "t" / "s1.jsonl"
    async with open_store_with_transcripts(tmp_path, url=f"sqlite:///{tmp_path}/chat.db") as (store, transcripts):
        await make(store)

        def kill_writer(name: str) -> None:
            process = start_writer(tmp_path, name, 100_000)
            assert process.stdin is not None
            assert process.stdout is not None
            with process:
                process.stdin.write("go\n")
                process.stdin.flush()
                for _ in range(40):
                    process.stdout.readline()
                process.kill()

        for name in "abc":
            await run_in_thread(kill_writer, name)
            stored = [entry.message.text for entry in await store.entries(REF)]
            whole = path.read_bytes().rpartition(b"\n")[0].split(b"\n")
            there = [json.loads(line).get("content") for line in whole[1:]]
            assert there == stored[: len(there)]
        await say(store, user("last"))
        await transcripts.wait_until_settled()
        stored = [entry.message.text for entry in await store.entries(REF)]
    assert len(stored) >= 120
    assert describe_file(path) == ["[s1]", *stored]


async def test_two_processes_lose_no_entry(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path, url=f"sqlite:///{tmp_path}/chat.db") as (store, transcripts):
        await make(store)

        def run() -> list[int]:
            writers = [start_writer(tmp_path, name, 60) for name in "ab"]
            for process in writers:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            for process in writers:
                process.communicate(timeout=60)
            return [process.returncode for process in writers]

        assert await run_in_thread(run) == [0, 0]
        await say(store, user("last"))
        await transcripts.wait_until_settled()
        stored = [entry.message for entry in await store.entries(REF)]
    assert len(stored) == 121
    assert list(read_back(tmp_path / "t" / "s1.jsonl").session.messages) == stored


@pytest.mark.parametrize("size", [0, 1, 20, 75, 200, 250])
async def test_file_cut_at_any_point_is_completed(tmp_path: Path, size: int) -> None:
    for reason in (None, "close"):
        folder = tmp_path / str(reason)
        async with open_store_with_transcripts(folder) as (store, transcripts):
            await make(store)
            await say(store, user("one"), assistant("two"))
            await transcripts.wait_until_settled()
            path = folder / "t" / "s1.jsonl"
            os.truncate(path, size)
            if reason:
                await transcripts(await end(store, "close"))
            else:
                await say(store, user("three"))
                await transcripts.wait_until_settled()
            assert describe_file(path) == ["[s1]", "one", "two", *([] if reason else ["three"])]
            assert list(path.parent.iterdir()) == [path]
