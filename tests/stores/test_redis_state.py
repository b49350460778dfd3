"""Shared state on Redis: changed by the commit script, and applied exactly once for a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.errors import HoldfastError, InvalidRequest, StoreUnavailable, TooLarge
from holdfast.limits import STATE_BYTES, STATE_VALUE_BYTES
from holdfast.stores.log import Append
from holdfast.stores.redis.connection import OutcomeUnknown
from holdfast.stores.redis.nodes import Nodes
from holdfast.stores.redis.outbox import Outbox
from holdfast.stores.redis.store import RedisStore
from tests.contract.kit import REF, live, session, user
from tests.stores.conftest import _place
from tests.stores.redis_openings import Opening, act_before_commit

WRITERS, TURNS = 10, 10


@pytest.fixture(params=["redis", "redis-cluster"])
def redis_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place, alone or in a cluster."""
    yield from _place(request.param, tmp_path)


def _turn(delta: dict[str, Any], text: str = "a") -> Append:
    return Append(entries=[user(text)], timestamp=2, state_delta=delta)


async def _value(store: RedisStore, user_id: str | None, name: str) -> object:
    values = (await store.state(user_id, names=[name])).values
    assert values is not None
    return values.get(name)


# -- writers of one scope --------------------------------------------------------


async def test_turns_of_many_sessions_do_not_conflict(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two clients no commit is retried because another session wrote to the scope, and nothing is lost."""
    stores, beaten = [await opening(redis_url) for _ in range(2)], 0
    run = Nodes.run

    async def count_runs(self: Nodes, script: Any, keys: Any, arguments: Any, *, once: bool) -> Any:
        nonlocal beaten
        answer = await run(self, script, keys, arguments, once=once)
        beaten += once and answer[0] != 0
        return answer

    monkeypatch.setattr(Nodes, "run", count_runs)

    async def turns(number: int) -> None:
        ref, store = SessionRef("ann", f"s{number}"), stores[number % 2]
        await store.create(session(ref))
        for at in range(TURNS):
            own = {f"user:k{number}-{at}": at, "user:n": Increment(), "app:n": Increment(0.5), "app:l": Extend((at,))}
            await store.append(ref, _turn(own))

    await asyncio.gather(*map(turns, range(WRITERS)))
    of_user, of_tenant = [await stores[0].state(user_id) for user_id in ("ann", None)]
    assert beaten == 0
    assert of_user.version == of_tenant.version == WRITERS * TURNS
    assert of_user.values is not None
    assert of_tenant.values is not None
    assert len(of_user.values) == WRITERS * TURNS + 1
    assert of_user.values["n"] == WRITERS * TURNS
    assert of_tenant.values["n"] == WRITERS * TURNS / 2
    assert sorted(of_tenant.values["l"]) == sorted([*range(TURNS)] * WRITERS)


async def test_a_turn_reads_only_the_keys_it_names(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read and one commit, or only the commit without shared keys; no command has other values."""
    store = await opening(redis_url)
    await store.create(session())
    await store.change_state("ann", {f"k{at}": "x" * 50 for at in range(2000)}, timestamp=1)
    await store.append(REF, _turn({"own": 1}))
    nodes, sent = store.database.nodes, [0]
    call = nodes.call

    async def count_runs(key: bytes, command: Any, *, once: bool = False) -> Any:
        answer = await call(key, command, once=once)
        sent.append(len(repr(command)) + len(repr(answer)))
        return answer

    monkeypatch.setattr(nodes, "call", count_runs)
    await store.append(REF, _turn({"own": 2}))
    assert len(sent) == 2
    await store.append(REF, _turn({"user:k7": 2, "user:n": Increment()}))
    assert len(sent) <= 5  # a script may have to be sent in full once
    assert max(sent) < 40_000


@pytest.mark.parametrize("scope", ["user", "app"])
async def test_direct_scope_changes_are_applied_once(
    opening: Opening, redis_url: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They return the result, so they are retried on conflict; a lost answer does not repeat an increment."""
    stores = [await opening(redis_url) for _ in range(3)]
    user_id = "ann" if scope == "user" else None

    async def count(store: RedisStore) -> set[tuple[int, object]]:
        seen = [await store.change_state(user_id, {"n": Increment()}, timestamp=1) for _ in range(TURNS)]
        return {(one.version, (one.values or {})["n"]) for one in seen}

    told = await asyncio.gather(*(count(stores[number % 3]) for number in range(WRITERS)))
    assert set().union(*told) == {(at, at) for at in range(1, WRITERS * TURNS + 1)}
    _lose_answer(stores[0], monkeypatch)
    last = await stores[0].change_state(user_id, {"n": Increment()}, timestamp=1)
    assert (last.version, last.values) == (WRITERS * TURNS + 1, {"n": WRITERS * TURNS + 1})
    assert await _value(stores[1], user_id, "n") == WRITERS * TURNS + 1


def _lose_answer(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next commit is done, and its answer does not arrive."""
    nodes = store.database.nodes
    run = nodes.run

    async def lose_answer(script: Any, keys: Any, arguments: Any, *, once: bool) -> Any:
        answer = await run(script, keys, arguments, once=once)
        if once:
            monkeypatch.setattr(nodes, "run", run)
            raise OutcomeUnknown("the connection broke")
        return answer

    monkeypatch.setattr(nodes, "run", lose_answer)


async def test_a_turn_with_a_lost_answer_changes_all_scopes_once(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = [await opening(redis_url) for _ in range(2)]
    await store.create(session())
    _lose_answer(store, monkeypatch)
    await store.append(REF, _turn({"user:n": Increment(), "app:n": Increment(), "n": Increment()}))
    assert await live(other) == ["a"]
    assert [await _value(other, user_id, "n") for user_id in ("ann", None)] == [1, 1]
    assert (await other.get(REF)).state == {"n": 1}


# -- what others write in that very moment -----------------------------------------


@pytest.mark.parametrize(
    ("before", "meanwhile", "turn", "error"),
    [
        ({"n": 1}, {"n": "text"}, Increment(), InvalidRequest),
        ({"l": [1]}, {"l": 1}, Extend((2,)), InvalidRequest),
        ({"n": 1}, {"n": 2**53 - 1}, Increment(), InvalidRequest),
        ({"l": []}, {"l": ["x" * (STATE_VALUE_BYTES - 4)]}, Extend(("y",)), TooLarge),
        ({}, {f"k{at}": "x" * (STATE_BYTES // 4 - 60) for at in range(4)}, "x" * 300, TooLarge),
    ],
)
async def test_a_turn_that_became_invalid_is_rejected_completely(
    opening: Opening,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    meanwhile: dict[str, Any],
    turn: Any,
    error: type[HoldfastError],
) -> None:
    """The change was valid when read but not at the commit, so no entries are written either."""
    store, other = [await opening(redis_url) for _ in range(2)]
    await store.create(session())
    await store.change_state("ann", before, timestamp=1)
    act_before_commit(store, monkeypatch, lambda: other.change_state("ann", meanwhile, timestamp=1))
    key = f"user:{next(iter(before), 'new')}"
    with pytest.raises(error):
        await store.append(REF, _turn({"user:other": 1, key: turn, "app:n": 1}))
    assert await live(other) == []
    assert (await other.state("ann")).values == {**before, **meanwhile}
    assert (await other.state(None)).values == {}


# -- a tenant's, in a cluster --------------------------------------------------------


in_cluster = pytest.mark.parametrize("redis_url", ["redis-cluster"], indirect=True)


@in_cluster
async def test_a_turn_of_a_dead_process_is_delivered_once(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next client delivers it before answering; delivering it again changes nothing."""
    one, told = await opening(redis_url), []
    await one.create(session())

    async def dies(*news: Any) -> None:
        told.append(news)

    deliver = one.database.outbox.deliver
    monkeypatch.setattr(one.database.outbox, "deliver", dies)
    for text in "ab":
        await one.append(REF, _turn({"app:n": Increment(), "app:l": Extend((text,))}, text))
    assert (await one.state(None)).values == {}
    two = await opening(redis_url)
    expected = {"n": 2, "l": ["a", "b"]}
    found = (await two.state(None)).values or {}
    assert {**found, "l": sorted(found["l"])} == expected
    for scope, number, news in told * 2:
        await deliver(scope, number, news)
        await one.database.outbox.close()
    assert (await two.state(None)).values == found
    assert (await two.state(None)).version == 2


@in_cluster
async def test_concurrent_delivery_of_a_turn_applies_it_once(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower client still has the turn after it left the outbox; the record of its delivery lives long enough."""
    one, two = [await opening(redis_url) for _ in range(2)]
    await one.create(session())
    apply = Outbox._apply

    async def others_first(self: Outbox, tenant: str, news: Any) -> None:
        told = list(news)
        if self is one.database.outbox:
            await two.database.outbox._tidy(tenant)
        await apply(self, tenant, told)

    monkeypatch.setattr(Outbox, "_apply", others_first)
    await one.append(REF, _turn({"app:n": Increment()}))
    assert await _value(one, None, "n") == 1
    await one.close()
    keys = two.database.keys.tenant("acme")
    marks = await two.database.nodes.call(keys.delivered, (b"ZRANGE", keys.delivered, 0, -1, b"WITHSCORES"))
    assert len(marks) == 2
    assert marks[1] != b"inf"


@in_cluster
async def test_turns_are_delivered_when_the_tenants_node_is_back(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn is acknowledged, and its changes are applied in order when the node is back."""
    one, two = [await opening(redis_url) for _ in range(2)]
    await one.create(session())
    apply, attempts, back = Outbox._apply, 0, asyncio.Event()

    async def fails(self: Outbox, tenant: str, news: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise StoreUnavailable("gone")
        if attempts == 2:
            await back.wait()
        await apply(self, tenant, news)

    monkeypatch.setattr(Outbox, "_apply", fails)
    for at in range(3):
        await one.append(REF, _turn({"app:last": at, "app:l": Extend((at,))}))
    assert (await two.state(None)).values == {}
    back.set()
    await one.close()
    assert attempts == 4
    assert (await two.state(None)).values == {"last": 2, "l": [0, 1, 2]}


@in_cluster
@pytest.mark.parametrize(("meanwhile", "left"), [({"n": "text"}, "text"), ({"n": None}, 1), ({"n": 5}, 6)])
async def test_a_tenant_value_may_change_before_delivery(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch, meanwhile: dict[str, Any], left: object
) -> None:
    """The accepted turn stays valid: its increment applies to the current value or is overwritten."""
    one, two = [await opening(redis_url) for _ in range(2)]
    await one.create(session())
    await one.change_state(None, {"n": 1}, timestamp=1)
    act_before_commit(one, monkeypatch, lambda: two.change_state(None, meanwhile, timestamp=1))
    await one.append(REF, _turn({"app:n": Increment(), "app:other": 1}))
    assert (await two.state(None)).values == {"n": left, "other": 1}


async def test_an_oversized_tenant_state_can_only_shrink(
    opening: Opening, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent writes in a cluster can exceed the limit; then only reductions of any size are accepted."""
    store = await opening(redis_url)
    await store.create(session())
    large = "x" * (STATE_VALUE_BYTES - 2)
    await store.change_state(None, {"k0": large, "k1": large, "k2": large, "small": 1}, timestamp=2)

    async def fill() -> None:
        await store.change_state(None, {"more": large[:200_000]}, timestamp=2)

    act_before_commit(store, monkeypatch, fill)
    with suppress(TooLarge):  # where it does not lie apart
        await store.append(REF, _turn({"app:most": large[:200_000]}))
    for name in ("small", "more"):
        await store.change_state(None, {name: None}, timestamp=3)
        with pytest.raises(TooLarge):
            await store.change_state(None, {"k3": large}, timestamp=3)
        assert await _value(store, None, name) is None


async def test_a_foreign_key_in_place_of_a_scope_is_reported(opening: Opening, redis_url: str) -> None:
    """Nothing of the turn is written."""
    store = await opening(redis_url)
    await store.create(session())
    await store.append(REF, _turn({}))
    key = store.database.keys.user("acme", "ann").state
    await store.database.nodes.call(key, (b"SET", key, b"1"))
    with pytest.raises(HoldfastError, match="another program wrote to a key"):
        await store.append(REF, _turn({"user:n": Increment()}))
    assert await live(store) == ["a"]
