"""Redis and SQLite give the same results for random operations."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.artifact import NewArtifact, Scope, UserRef
from holdfast.domain.messages import GENESIS, Message, chain, make_alias
from holdfast.domain.session import Claim, Ending, ModelCall, Session, SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.errors import HoldfastError, SessionNotFound
from holdfast.limits import SIGHTINGS
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append, SavedView
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.verify import verify
from tests.amounts import examples
from tests.contract.deletions import deletion
from tests.contract.keys import api_key
from tests.contract.kit import assistant, calls, compaction, make_failed, result, user
from tests.contract.media import make_contents
from tests.contract.sign_ins import sign_in
from tests.stores.conftest import _place

NAMES = ("a", "A", "é", "a\0", "{}")
ENDS = ("end", "record_ending")
_tenants = itertools.count()


class Operation(NamedTuple):
    """A call of a store's method."""

    method: str
    args: tuple[Any, ...]
    fields: dict[str, Any]

    async def on(self, store: Store) -> object:
        """What it gives, or how it is refused."""
        try:
            return await getattr(store, self.method)(*self.args, **self.fields)
        except HoldfastError as exc:
            return type(exc).__name__, str(exc)


# -- what is done ------------------------------------------------------------

_time = st.integers(-5, 60)
_place_in_log = st.integers(0, 12)
_user = st.sampled_from(NAMES[:3])
USUAL = (SessionRef("a", "a"), SessionRef("a", "A"))
"""Sessions that are there from the beginning."""
_ref = st.one_of(*(st.just(ref) for ref in USUAL), st.builds(SessionRef, _user, st.sampled_from(NAMES)))
_value = st.one_of(st.none(), st.integers(0, 9), st.text(max_size=3))
_metadata = st.dictionaries(st.sampled_from("kl"), _value, max_size=2)
_number = st.one_of(st.integers(-9, 9), st.sampled_from([0.1, 2.5, -1e-7, 2**53 - 1, 2**53, -(2**60)]))
_kept = st.one_of(_value, _number, st.lists(_value, max_size=2))
_change = st.one_of(_kept, st.builds(Increment, _number), st.builds(Extend, st.lists(_value, max_size=2).map(tuple)))
_key = st.sampled_from(["k", "l", "é"])
_changes = st.dictionaries(_key, _change, max_size=3)
_state = st.dictionaries(st.builds(str.__add__, st.sampled_from(["", "user:", "app:"]), _key), _change, max_size=3)
"""Of a session, its user and its tenant at once."""
_ttl = st.sampled_from([None, None, 0, 5, 40])
_tokens = st.integers(0, 9)
_view = st.sampled_from("vw")
_sign_in = st.integers(0, 3)
_range = st.tuples(_place_in_log, _place_in_log).map(sorted)
_lag = st.one_of(st.none(), st.integers(0, 12))

_said = st.text(max_size=4) | st.sampled_from("ab")
"""Some of it by several."""
_media = st.lists(st.sampled_from(list(make_contents(0, 1))), max_size=2).map(tuple)
_interrupted = st.none() | st.just({"interrupted": True})
_entry = st.one_of(
    st.builds(user, _said, tokens=_tokens, pinned=st.booleans(), metadata=st.none() | _metadata, media=_media),
    st.builds(assistant, _said, tokens=_tokens, agent=st.none() | st.just("x"), timestamp=_time, metadata=_interrupted),
    st.builds(calls, st.sampled_from("12"), tokens=_tokens, importance=st.none() | st.floats(0, 1)),
    st.builds(result, st.sampled_from("12"), tokens=_tokens),
)
_saved = st.builds(
    SavedView, _place_in_log, st.binary(max_size=3), st.lists(_place_in_log, max_size=2).map(tuple), built_at=_lag
)
_laid = st.builds(
    lambda lo_hi, view, built_at, fails: (make_failed if fails else compaction)(*lo_hi, view=view, built_at=built_at),
    _range,
    _view,
    _lag,
    st.booleans(),
)
_called = st.builds(
    ModelCall,
    model=st.sampled_from("mn"),
    timestamp=_time,
    prompt_tokens=_tokens,
    turn_id=st.integers(0, 3),
    hash=st.sampled_from([b"", b"h" * 16]),
)
_brings = st.lists(st.sampled_from([0, 1]), max_size=2).map(lambda numbers: make_contents(*numbers))
_append = st.builds(
    Append,
    entries=st.lists(_entry, max_size=3),
    timestamp=_time,
    expect=st.one_of(st.none(), st.none(), st.integers(0, 9)),
    retire_from=st.one_of(st.none(), st.none(), _place_in_log),
    state_delta=st.none() | _state,
    state_expect=st.none() | _metadata,
    idempotency_key=st.one_of(st.none(), st.sampled_from("pq")),
    fingerprint=st.sampled_from([b"f", b"f", b"g"]),
    calls=st.lists(_called, max_size=2),
    views=st.none() | st.dictionaries(_view, _saved, max_size=2),
    compactions=st.lists(_laid, max_size=2),
    media=_brings,
    claim=st.none() | st.builds(Claim, _view, _time),
    release=st.one_of(st.none(), st.none(), _view),
)
_new = st.builds(
    lambda ref, **fields: NewSession(id=ref.id, user_id=ref.user_id, **fields),
    _ref,
    timestamp=_time,
    agent=st.none() | st.just("x"),
    state=_state,
    metadata=_metadata,
    ttl=_ttl,
)
_patch = st.builds(SessionPatch, agent=st.none() | st.just("y"), state=_state, ttl=_ttl)
_ending = st.builds(
    lambda ref, **fields: Ending(user_id=ref.user_id, session_id=ref.id, **fields),
    _ref,
    id=st.just(""),
    withdrawn=st.booleans(),
    reason=st.sampled_from(["ttl", "close"]),
    ended_at=_time,
    due_at=_time,
    hooks=st.sampled_from([(), ("one",), ("one", "two")]),
)
_ending_id = st.integers(2, 20).map("end_{}".format)
"""That of an operation before, by its number."""
_scope: st.SearchStrategy[Scope] = st.one_of(_ref, _user.map(UserRef))
_artifact_name = st.sampled_from(["plan", "Plan", "b.txt"])


def _prefix_name(scope: Scope, name: str) -> str:
    return f"user:{name}" if isinstance(scope, UserRef) else name


def _number_ends(operations: list[Operation]) -> list[Operation]:
    """With an id of its own for each end."""
    return [
        one._replace(args=(msgspec.structs.replace(one.args[0], id=f"end_{number}"),)) if one.method in ENDS else one
        for number, one in enumerate(operations)
    ]


def _does(method: str, *args: Any, **fields: Any) -> Operation:
    return Operation(method, args, fields)


def _blob(user_id: str, number: int) -> str:
    return f"{user_id.encode().hex()}z{number}"


def _adds(scope: Scope, name: str, number: int, expect: int | None) -> Operation:
    new = NewArtifact(
        name=_prefix_name(scope, name),
        blob=_blob(scope.user_id, number),
        mime_type="text/plain",
        size=number,
        sha256=bytes(32),
        created_at=number,
    )
    return _does("add_artifact", scope, new, expect=expect, room=1000)


def _drops(scope: Scope, name: str | None, version: int | None) -> Operation:
    named = None if name is None else _prefix_name(scope, name)
    return _does("drop_artifacts", scope, named, None if name is None else version)


_writes: list[st.SearchStrategy[Operation]] = [
    st.builds(_does, st.just("append"), _ref, _append),
    st.builds(_does, st.just("append"), _ref, _append),
    st.builds(_does, st.just("append"), _ref, _append),
    st.builds(_does, st.just("create"), _new),
    st.builds(_does, st.just("create"), _new),
    st.builds(_does, st.just("replace"), _new, st.lists(_entry, max_size=3), media=_brings),
    st.builds(_does, st.just("update"), _ref, _patch, timestamp=_time, expect=st.none() | st.integers(0, 5)),
    st.builds(_does, st.just("remove"), _ref),
    st.builds(_does, st.just("remove"), _ref),
    st.builds(
        _does,
        st.just("annotate"),
        _ref,
        _place_in_log,
        pinned=st.none() | st.booleans(),
        importance=st.none() | st.just(0.5),
    ),
    st.builds(_does, st.just("erase"), _ref, _place_in_log, tokens=st.none() | _tokens),
    st.builds(_does, st.just("rate"), _ref, st.dictionaries(_place_in_log, st.floats(0, 1), max_size=4)),
    st.builds(_does, st.just("drop_compaction"), _ref, st.integers(1, 4), timestamp=_time),
    st.builds(_does, st.just("touch"), _ref, timestamp=_time),
    st.builds(_does, st.just("want"), _ref, _view),
    st.builds(_does, st.just("end"), _ending, idle_since=st.none() | _time),
    st.builds(_does, st.just("record_ending"), _ending),
    st.builds(
        _does,
        st.just("settle"),
        _ending_id,
        delivered=st.sampled_from([None, "one", "two"]),
        due_at=st.none() | _time,
        error=st.none() | st.just("no"),
    ),
    st.builds(_does, st.just("forget_ending"), _ending_id),
    st.builds(_does, st.just("lease"), _view, _view, now=_time, until=st.just(80)),
    st.builds(_does, st.just("release"), _view, _view),
    st.builds(
        _does, st.just("learn"), _view, st.binary(max_size=2), timestamp=_time, expect=st.none() | st.binary(max_size=2)
    ),
    st.builds(_adds, _scope, _artifact_name, st.integers(0, 30), st.none() | st.integers(-1, 2)),
    st.builds(_adds, _scope, _artifact_name, st.integers(0, 30), st.none()),
    st.builds(_drops, _scope, st.none() | _artifact_name, st.none() | st.integers(0, 2)),
    st.builds(_does, st.just("put_blob"), _view, st.integers(0, 2), st.binary(max_size=3), timestamp=_time),
    st.builds(_does, st.just("delete_blobs"), st.lists(_view, max_size=2)),
    st.builds(lambda number, id_: _does("add_key", api_key(number, id=id_)), st.integers(0, 3), _view),
    st.builds(_does, st.just("revoke_key"), _view, timestamp=_time),
    st.builds(_does, st.just("use_key"), _view, timestamp=_time),
    st.builds(
        lambda at, key_id, created_at, lasts: _does(
            "add_sign_in", sign_in(at, key_id=key_id, created_at=created_at, expires_at=created_at + lasts)
        ),
        _sign_in,
        st.none() | _view,
        _time,
        st.integers(1, 9),
    ),
    st.builds(lambda at, timestamp: _does("use_sign_in", sign_in(at).hash, timestamp=timestamp), _sign_in, _time),
    st.builds(
        lambda at, kind, keep: _does("add_deletion", deletion(at, kind=kind, deleted_at=at // 2), keep=keep),
        st.integers(0, 9),
        st.sampled_from(["session", "user"]),
        st.none() | st.integers(0, 2),
    ),
    st.builds(lambda at: _does("remove_sign_in", sign_in(at).hash), _sign_in),
    st.builds(
        _does,
        st.just("change_state"),
        st.none() | _user,
        _changes,
        timestamp=_time,
        expect=st.none() | st.none() | st.integers(0, 5),
        values=st.none() | st.none() | st.dictionaries(_key, _kept, max_size=2),
    ),
    st.builds(_does, st.just("change_state"), st.none() | _user, _changes, timestamp=_time),
    # Not a user's: which version an empty scope has then is each store's own affair (`holdfast.stores.state`).
    st.builds(_does, st.just("drop_state"), st.none()),
]
_limit = st.integers(1, 4)
_SAID = [
    *(chain(GENESIS, Message(role="user", content=text)) for text in "ab"),
    *(make_alias(GENESIS, Message(role="assistant", content=text)) or b"" for text in "ab"),
]
"""What a session may say first, and replies anywhere."""
_reads: list[st.SearchStrategy[Operation]] = [
    st.builds(_does, st.just("find"), st.sampled_from(NAMES)),
    st.builds(
        _does,
        st.just("list"),
        user_id=st.none() | _user,
        agent=st.sampled_from([None, None, "x"]),
        status=st.sampled_from([None, None, "active", "closed"]),
        now=st.none() | _time,
        ttl=st.none() | st.just(20),
        limit=_limit,
        after=st.none() | _ref,
        descending=st.booleans(),
    ),
    st.builds(
        _does,
        st.just("entries"),
        _ref,
        start=_place_in_log,
        stop=st.none() | _place_in_log,
        limit=st.none() | st.integers(0, 4),
        descending=st.booleans(),
        retired=st.booleans(),
    ),
    st.builds(_does, st.just("media"), _ref, st.just(tuple(make_contents(0, 1)))),
    st.builds(
        _does,
        st.just("sightings"),
        _user,
        st.just(_SAID),
        alias=st.booleans(),
        session=st.none() | _ref,
        limit=_limit,
    ),
    st.builds(
        _does,
        st.just("state"),
        st.none() | _user,
        names=st.none() | st.lists(_key, max_size=2),
        known=st.none() | st.integers(0, 5),
    ),
    st.builds(_does, st.just("window"), _ref, st.none() | _view),
    st.builds(_does, st.just("compactions"), _ref, view=st.none() | _view, live=st.booleans()),
    st.builds(_does, st.just("calls"), _ref, limit=_limit, turn_id=st.none() | st.integers(0, 3)),
    st.builds(_does, st.just("endings"), due=_time, limit=_limit),
    st.builds(_does, st.just("active")),
    st.builds(_does, st.just("blobs"), before=_time, limit=_limit),
    st.builds(_does, st.just("blobs_in_use"), st.just([_blob(name, number) for name in NAMES for number in range(31)])),
    st.builds(lambda scope, after: _does("artifacts", scope, limit=2, after=after), _scope, st.none() | _artifact_name),
    st.builds(
        lambda scope, name: _does("artifact_versions", scope, _prefix_name(scope, name), limit=3),
        _scope,
        _artifact_name,
    ),
]


# -- what is seen --------------------------------------------------------------


async def _overdue(store: Store) -> list[object]:
    """What a sweep looks at: of the same times in any order."""

    def sort_sessions(found: tuple[Session, ...]) -> object:
        return sorted((one.accessed_at, one.user_id, one.id) for one in found)

    idle = [sort_sessions(await store.idle(now=now, ttl=ttl)) for now in (0, 30, 90) for ttl in (None, 20)]
    return [*idle, sort_sessions(await store.oldest())]


async def _all(store: Store, endings: list[Ending]) -> list[object]:
    """All that can be seen of a tenant."""
    page = await store.list(limit=100)
    seen: list[object] = [page, await store.endings(due=100), await _overdue(store)]
    for ref in [*(one.ref for one in page.sessions), *(one.ref for one in endings)]:
        seen += [await _does(read, ref).on(store) for read in ("get", "entries", "compactions", "calls", "artifacts")]
        seen += [await _does("window", ref, view).on(store) for view in (None, "v", "w")]
        seen.append(await _does("entries", ref, retired=True).on(store))
        seen.append(await _does("media", ref, list(make_contents(0, 1))).on(store))
        seen.append(await _find_sightings(store, ref))
        seen.append(await _verify(store, ref))
    for name in NAMES[:3]:
        seen.append(await store.artifacts(UserRef(name)))
        seen += [await store.sightings(name, [mark], limit=SIGHTINGS) for mark in _SAID]
        seen += [await store.sightings(name, [mark], limit=20, alias=True) for mark in _SAID]
    seen += [await store.state(user_id) for user_id in (None, *NAMES[:3])]
    sign_ins = [await store.find_sign_in(sign_in(at).hash) for at in range(4)]
    return [*seen, await store.keys(), sign_ins, await store.deletions()]


async def _find_sightings(store: Store, ref: SessionRef) -> object:
    """Where all that a session says is found."""
    try:
        digests = [entry.digest for entry in await store.entries(ref, retired=True)]
    except SessionNotFound:
        return None
    found = [await store.sightings(ref.user_id, [digest], limit=SIGHTINGS) for digest in digests]
    return [*found, *[await store.sightings(ref.user_id, [digest], session=ref) for digest in digests]]


async def _verify(store: Store, ref: SessionRef) -> object:
    try:
        return await verify(store, ref)
    except SessionNotFound:
        return None


@pytest.fixture(params=["redis", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    """An empty place on Redis."""
    yield from _place(request.param, tmp_path)


@pytest.mark.slow
@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.one_of(*_writes, *_writes, *_reads), min_size=5, max_size=40))
async def test_redis_and_sqlite_give_the_same_results(redis_url: str, operations: list[Operation]) -> None:
    """Operations alternate between two clients; the final data are equal and verified."""
    tenant = f"t{next(_tenants)}"
    async with AsyncExitStack() as open_:
        expecting, *asked = [
            await open_store(url, tenant=tenant) for url in ("sqlite://:memory:", redis_url, redis_url)
        ]
        for store in (expecting, *asked):
            open_.push_async_callback(store.close)
        begun = [_does("create", NewSession(id=ref.id, user_id=ref.user_id, timestamp=1)) for ref in USUAL]
        said = [
            user("a", turn_id=0),
            calls("1"),
            result("1"),
            assistant("b", importance=0.5),
            user("c"),
            assistant("d"),
        ]
        begun += [_does("append", ref, Append(entries=said, timestamp=2)) for ref in USUAL]
        operations = _number_ends([*begun, *operations])
        for number, operation in enumerate(operations):
            expected = await operation.on(expecting)
            assert await operation.on(asked[number % 3 == 2]) == expected, (number, operation)
        endings = [operation.args[0] for operation in operations if operation.method in ENDS]
        assert await _all(asked[0], endings) == await _all(expecting, endings)
