"""Track the health of upstreams: counts of their calls, and a cool-down after failures. This module does no I/O.

After a failure with `ModelUnavailable`, an upstream cools down: if a fallback exists, the upstream is not called until a pause is over.
After the pause, the upstream gets one call at a time until it answers. The upstream may ask for a certain pause. Otherwise, the pause
grows with each consecutive failure.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec

from holdfast.domain.profiles import MEDIA_FIELDS, Profile, list_changes
from holdfast.errors import ModelBusy, ModelError, ModelUnavailable
from holdfast.limits import (
    COOL_DOWN_ASKED_SECONDS,
    COOL_DOWN_FIRST_SECONDS,
    COOL_DOWN_SECONDS,
    MEDIA_LEARNED_SECONDS,
    MODELS_LEARNED,
)


class _Lesson(msgspec.Struct, frozen=True):
    """A field of a profile that a refusal has shown to be wrong."""

    value: Any
    refusal: str
    until: float


class Upstream:
    """The state of one upstream in this process. All tenants share it.

    Args:
        name: Name of the entry in `llms`, for metrics and logs.

    Attributes:
        calls: Number of calls. A call with retries is one call.
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
        self._learned: dict[str, dict[str, _Lesson]] = {}
        """Rules learned from refusals, by model and field of its profile."""

    def is_available(self, now: int) -> bool:
        """Return True if the upstream may be called. `now` is in milliseconds since the epoch."""
        return self._until is None or (now >= self._until and self._probe is None)

    def learn(self, model: str, known: Profile, found: Profile, refusal: str, now: int) -> bool:
        """Remember what a refusal has shown about what a model accepts. Return True if it has shown something.

        What concerns media is forgotten after `MEDIA_LEARNED_SECONDS`, because a server may get another model or other settings.

        Args:
            model: Name of the model.
            known: Its profile when the request was made.
            found: Its profile with what the refusal says.
            refusal: Status and code of the refusal.
            now: Milliseconds since the epoch.
        """
        names = [name for name in found.__struct_fields__ if getattr(found, name) != getattr(known, name)]
        if not names:
            return False
        lessons = self._learned[model] = self._find_lessons(model, now)
        for name in names:
            until = now + MEDIA_LEARNED_SECONDS * 1000 if name in MEDIA_FIELDS else math.inf
            lessons[name] = _Lesson(getattr(found, name), refusal, until)
        while len(self._learned) > MODELS_LEARNED:
            del self._learned[next(iter(self._learned))]
        return True

    def apply_learned(self, profile: Profile, model: str, now: int) -> Profile:
        """Return the profile of a model with what refusals have shown."""
        learned = {name: lesson.value for name, lesson in self._find_lessons(model, now).items()}
        return msgspec.structs.replace(profile, **learned) if learned else profile

    def describe_learned(self, profile: Profile, model: str, now: int) -> list[str]:
        """Return what refusals have shown about a model with a profile, for people: each change, with the refusal."""
        return [
            f"{list_changes(msgspec.structs.replace(profile, **{name: lesson.value}), profile)} ({lesson.refusal})"
            for name, lesson in self._find_lessons(model, now).items()
        ]

    def _find_lessons(self, model: str, now: int) -> dict[str, _Lesson]:
        return {name: lesson for name, lesson in self._learned.get(model, {}).items() if now < lesson.until}

    def begin(self, now: int) -> Call:
        """Register a new call at `now`, in milliseconds since the epoch.

        The first call after a pause is the probe. Until it ends, `is_available` returns False for other calls.
        """
        self.calls += 1
        call = Call(self, now)
        if self._until is not None and self.is_available(now):
            self._probe = call
        return call

    def record_answer(self, call: Call) -> None:
        """Record that a call got an answer, which ends the cool-down.

        A call that began before the last failure is ignored, because it does not show that the upstream has recovered.
        """
        if self._until is not None and (call is self._probe or call.started > self._since):
            self._in_a_row, self._until = 0, None

    def record_failure(self, call: Call, error: ModelError, now: int) -> None:
        """Record that a call failed at `now`, in milliseconds since the epoch. An unavailable upstream starts to cool down."""
        self.failures[error.code] += 1
        if not _is_down(error):
            return
        requested_pause = error.retry_after
        if self._until is None or call is self._probe or call.started > self._since:
            self._in_a_row, self._since = self._in_a_row + 1, now
            pause = min(COOL_DOWN_FIRST_SECONDS * 2 ** min(self._in_a_row - 1, 32), COOL_DOWN_SECONDS)
            self._until = now + _to_milliseconds(requested_pause or pause)
        elif requested_pause is not None:
            # The call was already running when another call failed, so this is the same failure. Only its pause may be longer.
            self._until = max(self._until, now + _to_milliseconds(requested_pause))

    def end(self, call: Call) -> None:
        """Record the end of a call, successful or not."""
        if call is self._probe:
            self._probe = None


class Call:
    """One call to an upstream. Its methods report the outcome to the `Upstream`.

    Attributes:
        upstream: The upstream that is called.
        started: Time of the start, in milliseconds since the epoch.
        is_answered: True if the upstream has begun to answer.
    """

    __slots__ = ("is_answered", "started", "upstream")

    def __init__(self, upstream: Upstream, started: int) -> None:
        self.upstream = upstream
        self.started = started
        self.is_answered = False

    def record_answer(self) -> None:
        """Record that the upstream has begun to answer."""
        self.is_answered = True
        self.upstream.record_answer(self)

    def record_failure(self, error: ModelError, now: int) -> None:
        """Record that the call failed, or that its answer was cut off. `now` is in milliseconds since the epoch."""
        self.upstream.record_failure(self, error, now)

    def end(self) -> None:
        """Record the end of the call, successful or not."""
        self.upstream.end(self)


def _is_down(error: ModelError) -> bool:
    """Return True if an error means that the upstream is unavailable.

    Errors that the request, the caller's own key (status 429) or Holdfast's limit on concurrent calls caused do not mean this.
    """
    of_caller = error.handed and error.status == 429
    return isinstance(error, ModelUnavailable) and not isinstance(error, ModelBusy) and not of_caller


def _to_milliseconds(seconds: float) -> int:
    return round(1000 * min(seconds, COOL_DOWN_ASKED_SECONDS))
