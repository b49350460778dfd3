"""A tenant's activity over time: turns, model calls, tokens, and what sending whole logs would have cost."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from holdfast.domain.activity import FINE, HOURLY, ActivityCounts, ActivityFigures
from holdfast.domain.objects import Answer, Request, Time, json_schema, make_object
from holdfast.errors import InvalidRequest
from holdfast.server.http import Call
from holdfast.server.limits import ACTIVITY_POINTS
from holdfast.server.search import Moment
from holdfast.wire.strict_json import parse_time

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

    @classmethod
    def from_counts(cls, counts: ActivityCounts) -> Self:
        """Convert counts to their JSON object."""
        return make_object(cls, counts, cost=round(counts.cost, 1), full_cost=round(counts.full_cost, 1))


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
    data = [ActivityStep(start=one.start, counts=ActivitySums.from_counts(one.counts)) for one in points]
    total = ActivityCounts.sum_up(one.counts for one in points)
    return Activity(
        since=since - since % step, until=until, step=step, data=data, total=ActivitySums.from_counts(total)
    )
