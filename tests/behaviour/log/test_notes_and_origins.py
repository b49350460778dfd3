"""Notes and origins: kept and shown, never sent; carried, redacted and erased with the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user
from tests.behaviour.kit.rest import ask

HANDOFF = {"event": "handoff", "to": ["billing", None]}
ORIGIN = {"parts": [{"kind": "x", "é": None}], "n": 1.5}
KEY = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3  # made up


def note(payload: Any, **more: Any) -> dict[str, Any]:
    return {"role": "note", "origin": payload, **more}


def roles(entries: list[dict[str, Any]]) -> list[str]:
    return [one["role"] for one in entries]


def origins(entries: list[dict[str, Any]]) -> list[Any]:
    return [one.get("origin") for one in entries]


async def test_notes_and_origins_come_back_unchanged_with_the_messages(world: World) -> None:
    """A note has the turn of the message before it, no tokens, and counts as no message."""
    async with world.open() as hf:
        session = await hf.given(
            "s", user("hi", origin=ORIGIN), note(HANDOFF, metadata={"by": "me"}, timestamp=7), assistant("ho"), note(0)
        )
        entries = await session.messages()
        assert roles(entries) == ["user", "note", "assistant", "note"]
        assert origins(entries) == [ORIGIN, HANDOFF, None, 0]
        mark = entries[1]
        assert (mark["turn_id"], mark["tokens"], mark["metadata"], mark["timestamp"]) == (0, 0, {"by": "me"}, 7)
        assert not any("retired_by" in one for one in await session.messages(retired=True))
        info = await session.info()
        assert info["message_count"] == 2
        assert info["tokens"] == entries[0]["tokens"] + entries[2]["tokens"]


@through("library", "connect", "rest")
async def test_notes_change_no_prompt(world: World) -> None:
    """In no dialect, also between a call and its result; not the history, and not the messages of the library."""
    log = [user("hi", origin=ORIGIN), calls(("c", "look", {})), result("c", "seen"), assistant("done", origin=1)]
    async with world.open() as hf:
        prompts = []
        for name, given in (("a", log), ("b", [item for one in log for item in (one, note(HANDOFF))])):
            session = await hf.given(name, *given)
            dialects = [(await session.context(dialect=one))["messages"] for one in ("openai", "anthropic", "gemini")]
            prompts.append((dialects, texts(await session.history())))
            assert "origin" not in json.dumps(dialects)
        assert prompts[0] == prompts[1]
        if world.driver != "rest":
            assert all("origin" not in one for one in await (await session.native()).messages())


@through("library", "connect", "rest")
async def test_a_note_is_explained_as_never_sent_and_cannot_be_pinned(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("hi"), note(HANDOFF))
        (explained,) = (await session.explain(seq=1))["messages"]
        assert (explained["state"], explained["decision"]) == ("no", "note")
        assert explained["reason"] == "a note, which is never sent"
        with refused("message_not_found"):
            await session.annotate(1, pinned=True)


@pytest.mark.parametrize("wrong", [{"pinned": True}, {"name": "x"}, {"content": []}, {"importance": 1}])
async def test_an_invalid_note_is_refused(world: World, wrong: dict[str, Any]) -> None:
    async with world.open() as hf:
        with refused("invalid_message", next(iter(wrong))):
            await hf.given("s", user("hi"), note(1, **wrong))


async def test_notes_and_origins_go_where_their_messages_go(world: World) -> None:
    """Copied by forks up to the end of their turn, moved, exported, imported, and retired by a rewind."""
    async with world.open() as hf:
        session = await hf.given(
            "s",
            user("a", origin=1),
            assistant("b"),
            note("after b"),
            user("c"),
            assistant("d", origin=2),
            note("after d"),
        )
        fork = await session.fork(at_turn=0, id="f")
        assert origins(await fork.messages()) == [1, None, "after b"]
        exported = await session.export()
        await hf.import_session({**exported, "id": "copy"})
        assert origins(await hf.session("copy").messages()) == origins(await session.messages())
        moved = await session.move(user_id="bob")
        await moved.rewind(0)
        assert origins(await moved.messages()) == [1, None, "after b"]
        gone = [one.get("retired_by") is not None for one in await moved.messages(retired=True)]
        assert gone == [False, False, False, True, True, True]
        whole = await moved.export(retired=True)
        await hf.import_session({**whole, "id": "again"})
        assert (await hf.session("again", "bob").export(retired=True))["messages"] == whole["messages"]


@through("library", "connect", "rest")
async def test_erasing_deletes_a_note_or_an_origin_in_forks_too(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("hi", origin=ORIGIN), note(HANDOFF))
        fork = await session.fork(id="f")
        for seq in (0, 1):
            assert (await session.erase(seq))["erased"] is True
        for one in (session, fork):
            assert origins(await one.messages()) == [None, None]
            assert roles(await one.messages()) == ["user", "note"]
        await hf.import_session({**await session.export(), "id": "x"})
        assert roles(await hf.session("x").messages()) == ["user", "note"]


@through("library", "connect")
async def test_notes_are_written_with_messages_and_state_and_in_turns(world: World) -> None:
    async with world.open() as hf:
        handle = await (await hf.given("s")).native()
        appended = await handle.append("hi", note=HANDOFF, state={"step": 2})
        assert [entry.seq for entry in appended.entries] == [0, 1]
        assert (await handle.info()).state == {"step": 2}
        async with handle.turn({"role": "user", "content": "more", "origin": ORIGIN}) as turn:
            turn.add(calls(("c", "look", {})))
            turn.add(note(1))
            turn.add(result("c", "seen"))
            assert roles(await turn.next()) == ["user", "user", "assistant", "tool"]
            turn.add("done", origin=ORIGIN)
        entries = await hf.session().messages()
        assert roles(entries) == ["user", "note", "user", "assistant", "note", "tool", "assistant"]
        assert origins(entries)[2:] == [ORIGIN, None, 1, None, ORIGIN]
        assert [one.is_note for one in await handle.entries()] == [False, True, False, False, True, False, False]
        with refused("invalid_message", "write notes with"):
            await handle.begin_turn([note(1)])
        with refused("invalid_message", "origin"):
            await handle.append(note={"x": object()})


@through("library", "connect", "rest")
async def test_an_edit_that_is_undone_brings_messages_back_without_notes(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), assistant("b"), note("b"), user("c"), assistant("d"), note("d"))
        await session.turn(user("a"), assistant("b"), user("C"), reply="D")
        await session.append(note("D"))
        shown = [one["origin"] if one["role"] == "note" else one["content"] for one in await session.messages()]
        assert shown == ["a", "b", "b", "C", "D", "D"]
        turn = await session.turn(user("a"), assistant("b"), user("c"), assistant("d"), user("e"))
        assert texts(turn["messages"]) == ["a", "b", "c", "d", "e"]
        assert origins(await session.messages()) == [None, None, "b", None, None, None]


@through("library", "connect", "rest")
async def test_secrets_in_notes_and_origins_are_redacted(world: World) -> None:
    async with world.open("redaction: {enabled: true}") as hf:
        session = await hf.given("s", user("hi", origin={"deep": [f"my {KEY}"]}), note({"k": KEY}))
        assert KEY not in json.dumps(await session.export())
        first, second = origins(await session.messages())
        assert first["deep"][0].startswith("my [")
        assert second["k"].startswith("[")


@through("rest")
async def test_a_chat_client_sets_neither_notes_nor_origins(world: World) -> None:
    """A field `origin` is passed on to the provider as any unknown field."""
    async with world.open(script=["hey"]) as hf:
        session = await hf.given("s", user("hi", origin={"secret": 1}), note(1), assistant("ho", origin=2))
        await session.send(user("he", origin="theirs"), session_mode="delta")
        sent = hf.upstream.requests[-1].body["messages"]
        assert [(one["role"], one.get("origin")) for one in sent] == [
            ("user", None),
            ("assistant", None),
            ("user", "theirs"),
        ]
        stored = (await session.messages())[3]
        assert (stored["content"], stored.get("origin"), stored["client_origin"]) == ("he", None, "theirs")
        with refused("invalid_message", "role"):
            await session.send(note(1))


@through("rest")
async def test_a_session_with_notes_is_recognised(world: World) -> None:
    """By a client that resends the conversation without an id."""
    async with world.open(script=["one", "two", "three"]) as hf:
        sent, found = [], set()
        for text, answer in (("a", "one"), ("b", "two"), ("c", "three")):
            sent.append(user(text))
            chat = await ask(hf.http, "POST", "/v1/chat/completions", {"messages": sent})
            sent.append(assistant(answer))
            found.add(chat["session_id"])
            await hf.session(chat["session_id"]).append(note(1), note(2))
        (only,) = found
        assert roles(await hf.session(only).messages()) == ["user", "assistant", "note", "note"] * 3
