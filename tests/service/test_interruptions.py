"""Histories, and interrupting a stored reply: the resulting log, for any previous content."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import NoReply
from holdfast.limits import PAGE
from tests.service.turns_kit import REF
from tests.service.voice_kit import (
    HEARD,
    calls,
    describe_log,
    make_reply,
    open_session_and_holdfast,
    result,
    user,
)
from tests.unit.seed_voice import JOKE

# -- records -------------------------------------------------------------------


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


# -- random operations ------------------------------------------------------------
