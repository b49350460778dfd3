"""How sessions end: by time, by number, by a call; and what is seen of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import open as open_holdfast
from holdfast.errors import InvalidRequest
from tests.behaviour.kit import World, assistant, refused, texts, through, user

HERE = ("library", "connect", "rest")
STORES = pytest.mark.parametrize("store", ["memory", "file"])
HOUR = 3_600_000


async def status(hf: Any, name: str = "s") -> str:
    """Return the status of a session, or `gone`."""
    found = [row for row in await hf.sessions(limit=100) if row["id"] == name]
    return str(found[0]["status"]) if found else "gone"


@through(*HERE)
@STORES
async def test_a_session_expires_at_the_millisecond(world: World, store: str) -> None:
    async with world.open("sessions: {ttl: 30m}", store=store) as hf:
        session = await hf.given("s", user("One."))
        world.clock.now += 1_799_999
        assert await status(hf) == "active"
        world.clock.now += 1
        assert await status(hf) == ("gone" if store == "memory" else "closed")
        assert [row["id"] for row in await hf.sessions(status="active")] == []
        if store == "file":
            row = await session.info()
            assert (row["end_reason"], row["ended_at"]) == ("ttl", world.clock.now)
            await world.native.sweep()
            assert (await session.info())["ended_at"] == row["ended_at"]
            assert texts(await session.messages()) == ["One."]


@through(*HERE)
async def test_a_session_may_have_a_ttl_of_its_own(world: World) -> None:
    async with world.open("sessions: {ttl: 1h}", store="file") as hf:
        await hf.given("short", user("One."), ttl=1000)
        await hf.given("never", user("One."), ttl=0)
        session = await hf.given("changed", user("One."))
        await session.update(ttl=5_000)
        world.clock.now += 1000
        assert [await status(hf, name) for name in ("short", "changed")] == ["closed", "active"]
        world.clock.now += 4000
        assert await status(hf, "changed") == "closed"
        world.clock.now += 1000 * HOUR
        assert await status(hf, "never") == "active"


@through(*HERE)
@STORES
async def test_a_message_reopens_a_session_or_makes_a_new_one(world: World, store: str) -> None:
    async with world.open("sessions: {ttl: 1s}", store=store, script=["Again."]) as hf:
        await hf.given("s", user("One."), user="ada")
        world.clock.now += 1000
        await hf.session("s", "ada").send(user("Two."))
        found = texts(await hf.session("s", "ada").messages())
        assert found == (["Two.", "Again."] if store == "memory" else ["One.", "Two.", "Again."])
        assert await status(hf) == "active"


@through(*HERE)
async def test_in_memory_an_expired_session_is_not_found(world: World) -> None:
    async with world.open("sessions: {ttl: 1s}") as hf:
        session = await hf.given("s", user("Kelp."))
        assert len(await hf.search("kelp")) == 1
        world.clock.now += 1000
        assert await hf.search("kelp") == []
        for use in (
            session.info(), session.messages(), session.context(), session.state(), session.calls(),
            session.update(metadata={"a": 1}), session.annotate(0, pinned=True), session.close(), session.delete(),
        ):  # fmt: skip
            with refused("session_not_found"):
                await use
        await hf.given("s", user("New."))
        assert texts(await hf.session("s").messages()) == ["New."]


@through(*HERE)
@pytest.mark.parametrize("how", ["close", "update", "import"])
async def test_a_call_after_the_expiry_reports_the_end_first(world: World, how: str) -> None:
    ends: list[Any] = []
    async with world.open("sessions: {ttl: 1s}", store="file") as hf:
        world.native.on_expire(lambda session, reason: ends.append((session.id, reason)), name="hook")
        session = await hf.given("s", user("One."))
        exported = await session.export()
        world.clock.now += 1000
        if how == "close":
            assert (await session.close())["end_reason"] == "ttl"
        elif how == "update":
            await session.update(metadata={"a": 1})
        else:
            await hf.import_session(exported, replace=True)
            assert await status(hf) == "active"
        await world.native.sweep()
        assert ends == [("s", "ttl")]


@through(*HERE)
async def test_writing_and_prompts_delay_expiry_and_reading_does_not(world: World) -> None:
    async with world.open("sessions: {ttl: 1h}", store="file") as hf:
        used: dict[str, Any] = {
            "append": lambda one: one.append(user("Two.")),
            "state": lambda one: one.change_state(a=1),
            "field": lambda one: one.update(metadata={"a": 1}),
            "prompt": lambda one: one.context(),
        }
        read: dict[str, Any] = {
            "export": lambda one: one.export(),
            "explain": lambda one: one.explain(),
            "untouched": lambda one: one.context(touch=False),
            "past": lambda one: one.context(at_turn=0),
            "search": lambda one: hf.search("One"),
        }
        for name in (*used, *read):
            await hf.given(name, user("One."))
        for _ in range(2):
            world.clock.now += HOUR - 60_000
            for name, use in {**used, **read}.items():
                await use(hf.session(name))
        kept = {name: await status(hf, name) for name in (*used, *read)}
        assert kept == {**dict.fromkeys(used, "active"), **dict.fromkeys(read, "closed")}


@through("library")
@STORES
async def test_a_running_turn_keeps_its_session(world: World, store: str) -> None:
    async with world.open("sessions: {ttl: 1s, max_sessions: 1}", store=store) as hf:
        session = await hf.native.session("s")
        async with session.turn("Think.") as turn:
            world.clock.now += 5000
            await hf.native.sweep()
            await hf.given("other", user("One."))
            assert await status(hf) == "active"
            turn.add("Thought.")
        assert texts(await session.messages()) == ["Think.", "Thought."]


async def test_a_caller_closes_a_session(world: World) -> None:
    async with world.open(store="file") as hf:
        session = await hf.given("s", user("One."), assistant("Two."))
        closed = await session.close()
        assert (closed["status"], closed["end_reason"]) == ("closed", "close")
        assert texts(await session.messages()) == ["One.", "Two."]
        again = await session.close()
        assert again["ended_at"] == closed["ended_at"], "the first end counts"


@through(*HERE)
async def test_above_the_cap_the_longest_idle_goes_after_the_expired(world: World) -> None:
    async with world.open("sessions: {max_sessions: 2, ttl: 1h}", store="file") as hf:
        await hf.given("old", user("One."), ttl=60_000)
        world.clock.now += 1000
        await hf.given("idle", user("One."))
        world.clock.now += 70_000
        await hf.given("used", user("One."))
        assert [await status(hf, name) for name in ("old", "idle", "used")] == ["closed", "active", "active"]
        await hf.given("new", user("One."))
        assert (await hf.session("idle").info())["end_reason"] == "cap"
        await hf.session("idle").append(user("I am back."))
        assert [await status(hf, name) for name in ("idle", "used", "new")] == ["active", "closed", "active"]


@through(*HERE)
@pytest.mark.parametrize("ends", [["close"], ["delete"], ["close", "close", "delete"], ["close", "reopen", "close"]])
async def test_an_end_is_counted_once(world: World, ends: list[str]) -> None:
    async with world.open("sessions: {max_sessions: 2, ttl: 1h}", store="file") as hf:
        ended = await hf.given("ended", user("One."))
        await hf.given("idle", user("One."))
        for end in ends:
            await {"close": ended.close, "delete": ended.delete, "reopen": lambda: ended.append(user("Two."))}[end]()
        await hf.given("used", user("One."))
        assert await status(hf, "idle") == "active"
        await hf.given("new", user("One."))
        assert [await status(hf, name) for name in ("idle", "used", "new")] == ["closed", "active", "active"]


@through("library")
async def test_closed_sessions_are_deleted_after_the_retention(world: World) -> None:
    more = 96  # more than a sweep reads at a time
    async with world.open("storage: {sessions: {retention: 90d}}", store="file") as hf:
        for name in ("closed", "open", *map(str, range(more))):
            await hf.given(name, user("One."), ttl=0)
        for name in ("closed", *map(str, range(more))):
            await hf.session(name).close()
        world.clock.now += 90 * 24 * HOUR - 1
        assert (await hf.native.sweep()).deleted == 0
        world.clock.now += 1
        assert (await hf.native.sweep()).deleted == more + 1
        assert [await status(hf, name) for name in ("closed", "open")] == ["gone", "active"]
        page = await hf.native.deletions()
        assert {one.kind for one in page.deletions} == {"retention"}


@through("rest")
async def test_the_status_says_what_a_sweep_would_do(world: World) -> None:
    config = "{sessions: {ttl: 1h, max_sessions: 2}, storage: {sessions: {retention: 1h}}}"
    async with world.open(store="file") as hf:
        for name in ("a", "b"):
            await hf.given(name, user("One."))
        await hf.session("a").close()
        world.clock.now += HOUR
        for name in ("c", "d", "e"):
            await hf.given(name, user("One."))
    async with world.open(config, store="file") as hf:
        rules = (await hf.http.get("/v1/status")).json()["retention"]
        assert (rules["session_ttl"], rules["max_sessions"], rules["retention"]) == (HOUR, 2, HOUR)
        counts = {name: rules[name]["count"] for name in ("expired", "surplus", "retired")}
        assert counts == {"expired": 1, "surplus": 1, "retired": 1}


@through("library", "cli")
async def test_old_sessions_are_pruned(world: World) -> None:
    async with world.open(store="file") as hf:
        for name in ("a", "b"):
            await hf.given(name, user("One."))
        await hf.session("a").close()
        if world.driver == "cli":
            dry = await hf.call("sessions", "prune", "--older-than", "0s", "--dry-run")
            assert "Would delete 1 session, 1 message." in dry.err
            await hf.call("sessions", "prune", "--older-than", "0s")
        else:
            world.clock.now += 1000
            assert [one.id async for one, _ in hf.native.prune(1000, dry_run=True)] == ["a"]
            assert await status(hf, "a") == "closed"
            assert [one.id async for one, _ in hf.native.prune(1000)] == ["a"]
        assert [await status(hf, name) for name in ("a", "b")] == ["gone", "active"]


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"session_ttl": "soon"}, "session_ttl"),
        ({"session_ttl": "30m1h"}, "session_ttl"),
        ({"session_ttl": -1}, "session_ttl"),
        ({"session_ttl": True}, "session_ttl"),
        ({"session_ttl": float("nan")}, "session_ttl"),
        ({"session_ttl": "36501d"}, "session_ttl"),
        ({"retention": []}, "retention"),
        ({"max_sessions": "many"}, "max_sessions"),
        ({"max_sessions": 1.5}, "max_sessions"),
        ({"max_history_turns": 10_001}, "max_history_turns"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        open_holdfast("sqlite://:memory:", **settings)
    assert refusal.value.param == param


def test_durations_have_units_and_zero_is_never() -> None:
    life = open_holdfast("sqlite://:memory:", session_ttl="1h30m", max_sessions=5, retention=1.5).life
    assert (life.session_ttl, life.max_sessions, life.retention) == (5_400_000, 5, 1500)
    never = open_holdfast("sqlite://:memory:", session_ttl=None, max_sessions=0).life
    assert (never.session_ttl, never.max_sessions) == (0, 0)


@through("library")
async def test_the_next_sweep_waits_no_longer_than_a_short_ttl_lets_it(world: World) -> None:
    async with world.open(store="file") as hf:
        ended = asyncio.Event()
        world.native.on_expire(lambda *_: ended.set(), name="hook")
        await hf.given("s", user("One."), ttl=1000)
        world.clock.now += 1000
        await asyncio.wait_for(ended.wait(), 10)


@through("library", "connect", "rest")
async def test_a_write_may_expect_the_version_of_an_expired_session(world: World) -> None:
    """Who has read it as closed has seen its newest version."""
    async with world.open("sessions: {ttl: 1h}", store="file") as hf:
        session = await hf.given("s", user("One."))
        world.clock.now += 2 * HOUR
        closed = await session.info()
        assert closed["status"] == "closed"
        await session.append(user("Two."), expect=closed["version"])
        assert texts(await session.messages()) == ["One.", "Two."]
        assert (await session.info())["status"] == "active"
