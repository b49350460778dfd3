"""Prometheus metrics of requests, replies, sessions, summaries, models, the index and the secret guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.agents import Roster
from holdfast.engine.engine import Engine
from holdfast.holdfast import Holdfast
from holdfast.indexes.service import IndexService
from holdfast.models import LimitedModel
from holdfast.overlays.compactor import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.secrets import Guard
from holdfast.server.streaming import ReplyStreams


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
        for collector in (
            _Summaries(lambda: hf.compactor),
            _Ratings(lambda: hf.scoring),
            _Ends(lambda: hf.engine if hf.is_open else None),
            _Indexed(lambda: hf.index if hf.is_open else None),
            _Secrets(hf.guard),
            _Upstreams(hf.roster),
            _Replies(relays),
        ):
            self.registry.register(collector)

    def render(self) -> bytes:
        """Return the metrics in Prometheus text format."""
        return generate_latest(self.registry)


class _Summaries(Collector):
    def __init__(self, compactor: Callable[[], Compactor | None]) -> None:
        self._compactor = compactor

    def collect(self) -> Iterator[CounterMetricFamily]:
        compactor = self._compactor()
        made = CounterMetricFamily(
            "holdfast_summaries",
            "Summaries by outcome: made, dropped, outdated, late, or the reason for none",
            labels=["outcome"],
        )
        tokens = CounterMetricFamily("holdfast_summary_tokens", "Tokens used for summaries", labels=["kind"])
        if compactor is not None:
            for outcome, times in sorted(compactor.outcomes.items()):
                made.add_metric([outcome], times)
            tokens.add_metric(["prompt"], compactor.spent.prompt_tokens)
            tokens.add_metric(["completion"], compactor.spent.completion_tokens)
        yield made
        yield tokens


class _Ratings(Collector):
    def __init__(self, scoring: Callable[[], Scoring | None]) -> None:
        self._scoring = scoring

    def collect(self) -> Iterator[CounterMetricFamily]:
        scoring = self._scoring()
        rated = CounterMetricFamily("holdfast_ratings", "Messages rated by a scorer")
        batches = CounterMetricFamily(
            "holdfast_rating_batches", "Batches sent to a scorer, and their failures", labels=["outcome"]
        )
        tokens = CounterMetricFamily("holdfast_rating_tokens", "Tokens used for ratings", labels=["kind"])
        if scoring is not None:
            counts = scoring.counts
            rated.add_metric([], counts.rated)
            outcomes = {"asked": counts.batches, "failed": counts.failed, "nonsense": counts.nonsense}
            for outcome, times in {**outcomes, "given_up": counts.given_up}.items():
                batches.add_metric([outcome], times)
            tokens.add_metric(["prompt"], counts.prompt_tokens)
            tokens.add_metric(["completion"], counts.completion_tokens)
        yield rated
        yield batches
        yield tokens


class _Ends(Collector):
    """Collects metrics of ended sessions, hook deliveries and failure messages from the counters of the engine."""

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        engine = self._engine()
        ended = CounterMetricFamily("holdfast_sessions_ended", "Sessions that ended, by reason", labels=["reason"])
        deliveries = CounterMetricFamily(
            "holdfast_hook_deliveries",
            "Hook deliveries of session ends, by outcome",
            labels=["hook", "outcome"],
        )
        pending = GaugeMetricFamily("holdfast_endings_pending", "Session ends with hook deliveries in progress")
        failures = CounterMetricFamily(
            "holdfast_failure_messages",
            "Turns that ended with an agent's failure message because no model answered, by error",
            labels=["code"],
        )
        if engine is not None:
            for code, times in sorted(engine.failures.items()):
                failures.add_metric([code], times)
            for reason, times in sorted(engine.life.ended.items()):
                ended.add_metric([reason], times)
            for labels, times in sorted(engine.hook_dispatcher.outcomes.items()):
                deliveries.add_metric(labels, times)
            pending.add_metric([], engine.hook_dispatcher.pending)
        yield ended
        yield deliveries
        yield pending
        yield failures


class _Indexed(Collector):
    def __init__(self, index: Callable[[], IndexService | None]) -> None:
        self._index = index

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        indexed = CounterMetricFamily("holdfast_index_entries", "Indexed entries")
        failures = CounterMetricFamily(
            "holdfast_index_failures", "Failed index operations, which are retried", labels=["doing"]
        )
        waiting = GaugeMetricFamily("holdfast_index_waiting", "Sessions waiting to be indexed")
        lag = GaugeMetricFamily("holdfast_index_lag_seconds", "Waiting time of the oldest session")
        index = self._index()
        if index is not None:
            indexed.add_metric([], index.indexed)
            waiting.add_metric([], index.waiting)
            lag.add_metric([], index.lag / 1000)
            for doing, times in sorted(index.failures.items()):
                failures.add_metric([doing], times)
        yield from (indexed, failures, waiting, lag)


class _Secrets(Collector):
    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    def collect(self) -> Iterator[CounterMetricFamily]:
        found = CounterMetricFamily(
            "holdfast_secrets", "Secrets found in stored or rejected content, by rule", labels=["rule", "action"]
        )
        for labels, times in sorted(self._guard.counts.items() if self._guard else ()):
            found.add_metric(labels, times)
        yield found


class _Upstreams(Collector):
    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        calls = CounterMetricFamily("holdfast_upstream_calls", "Model calls for turns", labels=["llm"])
        failures = CounterMetricFamily("holdfast_upstream_failures", "Failed model calls", labels=["llm", "code"])
        failovers = CounterMetricFamily(
            "holdfast_upstream_failovers", "Calls answered by another model", labels=["llm"]
        )
        running = GaugeMetricFamily(
            "holdfast_upstream_running", "Calls in progress, limited by max_requests", labels=["llm"]
        )
        waiting = GaugeMetricFamily("holdfast_upstream_waiting", "Calls waiting for a free slot", labels=["llm"])
        waits = CounterMetricFamily("holdfast_upstream_waits", "Calls that had to wait", labels=["llm"])
        waited = CounterMetricFamily("holdfast_upstream_wait_seconds", "Total waiting time of calls", labels=["llm"])
        for client, upstream in self._roster.upstreams:
            calls.add_metric([upstream.name], upstream.calls)
            failovers.add_metric([upstream.name], upstream.failovers)
            for code, times in sorted(upstream.failures.items()):
                failures.add_metric([upstream.name, code], times)
            if isinstance(client, LimitedModel):
                running.add_metric([upstream.name], client.running)
                waiting.add_metric([upstream.name], client.waiting)
                waits.add_metric([upstream.name], client.waits)
                waited.add_metric([upstream.name], client.waited)
        yield from (calls, failures, failovers, running, waiting, waits, waited)


class _Replies(Collector):
    def __init__(self, relays: ReplyStreams) -> None:
        self._relays = relays

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        relays = self._relays
        yield GaugeMetricFamily("holdfast_streams_open", "Streamed replies in progress", value=relays.streams)
        left = CounterMetricFamily(
            "holdfast_replies_left", "Replies whose client disconnected early, by outcome", labels=["outcome"]
        )
        for outcome, times in sorted(relays.left.items()):
            left.add_metric([outcome], times)
        yield left
        yield CounterMetricFamily(
            "holdfast_keep_alives", "Keep-alive comments sent in streams", value=relays.keep_alives
        )
