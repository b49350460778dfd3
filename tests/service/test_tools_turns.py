"""Turns with server tools: rounds, errors, limits, what is stored when, and what the client sees."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from tests.service.scripted_model import REF
from tests.service.tools_kit import THEIRS, bench, make_reply, shout

# -- rounds --------------------------------------------------------------------


# -- errors ----------------------------------------------------------------------


async def test_base_exceptions_propagate() -> None:
    """The turn ends, with no open call."""

    class Stop(BaseException):
        pass

    async def stops() -> None:
        raise Stop

    async def waits() -> None:
        await asyncio.Event().wait()

    async with bench([make_reply(None, ("a", "stops", {}), ("b", "waits", {}))], stops, waits) as desk:
        with pytest.raises(Stop):
            await desk.ask("go")
        async with desk.hf.engine.locks.make_exclusive_lock(REF):
            session = await desk.hf.store.get(REF)
        assert session.tail.open_calls == ()
        assert [entry.kind for entry in await desk.log()] == ["user", "calls", "result", "result"]


# -- number of rounds ------------------------------------------------------------


# -- the client's own tools ----------------------------------------------------


async def test_client_tools_follow_server_tools() -> None:
    """The order is stable, so the prompt prefix is too."""
    async with bench([make_reply("ok")], shout) as desk:
        await desk.ask("go", body={"tools": THEIRS, "stream_options": {"include_progress": True}})
        names = [tool["function"]["name"] for tool in desk.model.bodies[0]["tools"]]
        assert names == ["shout", "open_door"]
        assert desk.model.bodies[0]["stream_options"] == {}


# -- progress ------------------------------------------------------------------


# -- configuration ---------------------------------------------------------------


def test_invalid_tools_are_rejected() -> None:
    for wrong in (5, "shout", [shout, shout], [5], [lambda: 1]):
        with pytest.raises(InvalidRequest):
            Holdfast("sqlite://:memory:", tools=wrong)  # type: ignore[arg-type]  # on purpose


# -- reconstruction --------------------------------------------------------------


async def test_sent_prompt_of_a_tool_turn_can_be_rebuilt() -> None:
    """The last prompt of a turn is identical byte for byte; an imported copy equals the session, including texts
    before calls.
    """
    script = [make_reply("Look: ", ("a", "shout", {"text": "x"})), make_reply("X."), make_reply("ok")]
    async with bench(script, shout) as desk:
        await desk.ask("go", body={"tools": THEIRS})
        await desk.ask("more", body={"tools": THEIRS})
        context = await desk.session.context(at_turn=0)
        assert context.hash == context.sent_hash
        exported = await desk.hf.export(desk.session.ref)
        assert not (await desk.hf.import_(exported)).changed
        moved = await desk.hf.import_(exported, user_id="ada")
        assert moved.session.tail == (await desk.session.info()).tail
