"""Prometheus metrics of requests, replies, sessions, summaries, models, the index and the secret guard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.holdfast import Holdfast
from holdfast.models.limited import LimitedModel
from holdfast.server.streaming import ReplyStreams

F = TypeVar("F", CounterMetricFamily, GaugeMetricFamily)
Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, each with a number."""


class Metrics:
    """Prometheus metrics of one server. They have their own registry, so that two servers in one process have separate metrics.

    Args:
        hf: the `Holdfast` whose counters are read each time the metrics are requested.
        relays: counters of replies.
    """

    def __init__(self, hf: Holdfast, relays: ReplyStreams) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "holdfast_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "holdfast_request_seconds", "Time to the end of the reply", ["route"], registry=self.registry
        )
        self.running = Gauge("holdfast_requests_running", "Requests being answered", registry=self.registry)
        self.registry.register(_Counts(hf, relays))

    def render(self) -> bytes:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self.registry)


def _make(family: type[F], name: str, text: str, samples: Samples = (), labels: Sequence[str] = ()) -> F:
    made = family(name, text, labels=labels)
    for values, number in samples:
        made.add_metric(values, number)
    return made


_count: Final = partial(_make, CounterMetricFamily)
_gauge: Final = partial(_make, GaugeMetricFamily)


def _list_by_label(counts: Mapping[Any, int]) -> Samples:
    return [([label], times) for label, times in sorted(counts.items())]


class _Counts(Collector):
    """Collects the counters that the parts of a `Holdfast` keep themselves. A part that is not running reports no numbers."""

    def __init__(self, hf: Holdfast, relays: ReplyStreams) -> None:
        self._hf = hf
        self._relays = relays

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_summaries()
        yield from self._collect_ratings()
        if self._hf.is_open:
            yield from self._collect_ends()
            yield from self._collect_index()
        yield from self._collect_upstreams()
        found = sorted(self._hf.guard.counts.items()) if self._hf.guard else ()
        text = "Secrets found in stored or rejected content, by rule"
        yield _count("holdfast_secrets", text, found, ["rule", "action"])
        relays = self._relays
        yield _gauge("holdfast_streams_open", "Streamed replies in progress", [((), relays.streams)])
        text = "Replies whose client disconnected early, by outcome"
        yield _count("holdfast_replies_left", text, _list_by_label(relays.left), ["outcome"])
        yield _count("holdfast_keep_alives", "Keep-alive comments sent in streams", [((), relays.keep_alives)])

    def _collect_summaries(self) -> Iterator[Metric]:
        compactor = self._hf.compactor
        text = "Summaries by outcome: made, dropped, outdated, late, or the reason for none"
        outcomes = _list_by_label({} if compactor is None else compactor.outcomes)
        yield _count("holdfast_summaries", text, outcomes, ["outcome"])
        spent: Samples = ()
        if compactor is not None:
            spent = [(["prompt"], compactor.spent.prompt_tokens), (["completion"], compactor.spent.completion_tokens)]
        yield _count("holdfast_summary_tokens", "Tokens used for summaries", spent, ["kind"])

    def _collect_ratings(self) -> Iterator[Metric]:
        rated: Samples = ()
        batches: Samples = ()
        tokens: Samples = ()
        if self._hf.scoring is not None:
            counts = self._hf.scoring.counts
            rated = [((), counts.rated)]
            batches = [
                (["asked"], counts.batches),
                (["failed"], counts.failed),
                (["nonsense"], counts.nonsense),
                (["given_up"], counts.given_up),
            ]
            tokens = [(["prompt"], counts.prompt_tokens), (["completion"], counts.completion_tokens)]
        yield _count("holdfast_ratings", "Messages rated by a scorer", rated)
        text = "Batches sent to a scorer, and their failures"
        yield _count("holdfast_rating_batches", text, batches, ["outcome"])
        yield _count("holdfast_rating_tokens", "Tokens used for ratings", tokens, ["kind"])

    def _collect_ends(self) -> Iterator[Metric]:
        engine = self._hf.engine
        hooks = engine.hook_dispatcher
        ended = _list_by_label(engine.life.ended)
        yield _count("holdfast_sessions_ended", "Sessions that ended, by reason", ended, ["reason"])
        text = "Hook deliveries of session ends, by outcome"
        yield _count("holdfast_hook_deliveries", text, sorted(hooks.outcomes.items()), ["hook", "outcome"])
        text = "Session ends with hook deliveries in progress"
        yield _gauge("holdfast_endings_pending", text, [((), hooks.pending)])
        text = "Turns that ended with an agent's failure message because no model answered, by error"
        yield _count("holdfast_failure_messages", text, _list_by_label(engine.failures), ["code"])

    def _collect_index(self) -> Iterator[Metric]:
        index = self._hf.index
        sizes = (0.0,) * 3 if index is None else (index.indexed, index.waiting, index.lag / 1000)
        failures = _list_by_label({} if index is None else index.failures)
        indexed, waiting, lag = ([((), size)] if index is not None else () for size in sizes)
        yield _count("holdfast_index_entries", "Indexed entries", indexed)
        text = "Failed index operations, which are retried"
        yield _count("holdfast_index_failures", text, failures, ["doing"])
        yield _gauge("holdfast_index_waiting", "Sessions waiting to be indexed", waiting)
        yield _gauge("holdfast_index_lag_seconds", "Waiting time of the oldest session", lag)

    def _collect_upstreams(self) -> Iterator[Metric]:
        upstreams = list(self._hf.roster.upstreams)
        limited = [(one.name, client) for client, one in upstreams if isinstance(client, LimitedModel)]
        failures = [([one.name, code], times) for _, one in upstreams for code, times in sorted(one.failures.items())]
        for name, text, samples in (
            ("calls", "Model calls for turns", [([one.name], one.calls) for _, one in upstreams]),
            ("failovers", "Calls answered by another model", [([one.name], one.failovers) for _, one in upstreams]),
            ("waits", "Calls that had to wait", [([name], client.waits) for name, client in limited]),
            ("wait_seconds", "Total waiting time of calls", [([name], client.waited) for name, client in limited]),
        ):
            yield _count(f"holdfast_upstream_{name}", text, samples, ["llm"])
        yield _count("holdfast_upstream_failures", "Failed model calls", failures, ["llm", "code"])
        running = [([name], client.running) for name, client in limited]
        waiting = [([name], client.waiting) for name, client in limited]
        text = "Calls in progress, limited by max_requests"
        yield _gauge("holdfast_upstream_running", text, running, ["llm"])
        yield _gauge("holdfast_upstream_waiting", "Calls waiting for a free slot", waiting, ["llm"])
