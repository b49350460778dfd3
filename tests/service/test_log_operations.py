"""Reading and writing a session's log outside of turns: ranges, pop, clear, conditions, state, and contexts that continue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.errors import IdempotencyConflict, InvalidRequest, SessionNotFound, StaleSession
from holdfast.sessions.handle import SessionHandle

MEMORY = "sqlite://:memory:"
TEXTS = ["a", "b", "c", "d", "e"]


async def make_session(hf: holdfast.Holdfast, *texts: str) -> SessionHandle:
    session = await hf.session(user_id="ada")
    for text in texts:
        await session.append(text)
    return session


async def list_texts(session: SessionHandle, *range_: Any, **options: Any) -> list[str]:
    return [entry.message.text for entry in await session.entries(*range_, **options)]


async def test_get_returns_an_existing_session_and_creates_none() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a")
        assert (await hf.get(session.ref)).ref == session.ref
        assert await list_texts(await hf.get(session.id, user_id="ada")) == ["a"]
        for user in ("default", "bob"):
            with pytest.raises(SessionNotFound):
                await hf.get(session.id, user_id=user)
        assert len((await hf.sessions()).sessions) == 1
        with pytest.raises(InvalidRequest, match="ref"):
            await hf.get(7)  # type: ignore[arg-type]  # a caller's mistake


async def test_entries_of_a_range() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, *TEXTS)
        assert await list_texts(session, 1, 2) == ["b", "c"]
        assert await list_texts(session, limit=2, descending=True) == ["e", "d"]
        assert await list_texts(session, 1, stop=3) == ["b", "c"]
        for wrong in ({"start": -1}, {"limit": "2"}, {"stop": 1.5}):
            with pytest.raises(InvalidRequest, match=next(iter(wrong))):
                await session.entries(**wrong)


async def test_pop_takes_the_newest_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", "b")
        popped = await session.pop()
        assert popped is not None
        assert (popped.seq, popped.message.text) == (1, "b")
        assert await list_texts(session) == ["a"]
        assert await list_texts(session, retired=True) == ["a", "b"]
        await session.pop()
        assert await session.pop() is None
        async with session.turn("c") as turn:
            assert [message["content"] for message in turn.messages] == ["c"]
            with pytest.raises(InvalidRequest, match="open in this task"):
                await session.pop()


async def test_ten_concurrent_pops_get_ten_messages() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, *map(str, range(12)))
        popped = await asyncio.gather(*(session.pop() for _ in range(10)))
        assert sorted(one.seq for one in popped if one) == [*range(2, 12)]
        assert await list_texts(session) == ["0", "1"]


async def test_pops_of_two_processes_get_different_messages(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with holdfast.open(url) as one, holdfast.open(url) as other:
        session = await make_session(one, *TEXTS)
        same = await other.get(session.ref)
        popped = await asyncio.gather(*(handle.pop() for handle in (session, same) * 2))
        assert sorted(entry.message.text for entry in popped if entry) == TEXTS[1:]


async def test_clear_empties_the_live_path_only() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", "b")
        await session.state.set("seat", "12A")
        assert (await session.clear()).messages == 0
        assert await session.messages() == []
        assert await list_texts(session, retired=True) == ["a", "b"]
        assert await session.state.get("seat") == "12A"
        await session.clear()
        await session.append("c")
        assert (await session.context()).messages == [{"role": "user", "content": "c"}]


async def test_append_retires_and_sets_state_in_one_write() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a", "b", "c")
        version = (await session.info()).version
        appended = await session.append(
            "B", retire_from=1, state={"seat": "12A", "user:theme": "dark", "temp:x": 1}, expect=version
        )
        assert appended.version == version + 1
        assert await list_texts(session) == ["a", "B"]
        assert await session.state.all() == {"seat": "12A", "user:theme": "dark"}
        await session.append("C", state={"seat": None})
        assert await session.state.get("seat") is None
        with pytest.raises(InvalidRequest, match="state"):
            await session.append("D", state=["seat"])  # type: ignore[arg-type]  # a caller's mistake
        with pytest.raises(InvalidRequest, match="NUL"):
            await session.append("D", state={"\0": 1})
        assert await list_texts(session) == ["a", "B", "C"]


async def test_only_changes_of_the_log_move_its_marker() -> None:
    async with holdfast.open(MEMORY, strategy="digest", budget=200) as hf:
        session = await make_session(hf, "a")
        marker = (await session.info()).log_marker
        await session.state.set("seat", "12A")
        await session.update(metadata={"x": 1})
        await session.context(save=True)
        assert (await session.info()).log_marker == marker
        await session.append("b", expect_log=marker)
        moved = (await session.info()).log_marker
        assert moved != marker
        with pytest.raises(StaleSession, match="log of session"):
            await session.append("c", expect_log=marker)
        await session.pop()
        with pytest.raises(StaleSession):
            await session.append("c", expect_log=moved)
        assert await list_texts(session) == ["a"]


async def test_a_repeated_append_with_a_marker_and_a_key_is_replayed() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a")
        marker = (await session.info()).log_marker
        first = await session.append("b", expect_log=marker, idempotency_key="k", fingerprint=b"1")
        again = await session.append("b", expect_log=marker, idempotency_key="k", fingerprint=b"1")
        assert again.replayed
        assert again.entries == first.entries
        with pytest.raises(IdempotencyConflict):
            await session.append("c", expect_log=marker, idempotency_key="k", fingerprint=b"2")
        with pytest.raises(StaleSession):
            await session.append("b", expect_log=marker, idempotency_key="other", fingerprint=b"1")
        assert await list_texts(session) == ["a", "b"]


async def test_of_concurrent_appends_with_one_marker_only_one_succeeds() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await make_session(hf, "a")
        marker = (await session.info()).log_marker
        changes = [session.state.increment("n") for _ in range(5)]
        appends = [session.append(str(number), expect_log=marker) for number in range(5)]
        done = await asyncio.gather(*changes, *appends, return_exceptions=True)
        assert sum(isinstance(one, StaleSession) for one in done) == 4
        assert (await session.info()).messages == 2


def make_round(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    result = f"Order {number} costs {number * 17} euros and arrives on a Tuesday. " * 3
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


async def test_saved_contexts_continue_each_other() -> None:
    """They equal the prompts of a turn with the same messages, and most begin with the whole previous one."""
    async with holdfast.open(MEMORY, strategy="digest", budget=600) as hf:
        outside, inside = await hf.session("outside"), await hf.session("inside")
        await outside.append("Find all orders.")
        kept = kept_in_turn = 0
        before = expected_before = (await outside.context(save=True)).messages
        async with inside.turn("Find all orders.") as turn:
            for number in range(40):
                await outside.append(make_round(number))
                for message in make_round(number):
                    turn.add(message)
                context = await outside.context(save=True)
                expected = await turn.next()
                assert [len(str(m["content"])) for m in context.messages] == [len(str(m["content"])) for m in expected]
                kept += context.messages[: len(before)] == before
                kept_in_turn += expected[: len(expected_before)] == expected_before
                before, expected_before = context.messages, expected
        assert kept == kept_in_turn > 5
        assert (await outside.context()).messages == before


async def test_a_saved_context_reads_only_what_is_new() -> None:
    async with holdfast.open(MEMORY, strategy="digest", budget=600) as hf:
        session = await hf.session()
        await session.append("Find all orders.")
        for number in range(100):
            await session.append(make_round(number))
        await session.context(save=True)
        read: list[int] = []
        store = hf.engine.store
        window = store.window

        async def watch(*args: Any) -> Any:
            rows = await window(*args)
            read.append(len(rows.entries))
            return rows

        store.window = watch  # type: ignore[method-assign, assignment]  # counts the reads
        await session.append(make_round(100))
        await session.context(save=True)
        assert read == []
