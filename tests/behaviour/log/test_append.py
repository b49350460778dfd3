"""Appending messages: what is stored, what is refused, and that a write happens once or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from holdfast import Message
from tests.behaviour.kit import World, assistant, calls, fresh_store, refused, result, system, texts, through, user

CALL = calls(("c1", "find", {"n": 1}), text="Let me look.")
AS_WRITTEN: dict[str, dict[str, Any]] = {
    "text": user("Where is it?"),
    "name": user("Where is it?", name="Ada"),
    "parts": user([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "x"}}]),
    "link": user([{"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}]),
    "system": system("Be kind."),
    "developer": {"role": "developer", "content": "Be brief."},
    "null": assistant(None),
    "no content": {"role": "assistant", "refusal": "No."},
    "unknown fields": assistant("Yes.", reasoning_content="Hm.", vendor={"a": [1, None, 2.5]}),
    "calls": CALL,
    "custom call": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sh", "input": "ls"}, "more": 1}],
    },
    "invalid arguments": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{not json", "x": 1}}],
    },
}
ENTRY_FIELDS = {"seq", "turn_id", "timestamp", "tokens"}


@pytest.mark.parametrize("name", AS_WRITTEN)
async def test_a_message_comes_back_with_all_its_fields(world: World, name: str) -> None:
    """Unknown ones too."""
    async with world.open() as hf:
        session = await hf.given("s", user("Before."), AS_WRITTEN[name])
        _, entry = await session.messages()
        assert {field: value for field, value in entry.items() if field not in ENTRY_FIELDS} == AS_WRITTEN[name]
        assert (entry["seq"], entry["turn_id"]) == (1, 0)
        assert entry["tokens"] > 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"role": "wizard", "content": "x"}, "role"),
        ({"content": "x"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 5}, "content"),
        ({"role": "user", "content": [{"text": "x"}]}, "type"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
        ({"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}, "tool_calls"),
        ({"role": "assistant", "content": None, "tool_calls": "x"}, "tool_calls"),
        (user("x", name=5), "name"),
        (user("x", pinned="yes"), "pinned"),
        (user("x", importance=2), "importance must be a number from 0 to 1"),
        (user("x", timestamp=-1), "timestamp"),
        (user("x", turn_id=-1), "turn_id"),
        (user("x", metadata=[1]), "metadata"),
        (user("x", agent=5), "agent"),
        (user("x", agent=""), "agent"),
    ],
)
async def test_an_invalid_message_is_named_and_nothing_is_written(world: World, wrong: Any, words: str) -> None:
    """The messages before it neither."""
    async with world.open() as hf:
        session = await hf.given("s", user("Before."))
        code = "invalid_request" if wrong.get("agent") == "" else "invalid_message"
        with refused(code, words):
            await (hf.given("t", user("a"), wrong) if world.driver == "cli" else session.append(user("a"), wrong))
        assert texts(await session.messages()) == ["Before."]
        assert len(await hf.sessions()) == 1


@through("library", "connect")
async def test_texts_structs_and_objects_of_clients_are_messages(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        sdk = ChatCompletionMessage(role="assistant", content="b")
        await session.append("a", sdk, Message(role="user", content="c"), user("d"))
        assert texts(await session.messages()) == ["a", "b", "c", "d"]
        with refused("invalid_message"):
            await session.append(Message(role="user", content=5))  # type: ignore[arg-type]  # a caller's mistake
        handle = await session.native()
        await handle.append("e")
        assert [one["content"] for one in await handle.messages()] == ["a", "b", "c", "d", "e"]


async def test_the_agent_the_time_and_the_turn_of_a_message_can_be_given(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given(
            "s",
            user("a", turn_id=3, timestamp=7, metadata={"source": "asr", "mood": ["kind"]}),
            assistant("b", agent="kim", importance=0.5),
            user("c", pinned=True),
        )
        first, second, third = await session.messages()
        assert (first["turn_id"], first["timestamp"], first["metadata"]) == (3, 7, {"source": "asr", "mood": ["kind"]})
        assert (second["turn_id"], second["agent"], second["importance"]) == (3, "kim", 0.5)
        assert (third["turn_id"], third["pinned"]) == (4, True)
        assert (await session.info())["turns"] == 5


@through("library", "connect", "rest")
async def test_a_message_is_written_at_the_time_of_the_clock(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        for text in ("a", "b"):
            world.clock.now += 1000
            (entry,) = await session.append(user(text))
            assert entry["timestamp"] == (await session.info())["updated_at"] == world.clock.now


@through("library", "connect", "rest")
async def test_a_turn_goes_on_until_the_next_message_of_the_user_after_a_reply(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        log = [user("a"), user("b"), CALL, result("c1", "1"), assistant("c"), user("d"), assistant("e")]
        assert [one["turn_id"] for one in await session.append(*log)] == [0, 0, 0, 0, 0, 1, 1]
        with refused("invalid_message", "turn_id"):
            await session.append(user("f", turn_id=0))


@through("library", "connect", "rest")
async def test_a_write_may_expect_a_version(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        await session.append(user("a"), expect=0)
        with refused("stale_session", "version 1"):
            await session.append(user("b"), expect=0)
        await session.append(user("c"), expect=1)
        assert texts(await session.messages()) == ["a", "c"]


@through("library", "connect", "rest")
async def test_a_write_may_expect_a_state_of_the_log(world: World) -> None:
    """Other than the version, it does not change with the session's fields."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        marker = (await session.info())["log_marker"]
        await session.update(metadata={"x": 1})
        await session.change_state(step=2)
        assert (await session.info())["log_marker"] == marker
        await session.append(user("b"), expect_log=marker)
        with refused("stale_session"):
            await session.append(user("c"), expect_log=marker)
        for wrong in ("nonsense", "1.2.3"):
            with refused("stale_session"):
                await session.append(user("c"), expect_log=wrong)
        assert texts(await session.messages()) == ["a", "b"]


@through("library", "connect", "rest")
async def test_of_concurrent_writes_that_expect_one_log_only_one_succeeds(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        marker = (await session.info())["log_marker"]
        writes = [session.append(user(str(number)), expect_log=marker) for number in range(5)]
        done = await asyncio.gather(*writes, return_exceptions=True)
        assert [getattr(one, "code", None) for one in done].count("stale_session") == 4
        assert len(await session.messages()) == 2


@through("library", "connect", "rest")
async def test_concurrent_writes_without_a_condition_all_succeed(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s")
        await asyncio.gather(*(session.append(user(str(number))) for number in range(20)))
        entries = await session.messages()
        assert sorted(texts(entries), key=int) == [str(number) for number in range(20)]
        assert [entry["seq"] for entry in entries] == [*range(20)]


@through("library", "connect", "rest")
async def test_a_key_belongs_to_one_content(world: World) -> None:
    """The same key with another content is a conflict; another key writes again."""
    async with world.open() as hf:
        session = await hf.given("s")
        print_ = {"fingerprint": b"a"} if world.driver == "library" else {}
        other = {"fingerprint": b"b"} if world.driver == "library" else {}
        for _ in range(2):
            await session.append(user("a"), idempotency_key="key-1", **print_)
        if world.driver != "connect":
            with refused("idempotency_conflict"):
                await session.append(user("b"), idempotency_key="key-1", **other)
        await session.append(user("a"), idempotency_key="key-2", **print_)
        assert texts(await session.messages()) == ["a", "a"]


@through("library", "connect", "rest")
async def test_a_write_may_retire_and_change_the_state(world: World) -> None:
    """All of it, or nothing."""
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b"), user("c"))
        more: Any = {"state": {"seat": "12A"}}
        if world.driver == "rest":
            more = {"changes": [{"op": "set", "key": "seat", "value": "12A"}]}
        (written,) = await session.append(user("d"), retire_from=1, **more)
        assert (written["seq"], written["content"]) == (3, "d")
        assert texts(await session.messages()) == ["a", "d"]
        assert [one.get("retired_by") for one in await session.messages(retired=True)] == [None, 3, 3, None]
        assert await session.state() == {"seat": "12A"}
        with refused("stale_session"):
            await session.append(user("e"), retire_from=0, expect=0, **more)
        assert texts(await session.messages()) == ["a", "d"]


@through("library", "connect", "rest")
async def test_a_session_is_not_written_to_after_its_deletion(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"))
        handle = None if world.driver == "rest" else await session.native()
        await session.delete()
        with refused("session_not_found"):
            await session.append(user("b"))
        if handle is not None:
            with refused("session_not_found", "'s'"):
                await handle.append("b")
            with refused("session_not_found", "'s'"):
                await handle.begin_turn("b")
        assert await hf.sessions() == []


@through("library", "connect", "rest")
@pytest.mark.parametrize("store", ["file", "postgres", "mysql"])
async def test_every_database_keeps_the_log_over_a_restart(world: World, store: str) -> None:
    with fresh_store(store, world.folder) as url:
        async with world.open(store=url) as hf:
            await hf.given("s", user("a"), CALL, result("c1", "found 😀\x00\u2028"), assistant("b"), user="ada")
        async with world.open(store=url) as hf:
            session = hf.session("s", "ada")
            await session.append(user("c"))
            entries = await session.messages()
            assert texts(entries) == ["a", "Let me look.", "found 😀\x00\u2028", "b", "c"]
            assert entries[1]["tool_calls"] == CALL["tool_calls"]
            assert (await session.info())["message_count"] == 5


@through("library", "connect", "rest")
async def test_the_name_of_a_speaker_is_in_prompts(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", {**user("Hi."), "name": "ada"}, assistant("Hello."))
        assert [one.get("name") for one in (await session.context())["messages"]] == ["ada", None]
