"""How upstreams are doing: what their calls came to, and which are better passed over for a while. Decisions only; no I/O.

An upstream that failed as unavailable cools down: where somebody else can answer, it is not asked until a pause is over, and
then by one call at a time until it answers. The pause is what it asked for, else it grows with each failure in a row.
"""

from __future__ import annotations

from collections import Counter

from holdfast.errors import ModelBusy, ModelError, ModelUnavailable
from holdfast.limits import COOL_DOWN_ASKED_SECONDS, COOL_DOWN_FIRST_SECONDS, COOL_DOWN_SECONDS


class Upstream:
    """What one process knows of one upstream; shared by all its tenants.

    Args:
        name: of the llm, for metrics and logs.

    Attributes:
        calls: how often it was called; what a client tries again by itself counts once.
        failures: how often that failed, by the error's code.
        failovers: how often another model was asked in its place.
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

    def available(self, now: int) -> bool:
        """Whether it is not to be passed over. Args: `now`, milliseconds since the epoch."""
        return self._until is None or (now >= self._until and self._probe is None)

    def begin(self, now: int) -> Call:
        """Call it. A call while it is `available` again after a pause is the one that finds out how it is."""
        self.calls += 1
        call = Call(self, now)
        if self._until is not None and self.available(now):
            self._probe = call
        return call

    def answered(self, call: Call) -> None:
        """Take in that it has something to say. One that was called before its last failure proves nothing."""
        if self._until is not None and (call is self._probe or call.started > self._since):
            self._in_a_row, self._until = 0, None

    def failed(self, call: Call, error: ModelError, now: int) -> None:
        """Take in that a call failed."""
        self.failures[error.code] += 1
        if not _is_down(error):
            return
        asked = error.retry_after
        if self._until is None or call is self._probe or call.started > self._since:
            self._in_a_row, self._since = self._in_a_row + 1, now
            pause = min(COOL_DOWN_FIRST_SECONDS * 2 ** min(self._in_a_row - 1, 32), COOL_DOWN_SECONDS)
            self._until = now + _milliseconds(asked or pause)
        elif asked is not None:
            # One of many that were under way when the first failed: the same failure, unless it knows better.
            self._until = max(self._until, now + _milliseconds(asked))

    def over(self, call: Call) -> None:
        """Take in that a call has ended, however it did."""
        if call is self._probe:
            self._probe = None


class Call:
    """One call of an upstream, which tells what comes of it.

    Attributes:
        upstream: who is called.
        started: milliseconds since the epoch.
    """

    __slots__ = ("started", "upstream")

    def __init__(self, upstream: Upstream, started: int) -> None:
        self.upstream = upstream
        self.started = started

    def answered(self) -> None:
        """It has something to say."""
        self.upstream.answered(self)

    def failed(self, error: ModelError, now: int) -> None:
        """It did not answer, or not to the end. Args: `now`, milliseconds since the epoch."""
        self.upstream.failed(self, error, now)

    def over(self) -> None:
        """It has ended, however it did."""
        self.upstream.over(self)


def _is_down(error: ModelError) -> bool:
    """Whether an error says something about the upstream, rather than about a request, a caller's key or our own limit."""
    of_caller = error.handed and error.status == 429
    return isinstance(error, ModelUnavailable) and not isinstance(error, ModelBusy) and not of_caller


def _milliseconds(seconds: float) -> int:
    return round(1000 * min(seconds, COOL_DOWN_ASKED_SECONDS))
