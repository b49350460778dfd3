"""Keys over time, rate and body limits of keys, and allowed origins of requests."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.access import Principal
from holdfast.config.gateway import Auth
from holdfast.faults import inject
from holdfast.holdfast import Holdfast
from holdfast.server.access import Access, Credentials, RateLimiter
from holdfast.server.app import make_app
from holdfast.server.key_cache import FIRST_KEY_CHECK_MS, KEY_CACHE_MS, USE_UPDATE_MS
from holdfast.server.logs import JsonLines
from tests.clocks import START, Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway
from tests.waits import until

TURN: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "session_id": "s"}


async def request_status(served: Served, key: str | None = None, url: str = "/v1/models", **headers: str) -> int:
    """Return the status of a request with that key."""
    shown = {**(bearer(key) if key else {}), **headers}
    return int((await served.http.get(url, headers=shown)).status_code)


def count_key_lookups(served: Served, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often the store is asked for keys from now on."""
    counts, inner = Counter[str](), served.hf.store.inner  # type: ignore[attr-defined]

    def count_calls(name: str) -> Callable[..., Any]:
        method = getattr(inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return await method(*args, **kwargs)

        return call

    for name in ("get_key", "keys", "use_key"):
        monkeypatch.setattr(inner, name, count_calls(name), raising=False)
    return counts


# -- keys over time ----------------------------------------------------------


async def test_server_started_with_only_a_revoked_key_is_closed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    async with gateway([], store=store) as (served, _):
        key = await create_stored_key(served.hf)
        await served.hf.store.revoke_key(key.split("_")[1], timestamp=START)
    async with gateway([], store=store) as (served, _):
        assert await request_status(served) == 401


async def test_turns_do_not_look_up_the_key_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in use is looked up once every few seconds, regardless of the number of requests; so is whether keys
    exist.
    """
    clock = Clock()
    async with gateway(lambda _: "ok", clock=clock) as (served, _):
        counts = count_key_lookups(served, monkeypatch)
        for _ in range(20):
            await request_status(served)
        assert counts == {"keys": 1}
        key = await create_stored_key(served.hf)
        clock.now += FIRST_KEY_CHECK_MS
        counts.clear()
        for _ in range(20):
            assert (await served.http.post("/v1/chat/completions", json=TURN, headers=bearer(key))).status_code == 200
        assert counts == {"get_key": 1, "use_key": 1}
        clock.now += KEY_CACHE_MS
        await request_status(served, key)
        assert counts == {"get_key": 2, "use_key": 1}
        clock.now += USE_UPDATE_MS
        await request_status(served, key)
        assert counts == {"get_key": 3, "use_key": 2}
        assert counts["keys"] == 0


async def test_malformed_keys_are_rejected_without_a_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway([]) as (served, _):
        await create_stored_key(served.hf)
        counts = count_key_lookups(served, monkeypatch)
        for nonsense in ("hf_", "hf_x_y", "hf_" + "a" * 9000):
            assert await request_status(served, nonsense) == 401
        assert counts["get_key"] == 0


async def test_cached_keys_are_not_trusted_when_the_clock_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry cached with a future timestamp is looked up again."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        key = await create_stored_key(served.hf)
        assert await request_status(served, key) == 200
        await served.hf.store.revoke_key(key.split("_")[1], timestamp=START)
        clock.now -= 3_600_000
        assert await request_status(served, key) == 401


async def test_use_of_a_key_is_recorded() -> None:
    """Once a minute, outside the request."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        key = await create_stored_key(served.hf)
        assert (await served.hf.store.keys())[0].used_at is None
        assert await request_status(served, key) == 200

        async def is_used() -> bool:
            return (await served.hf.store.keys())[0].used_at is not None

        await until(is_used)
        assert (await served.hf.store.keys())[0].used_at == START


async def test_requests_are_refused_when_the_key_store_is_unavailable() -> None:
    """An unknown set of keys is not the same as no keys."""
    async with gateway([]) as (served, _):
        with inject("before-read", errors.StoreUnavailable("away")) as fault:
            assert await request_status(served) == 503
            assert await request_status(served, url="/healthz") == 200
            assert fault.hits == 1


@pytest.mark.parametrize(("required", "wanted"), [("true", 401), ("false", 200)])
async def test_required_setting_decides_whether_a_key_is_needed(required: str, wanted: int) -> None:
    """`required` decides regardless of the store; a caller with a Holdfast key is still identified."""
    async with gateway([], f"auth: {{required: {required}}}") as (served, _):
        assert await request_status(served) == wanted
        key = await create_stored_key(served.hf, role="read", user_id="ada")
        assert await request_status(served, "sk-anything") == wanted
        assert await request_status(served, key) == 200
        assert await request_status(served, f"{key[:20]}wrong") == 401
        headers = bearer(key)
        assert (await served.http.post("/v1/sessions", json={}, headers=headers)).status_code == 403
        assert (await served.http.get("/v1/sessions?user_id=bob", headers=headers)).status_code == 404


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


def test_each_caller_has_its_own_rate() -> None:
    """Users of one token do not share a limit; without authentication nothing is counted."""
    rates = RateLimiter(1, Clock())
    users = [Principal(tenant="t", role="read", key_id="jwt", user_id=user) for user in ("a", "b")]
    assert [rates.consume(one) > 0 for one in (*users, *users)] == [False, False, True, True]
    nobody = Principal(tenant="t", role="admin")
    assert [rates.consume(nobody) for _ in range(5)] == [0] * 5


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


async def test_closed_holdfast_returns_the_usual_error() -> None:
    """Also without authentication, where no key is looked up."""
    hf = Holdfast("sqlite://:memory:")
    app = make_app(hf, access=Access(hf, Auth(required=False)), close=False)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=True)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.get("/v1/sessions")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_closed")
