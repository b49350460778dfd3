"""Notes and origins in sessions of the library: kept and shown, never sent; carried, redacted and erased with the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Message
from holdfast.domain.session import SessionRef
from holdfast.errors import EntryNotFound, InvalidMessage, SessionNotFound, TooLarge
from holdfast.hooks.transcripts import Transcripts
from holdfast.limits import MESSAGE_BYTES
from tests.service.guard_kit import GONE, GUARD, KEY, desk
from tests.unit.media_kit import anthropic, b64, image_url, png

MEMORY = "sqlite://:memory:"
HANDOFF = {"event": "handoff", "to": "billing"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "seen"}


async def list_entries(session: Any, **options: Any) -> list[tuple[str, Any]]:
    """Return the role of each entry, and its origin."""
    return [(entry.message.role, entry.message.origin) for entry in await session.entries(**options)]


def read_only_file(folder: Path) -> list[bytes]:
    """Return the lines of the only transcript in a folder."""
    (file,) = folder.rglob("*.jsonl")
    return file.read_bytes().splitlines()


# -- notes -----------------------------------------------------------------------


async def test_a_note_between_a_call_and_its_result_changes_no_prompt() -> None:
    """In no dialect, and not in the messages of the session or its history."""
    prompts = []
    for noted in (False, True):
        async with holdfast.open(MEMORY) as hf:
            session = await hf.session(user_id="ada")
            for item in ("hi", CALL, RESULT, {"role": "assistant", "content": "done"}):
                await session.append(item)
                if noted:
                    await session.append(note=HANDOFF)
            contexts = [(await session.context(dialect=each)).messages for each in ("openai", "anthropic", "gemini")]
            prompts.append((contexts, await session.messages(), len(await session.history())))
            assert (await session.info()).messages == 4
    assert prompts[0] == prompts[1]


async def test_a_note_is_written_with_messages_and_state_in_one_write() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        appended = await session.append("hi", note=HANDOFF, state={"step": 2})
        assert [entry.seq for entry in appended.entries] == [0, 1]
        own = {"role": "note", "origin": [1, None], "metadata": {"source": "a framework"}, "timestamp": 7}
        (entry,) = (await session.append([own])).entries
        assert (entry.turn_id, entry.timestamp, entry.metadata) == (0, 7, {"source": "a framework"})
        assert await list_entries(session) == [("user", None), ("note", HANDOFF), ("note", [1, None])]
        assert await list_entries(session, limit=1, descending=True) == [("note", [1, None])]
        assert (await session.info()).state == {"step": 2}
        assert await session.verify() == 3


async def test_a_note_is_written_in_a_turn() -> None:
    """The next prompt of the turn does not contain it, and the cached session stays usable."""
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        async with session.turn("hi") as turn:
            turn.add(CALL)
            turn.add({"role": "note", "origin": HANDOFF})
            turn.add(RESULT)
            assert [one["role"] for one in await turn.next()] == ["user", "assistant", "tool"]
            turn.add("done")
        async with session.turn("more") as turn:
            assert [one["role"] for one in turn.messages] == ["user", "assistant", "tool", "assistant", "user"]
        roles = [role for role, _ in await list_entries(session)]
        assert roles == ["user", "assistant", "note", "tool", "assistant", "user"]
        with pytest.raises(InvalidMessage, match="write notes with"):
            await session.begin_turn([{"role": "note", "origin": 1}])


async def test_notes_go_where_their_messages_go() -> None:
    """Retired by pop and rewind, copied by forks with their turn, moved, exported and imported."""
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada", session_id="s")
        for text, answer in (("a", "b"), ("c", "d")):
            await session.append(text)
            await session.append({"role": "assistant", "content": answer}, note={"after": answer})
        fork = await session.fork(at_turn=0)
        assert await list_entries(fork) == [("user", None), ("assistant", None), ("note", {"after": "b"})]
        exported = await hf.export(session.ref)
        assert [one["role"] for one in exported["messages"]] == ["user", "assistant", "note"] * 2
        assert not any("retired_by" in one for one in exported["messages"])
        copy = await hf.import_(exported, session_id="copy")
        assert await list_entries(hf.handle(copy.session)) == await list_entries(session)
        assert not (await hf.import_(exported, session_id="copy")).changed
        moved = await hf.move(session.ref, user_id="bob")
        await moved.pop()
        assert [one.replaced_by for one in await moved.entries(retired=True)] == [None, None, None, None, 6, 6]
        await moved.rewind(0)
        assert await list_entries(moved) == await list_entries(fork)
        whole = await hf.export(moved.ref, retired=True)
        again = await hf.import_(whole, session_id="again")
        assert await hf.handle(again.session).entries(retired=True) == await moved.entries(retired=True)
        with pytest.raises(SessionNotFound):
            await (await hf.get(SessionRef("ada", "s"))).entries()


async def test_an_edit_that_is_undone_brings_messages_back_without_notes() -> None:
    """Notes of a turn are retired with it, and change nothing of what returns."""

    def user(text: str) -> dict[str, Any]:
        return {"role": "user", "content": text}

    def reply(text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": text}

    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        for text, answer in (("a", "b"), ("c", "d")):
            async with session.turn(text) as turn:
                turn.add(answer)
                turn.add({"role": "note", "origin": answer})
        async with session.turn([user("a"), reply("b"), user("C")]) as turn:
            turn.add("D")
            turn.add({"role": "note", "origin": "D"})
        assert [one.message.text or one.message.origin for one in await session.entries()] == [
            "a",
            "b",
            "b",
            "C",
            "D",
            "D",
        ]
        async with session.turn([user("a"), reply("b"), user("c"), reply("d"), user("e")]) as turn:
            assert [one["content"] for one in turn.messages] == ["a", "b", "c", "d", "e"]
        assert [one.message.text or one.message.origin for one in await session.entries()] == [
            "a",
            "b",
            "b",
            "c",
            "d",
            "e",
        ]
        await session.verify()


async def test_a_note_is_explained_erased_and_cannot_be_pinned() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        await session.append("hi", note=HANDOFF)
        fork = await session.fork()
        explained = (await session.explain(seq=1)).messages[0]
        assert (explained.state, explained.decision, explained.reason) == ("no", "note", "a note, which is never sent")
        with pytest.raises(EntryNotFound):
            await session.annotate(1, pinned=True)
        with pytest.raises(InvalidMessage, match="pinned"):
            await session.append({"role": "note", "origin": 1, "pinned": True})
        await hf.erase(session.ref, 1)
        for one in (session, fork):
            entry = (await one.entries())[1]
            assert (entry.message, entry.erased) == (Message(role="note", content="[erased]"), True)
        exported = await hf.export(session.ref)
        assert await list_entries(hf.handle((await hf.import_(exported, session_id="x")).session)) == [
            ("user", None),
            ("note", None),
        ]


async def test_transcripts_show_notes_and_origins(tmp_path: Path) -> None:
    """In the order of the log, with what an edit retired."""
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db", hooks=[Transcripts(tmp_path)]) as hf:
        session = await hf.session(user_id="ada", session_id="s")
        await session.append({"role": "user", "content": "hi", "origin": {"raw": True}}, note=HANDOFF)
        await session.append("again", retire_from=1)
        await session.append(note={"n": 2})
        await session.close()
        entries = await session.entries(retired=True)
    head, *lines = [json.loads(line) for line in read_only_file(tmp_path)]
    assert (head["type"], head["id"]) == ("session", "s")
    assert [(line["seq"], line["role"], line.get("origin")) for line in lines] == [
        (entry.seq, entry.message.role, entry.message.origin) for entry in entries
    ]
    assert [line.get("retired_by") for line in lines] == [None, 2, None, None]


# -- origins ---------------------------------------------------------------------


async def test_an_origin_comes_back_unchanged_and_is_never_sent() -> None:
    origin = {"parts": [{"kind": "x", "é": None}], "n": 1.5}
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        await session.append({"role": "user", "content": "hi", "origin": origin})
        await session.append(Message(role="assistant", content="ho", origin=origin))
        async with session.turn({"role": "user", "content": "he", "origin": origin}) as turn:
            assert not any("origin" in one for one in turn.messages)
            turn.add("hu", origin=origin)
        assert [one.message.origin for one in await session.entries()] == [origin] * 4
        assert not any("origin" in one for one in await session.messages())
        copy = await hf.import_(await hf.export(session.ref), session_id="copy")
        fork = await session.fork()
        for one in (hf.handle(copy.session), fork):
            assert [entry.message.origin for entry in await one.entries()] == [origin] * 4
        await hf.erase(session.ref, 0)
        for one in (session, fork):
            assert [entry.message.origin for entry in await one.entries()] == [None, origin, origin, origin]


async def test_an_origin_counts_toward_the_size_of_its_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        text = {"x": "y " * (MESSAGE_BYTES // 4)}
        await session.append({"role": "user", "content": "hi", "origin": text})
        with pytest.raises(TooLarge):
            await session.append({"role": "user", "content": "hi", "origin": [text, text]})
        with pytest.raises(TooLarge):
            await session.append(note=[text, text])
        with pytest.raises(InvalidMessage, match="origin"):
            await session.append(note={"x": object()})


async def test_media_in_an_origin_are_stored_once_and_deleted_with_it() -> None:
    """Also if the message has them too; a prompt reads only those of the message."""
    picture, other = png(size=20_000), png(320, 200, size=9_000, seed=3)
    origin = {
        "openai": image_url(picture),
        "anthropic": anthropic(other),
        "gemini": [{"inline_data": {"mime_type": "image/png", "data": b64(other)}}],
        "text": "data " * 1_000,
    }
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        await session.append({"role": "user", "content": [image_url(picture)], "origin": origin}, note=origin)
        stored = await hf.store.entries(session.ref, notes=True)
        assert [len(entry.message.origin_held) for entry in stored] == [3, 3]
        hashes = {one.hash for entry in stored for one in entry.message.origin_held}
        assert len(hashes) == 2
        assert (await hf.store.get(session.ref)).bytes < 20_000
        assert [entry.message.origin for entry in await session.entries()] == [origin, origin]
        assert "sha256" not in str((await session.context()).messages)
        fork = await session.fork()
        copy = await hf.import_(await hf.export(session.ref), session_id="copy")
        for one in (fork, hf.handle(copy.session)):
            assert [entry.message.origin for entry in await one.entries()] == [origin, origin]
        await hf.erase(session.ref, 0)
        assert len(await hf.store.media(session.ref, hashes)) == 2
        await hf.erase(session.ref, 1)
        assert not await hf.store.media(session.ref, hashes)
        assert not await hf.store.media(fork.ref, hashes)


async def test_secrets_in_notes_and_origins_are_redacted(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "redact") as d:
        session = await d.hf.session(user_id="ada")
        await session.append({"role": "user", "content": "hi", "origin": {"deep": [f"my {KEY}"]}}, note={"k": KEY})
        async with session.turn("more") as turn:
            turn.add("ok", origin=[KEY])
        origins = [origin for _, origin in await list_entries(session)]
        assert origins == [{"deep": [f"my {GONE}"]}, {"k": GONE}, None, [GONE]]
