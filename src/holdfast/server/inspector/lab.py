"""The strategy lab: replay recordings or sessions through strategies with some budgets, as `holdfast replay` does, and compare the results."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec.structs import asdict

from holdfast.accounting import run_cpu
from holdfast.context.settings import BUILT_IN, STRATEGIES
from holdfast.domain.messages import NOTE
from holdfast.errors import HoldfastError, InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import MIB
from holdfast.replay import (
    Comparison,
    PlayResult,
    Run,
    Spec,
    chain_sessions,
    compare,
    parse_specs,
    parse_tokens,
    plan_runs,
)
from holdfast.server.http import Call, get_session_by_id
from holdfast.server.inspector.access import redirect
from holdfast.server.inspector.actions import check_form
from holdfast.server.inspector.frame import HEADERS, HTML, InspectorState, PageQuery, format_share, render
from holdfast.server.inspector.lab_jobs import LabJob, LabJobs, check_recordings, check_runs
from holdfast.server.inspector.line_charts import Line, draw_lines
from holdfast.server.inspector.rest import call_rest
from holdfast.server.limits import LAB_BYTES, LAB_MESSAGES, LAB_PICKED, LAB_SESSIONS, LAB_SPEC_CHARS
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply, make_failure_reply
from holdfast.server.routes import TEXT, Routes
from holdfast.wire.objects import Count, Request
from holdfast.wire.transcripts import Recording, read_recordings

routes = Routes("inspector")
_PATH: Final = "/inspect/lab"
_JOB: Final = f"{_PATH}/{{job_id}}"
_BUDGETS: Final = "1024, 4096, 16384"
_SOURCE: Final = "recordings"
"""Name of the form's recordings in error messages, and of sessions without an id."""


def _format_share(value: float) -> str:
    return f"{100 * value:.0f} %" if value in (0, 1) else f"{100 * value:.1f} %"


def _format_whole(value: float) -> str:
    return f"{value:,.0f}"


def _format_ms(value: float) -> str:
    return f"{value:.2f}"


COLUMNS: Final[Mapping[str, tuple[str, Callable[[float], str]]]] = {
    "calls": ("calls", _format_whole),
    "refused": ("refused", _format_whole),
    "tokens_per_call": ("tokens a call", _format_whole),
    "recall": ("recall", _format_share),
    "bound": ("bound", _format_share),
    "cached": ("cached", _format_share),
    "cost_per_call": ("cost a call", _format_whole),
    "orphans": ("orphans", _format_share),
    "tasks_lost": ("tasks lost", _format_share),
    "build_ms": ("build ms", _format_ms),
}
"""Columns of the results: the field of `Result`, its heading as in `holdfast replay`, and its format."""


MEANINGS: Final[Mapping[str, str]] = {
    "calls": "recorded messages of the assistant; each represents one model call",
    "refused": "calls without a prompt, because the messages that must be sent do not fit the budget",
    "tokens_per_call": "mean tokens of a prompt",
    "recall": "share of the argument values of tool calls that are still in the prompt",
    "bound": "share of these values that are in the prompt together with the words that they belong to",
    "cached": "share of the prompt tokens that a provider's cache would have served",
    "cost_per_call": "mean price of a call in uncached input tokens; a cached token costs 0.1, another prompt token 1.25",
    "orphans": "share of the prompts with a tool call without its result, or a result without its call",
    "tasks_lost": "share of the prompts without the task, which is the first message of the user",
    "build_ms": "mean time to build a prompt, in milliseconds",
}
"""Meaning of each column."""


def format_change(name: str, change: float) -> str:
    """Return the difference of two figures with its sign. Differences of shares are in percentage points."""
    if COLUMNS[name][1] is _format_share:
        return f"{100 * change:+.1f} points" if change else "0"
    return f"{'+' if change > 0 else '-' if change else ''}{COLUMNS[name][1](abs(change))}"


class LabQuery(PageQuery, kw_only=True):
    """Query parameters of the form."""

    session_id: str | None = None
    """A session that is picked from the beginning."""
    user_id: str | None = None
    """User of this session. Without a session: list only sessions of this user."""


class JobQuery(PageQuery, kw_only=True):
    """Query parameters of a result."""

    a: str | None = None
    """The first run of a comparison, as `BUDGET STRATEGY`."""
    b: str | None = None
    """The second run of the comparison."""


class EventsQuery(Request, kw_only=True):
    """Query parameters of live updates."""

    done: Count = 0
    """Number of sessions that the page shows as replayed."""


class DownloadQuery(Request, kw_only=True):
    """Query parameters of a download."""

    sessions: bool = False
    """True: with the results of each session."""


class LabForm(msgspec.Struct, kw_only=True):
    """The fields of the form."""

    recordings: str = ""
    picked: list[str] = []
    """Sessions of the server, each as `USER/ID` with both percent-encoded."""
    strategies: list[str] = msgspec.field(default_factory=lambda: list(BUILT_IN))
    specs: str = ""
    """More strategies, as for `holdfast replay --strategy`."""
    budgets: str = _BUDGETS
    chain: bool = False
    skip_bad: bool = False

    @classmethod
    def from_fields(cls, form: Mapping[str, list[str]]) -> LabForm:
        """Return the form that a browser sent."""
        return cls(
            recordings=form.get("recordings", [""])[0],
            picked=form.get("session", []),
            strategies=form.get("strategy", []),
            specs=form.get("specs", [""])[0],
            budgets=form.get("budgets", [""])[0],
            chain="chain" in form,
            skip_bad="skip_bad" in form,
        )

    def plan(self) -> dict[Run, Spec]:
        """Return the runs. Raise an error if a strategy or budget is not valid, or if there are too many."""
        if sum(map(len, (*self.strategies, self.specs, self.budgets))) > LAB_SPEC_CHARS:
            raise TooLarge(f"the strategies and budgets have more than {LAB_SPEC_CHARS:,} characters")
        budgets = [parse_tokens(text) for text in re.split(r"[\s,;]+", self.budgets) if text]
        specs = parse_specs([*self.strategies, *self.specs.splitlines()])
        if not specs:
            raise InvalidRequest("no strategy is chosen: choose at least one", param="strategy")
        if not budgets and any(spec.budget is None for spec in specs):
            raise InvalidRequest("no budget is given: write at least one, in tokens", param="budgets")
        runs = plan_runs(specs, budgets or [0])
        check_runs(runs)
        return runs


# -- the form --------------------------------------------------------------------


@routes.add("GET", _PATH, "read", answer=HTML)
async def show_lab(call: Call, query: LabQuery) -> Reply:
    """Return the form that starts a run."""
    picked = []
    if query.session_id is not None:
        found = await get_session_by_id(call.hf, query.session_id, call.get_owner(query.user_id))
        picked = [make_pick(found.user_id, found.id)]
    return await _show_form(call, query, LabForm(picked=picked))


async def _show_form(call: Call, query: LabQuery, form: LabForm, *, error: Mapping[str, Any] | None = None) -> Reply:
    listed = {"limit": str(LAB_PICKED), **({"user_id": query.user_id} if query.user_id else {})}
    status, answer = await call_rest(call, "GET", "/v1/sessions", query=listed)
    sessions = [(make_pick(one["user_id"], one["id"]), one) for one in answer["data"]] if status == 200 else []
    known = {pick for pick, _ in sessions}
    return await render(
        call,
        "lab.html",
        title="Strategy lab",
        status=error["status"] if error else 200,
        error=error["message"] if error else "",
        form=form,
        sessions=sessions,
        others=[(pick, split_pick(pick)) for pick in form.picked if pick not in known],
        strategies=[(name, STRATEGIES[name].about) for name in STRATEGIES if name in BUILT_IN],
        jobs=_get_jobs(call).list_own(call.hf.clock()),
        most_bytes=LAB_BYTES,
    )


def make_pick(user_id: str, session_id: str) -> str:
    """Return the value that a form has for a session."""
    return f"{quote(user_id, safe='')}/{quote(session_id, safe='')}"


def split_pick(pick: str) -> tuple[str, str]:
    """Return user and id of a session in a form."""
    user_id, _, session_id = pick.partition("/")
    return unquote(user_id), unquote(session_id)


def _get_jobs(call: Call) -> LabJobs:
    state: InspectorState = call.request.app.state.inspector
    return state.lab


@routes.add("POST", f"{_PATH}/run", "read", answer=HTML)
async def start_run(call: Call) -> Reply:
    """Start a run, and send the browser to its page."""
    fields = await call.read_form()
    check_form(call, fields)
    form = LabForm.from_fields(fields)
    try:
        runs = form.plan()
        sessions = await run_cpu(partial(read_form_recordings, form))
        sessions += await _read_sessions(call, form.picked)
        sessions = chain_sessions(sessions) if form.chain else sessions
        await run_cpu(check_recordings, sessions)
        job = _get_jobs(call).start(sessions, runs, call.hf.clock())
    except (HoldfastError, Refused) as exc:
        failed = make_failure_reply(exc)
        error = {"status": failed.status, "message": failed.body["error"]["message"]}
        return await _show_form(call, LabQuery(), form, error=error)
    return redirect(f"{_PATH}/{job.id}")


def read_form_recordings(form: LabForm) -> list[Recording]:
    """Return the recordings in the text field. Raise an error if they are too large, or if a line is not valid."""
    data = form.recordings.encode(errors="replace")
    if len(data) > LAB_BYTES:
        raise TooLarge(f"the recordings have {len(data) / MIB:.1f} MiB; the lab accepts {LAB_BYTES // MIB} MiB")
    found: list[Recording] = []
    for item in read_recordings(data.splitlines(), _SOURCE):
        if isinstance(item, Recording):
            found.append(item)
        elif not form.skip_bad:
            raise InvalidMessage(f"line {item.line}: {item.problem}. Write one JSON value per line")
    return found


async def _read_sessions(call: Call, picked: Sequence[str]) -> list[Recording]:
    """Return sessions of the server as recordings. Raise an error if the caller may not read one, or if they are too large."""
    if len(picked) > LAB_SESSIONS:
        raise TooLarge(f"{len(picked):,} sessions are picked; at most {LAB_SESSIONS:,} are replayed together")
    found: list[Recording] = []
    messages = size = 0
    for user_id, session_id in map(split_pick, dict.fromkeys(picked)):
        session = await get_session_by_id(call.hf, session_id, call.get_owner(user_id))
        messages, size = messages + session.messages, size + session.bytes
        if messages > LAB_MESSAGES:
            raise TooLarge(
                f"the picked sessions have more than {LAB_MESSAGES:,} messages, the limit of a run; pick fewer"
            )
        if size > LAB_BYTES:
            raise TooLarge(f"the picked sessions have more than {LAB_BYTES // MIB} MiB; pick fewer")
        entries = await call.hf.store.entries(session.ref)
        log = (entry.message for entry in entries if entry.message.role != NOTE)
        found.append(Recording(session.id, (*session.system_messages, *log)))
    return found


# -- a run -----------------------------------------------------------------------


def _get_job(call: Call) -> LabJob:
    return _get_jobs(call).get(call.path["job_id"], call.hf.clock())


@routes.add("GET", _JOB, "read", answer=HTML)
async def show_run(call: Call, query: JobQuery) -> Reply:
    """Return the progress of a run, and its results so far."""
    job = _get_job(call)
    results = list(job.results)
    columns = [
        (name, *COLUMNS[name])
        for name in COLUMNS
        if name != "bound" or any(one.result.bound is not None for one in results)
    ]
    return await render(
        call,
        "lab_run.html",
        title="Run",
        job=job,
        results=[(make_run_key(one), one.result) for one in results],
        columns=columns,
        meanings=MEANINGS,
        charts=draw_charts(results),
        lines=list(dict.fromkeys(one.result.strategy for one in results)),
        comparison=_compare(results, query),
        format_change=format_change,
        without_model=any(label.startswith("summary_buffer") for label, _ in job.runs),
        query=query,
    )


def make_run_key(played: PlayResult) -> str:
    """Return the text that identifies a run in the address of a comparison."""
    return f"{played.result.budget} {played.result.strategy}"


def draw_charts(results: Sequence[PlayResult]) -> list[Any]:
    """Return the charts of recall and cost by budget, with one line for each strategy."""
    names = dict.fromkeys(one.result.strategy for one in results)

    def make_lines(pick: Callable[[Any], float | None]) -> list[Line]:
        mine = ([one.result for one in results if one.result.strategy == name] for name in names)
        ordered = (sorted(found, key=lambda result: result.budget) for found in mine)
        return [
            Line(name, [(one.budget, pick(one)) for one in found]) for name, found in zip(names, ordered, strict=True)
        ]

    recall = make_lines(lambda one: one.recall)
    cost = make_lines(lambda one: one.cost_per_call if one.calls > one.refused else None)
    x_label = "budget, tokens"
    charts = []
    if any(y is not None for line in recall for _, y in line.points):
        label = "Argument recall: values that are still in the prompt"
        charts.append(draw_lines(recall, label=label, x_label=x_label, format_y=format_share, y_top=1.0))
    if any(y is not None for line in cost for _, y in line.points):
        label = "Cost: input tokens a call"
        charts.append(draw_lines(cost, label=label, x_label=x_label, format_y=_format_whole))
    return charts


def _compare(results: Sequence[PlayResult], query: JobQuery) -> Comparison | None:
    """Return the comparison of the two runs that the address names; None if it does not name two."""
    found = {make_run_key(one): one for one in results}
    a, b = found.get(query.a or ""), found.get(query.b or "")
    return compare(a, b) if a is not None and b is not None else None


@routes.add("GET", f"{_JOB}/events", "read", answer={"text/event-stream": TEXT})
async def follow_run(call: Call, query: EventsQuery) -> Reply:
    """Send an event when a run has progressed since the page was made, and when it has ended."""
    job = _get_job(call)
    state: InspectorState = call.request.app.state.inspector
    has_ended = False

    async def read_mark() -> tuple[int, bool] | None:
        nonlocal has_ended
        if has_ended:
            return None
        has_ended = not job.is_running
        return job.done, job.is_running

    return state.live.watch(read_mark, seen=(query.done, True))


@routes.add("POST", f"{_JOB}/cancel", "read", answer=HTML)
async def cancel_run(call: Call) -> Reply:
    """End a run. The results so far stay."""
    check_form(call, await call.read_form())
    job = _get_job(call)
    job.cancel()
    return redirect(f"{_PATH}/{job.id}")


@routes.add("GET", f"{_JOB}/json", "read", answer=HTML)
async def download_json(call: Call, query: DownloadQuery) -> Reply:
    """Return the results so far as `holdfast replay --json` prints them."""
    job = _get_job(call)
    results = list(job.results)
    data = await run_cpu(partial(encode_results, results, per_session=query.sessions))
    return _download(data, "application/json", "replay.json")


def encode_results(results: Sequence[PlayResult], *, per_session: bool) -> bytes:
    """Return results as indented JSON. If `per_session` is set, they include the results of single sessions."""
    rows = msgspec.json.encode([one.to_row(per_session=per_session) for one in results])
    return msgspec.json.format(rows, indent=2)


@routes.add("GET", f"{_JOB}/csv", "read", answer=HTML)
async def download_csv(call: Call) -> Reply:
    """Return the results so far as CSV, with the fields of the JSON as columns."""
    text = io.StringIO()
    rows = [asdict(one.result) for one in _get_job(call).results]
    if rows:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return _download(text.getvalue().encode(), "text/csv; charset=utf-8", "replay.csv")


def _download(data: bytes, kind: str, name: str) -> Reply:
    disposition = f'attachment; filename="{name}"'
    return Reply(data, headers={**HEADERS, "content-type": kind, "content-disposition": disposition})
