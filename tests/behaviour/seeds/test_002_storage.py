"""Statements of document 002 about sessions, state, databases, and the routes of sessions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import ToolContext, tool_from
from holdfast.errors import ConfigError
from holdfast.testing import Reply
from tests.behaviour.kit import World, assistant, gateway, refused, texts, through, user
from tests.behaviour.kit.data import Files, State
from tests.behaviour.kit.examples import BLOCKS, POSTGRES, SESSIONS, TEMPLATE, check_accepted
from tests.behaviour.kit.seams import fresh_store

IN_MEMORY = BLOCKS["in memory"]
TALK = [(user, assistant)[at % 2](f"Message {at}.") for at in range(100)]


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(name, id=f"002-1 002-30 {name}")
        for name in ("none", "buffer_window", "token_window", "digest", "salience", "head_tail")
    ],
)
async def test_002_the_store_holds_the_whole_history(strategy: str) -> None:
    async with gateway(["Done."], f"context: {{strategy: {strategy}}}") as served:
        await served.rest.given("s", *TALK)
        await served.chat("And now?")
        assert texts(await served.rest.session("s").messages()) == [
            *(message["content"] for message in TALK), "And now?", "Done.",
        ]  # fmt: skip


@pytest.mark.parametrize("statement", [pytest.param("state", id="002-2"), pytest.param("artifact", id="002-3")])
async def test_002_a_session_holds_state_and_artifacts_through_a_restart(statement: str, tmp_path: Path) -> None:
    with fresh_store("file", tmp_path) as url:
        async with gateway([], store=url) as served:
            session = await served.rest.given("s", user("Hi."))
            if statement == "state":
                await session.change_state(topic={"a": [1]})
            else:
                await Files(session).save("a.bin", b"\x00\xff")
        async with gateway([], store=url) as served:
            session = served.rest.session("s")
            if statement == "state":
                assert await session.state() == {"topic": {"a": [1]}}
            else:
                assert await Files(session).load("a.bin") == b"\x00\xff"


async def test_002_8_in_memory_sessions_can_be_configured(tmp_path: Path) -> None:
    await check_accepted(tmp_path, IN_MEMORY)
    async with gateway(["Hello."], IN_MEMORY, store="") as served:
        assert (await served.chat("Hi."))["status"] == 200
        assert texts(await served.rest.session("s").messages()) == ["Hi.", "Hello."]


async def test_002_9_in_memory_data_is_gone_after_a_restart() -> None:
    async with gateway([], IN_MEMORY, store="") as served:
        session = await served.rest.given("s", user("Hi."))
        await session.change_state(a=1)
        await Files(session).save("a.txt", "x")
    async with gateway([], IN_MEMORY, store="") as served:
        session = served.rest.session("s")
        for read in (session.export(), session.state(), Files(session).load("a.txt")):
            with refused("session_not_found"):
                await read


async def test_002_10_sql_sessions_need_no_section_of_databases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_accepted(tmp_path, SESSIONS)
    monkeypatch.chdir(tmp_path)
    async with gateway(["Hello."], SESSIONS, store="") as served:
        await served.chat("Hi.")
    assert (tmp_path / "holdfast.db").is_file()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("file", id="002-11 002-12"),
        pytest.param("postgres", id="002-11 002-13"),
        pytest.param("mysql", id="002-11 002-14"),
    ],
)
async def test_002_sql_sessions_survive_restarts(kind: str, tmp_path: Path) -> None:
    with fresh_store(kind, tmp_path) as url:
        async with gateway(["Hello."], store=url) as served:
            await served.chat("Hi.")
            await served.rest.session("s").change_state(**{"topic": "x", "user:a": 1})
            await Files(served.rest.session("s")).save("a.bin", b"\x00\xff")
        async with gateway(["Again."], store=url) as served:
            await served.chat("And?")
            session = served.rest.session("s")
            assert texts(await session.messages()) == ["Hi.", "Hello.", "And?", "Again."]
            assert await session.state() == {"topic": "x", "user:a": 1}
            assert await Files(session).load("a.bin") == b"\x00\xff"


@pytest.mark.parametrize("kind", [pytest.param(name, id=f"002-15 002-16 {name}") for name in ("postgres", "mysql")])
async def test_002_a_database_has_a_host_a_name_and_credentials(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credentials come from the environment. A variable that is not set is named."""
    with fresh_store(kind, tmp_path) as url:
        address, _, place = url.partition("://")[2].rpartition("/")
        account, _, server = address.rpartition("@")
        host, _, port = server.partition(":")
        database, _, schema = place.partition("?schema=")
        config = f"""
databases:
  main:
    driver: {kind}
    host: {host}
    port: {port or {"postgres": 5432, "mysql": 3306}[kind]}
    database: {database}
    user: ${{DB_USER}}
    password: ${{DB_PASSWORD:-}}
    options: {{{f"schema: {schema}" if schema else ""}}}
{SESSIONS}"""
        name, _, password = account.partition(":")
        env = {"DB_USER": name, "DB_PASSWORD": password}
        async with gateway(["Hello."], config, store="", env=env) as served:
            await served.chat("Hi.")
        async with gateway([], store=url) as served:
            assert texts(await served.rest.session("s").messages()) == ["Hi.", "Hello."]
    with pytest.raises(ConfigError, match="DB_USER"):
        async with gateway([], config, store="", env={}):
            pass


async def test_002_17_the_postgres_example_is_accepted_as_written(tmp_path: Path) -> None:
    await check_accepted(tmp_path, POSTGRES + SESSIONS)


# -- state -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "seen"),
    [
        pytest.param("topic", [True, False, False], id="002-18"),
        pytest.param("user:theme", [True, True, False], id="002-19"),
        pytest.param("app:version", [True, True, True], id="002-20"),
        pytest.param("temp:step", [False, False, False], id="002-21"),
    ],
)
@through("library", "connect", "rest")
async def test_002_a_prefix_says_who_sees_a_key(world: World, key: str, seen: list[bool]) -> None:
    async with world.open() as hf:
        places = [("s", "ada"), ("t", "ada"), ("s", "bob")]
        for name, owner in places:
            await hf.given(name, user("Hi."), user=owner)
        await State(hf, "s", "ada").set(**{key: "x"})
        assert [key in await State(hf, name, owner).all() for name, owner in places] == seen


WRITTEN = {
    "last_search": "deployment kubernetes",
    "current_topic": "infrastructure",
    "user:theme": "dark",
    "user:language": "en",
    "user:preferences": '{"notifications": true}',
    "app:version": "2.0.0",
    "app:announcement": "Maintenance at 2 AM",
}
"""The examples of the document."""


@through("library", "rest")
@pytest.mark.parametrize(
    "statement",
    [pytest.param(name, id=f"002-{name}") for name in ("21", "22", "23", "24", "25")],
)
async def test_002_tools_write_and_read_state_of_all_scopes(world: World, statement: str) -> None:
    seen: list[Any] = []

    async def write(context: ToolContext) -> str:
        for key, value in {**WRITTEN, "temp:processing": "true", "temp:intermediate_result": {"rows": [1]}}.items():
            context.state[key] = value
        return "written"

    async def read(context: ToolContext) -> str:
        seen.append({key: context.state.get(key) for key in (*WRITTEN, "temp:processing", "temp:intermediate_result")})
        return "read"

    script = [Reply(tool_calls=[(name, {})]) for name in ("write", "read")] + ["Done."]
    async with world.open(script=[*script, *script[1:]], tools=[tool_from(write), tool_from(read)]) as hf:
        session = hf.session("s", "ada")
        await session.send(user("Go."))
        await session.send(user("Again."))
        stored = await session.state()
        first, second = seen
        if statement == "22":
            assert stored == WRITTEN
        elif statement == "23":
            assert {key: second[key] for key in WRITTEN} == WRITTEN
        elif statement == "24":
            assert stored["user:preferences"] == '{"notifications": true}'
        elif statement == "25":
            assert (first["temp:processing"], first["temp:intermediate_result"]) == ("true", {"rows": [1]})
        else:
            assert (second["temp:processing"], second["temp:intermediate_result"]) == (None, None)


@pytest.mark.parametrize(
    ("state", "system"),
    [
        pytest.param({"user:language": "en", "app:version": "2.0.0"}, ["en", "", "2.0.0"], id="002-26 002-27 002-28"),
        pytest.param(
            {"user:language": "pt", "current_topic": "kelp", "app:version": "3"}, ["pt", "kelp", "3"], id="002-27"
        ),
    ],
)
async def test_002_an_instruction_has_values_of_state(state: dict[str, str], system: list[str]) -> None:
    async with gateway(["Hello."], TEMPLATE) as served:
        session = await served.rest.create("s", user="default", agent="assistant")
        await session.change_state(**state)
        await served.chat("Hi.", model="assistant")
        sent = texts(served.upstream.requests[0].body["messages"])[0]
        assert [line.partition(": ")[2] for line in sent.strip().splitlines()] == system


@pytest.mark.parametrize(
    "missing", [pytest.param("user:language", id="002-26"), pytest.param("app:version", id="002-28")]
)
async def test_002_a_value_that_an_instruction_needs_is_named(missing: str) -> None:
    async with gateway([], TEMPLATE) as served:
        session = await served.rest.create("s", user="default", agent="assistant")
        await session.change_state(**dict.fromkeys({"user:language", "app:version"} - {missing}, "x"))
        reply = await served.chat("Hi.", model="assistant")
        assert (reply["status"], reply["error"]["code"]) == (400, "missing_state")
        assert missing in reply["error"]["message"]


async def test_002_29_the_example_of_an_instruction_is_accepted_as_written(tmp_path: Path) -> None:
    await check_accepted(tmp_path, TEMPLATE)


# -- routes of sessions ----------------------------------------------------------------


async def list_sessions(served: Any) -> Any:
    for name, owner in (("sess_def", "user123"), ("sess_abc", "user123"), ("x", "eve")):
        await served.rest.given(name, user("Hi."), user=owner, agent="assistant")
        served.clock.now += 1000
    return (await served.http.get("/sessions?user_id=user123")).json()


@pytest.mark.parametrize("statement", [pytest.param(name, id=f"002-{name}") for name in ("61", "62", "63", "64")])
async def test_002_the_sessions_of_a_user_are_listed(statement: str) -> None:
    async with gateway([], "agents: {assistant: {}}") as served:
        listed = await list_sessions(served)
        rows = listed["sessions"]
        if statement == "61":
            assert {row["id"] for row in rows} == {"sess_abc", "sess_def"}
        elif statement == "62":
            assert list(listed) == ["sessions"]
            assert [sorted(row) for row in rows] == [["agent", "id", "updated_at"]] * 2
            assert {row["agent"] for row in rows} == {"assistant"}
        elif statement == "63":
            pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"
            assert all(re.fullmatch(pattern, row["updated_at"]) for row in rows)
        else:
            assert [row["id"] for row in rows] == ["sess_abc", "sess_def"]


async def test_002_65_a_session_is_deleted() -> None:
    async with gateway([], "agents: {assistant: {}}") as served:
        await list_sessions(served)
        assert (await served.http.delete("/sessions/sess_abc")).status_code == 200
        assert (await served.http.get("/sessions/sess_abc")).status_code == 404
        listed = (await served.http.get("/sessions?user_id=user123")).json()
        assert [row["id"] for row in listed["sessions"]] == ["sess_def"]
