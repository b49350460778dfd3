"""What Prometheus is told: requests, and what the engine, the models, the index and the guard have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.agents import Roster
from holdfast.engine.engine import Engine
from holdfast.holdfast import Holdfast
from holdfast.indexes.service import IndexService
from holdfast.models import Limited
from holdfast.overlays.compacting import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.secrets import Guard
from holdfast.server.relay import Relays


class Metrics:
    """The server's Prometheus metrics; a registry of its own, so that two servers in one process do not mix.

    Args:
        hf: whose engine, models and guard are told of. What it counts is asked for when the metrics are read.
        relays: what became of replies.
    """

    def __init__(self, hf: Holdfast, relays: Relays) -> None:
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
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class _Summaries(Collector):
    """What the compactor has counted, asked for when it is read."""

    def __init__(self, compactor: Callable[[], Compactor | None]) -> None:
        self._compactor = compactor

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        compactor = self._compactor()
        made = CounterMetricFamily(
            "holdfast_summaries", "Summaries: made, dropped, outdated, late, or why not", labels=["outcome"]
        )
        tokens = CounterMetricFamily("holdfast_summary_tokens", "Tokens that summaries took", labels=["kind"])
        if compactor is not None:
            for outcome, times in sorted(compactor.outcomes.items()):
                made.add_metric([outcome], times)
            tokens.add_metric(["prompt"], compactor.spent.prompt_tokens)
            tokens.add_metric(["completion"], compactor.spent.completion_tokens)
        yield made
        yield tokens


class _Ratings(Collector):
    """What scoring has counted, asked for when it is read."""

    def __init__(self, scoring: Callable[[], Scoring | None]) -> None:
        self._scoring = scoring

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        scoring = self._scoring()
        rated = CounterMetricFamily("holdfast_ratings", "Messages that a scorer rated")
        batches = CounterMetricFamily(
            "holdfast_rating_batches", "Batches that a scorer was asked about, and what went wrong", labels=["outcome"]
        )
        tokens = CounterMetricFamily("holdfast_rating_tokens", "Tokens that ratings took", labels=["kind"])
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
    """What this process has ended, and told hooks of, asked for when it is read."""

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._engine = engine

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `Collector`."""
        engine = self._engine()
        ended = CounterMetricFamily("holdfast_sessions_ended", "Sessions that ended, by reason", labels=["reason"])
        told = CounterMetricFamily(
            "holdfast_hook_deliveries",
            "Ends that a hook was told of, failed to be told of, or will not be told of",
            labels=["hook", "outcome"],
        )
        pending = GaugeMetricFamily("holdfast_endings_pending", "Ends that hooks are being told of by this process")
        failures = CounterMetricFamily(
            "holdfast_failure_messages",
            "Turns that an agent's failure message ended, as no model answered; by error",
            labels=["code"],
        )
        if engine is not None:
            for code, times in sorted(engine.failures.items()):
                failures.add_metric([code], times)
            for reason, times in sorted(engine.life.ended.items()):
                ended.add_metric([reason], times)
            for labels, times in sorted(engine.teller.outcomes.items()):
                told.add_metric(labels, times)
            pending.add_metric([], engine.teller.pending)
        yield ended
        yield told
        yield pending
        yield failures


class _Indexed(Collector):
    """What this process takes into the index, of its own tenant, asked for when it is read."""

    def __init__(self, index: Callable[[], IndexService | None]) -> None:
        self._index = index

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `Collector`."""
        indexed = CounterMetricFamily("holdfast_index_entries", "Entries that were taken into the index")
        failures = CounterMetricFamily("holdfast_index_failures", "What failed and is tried again", labels=["doing"])
        waiting = GaugeMetricFamily("holdfast_index_waiting", "Sessions that wait to be taken in")
        lag = GaugeMetricFamily("holdfast_index_lag_seconds", "How long the first of them has waited")
        index = self._index()
        if index is not None:
            indexed.add_metric([], index.indexed)
            waiting.add_metric([], index.waits)
            lag.add_metric([], index.lag / 1000)
            for doing, times in sorted(index.failures.items()):
                failures.add_metric([doing], times)
        yield from (indexed, failures, waiting, lag)


class _Secrets(Collector):
    """What the guard has counted, asked for when it is read."""

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        found = CounterMetricFamily(
            "holdfast_secrets", "Secrets in what was stored or refused, by rule", labels=["rule", "action"]
        )
        for labels, times in sorted(self._guard.counts.items() if self._guard else ()):
            found.add_metric(labels, times)
        yield found


class _Upstreams(Collector):
    """How upstreams are doing, asked for when it is read."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `Collector`."""
        calls = CounterMetricFamily("holdfast_upstream_calls", "Calls of models for turns", labels=["llm"])
        failures = CounterMetricFamily("holdfast_upstream_failures", "Calls that failed", labels=["llm", "code"])
        failovers = CounterMetricFamily(
            "holdfast_upstream_failovers", "Calls that another model was asked to answer", labels=["llm"]
        )
        running = GaugeMetricFamily("holdfast_upstream_running", "Calls under way, of max_requests", labels=["llm"])
        waiting = GaugeMetricFamily("holdfast_upstream_waiting", "Calls that wait for one to end", labels=["llm"])
        waits = CounterMetricFamily("holdfast_upstream_waits", "Calls that had to wait", labels=["llm"])
        waited = CounterMetricFamily("holdfast_upstream_wait_seconds", "Seconds they waited", labels=["llm"])
        for client, upstream in self._roster.upstreams:
            calls.add_metric([upstream.name], upstream.calls)
            failovers.add_metric([upstream.name], upstream.failovers)
            for code, times in sorted(upstream.failures.items()):
                failures.add_metric([upstream.name, code], times)
            if isinstance(client, Limited):
                running.add_metric([upstream.name], client.running)
                waiting.add_metric([upstream.name], client.waiting)
                waits.add_metric([upstream.name], client.waits)
                waited.add_metric([upstream.name], client.waited)
        yield from (calls, failures, failovers, running, waiting, waits, waited)


class _Replies(Collector):
    """What became of replies on their way, asked for when it is read."""

    def __init__(self, relays: Relays) -> None:
        self._relays = relays

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `Collector`."""
        relays = self._relays
        yield GaugeMetricFamily("holdfast_streams_open", "Streamed replies under way", value=relays.streams)
        left = CounterMetricFamily(
            "holdfast_replies_left", "Replies whose client went before their end", labels=["outcome"]
        )
        for outcome, times in sorted(relays.left.items()):
            left.add_metric([outcome], times)
        yield left
        yield CounterMetricFamily("holdfast_keep_alives", "Signs of life in streams", value=relays.keep_alives)
