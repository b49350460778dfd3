"""Five hundred streams at once in one process, two hundred of which are dropped: none crossed, none lost, nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.liveness import make_holder
from holdfast.server.app import API_FORMATS
from holdfast.server.streaming import Client
from holdfast.testing import Gate, Reply, ScriptedUpstream
from holdfast.turns.turn import Turn
from tests.edges.gateway_kit import read_metric
from tests.edges.raw_client import Line, drop_all
from tests.edges.server import Served, config_text, serving
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("lines_end")

STREAMS = {"/v1/chat/completions": 500, "/v1/messages": 200}
"""How many at once by the API: what is behind the second one is the same."""
DROPPED = 0.4
"""The share of them whose clients go."""
WORDS = 12


def reply(number: int) -> list[str]:
    """The words of a stream's reply, its marker in each of them."""
    return [f"<{number}.{at}> " for at in range(WORDS)]


class Crowd:
    """The streams, each of which the upstream holds at a place of its own, and of which some are dropped at theirs.

    Attributes:
        numbers: of all streams.
        lines: the clients', by number.
        dropped: which of them go.
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
        """What the upstream answers to the number of a stream; the role is its first chunk."""
        said = body["messages"][-1]["content"]
        if not said.isdecimal():
            return f"re: {said}"
        return Reply(text="".join(reply(int(said))), hold=self.gate, hold_after=self._held[int(said)])

    async def begin(self, served: Served, path: str) -> None:
        """Open all streams; each has had what it hears before it is dropped."""

        async def one(number: int) -> None:
            line = await Line.ask(served.port, str(number), f"s{number}", path=path, max_tokens=1000)
            self.lines[number] = line
            words = line.words()
            for expected in reply(number)[: self._heard[number]]:
                assert await anext(words) == expected

        await asyncio.gather(*map(one, self.numbers))

    async def rest(self, number: int) -> str:
        """All that the client was sent."""
        heard = reply(number)[: self._heard[number]]
        return "".join(heard) + await self.lines[number].text()


@pytest.mark.parametrize("path", [door.path for door in API_FORMATS])
@pytest.mark.parametrize("mode", ["cut", "finish"])
async def test_streams_do_not_cross_and_none_is_lost(mode: str, path: str) -> None:
    """Each client sees its own marker alone; each log has the whole reply, or a marked part that is a beginning of it."""
    crowd = Crowd(7, STREAMS[path])
    upstream = ScriptedUpstream(crowd.answer)
    with upstream.in_thread():
        make_holder()  # opens what this process keeps until its end
        before = files()
        async with serving(config_text(upstream.url, f"gateway: {{on_disconnect: {mode}}}")) as served:
            await served.chat("hello", "other")
            at_first = alive()
            await crowd.begin(served, path)
            assert await read_metric(served, "holdfast_streams_open") == STREAMS[path]
            await dropped(served, upstream, crowd, mode)
            crowd.gate.open()
            stayed = [number for number in crowd.numbers if number not in crowd.dropped]
            texts = await asyncio.gather(*map(crowd.rest, stayed))
            assert texts == ["".join(reply(number)) for number in stayed]
            drop_all()
            await until(lambda: served.hf.engine.locks.is_empty and len(served.server.server_state.tasks) == 0)
            await all_stored(served, crowd, mode)
            await all_go_on(served, crowd)
            outcome = "finished" if mode == "finish" else "cut"
            assert await read_metric(served, f'holdfast_replies_left_total{{outcome="{outcome}"}}') == len(
                crowd.dropped
            )
            assert await read_metric(served, "holdfast_streams_open") == 0
            await until(lambda: len(served.server.server_state.tasks) == 0)
            left = alive()
            assert (left["turns"], left["clients"]) == (at_first["turns"], at_first["clients"])
            assert left["tasks"] <= at_first["tasks"]
        async with asyncio.timeout(10):
            await until(lambda: files() <= before)


async def dropped(served: Served, upstream: ScriptedUpstream, crowd: Crowd, mode: str) -> None:
    """Return when the clients that go have gone, and the server knows."""
    for number in crowd.dropped:
        crowd.lines[number].drop()
    # One connection is the test's own.
    await until(lambda: len(served.server.server_state.connections) == len(crowd.numbers) - len(crowd.dropped) + 1)
    if mode == "cut":
        await upstream.until(lambda: upstream.disconnects == len(crowd.dropped))


async def all_stored(served: Served, crowd: Crowd, mode: str) -> None:
    """What the logs hold."""
    for number in crowd.numbers:
        user, *replies = await served.hf.store.entries(SessionRef("default", f"s{number}"))
        assert user.message.content == str(number)
        whole = "".join(reply(number))
        if mode == "finish" or number not in crowd.dropped:
            assert [(one.message.content, one.metadata) for one in replies] == [(whole, None)]
        for part in replies if mode == "cut" and number in crowd.dropped else ():
            assert (part.metadata or {})["interrupted"] is True
            assert whole.startswith(str(part.message.content))


async def all_go_on(served: Served, crowd: Crowd) -> None:
    """Another turn works on each of them."""
    several = asyncio.Semaphore(20)

    async def one(number: int) -> Any:
        async with several:
            return await served.chat("more", f"s{number}")

    for answer in await asyncio.gather(*map(one, crowd.numbers)):
        assert answer["choices"][0]["message"]["content"] == "re: more"


def alive() -> dict[str, int]:
    """What of a stream is still in memory."""
    gc.collect()
    kinds = [type(one) for one in gc.get_objects() if type(one) in (Turn, Client)]
    tasks = [
        one for one in asyncio.all_tasks() if not one.get_name().startswith("index")
    ]  # what an index does is behind turns
    return {"tasks": len(tasks), "turns": kinds.count(Turn), "clients": kinds.count(Client)}


def files() -> int:
    """File descriptors of this process."""
    return sum(1 for _ in Path("/dev/fd").iterdir())
