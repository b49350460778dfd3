"""What a store tells its database of each operation: which writes come one after the other, which take something off the disk, and which reads are one statement."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import MemoryDelta
from holdfast.domain.record import TenantRef
from holdfast.domain.session import SessionRef
from holdfast.domain.state import Increment
from holdfast.recall.base import Document, Source, Space, Vectored
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.logic import index_vectors, index_writes
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.sessions import SessionPatch
from tests.contract.artifacts import artifact
from tests.contract.deletions import deletion
from tests.contract.expiry import ending
from tests.contract.index_kit import SOURCE, SPACE, batch, digest_of, document, vector
from tests.contract.keys import api_key
from tests.contract.kit import REF, compaction, session, user
from tests.contract.memory_kit import ANN, entry, memory, put
from tests.contract.records import drop as drop_record
from tests.contract.records import put as put_record
from tests.contract.sign_ins import sign_in

OTHER = SessionRef("ann", "s2")
OWN, NEW = ("acme", "ann", "s1", ""), ("acme", "ann", "s3", "")
USERS, TENANTS = ("acme", "ann"), ("acme", "")
INDEXED = ("index", "acme", SPACE)


class Overheard:
    """A database in memory, and what it was told of each operation; how many statements that had, and documents it took away."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.told: list[dict[str, Any]] = []

    async def read(self, steps: Callable[[], Any], **told: Any) -> Any:
        return await self._run(self._database.read, steps, told)

    async def write(self, steps: Callable[[], Any], **told: Any) -> Any:
        return await self._run(self._database.write, steps, told)

    async def _run(self, run: Callable[..., Awaitable[Any]], steps: Callable[[], Any], told: dict[str, Any]) -> Any:
        asked = taken = 0

        def count_calls() -> Any:
            nonlocal asked, taken
            made, rows = steps(), None
            try:
                while True:
                    query = made.send(rows)
                    asked += 1
                    taken += len(query.rows) if query.name == "index_posting_delete" else 0
                    rows = yield query
            except StopIteration as stop:
                return stop.value

        result = await run(count_calls, **told)
        self.told.append({**told, "asked": asked, "taken": taken})
        return result

    async def close(self) -> None:
        await self._database.close()


@pytest.fixture
async def store() -> AsyncIterator[Any]:
    """One that has something of everything."""
    store: Any = await open_store("sqlite://:memory:", tenant="acme")
    for ref in (REF, OTHER):
        await store.create(session(ref))
    said = Append(entries=[user("a"), user("b")], timestamp=2, compactions=[compaction(0, 0)])
    store.marks = [one.digest for one in (await store.append(REF, said)).entries]
    for scope, prefix in ((REF, ""), (UserRef("ann"), "user:")):
        for at in range(2):
            await store.add_artifact(scope, artifact(f"{prefix}a.txt", f"b{at}"))
    await store.put_blob("b1", 0, b"x", timestamp=1)
    await store.add_key(api_key(1))
    await store.add_sign_in(sign_in())
    await store.change_state("ann", {"k": 1}, timestamp=1)
    await store.change_state(None, {"k": 1}, timestamp=1)
    await put(store, memory())
    await store.change_records(UserRef("ann"), [put_record("k", expires_at=9)], timestamp=1)
    await store.end(ending(1, OTHER))
    store.database = Overheard(store.database)
    yield store
    await store.close()


Call = Callable[[Any], Awaitable[Any]]
WRITES: dict[str, tuple[Call, dict[str, Any]]] = {
    "create": (lambda store: store.create(session(SessionRef("ann", "s3"))), {"queue": NEW}),
    "create with a user's state": (
        lambda store: store.create(session(SessionRef("ann", "s3"), state={"user:a": 1})),
        {"queue": NEW, "later_queues": [USERS]},
    ),
    "update": (lambda store: store.update(REF, SessionPatch(agent="x"), timestamp=3), {"queue": OWN}),
    "update of a tenant's state": (
        lambda store: store.update(REF, SessionPatch(state={"app:a": 1}), timestamp=3),
        {"queue": OWN, "later_queues": [TENANTS]},
    ),
    "append": (
        lambda store: store.append(REF, Append(entries=[user("c")], timestamp=3)),
        {"queue": OWN, "light": True},
    ),
    "append that retires": (
        lambda store: store.append(REF, Append(entries=[user("c")], retire_from=1, timestamp=3)),
        {"queue": OWN},
    ),
    "append that compacts": (
        lambda store: store.append(REF, Append(compactions=[compaction(0, 1)], timestamp=3)),
        {"queue": OWN},
    ),
    "append to the session's own state": (
        lambda store: store.append(REF, Append(state_delta={"a": 1}, timestamp=3)),
        {"queue": OWN, "light": True},
    ),
    "append to all state": (
        lambda store: store.append(
            REF, Append(state_delta={"app:a": Increment(), "a": 1, "user:b": 1, "user:a": 1}, timestamp=3)
        ),
        {"queue": OWN, "later_queues": [USERS, TENANTS]},
    ),
    "replace": (lambda store: store.replace(session(), []), {"queue": OWN, "scrub": True}),
    "replace of nothing": (
        lambda store: store.replace(session(SessionRef("ann", "s3")), [], fresh=True),
        {"queue": NEW},
    ),
    "remove": (lambda store: store.remove(REF), {"queue": OWN, "scrub": True}),
    "want": (lambda store: store.want(REF, "h"), {"queue": OWN}),
    "annotate": (lambda store: store.annotate(REF, 0, pinned=True), {"queue": OWN}),
    "erase": (lambda store: store.erase(REF, 0), {"queue": OWN, "scrub": True}),
    "rate": (lambda store: store.rate(REF, {0: 1.0}), {"queue": OWN}),
    "drop_compaction": (lambda store: store.drop_compaction(REF, 1, timestamp=3), {"queue": OWN}),
    "touch": (lambda store: store.touch(REF, timestamp=3), {"queue": OWN}),
    "end": (lambda store: store.end(ending(2)), {"queue": OWN}),
    "record_ending": (lambda store: store.record_ending(ending(2)), {"queue": OWN}),
    "settle": (lambda store: store.settle("end_1", due_at=9), {}),
    "forget_ending": (lambda store: store.forget_ending("end_1"), {}),
    "change_state": (lambda store: store.change_state("ann", {"k": 2}, timestamp=1), {"queue": USERS}),
    "change_state of the tenant": (lambda store: store.change_state(None, {"k": 2}, timestamp=1), {"queue": TENANTS}),
    "drop_state": (lambda store: store.drop_state("ann"), {"queue": USERS, "scrub": True}),
    "drop_state of the tenant": (lambda store: store.drop_state(None), {"queue": TENANTS, "scrub": True}),
    "change_records": (lambda store: store.change_records(REF, [put_record("k")], timestamp=1), {"queue": OWN}),
    "change_records of a user": (
        lambda store: store.change_records(UserRef("ann"), [drop_record("k")], timestamp=1),
        {"queue": USERS, "scrub": True},
    ),
    "append with records": (
        lambda store: store.append(REF, Append(timestamp=3, records=[put_record("k")])),
        {"queue": OWN},
    ),
    "drop_records": (lambda store: store.drop_records(TenantRef()), {"queue": TENANTS, "scrub": True}),
    "add_key": (lambda store: store.add_key(api_key(2)), {}),
    "revoke_key": (lambda store: store.revoke_key("k1", timestamp=9), {}),
    "use_key": (lambda store: store.use_key("k1", timestamp=9), {}),
    "add_sign_in": (lambda store: store.add_sign_in(sign_in(2)), {}),
    "use_sign_in": (lambda store: store.use_sign_in(sign_in().hash, timestamp=9), {}),
    "remove_sign_in": (lambda store: store.remove_sign_in(sign_in().hash), {}),
    "add_deletion": (lambda store: store.add_deletion(deletion()), {}),
    "lease": (lambda store: store.lease("n", "h", now=1, until=2), {}),
    "release": (lambda store: store.release("n", "h"), {}),
    "learn": (lambda store: store.learn("m", b"x", timestamp=1, expect=None), {}),
    "add_artifact": (lambda store: store.add_artifact(REF, artifact("b.txt", "b9")), {"queue": OWN}),
    "add_artifact of a user": (
        lambda store: store.add_artifact(UserRef("ann"), artifact("user:b.txt", "b9")),
        {"queue": USERS},
    ),
    "drop_artifacts": (lambda store: store.drop_artifacts(REF), {"queue": OWN, "scrub": True}),
    "put_blob": (lambda store: store.put_blob("b2", 0, b"", timestamp=1), {}),
    "delete_blobs": (lambda store: store.delete_blobs(["b1"]), {"scrub": True}),
    "change_memories": (lambda store: put(store, memory()), {"queue": ("acme", ANN)}),
    "change_memories with an entry": (
        lambda store: store.change_memories(ANN, MemoryDelta(diary=(entry(1),)), timestamp=2),
        {"queue": ("acme", ANN)},
    ),
    "change_memories that forgets": (
        lambda store: store.change_memories(ANN, MemoryDelta(forget=(memory().id,)), timestamp=2),
        {"queue": ("acme", ANN), "scrub": True},
    ),
    "drop_memories": (lambda store: store.drop_memories(ANN), {"queue": ("acme", ANN), "scrub": True}),
}
"""Each write, and what is told of it; what is not, is nothing."""
NOTHING: dict[str, Any] = {"scrub": False, "queue": None, "later_queues": [], "light": False}
READS: dict[str, Call] = {
    "get": lambda store: store.get(REF),
    "find": lambda store: store.find("s1"),
    "list": lambda store: store.list(),
    "list of a page": lambda store: store.list(after=REF),
    "entries": lambda store: store.entries(REF),
    "window": lambda store: store.window(REF, "v"),
    "compactions": lambda store: store.compactions(REF),
    "calls": lambda store: store.calls(REF),
    "endings": lambda store: store.endings(due=99),
    "endings_of": lambda store: store.endings_of("ann"),
    "idle": lambda store: store.idle(now=99, ttl=1),
    "oldest": lambda store: store.oldest(),
    "active": lambda store: store.active(),
    "tenants": lambda store: store.tenants(),
    "sightings": lambda store: store.sightings("ann", store.marks),
    "media": lambda store: store.media(REF, [b"h" * 32]),
    "state": lambda store: store.state("ann"),
    "state by name": lambda store: store.state("ann", names=["k"]),
    "key_of": lambda store: store.key_of(b"h" * 32),
    "get_key": lambda store: store.get_key("k1"),
    "deletions": lambda store: store.deletions(),
    "find_sign_in": lambda store: store.find_sign_in(sign_in().hash),
    "keys": lambda store: store.keys(),
    "learned": lambda store: store.learned("m"),
    "artifact": lambda store: store.artifact(REF, "a.txt"),
    "artifacts": lambda store: store.artifacts(REF),
    "artifact_versions": lambda store: store.artifact_versions(REF, "a.txt"),
    "blobs_in_use": lambda store: store.blobs_in_use(["b1"]),
    "blob": lambda store: store.blob("b1", 0),
    "blobs": lambda store: store.blobs(before=9),
    "memories": lambda store: store.memories(ANN),
    "memories by id": lambda store: store.memories(ANN, ids=["m"], numbers=[1], since=0),
    "signals": lambda store: store.signals(ANN),
    "diary": lambda store: store.diary(ANN),
    "memory_owners": lambda store: store.memory_owners(),
    "records": lambda store: store.records(REF, [put_record("k").name], now=1),
    "list_records": lambda store: store.list_records(UserRef("ann"), ("agents",), now=1),
    "record_namespaces": lambda store: store.record_namespaces(UserRef("ann"), now=1),
    "searchable_records": lambda store: store.searchable_records(UserRef("ann"), now=1),
    "record_users": lambda store: store.record_users(),
}


def _only_told(one: dict[str, Any]) -> dict[str, Any]:
    """Without what was counted."""
    return {name: value for name, value in one.items() if name not in {"asked", "taken"}}


@pytest.mark.parametrize("name", WRITES)
async def test_writes_declare_their_queue_and_deletions(store: Any, name: str) -> None:
    """A server lets writes of one queue come one after the other, before they wait for its locks; SQLite takes off the disk what goes."""
    call, told = WRITES[name]
    await call(store)
    ((one),) = store.database.told
    assert NOTHING | _only_told(one) == NOTHING | told


@pytest.mark.parametrize("name", READS)
async def test_reads_declare_whether_they_need_a_transaction(store: Any, name: str) -> None:
    """One that is one statement needs no transaction, and one that is more needs one: else it would see several moments."""
    await READS[name](store)
    ((one),) = store.database.told
    assert one.get("single", False) == (one["asked"] == 1)


# -- an index ----------------------------------------------------------------


INDEX_WRITES: dict[str, tuple[Call, list[dict[str, Any]]]] = {
    "write": (lambda index: index.write(SPACE, batch(document(1, "b"))), [{"queue": INDEXED}]),
    "write that drops": (
        lambda index: index.write(SPACE, batch(drop=[0])),
        [{"queue": INDEXED, "scrub": True}],
    ),
    "write that replaces": (
        lambda index: index.write(SPACE, batch(document(0, "other"))),
        [{"queue": INDEXED}, {"queue": ("index", "acme", None), "scrub": True}],
    ),
    "drop": (lambda index: index.drop(SPACE, "s1"), [{"queue": INDEXED, "scrub": True}]),
    "drop_space": (
        lambda index: index.drop_space(SPACE),
        [{"queue": INDEXED}, *[{"queue": ("index", "acme", None), "scrub": True}] * 2],
    ),
    "put_vectors": (
        lambda index: index.put_vectors(SPACE, SOURCE, "m", []),
        [{"queue": INDEXED}],
    ),
    "drop_vectors": (lambda index: index.drop_vectors(), [{"queue": ("index", "acme", None), "scrub": True}]),
    "keep_note": (lambda index: index.keep_note("n", b"x"), [{"queue": ("index", "acme", None)}]),
}


@pytest.mark.parametrize("name", INDEX_WRITES)
async def test_index_writes_declare_their_queue_and_deletions(store: Any, name: str) -> None:
    """Writes to one space come one after the other; what was replaced leaves the disk, too."""
    index = LogicIndex(store.database, "acme", engine="python", owner=False)
    await index.write(SPACE, batch(document(0, "a")))
    store.database.told.clear()
    call, told = INDEX_WRITES[name]
    await call(index)
    assert [*map(_only_told, store.database.told)] == [{"scrub": False, **one} for one in told]


async def _make_index(store: Any, *counts: int) -> LogicIndex:
    """Sources with so many documents, and vectors of them."""
    index = LogicIndex(store.database, "acme", engine="python", owner=False)
    for at, count in enumerate(counts):
        source = Source(f"s{at}", "i")
        await index.write(SPACE, batch(*(document(one, f"{one}") for one in range(count)), source=source))
        vectors = [Vectored(one, digest_of(f"{one}"), vector(one, 1)) for one in range(count)]
        await index.put_vectors(SPACE, source, "m", vectors)
    store.database.told.clear()
    return index


_FED = document(0, "a")
_AGAIN = [
    ([_FED], [0]),
    ([replace(_FED, role="tool", agent="x", at=7)], [0]),
    ([_FED, document(1, "b")], [0]),
    ([replace(_FED, seq=4)], [1, 0]),
    ([replace(_FED, digest=digest_of("b"))], [1, 0]),
    ([replace(_FED, terms={"a": 2})], [1, 0]),
    ([replace(_FED, place=3)], [1, 0]),
]


@pytest.mark.parametrize(("documents", "taken"), _AGAIN)
async def test_an_unchanged_document_is_not_replaced(store: Any, documents: list[Document], taken: list[int]) -> None:
    """Feeding again what is there already takes nothing away, so the disk need not be cleared of anything."""
    index = await _make_index(store)
    await index.write(SPACE, batch(_FED))
    store.database.told.clear()
    await index.write(SPACE, batch(*documents))
    assert [one["taken"] for one in store.database.told] == taken
    assert await index.list_digests(SPACE, "s1") == [(one.seq, one.digest) for one in documents]


async def test_a_space_is_deleted_in_parts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once for whoever looks; from the disk a part at a time, so that others write in between."""
    monkeypatch.setattr(index_writes, "PART", 3)
    index = await _make_index(store, 7, 0, 1, 3)
    other = Space("user", "bob")
    await index.write(other, batch(document(0, "a")))
    store.database.told.clear()
    assert await index.drop_space(SPACE) == 11
    hidden, *parts = store.database.told
    assert hidden["taken"] == 0
    assert [one["taken"] for one in parts] == [3, 3, 2, 2, 1, 0]
    assert (await index.status()).documents == (await index.status(other)).documents == 1


async def test_many_spaces_are_cleared_in_parts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writes, "PART", 2)
    index = LogicIndex(store.database, "acme", engine="python", owner=False)
    for at in range(5):
        await index.write(Space("talk", f"u{at}"), batch(document(0, "a")))
    await index.clear()
    assert max(one["taken"] for one in store.database.told) <= 2
    assert (await index.status()).documents == 0
    assert await index.sources() == []


async def test_vectors_are_deleted_in_parts(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one is counted."""
    monkeypatch.setattr(index_vectors, "PART", 3)
    index = await _make_index(store, 7)
    assert await index.drop_vectors(keep="m") == 0
    assert await index.drop_vectors() == 7
    assert [one["scrub"] for one in store.database.told] == [True] * 5
    assert len(await index.pending("m")) == 7
