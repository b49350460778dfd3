"""How long an upstream that failed is passed over, and what says something of it."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    ModelBusy,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelUnavailable,
)
from holdfast.limits import COOL_DOWN_ASKED_SECONDS, COOL_DOWN_FIRST_SECONDS, COOL_DOWN_SECONDS
from holdfast.models import Upstream


def down(retry_after: float | None = None, *, handed: bool = False, status: int = 503) -> ModelUnavailable:
    error = ModelUnavailable("down", status=status, retry_after=retry_after)
    error.handed = handed
    return error


def fail(upstream: Upstream, now: int, error: ModelError, *, started: int | None = None) -> None:
    call = upstream.begin(now if started is None else started)
    call.record_failure(error, now)
    call.end()


def pause_of(upstream: Upstream, now: int) -> int:
    """Milliseconds until it is available; binary search over what it says."""
    low, high = 0, 2**33
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if upstream.is_available(now + middle) else (middle + 1, high)
    return low


def test_a_pause_grows_to_its_bound_and_begins_anew_after_an_answer() -> None:
    upstream, now, pauses = Upstream("one"), 1000, []
    for _ in range(9):
        fail(upstream, now, down())
        pauses.append(pause_of(upstream, now) / 1000)
        now += int(pauses[-1] * 1000)
    first, most = COOL_DOWN_FIRST_SECONDS, COOL_DOWN_SECONDS
    assert pauses == [min(first * 2**n, most) for n in range(9)]
    call = upstream.begin(now)
    call.record_answer()
    call.end()
    assert upstream.is_available(now)
    fail(upstream, now, down())
    assert pause_of(upstream, now) == first * 1000


@pytest.mark.parametrize(("asked", "seconds"), [(60, 60), (0, COOL_DOWN_FIRST_SECONDS), (1e9, COOL_DOWN_ASKED_SECONDS)])
def test_the_requested_retry_delay_is_the_pause(asked: float, seconds: float) -> None:
    upstream = Upstream("one")
    fail(upstream, 1000, down(asked))
    assert pause_of(upstream, 1000) == seconds * 1000


@pytest.mark.parametrize(
    "error",
    [
        ModelRejected("no", status=401),
        ModelProtocolError("a page"),
        ModelBusy("one", 1, 1),
        down(60, handed=True, status=429),
    ],
    ids=["refused", "no answer", "our own limit", "a caller's own rate"],
)
def test_unrelated_errors_do_not_pause_an_upstream(error: ModelError) -> None:
    upstream = Upstream("one")
    fail(upstream, 1000, error)
    assert upstream.is_available(1000)
    assert upstream.failures[error.code] == 1
