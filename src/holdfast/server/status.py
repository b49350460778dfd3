"""REST API for the figures of a tenant that its operators look at: the index, the lifetime of sessions, and the activity."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from holdfast.agents import Llm
from holdfast.domain.activity import FINE, HOURLY, ActivityCounts, ActivityFigures
from holdfast.domain.objects import Answer, Count, Request, Time, json_schema, make_object
from holdfast.errors import InvalidRequest
from holdfast.indexes.report import IndexReport
from holdfast.lifecycle.retention import RetentionPreview, preview_retention
from holdfast.server.http import Call
from holdfast.server.limits import ACTIVITY_POINTS
from holdfast.server.routes import Routes
from holdfast.server.search import Moment
from holdfast.wire.strict_json import parse_time

routes = Routes("server")


class Retention(RetentionPreview, frozen=True, kw_only=True):
    """The rules for the lifetime and number of a tenant's sessions, and the sessions to which they apply now."""

    object: Literal["retention"] = "retention"
    session_ttl: Count
    """Idle time in milliseconds after which a session without its own ttl ends; 0: never."""
    max_sessions: Count
    """Maximum number of active sessions; 0: no limit."""
    retention: Count
    """Milliseconds for which a closed session is kept before it is deleted; 0: it is never deleted."""
    sweep: bool
    """True if this server applies the rules in the background. False: it applies them only to sessions that are used."""
    ended: Literal["closed", "deleted"]
    """State of a session that has ended: its data stays until it is deleted or, with a store in memory, is deleted at once."""


async def read_retention(call: Call) -> Retention:
    """Return the rules for the lifetime of sessions, and how many sessions they would end or delete now. Nothing is changed."""
    life = call.hf.engine.life
    preview = msgspec.structs.asdict(await preview_retention(life, call.hf.clock()))
    return make_object(Retention, life.settings, ended="closed" if life.durable else "deleted", **preview)


STEPS: Final = {"5m": FINE.step, "1h": HOURLY.step, "1d": 24 * HOURLY.step}


class ActivityQuery(Request, kw_only=True):
    """The time range and the steps of an activity."""

    since: Moment | None = None
    """Begin of the time range, rounded down to a whole step; default: 24 hours before `until`."""
    until: Moment | None = None
    """End of the time range; default: now."""
    step: Literal["5m", "1h", "1d"] = "1h"
    """Length of a step. Steps of `5m` are known for the last two days, the others for the last five weeks. Days are in UTC."""


class ActivitySums(ActivityFigures, kw_only=True):
    """Counts of turns, model calls and tokens. Tokens of prompts are counted by Holdfast."""

    cost: Annotated[float, json_schema(minimum=0)]
    """Cost of prompts and summaries, as a multiple of the price of an input token. A token that was read from the provider's cache costs
    0.1, another prompt token 1.25."""
    full_cost: Annotated[float, json_schema(minimum=0)]
    """The same cost if each prompt had contained the session's whole log. It can be lower than `cost`, because cached tokens are cheap."""


class ActivityStep(Answer, kw_only=True):
    """The counts of one step of time."""

    start: Time
    """Begin of the step."""
    counts: ActivitySums


class Activity(Answer, kw_only=True):
    """The activity of a tenant over time."""

    object: Literal["activity"] = "activity"
    since: Time
    """Begin of the first step."""
    until: Time
    step: Annotated[int, json_schema(minimum=0)]
    """Length of a step in milliseconds."""
    data: list[ActivityStep]
    """One item for every step, oldest first."""
    total: ActivitySums
    """Sums of all steps."""


def _show(counts: ActivityCounts) -> ActivitySums:
    return make_object(ActivitySums, counts, cost=round(counts.cost, 1), full_cost=round(counts.full_cost, 1))


async def read_activity(call: Call, query: ActivityQuery) -> Activity:
    """Return how many turns, model calls and tokens the tenant had over time. Counts of other servers appear a minute late."""
    step = STEPS[query.step]
    now = call.hf.clock()
    until = now if query.until is None else parse_time(query.until, "until")
    since = max(0, until - STEPS["1d"] if query.since is None else parse_time(query.since, "since"))
    if since > until:
        raise InvalidRequest("since must not be after until", param="since")
    if (until - since) // step >= ACTIVITY_POINTS:
        message = f"since to until has more than {ACTIVITY_POINTS:,} steps of {query.step}: choose a longer step"
        raise InvalidRequest(message, param="step")
    points = await call.hf.engine.activity.read(since, until, step)
    data = [ActivityStep(start=one.start, counts=_show(one.counts)) for one in points]
    total = ActivityCounts.sum_up(one.counts for one in points)
    return Activity(since=since - since % step, until=until, step=step, data=data, total=_show(total))


class ModelStatus(Answer, kw_only=True):
    """An llm, and the profile of its upstream."""

    name: str
    """Name in `llms`."""
    model: str
    """Name of the model at the upstream."""
    profile: str
    """Name of its profile."""
    chosen_by: Literal["default", "base_url", "profile"]
    """The key of the llm that chose the profile. `default`: the address is not known."""
    learned: list[str]
    """The changes of the profile that this server has learned from refusals, each with the status and code of the refusal."""


def _describe_model(call: Call, name: str, llm: Llm) -> ModelStatus:
    roster, now = call.hf.roster, call.hf.clock()
    profile, learned = roster.find_profile(llm, now), roster.describe_learned(llm, now)
    return ModelStatus(name=name, model=llm.model, profile=profile.name, chosen_by=profile.chosen_by, learned=learned)


class Status(Answer, kw_only=True):
    """Figures of a tenant."""

    object: Literal["status"] = "status"
    index: IndexReport | None
    """Size of the search index, and how much is not indexed yet; null if the index is disabled."""
    retention: Retention
    """The rules for the lifetime of sessions, and how many sessions they would end or delete now."""
    activity: Activity
    """Turns, model calls and tokens over time. Counts of other servers with the same database appear a minute late."""
    models: list[ModelStatus]
    """The llms of this server, with their profiles."""


@routes.add("GET", "/v1/status", "shared")
async def read(call: Call, query: ActivityQuery) -> Status:
    """Return figures of the tenant: its search index, the lifetime of its sessions, its activity over time, and the models of the server.

    The parameters select the time range of the activity. Nothing is changed.
    """
    return Status(
        index=None if call.hf.index is None else await call.hf.index.status(),
        retention=await read_retention(call),
        activity=await read_activity(call, query),
        models=[_describe_model(call, name, llm) for name, llm in call.hf.roster.llms.items()],
    )
