"""The overview: activity over time, the health of the server, the latest sessions, and how to connect a client to an empty server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

from holdfast.domain.activity import FINE, HOURLY, ActivityCounts, ActivityPoint
from holdfast.domain.objects import json_schema
from holdfast.durations import format_duration, format_utc
from holdfast.errors import HoldfastError
from holdfast.limits import SORTED_SESSIONS
from holdfast.numbers import format_count
from holdfast.server.http import Call
from holdfast.server.inspector.frame import (
    InspectorState,
    PageQuery,
    Pages,
    Segment,
    Values,
    format_compact,
    format_number,
    format_share,
    make_origin,
)
from holdfast.server.permissions import is_permitted
from holdfast.server.replies import Reply
from holdfast.sessions.session_list import find_state, summarize_sessions

routes = Pages()
_LATEST: Final = 8
_UNKNOWN: Final = "\N{EN DASH}"
_STATES: Final = (("busy", "current"), ("active", "tail"), ("closed", "reserve"), ("expired", "headroom"))
"""States of sessions, with the names of their colours."""


class Range(NamedTuple):
    """A time range of the charts."""

    name: str
    title: str
    step: int
    """Length of a step in milliseconds."""
    steps: int
    step_name: str


RANGES: Final = (
    Range("hours", "3 hours", FINE.step, 36, "5 minutes"),
    Range("day", "24 hours", HOURLY.step, 24, "hour"),
    Range("month", "30 days", 24 * HOURLY.step, 30, "day"),
)


class OverviewQuery(PageQuery, kw_only=True):
    """Query parameters of the overview."""

    range: Annotated[Literal["hours", "day", "month"], json_schema(description="time range of the charts")] = "day"


@routes.page("/inspect/overview", "read", "overview.html", "Overview")
async def show_overview(call: Call, query: OverviewQuery) -> Values:
    """Return the overview. Its public address is `/`."""
    owner = call.get_owner(None)
    sessions = (await call.hf.sessions(user_id=owner, limit=SORTED_SESSIONS)).sessions
    if not sessions:
        return {
            "template": "first_run.html",
            "address": make_origin(call),
            "model": next(iter([*call.hf.roster.agents, *call.hf.roster.llms]), "gpt-4o"),
            "needs_key": call.request.app.state.access.requires_key,
        }
    chosen = next(one for one in RANGES if one.name == query.range)
    points: Sequence[ActivityPoint] = ()
    if is_permitted(call.request.scope, "shared"):
        now = call.hf.clock()
        first = now - now % chosen.step - (chosen.steps - 1) * chosen.step
        points = await call.hf.engine.activity.read(first, now + 1, chosen.step)
    counts: Counter[str] = Counter(find_state(call.hf.engine, session) for session in sessions)
    return {
        "ranges": RANGES,
        "chosen": chosen,
        "points": points,
        "cards": make_cards(points, chosen),
        "latest": await summarize_sessions(call.hf.engine, sessions[:_LATEST]),
        "states": [Segment(colour, state, counts[state]) for state, colour in _STATES],
        "counted": "newest 500" if len(sessions) == SORTED_SESSIONS else "all",
        "checks": await _check_health(call),
    }


@routes.add("GET", "/inspect/overview/events", "read", answer={"text/event-stream": {"schema": {"type": "string"}}})
async def watch_overview(call: Call) -> Reply:
    """Return a stream with an event whenever a session was used."""
    owner, state = call.get_owner(None), call.request.app.state.inspector
    assert isinstance(state, InspectorState)

    async def read_mark() -> object:
        page = await call.hf.sessions(user_id=owner, limit=1)
        return [(session.ref, session.version) for session in page.sessions]

    return state.live.watch(read_mark)


# -- charts ------------------------------------------------------------------------


class Card(NamedTuple):
    """A figure with its chart over time."""

    title: str
    figure: str
    hint: str
    label: str
    """Description of the chart, for screen readers."""
    titles: Sequence[str]
    """Text about each column, which browsers show when the pointer is on it."""
    layers: Sequence[tuple[str, Sequence[float]]]
    """Colour and values of columns. Columns of later layers are drawn in front of earlier ones."""
    highest: float
    """Value at the top of the chart."""
    top: str
    """The highest value, as text."""


def make_cards(points: Sequence[ActivityPoint], chosen: Range) -> list[Card]:
    """Return the cards of the overview; an empty list if there are no points."""
    if not points:
        return []
    total = ActivityCounts.sum_up(one.counts for one in points)

    def make_card(
        title: str, figure: str, hint: str, write: Callable[[float], str], **layers: Callable[[ActivityCounts], float]
    ) -> Card:
        drawn = [(name, [read(one.counts) for one in points]) for name, read in layers.items()]
        titles = [
            f"{format_utc(one.start)[:16].replace('T', ' ')} UTC: "
            + " of ".join(write(values[at]) for _, values in reversed(drawn))
            for at, one in enumerate(points)
        ]
        highest = 1.0 if write is format_share else max(value for _, values in drawn for value in values)
        label = f"{title} per {chosen.step_name}: {figure}, {hint}"
        return Card(title, figure, hint, label, titles, drawn, highest, write(highest))

    cached = format_share(share(total.cached_tokens, total.measured_tokens))
    return [
        make_card(
            *("Turns", format_number(total.turns), format_count(total.calls, "model call"), format_compact),
            accent=lambda one: one.turns,
        ),
        make_card(
            *("Tokens sent", format_compact(total.sent_tokens)),
            *(f"of {format_compact(total.full_tokens)} with whole logs", format_compact),
            soft=lambda one: one.full_tokens,
            accent=lambda one: one.sent_tokens,
        ),
        make_card(
            *("Prompt cache", cached, "of prompt tokens read from a cache", format_share),
            accent=lambda one: share(one.cached_tokens, one.measured_tokens) or 0,
        ),
        make_card(
            *("Cost", *describe_cost(total), format_compact),
            soft=lambda one: one.full_cost,
            accent=lambda one: one.cost,
        ),
        make_card(
            *("Failed turns", format_number(total.failed_turns)),
            *(f"failed model calls: {format_number(total.failed_calls)}", format_compact),
            soft=lambda one: one.failed_calls,
            bad=lambda one: one.failed_turns,
        ),
    ]


def share(part: float, whole: float) -> float | None:
    """Return a fraction; None if the whole is 0."""
    return part / whole if whole else None


def describe_cost(counts: ActivityCounts) -> tuple[str, str]:
    """Return the cost compared with sending whole logs, and an explanation."""
    if not counts.full_cost:
        return format_share(None), "nothing was sent"
    saving = 1 - counts.cost / counts.full_cost
    figures = f"{format_compact(counts.cost)} instead of {format_compact(counts.full_cost)} price-weighted tokens"
    if format_share(abs(saving)) == format_share(0):
        return "the same", f"as with whole logs: {format_compact(counts.cost)} price-weighted tokens"
    if saving > 0:
        return f"{format_share(saving)} saved", f"{figures} with whole logs"
    return f"{format_share(-saving)} more", f"{figures}: with a cache, whole logs of this size are cheap to resend"


# -- health ------------------------------------------------------------------------


class Check(NamedTuple):
    """The health of one part of the server."""

    name: str
    level: Literal["good", "warn", "bad", ""]
    word: str
    detail: str


async def _check_health(call: Call) -> list[Check]:
    """Return the health of the store and the index and, for keys that may read metrics, of the models."""
    checks = [await _check_store(call), _check_index(call)]
    if is_permitted(call.request.scope, "server"):
        now = call.hf.clock()
        for _, upstream in call.hf.roster.upstreams:
            failed = sum(upstream.failures.values())
            is_available = upstream.is_available(now)
            detail = f"{format_number(upstream.calls)} calls since the start, {format_number(failed)} failed"
            level: Literal["good", "warn"] = "good" if is_available else "warn"
            checks.append(Check(f"Model {upstream.name}", level, "ready" if is_available else "not answering", detail))
    return checks


async def _check_store(call: Call) -> Check:
    started = time.perf_counter()
    try:
        await call.hf.store.ping()
    except HoldfastError as exc:
        return Check("Database", "bad", "fails", exc.public_message)
    milliseconds = 1000 * (time.perf_counter() - started)
    kept = "kept when the server stops" if call.hf.store.durable else "in memory: lost when the server stops"
    level: Literal["good", "warn"] = "good" if call.hf.store.durable else "warn"
    return Check("Database", level, "ready", f"answers in {milliseconds:.1f} ms; sessions are {kept}")


def _check_index(call: Call) -> Check:
    index = call.hf.index
    if index is None:
        return Check(
            "Search index", "", "off", "sessions cannot be searched by text; see storage.index in the configuration"
        )
    waiting = f"{format_number(index.waiting)} sessions wait, the first for {format_duration(index.lag // 1000)}"
    detail = f"{index.mode} search; {waiting if index.waiting else 'no session waits to be indexed'}"
    failed = sum(index.failures.values())
    if failed:
        return Check("Search index", "warn", f"{format_number(failed)} failures", f"{detail}; failures are repeated")
    return Check("Search index", "good", "ready", detail)
