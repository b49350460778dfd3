"""Histories, and interrupting a stored reply: the resulting log, for any previous content."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.limits import PAGE
from tests.behaviour.kit.voice import JOKE
from tests.service.voice_kit import (
    HEARD,
    describe_log,
    make_reply,
    open_session_and_holdfast,
    user,
)

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
