"""What tests of behaviour are made of. Nothing else of Holdfast but its public names may be imported by them.

    @through("library", "connect", "rest")          # without it: through all four drivers
    async def test_a_fork_ends_where_it_was_cut(world: World) -> None:
        async with world.open() as hf:
            session = await hf.given("s", user("One."), assistant("Yes."), user("Two."))
            fork = await session.fork(at_turn=0)
            assert texts(await fork.messages()) == ["One.", "Yes."]

A driver is one of the four ways to use the product. All have the interface of `kit/drivers.py`, and return rows: dicts with the fields
of the REST API. A test that a driver cannot express names the drivers that can. `hf.native`, `hf.http` and `hf.run` are what the
driver itself uses, for tests of one driver only. `refused(code, words)` expects an error.

`await hf.settle()` waits for work in the background (not for the command line).

`gateway(script, *config)` serves chat in front of a scripted model, with official clients. `page(…)` opens a browser.
`with inject("after-commit", error)` lets the product fail at one of its named points; `Process(url, env={"HOLDFAST_FAULTS": …})` is a
server that dies there.
`Files(session)`, `Records(hf, "namespace", user="ada")` and `State(hf, "s", "ada")` of `kit/data.py` are one interface for artifacts,
records and operations on state. `receiver()`, `embedder(car=0, automobile=0)` and `reranker(score=…)` are
servers that the product calls.
`seams.py` is the only file that knows the inside of the product: a rewrite changes it, and no test.
"""

from tests.behaviour.kit.drivers import DRIVERS, Driver, Row, Session
from tests.behaviour.kit.gateway import CLAUDE, CLIENT_KEY, UPSTREAM_KEY, Served, apis, gateway
from tests.behaviour.kit.messages import answer_of, assistant, calls, result, system, texts, user
from tests.behaviour.kit.receivers import Embedder, Receiver, embedder, receiver
from tests.behaviour.kit.refusals import Refused, refused
from tests.behaviour.kit.seams import (
    Clock,
    Process,
    bearer,
    count_connections,
    count_queued,
    count_runs,
    count_tasks,
    count_waiting,
    fresh_store,
    inject,
    read_schema,
    start_tool_server,
    tune_models,
    until,
)
from tests.behaviour.kit.speakers import Speakers
from tests.behaviour.kit.world import World, through
from tests.service.rerank_stub import serving as reranker

__all__ = [
    "CLAUDE",
    "CLIENT_KEY",
    "DRIVERS",
    "UPSTREAM_KEY",
    "Clock",
    "Driver",
    "Embedder",
    "Process",
    "Receiver",
    "Refused",
    "Row",
    "Served",
    "Session",
    "Speakers",
    "World",
    "answer_of",
    "apis",
    "assistant",
    "bearer",
    "calls",
    "count_connections",
    "count_queued",
    "count_runs",
    "count_tasks",
    "count_waiting",
    "embedder",
    "fresh_store",
    "gateway",
    "inject",
    "read_schema",
    "receiver",
    "refused",
    "reranker",
    "result",
    "start_tool_server",
    "system",
    "texts",
    "through",
    "tune_models",
    "until",
    "user",
]
