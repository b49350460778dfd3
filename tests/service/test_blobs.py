"""The places that contents lie in: one suite for each of them, then what is about one alone."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.artifacts import ArtifactSettings, open_blobs
from holdfast.artifacts.blobs import (
    CHUNK,
    Blobs,
    DatabaseBlobs,
    DiskBlobs,
    TenantFolder,
    make_folder_name,
    make_key,
    rechunk,
)
from holdfast.artifacts.s3 import S3Blobs
from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreUnavailable
from holdfast.limits import BLOB_PART_BYTES, LEARNED_MODELS
from holdfast.stores import open_store
from holdfast.stores.base import Store
from tests.contract.resources import HeldResources
from tests.service import s3

PLACES = ("disk", "database", "s3")
LARGE = bytes(range(251)) * ((12 << 20) // 251)
"""More than any place keeps in one part, and no whole number of parts."""
HOUR = 3_600_000


def now() -> int:
    """Milliseconds, by the clock that files and buckets go by."""
    return time.time_ns() // 1_000_000


async def chunked(data: bytes, size: int = 100_000) -> AsyncGenerator[bytes, None]:
    """A content as it may arrive."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(blobs: Blobs, key: str, start: int, stop: int) -> bytes:
    """What stands there."""
    async with aclosing(blobs.get(key, start, stop)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def old(blobs: Blobs, before: int) -> list[str]:
    """What was written before."""
    return sorted([key async for key in blobs.list_old(before)])


@pytest.fixture(scope="module")
def bucket_url() -> Iterator[str]:
    """An S3."""
    with s3.serving() as url:
        yield url


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """Where the database keeps contents."""
    opened = await open_store("sqlite://:memory:", tenant="acme")
    yield opened
    await opened.close()


@pytest.fixture(params=PLACES)
def places(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Sequence[Blobs]:
    """An empty place of one tenant, and that of another one beside it."""
    if request.param == "disk":
        return [
            DiskBlobs(tmp_path / "deep" / "artifacts", TenantFolder(handle))
            for handle in (store, store.for_tenant("other"))
        ]
    if request.param == "database":
        return [DatabaseBlobs(handle, now) for handle in (store, store.for_tenant("other"))]
    url = request.getfixturevalue("bucket_url")
    prefix = f"p/{tmp_path.name}"
    first = S3Blobs(TenantFolder(store), s3.BUCKET, endpoint=url, prefix=prefix, **s3.KEYS)
    return [first, first.for_store(store.for_tenant("other"))]


@pytest.fixture
def blobs(places: Sequence[Blobs]) -> Blobs:
    """An empty place."""
    return places[0]


# -- every place ---------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 70_000, LARGE[:BLOB_PART_BYTES], LARGE[: CHUNK + 1], LARGE])
async def test_a_content_comes_back(blobs: Blobs, data: bytes) -> None:
    """However large."""
    await blobs.put("k1", chunked(data))
    if data:
        assert await read(blobs, "k1", 0, len(data)) == data


async def test_a_range_comes_back(blobs: Blobs) -> None:
    """Over the edges of parts too."""
    await blobs.put("k1", chunked(LARGE))
    edge = BLOB_PART_BYTES
    spans = ((0, 1), (edge - 1, edge + 1), (edge, 2 * edge), (5, 3 * edge), (len(LARGE) - 1, len(LARGE)))
    for start, stop in spans:
        assert await read(blobs, "k1", start, stop) == LARGE[start:stop]


async def test_what_is_not_there_is_corrupt(blobs: Blobs) -> None:
    """Somebody's name leads there: it ought to be."""
    with pytest.raises(StoreCorrupt, match="missing"):
        await read(blobs, "k1", 0, 5)
    await blobs.put("k2", chunked(b"there"))
    with pytest.raises(StoreCorrupt, match="missing"):
        await read(blobs, "k1", 0, 5)


async def test_contents_are_deleted(blobs: Blobs) -> None:
    """Those that are not there, and none at all, are fine."""
    await blobs.delete(["k1"])
    for key in ("k1", "k2", "k3"):
        await blobs.put(key, chunked(b"there"))
    await blobs.delete(["k1", "k3", "k9"])
    await blobs.delete([])
    assert await old(blobs, now() + HOUR) == ["k2"]
    with pytest.raises(StoreCorrupt):
        await read(blobs, "k1", 0, 5)


async def test_tenants_do_not_meet(places: Sequence[Blobs]) -> None:
    """The same key is another content."""
    mine, other = places
    await mine.put("k1", chunked(b"mine"))
    with pytest.raises(StoreCorrupt):
        await read(other, "k1", 0, 4)
    await other.put("k1", chunked(b"that"))
    await other.put("k2", chunked(b"that"))
    await other.delete(["k1"])
    assert await read(mine, "k1", 0, 4) == b"mine"
    assert await old(mine, now() + HOUR) == ["k1"]
    assert await old(other, now() + HOUR) == ["k2"]


async def test_old_ones_are_found(blobs: Blobs) -> None:
    """By when they were written last."""
    assert await old(blobs, now() + HOUR) == []
    for key in ("k1", "k2"):
        await blobs.put(key, chunked(b""))
    assert await old(blobs, now() + HOUR) == ["k1", "k2"]
    assert await old(blobs, now() - HOUR) == []


class Broken(Exception):
    """What a caller's own chunks may raise."""


@pytest.mark.parametrize("after", [0, 5, 90])
async def test_a_content_that_breaks_off_is_not_kept(blobs: Blobs, after: int) -> None:
    """Its error is its caller's own, and nothing of it stays."""

    async def breaking() -> AsyncGenerator[bytes, None]:
        for at in range(after):
            yield LARGE[at * 100_000 : (at + 1) * 100_000]
        raise Broken("mine")

    before = HeldResources()
    with pytest.raises(Broken, match="mine"):
        await blobs.put("k1", breaking())
    assert await old(blobs, now() + HOUR) == []
    assert [one for one in before.more(patience=0.5) if "part" in one or "artifacts" in one] == []
    await blobs.put("k1", chunked(b"whole"))
    assert await read(blobs, "k1", 0, 5) == b"whole"


@pytest.mark.parametrize("after", [0, 1, 40])
async def test_a_content_that_is_given_up_is_not_kept(blobs: Blobs, after: int) -> None:
    """However far it was."""
    reached = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        for at in range(after):
            yield LARGE[at * 100_000 : (at + 1) * 100_000]
        reached.set()
        await asyncio.Event().wait()
        yield b""

    task = asyncio.create_task(blobs.put("k1", endless()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await old(blobs, now() + HOUR) == []


async def test_reading_may_stop(blobs: Blobs) -> None:
    """What was opened for it is given back."""
    await blobs.put("k1", chunked(LARGE))
    before = HeldResources()
    async with aclosing(blobs.get("k1", 0, len(LARGE))) as chunks:
        async for chunk in chunks:
            assert LARGE.startswith(chunk)
            break
    assert [one for one in before.more(patience=0.5) if "k1" in one] == []


async def test_many_at_once(blobs: Blobs) -> None:
    """None gets another's bytes."""
    data = {f"k{at}": bytes([at]) * (200_000 + at) for at in range(20)}
    await asyncio.gather(*(blobs.put(key, chunked(content)) for key, content in data.items()))
    found = await asyncio.gather(*(read(blobs, key, 0, len(content)) for key, content in data.items()))
    assert found == list(data.values())


@given(st.lists(st.binary(max_size=40)), st.integers(1, 50))
def test_gathered_chunks_are_the_same_bytes(chunks: list[bytes], size: int) -> None:
    """Each of the size, but for the last; there is always one."""

    async def given_() -> AsyncGenerator[bytes, None]:
        for chunk in chunks:
            yield chunk

    async def taken() -> list[bytes]:
        return [chunk async for chunk in rechunk(given_(), size)]

    found = asyncio.run(taken())
    assert b"".join(found) == b"".join(chunks)
    assert all(len(chunk) == size for chunk in found[:-1])
    assert found
    assert len(found[-1]) <= size


def test_keys_and_folders_tell_nothing() -> None:
    """No two are alike, and none is a path."""
    keys = {make_key() for _ in range(100)}
    assert len(keys) == 100
    tenants = ("a", "A", "../a", "a/b", "", "ä", "a\u0308")
    folders = {make_folder_name(tenant, identity) for tenant in tenants for identity in (b"1" * 16, b"2" * 16)}
    assert len(folders) == 14
    assert all(text.isalnum() and len(text) == 32 for text in keys | folders)


# -- several databases -----------------------------------------------------------


@pytest.mark.parametrize("backend", ["disk", "s3"])
async def test_two_databases_share_a_place(tmp_path: Path, bucket_url: str, backend: str) -> None:
    """One folder, or one bucket without a prefix: what one of them has no name for may have one in the other."""
    key = f"k{tmp_path.name}".replace("_", "")[:60]
    settings = ArtifactSettings(path=str(tmp_path / "artifacts"))
    if backend == "s3":
        settings = msgspec.structs.replace(ArtifactSettings(bucket=s3.BUCKET, endpoint=bucket_url), **s3.KEYS)
    first, second = [await open_store("sqlite://:memory:", tenant="acme") for _ in range(2)]
    try:
        mine, theirs = (open_blobs(settings, None, store, now) for store in (first, second))
        assert await old(theirs, now() + HOUR) == []
        await mine.put(key, chunked(b"mine"))
        assert await old(theirs, now() + HOUR) == []
        await theirs.put("other", chunked(b"theirs"))
        assert await old(theirs, now() + HOUR) == ["other"]
        await theirs.delete([key])
        with pytest.raises(StoreCorrupt, match="missing"):
            await read(theirs, key, 0, 4)
        again = open_blobs(settings, None, first, now)
        assert await read(again, key, 0, 4) == b"mine"
        assert await old(again, now() + HOUR) == [key]
    finally:
        await first.close()
        await second.close()


async def test_of_several_that_keep_the_first_content_all_find_it(store: Store) -> None:
    """Each process makes a name of its own for the place; one of them stands."""
    made = await asyncio.gather(*(TenantFolder(store).ensure_name() for _ in range(8)))
    assert len(set(made)) == 1
    assert await TenantFolder(store).get_name() == made[0]
    assert await TenantFolder(store.for_tenant("other")).get_name() is None


async def test_where_contents_lie_is_never_forgotten(store: Store) -> None:
    """It stands where what is learned of models does, of which the newest are kept."""
    folder = await TenantFolder(store).ensure_name()
    for at in range(LEARNED_MODELS + 1):
        await store.learn(f"m{at}", b"x", timestamp=now(), expect=None)
    assert await TenantFolder(store).get_name() == folder


# -- disk ----------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for contents."""
    return tmp_path / "artifacts"


@pytest.fixture
def disk(root: Path, store: Store) -> DiskBlobs:
    """Contents in it."""
    return DiskBlobs(root, TenantFolder(store))


@pytest.fixture
async def folder(root: Path, store: Store) -> Path:
    """Where in it they are."""
    return root / await TenantFolder(store).ensure_name()


def names(folder: Path) -> list[str]:
    """The files there."""
    return sorted(path.name for path in folder.iterdir())


def linked(folder: Path, outside: Path) -> None:
    """A link in the place of a folder."""
    folder.rename(outside.with_name("moved"))
    folder.symlink_to(outside)


async def test_files_are_their_owners_alone(disk: DiskBlobs, root: Path, folder: Path) -> None:
    """Whatever the process lets others do with its files."""
    before = os.umask(0)
    try:
        await disk.put("k1", chunked(b"x"))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (root, folder, folder / "k1")]
    assert modes == [0o700, 0o700, 0o600]


async def test_nothing_is_made_before_something_is_kept(disk: DiskBlobs, root: Path) -> None:
    """A session without artifacts leaves no empty folder."""
    await disk.delete(["k1"])
    assert await old(disk, now() + HOUR) == []
    with pytest.raises(StoreCorrupt):
        await read(disk, "k1", 0, 1)
    assert list(root.parent.iterdir()) == []


async def test_links_are_not_followed(disk: DiskBlobs, folder: Path, tmp_path: Path) -> None:
    """Not in the place of a content, of one that is being written, or of the tenant's folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    await disk.put("k0", chunked(b"x"))
    (folder / "k1").symlink_to(outside / "secret")
    with pytest.raises(StoreCorrupt, match="link"):
        await read(disk, "k1", 0, 6)
    (folder / "k2.part").symlink_to(outside / "made")
    with pytest.raises(StoreUnavailable):
        await disk.put("k2", chunked(b"x"))
    await disk.put("k1", chunked(b"new"))
    assert (outside / "secret").read_text() == "secret"
    assert await read(disk, "k1", 0, 3) == b"new"
    linked(folder, outside)
    for attempt in (disk.put("k3", chunked(b"x")), read(disk, "secret", 0, 6), disk.delete(["secret"])):
        with pytest.raises(StoreUnavailable):
            await attempt
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


async def test_what_is_no_file_is_no_content(disk: DiskBlobs, folder: Path) -> None:
    """A pipe would hold up whoever reads it, for ever."""
    await disk.put("k0", chunked(b"x"))
    os.mkfifo(folder / "k1")
    (folder / "k2").mkdir()
    for key in ("k1", "k2"):
        with pytest.raises((StoreCorrupt, StoreUnavailable)):
            await read(disk, key, 0, 1)


async def test_what_a_process_left_that_died_is_old_too(disk: DiskBlobs, folder: Path) -> None:
    """And is deleted; what is not ours in the folder is left alone."""
    await disk.put("k1", chunked(b"x"))
    (folder / "k2.part").write_bytes(b"half")
    (folder / "README.md").write_bytes(b"mine")
    os.utime(folder / "k2.part", (5, 5))
    assert await old(disk, 6000) == ["k2"]
    await disk.delete(["k2"])
    assert names(folder) == ["README.md", "k1"]


async def test_a_full_disk_is_told(disk: DiskBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing stays of what was begun, whether it was full at a write or at the last sync."""
    for name in ("write", "fsync"):

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            await disk.put("k0", chunked(b"x"))
            patch.setattr(os, name, full)
            with pytest.raises(StoreUnavailable, match="full"):
                await disk.put("k1", chunked(b"x"))
        assert names(folder) == ["k0"]


async def test_a_content_is_in_its_place_when_all_of_it_is_synced(
    disk: DiskBlobs, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, then name, then folder: a power cut leaves all of it or nothing."""
    await disk.put("k0", chunked(b"x"))
    did: list[str] = []
    reals = {"write": os.write, "fsync": os.fsync, "rename": os.rename}
    for name, real in reals.items():

        def noted(*args: Any, real: Any = real, name: str = name, **kwargs: Any) -> Any:
            kind = "folder" if name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode) else name
            did.append(kind)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, noted)
    await disk.put("k1", chunked(b"x" * (CHUNK + 1)))
    assert did == ["write", "write", "fsync", "rename", "folder"]


async def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path, store: Store) -> None:
    """A file stands there."""
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(StoreUnavailable, match="folder"):
        await DiskBlobs(tmp_path / "artifacts", TenantFolder(store)).put("k1", chunked(b"x"))


# -- s3 ------------------------------------------------------------------------


async def test_an_upload_that_does_not_end_leaves_no_parts(bucket_url: str, store: Store) -> None:
    """They would be paid for, and nobody would see them. Whether its source fails, or it is given up."""
    place = S3Blobs(TenantFolder(store), s3.BUCKET, endpoint=bucket_url, prefix="parts", **s3.KEYS)
    reached = asyncio.Event()

    async def breaking(*, fails: bool) -> AsyncGenerator[bytes, None]:
        async for chunk in chunked(LARGE):
            yield chunk
        if fails:
            raise Broken("late")
        reached.set()
        await asyncio.Event().wait()

    with pytest.raises(Broken):
        await place.put("k1", breaking(fails=True))
    task = asyncio.create_task(place.put("k1", breaking(fails=False)))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert s3.unfinished(bucket_url) == []


async def test_what_cannot_be_reached_is_told_without_keys(bucket_url: str, store: Store) -> None:
    """A bucket that is not there; an address where nobody is."""
    for bucket, url in (("nowhere", bucket_url), (s3.BUCKET, "http://127.0.0.1:9")):
        place = S3Blobs(TenantFolder(store), bucket, endpoint=url, **s3.KEYS)
        with pytest.raises(StoreUnavailable) as caught:
            await place.put("k1", chunked(b"x"))
        assert "test-secret" not in str(caught.value)
        with pytest.raises(HoldfastError):
            await read(place, "k1", 0, 1)


# -- which one -----------------------------------------------------------------


async def test_where_contents_lie_unless_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a file, else where all servers of a database are; what is said decides."""
    monkeypatch.chdir(tmp_path)

    def kind(url: str | None, **said: Any) -> str:
        return type(open_blobs(ArtifactSettings(**said), url, store, now)).__name__

    assert kind("sqlite:///chat.db") == "DiskBlobs"
    assert kind("sqlite://:memory:") == "DatabaseBlobs"
    assert kind("postgresql://h/d") == kind("mysql://h/d") == kind("redis://h") == kind(None) == "DatabaseBlobs"
    assert kind("postgresql://h/d", path="x") == kind("postgresql://h/d", backend="disk", path="x") == "DiskBlobs"
    assert kind("sqlite:///chat.db", backend="database") == "DatabaseBlobs"
    assert kind("sqlite:///chat.db", bucket="b", region="us-east-1") == "S3Blobs"
    for wrong in ({"backend": "disk"}, {"backend": "s3"}):
        with pytest.raises(InvalidRequest):
            kind("postgresql://h/d", **wrong)
    blobs = open_blobs(ArtifactSettings(), "sqlite:///chat.db", store, now)
    await blobs.put("k1", chunked(b"x"))
    assert (tmp_path / "chat.db.artifacts" / await TenantFolder(store).ensure_name() / "k1").read_bytes() == b"x"
