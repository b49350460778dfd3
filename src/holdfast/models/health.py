"""Health of upstreams: counts of their calls, and cool-down after failures. No I/O.

An upstream that fails as unavailable cools down: if a fallback exists, the upstream is not called until a pause is
over, and
then by one call at a time until it answers. The pause is the one that the upstream asked for; otherwise it grows with
each
consecutive failure.
"""

from __future__ import annotations

from collections import Counter

from holdfast.errors import ModelBusy, ModelError, ModelUnavailable
from holdfast.limits import COOL_DOWN_ASKED_SECONDS, COOL_DOWN_FIRST_SECONDS, COOL_DOWN_SECONDS


class Upstream:
    """State of one upstream within this process, shared by all tenants.

    Args:
        name: Name of the llm, for metrics and logs.

    Attributes:
        calls: Number of calls; a call counts once, however often its client retried.
        failures: Number of failed calls by error code.
        failovers: Number of calls that were sent to another model instead.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0
        self.failures: Counter[str] = Counter()
        self.failovers = 0
        self._in_a_row = 0
        self._since = 0
        self._until: int | None = None
        self._probe: Call | None = None

    def is_available(self, now: int) -> bool:
        """Return True if the upstream may be called. `now` is in milliseconds since the epoch."""
        return self._until is None or (now >= self._until and self._probe is None)

    def begin(self, now: int) -> Call:
        """Register a new call. The first call after a pause is a probe, which decides whether the upstream is back."""
        self.calls += 1
        call = Call(self, now)
        if self._until is not None and self.is_available(now):
            self._probe = call
        return call

    def record_answer(self, call: Call) -> None:
        """Record that a call got an answer. A call that began before the last failure is ignored, since it proves nothing."""
        if self._until is not None and (call is self._probe or call.started > self._since):
            self._in_a_row, self._until = 0, None

    def record_failure(self, call: Call, error: ModelError, now: int) -> None:
        """Record that a call failed."""
        self.failures[error.code] += 1
        if not _is_down(error):
            return
        requested_pause = error.retry_after
        if self._until is None or call is self._probe or call.started > self._since:
            self._in_a_row, self._since = self._in_a_row + 1, now
            pause = min(COOL_DOWN_FIRST_SECONDS * 2 ** min(self._in_a_row - 1, 32), COOL_DOWN_SECONDS)
            self._until = now + _to_milliseconds(requested_pause or pause)
        elif requested_pause is not None:
            # It ran when an earlier call failed, so this is the same failure, but its pause may be longer.
            self._until = max(self._until, now + _to_milliseconds(requested_pause))

    def end(self, call: Call) -> None:
        """Record the end of a call, successful or not."""
        if call is self._probe:
            self._probe = None


class Call:
    """One call to an upstream, which reports its outcome.

    Attributes:
        upstream: The upstream that is called.
        started: Time of the start, in milliseconds since the epoch.
    """

    __slots__ = ("started", "upstream")

    def __init__(self, upstream: Upstream, started: int) -> None:
        self.upstream = upstream
        self.started = started

    def record_answer(self) -> None:
        """Record that the upstream began to answer."""
        self.upstream.record_answer(self)

    def record_failure(self, error: ModelError, now: int) -> None:
        """Record that the call failed or its answer was cut off. `now` is in milliseconds since the epoch."""
        self.upstream.record_failure(self, error, now)

    def end(self) -> None:
        """Record the end of the call, successful or not."""
        self.upstream.end(self)


def _is_down(error: ModelError) -> bool:
    """Return True if an error is the upstream's fault, not that of the request, the caller's key or Holdfast's own limit."""
    of_caller = error.handed and error.status == 429
    return isinstance(error, ModelUnavailable) and not isinstance(error, ModelBusy) and not of_caller


def _to_milliseconds(seconds: float) -> int:
    return round(1000 * min(seconds, COOL_DOWN_ASKED_SECONDS))
