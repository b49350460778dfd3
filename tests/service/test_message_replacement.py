"""Replacing a message in the middle of a log: later messages stay, and erasures still find every copy."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import EntryNotFound, InvalidMessage, InvalidRequest, SessionNotFound, StaleSession, TooLarge
from holdfast.sessions.handle import SessionHandle
from holdfast.stores.logic.store import LogicStore
from tests.unit.media_kit import image_url, png

MEMORY = "sqlite://:memory:"


def call(*ids: str, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": "{}"}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": id_, "type": "function", "function": function} for id_ in ids],
        **more,
    }


def result(id_: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": text}


def reply(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


async def make_session(hf: holdfast.Holdfast, *messages: Any) -> SessionHandle:
    session = await hf.session("s", user_id="ada")
    for message in messages:
        await session.append(message)
    return session


async def read_texts(session: SessionHandle, **options: Any) -> list[str]:
    return [entry.message.text for entry in await session.entries(**options)]


async def test_a_message_is_replaced_and_later_ones_stay() -> None:
    """In their turns, with their pins and times; the old message stays in the log."""
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", reply("b"), {"role": "user", "content": "c", "pinned": True}, reply("d"))
        before = await session.entries()
        replaced = await session.replace(1, reply("B"))
        after = await session.entries()
        assert [entry.message.text for entry in after] == ["a", "B", "c", "d"]
        assert after[1] == replaced
        kept = [(entry.turn_id, entry.pinned, entry.message, entry.tokens) for entry in before]
        now = [(entry.turn_id, entry.pinned, entry.message, entry.tokens) for entry in after]
        assert (now[0], now[2:]) == (kept[0], kept[2:])
        assert [entry.timestamp for entry in after[2:]] == [entry.timestamp for entry in before[2:]]
        assert (await session.info()).messages == 4
        assert await read_texts(session, retired=True) == ["a", "b", "c", "d", "B", "c", "d"]
        assert [one["content"] for one in (await session.context()).messages] == ["a", "B", "c", "d"]
        assert await session.verify() == 7
        async with session.turn("e") as turn:
            assert [one["content"] for one in turn.messages] == ["a", "B", "c", "d", "e"]
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.replace(0, "A")


async def test_the_prompt_of_an_earlier_turn_shows_the_replacement() -> None:
    """It says that it is not the prompt that was sent. A turn before the replaced message is not affected."""
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s", user_id="ada")
        for text in ("a", "c", "e"):
            async with session.turn(text) as turn:
                turn.add(f"{text}!")
        await session.replace(1, reply("A!"))
        sent = [await session.context(at_turn=at) for at in range(3)]
        assert [one["content"] for one in sent[1].messages] == ["a", "A!", "c"]
        assert [one["content"] for one in sent[2].messages] == ["a", "A!", "c", "c!", "e"]
        assert [one["content"] for one in sent[0].messages] == ["a"]
        first, second = [(await session.explain(turn=at)).not_sent for at in (0, 1)]
        assert first is None
        assert second is not None
        assert "were replaced" in second
        fork = await session.fork(at_turn=1)
        assert await read_texts(fork) == ["a", "A!", "c", "c!"]
        await session.rewind(1)
        assert await read_texts(session) == ["a", "A!", "c", "c!"]


async def test_a_tool_unit_stays_complete() -> None:
    """Calls keep their ids, and a result answers the same call. Notes between them stay."""
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", call("x", "y"), result("x", "1"), result("y", "2"), reply("b"))
        for seq, wrong, reason in (
            (1, call("x"), "tool calls x, y"),
            (1, reply("no calls"), "tool calls x, y"),
            (2, result("y", "1"), "tool_call_id 'x'"),
            (2, reply("1"), "tool_call_id 'x'"),
            (4, call("z"), "no results"),
            (0, result("x", "1"), "the result of the same call"),
        ):
            with pytest.raises(InvalidMessage, match=reason):
                await session.replace(seq, wrong)
        await session.append(note=1)
        await session.replace(1, call("y", "x", content="both"))
        first = (await session.entries())[1].seq
        await session.replace(first + 1, result("x", "one"))
        entries = await session.entries()
        assert [entry.kind for entry in entries] == ["user", "calls", "result", "result", "assistant", "note"]
        assert [entry.message.text for entry in entries] == ["a", "both", "one", "2", "b", ""]
        assert {entry.unit for entry in entries[1:4]} == {entries[1].seq}
        await session.verify()


async def test_an_erasing_replacement_erases_forks_too() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", reply("secret"), "c")
        fork = await session.fork()
        await session.replace(1, reply("public"), erase=True)
        assert await read_texts(session) == ["a", "public", "c"]
        assert await read_texts(fork) == ["a", "[erased]", "c"]
        assert "secret" not in str(await hf.export(session.ref, retired=True))
        await session.verify()


async def test_erasing_a_later_message_erases_every_copy() -> None:
    """The retired ones, those in forks made before or after, and after several replacements."""
    picture = {"role": "user", "content": [{"type": "text", "text": "secret"}, image_url(png(size=9_000))]}
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", reply("b"), picture, reply("d"))
        early = await session.fork()
        await session.replace(1, reply("B"))
        middle = await session.fork()
        await session.replace(0, "A")
        late = await session.fork()
        assert await read_texts(late) == ["A", "B", "secret", "d"]
        seq = (await session.entries())[2].seq
        await hf.erase(session.ref, seq)
        for one in (session, early, middle, late):
            texts = await read_texts(one, retired=True)
            assert "secret" not in texts
            assert "d" in texts
            assert not any(entry.message.media for entry in await one.entries(retired=True))
            await one.verify()
        assert (await read_texts(session))[0] == "A"


async def test_erasing_in_a_fork_erases_what_was_written_again() -> None:
    """The fork was made before the replacement."""
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", reply("b"), "secret", reply("d"))
        fork = await session.fork()
        await session.replace(0, "A")
        await hf.erase(fork.ref, 2)
        assert "secret" not in await read_texts(session, retired=True)
        assert await read_texts(session) == ["A", "b", "[erased]", "d"]


async def test_a_copy_is_erased_with_its_original() -> None:
    """An append names the message that it repeats. Also a copy of a copy, with other messages in between, and in a fork."""
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", "b", "secret", "d")
        fork = await session.fork()
        version = (await session.info()).version
        await session.append(["secret", "new", "d"], note=1, retire_from=1, expect=version, copy_of=[2, None, 3])
        version = (await session.info()).version
        await session.append(["secret", "new"], retire_from=4, expect=version, copy_of=[4, 5])
        await session.append("secret of its own")
        await hf.erase(session.ref, (await session.entries())[1].seq)
        assert await read_texts(session) == ["a", "[erased]", "new", "secret of its own"]
        assert (await read_texts(session, retired=True)).count("[erased]") == 3
        assert await read_texts(fork) == ["a", "b", "[erased]", "d"]
        assert "secret" not in await read_texts(session, retired=True)
        await session.verify()


async def test_a_copy_needs_a_version_and_a_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", "b")
        version = (await session.info()).version
        with pytest.raises(InvalidRequest, match="copy_of needs expect"):
            await session.append("a", copy_of=[0])
        for wrong in ([2], [-1], [0, 1]):
            with pytest.raises(InvalidRequest, match="one seq below 2"):
                await session.append("a", expect=version, copy_of=wrong)
        with pytest.raises(StaleSession):
            await session.append("a", expect=version - 1, copy_of=[0])
        assert await read_texts(session) == ["a", "b"]


async def test_only_messages_of_the_live_path_are_replaced() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", reply("b"))
        await session.append(note=1)
        await session.replace(1, reply("B"))
        for seq in (1, 2, 9):
            with pytest.raises(EntryNotFound):
                await session.replace(seq, "x")
        with pytest.raises(InvalidMessage, match="note"):
            await session.replace(0, {"role": "note", "origin": 1})
        with pytest.raises(InvalidRequest, match="one message"):
            await session.replace(0, ["x", "y"])
        await session.delete()
        with pytest.raises(SessionNotFound):
            await session.replace(0, "x")


async def test_another_users_session_is_not_replaced() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a")
        other = await hf.session("s", user_id="bob")
        with pytest.raises(EntryNotFound):
            await other.replace(0, "x")
        assert await read_texts(session) == ["a"]


async def test_a_message_with_too_many_after_it_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by number nor by size. The log is read only up to the limit, and nothing is written."""
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, *(str(at) for at in range(100)))
        read: list[int] = []
        entries = LogicStore.entries

        async def note(self: LogicStore, ref: holdfast.SessionRef, **more: Any) -> Any:
            found = await entries(self, ref, **more)
            read.append(len(found))
            return found

        monkeypatch.setattr(LogicStore, "entries", note)
        monkeypatch.setattr("holdfast.sessions.log_writes.REPLACED_BEHIND", 10)
        before = await session.info()
        with pytest.raises(TooLarge, match="retire_from=5"):
            await session.replace(5, "new")
        assert sum(read) < 40
        assert await session.info() == before
        assert (await session.replace(89, "new")).message.text == "new"
        monkeypatch.setattr("holdfast.sessions.log_writes.REPLACED_BEHIND_BYTES", 100)
        with pytest.raises(TooLarge, match=r"hf\.erase"):
            await session.replace(105, "newer")
        assert (await session.replace((await session.info()).tail.last_seq, "newest")).message.text == "newest"
