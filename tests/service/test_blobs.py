"""Storage of artifact contents: one suite for every backend, then tests of single backends."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pytest

from holdfast.artifacts.blobs import (
    CHUNK,
    Blobs,
    DatabaseBlobs,
    DiskBlobs,
    TenantFolder,
)
from holdfast.artifacts.s3 import S3Blobs
from holdfast.artifacts.settings import ArtifactSettings, open_blobs
from holdfast.errors import HoldfastError, InvalidRequest, StoreCorrupt, StoreUnavailable
from holdfast.limits import BLOB_PART_BYTES
from holdfast.stores import open_store
from holdfast.stores.base import Store
from tests.behaviour.kit import bucket as s3
from tests.contract.resources import HeldResources

PLACES = ("disk", "database", "s3")
LARGE = bytes(range(251)) * ((12 << 20) // 251)
"""More than one part of any backend, and not a whole number of parts."""
HOUR = 3_600_000


def now() -> int:
    """Return milliseconds since the epoch, by the clock that file systems and buckets use."""
    return time.time_ns() // 1_000_000


async def stream_chunks(data: bytes, size: int = 100_000) -> AsyncGenerator[bytes, None]:
    """Yield a content in chunks."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(blobs: Blobs, key: str, start: int, stop: int) -> bytes:
    """Read a range of a content."""
    async with aclosing(blobs.get(key, start, stop)) as chunks:
        return b"".join([chunk async for chunk in chunks])


async def list_old_keys(blobs: Blobs, before: int) -> list[str]:
    """Return the keys that were written before that time."""
    return sorted([key async for key in blobs.list_old(before)])


@pytest.fixture(scope="module")
def bucket_url() -> Iterator[str]:
    """Start an S3 server."""
    with s3.serving() as url:
        yield url


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """Open the store in which the database backend keeps contents."""
    opened = await open_store("sqlite://:memory:", tenant="acme")
    yield opened
    await opened.close()


@pytest.fixture(params=PLACES)
def tenant_blobs(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Sequence[Blobs]:
    """Empty storage of one tenant, and that of another tenant."""
    if request.param == "disk":
        return [
            DiskBlobs(tmp_path / "deep" / "artifacts", TenantFolder(handle))
            for handle in (store, store.for_tenant("other"))
        ]
    if request.param == "database":
        return [DatabaseBlobs(handle, now) for handle in (store, store.for_tenant("other"))]
    url = request.getfixturevalue("bucket_url")
    first = S3Blobs(TenantFolder(store), f"{s3.BUCKET}/p/{tmp_path.name}", endpoint=url, **s3.KEYS)
    return [first, first.for_store(store.for_tenant("other"))]


@pytest.fixture
def blobs(tenant_blobs: Sequence[Blobs]) -> Blobs:
    """Empty storage."""
    return tenant_blobs[0]


# -- every backend -------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 70_000, LARGE[:BLOB_PART_BYTES], LARGE[: CHUNK + 1], LARGE])
async def test_content_can_be_read(blobs: Blobs, data: bytes) -> None:
    await blobs.put("k1", stream_chunks(data))
    if data:
        assert await read(blobs, "k1", 0, len(data)) == data


async def test_missing_content_raises_store_corrupt(blobs: Blobs) -> None:
    """Only named contents are read, so it should exist."""
    with pytest.raises(StoreCorrupt, match="missing"):
        await read(blobs, "k1", 0, 5)
    await blobs.put("k2", stream_chunks(b"there"))
    with pytest.raises(StoreCorrupt, match="missing"):
        await read(blobs, "k1", 0, 5)


async def test_contents_are_deleted(blobs: Blobs) -> None:
    """Deleting missing contents, or none, is allowed."""
    await blobs.delete(["k1"])
    for key in ("k1", "k2", "k3"):
        await blobs.put(key, stream_chunks(b"there"))
    await blobs.delete(["k1", "k3", "k9"])
    await blobs.delete([])
    assert await list_old_keys(blobs, now() + HOUR) == ["k2"]
    assert await list_old_keys(blobs, now() - HOUR) == []
    with pytest.raises(StoreCorrupt):
        await read(blobs, "k1", 0, 5)


async def test_tenants_do_not_share_contents(tenant_blobs: Sequence[Blobs]) -> None:
    """The same key is another content."""
    mine, other = tenant_blobs
    await mine.put("k1", stream_chunks(b"mine"))
    with pytest.raises(StoreCorrupt):
        await read(other, "k1", 0, 4)
    await other.put("k1", stream_chunks(b"that"))
    await other.put("k2", stream_chunks(b"that"))
    await other.delete(["k1"])
    assert await read(mine, "k1", 0, 4) == b"mine"
    assert await list_old_keys(mine, now() + HOUR) == ["k1"]
    assert await list_old_keys(other, now() + HOUR) == ["k2"]


async def test_reading_may_be_aborted(blobs: Blobs) -> None:
    """Its resources are released."""
    await blobs.put("k1", stream_chunks(LARGE))
    before = HeldResources()
    async with aclosing(blobs.get("k1", 0, len(LARGE))) as chunks:
        async for chunk in chunks:
            assert LARGE.startswith(chunk)
            break
    assert [one for one in before.more(patience=0.5) if "k1" in one] == []


# -- several databases -----------------------------------------------------------


@pytest.mark.parametrize("backend", ["disk", "s3"])
async def test_two_databases_can_share_a_folder_or_bucket(tmp_path: Path, bucket_url: str, backend: str) -> None:
    """A content that is unnamed in one database may be named in the other."""
    key = f"k{tmp_path.name}".replace("_", "")[:60]
    settings = ArtifactSettings(path=str(tmp_path / "artifacts"))
    if backend == "s3":
        settings = msgspec.structs.replace(ArtifactSettings(bucket=s3.BUCKET, endpoint=bucket_url), **s3.KEYS)
    first, second = [await open_store("sqlite://:memory:", tenant="acme") for _ in range(2)]
    try:
        mine, theirs = (open_blobs(settings, "sqlite://:memory:", store, now) for store in (first, second))
        assert await list_old_keys(theirs, now() + HOUR) == []
        await mine.put(key, stream_chunks(b"mine"))
        assert await list_old_keys(theirs, now() + HOUR) == []
        await theirs.put("other", stream_chunks(b"theirs"))
        assert await list_old_keys(theirs, now() + HOUR) == ["other"]
        await theirs.delete([key])
        with pytest.raises(StoreCorrupt, match="missing"):
            await read(theirs, key, 0, 4)
        again = open_blobs(settings, "sqlite://:memory:", first, now)
        assert await read(again, key, 0, 4) == b"mine"
        assert await list_old_keys(again, now() + HOUR) == [key]
    finally:
        await first.close()
        await second.close()


# -- disk ----------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for contents."""
    return tmp_path / "artifacts"


@pytest.fixture
def disk(root: Path, store: Store) -> DiskBlobs:
    """Contents in that folder."""
    return DiskBlobs(root, TenantFolder(store))


@pytest.fixture
async def folder(root: Path, store: Store) -> Path:
    """The tenant's folder."""
    return root / await TenantFolder(store).ensure_name()


def list_names(folder: Path) -> list[str]:
    """The files there."""
    return sorted(path.name for path in folder.iterdir())


def replace_by_link(folder: Path, outside: Path) -> None:
    """Replace a folder by a symbolic link."""
    folder.rename(outside.with_name("moved"))
    folder.symlink_to(outside)


async def test_files_are_private_to_their_owner(disk: DiskBlobs, root: Path, folder: Path) -> None:
    """Whatever the umask of the process."""
    before = os.umask(0)
    try:
        await disk.put("k1", stream_chunks(b"x"))
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (root, folder, folder / "k1")]
    assert modes == [0o700, 0o700, 0o600]


async def test_no_folder_is_created_before_the_first_content(disk: DiskBlobs, root: Path) -> None:
    await disk.delete(["k1"])
    assert await list_old_keys(disk, now() + HOUR) == []
    with pytest.raises(StoreCorrupt):
        await read(disk, "k1", 0, 1)
    assert list(root.parent.iterdir()) == []


async def test_symbolic_links_are_not_followed(disk: DiskBlobs, folder: Path, tmp_path: Path) -> None:
    """Not for a content, a partial file, or the tenant's folder."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    await disk.put("k0", stream_chunks(b"x"))
    (folder / "k1").symlink_to(outside / "secret")
    with pytest.raises(StoreCorrupt, match="link"):
        await read(disk, "k1", 0, 6)
    (folder / "k2.part").symlink_to(outside / "made")
    with pytest.raises(StoreUnavailable):
        await disk.put("k2", stream_chunks(b"x"))
    await disk.put("k1", stream_chunks(b"new"))
    assert (outside / "secret").read_text() == "secret"
    assert await read(disk, "k1", 0, 3) == b"new"
    replace_by_link(folder, outside)
    for attempt in (disk.put("k3", stream_chunks(b"x")), read(disk, "secret", 0, 6), disk.delete(["secret"])):
        with pytest.raises(StoreUnavailable):
            await attempt
    assert sorted(path.name for path in outside.iterdir()) == ["secret"]


async def test_special_files_are_not_read(disk: DiskBlobs, folder: Path) -> None:
    """Reading a pipe would block forever."""
    await disk.put("k0", stream_chunks(b"x"))
    os.mkfifo(folder / "k1")
    (folder / "k2").mkdir()
    for key in ("k1", "k2"):
        with pytest.raises((StoreCorrupt, StoreUnavailable)):
            await read(disk, key, 0, 1)


async def test_partial_files_of_dead_processes_are_listed_as_old(disk: DiskBlobs, folder: Path) -> None:
    """Other files in the folder are left alone."""
    await disk.put("k1", stream_chunks(b"x"))
    (folder / "k2.part").write_bytes(b"half")
    (folder / "README.md").write_bytes(b"mine")
    os.utime(folder / "k2.part", (5, 5))
    assert await list_old_keys(disk, 6000) == ["k2"]
    await disk.delete(["k2"])
    assert list_names(folder) == ["README.md", "k1"]


async def test_full_disk_raises_store_unavailable(
    disk: DiskBlobs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No partial file is left, whether the write or the last sync fails."""
    for name in ("write", "fsync"):

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            await disk.put("k0", stream_chunks(b"x"))
            patch.setattr(os, name, full)
            with pytest.raises(StoreUnavailable, match="full"):
                await disk.put("k1", stream_chunks(b"x"))
        assert list_names(folder) == ["k0"]


async def test_unusable_folder_raises_store_unavailable(tmp_path: Path, store: Store) -> None:
    (tmp_path / "artifacts").write_text("a file")
    with pytest.raises(StoreUnavailable, match="folder"):
        await DiskBlobs(tmp_path / "artifacts", TenantFolder(store)).put("k1", stream_chunks(b"x"))


# -- s3 ------------------------------------------------------------------------


async def test_prefix_of_a_bucket_precedes_every_key(bucket_url: str, store: Store) -> None:
    """Storage with another prefix, or without one, does not list these contents."""
    below = S3Blobs(TenantFolder(store), f"{s3.BUCKET}/team/files/", endpoint=bucket_url, **s3.KEYS)
    other, whole = (
        S3Blobs(TenantFolder(store), bucket, endpoint=bucket_url, **s3.KEYS)
        for bucket in (f"{s3.BUCKET}/team", s3.BUCKET)
    )
    await below.put("k1", stream_chunks(b"x"))
    late = now() + 1_000_000_000_000
    assert [key async for key in below.list_old(late)] == ["k1"]
    for blobs in (other, whole):
        assert [key async for key in blobs.list_old(late)] == []
        with pytest.raises(HoldfastError):
            await read(blobs, "k1", 0, 1)
    found = [path async for some in obstore.list(whole._store) for path in (one["path"] for one in some)]  # noqa: SLF001
    assert [path.rpartition("/")[2] for path in found if path.startswith("team/files/")] == ["k1"]
    await below.delete(["k1"])
    assert [key async for key in below.list_old(late)] == []


# -- defaults ------------------------------------------------------------------


async def test_default_backend_depends_on_the_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Next to a SQLite file, otherwise in the database; an explicit setting wins."""
    monkeypatch.chdir(tmp_path)

    def kind(url: str, **said: Any) -> str:
        return type(open_blobs(ArtifactSettings(**said), url, store, now)).__name__

    assert kind("sqlite:///chat.db") == "DiskBlobs"
    assert kind("sqlite://:memory:") == "DatabaseBlobs"
    assert kind("postgresql://h/d") == kind("mysql://h/d") == "DatabaseBlobs"
    assert kind("postgresql://h/d", path="x") == kind("postgresql://h/d", backend="disk", path="x") == "DiskBlobs"
    assert kind("sqlite:///chat.db", backend="database") == "DatabaseBlobs"
    assert kind("sqlite:///chat.db", bucket="b", region="us-east-1") == "S3Blobs"
    for wrong in ({"backend": "disk"}, {"backend": "s3"}):
        with pytest.raises(InvalidRequest):
            kind("postgresql://h/d", **wrong)
    blobs = open_blobs(ArtifactSettings(), "sqlite:///chat.db", store, now)
    await blobs.put("k1", stream_chunks(b"x"))
    assert (tmp_path / "chat.db.artifacts" / await TenantFolder(store).ensure_name() / "k1").read_bytes() == b"x"
