"""The index of a database: its file is removed or damaged, and other processes write without an index or with one of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import SessionRef
from tests.behaviour.kit import World, refused, through, user
from tests.behaviour.kit.data import Records

pytestmark = through("library")
WHOLE = ("", "-wal", "-shm")
"""Suffixes of the files of an open SQLite database."""
LATER = 2 * 3_600_000
KELP, DULSE = "The kelp is in the cellar", "The dulse is in the attic"


def remove(folder: Path, *endings: str) -> None:
    for ending in endings or WHOLE:
        Path(f"{folder}/chat.index.db{ending}").unlink(missing_ok=True)


def write(folder: Path, content: bytes) -> None:
    Path(folder, "chat.index.db").write_bytes(content)


def damage(folder: Path, kept: int) -> None:
    """Overwrite the file, but for its first bytes."""
    whole = Path(folder, "chat.index.db").read_bytes()
    write(folder, whole[:kept] + bytes(range(256)) * ((len(whole) - kept) // 256))


async def find(hf: Any, query: str = "kelp", **options: Any) -> list[str]:
    return [hit["snippet"] for hit in await hf.search(query, user="ada", **options)]


async def fill(hf: Any) -> Any:
    session = await hf.given("s", user(KELP), user="ada")
    await hf.remember("Ada eats dulse", user="ada")
    await Records(hf, "r", user="ada").put("k", 1, text="An old map of the harbour.")
    await Records(hf, "r", user="ada", session="s").put("k", 1, text="A new map of the harbour.")
    await check(hf)
    return session


async def check(hf: Any) -> None:
    await hf.settle()
    assert await find(hf) == [KELP]
    assert len(await hf.memories("dulse", user="ada")) == 1
    for session in (None, "s"):
        found = await Records(hf, "r", user="ada", session=session).search("harbour")
        assert [row["key"] for row in found] == ["k"]


@pytest.mark.parametrize("endings", [WHOLE, ("",)], ids=["whole", "without what lies beside it"])
async def test_everything_is_found_after_the_file_is_removed(
    world: World, endings: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Also by another process, which shares the new file."""
    async with world.open(store="file") as hf:
        session = await fill(hf)
        remove(world.folder, *endings)
        await check(hf)
        assert "the file of the index was removed" in caplog.text
        async with holdfast.open(hf.url, clock=world.clock) as other:
            assert len((await other.search("kelp", "ada")).hits) == 1
            await session.append(user(DULSE))
            assert DULSE in await find(hf, "attic")
            assert DULSE in str(await other.search("attic", "ada"))


async def test_a_new_file_next_to_old_ones_is_refused(world: World) -> None:
    """Two databases with one `-shm` damage each other, so neither is used. Writes and recall still work."""
    async with world.open(store="file") as hf:
        session = await fill(hf)
        remove(world.folder, "")
        write(world.folder, b"")
        with refused("store_unavailable", "stop all programs that use it, delete chat.index.db, chat.index.db-wal and"):
            await find(hf)
        await session.append(user(DULSE))
        assert len(await hf.memories("dulse", user="ada")) == 1
        remove(world.folder)
        assert sorted(await find(hf, "attic kelp")) == [DULSE, KELP]


@pytest.mark.parametrize(
    ("kept", "code"),
    [(0, "store_unavailable"), (4096, "store_corrupt")],
    ids=["its beginning", "all but its beginning"],
)
async def test_a_damaged_file_says_how_to_repair_it(world: World, kept: int, code: str) -> None:
    """Removing the files is enough, and so is a rebuild: the index is made again from the sessions."""
    async with world.open(store="file") as hf:
        await fill(hf)
    for repair in ("remove", "rebuild"):
        damage(world.folder, kept)
        async with world.open(store="file") as hf:
            with refused(code, "the index is damaged"):
                await find(hf)
            assert len(await hf.memories("dulse", user="ada")) == 1
            if repair == "remove":
                remove(world.folder)
            else:
                await world.native.index.rebuild()
            await check(hf)


@pytest.mark.parametrize("store", ["file", "postgres"])
@pytest.mark.parametrize("searched", [True, False], ids=["searched", "walked"])
async def test_what_another_process_erases_without_an_index_is_not_found(
    world: World, store: str, searched: bool
) -> None:
    """A search that meets it removes it from the index, otherwise the next complete backfill, which is due after an hour."""
    async with world.open(store=store) as hf, holdfast.open(hf.url, index=None, clock=world.clock) as other:
        for number in range(0 if searched else 101):
            # The last one expires. It is beyond the first page.
            ttl = LATER // 2 if number == 100 else None
            await Records(hf, "r", user="ada").put(f"k{number}", number, text="A chart.", ttl=ttl)
        exported = await (await fill(hf)).export()
        await hf.given("gone", user("The kelp was in the shed"), user="ada")
        await hf.settle()
        index = world.native.index
        await index.walk()
        world.clock.now += LATER
        await other.erase(SessionRef("ada", "s"), 0)
        await other.delete(SessionRef("ada", "gone"))
        (kept,) = await hf.memories(user="ada")
        await other.memories.forget(kept["id"])
        await other.records(["r"], user_id="ada").delete("k")
        if searched:
            assert await find(hf) == []
            assert await hf.memories("dulse", user="ada") == []
            assert await Records(hf, "r", user="ada").search("harbour") == []
            await hf.settle()
        else:
            await index.walk()
        assert (await index.status()).documents == (1 if searched else 102)  # records; one has expired
        world.clock.now += LATER
        await index.walk()
        world.clock.now += LATER
        assert not (await index.walk()).whole
        world.clock.now += LATER
        await other.import_(exported, session_id="old")
        await index.walk(whole=True)
        assert (await index.status()).documents == (2 if searched else 102)


async def test_an_index_is_rebuilt_for_a_session_a_user_or_all(world: World) -> None:
    async with world.open() as hf:
        await fill(hf)
        for options in ({"session": "s"}, {"user": "ada", "session": "s"}, {"user": "ada"}, {}):
            assert (await world.native.index.rebuild(**options)).entries == 1
            await check(hf)
