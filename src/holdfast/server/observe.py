"""What the server tells of itself: a request id, a log line a request, metrics; and whom it talks to at all."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.agents import Roster
from holdfast.config import is_loopback
from holdfast.engine.engine import Engine
from holdfast.indexes.service import IndexService
from holdfast.models import Limited
from holdfast.overlays.compacting import Compactor
from holdfast.overlays.scoring import Scoring
from holdfast.secrets import Guard
from holdfast.server.relay import Relays
from holdfast.server.replies import Reply as _Reply
from holdfast.server.replies import error_body, request_id, response_of

_log = logging.getLogger("holdfast.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class Metrics:
    """The server's Prometheus metrics; a registry of its own, so that two servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "holdfast_requests", "Requests answered", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "holdfast_request_seconds", "Time to the end of the reply", ["route"], registry=self.registry
        )
        self.running = Gauge("holdfast_requests_running", "Requests being answered", registry=self.registry)

    def watch(self, compactor: Callable[[], Compactor | None], scoring: Callable[[], Scoring | None]) -> None:
        """Tell of summaries and ratings too. Args: each gives who makes them, while there is one."""
        self.registry.register(_Summaries(compactor))
        self.registry.register(_Ratings(scoring))

    def watch_life(self, engine: Callable[[], Engine | None]) -> None:
        """Tell of ends and of hooks too. Args: gives the engine while it is open."""
        self.registry.register(_Ends(engine))

    def watch_index(self, index: Callable[[], IndexService | None]) -> None:
        """Tell of the index too. Args: gives it, while there is one."""
        self.registry.register(_Indexed(index))

    def watch_secrets(self, guard: Callable[[], Guard | None]) -> None:
        """Tell of secrets too. Args: gives who looks for them, while there is somebody."""
        self.registry.register(_Secrets(guard))

    def watch_upstreams(self, roster: Callable[[], Roster | None]) -> None:
        """Tell of models and of calls of them too. Args: gives who knows them, while there is somebody."""
        self.registry.register(_Upstreams(roster))

    def watch_replies(self, relays: Relays) -> None:
        """Tell of streams, and of clients that go, too."""
        self.registry.register(_Replies(relays))

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

    def __init__(self, guard: Callable[[], Guard | None]) -> None:
        self._guard = guard

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See `Collector`."""
        found = CounterMetricFamily(
            "holdfast_secrets", "Secrets in what was stored or refused, by rule", labels=["rule", "action"]
        )
        guard = self._guard()
        for labels, times in sorted(guard.counts.items() if guard else ()):
            found.add_metric(labels, times)
        yield found


class _Upstreams(Collector):
    """How upstreams are doing, asked for when it is read."""

    def __init__(self, roster: Callable[[], Roster | None]) -> None:
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
        roster = self._roster()
        for client, upstream in () if roster is None else roster.upstreams:
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


class Observed:
    """ASGI middleware: names each request, times it, counts it, and logs one line when it ends."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        named = _named(scope)
        token = request_id.set(named)
        started, status = time.perf_counter(), 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (b"x-request-id", named.encode())]}
            await send(message)

        self._metrics.running.inc()
        try:
            await self._app(scope, receive, observed)
        finally:
            self._metrics.running.dec()
            self._note(scope, status, time.perf_counter() - started)
            request_id.reset(token)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        session = scope.get("state", {}).get("session_id") or unquote(
            scope.get("path_params", {}).get("session_id", "")
        )
        told = {"method": scope["method"], "route": route, "status": status, "ms": round(seconds * 1000, 1)}
        caller = scope.get("state", {}).get("caller")
        if caller is not None and caller.principal.key_id is not None:
            told |= {"key": caller.principal.key_id, "tenant": caller.principal.tenant}
        _log.info("request", extra={"fields": {**told, **({"session_id": session} if session else {})}})


def _named(scope: Scope) -> str:
    """The client's own request id where it is a harmless one, else a new one."""
    given = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"), "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


class Hosts:
    """ASGI middleware: refuse requests that name another host than this server's.

    A page in a browser can make a name of its own point to 127.0.0.1 and read what a server there answers (DNS
    rebinding); the Host header gives it away. So does a foreign Origin on a request that changes something. Where every
    request needs a key, no page has what its user has not given it: then any host is right that is not excluded.

    Args:
        app: what is behind.
        allowed: names by which the server may be called, besides loopback's.
        origins: of pages that may call it.
        asks: whether every request needs a key.
    """

    def __init__(
        self, app: ASGIApp, allowed: Collection[str] = (), origins: Collection[str] = (), *, asks: Callable[[], bool]
    ) -> None:
        self._app = app
        self._allowed = {name.lower() for name in allowed}
        self._origins = frozenset(origins)
        self._asks = asks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
            host, origin = headers.get(b"host", ""), headers.get(b"origin")
            if not self._called_right(host) or not self._welcome(origin):
                where = " or ".join(sorted(self._allowed)) or "its own machine"
                message = f"this server answers as {where}, not to host {host!r}"
                message += f" from {origin!r}" if origin else ""
                body = error_body(message, kind="invalid_request_error", code="host_not_allowed")
                await response_of(_Reply(body, 403), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _called_right(self, host: str) -> bool:
        return self._ours(host) or (not self._allowed and self._asks())

    def _welcome(self, origin: str | None) -> bool:
        # Origin "null" is what a page in a sandboxed frame sends: anybody's.
        return origin is None or self._asks() or origin in self._origins or self._ours(origin.partition("://")[2])

    def _ours(self, host: str) -> bool:
        name = re.sub(r":\d+$", "", host).strip("[]").lower()
        return is_loopback(name) or name in self._allowed


class JsonLines(logging.Formatter):
    """One JSON object a line, with the request's id where there is one. No message content, no keys.

    Args:
        guard: what happens to secrets that a line quotes all the same.
    """

    def __init__(self, guard: Guard | None = None) -> None:
        super().__init__()
        self._guard = guard

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id.get():
            said["request_id"] = request_id.get()
        said.update(getattr(record, "fields", {}))
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        if self._guard is not None:
            said = self._guard.told_value(said)
        return json.dumps(said, ensure_ascii=False, default=str)
