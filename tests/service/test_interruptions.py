"""Histories, and interrupting a stored reply: the resulting log, for any previous content."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.errors import HeardMismatch, InvalidMetadata, InvalidRequest, NoReply, SessionNotFound
from holdfast.limits import PAGE
from holdfast.sessions.handle import SessionHandle
from tests.amounts import examples
from tests.service.guard_kit import REDACTION, guard_from
from tests.service.turns_kit import REF, SHARED
from tests.service.voice_kit import (
    HEARD,
    MEMORY,
    NOW,
    calls,
    describe_log,
    make_reply,
    open_session,
    open_session_and_holdfast,
    result,
    user,
)
from tests.stores.servers import place
from tests.unit.seed_voice import CONTENTS, JOKE, PLAIN

# -- records -------------------------------------------------------------------


async def test_seed_contents_round_trip_through_history() -> None:
    async with open_session(*CONTENTS) as session:
        assert await session.history() == CONTENTS
        assert await session.history(view="plain") == PLAIN
        with pytest.raises(InvalidRequest):
            await session.history(view="other")  # type: ignore[arg-type]  # what is tested


async def test_invalid_message_rejects_the_whole_batch() -> None:
    """A wrong source in the last message rejects all of them, in every input API."""
    wrong = [user("a"), user("b"), user("c"), {**user("d"), "metadata": {"source": "llm"}}]
    async with open_session_and_holdfast() as (hf, session):

        async def turn() -> None:
            async with session.turn(wrong):
                raise AssertionError("the turn began")

        for way in (lambda: session.append(wrong), lambda: session.send(wrong), turn):
            with pytest.raises(InvalidMetadata, match=r"messages\[3\]\.metadata\.source"):
                await way()
        assert (await session.info()).messages == 0
        assert hf.engine.locks.is_empty


async def test_long_history_is_read_page_by_page() -> None:
    texts = [str(number) for number in range(2 * PAGE + 7)]
    async with open_session(*(user(text) for text in texts)) as session:
        assert [record["content"] for record in await session.history()] == texts
        await session.append([user("x")])


async def test_history_is_a_consistent_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a reply is interrupted while pages are read, they are read again: nothing is missing or duplicated."""
    async with open_session_and_holdfast(*(user(str(number)) for number in range(PAGE)), make_reply(JOKE)) as (
        hf,
        session,
    ):
        store = hf.store
        entries = store.entries
        done: list[bool] = []

        async def meanwhile(*args: Any, **kwargs: Any) -> Any:
            found = await entries(*args, **kwargs)
            if not done and kwargs.get("limit") == PAGE:
                done.append(True)
                await session.interrupt(HEARD)
            return found

        monkeypatch.setattr(store, "entries", meanwhile, raising=False)
        history = await session.history(view="plain")
        assert len(history) == PAGE + 1
        assert history[-1]["content"] == HEARD


# -- interrupting a stored reply ------------------------------------------------------


async def test_heard_text_replaces_the_reply() -> None:
    """It has the same turn, agent and time; the generated text is recorded, and later messages follow."""
    reply = make_reply(JOKE, agent="bot", timestamp=7, metadata={"source": "llm", "x": 1}, pinned=True, importance=0.5)
    async with open_session(user("joke?"), reply, {**user("No."), "metadata": {"source": "asr"}}) as session:
        done = await session.interrupt(HEARD, timestamp=99)
        assert (done.interrupted, done.stopped) == (True, False)
        assert await describe_log(session) == [(0, "user", "joke?"), (0, "assistant", HEARD, JOKE), (1, "user", "No.")]
        entry = (await session.entries())[1]
        assert done.entry is not None
        assert (entry.seq, entry.agent, entry.timestamp, entry.pinned, entry.importance) == (3, "bot", 7, True, 0.5)
        assert done.entry.seq == entry.seq
        marks = {"interrupted": True, "interrupt_timestamp": 99, "original": JOKE}
        assert entry.metadata == {"source": "llm", "x": 1, **marks}
        retired = [(one.seq, one.retired_by) for one in await session.entries(retired=True) if one.retired_by]
        assert retired == [(1, 3), (2, 3)]
        assert (await session.history())[2]["metadata"] == {"source": "asr"}


async def test_repeated_interruption_does_not_affect_an_earlier_reply() -> None:
    """A client may retry after a lost response, even after the user's next message."""
    for ahead in ([], [user("b, still")]):
        async with open_session(user("a"), make_reply("A"), user("b"), make_reply("B"), *ahead) as session:
            await session.interrupt(chars=0)
            left = await describe_log(session)
            with pytest.raises(NoReply, match="turn 1"):
                await session.interrupt(chars=0)
            with pytest.raises(NoReply):
                await session.interrupt(chars=0, turn_id=1)
            assert await describe_log(session) == left
            assert left[1][:3] == (0, "assistant", "A")
            await session.interrupt(chars=0, turn_id=0)
            assert [line[2] for line in await describe_log(session)] == ["a", "b", *[one["content"] for one in ahead]]


async def test_invalid_interruptions_are_rejected() -> None:
    """No reply, a wrong turn, a different text; nothing is written."""
    async with open_session_and_holdfast() as (hf, session):
        with pytest.raises(NoReply):
            await session.interrupt()
        await session.append([user("a")])
        with pytest.raises(NoReply):
            await session.interrupt(chars=1)
        await session.append([make_reply(JOKE)])
        version = (await session.info()).version
        with pytest.raises(NoReply, match="of turn 0, not of 7"):
            await session.interrupt(chars=1, turn_id=7)
        with pytest.raises(HeardMismatch):
            await session.interrupt("Something else")
        with pytest.raises(InvalidRequest):
            await session.interrupt("Why", chars=3)
        assert (await session.info()).version == version
        assert hf.engine.locks.is_empty


async def test_deleted_session_is_not_found() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session("s")
        await session.delete()
        for act in (session.interrupt, session.history, lambda: session.speak("x")):
            with pytest.raises(SessionNotFound):
                await act()
        assert hf.engine.locks.is_empty


async def test_latest_speech_is_interrupted() -> None:
    """A speech in its own turn is a separate reply."""
    async with open_session(user("a"), make_reply(JOKE)) as session:
        await session.speak("Are you there?")
        await session.interrupt(chars=3)
        assert await describe_log(session) == [
            (0, "user", "a"),
            (0, "assistant", JOKE),
            (1, "assistant", "Are", "Are you there?"),
        ]
        assert (await session.history())[-1]["metadata"]["source"] == "command"


async def test_tools_before_the_cut_are_kept_and_later_calls_are_removed() -> None:
    tools = [
        user("a"),
        calls("Let me look."),
        result(),
        make_reply("It is five.", metadata={"preface": "Let me look.\n\n"}),
    ]
    async with open_session(*tools) as session:
        await session.interrupt("Let me look. It is")
        assert [text for _, _, text, *_ in await describe_log(session)] == ["a", "Let me look.", "done", "It is"]
        await session.interrupt("Let me")
        assert await describe_log(session) == [
            (0, "user", "a"),
            (0, "assistant", "Let me", "Let me look.\n\nIt is five."),
        ]


async def test_interruption_leaves_no_open_call() -> None:
    """A late result finds no call, and the prompt stays legal."""
    async with open_session(user("a"), calls("Let me look.")) as session:
        done = await session.interrupt()
        assert done.interrupted
        assert (await session.info()).tail.open_calls == ()
        assert await describe_log(session) == [(0, "user", "a"), (0, "assistant", "Let me look.", "Let me look.")]
        await session.append([user("b"), calls()])
        await session.interrupt()
        assert (await describe_log(session))[-1] == (1, "user", "b")


async def test_picture_after_the_reply_is_kept() -> None:
    """Media stored separately stay available for the rewritten messages."""
    pixel = "data:image/png;base64," + "iVBORw0KGgo" * 300 + "AA=="
    picture = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": pixel}}, {"type": "text", "text": "?"}],
    }
    async with open_session(user("a"), make_reply(JOKE), picture) as session:
        await session.interrupt(HEARD)
        assert (await session.messages())[-1] == picture


async def test_erased_reply_cannot_be_interrupted_by_its_text() -> None:
    async with open_session_and_holdfast(user("a"), make_reply(JOKE)) as (hf, session):
        await hf.store.erase(REF, 1, tokens=1)
        with pytest.raises(NoReply, match="erased"):
            await session.interrupt("Why")
        assert not (await session.interrupt()).interrupted


async def test_secrets_are_redacted_in_interruptions() -> None:
    """The heard text is compared with the redacted log; errors quote nothing."""
    secret = "sk-" + "a1B2c3D4e5F6g7H8i9J0" * 2  # made up
    text = f"The key is {secret} and that is all."
    async with open_session(user("a"), make_reply(text), guard=guard_from(REDACTION)) as session:
        stored = (await session.entries())[1].message.text
        assert secret not in stored
        await session.interrupt(f"The key is {secret} and")
        entry = (await session.entries())[1]
        assert entry.message.text.endswith(" and")
        assert entry.metadata is not None
        assert secret not in str(entry)
        assert entry.metadata["original"] == stored


async def test_concurrent_append_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position is computed again, and the new message follows."""
    async with open_session_and_holdfast(user("a"), make_reply(JOKE)) as (hf, session):
        store = hf.store
        entries = store.entries
        done: list[bool] = []

        async def meanwhile(*args: Any, **kwargs: Any) -> Any:
            found = await entries(*args, **kwargs)
            if not done and kwargs.get("descending"):
                done.append(True)
                await session.append([user("b")])
            return found

        monkeypatch.setattr(store, "entries", meanwhile, raising=False)
        await session.interrupt(HEARD)
        assert [text for _, _, text, *_ in await describe_log(session)] == ["a", HEARD, "b"]


@pytest.mark.parametrize("answered", [False, True])
async def test_calls_of_an_erased_message_are_not_left_open(answered: bool) -> None:
    """Unanswered calls are removed, as without erasure."""
    async with open_session_and_holdfast(user("a"), calls("Look.", "c", "d"), *([result("d")] if answered else [])) as (
        hf,
        session,
    ):
        await hf.store.erase(REF, 1)
        with pytest.raises(NoReply):
            await session.interrupt(chars=2)
        assert (await session.interrupt()).interrupted
        assert (await session.info()).tail.open_calls == ()
        kinds = [(entry.kind, entry.erased, len(entry.message.tool_calls)) for entry in await session.entries()]
        assert kinds[1:] == ([("calls", True, 1), ("result", False, 0)] if answered else [])


async def test_interruption_does_not_read_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither if the reply is the last of many messages, nor if there has been none for long."""
    many = [user(str(number)) for number in range(5000)]
    for messages in ([*many, make_reply(JOKE)], [make_reply(JOKE), *many]):
        async with open_session_and_holdfast(*messages, index=None) as (hf, session):
            store, read = hf.store, 0
            entries = store.entries

            async def count_entries(*args: Any, entries: Any = entries, **kwargs: Any) -> Any:
                nonlocal read
                found = await entries(*args, **kwargs)
                read += len(found)
                return found

            monkeypatch.setattr(store, "entries", count_entries, raising=False)
            if messages[0] is many[0]:
                await session.interrupt(chars=3)
                assert 0 < read <= 256
            else:
                with pytest.raises(NoReply, match="the last 1000 messages"):
                    await session.interrupt(chars=3)
                assert 0 < read <= 1000 + 2 * 256
            monkeypatch.undo()


@SHARED
async def test_every_store_writes_interruptions_equally(kind: str, tmp_path: Any) -> None:
    """Uses the log of the specification, interrupted again: order, turns and digests hold."""
    with place(kind, tmp_path) as url:
        async with holdfast.open(url, clock=lambda: NOW) as hf:
            session = await hf.session("s")
            messages = [*CONTENTS[:2], {**CONTENTS[2], "content": JOKE, "metadata": {"source": "llm"}}, CONTENTS[3]]
            await session.append(messages)
            await session.interrupt(HEARD, timestamp=1678905225)
            await session.append([CONTENTS[4]])
            await session.speak("Are you still there?")
            found = await session.history()
            assert found[:5] == CONTENTS[:5]
            assert found[5] == {**CONTENTS[5], "timestamp": NOW}
            await session.verify()


# -- random operations ------------------------------------------------------------

actions = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.sampled_from(["hi", "and?"])),
        st.tuples(st.just("reply"), st.sampled_from(["one two three", "four", "five six"])),
        st.tuples(st.just("tools"), st.sampled_from(["", "look "])),
        st.tuples(st.just("open"), st.sampled_from(["", "wait "])),
        st.tuples(st.just("chars"), st.integers(0, 14)),
        st.tuples(st.just("speak"), st.sampled_from(["ding", "dong"])),
    ),
    max_size=10,
)


@settings(max_examples=examples(60), deadline=None)
@given(done=actions)
def test_log_is_valid_after_any_operations(done: list[tuple[str, Any]]) -> None:
    """Digests, turns and units are right, no call is open after an interruption, and the next prompt can be built."""

    async def work() -> None:
        async with open_session() as session:
            for number, (what, how) in enumerate(done):
                await _apply(session, what, how, number)
            await session.append([user("end")])
            turns = [turn for turn, *_ in await describe_log(session)]
            assert turns == sorted(turns)
            context = await session.context("none", dialect="openai")
            assert context.messages[-1]["content"] == "end"

    asyncio.run(work())


async def _apply(session: SessionHandle, what: str, how: Any, number: int) -> None:
    if what == "user":
        await session.append([user(how)])
    elif what == "reply":
        await session.append([make_reply(how)])
    elif what == "tools":
        await session.append([calls(how, f"c{number}"), result(f"c{number}")])
    elif what == "open":
        await session.append([calls(how, f"c{number}")])
    elif what == "speak":
        await session.speak(how)
        assert (await session.info()).tail.open_calls == ()
    else:
        try:
            await session.interrupt(chars=how)
        except NoReply:
            return
        assert (await session.info()).tail.open_calls == ()
