"""Files that are newer, damaged, cut or torn: a clear error, the rest legible, and the file left as it is."""

# ruff: noqa: ASYNC230, ASYNC240  (nothing else runs in these loops)

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from holdfast.errors import NotFound, StoreCorrupt, StoreError
from holdfast.stores.verify import verify
from tests.faults.kit import REF, SESSIONS, append, fill, legible, make_store, open_path

PAGE = 4096


@pytest.mark.parametrize("size", [16, 100])
async def test_a_damaged_header(database: Path, size: int) -> None:
    """It is no database any more, and says so with the file's name."""
    await fill(database)
    whole = database.read_bytes()
    spoilt = b"\x5a" * size + whole[size:]
    database.write_bytes(spoilt)
    with pytest.raises(StoreError, match=r"holdfast\.db.*(restore|damaged)"):
        await open_path(database)
    assert database.read_bytes() == spoilt


@pytest.mark.parametrize("damage", ["noise", "zeros", "bits"])
def test_any_damaged_page(database: Path, damage: str) -> None:
    """One page after the other: what can be read is what was written, the rest is a `StoreError`, and most is there."""
    logs = asyncio.run(fill(database))
    whole = database.read_bytes()
    chance = random.Random(damage)
    sound = 0
    pages = range(0, len(whole), PAGE)
    for start in pages:
        page = bytearray(whole[start : start + PAGE])
        if damage == "noise":
            page = bytearray(chance.randbytes(PAGE))
        elif damage == "zeros":
            page = bytearray(PAGE)
        else:
            for _ in range(20):
                page[chance.randrange(PAGE)] ^= 1 << chance.randrange(8)
        database.write_bytes(whole[:start] + bytes(page) + whole[start + PAGE :])
        try:
            found, errors = asyncio.run(legible(database, logs))
        except NotFound:  # the damage took its name
            continue
        assert all(str(error) for error in errors)
        sound += found
    assert sound > len(pages) * len(SESSIONS) // 2


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
async def test_a_file_that_was_cut(database: Path, share: float) -> None:
    """Reading it says that it is damaged; what verifies is what was written."""
    logs = await fill(database)
    whole = database.read_bytes()
    database.write_bytes(whole[: int(len(whole) * share)])
    _, errors = await legible(database, logs)
    assert errors
    assert all(isinstance(error, StoreCorrupt) for error in errors)
    assert "damaged" in str(errors[0])


async def _copy_in_use(folder: Path, target: Path) -> int:
    """A copy of a database that is in use, five messages in its write-ahead log; the log's size."""
    store = await make_store(folder / "source.db")
    for at in range(5):
        await append(store, f"m{at}")
    for ending in ("", "-wal"):
        shutil.copy(folder / f"source.db{ending}", f"{target}{ending}")
    await store.close()
    return Path(f"{target}-wal").stat().st_size


async def test_a_torn_write_ahead_log(tmp_path: Path) -> None:
    """Cut anywhere, it holds what was committed before the cut, in order and whole; and it can be written to."""
    counts = set()
    for at in range(12):
        target = tmp_path / f"{at}.db"
        size = await _copy_in_use(tmp_path, target)
        with Path(f"{target}-wal").open("r+b") as log:
            log.truncate(size * at // 11)
        store = await open_path(target)
        try:
            said = [entry.message.text for entry in await store.entries(REF)]
            assert said == [f"m{number}" for number in range(len(said))]
            assert await verify(store, REF) == len(said)
            await append(store, "after")
            counts.add(len(said))
        except NotFound:  # cut before the session was made
            counts.add(0)
        await store.close()
        (tmp_path / "source.db").unlink()
    assert {0, 5} <= counts


async def test_a_damaged_page_does_not_spoil_what_is_written(database: Path) -> None:
    """A write that meets the damage is refused as a whole, and the others go on."""
    await fill(database)
    whole = bytearray(database.read_bytes())
    at = whole.rindex(b"s2 0 word")
    start = at - at % PAGE
    whole[start : start + PAGE] = bytes(PAGE)
    database.write_bytes(whole)
    store = await open_path(database)
    refused = 0
    for ref in SESSIONS:
        try:
            await append(store, "more", ref=ref)
        except StoreError:
            refused += 1
        else:
            assert (await store.entries(ref, limit=1, descending=True))[0].message.text == "more"
    assert refused < len(SESSIONS)
    await store.close()
