"""Recall in a turn: done before the first call, quoted as data, the same in all prompts of the turn, and recorded;
automatic and by the tool.
"""

from __future__ import annotations

from typing import Any

from holdfast.tools.search import NOTHING
from tests.service.search_kit import Talks, open_talks
from tests.service.tools_kit import make_reply

# -- automatic recall ----------------------------------------------------------------


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
