"""Calls of the tool `python`: the first one of a session, which starts a process, and later ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, format_duration
from benchmarks.timing import Samples, clock, freeze_heap
from holdfast.artifacts.service import SessionArtifacts
from holdfast.domain.messages import ToolCall
from holdfast.domain.session import Entry, Session
from holdfast.holdfast import Holdfast
from holdfast.tools.context import Call, State, ToolContext, TurnState
from holdfast.tools.python.settings import PythonSettings
from holdfast.tools.tool import CallOutcome, run

TRIVIAL, FILE, OUTPUT = "1 + 1", "open('a.txt', 'w').write('x' * 1024)", "print('x' * 60_000)"
_COLUMNS = [Column("what", ""), Column("p50", "p50", format_duration), Column("p99", "p99", format_duration)]


async def measure(run: Run) -> list[Table]:
    """Measure calls as a turn makes them, with the session in a file; storing the result is not included."""
    settings = PythonSettings()
    times = 20 if run.quick else 100
    async with Holdfast(f"sqlite:///{run.folder}/python.db", python=settings) as hf:
        freeze_heap()
        rows = [_make_row("first call of a session (starts the process)", await _time_first_calls(hf, times))]
        context = await _make_context(hf, "warm")
        await _call_tool(hf, context, "0")
        for what, code in (
            (f"`{TRIVIAL}` in a running process", TRIVIAL),
            ("60,000 characters of output", OUTPUT),
            ("1 KiB file, saved as an artifact", FILE),
        ):
            samples = await _time_calls(lambda code=code: _call_tool(hf, context, code), times * 5)  # type: ignore[misc]  # called at once
            rows.append(_make_row(what, samples))
    return [Table("python", "The tool `python`", _COLUMNS, rows)]


def _make_row(what: str, samples: Samples) -> dict[str, Figure]:
    return {"what": what, "p50": samples.median, "p99": samples.quantile(0.99)}


async def _time_first_calls(hf: Holdfast, times: int) -> Samples:
    seconds = []
    for number in range(times):
        context = await _make_context(hf, f"first-{number}")
        started = clock()
        await _call_tool(hf, context, TRIVIAL)
        seconds.append(clock() - started)
        await hf.close_session((await hf.session(context.session_id)).ref)
    return Samples(seconds)


async def _time_calls(call: Callable[[], Awaitable[object]], times: int) -> Samples:
    seconds = []
    for _ in range(times):
        started = clock()
        await call()
        seconds.append(clock() - started)
    return Samples(seconds)


async def _call_tool(hf: Holdfast, context: ToolContext, code: str) -> CallOutcome:
    call = ToolCall(id="c", name="python", arguments=f'{{"code": "{code}"}}')
    outcome = await run(hf.roster.tools, call, context)
    if outcome.failed or '"success"' not in outcome.content:
        raise RuntimeError(outcome.content)
    return outcome


async def _make_context(hf: Holdfast, name: str) -> ToolContext:
    """Return the context that a turn passes to the tool."""
    session: Session = await hf.store.get((await hf.session(name)).ref)
    ref = session.ref

    async def entries(start: int, stop: int) -> Sequence[Entry]:
        return await hf.store.entries(ref, start=start, stop=stop)

    return ToolContext(
        session_id=ref.id,
        user_id=ref.user_id,
        agent=None,
        state=State(TurnState({}, {})),
        artifacts=SessionArtifacts(hf.artifacts, ref, session.identity),
        call=Call(id="c", tenant=session.tenant, identity=session.identity, entries=entries),
    )
