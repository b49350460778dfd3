"""Recall in a turn: done before the first call, quoted as data, the same in all prompts of the turn, and recorded;
automatic and by the tool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.context.explain import decode_record
from holdfast.context.recalled import OPENING, RecalledItem
from holdfast.domain.session import SessionRef
from holdfast.tools.search import NOTHING
from holdfast.turns.turn import Turn
from tests.markers import strip_markers
from tests.service.search_kit import Talks, open_talks
from tests.service.tools_kit import make_reply

SECRET = "My gate code is 4711."


def blocks(prompt: Sequence[dict[str, Any]]) -> list[str]:
    """Return the recalled blocks in a prompt."""
    return [text for one in prompt if (text := strip_markers(one["content"])).startswith(OPENING)]


async def last_record(at: Talks, ref: SessionRef) -> Any:
    """Return the record of the last call."""
    record = decode_record((await at.hf.store.calls(ref))[0].build)
    assert record is not None
    return record


# -- automatic recall ----------------------------------------------------------------


async def test_every_round_of_a_turn_has_the_same_recalled_text() -> None:
    """Prompts only grow, and the search runs once."""
    script = [make_reply(None, ("c", "search_conversations", {"query": "ferry"})), make_reply("It is 4711.")]
    async with open_talks(script) as at:
        await at.add_messages("harbour", SECRET, "Noted.", "The ferry leaves at nine.")
        asked = 0
        found = at.hf.engine.recalling["conversation"]

        async def count_recalls(turn: Turn) -> Sequence[RecalledItem]:
            nonlocal asked
            asked += 1
            return await found(turn)

        at.hf.engine.recalling["conversation"] = count_recalls
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("What was the gate code again?")
        first, second = at.model.prompts
        assert second[: len(first)] == first
        assert len(blocks(second)) == 1
        assert asked == 1


async def test_failing_index_does_not_fail_the_turn(caplog: pytest.LogCaptureFixture) -> None:
    """The query is in no log line."""
    async with open_talks() as at:
        await at.add_messages("harbour", SECRET)
        index: Any = at.hf.engine.index
        await index.index.close()

        async def broken(lookup: Any) -> Any:
            raise RuntimeError("secretword")

        index.index.lookup = broken
        session = await at.hf.session("new", user_id="ada", agent="finder")
        await session.send("What was the gate code, secretword?")
        assert (await last_record(at, session.ref)).missed == ("conversation: failed",)
        assert not [one for one in caplog.records if one.name == "holdfast.recall" and "secretword" in one.getMessage()]


# -- the tool ------------------------------------------------------------------


async def call_tool(at: Talks, arguments: dict[str, Any], agent: str = "finder") -> str:
    """Return the tool's result for a model that calls it with these arguments."""
    session = await at.hf.session("asking", user_id="ada", agent=agent)
    await session.send("Look it up.")
    return str(next(one["content"] for one in reversed(at.model.prompts[-1]) if one["role"] == "tool"))


def call_script(arguments: dict[str, Any]) -> list[Any]:
    """Return a script that calls the tool once and then answers."""
    return [make_reply(None, ("c", "search_conversations", arguments)), make_reply("done")]


async def test_sessions_of_other_users_are_not_found_by_id() -> None:
    async with open_talks(call_script({"query": "gate code", "session_id": "bobs"})) as at:
        await at.add_messages("bobs", "My gate code is 9999.", user="bob")
        assert await call_tool(at, {}) == NOTHING
