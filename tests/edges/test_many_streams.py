"""Five hundred concurrent streams in one process, two hundred of which are dropped: none mixed, none lost, nothing
left in memory.
"""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.liveness import make_holder
from holdfast.server.streaming import Client
from holdfast.testing import Gate, Reply, ScriptedUpstream
from holdfast.turns.turn import Turn
from tests.edges.gateway_kit import read_metric
from tests.edges.raw_client import Line, drop_all
from tests.edges.server import Served, config_text, serving
from tests.waits import until

pytestmark = pytest.mark.usefixtures("lines_end")

STREAMS = {"/v1/chat/completions": 200, "/v1/messages": 100}
"""Number of streams at once, by path. All APIs share what happens after the conversion of a request, so one of them has most."""
DROPPED = 0.4
"""The share of them whose clients go."""
WORDS = 12


def make_reply(number: int) -> list[str]:
    """Return the words of a stream's reply, each with its marker."""
    return [f"<{number}.{at}> " for at in range(WORDS)]


class Crowd:
    """The streams, each held by the upstream at its own position, some of which are dropped at theirs.

    Attributes:
        numbers: of all streams.
        lines: the client connections, by number.
        dropped: numbers of the dropped streams.
    """

    def __init__(self, seed: int, streams: int) -> None:
        chance = random.Random(seed)
        self.numbers = range(streams)
        self.gate = Gate()
        self.lines: dict[int, Line] = {}
        self.dropped = set(chance.sample(self.numbers, int(streams * DROPPED)))
        self._held = [chance.randint(1, WORDS) for _ in self.numbers]
        self._heard = [chance.randint(0, held - 1) for held in self._held]

    def answer(self, body: dict[str, Any]) -> Reply | str:
        """Return the upstream's answer to a stream's number; the role is its first chunk."""
        said = body["messages"][-1]["content"]
        if not said.isdecimal():
            return f"re: {said}"
        return Reply(text="".join(make_reply(int(said))), hold=self.gate, hold_after=self._held[int(said)])

    async def begin(self, served: Served, path: str) -> None:
        """Open all streams and read each up to its position."""

        async def one(number: int) -> None:
            line = await Line.ask(served.port, str(number), f"s{number}", path=path, max_tokens=1000)
            self.lines[number] = line
            words = line.words()
            for expected in make_reply(number)[: self._heard[number]]:
                assert await anext(words) == expected

        await asyncio.gather(*map(one, self.numbers))

    async def read_rest(self, number: int) -> str:
        """Return everything that the client received."""
        heard = make_reply(number)[: self._heard[number]]
        return "".join(heard) + await self.lines[number].text()


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("mode", ["cut", "finish"])
async def test_concurrent_streams_are_neither_mixed_nor_lost(mode: str, path: str) -> None:
    """Each client sees only its own marker; each log has the whole reply or a marked beginning of it."""
    crowd = Crowd(7, STREAMS[path])
    upstream = ScriptedUpstream(crowd.answer)
    with upstream.in_thread():
        make_holder()  # opens what this process keeps until its end
        before = count_files()
        async with serving(config_text(upstream.url, f"gateway: {{on_disconnect: {mode}}}")) as served:
            await served.chat("hello", "other")
            at_first = count_live_objects()
            await crowd.begin(served, path)
            assert await read_metric(served, "holdfast_streams_open") == STREAMS[path]
            await drop_clients(served, upstream, crowd, mode)
            crowd.gate.open()
            stayed = [number for number in crowd.numbers if number not in crowd.dropped]
            texts = await asyncio.gather(*map(crowd.read_rest, stayed))
            assert texts == ["".join(make_reply(number)) for number in stayed]
            drop_all()
            await until(lambda: served.hf.engine.locks.is_empty and len(served.server.server_state.tasks) == 0)
            await check_stored(served, crowd, mode)
            await check_next_turns(served, crowd)
            outcome = "finished" if mode == "finish" else "cut"
            assert await read_metric(served, f'holdfast_replies_left_total{{outcome="{outcome}"}}') == len(
                crowd.dropped
            )
            assert await read_metric(served, "holdfast_streams_open") == 0
            await until(lambda: len(served.server.server_state.tasks) == 0)
            left = count_live_objects()
            assert (left["turns"], left["clients"]) == (at_first["turns"], at_first["clients"])
            assert left["tasks"] <= at_first["tasks"]
        async with asyncio.timeout(10):
            await until(lambda: count_files() <= before)


async def drop_clients(served: Served, upstream: ScriptedUpstream, crowd: Crowd, mode: str) -> None:
    """Drop clients; return when the server has noticed."""
    for number in crowd.dropped:
        crowd.lines[number].drop()
    # One connection belongs to the test.
    await until(lambda: len(served.server.server_state.connections) == len(crowd.numbers) - len(crowd.dropped) + 1)
    if mode == "cut":
        await upstream.until(lambda: upstream.disconnects == len(crowd.dropped))


async def check_stored(served: Served, crowd: Crowd, mode: str) -> None:
    """Check the logs."""
    for number in crowd.numbers:
        user, *replies = await served.hf.store.entries(SessionRef("default", f"s{number}"))
        assert user.message.content == str(number)
        whole = "".join(make_reply(number))
        if mode == "finish" or number not in crowd.dropped:
            told = {"undelivered": True} if number in crowd.dropped else None
            assert [(one.message.content, one.metadata) for one in replies] == [(whole, told)]
        for part in replies if mode == "cut" and number in crowd.dropped else ():
            assert (part.metadata or {})["interrupted"] is True
            assert whole.startswith(str(part.message.content))


async def check_next_turns(served: Served, crowd: Crowd) -> None:
    """Check that another turn works in each session."""
    several = asyncio.Semaphore(20)

    async def one(number: int) -> Any:
        async with several:
            return await served.chat("more", f"s{number}")

    for answer in await asyncio.gather(*map(one, crowd.numbers)):
        assert answer["choices"][0]["message"]["content"] == "re: more"


def count_live_objects() -> dict[str, int]:
    """Count the objects of streams that are still in memory."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects() if type(one) in (Turn, Client)]
    tasks = [
        one for one in asyncio.all_tasks() if not one.get_name().startswith("index")
    ]  # index tasks run after turns
    return {"tasks": len(tasks), "turns": kinds.count(Turn), "clients": kinds.count(Client)}


def count_files() -> int:
    """Count the file descriptors of this process."""
    return sum(1 for _ in Path("/dev/fd").iterdir())
