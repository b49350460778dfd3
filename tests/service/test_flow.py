"""The steps of a turn and their order, also when a step fails: load, filter, run, save, index, compact, clear temporary state."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.domain.session import Session, SessionRef
from holdfast.engine import engine as engine_module
from holdfast.engine.session_lock import SessionLock
from holdfast.errors import HoldfastError, ModelUnavailable, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.tools.context import ToolContext
from holdfast.turns import prompt, scope
from holdfast.turns.respond import respond
from holdfast.turns.turn import Turn
from tests.service.scripted_model import REF, ScriptedModel
from tests.service.tools_kit import Bench, bench, content, make_reply

CANARY = "kelp-canary-7f3a"


class RecordingIndexer:
    """An indexer that records its calls and may fail or wait.

    Attributes:
        calls: Session id and version of each call.
    """

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[tuple[str, int]] = []
        self.gate: asyncio.Event | None = None

    async def index(self, ref: SessionRef, session: Session) -> None:
        self.calls.append((ref.id, session.version))
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure


def keep(context: ToolContext) -> str:
    """Keep something for the turn."""
    context.state["temp:note"] = CANARY
    context.state["kept"] = "yes"
    return "kept"


SCRIPT: list[Any] = [make_reply(None, ("c", "keep", {})), make_reply("done")]


class StepRecorder:
    """Record the steps of a turn in order, and what each step after the reply sees.

    Attributes:
        steps: Their names.
        seen: For each step, the temporary state and the session's version at that moment.
        failing: The step that raises.
    """

    def __init__(self, patch: pytest.MonkeyPatch, failing: str | None = None) -> None:
        self.steps: list[str] = []
        self.seen: dict[str, tuple[dict[str, Any], int]] = {}
        self.failing = failing
        self.turn: Turn | None = None
        self._patch = patch
        self._wrap(SessionLock, "open", "load")
        self._wrap(prompt, "draft_from", "filter", of="filter")
        self._wrap(ScriptedModel, "stream", "run", of="run")
        self._wrap_save()
        for step in ("index", "compact", "clear_temp"):
            self._wrap_step_after_reply(step)

    def record_step(self, step: str) -> None:
        if step not in self.steps:
            self.steps.append(step)
        if step == self.failing:
            raise StoreUnavailable(f"{step} fails")

    def _wrap(self, owner: Any, name: str, step: str, *, of: str | None = None) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        def recording(*args: Any, **more: Any) -> Any:
            self.record_step(of or step)
            return inner(*args, **more)

        self._patch.setattr(owner, name, recording)

    def _wrap_save(self) -> None:
        inner = Turn.append

        async def append(turn: Turn, messages: Any, **more: Any) -> Any:
            self.turn = turn
            if more.get("last"):
                self.record_step("save")
            return await inner(turn, messages, **more)

        self._patch.setattr(Turn, "append", append)

    def _wrap_step_after_reply(self, step: str) -> None:
        inner = getattr(scope, step)

        def recording(turn: Turn) -> None:
            self.seen[step] = (dict(turn.temp), turn.session.version if turn.wrote else -1)
            self.record_step(step)
            inner(turn)

        recording.__name__ = step
        steps = tuple(recording if one.__name__ == step else one for one in scope.STEPS)
        self._patch.setattr(scope, "STEPS", steps)


ORDER = ["load", "filter", "run", "save", "index", "compact", "clear_temp"]


@asynccontextmanager
async def open_watched_bench(
    patch: pytest.MonkeyPatch, failing: str | None = None, script: Any = None, **how: Any
) -> AsyncIterator[tuple[Bench, StepRecorder, RecordingIndexer]]:
    index = RecordingIndexer()
    async with bench(script or SCRIPT, keep, indexer=index, **how) as made:
        yield made, StepRecorder(patch, failing), index


# -- order -------------------------------------------------------------------------------


async def test_turn_steps_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_watched_bench(monkeypatch) as (made, watch, index):
        assert content(await made.ask("Hi")) == "done"
        assert watch.steps == ORDER
        version = (await made.hf.store.get(REF)).version
        await made.hf.engine.indexing.wait_until_done()
        assert index.calls == [("s", version)], "after the commits: it sees all of the turn"
        assert watch.seen["index"] == watch.seen["compact"] == ({"temp:note": CANARY}, version)
        assert watch.turn is not None
        assert watch.turn.temp == {}


@pytest.mark.parametrize(
    ("failing", "taken", "log"),
    [
        ("load", ["load", "index", "compact", "clear_temp"], []),
        ("filter", ["load", "filter", "index", "compact", "clear_temp"], ["user"]),
        ("run", ["load", "filter", "run", "index", "compact", "clear_temp"], ["user"]),
        ("save", ORDER, ["user", "assistant", "tool"]),
    ],
)
async def test_final_steps_run_in_order_when_an_earlier_step_fails(
    monkeypatch: pytest.MonkeyPatch, failing: str, taken: list[str], log: list[str]
) -> None:
    async with open_watched_bench(monkeypatch, failing) as (made, watch, index):
        with pytest.raises(HoldfastError, match=f"{failing} fails"):
            await made.ask("Hi")
        assert watch.steps == taken
        assert [entry.message.role for entry in await made.log()] == log
        await made.hf.engine.indexing.wait_until_done()
        version = (await made.hf.store.get(REF)).version
        assert index.calls == ([("s", version)] if log else []), "it is called only if something was written"
        assert watch.turn is None or watch.turn.temp == {}


@pytest.mark.parametrize("failing", ["index", "compact", "clear_temp"])
async def test_failing_final_step_does_not_prevent_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: str
) -> None:
    async with open_watched_bench(monkeypatch, failing) as (made, watch, index):
        assert content(await made.ask("Hi")) == "done", "the reply is what counts"
        assert watch.steps == ORDER
        await made.hf.engine.indexing.wait_until_done()
        assert bool(index.calls) == (failing != "index")
        errors = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert errors == [f"{failing}: not done after a turn of session 's'"]
        assert CANARY not in caplog.text


async def test_cancelled_turn_runs_the_final_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_watched_bench(monkeypatch) as (made, watch, index):
        turn = made.turn("Hi")
        made.model.gate = asyncio.Event()
        chunks = respond(turn)
        task = asyncio.ensure_future(anext(chunks))
        await made.model.asked.wait()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await chunks.aclose()
        assert watch.steps == ["load", "filter", "run", "index", "compact", "clear_temp"]
        await made.hf.engine.indexing.wait_until_done()
        assert len(index.calls) == 1


async def test_library_turn_runs_the_final_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_watched_bench(monkeypatch) as (made, watch, index):
        with pytest.raises(ValueError, match="mine"):  # noqa: PT012  (what is raised in it ends the turn)
            async with made.session.turn("Hi") as turn:
                turn.state["temp:note"] = CANARY
                turn.add("half")
                raise ValueError("mine")
        assert watch.steps == ["load", "filter", "save", "index", "compact", "clear_temp"]
        assert watch.seen["compact"][0] == {"temp:note": CANARY}
        assert watch.turn is not None
        assert watch.turn.temp == {}
        await made.hf.engine.indexing.wait_until_done()
        assert index.calls == [("s", (await made.hf.store.get(REF)).version)]


async def test_replayed_reply_is_not_indexed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_watched_bench(monkeypatch) as (made, _, index):
        for _ in range(2):
            told = await made.ask("Hi", idempotency_key="k", fingerprint=b"f")
        assert content(told) == "done"
        await made.hf.engine.indexing.wait_until_done()
        assert len(index.calls) == 1


# -- the index ---------------------------------------------------------------------------


async def test_turns_do_not_wait_for_the_indexer() -> None:
    """While it is busy with a session, further turns cause only one more call."""
    index = RecordingIndexer()
    index.gate = asyncio.Event()
    async with bench(["1", "2", "3"], indexer=index) as made:
        for at in ("1", "2", "3"):
            assert content(await made.ask(f"ask {at}")) == at
        assert len(index.calls) == 1
        index.gate.set()
        await made.hf.engine.indexing.wait_until_done()
        assert [version for _, version in index.calls][-1] == (await made.hf.store.get(REF)).version
        assert len(index.calls) == 2


async def test_failed_indexer_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    index = RecordingIndexer(RuntimeError("no index"))
    async with bench(["1", "2"], indexer=index) as made:
        await made.ask("Hi")
        await made.hf.engine.indexing.wait_until_done()
        assert content(await made.ask("And?")) == "2"
        await made.hf.engine.indexing.wait_until_done()
        assert len(index.calls) == 2
    assert "session 's' could not be indexed" in caplog.text


async def test_closing_waits_for_the_indexer_only_until_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    index = RecordingIndexer()
    index.gate = asyncio.Event()
    monkeypatch.setattr(engine_module, "INDEX_SECONDS", 0.0)
    async with bench(["1"], indexer=index) as made:
        await made.ask("Hi")
        running = made.hf.engine.indexing
    await running.wait_until_done()
    running.schedule(REF, None)  # type: ignore[arg-type]  # it is closed, and looks at nothing
    assert len(index.calls) == 1


async def test_indexer_is_called_for_each_tenant() -> None:
    index = RecordingIndexer()
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=ScriptedModel(lambda _: "ok"))})
    async with Holdfast("sqlite://:memory:", roster=roster, indexer=index) as hf, hf.serve_tenant("other") as other:
        await (await other.session("t")).send("Hi")
        await other.engine.indexing.wait_until_done()
        assert [name for name, _ in index.calls] == ["t"]


# -- temporary state ---------------------------------------------------------------------


async def test_temporary_state_is_deleted_when_its_turn_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is not in the database files, an export, the session's state, the log lines or the turn's memory."""
    caplog.set_level(logging.DEBUG)

    def look(context: ToolContext) -> str:
        """Look at it."""
        return str(len(context.state["temp:note"]))

    script = [*SCRIPT[:1], make_reply(None, ("d", "look", {})), make_reply("done"), [ModelUnavailable("down")]]
    async with bench(script, keep, look, url=f"sqlite:///{tmp_path}/hf.db") as made:
        turn = made.turn("Hi")
        async for _ in respond(turn):
            pass
        assert (await made.log())[4].message.text == str(len(CANARY)), "the turn's other tools see it"
        with pytest.raises(ModelUnavailable):
            await made.ask("And?")
        assert turn.temp == {}
        assert CANARY not in str(await made.session.export())
        session = await made.hf.store.get(REF)
        assert session.state == {"kept": "yes"}
        assert await made.session.state.all() == {"kept": "yes"}
        assert not [one for one in gc.get_objects() if isinstance(one, dict) and one.get("temp:note") == CANARY]
    assert CANARY not in caplog.text
    assert not find_canary_files(tmp_path)


def find_canary_files(folder: Path) -> list[Path]:
    """Return the files that contain the canary."""
    return [one for one in folder.rglob("*") if one.is_file() and CANARY.encode() in one.read_bytes()]


async def test_temporary_state_is_not_visible_in_other_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell(context: ToolContext) -> str:
        """Tell what there is."""
        return str(sorted(context.state))

    script = [*SCRIPT, make_reply(None, ("d", "tell", {})), make_reply("done")]
    async with bench(script, keep, tell) as made:
        await made.ask("Hi")
        await made.ask("And?")
        assert (await made.log())[-2].message.text == "['kept']"
