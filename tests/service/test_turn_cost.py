"""A turn costs what it adds and sends, independent of the log length, and a search what it shows: in statements and rows, not in time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.models.offline import OfflineModel
from holdfast.stores.log import Append
from holdfast.stores.logic.steps import Many, Steps
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper
from holdfast.tokens import STORED
from holdfast.turns.place import plan_history
from tests.service.matching_kit import find_session

SHORT, LONG = 100, 20_000
REF = SessionRef("ada", "s")


class Counting:
    """Wraps the database of a store and counts its statements and rows."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.statements = 0
        self.rows = 0
        self.written = 0

    async def read(self, steps: Callable[[], Steps[Any]], **how: bool) -> Any:
        return await self._database.read(lambda: self._count_steps(steps()), **how)

    async def write(self, steps: Callable[[], Steps[Any]], **how: bool) -> Any:
        return await self._database.write(lambda: self._count_steps(steps()), **how)

    async def close(self) -> None:
        await self._database.close()

    def _count_steps(self, steps: Steps[Any]) -> Steps[Any]:
        statements = found = written = 0
        try:
            query = next(steps)
            while True:
                statements += 1
                written += len(query.rows) if isinstance(query, Many) else 0
                rows = yield query
                found += len(rows)
                query = steps.send(rows)
        except StopIteration as stop:  # an operation that takes too long on the event loop runs again, and counts once
            self.statements += statements
            self.rows += found
            self.written += written
            return stop.value


def count_queries(hf: Holdfast) -> Counting:
    """Start counting the queries to the database of `hf`; all of them pass through it."""
    store = hf.engine.life.store
    while isinstance(store, StoreWrapper):
        store = store.inner
    counting = Counting(store.database)
    store.database = counting  # type: ignore[assignment]  # it passes on what it does not define
    return counting


# Strategy, and the most messages its window can hold.
STRATEGIES = {
    "digest": (ContextSettings("digest", {"budget": 8192}), 460),
    "token_window": (ContextSettings("token_window", {"budget": 1024}), 65),
    "head_tail": (ContextSettings("head_tail", {"window_size": 20}), 65),
    "buffer_window": (ContextSettings("buffer_window", {"window_size": 20}), 65),
}


async def measure_cost(path: Path, settings: ContextSettings, length: int, *, warm: bool) -> tuple[int, int, int]:
    """Return the statements, rows read and rows written by ten turns on a session of `length` entries. `warm` says
    whether the process may cache the session between turns.
    """
    roster = Roster({"default": Llm(name="default", model="offline", client=OfflineModel())}, context=settings)
    async with Holdfast(f"sqlite:///{path / f'{length}.db'}", roster=roster, index=None) as hf:
        await hf.store.replace(NewSession(id="s", user_id="ada", timestamp=1), make_log(length))
        session = await hf.session("s", user_id="ada")
        await session.send("the first turn after an import reads the log once")
        counting = count_queries(hf)
        for number in range(10):
            if not warm:
                hf.engine.warm.forget(REF)
            await session.send(f"question {number}")
        assert (await session.info()).messages == length + 22
        return counting.statements, counting.rows, counting.written


def make_log(length: int) -> list[NewEntry]:
    """Return a log of questions and answers."""
    texts = ["Where is order A-17?", "It is on its way, and will be with you by Tuesday the 14th at the latest."]
    messages = [Message(role=("user", "assistant")[at % 2], content=texts[at % 2]) for at in range(2)]
    tokens = [STORED.message(message) for message in messages]
    return [NewEntry(message=messages[at % 2], tokens=tokens[at % 2], timestamp=at) for at in range(length)]


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "cold"])
@pytest.mark.parametrize(("settings", "window"), STRATEGIES.values(), ids=STRATEGIES.keys())
async def test_turn_on_20_000_entries_costs_the_same_as_on_100(
    tmp_path: Path, settings: ContextSettings, window: int, *, warm: bool
) -> None:
    """As many statements and rows written; the rows read differ only by the position of the frontier within its step."""
    short, long = [await measure_cost(tmp_path, settings, length, warm=warm) for length in (SHORT, LONG)]
    # What a moved frontier keeps from before it, for example the anchor, and what is recalled are read by separate statements.
    assert 0 < long[0] <= short[0] + 30
    assert long[2] <= short[2] + 10
    assert abs(long[1] - short[1]) / 10 <= window
    assert long[1] / 10 <= 2 * window


async def test_ten_hits_are_read_in_two_statements(tmp_path: Path) -> None:
    """One reads the entries of all ten sessions, and the messages around them; one reads the origins of hits that look alike."""
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db") as hf:
        for name in range(10):
            session = await hf.session(f"s{name}", user_id="ada")
            await session.append([{"role": "user", "content": text} for text in ("Hello.", f"kelp {name}", "Bye.")])
        await hf.search("kelp", "ada")  # the first search waits for the index
        counting = count_queries(hf)
        found = await hf.search("kelp", "ada", limit=10, neighbours=1)
        assert [[near.text for near in (*hit.before, *hit.after)] for hit in found.hits] == [["Hello.", "Bye."]] * 10
        assert counting.statements <= 2


async def test_neighbours_are_found_beyond_retired_messages(tmp_path: Path) -> None:
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db") as hf:
        await hf.store.replace(NewSession(id="s", user_id="ada", timestamp=1), [*make_log(1), *make_log(20)])
        said = [
            NewEntry(message=Message(role="user", content=text), tokens=1, timestamp=1) for text in ("kelp", "Bye.")
        ]
        await hf.store.append(REF, Append(entries=said, retire_from=1, timestamp=2))
        hit = (await hf.search("kelp", "ada", neighbours=1)).hits[0]
        assert [[near.seq for near in some] for some in (hit.before, hit.after)] == [[0], [22]]


async def test_examples_with_equal_replies_are_searched_in_few_statements(tmp_path: Path) -> None:
    """A program sends the same examples before each text, and the reply to it is that of the examples: no session is found."""
    counts = []
    for length in (10, 400):
        examples = [
            Message(role=("user", "assistant")[at % 2], content=("ok", str(at))[at % 2 == 0]) for at in range(length)
        ]
        brought = [NewEntry(message=one, tokens=1, timestamp=1, is_brought=one.role == "assistant") for one in examples]
        async with Holdfast(f"sqlite:///{tmp_path}/{length}.db", index=None) as hf:
            for name in range(3):
                texts = [Message(role="user", content=f"t{name}"), Message(role="assistant", content="ok")]
                log = [*brought, *[NewEntry(message=one, tokens=1, timestamp=1) for one in texts]]
                await hf.store.replace(NewSession(id=f"s{name}", user_id="ada", timestamp=1), log)
            counting = count_queries(hf)
            assert await find_session(hf.store, "ada", [*examples, Message(role="user", content="new")]) is None
            counts.append(counting.statements)
    assert counts[0] == counts[1]


async def test_retired_branch_is_continued_in_few_statements(tmp_path: Path) -> None:
    """It is compared with the live path, which left it early: by halving, and not message by message."""
    counts = []
    for length in (16, 256):
        log = [Message(role=("user", "assistant")[at % 2], content=str(at)) for at in range(length)]
        async with Holdfast(f"sqlite:///{tmp_path}/{length}.db", index=None) as hf:
            entries = [NewEntry(message=one, tokens=1, timestamp=1) for one in log]
            await hf.store.replace(NewSession(id="s", user_id="ada", timestamp=1), entries)
            edited = [NewEntry(message=Message(role="user", content="edited"), tokens=1, timestamp=1)]
            changed = await hf.store.append(REF, Append(entries=edited, retire_from=2, timestamp=2))
            counting, incoming = count_queries(hf), [*log, Message(role="user", content="on")]
            plan = await plan_history(hf.store, changed.session, incoming, whole=False, named=True)
            assert (len(plan.restore), len(plan.append)) == (length - 2, 1)
            counts.append(counting.statements - 2 * length // 32)  # pages of the branch, which is written again
    assert counts[1] <= counts[0] + 40
