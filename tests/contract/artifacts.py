"""The contract, artifacts: names and versions in their scopes, and contents that the database keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from msgspec.structs import asdict

from holdfast import limits
from holdfast.domain.artifact import NOTHING, Artifact, NewArtifact, Scope, UserRef
from holdfast.domain.session import SessionRef
from holdfast.errors import (
    ArtifactNotFound,
    Conflict,
    HoldfastError,
    InvalidRequest,
    StaleArtifact,
    TooLarge,
)
from holdfast.stores.base import Store

from .kit import REF, session
from .once import RULE, once
from .plugin import OpenStore

OTHER = SessionRef("ann", "s2")
USER = UserRef("ann")


def artifact(name: str = "a.txt", blob: str = "b1", content: bytes = b"hello", **fields: Any) -> NewArtifact:
    """A version about to be named."""
    given: dict[str, Any] = {"mime_type": "text/plain", "created_at": 5}
    sha256 = hashlib.sha256(content).digest()
    return NewArtifact(name=name, blob=blob, size=len(content), sha256=sha256, **{**given, **fields})


async def _save(store: Store, *blobs: str, name: str = "a.txt", scope: Scope = REF) -> list[Artifact]:
    return [await store.add_artifact(scope, artifact(name, blob)) for blob in blobs]


async def _list_names(store: Store, scope: Scope = REF, **page: Any) -> list[tuple[str, int]]:
    return [(one.name, one.version) for one in (await store.artifacts(scope, **page)).artifacts]


def _numbers(artifacts: Sequence[Artifact]) -> list[int]:
    return [one.version for one in artifacts]


# -- naming --------------------------------------------------------------------


async def test_an_artifact_is_read_back_unchanged(store: Store) -> None:
    """With its version, and everything that was said of it."""
    await store.create(session())
    new = artifact("Übersicht 1.txt", author="ann", metadata={"k": ["Ü\0", 1.5, None]}, mime_type="text/html")
    added = await store.add_artifact(REF, new)
    assert asdict(added) == {**asdict(new), "version": 0}
    assert await store.artifact(REF, new.name) == added
    assert await store.artifact(REF, new.name, 0) == added
    assert (await store.artifacts(REF)).artifacts == (added,)
    assert (await store.artifact_versions(REF, new.name)).artifacts == (added,)


@once(RULE)
async def test_naming_an_artifact_changes_nothing_else_of_the_session(store: Store) -> None:
    """A tool may save an artifact in the middle of a turn, which expects a version of its session."""
    before = await store.create(session())
    await _save(store, "b1")
    await store.drop_artifacts(REF, "a.txt")
    assert await store.get(REF) == before


@once(RULE)
async def test_a_stale_expected_version_names_nothing(store: Store) -> None:
    """And `NOTHING` takes a name that is free."""
    await store.create(session())
    with pytest.raises(StaleArtifact):
        await store.add_artifact(REF, artifact(blob="b1"), expect=0)
    assert (await store.add_artifact(REF, artifact(blob="b2"), expect=NOTHING)).version == 0
    with pytest.raises(StaleArtifact) as refused:
        await store.add_artifact(REF, artifact(blob="b3", content=b"other"), expect=NOTHING)
    assert refused.value.newest == 0
    assert (await store.add_artifact(REF, artifact(blob="b4", content=b"new"), expect=0)).version == 1
    with pytest.raises(StaleArtifact):
        await store.add_artifact(REF, artifact(blob="b5", content=b"late"), expect=0)
    assert await store.blobs_in_use(["b1", "b2", "b3", "b4", "b5"]) == {"b2", "b4"}


@once(RULE)
async def test_a_retry_with_an_expected_version_returns_the_first_result(store: Store) -> None:
    """As long as its content is what stands there, and nothing came behind it."""
    await store.create(session())
    await _save(store, "b1")
    first = await store.add_artifact(REF, artifact(blob="b2", content=b"two"), expect=0)
    assert await store.add_artifact(REF, artifact(blob="b3", content=b"two"), expect=0) == first
    await store.add_artifact(REF, artifact(blob="b4", content=b"two"), expect=1)
    with pytest.raises(StaleArtifact):
        await store.add_artifact(REF, artifact(blob="b5", content=b"two"), expect=0)


# -- scopes --------------------------------------------------------------------


async def test_scopes_do_not_see_each_other(store: Store) -> None:
    """Sessions, a user, another user, another tenant: the same name in each is another artifact."""
    bob = UserRef("bob")
    await store.create(session())
    await store.create(session(OTHER))
    await _save(store, "b1")
    await _save(store, "b2", scope=OTHER)
    await _save(store, "b3", name="user:a.txt", scope=USER)
    await _save(store, "b4", name="user:a.txt", scope=bob)
    foreign = store.for_tenant("other")
    await foreign.create(session())
    await foreign.add_artifact(REF, artifact(blob="b1"))
    for handle, scope, name, blob in (
        (store, REF, "a.txt", "b1"),
        (store, OTHER, "a.txt", "b2"),
        (store, USER, "user:a.txt", "b3"),
        (store, bob, "user:a.txt", "b4"),
        (foreign, REF, "a.txt", "b1"),
    ):
        assert [one.blob for one in (await handle.artifacts(scope)).artifacts] == [blob]
        assert (await handle.artifact(scope, name)).blob == blob
    assert (await foreign.artifacts(USER)).artifacts == ()
    await foreign.drop_artifacts(REF)
    assert await store.blobs_in_use(["b1"]) == {"b1"}
    assert await foreign.blobs_in_use(["b1", "b2", "b3"]) == frozenset()


async def test_user_ids_are_compared_by_bytes(store: Store) -> None:
    """Case, trailing spaces and NUL make another user."""
    users = ["ann", "Ann", "ann ", "ann\0", "änn", "a\u0308nn"]
    for at, user in enumerate(users):
        await _save(store, f"b{at}", name="user:x", scope=UserRef(user))
    for at, user in enumerate(users):
        assert (await store.artifact(UserRef(user), "user:x")).blob == f"b{at}"


async def test_artifacts_are_deleted_with_their_session(store: Store) -> None:
    """When it is deleted, and when another one takes its place; those of the user stay."""
    for leave in (store.remove(REF), store.replace(session(), [])):
        await store.create(session())
        await _save(store, "b1", "b2")
        await _save(store, "b3", name="user:a.txt", scope=USER)
        await leave
        assert await store.blobs_in_use(["b1", "b2", "b3"]) == {"b3"}
        await store.remove(REF)
        await store.drop_artifacts(USER)
    await store.create(session())
    assert await _list_names(store) == []


# -- pages ---------------------------------------------------------------------


async def test_names_are_listed_in_pages(store: Store) -> None:
    """In order of names without case; behind one that is gone too."""
    await store.create(session())
    names = ["Delta", "alpha", "Bravo", "charlie", "écho"]
    for at, name in enumerate(names):
        await _save(store, f"b{at}", name=name)
    order = ["alpha", "Bravo", "charlie", "Delta", "écho"]
    assert [name for name, _ in await _list_names(store)] == order
    seen: list[str] = []
    page = await store.artifacts(REF, limit=2)
    while True:
        seen += [one.name for one in page.artifacts]
        if not page.has_more:
            break
        page = await store.artifacts(REF, limit=2, after=seen[-1])
    assert seen == order
    await store.drop_artifacts(REF, "Bravo")
    assert [name for name, _ in await _list_names(store, after="Bravo")] == order[2:]
    for limit in (0, limits.PAGE + 1):
        with pytest.raises(InvalidRequest):
            await store.artifacts(REF, limit=limit)


async def test_versions_are_listed_in_pages(store: Store) -> None:
    """Oldest first, behind a version."""
    await store.create(session())
    await _save(store, *(f"b{at}" for at in range(12)))
    page = await store.artifact_versions(REF, "a.txt", limit=5)
    assert (_numbers(page.artifacts), page.has_more) == ([0, 1, 2, 3, 4], True)
    page = await store.artifact_versions(REF, "a.txt", limit=7, after=4)
    assert (_numbers(page.artifacts), page.has_more) == ([5, 6, 7, 8, 9, 10, 11], False)
    with pytest.raises(ArtifactNotFound):
        await store.artifact_versions(REF, "b.txt")


# -- taking away ---------------------------------------------------------------


@once(RULE)
async def test_one_version_can_be_deleted(store: Store) -> None:
    """The newest of those that are left is the newest; a number is not given again."""
    await store.create(session())
    saved = await _save(store, "b1", "b2", "b3")
    assert await store.drop_artifacts(REF, "a.txt", 2) == (saved[2],)
    assert await store.artifact(REF, "a.txt") == saved[1]
    with pytest.raises(ArtifactNotFound):
        await store.artifact(REF, "a.txt", 2)
    assert _numbers(await _save(store, "b4")) == [3]
    assert await store.drop_artifacts(REF, "a.txt", 0) == (saved[0],)
    assert _numbers((await store.artifact_versions(REF, "a.txt")).artifacts) == [1, 3]
    with pytest.raises(ArtifactNotFound):
        await store.drop_artifacts(REF, "a.txt", 0)


@once(RULE)
async def test_deleting_the_last_version_deletes_the_name(store: Store) -> None:
    """Then it is as if it had never been: its versions begin anew."""
    await store.create(session())
    await _save(store, "b1", "b2")
    for version in (0, 1):
        await store.drop_artifacts(REF, "a.txt", version)
    assert await _list_names(store) == []
    assert _numbers(await _save(store, "b3")) == [0]


async def test_a_name_and_a_scope_can_be_deleted(store: Store) -> None:
    """With all versions; what was taken away is told."""
    await store.create(session())
    saved = [*(await _save(store, "b1", "b2")), *(await _save(store, "c1", "c2", name="c.txt"))]
    await _save(store, "u1", name="user:c.txt", scope=USER)
    assert await store.drop_artifacts(REF, "a.txt") == tuple(saved[:2])
    with pytest.raises(ArtifactNotFound):
        await store.drop_artifacts(REF, "a.txt")
    assert await store.drop_artifacts(REF) == tuple(saved[2:])
    assert await store.drop_artifacts(REF) == ()
    assert await _list_names(store, USER) == [("user:c.txt", 0)]
    assert await store.blobs_in_use(["b1", "b2", "c1", "c2", "u1"]) == {"u1"}


# -- room ----------------------------------------------------------------------


async def test_the_bytes_of_artifacts_in_a_scope_are_limited(store: Store) -> None:
    """Of all versions together; taking some away makes room."""
    await store.create(session())
    await store.add_artifact(REF, artifact(blob="b1", content=b"x" * 60), room=100)
    await store.add_artifact(REF, artifact("c", blob="b2", content=b"x" * 40), room=100)
    with pytest.raises(TooLarge, match="100"):
        await store.add_artifact(REF, artifact(blob="b3", content=b"x"), room=100)
    await store.drop_artifacts(REF, "a.txt", 0)
    await store.add_artifact(REF, artifact(blob="b3", content=b"x" * 60), room=100)
    await store.add_artifact(USER, artifact("user:a.txt", blob="b4", content=b"x" * 100), room=100)
    await store.add_artifact(REF, artifact(blob="b5", content=b"x" * 5), room=105)
    await store.drop_artifacts(REF, "a.txt", 0)
    with pytest.raises(TooLarge, match="45"):
        await store.add_artifact(REF, artifact(blob="b6", content=b"x" * 56), room=100)
    await store.add_artifact(REF, artifact(blob="b6", content=b"x" * 55), room=100)


# -- races ---------------------------------------------------------------------


@pytest.mark.parametrize("scope", [REF, USER])
async def test_simultaneous_saves_of_one_name_all_get_versions(
    store_opener: OpenStore, shared: bool, scope: Scope
) -> None:
    """In two openings: all succeed, each with a version of its own, gapless."""
    store = await store_opener()
    other = await store_opener() if shared else store
    await store.create(session())
    name = "user:a" if scope is USER else "a"
    numbers: list[int] = []

    async def save(handle: Store, at: int) -> None:
        numbers.append((await handle.add_artifact(scope, artifact(name, f"b{at}"))).version)

    async with anyio.create_task_group() as group:
        for at in range(40):
            group.start_soon(save, (store, other)[at % 2], at)
    assert sorted(numbers) == list(range(40))
    assert _numbers((await store.artifact_versions(scope, name)).artifacts) == list(range(40))


async def test_one_of_many_writers_with_the_same_expectation_wins(store: Store) -> None:
    """And the others are told."""
    await store.create(session())
    won: list[int] = []

    async def save(at: int) -> None:
        try:
            await store.add_artifact(REF, artifact(blob=f"b{at}", content=b"%d" % at), expect=NOTHING)
            won.append(at)
        except StaleArtifact:
            pass

    async with anyio.create_task_group() as group:
        for at in range(20):
            group.start_soon(save, at)
    assert len(won) == 1
    assert (await store.artifact(REF, "a.txt")).blob == f"b{won[0]}"


async def test_colliding_names_are_not_both_created(store: Store) -> None:
    """Whoever comes second is refused, in a session and among a user's."""
    await store.create(session())
    refused: list[HoldfastError] = []

    async def save(scope: Scope, name: str, blob: str) -> None:
        try:
            await _save(store, blob, name=name, scope=scope)
        except Conflict as exc:
            refused.append(exc)

    async with anyio.create_task_group() as group:
        for at, name in enumerate(("x", "X")):
            group.start_soon(save, REF, name, f"s{at}")
            group.start_soon(save, USER, f"user:{name}", f"u{at}")
    assert len(refused) == 2


# -- contents ------------------------------------------------------------------


async def test_contents_are_stored_in_parts(store: Store) -> None:
    """Each as it was, by its key; another tenant has none of them."""
    large = bytes(range(256)) * (limits.BLOB_PART_BYTES // 256)
    for part, data in enumerate((large, b"", b"\0'\\\"%s\n")):
        await store.put_blob("k1", part, data, timestamp=5)
    assert [await store.blob("k1", part) for part in range(4)] == [large, b"", b"\0'\\\"%s\n", None]
    assert await store.blob("k2", 0) is None
    assert await store.for_tenant("other").blob("k1", 0) is None
    await store.put_blob("k1", 1, b"again", timestamp=6)
    assert await store.blob("k1", 1) == b"again"
    with pytest.raises(TooLarge):
        await store.put_blob("k1", 3, large + b"x", timestamp=5)
    with pytest.raises(InvalidRequest):
        await store.put_blob("../k1", 0, b"", timestamp=5)


async def test_contents_are_deleted_completely(store: Store) -> None:
    """Those that are not there are fine; another tenant's stay."""
    other = store.for_tenant("other")
    for handle in (store, other):
        for blob in ("k1", "k2"):
            for part in range(3):
                await handle.put_blob(blob, part, b"data", timestamp=5)
    await store.delete_blobs(["k1", "k9"])
    await store.delete_blobs([])
    assert [await store.blob("k1", part) for part in range(3)] == [None] * 3
    assert await store.blob("k2", 2) == b"data"
    assert await other.blob("k1", 0) == b"data"


async def test_contents_are_found_by_time_of_last_write(store: Store) -> None:
    """One that is being written is as old as its newest part."""
    for blob, times in (("k3", [5]), ("k1", [5, 50]), ("k2", [9, 7]), ("k4", [10])):
        for part, timestamp in enumerate(times):
            await store.put_blob(blob, part, b"", timestamp=timestamp)
    assert await store.blobs(before=10) == ("k2", "k3")
    assert await store.blobs(before=100, limit=2) == ("k1", "k2")
    assert await store.blobs(before=100, after="k2") == ("k3", "k4")
    assert await store.for_tenant("other").blobs(before=100) == ()
    with pytest.raises(TooLarge):
        await store.blobs_in_use(["k"] * (limits.PAGE + 1))
    assert await store.blobs_in_use([]) == frozenset()
