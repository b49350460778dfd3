"""Statements of document 002: sessions over HTTP, search, artifacts, and the life of a session."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing import Reply
from tests.behaviour.kit import World, answer_of, assistant, gateway, refused, texts, through, user
from tests.behaviour.kit.examples import SEARCH, check_accepted
from tests.behaviour.kit.rest import ask

HOUR, DAY = 3_600_000, 86_400_000
BINARY = b"\x00\x01\x02\xff" * 50
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII=")
DEFAULTS = "agents: {assistant: {state: {topic: none, 'user:language': en}}}"
FILES = "agents: {assistant: {tools: [save_artifact, load_artifact]}}"


def tools_of(request: Any) -> list[str]:
    return [tool["function"]["name"] for tool in request.body.get("tools", [])]


async def test_002_66_the_details_of_a_session_can_be_read_by_its_id_alone() -> None:
    async with gateway(["Hello."], DEFAULTS) as served:
        await served.chat("Hi.", user="ada", model="assistant")
        found = await ask(served.http, "GET", "/sessions/s")
        assert (found["id"], found["agent"]) == ("s", "assistant")
        assert found["updated_at"].endswith("Z")
        assert texts(found["messages"]) == ["Hi.", "Hello."]
        assert found["state"] == {"topic": "none", "user:language": "en"}


async def test_002_68_an_agent_has_search_over_past_conversations(tmp_path: Path) -> None:
    await check_accepted(tmp_path, SEARCH)
    async with gateway(["Sure."], SEARCH) as served:
        assert answer_of(await served.chat("Hi.", model="assistant")) == "Sure."
        assert tools_of(served.upstream.requests[0]) == ["search_conversations"]


async def test_002_69_an_agent_names_a_model_that_is_not_configured() -> None:
    async with gateway(["Hi."]) as model:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": f"{model.upstream.url}"}
        async with gateway(None, SEARCH, env=env) as served:
            await served.chat("Hi.", model="assistant")
    assert model.upstream.requests[0].body["model"] == "gpt-4o"


SEARCHES = Reply(tool_calls=[("search_conversations", {"query": "price of zirconium"})])


async def test_002_70_the_agent_searches_past_conversations_itself() -> None:
    async with gateway([SEARCHES, "It was 42."], SEARCH + "      budget: 0\n") as served:
        await served.rest.given("old", user("The price of zirconium is 42 euros."))
        assert answer_of(await served.chat("What was it?", model="assistant")) == "It was 42."
        assert "zirconium is 42 euros" in texts(served.upstream.requests[1].body["messages"])[-1]


async def test_002_71_what_was_asked_yesterday_is_found() -> None:
    question = "What did I ask about yesterday?"
    async with gateway(["Noon.", "Rain.", "The ferry."], SEARCH) as served:
        served.clock.now -= served.clock.now % DAY - DAY // 2
        await served.chat("When does the ferry leave?", "one")
        served.clock.now += DAY - HOUR
        await served.chat("Will it rain on the glacier?", "two")
        found = await served.rest.search(question)
        assert [hit["session_id"] for hit in found] == ["one"]
        await served.chat(question, "three", model="assistant")
        prompt = str(served.upstream.requests[-1].body["messages"])
        assert "When does the ferry leave?" in prompt
        assert "glacier" not in prompt


async def test_002_72_the_searching_agent_gets_the_history_that_it_found() -> None:
    async with gateway([SEARCHES, "It was 42."], SEARCH) as served:
        await served.rest.given("old", user("The price of zirconium is 42 euros."))
        await served.chat("What was the price of zirconium?", model="assistant")
        assert "zirconium is 42 euros" in str(served.upstream.requests[0].body["messages"])


@pytest.mark.xfail(strict=True, reason="issue 47: the tool says that it found nothing")
async def test_002_72_a_hit_that_is_in_the_prompt_is_returned_and_marked() -> None:
    async with gateway([SEARCHES, "It was 42."], SEARCH) as served:
        await served.rest.given("old", user("The price of zirconium is 42 euros."))
        await served.chat("What was the price of zirconium?", model="assistant")
        returned = texts(served.upstream.requests[1].body["messages"])[-1]
        assert "zirconium is 42 euros" in returned
        assert "also above" in returned


async def test_002_73_sessions_store_binary_files(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/chat.db", "/v1/sessions/s/artifacts/data.bin"
    async with gateway(store=store) as served:
        await served.rest.create("s")
        assert (await served.http.put(path, content=BINARY)).status_code == 201
    async with gateway(store=store) as served:
        assert (await served.http.get(path)).content == BINARY


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [
        ("a.png", "image/png", PNG),
        ("a.md", "text/markdown", b"# Report"),
        ("a.unknown", "application/octet-stream", BINARY),
    ],
)
async def test_002_74_images_documents_and_other_types_are_stored(name: str, kind: str, data: bytes) -> None:
    async with gateway() as served:
        await served.rest.create("s")
        saved = await served.http.put(f"/v1/sessions/s/artifacts/{name}", content=data)
        assert (saved.json()["mime_type"], saved.json()["size"]) == (kind, len(data))
        loaded = await served.http.get(f"/v1/sessions/s/artifacts/{name}")
        assert (loaded.headers["content-type"].partition(";")[0], loaded.content) == (kind, data)


async def test_002_75_agents_save_artifacts_while_they_run() -> None:
    saves = ("save_artifact", {"name": "a.png", "content": base64.b64encode(PNG).decode(), "encoding": "base64"})
    async with gateway([Reply(tool_calls=[saves]), "Saved."], FILES) as served:
        reply = await served.chat("Draw.", model="assistant")
        assert [one["name"] for one in reply["session"]["artifacts"]] == ["a.png"]
        assert (await served.http.get("/v1/sessions/s/artifacts/a.png")).content == PNG


async def test_002_76_agents_read_them_back() -> None:
    script = [Reply(tool_calls=[("load_artifact", {"name": "a.md"})]), "60 m."]
    async with gateway(script, FILES) as served:
        await served.rest.create("s")
        await served.http.put("/v1/sessions/s/artifacts/a.md", content=b"The depth is 60 m.")
        assert answer_of(await served.chat("How deep?", model="assistant")) == "60 m."
        assert "The depth is 60 m." in texts(served.upstream.requests[1].body["messages"])[-1]


async def test_002_77_artifacts_live_as_long_as_their_session(tmp_path: Path) -> None:
    store, path = f"sqlite:///{tmp_path}/chat.db", "/v1/sessions/s/artifacts/a.md"
    async with gateway(store=store) as served:
        await served.rest.create("s")
        await served.http.put(path, content=b"# Report")
        await served.rest.session("s").close()
    async with gateway(store=store) as served:
        assert (await served.http.get(path)).text == "# Report"
        await served.rest.session("s").delete()
        assert (await served.http.get(path)).status_code == 404


async def test_002_78_the_first_message_creates_the_session() -> None:
    async with gateway(["Hello."]) as served:
        with refused("session_not_found"):
            await served.rest.session("s").info()
        await served.chat("Hi.")
        assert texts(await served.rest.session("s").messages()) == ["Hi.", "Hello."]


async def test_002_79_it_gets_a_unique_id() -> None:
    async with gateway(["Hello.", "Hello."], "gateway: {match: 'off'}") as served:
        ids = [(await served.chat("Hi.", None))["session_id"] for _ in range(2)]
        assert len(set(ids)) == 2
        assert all(one.startswith("sess_") for one in ids)


@pytest.mark.parametrize(("agent", "state"), [("default", {}), ("assistant", {"topic": "none", "user:language": "en"})])
async def test_002_80_state_starts_empty_or_with_defaults(agent: str, state: dict[str, str]) -> None:
    async with gateway(["Hello."], DEFAULTS) as served:
        await served.chat("Hi.", model=agent)
        assert await served.rest.session("s").state() == state


async def test_002_81_each_invocation_loads_filters_runs_and_saves() -> None:
    async with gateway(["Three."], "context: {strategy: buffer_window, window_size: 2}") as served:
        session = await served.rest.given("s", user("One."), assistant("Two."))
        await served.chat("Go on.")
        assert texts(served.upstream.requests[0].body["messages"]) == ["Two.", "Go on."]
        assert texts(await session.messages()) == ["One.", "Two.", "Go on.", "Three."]


class Steps:
    """Notes what is called after a turn, in order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def index(self, ref: Any, session: Any) -> None:
        self.taken.append(f"index {session.version}")

    def outline(self, messages: Any, *, earlier: Any, tokens: int) -> str:
        self.taken.append("summarize")
        return "They talked."


@through("library")
async def test_002_82_new_events_are_indexed_after_they_are_saved(world: World) -> None:
    steps = Steps()
    async with world.open(script=["One.", "Two."], indexer=steps) as hf:
        session = hf.session("s")
        for said in ("Hi.", "Go on."):
            await session.send(said)
            assert len(await session.messages()) > len(steps.taken)
    assert steps.taken == ["index 2", "index 4"]


@through("library")
async def test_002_83_a_due_summary_is_made_after_the_turn(world: World) -> None:
    steps = Steps()
    keys = {"budget": 600, "summarizer_llm": "outline"}
    roster = holdfast.Roster(context=holdfast.settings.ContextSettings("summary_buffer", keys))
    async with holdfast.open("sqlite://:memory:", roster=roster, summarizers={"outline": steps.outline}) as hf:
        session = await hf.session("s")
        for number in range(12):
            assert steps.taken == [] or len(await session.compactions()) <= len(steps.taken)
            await session.send(f"And order {number}, when does it come? " + "Please tell me. " * 10)
        assert steps.taken[0] == "summarize"


@pytest.mark.parametrize("failing", [False, True])
async def test_002_84_temporary_state_is_cleared_at_the_end(failing: bool) -> None:
    agents = """
agents:
  article: {sequence: [drafter, writer]}
  drafter: {instruction: "Before: {temp:draft?}.", output_key: "temp:draft"}
  writer: {instruction: "Draft: {temp:draft}."}
"""
    last: Any = Reply(status=400, error="no") if failing else "Done."
    async with gateway(["a draft", last, "another", "Done."], agents) as served:
        await served.chat("Hi.", model="article")
        await served.chat("Again.", model="article")
        asked = [texts(request.body["messages"])[0] for request in served.upstream.requests]
        assert asked == ["Before: .", "Draft: a draft.", "Before: .", "Draft: another."]
        assert await served.rest.session("s").state() == {}
        assert "temp:" not in (await served.http.get("/v1/sessions/s")).text


async def test_002_85_a_session_is_deleted_and_so_is_all_of_a_user() -> None:
    async with gateway() as served:
        for name in ("a", "b"):
            await served.rest.given(name, user("Hi."), user="ada")
        await served.rest.given("c", user("Hi."), user="bob")
        await ask(served.http, "DELETE", "/v1/sessions/a")
        assert [row["id"] for row in await served.rest.sessions(user="ada")] == ["b"]
        await served.rest.delete_user("ada")
        assert [row["id"] for row in await served.rest.sessions()] == ["c"]


@through("library", "rest")
async def test_002_86_sessions_expire_and_are_deleted_after_a_time(world: World) -> None:
    rules = ("sessions: {ttl: 1s}", "storage: {sessions: {retention: 1d}}")
    async with world.open(*rules, store="file") as hf:
        session = await hf.given("s", user("Hi."))
        world.clock.now += 1000
        found = await session.info()
        assert (found["status"], found["end_reason"]) == ("closed", "ttl")
    url = f"sqlite:///{world.folder}/chat.db"
    for moved, left in ((DAY - 1000, 1), (2000, 0)):
        world.clock.now += moved
        async with holdfast.open(url, clock=world.clock, session_ttl="1s", retention="1d") as again:
            await again.sweep()
            assert len((await again.sessions(user_id=None)).sessions) == left
