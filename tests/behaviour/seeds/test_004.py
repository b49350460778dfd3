"""Seed 004: sessions of agents, kept by a server and reconciled with each request."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import Served, answer_of, assistant, gateway, refused, result, texts, user

Row = dict[str, Any]
RECIPE = "sessions: {max_sessions: 128, ttl: 30m}\nstorage: {sessions: {backend: inmemory}}"
"""The values of the seed, as three keys."""
MINUTE = 60_000
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
VIDEO = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + base64.b64encode(b"film").decode()}}
SOUND = {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"sound").decode(), "format": "wav"}}
LOOK = {"type": "text", "text": "Look."}
FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
CALL = Reply(tool_calls=[{"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}])
PYTHON = "python: {enabled: true, unsandboxed: true}"


def echo(body: Row) -> str:
    """Answer the same question with the same words."""
    content = texts(body["messages"])[-1]
    return f"re: {content if isinstance(content, str) else content[0]['text']}"


def prompt(served: Served) -> list[Row]:
    """Return the messages that the model got last."""
    messages: list[Row] = served.upstream.requests[-1].body["messages"]
    return messages


def roles(messages: list[Row]) -> list[str]:
    return [message["role"] for message in messages]


def run_python(body: Row) -> Reply | str:
    """Run the code of the user's message, and report what came of it."""
    last = body["messages"][-1]
    return str(last["content"]) if last["role"] == "tool" else Reply(tool_calls=[("python", {"code": last["content"]})])


def list_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def run_client_tool(served: Served, **fields: Any) -> None:
    """One turn with a tool that the client runs; then its result."""
    await served.chat("Where is it?", tools=[FIND], **fields)
    await served.chat([result("c1", "in Oslo")], tools=[FIND], **fields)


# -- what a session holds -------------------------------------------------------------------------


async def test_004_1_calls_of_earlier_turns_are_kept() -> None:
    async with gateway([CALL, "Oslo.", "Yes."]) as served:
        await run_client_tool(served)
        await served.chat("Sure?")
        assert roles(prompt(served)) == ["user", "assistant", "tool", "assistant", "user"]
        assert prompt(served)[1]["tool_calls"][0]["function"]["name"] == "find"


async def test_004_2_results_of_tools_are_kept() -> None:
    async def find(what: str) -> str:
        """Find a thing."""
        return f"{what} is in Oslo"

    script = [Reply(tool_calls=[("find", {"what": "it"})]), "Oslo.", "Yes."]
    async with gateway(script, tools=[find]) as served:
        await served.chat("Where is it?")
        await served.chat("Sure?")
        assert texts(prompt(served))[2:] == ["it is in Oslo", "Oslo.", "Sure?"]


@pytest.mark.parametrize("part", [PICTURE, VIDEO, SOUND], ids=["image", "video", "audio"])
async def test_004_3_media_of_earlier_turns_are_kept(part: Row) -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, part])])
        await served.chat("Again?")
        assert prompt(served)[0]["content"] == [LOOK, part]


async def test_004_4_state_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with gateway(echo, RECIPE, store="") as served:
        await served.chat("Hi")
        assert (await served.rest.session().info())["message_count"] == 2
        assert list_files(tmp_path) == []


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        ([user("Hi"), assistant("re: Hi"), user("And?")], "continued"),
        ([user("And?")], "delta"),
        ([user("Hi"), assistant("no"), user("And?")], "edited"),
        ([user("Other"), assistant("re: Other"), user("And?")], "replaced"),
    ],
    ids=["continued", "delta", "edited", "replaced"],
)
async def test_004_5_each_request_is_reconciled(sent: list[Row], word: str) -> None:
    async with gateway(echo) as served:
        assert (await served.chat("Hi"))["session"]["reconciled"] == "new"
        mode = {"session_mode": "transcript"} if word == "replaced" else {}
        assert (await served.chat(sent, **mode))["session"]["reconciled"] == word


async def test_004_6_the_129th_session_evicts_one() -> None:
    async with gateway(echo, RECIPE) as served:
        for at in range(129):
            served.clock.now += 1
            await served.rest.create(f"s{at}")
        with refused("session_not_found"):
            await served.rest.session("s0").info()
        kept = [row["id"] for row in await served.rest.sessions(limit=200, status="active")]
        assert sorted(kept) == sorted(f"s{at}" for at in range(1, 129))


async def test_004_7_the_least_recently_used_session_is_evicted() -> None:
    async with gateway(echo, "sessions: {max_sessions: 2}") as served:
        for name in ("a", "b", "a", "c"):
            served.clock.now += 1
            await served.chat("Hi", name)
        assert sorted(row["id"] for row in await served.rest.sessions(status="active")) == ["a", "c"]


async def test_004_8_a_session_ends_after_30_idle_minutes() -> None:
    async with gateway(echo, RECIPE) as served:
        await served.chat("Hi")
        served.clock.now += 30 * MINUTE - 1
        assert (await served.rest.session().info())["message_count"] == 2
        served.clock.now += 1
        with refused("session_not_found"):
            await served.rest.session().info()


async def test_004_9_a_restart_loses_all_sessions() -> None:
    async with gateway(echo, RECIPE, store="") as served:
        await served.chat("Hi")
    async with gateway(echo, RECIPE, store="") as served:
        with refused("session_not_found"):
            await served.rest.session().info()


async def test_004_10_what_was_exported_survives_a_restart() -> None:
    async with gateway(echo, RECIPE, store="") as served:
        await served.chat("Hi")
        exported = await served.rest.session().export()
    async with gateway(echo, RECIPE, store="") as served:
        await served.rest.import_session(exported)
        await served.chat("And?")
        assert texts(prompt(served)) == ["Hi", "re: Hi", "And?"]


async def test_004_11_the_history_includes_tool_messages_and_calls() -> None:
    async with gateway([CALL, "Oslo."]) as served:
        await run_client_tool(served)
        exported = await served.rest.session().export()
        assert roles(exported["messages"]) == ["user", "assistant", "tool", "assistant"]
        assert exported["messages"][1]["tool_calls"][0]["id"] == "c1"


@pytest.mark.parametrize(
    ("part", "kind", "mime_type"),
    [
        pytest.param(PICTURE, "images", "image/png", id="004-12"),
        pytest.param(VIDEO, "videos", "video/mp4", id="004-13"),
    ],
)
async def test_004_media_are_part_of_a_session(part: Row, kind: str, mime_type: str) -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, part])])
        exported = await served.rest.session().export()
        assert [(one["seq"], one["mime_type"]) for one in exported[kind]] == [(0, mime_type)]
        assert exported["messages"][0]["content"][1] == part


async def test_004_14_a_session_holds_its_python_process() -> None:
    async with gateway(run_python, PYTHON) as served:
        await served.chat("x = 6 * 7")
        assert json.loads(answer_of(await served.chat("x")))["result"] == "42"
        assert json.loads(answer_of(await served.chat("x", "another")))["status"] == "error"


# -- finding the session --------------------------------------------------------------------------


async def test_004_15_a_request_can_name_its_session() -> None:
    async with gateway(echo) as served:
        await served.chat("Hi", "a")
        again = await served.chat([user("Something else"), assistant("Yes."), user("More")], "a")
        assert (again["session_id"], len(await served.rest.sessions())) == ("a", 1)


async def test_004_16_without_an_id_the_visible_beginning_finds_the_session() -> None:
    async with gateway(echo) as served:
        first = await served.chat("Hi", None)
        again = await served.chat([user("Hi"), assistant("re: Hi"), user("And?")], None)
        assert (again["session_id"], again["session"]["reconciled"]) == (first["session_id"], "continued")


async def test_004_17_the_longest_match_wins() -> None:
    async with gateway(echo) as served:
        short = [user("Hi"), assistant("re: Hi")]
        long = [*short, user("And?"), assistant("re: And?")]
        await served.rest.given("long", *long)
        await served.rest.given("short", *short)
        assert (await served.chat([*long, user("More")], None))["session_id"] == "long"


async def test_004_18_stored_tool_entries_are_skipped_in_the_comparison() -> None:
    async with gateway([CALL, "Oslo.", "Yes."]) as served:
        await run_client_tool(served)
        again = await served.chat([user("Where is it?"), assistant("Oslo."), user("Sure?")], None)
        assert (again["session_id"], again["session"]["reconciled"]) == ("s", "continued")


async def test_004_19_equal_openings_can_share_a_session_after_an_equal_reply() -> None:
    async with gateway(echo) as served:
        first, second = await served.chat("Hi", None), await served.chat("Hi", None)
        assert first["session_id"] != second["session_id"]
        again = await served.chat([user("Hi"), assistant("re: Hi"), user("I am the first")], None)
        assert again["session_id"] == second["session_id"]


async def test_004_20_a_named_session_avoids_that() -> None:
    async with gateway(echo) as served:
        for name in ("a", "b"):
            await served.chat("Hi", name)
        for name in ("b", "a"):
            again = await served.chat([user("Hi"), assistant("re: Hi"), user(f"I am {name}")], name)
            assert again["session_id"] == name
        assert texts(prompt(served)) == ["Hi", "re: Hi", "I am a"]


# -- merging --------------------------------------------------------------------------------------


async def test_004_21_the_merge_keeps_stored_results_and_calls() -> None:
    async with gateway([CALL, "Oslo.", "Yes."]) as served:
        await run_client_tool(served)
        await served.chat([user("Where is it?"), assistant("Oslo."), user("Sure?")])
        assert roles(prompt(served)) == ["user", "assistant", "tool", "assistant", "user"]


async def test_004_22_the_texts_of_the_client_win() -> None:
    async with gateway(echo) as served:
        await served.chat("Hi")
        again = await served.chat([user("Hi"), assistant("Better."), user("And?")])
        assert texts(prompt(served)) == ["Hi", "Better.", "And?"]
        assert again["session"]["reconciled"] == "edited"


async def test_004_23_after_the_first_difference_no_stored_history_is_used() -> None:
    async with gateway(echo) as served:
        for text in ("One", "Two", "Three"):
            await served.chat(text)
        rest = [user("Zwei"), assistant("re: Zwei"), user("Drei")]
        await served.chat([user("One"), assistant("re: One"), *rest])
        assert prompt(served) == [user("One"), assistant("re: One"), *rest]


async def test_004_24_the_rest_of_the_request_follows_unchanged() -> None:
    async with gateway(echo) as served:
        await served.chat("One")
        await served.chat([user("One"), assistant("re: One"), user("a  b\n"), assistant("  c "), user("d\u2028e")])
        assert texts(prompt(served)) == ["One", "re: One", "a  b\n", "  c ", "d\u2028e"]


async def test_004_25_editing_an_earlier_turn_takes_effect() -> None:
    async with gateway(echo) as served:
        await served.chat("One")
        await served.chat("Two")
        again = await served.chat([user("One"), assistant("re: One"), user("2")])
        assert (again["session"]["edited_at"], answer_of(again)) == (2, "re: 2")
        assert texts(await served.rest.session().messages()) == ["One", "re: One", "2", "re: 2"]


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("gateway: {single_user: false}", {"session_id": "s"}),
        ("gateway: {single_user: false}", {"session_id": None, "user": "ada"}),
        ("gateway: {single_user: true}", {"session_id": None}),
        ("gateway: {single_user: false, match: anyone}", {"session_id": None}),
    ],
    ids=["named session", "named user", "single user", "anyone"],
)
async def test_004_26_calls_from_before_an_edit_are_kept(config: str, named: Row) -> None:
    async with gateway([CALL, "Oslo.", "Yes.", "No."], config) as served:
        await run_client_tool(served, **{**named, "session_id": "s"})
        seen = [user("Where is it?"), assistant("Oslo.")]
        await served.chat([*seen, user("Sure?")], **named)
        await served.chat([*seen, user("Really?")], **named)
        assert roles(prompt(served)) == ["user", "assistant", "tool", "assistant", "user"]
        assert texts(prompt(served))[-1] == "Really?"


async def test_004_26_an_edit_by_a_caller_without_a_name_reaches_no_session() -> None:
    async with gateway([CALL, "Oslo.", "Yes."], "gateway: {single_user: false}") as served:
        await run_client_tool(served)
        again = await served.chat([user("Where is it?"), assistant("Oslo."), user("Really?")], None)
        assert again["session_id"] != "s"
        assert texts(prompt(served)) == ["Where is it?", "Oslo.", "Really?"]


@pytest.mark.parametrize("part", [PICTURE, VIDEO], ids=["image", "video"])
async def test_004_27_media_of_the_session_are_attached_again(part: Row) -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, part])])
        await served.chat([user("Look."), assistant("re: Look."), user("Again?")])
        assert prompt(served)[0]["content"] == [LOOK, part]


@pytest.mark.parametrize("part", [PICTURE, VIDEO], ids=["image", "video"])
async def test_004_27_an_edited_message_keeps_its_media(part: Row) -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, part])])
        await served.chat([user("Look here."), assistant("re: Look."), user("Again?")])
        assert part in prompt(served)[0]["content"]


async def test_004_28_a_plain_text_message_becomes_multimodal_for_that() -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, PICTURE])])
        await served.chat([user("Look."), assistant("re: Look."), user("Again?")])
        assert prompt(served) == [user([LOOK, PICTURE]), assistant("re: Look."), user("Again?")]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_004_29_after_a_turn_the_expanded_list_is_written_back(stream: bool) -> None:
    def find() -> str:
        """Find it."""
        return "in Oslo"

    async with gateway([Reply(tool_calls=[("find", {})]), "Oslo."], tools=[find]) as served:
        body = {"session_id": "s", "messages": [user("Where is it?")], "stream": stream}
        await served.http.post("/v1/chat/completions", json=body)
        messages = (await served.rest.session().export())["messages"]
        assert roles(messages) == ["user", "assistant", "tool", "assistant"]
        assert texts(messages) == ["Where is it?", None, "in Oslo", "Oslo."]


async def test_004_29_the_message_of_the_user_is_stored_after_a_failure_too() -> None:
    async with gateway([Reply(status=500, error="no")]) as served:
        assert (await served.chat("Where is it?"))["status"] == 502
        assert texts((await served.rest.session().export())["messages"]) == ["Where is it?"]


async def test_004_30_later_requests_with_the_id_see_the_tool_messages() -> None:
    async with gateway([CALL, "Oslo.", "Yes."]) as served:
        await run_client_tool(served)
        await served.chat("Sure?", "s")
        assert texts(prompt(served)) == ["Where is it?", None, "in Oslo", "Oslo.", "Sure?"]


# -- what is not stored ---------------------------------------------------------------------------


async def test_004_31_sampling_parameters_belong_to_one_request() -> None:
    async with gateway(echo) as served:
        await served.chat("One", temperature=0.1, top_p=0.5)
        await served.chat("Two", temperature=0.9)
        await served.chat("Three")
        seen = [(one.body.get("temperature"), one.body.get("top_p")) for one in served.upstream.requests]
        assert seen == [(0.1, 0.5), (0.9, None), (None, None)]


async def test_004_32_tool_schemas_come_from_the_request_or_the_server() -> None:
    async with gateway(echo, PYTHON) as served:
        await served.chat("One", tools=[FIND])
        await served.chat("Two")
        seen = [[one["function"]["name"] for one in sent.body["tools"]] for sent in served.upstream.requests]
        assert [("find" in names, "python" in names) for names in seen] == [(True, True), (False, True)]


async def test_004_33_the_python_process_is_not_exported() -> None:
    async with gateway(run_python, PYTHON) as served:
        await served.chat("x = 6 * 7")
        await served.rest.import_session(await served.rest.session().export(), session_id="copy")
        assert "NameError" in json.loads(answer_of(await served.chat("x", "copy")))["exception"]
        assert json.loads(answer_of(await served.chat("x")))["result"] == "42"


# -- export and import ----------------------------------------------------------------------------


async def test_004_34_get_returns_messages_images_and_videos() -> None:
    async with gateway(echo) as served:
        await served.chat([user([LOOK, PICTURE, VIDEO])])
        exported = (await served.http.get("/v1/sessions/s")).json()
        assert [len(exported[name]) for name in ("messages", "images", "videos")] == [2, 1, 1]
        assert exported["messages"][0]["content"] == [LOOK, PICTURE, VIDEO]


THEIRS = {
    "messages": [
        user([{"type": "image"}, {"type": "text", "text": "Look."}]),
        assistant("I see."),
    ],
    "images": [PNG],
    "videos": [],
}
"""A session of another server: its pictures are not in the messages."""


@pytest.mark.parametrize("theirs", [False, True], ids=["own export", "media apart"])
async def test_004_35_put_installs_a_session_under_an_id(theirs: bool) -> None:
    async with gateway(echo) as served:
        await served.rest.given("first", user([LOOK, PICTURE]), assistant("I see."))
        body = THEIRS if theirs else {**(await served.rest.session("first").export()), "id": "mine"}
        assert (await served.http.put("/v1/sessions/mine", json=body)).json()["imported"] is True
        await served.chat("And?", "mine")
        assert texts(prompt(served))[1:] == ["I see.", "And?"]
        assert PICTURE in prompt(served)[0]["content"]


async def test_004_36_put_carries_a_session_over_a_restart() -> None:
    async with gateway(echo) as served:
        await served.chat("Hi")
        exported = await served.rest.session().export()
    async with gateway(echo) as served:
        assert (await served.rest.import_session(exported))["imported"] is True
        assert texts(await served.rest.session().messages()) == ["Hi", "re: Hi"]


async def test_004_37_put_moves_a_session_to_another_server() -> None:
    async with gateway(echo) as served, gateway(echo) as other:
        await served.chat([user([LOOK, PICTURE, VIDEO])])
        exported = await served.rest.session().export()
        await other.rest.import_session(exported)
        copy = await other.rest.session().export()
        for name in ("messages", "images", "videos"):
            assert copy[name] == exported[name]
        assert (await other.chat("And?"))["session"]["reconciled"] == "delta"
        assert prompt(other) == [user([LOOK, PICTURE, VIDEO]), assistant("re: Look."), user("And?")]
