"""The contract, ownership: what is another's can neither be seen nor changed, by any method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast.domain.artifact import UserRef
from holdfast.domain.memory import DiaryEntry, MemoryDelta
from holdfast.domain.messages import GENESIS, chain
from holdfast.domain.record import TenantRef
from holdfast.domain.session import Claim, Ending, ModelCall, Receipt, Session, SessionRef
from holdfast.errors import NotFound
from holdfast.stores.base import Store
from holdfast.stores.deletions import Job
from holdfast.stores.log import Append, SavedView, TurnKey
from holdfast.stores.memories import OwnedMemories
from holdfast.stores.session_changes import make_session
from holdfast.stores.sessions import SessionPatch
from holdfast.stores.state import ScopedState

from .artifacts import artifact
from .deletions import deletion
from .keys import api_key
from .kit import REF, compaction, session, user
from .media import make_contents, sha
from .memory_kit import ANN, memory, signal
from .records import put

Call = Callable[[Store, SessionRef], Coroutine[Any, Any, object]]
STRANGERS = (SessionRef("bob", "s1"), SessionRef("ann", "s2"))
"""Another user's name for the session, and another name of the user's own."""


def _ending(ref: SessionRef, id_: str = "end_2", **fields: Any) -> Ending:
    """An end of that session, that would take its name from it."""
    given: dict[str, Any] = {"withdrawn": True, "reason": "delete", "ended_at": 9, "due_at": 9, "hooks": ("hook",)}
    return Ending(id=id_, user_id=ref.user_id, session_id=ref.id, **{**given, **fields})


ENDING = _ending(REF, "end_1", withdrawn=False, reason="close")
MARK = chain(GENESIS, user("a").message)
"""Of what the session says first."""

IDENTITY = "identity-of-s1"
"""Of the session, which shares what it says."""

LEARNED = memory()
KEY = TurnKey("k", b"body")

JOB = Job(kind="user", user_id="ann")
"""A deletion that was begun."""
WHOSE = ("ann", None)
"""Scopes of state that sessions share."""
RECORD = put("k", "stored", expires_at=10**11, text="k")
RECORD_OWNERS = (UserRef("ann"), TenantRef())
"""Owners of records, besides the session."""


async def _values(*calls: Awaitable[ScopedState | int]) -> list[object]:
    """What stands in some scopes, or how much was dropped of them; nothing where that is nothing."""
    found = [await call for call in calls]
    return [one.values if isinstance(one, ScopedState) else one for one in found if getattr(one, "values", one)]


async def _read_memories(call: Awaitable[OwnedMemories]) -> object:
    """What it has of an owner; nothing where that is nothing."""
    found = await call
    return None if found == OwnedMemories(0, ()) else found


def _forget(store: Store) -> Awaitable[OwnedMemories]:
    return store.change_memories(ANN, MemoryDelta(forget=(LEARNED.id,), signals=(signal(LEARNED),)), timestamp=50)


async def _fork(store: Store, ref: SessionRef) -> Session | None:
    """Fork a session, as a caller would who has a session object of that name."""
    source = make_session(store.tenant, session(ref, identity=IDENTITY))
    return await store.fork(session(SessionRef(ref.user_id, "stolen")), source, 2)


OF_A_SESSION: dict[str, Call] = {
    "fork": _fork,
    "get": lambda store, ref: store.get(ref),
    "list": lambda store, ref: store.list(after=ref),
    "update": lambda store, ref: store.update(ref, SessionPatch(metadata={"stolen": 1}), timestamp=50),
    "remove": lambda store, ref: store.remove(ref),
    "append": lambda store, ref: store.append(ref, Append(entries=[user("stolen")], timestamp=50)),
    "annotate": lambda store, ref: store.annotate(ref, 0, pinned=True),
    "erase": lambda store, ref: store.erase(ref, 0),
    "rate": lambda store, ref: store.rate(ref, {0: 0.5}),
    "drop_compaction": lambda store, ref: store.drop_compaction(ref, 1, timestamp=50),
    "entries": lambda store, ref: store.entries(ref, retired=True),
    "entries_at": lambda store, ref: store.entries_at(ref.user_id, [(ref.id, 0)], around=1),
    "window": lambda store, ref: store.window(ref, "v"),
    "compactions": lambda store, ref: store.compactions(ref),
    "calls": lambda store, ref: store.calls(ref),
    "prompt_texts": lambda store, ref: store.prompt_texts(ref),
    "touch": lambda store, ref: store.touch(ref, timestamp=50),
    "end": lambda store, ref: store.end(_ending(ref)),
    "record_ending": lambda store, ref: store.record_ending(_ending(ref)),
    "add_artifact": lambda store, ref: store.add_artifact(ref, artifact(blob="b2")),
    "artifact": lambda store, ref: store.artifact(ref, "a.txt"),
    "artifacts": lambda store, ref: store.artifacts(ref),
    "all_artifacts": lambda store, ref: store.all_artifacts(ref),
    "artifact_versions": lambda store, ref: store.artifact_versions(ref, "a.txt"),
    "drop_artifacts": lambda store, ref: store.drop_artifacts(ref),
    "sightings": lambda store, ref: store.sightings(ref.user_id, [MARK], session=ref),
    "media": lambda store, ref: store.media(ref, [sha(1)]),
    "share": lambda store, ref: store.share(ref, IDENTITY),
    "origins": lambda store, ref: store.origins(ref.user_id, [ref.id]),
    "want": lambda store, ref: store.want(ref, "one"),
    "records": lambda store, ref: store.records(ref, [RECORD.name], now=1),
    "list_records": lambda store, ref: store.list_records(ref, (), nested=True, now=1),
    "record_namespaces": lambda store, ref: store.record_namespaces(ref, now=1),
    "searchable_records": lambda store, ref: store.searchable_records(ref, now=1),
    "change_records": lambda store, ref: store.change_records(ref, [RECORD], timestamp=50),
}
"""Methods that are told a session."""

OF_A_TENANT: dict[str, Call] = {
    "find": lambda store, ref: store.find(ref.id),
    "endings": lambda store, ref: store.endings(due=10**12),
    "endings_of": lambda store, ref: store.endings_of(ref.user_id),
    "settle": lambda store, ref: store.settle(ENDING.id, delivered="hook"),
    "forget_ending": lambda store, ref: store.forget_ending(ENDING.id),
    "idle": lambda store, ref: store.idle(now=10**15, ttl=1),
    "oldest": lambda store, ref: store.oldest(),
    "active": lambda store, ref: store.active(),
    "leased_by": lambda store, ref: store.leased_by("sweep", now=0),
    "release": lambda store, ref: store.release("sweep", "one"),
    "learned": lambda store, ref: store.learned("m"),
    "blobs_in_use": lambda store, ref: store.blobs_in_use(["b1"]),
    "blob": lambda store, ref: store.blob("b1", 0),
    "delete_blobs": lambda store, ref: store.delete_blobs(["b1"]),
    "blobs": lambda store, ref: store.blobs(before=10**12),
    "get_key": lambda store, ref: store.get_key("k1"),
    "keys": lambda store, ref: store.keys(),
    "revoke_key": lambda store, ref: store.revoke_key("k1", timestamp=50),
    "use_key": lambda store, ref: store.use_key("k1", timestamp=50),
    "deletions": lambda store, ref: store.deletions(),
    "removals": lambda store, ref: store.removals("i"),
    "has_index": lambda store, ref: store.has_index("i"),
    "forget_index": lambda store, ref: store.forget_index("i"),
    "jobs": lambda store, ref: store.jobs(),
    "find_turn": lambda store, ref: store.find_turn(ref.user_id, KEY),
    "sweep_turn_keys": lambda store, ref: store.sweep_turn_keys(now=50),
    "sharing": lambda store, ref: store.sharing(ref.user_id, IDENTITY),
    "state": lambda store, ref: _values(store.state(ref.user_id), store.state(None)),
    "change_state": lambda store, ref: _values(*(store.change_state(one, {"k": None}, timestamp=50) for one in WHOSE)),
    "drop_state": lambda store, ref: _values(store.drop_state(ref.user_id), store.drop_state(None)),
    "memories": lambda store, ref: _read_memories(store.memories(ANN, ids=[LEARNED.id])),
    "find_memory": lambda store, ref: store.find_memory(LEARNED.id),
    "change_memories": lambda store, ref: _read_memories(_forget(store)),
    "signals": lambda store, ref: store.signals(ANN),
    "diary": lambda store, ref: store.diary(ANN),
    "memory_owners": lambda store, ref: store.memory_owners(),
    "drop_memories": lambda store, ref: store.drop_memories(ANN),
    "record_users": lambda store, ref: store.record_users(),
    "drop_records": lambda store, ref: _values(*(store.drop_records(one) for one in RECORD_OWNERS)),
    "sweep_records": lambda store, ref: store.sweep_records(now=10**12),
}
"""Methods that are told none; what they give is the tenant's."""


async def _full(store: Store) -> None:
    """A session with one of everything, and what belongs to its tenant."""
    await store.create(session(state={"k": 1, "user:k": 2, "app:k": 3}, identity=IDENTITY))
    write = Append(
        entries=[user("a"), user("b", media=(sha(1),))],
        timestamp=2,
        media=make_contents(1),
        claim=Claim("one", 10**12),
        views={"v": SavedView(1, b"v", (0,))},
        calls=[ModelCall(model="m", timestamp=1)],
        compactions=[compaction(0, 0)],
        key=KEY,
    )
    await store.append(REF, write)
    await store.share(REF, IDENTITY)
    await store.put_blob("b1", 0, b"hello", timestamp=3)
    await store.add_artifact(REF, artifact())
    await store.end(ENDING)
    await store.lease("sweep", "one", now=0, until=1000)
    await store.learn("m", b"learned", timestamp=3, expect=None)
    await store.add_key(api_key())
    await store.add_deletion(deletion())
    await store.register_index("i", now=3)
    await store.start_job(JOB)
    await store.remove((await store.create(session(SessionRef("ann", "gone")))).ref)
    delta = MemoryDelta(put=(LEARNED,), signals=(signal(LEARNED),), diary=(DiaryEntry(id="d", at=1, report={}),))
    await store.change_memories(ANN, delta, timestamp=3)
    for owner in (REF, *RECORD_OWNERS):
        await store.change_records(owner, [RECORD], timestamp=3)


async def _read_all(store: Store) -> list[object]:
    """All of that, to compare."""
    return [
        await store.window(REF, "v"),
        await store.entries(REF, retired=True),
        await store.compactions(REF),
        await store.calls(REF),
        await store.find_turn(REF.user_id, KEY),
        await store.artifacts(REF),
        await store.blob("b1", 0),
        await store.endings(due=10**12),
        await store.learned("m"),
        await store.lease("sweep", "two", now=1, until=10),
        await store.sightings("ann", [MARK]),
        await store.media(REF, [sha(1)]),
        await store.sharing("ann", IDENTITY),
        await store.get_key("k1"),
        await store.deletions(),
        [await store.jobs(), await store.removals("i")],
        [await store.state(one) for one in WHOSE],
        [await store.list_records(owner, (), nested=True, now=1) for owner in (REF, *RECORD_OWNERS)],
        [await store.memories(ANN), await store.signals(ANN), await store.diary(ANN)],
    ]


async def _call_as_stranger(store: Store, ref: SessionRef, call: Call) -> object:
    """What a call gives to a stranger; nothing where it says that there is nothing."""
    try:
        found = await call(store, ref)
    except NotFound:
        return None
    return getattr(found, "sessions", found) or None


async def test_no_method_reaches_another_tenants_data(store: Store) -> None:
    """The very names of what is there give another tenant nothing, and change nothing."""
    await _full(store)
    before, other = await _read_all(store), store.for_tenant("other")
    for method, call in (OF_A_SESSION | OF_A_TENANT).items():
        assert (method, await _call_as_stranger(other, REF, call)) == (method, None)
    assert await _read_all(store) == before


async def test_a_tenants_jobs_and_removals_are_finished_only_by_it(store: Store) -> None:
    """Their numbers are unique in a database, so another tenant could name them."""
    await _full(store)
    (job,), (removal,), other = await store.jobs(), await store.removals("i"), store.for_tenant("other")
    await other.add_to_job(job, Receipt(sessions=1))
    await other.finish_due([job.id, removal.id])
    assert (await store.jobs(), await store.removals("i")) == ((job,), (removal,))
    assert await store.add_to_job(job, Receipt(sessions=1)) == (await store.jobs())[0] != job
    await store.finish_due([job.id, removal.id])
    assert (await store.jobs(), await store.removals("i")) == ((), ())


async def test_no_method_reaches_another_sessions_data(store: Store) -> None:
    """Nor do names that are only half right: another user's, or another one of the same user."""
    await _full(store)
    before = await _read_all(store)
    for method, call in OF_A_SESSION.items():
        for ref in STRANGERS:
            assert (method, await _call_as_stranger(store, ref, call)) == (method, None)
    assert await _read_all(store) == before
