"""Keys over time, rate and body limits of keys, and allowed origins of requests."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.access import Principal
from holdfast.faults import inject
from holdfast.server.access import Credentials, RateLimiter
from holdfast.server.logs import JsonLines
from tests.clocks import START, Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def request_status(served: Served, key: str | None = None, url: str = "/v1/models", **headers: str) -> int:
    """Return the status of a request with that key."""
    shown = {**(bearer(key) if key else {}), **headers}
    return int((await served.http.get(url, headers=shown)).status_code)


# -- keys over time ----------------------------------------------------------


async def test_server_started_with_only_a_revoked_key_is_closed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with gateway([], store=store) as (served, _):
        key = await create_stored_key(served.hf)
        await served.hf.store.revoke_key(key.split("_")[1], timestamp=START)
    async with gateway([], store=store) as (served, _):
        assert await request_status(served) == 401


async def test_cached_keys_are_not_trusted_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry cached with a future timestamp is looked up again."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        key = await create_stored_key(served.hf)
        assert await request_status(served, key) == 200
        await served.hf.store.revoke_key(key.split("_")[1], timestamp=START)
        clock.now -= 3_600_000
        assert await request_status(served, key) == 401


async def test_requests_are_refused_when_the_key_store_is_unavailable() -> None:
    """An unknown set of keys is not the same as no keys."""
    async with gateway([]) as (served, _):
        with inject("before-read", errors.StoreUnavailable("away")) as fault:
            assert await request_status(served) == 503
            assert await request_status(served, url="/healthz") == 200
            assert fault.hits == 1


# -- how often, how much -----------------------------------------------------


class LimitedCaller:
    """Count how often a caller with that rate is admitted."""

    def __init__(self, rate: int) -> None:
        self.clock = Clock()
        self.rates = RateLimiter(rate, self.clock)
        self.principal = Principal(tenant="t", role="read", key_id="k")


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 20)), max_size=50))
def test_admitted_requests_never_exceed_the_rate(rate: int, steps: list[tuple[int, int]]) -> None:
    """For any pattern, admitted requests are at most a quarter of the rate plus what the elapsed time allows; a caller that waits
    is admitted.
    """
    asked = LimitedCaller(rate)
    size, told = -(-rate // 4), 0
    for pause, times in steps:
        asked.clock.now += pause
        for _ in range(times):
            wait = asked.rates.consume(asked.principal)
            told += not wait
            assert told <= size + (asked.clock.now - START) * rate / 60_000 + 1e-6
            if wait:
                asked.clock.now += wait * 1000
                assert asked.rates.consume(asked.principal) == 0
                told += 1


@given(st.integers(1, 200), st.integers(0, 10**9))
def test_idle_time_does_not_raise_the_number_at_once(rate: int, pause: int) -> None:
    asked, size = LimitedCaller(rate), -(-rate // 4)
    asked.rates.consume(asked.principal)
    asked.clock.now += pause
    assert sum(not asked.rates.consume(asked.principal) for _ in range(size + 5)) <= size


# -- where from --------------------------------------------------------------


# -- what is told ------------------------------------------------------------


async def test_log_line_has_key_id_and_tenant_but_never_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """The id is enough to find the owner of the key."""
    caplog.set_level(logging.INFO, "holdfast")
    async with gateway([]) as (served, _):
        key = await create_stored_key(served.hf, tenant="t2", user_id="ada")
        await served.http.get("/v1/models", headers=bearer(key))
        await served.http.get("/v1/models", headers=bearer(key[:-1] + ("a" if key[-1] != "a" else "q")))
    lines = [JsonLines().format(record) for record in caplog.records]
    told = [json.loads(line) for line in lines if '"message": "request"' in line]
    assert [(one.get("key"), one.get("tenant"), one["status"]) for one in told] == [
        (key.split("_")[1], "t2", 200),
        (None, None, 401),
    ]
    assert not any(key.rpartition("_")[2][:20] in line for line in lines)
    assert "hf_" not in repr(Credentials(key, key))


# -- the process -------------------------------------------------------------
