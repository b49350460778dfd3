"""Reading a log: ranges, pages, the end of the log, and lists of sessions."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, system, texts, through, user
from tests.behaviour.kit.rest import ask

LETTERS = "abcdefgh"


@through("library", "connect")
async def test_entries_of_a_range(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s", *map(user, LETTERS))).native()

        async def read(*range_: Any, **options: Any) -> str:
            return "".join([entry.message.text for entry in await handle.entries(*range_, **options)])

        assert await read() == LETTERS
        assert await read(1, 2) == "bc"
        assert await read(1, stop=3) == "bc"
        assert await read(limit=2, descending=True) == "hg"
        assert await read(2, stop=6, descending=True) == "fedc"
        assert await read(5, limit=9) == "fgh"
        assert await read(limit=0) == await read(stop=0) == await read(9) == ""
        for wrong in ({"start": -1}, {"limit": "2"}, {"stop": 1.5}, {"limit": True}):
            with refused("invalid_request", next(iter(wrong))):
                await handle.entries(**wrong)


@through("library", "connect")
async def test_a_limit_may_be_larger_than_a_page_of_the_server(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s", *[user(str(at)) for at in range(450)])).native()
        assert [one.seq for one in await handle.entries(limit=250)] == [*range(250)]
        assert [one.seq for one in await handle.entries(limit=250, descending=True)] == [*range(449, 199, -1)]


@pytest.mark.parametrize(
    ("log", "kind", "open_calls"),
    [
        ([], None, ()),
        ([user("a")], "user", ()),
        ([user("a"), assistant("b")], "assistant", ()),
        ([user("a"), calls(("c1", "f", {}), ("c2", "f", {}))], "calls", ("c1", "c2")),
        ([user("a"), calls(("c1", "f", {}), ("c2", "f", {})), result("c2", "x")], "result", ("c1",)),
        ([user("a"), calls(("c1", "f", {})), result("c1", "x")], "result", ()),
        ([user("a"), calls(("c1", "f", {})), user("b")], "user", ()),
        ([user("a"), assistant("b"), system("c")], "system", ()),
    ],
)
@through("library")
async def test_the_end_of_the_log_says_what_is_missing(world: World, log: Any, kind: Any, open_calls: Any) -> None:
    async with world.open() as hf:
        tail = (await (await (await hf.given("s", *log)).native()).info()).tail
        assert (tail.last_kind, tuple(tail.open_calls)) == (kind, open_calls)


async def test_a_session_has_counts_and_times(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("Where is it?"), assistant("Here."), user("Thanks."), user="ada")
        info = await session.info()
        assert (info["id"], info["user_id"], info["status"]) == ("s", "ada", "active")
        assert (info["message_count"], info["turns"]) == (3, 2)
        assert info["tokens"] == sum(one["tokens"] for one in await session.messages()) > 0
        assert info["created_at"] <= info["updated_at"]


@through("library", "connect", "rest")
async def test_sessions_are_listed_by_user_agent_status_and_time(world: World) -> None:
    async with world.open("agents: {kim: {}}", "sessions: {ttl: 0}", store="file") as hf:
        for at, (name, user_id, agent) in enumerate((("a", "ada", None), ("b", "ada", "kim"), ("c", "bob", "kim"))):
            world.clock.now += 1000
            await hf.create(name, user=user_id, agent=agent)
            if at == 0:
                between = world.clock.now + 1

        async def names(**options: Any) -> list[str]:
            return [row["id"] for row in await hf.sessions(**options)]

        await hf.session("c", "bob").close()
        assert await names() == ["c", "b", "a"]
        assert await names(order="asc") == ["a", "b", "c"] if world.driver == "rest" else True
        assert await names(user="ada") == ["b", "a"]
        assert await names(agent="kim") == ["c", "b"]
        assert await names(status="closed") == ["c"]
        assert await names(since=between) == ["c", "b"]
        assert await names(until=between) == ["a"]
        assert await names(limit=2) == ["c", "b"]


@through("rest")
async def test_without_a_user_the_only_session_of_that_id_is_found(world: World) -> None:
    """That of the user `default` comes first; of several others none is chosen."""
    async with world.open() as hf:
        await hf.given("s", user("Ada's."), user="ada")
        assert texts((await ask(hf.http, "GET", "/v1/sessions/s"))["messages"]) == ["Ada's."]
        await hf.given("s", user("Bob's."), user="bob")
        with refused("ambiguous_session", "several users have a session 's'"):
            await ask(hf.http, "GET", "/v1/sessions/s")
        await hf.given("s", user("Mine."))
        assert texts((await ask(hf.http, "GET", "/v1/sessions/s"))["messages"]) == ["Mine."]


@through("library", "connect")
async def test_get_finds_an_existing_session_and_creates_none(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), user="ada")
        assert (await hf.native.get("s", user_id="ada")).ref == session.ref
        for user_id in ("default", "bob"):
            with refused("session_not_found", "'s'"):
                await hf.native.get("s", user_id=user_id)
        with refused("invalid_request", "ref"):
            await hf.native.get(7)
        assert len(await hf.sessions()) == 1


@through("library", "connect")
async def test_session_finds_or_creates_and_changes_only_what_is_given(world: World) -> None:
    async with world.open("agents: {kim: {}}") as hf:
        first = await hf.native.session("s", user_id="ada", system="Be old.")
        assert (await hf.native.session("s", user_id="ada", system=["Be new.", "Be brief."])).ref == first.ref
        for given in ({"system": ["Be new.", "Be brief."]}, {}, {"system": None}):
            version = (await first.info()).version
            await hf.native.session("s", user_id="ada", **given)
            assert (await first.info()).version == version
        assert [one.text for one in (await first.info()).system_messages] == ["Be new.", "Be brief."]
        async with first.turn("hello") as turn:
            assert texts(turn.messages) == ["Be new.", "Be brief.", "hello"]
        assert (await hf.native.session()).id != (await hf.native.session()).id
        for wrong in ({"agent": "nobody"}, {"session_id": ""}, {"session_id": 5}, {"system": 5}, {"system": [5]}):
            code = "invalid_message" if wrong.get("system") == [5] else "invalid_request"
            with refused(code, next(iter(wrong)).removeprefix("session_")):
                await hf.native.session(**{"session_id": "new", **wrong})
        assert await first.delete() is True
        assert await first.delete() is False


async def test_another_users_session_looks_as_if_it_did_not_exist(world: World) -> None:
    async with world.open() as hf:
        await hf.given("s", user("Ada's."), user="ada")
        other = hf.session("s", "bob")
        for reaching in (
            other.info(),
            other.export(),
            other.annotate(0, pinned=True),
            other.fork(id="f"),
            other.rewind(0),
            other.move(user_id="carol"),
            other.close(),
            other.delete(),
        ):
            with refused("session_not_found", "'s'"):
                await reaching
        assert texts(await hf.session("s", "ada").messages()) == ["Ada's."]
        assert await hf.sessions(user="bob") == []
