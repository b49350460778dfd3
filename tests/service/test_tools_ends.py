"""Turns with server tools that end early: disconnected clients, failing models, crashes, and retries."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.errors import ModelUnavailable
from holdfast.stores.log import Append
from tests.service.scripted_model import REF
from tests.service.tools_kit import bench, content, make_reply, shout, stop_at


@pytest.mark.parametrize("streams", ["", "Let me see, one two three."])
async def test_client_may_stop_at_any_chunk(streams: str) -> None:
    """The turn is closed after each chunk in turn: the log stays legal, no call is open, and the next turn works."""
    script = lambda body: (  # noqa: E731 - as plain as it gets
        make_reply("The answer is four.")
        if body["messages"][-1]["role"] == "tool"
        else make_reply(streams or None, ("a", "shout", {"text": "x"}), ("b", "shout", {"text": "y"}))
    )
    at = 0
    while True:
        async with bench(script, shout) as desk:
            ended = not await stop_at(desk.turn("go"), at)
            async with desk.hf.engine.locks.make_exclusive_lock(REF):
                session = await desk.hf.store.get(REF)
            assert session.tail.open_calls == ()
            assert await desk.session.verify() == session.messages
            before = len(await desk.log())
            assert content(await desk.ask("go on", mode="delta")) is not None
            assert (await desk.log())[before].message.text == "go on"
        if ended:
            return
        at += 1


@pytest.mark.parametrize("retry", ["the same message", "the same key", "the transcript"])
@pytest.mark.parametrize("rounds", [1, 2])
async def test_retry_continues_from_stored_results(retry: str, rounds: int) -> None:
    """The model failed between rounds: no tool that has a result runs twice, and the message is stored once."""
    ran: list[int] = []

    async def step(n: int) -> str:
        ran.append(n)
        return f"did {n}"

    steps = [make_reply(f"Step {n}.", (f"c{n}", "step", {"n": n})) for n in range(rounds)]
    async with bench([*steps, [ModelUnavailable("gone")], make_reply("All done.")], step) as desk:
        key = {"key": "k"} if retry == "the same key" else {}
        mode = {"mode": "transcript"} if retry == "the transcript" else {}
        with pytest.raises(ModelUnavailable):
            await desk.ask("go", **key, **mode)
        again = await desk.ask("go", **key, **mode)
        assert content(again) == "All done."
        assert ran == list(range(rounds))
        kinds = ["user", *["calls", "result"] * rounds, "assistant"]
        assert [entry.kind for entry in await desk.log()] == kinds
        if key:
            assert content(await desk.ask("go", **key)) == "All done."
        assert len(await desk.log()) == len(kinds)


async def test_crash_while_tools_run_is_repaired(tmp_path: Any) -> None:
    """The store has the calls and one of two results: the retry reports that to the model and runs nothing again."""
    ran: list[str] = []

    async def step(name: str) -> str:
        ran.append(name)
        return name

    calls = [("a", "step", {"name": "a"}), ("b", "step", {"name": "b"})]
    url = f"sqlite:///{tmp_path}/s.db"
    async with bench([make_reply(None, *calls), make_reply("z")], step, url=url) as desk:
        append = desk.hf.store.append

        async def dies(ref: Any, write: Append) -> Any:
            if write.entries and write.entries[0].message.role == "tool":
                kept = write.entries[:1]
                await append(ref, msgspec.structs.replace(write, entries=kept))
                raise ModelUnavailable("as if the process had ended here")
            return await append(ref, write)

        desk.hf.store.append = dies  # type: ignore[method-assign]
        with pytest.raises(ModelUnavailable):
            await desk.ask("go")
    async with bench([make_reply("z")], step, url=url) as desk:
        assert content(await desk.ask("go")) == "z"
        assert sorted(ran) == ["a", "b"]
        results = [message["content"] for message in desk.model.prompts[0] if message["role"] == "tool"]
        assert "[no result was recorded for this call]" in results
        assert len(results) == 2
