"""Several processes on one store, and processes that die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.stores import open_store
from holdfast.stores.base import Append, Store, verify
from tests.stores.kit import REF, know_only, session, user
from tests.stores.servers import reached

PROGRAM = Path(__file__).with_name("writer_process.py")


def _writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), url, name, str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


async def _opened(url: str) -> Store:
    return await open_store(url, tenant="acme")


def _alone(url: str) -> None:
    """Return when a server has seen that the processes before are gone, and has ended what they had begun."""
    name = "mysql" if url.startswith("mysql") else "postgres"
    if not url.startswith("sqlite"):
        assert reached(name).left(url) == 0


async def _made(url: str) -> None:
    store = await _opened(url)
    await store.create(session())
    await store.close()


def _acknowledged(lines: str) -> dict[int, str]:
    """What a writer said; a last line that its death cut off does not count."""
    whole = lines[: lines.rfind("\n") + 1].splitlines()
    return {int(seq): text for seq, text in (line.split(" ") for line in whole)}


async def test_two_processes_append_to_one_session(shared_url: str) -> None:
    """Neither ever meets a locked database; the log has every entry once, where its writer was told."""
    await _made(shared_url)
    writers = [_writer(shared_url, name, 200) for name in ("one", "two")]
    said: dict[int, str] = {}
    for writer in writers:
        out, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")
        said |= _acknowledged(out)
    store = await _opened(shared_url)
    assert {entry.seq: entry.message.text for entry in await store.entries(REF)} == said
    assert await verify(store, REF) == 400
    await store.close()


async def test_two_processes_open_a_new_file_at_once(shared_url: str) -> None:
    """Both find the schema made, by one of them."""
    writers = [_writer(shared_url, name, 0) for name in ("one", "two", "three")]
    for writer in writers:
        _, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")


async def test_processes_open_a_file_of_the_first_release_at_once(
    shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them upgrades it, all append, and nothing of what it held is lost."""
    with monkeypatch.context() as then:
        know_only(then, 1)
        store = await _opened(shared_url)
        await store.create(session())
        await store.append(REF, Append(entries=[user("old")], timestamp=2))
        await store.close()
    writers = [_writer(shared_url, name, 20) for name in ("one", "two", "three")]
    for writer in writers:
        _, err = writer.communicate(timeout=120)
        assert (writer.returncode, err) == (0, "")
    store = await _opened(shared_url)
    assert (await store.entries(REF))[0].message.text == "old"
    assert await verify(store, REF) == 61
    assert [one.id for one in await store.compactions(REF)][-1] == 60
    await store.close()


async def test_of_several_processes_one_has_a_lease(shared_url: str) -> None:
    """Each round of the clock is one process's, whichever came first to it: none is nobody's, none is two's."""
    await _made(shared_url)
    asking = [_writer(shared_url, "ROUNDS", 150) for _ in range(3)]
    rounds: list[int] = []
    for process in asking:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (0, "")
        rounds += map(int, out.split())
    assert sorted(rounds) == list(range(150))


async def test_what_was_acknowledged_survives_kill_9(shared_url: str) -> None:
    """Round after round a writer is killed in the middle: everything it was told is there once, and the chain holds.

    What was laid over the log came with it: as many compactions as entries, of the same texts.
    """
    await _made(shared_url)
    said: dict[int, str] = {}
    for round_ in range(12):
        writer = _writer(shared_url, f"r{round_}", 100_000)
        assert writer.stdout is not None
        heard = "".join(writer.stdout.readline() for _ in range(1 + 17 * round_))
        writer.kill()
        out, err = writer.communicate(timeout=120)
        assert err == ""
        said |= _acknowledged(heard + out)
        _alone(shared_url)
        store = await _opened(shared_url)
        entries = {entry.seq: entry.message.text for entry in await store.entries(REF)}
        assert said.items() <= entries.items()
        assert len(set(entries.values())) == len(entries)
        assert await verify(store, REF) == len(entries)
        compactions = await store.compactions(REF)
        assert max((one.id for one in compactions), default=0) == len(entries)
        assert {one.text for one in compactions} <= set(entries.values())
        await store.close()
    assert len(said) > 500
