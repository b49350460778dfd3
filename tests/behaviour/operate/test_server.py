"""The server from outside: from where it may be called, its health, figures and request ids, and which bodies it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from tests.behaviour.kit import gateway, user
from tests.behaviour.kit.seams import inject

EVIL = "https://evil.example"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("127.1.2.3:9", 200),
        ("[::1]:8377", 200),
        ("Chat.Example.com:8377", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("", 403),
        ("a b", 403),
    ],
)
async def test_a_server_without_keys_is_reached_under_its_own_names_only(host: str, status: int) -> None:
    """A name that leads to this machine (DNS rebinding) reads and writes nothing."""
    async with gateway((), "gateway: {allowed_hosts: chat.example.com}") as served:
        answer = await served.http.get("/v1/sessions", headers={"Host": host})
        assert answer.status_code == status
        if status == 403:
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/"), ("GET", "/x")):
                refused = await served.http.request(method, path, headers={"Host": host})
                assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")
        health = await served.http.get("/healthz", headers={"Host": "10.0.0.5:8377"})
        assert (health.status_code, health.json()["status"]) == (200, "ok")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:3000", True),
        ("https://[::1]", True),
        ("https://app.example.com", True),
        ("https://app.example.com.evil.example", False),
        (EVIL, False),
        ("null", False),
        ("file://", False),
    ],
)
async def test_web_pages_of_other_origins_change_nothing(origin: str, allowed: bool) -> None:
    async with gateway((), "gateway: {cors_origins: 'https://app.example.com'}") as served:
        answer = await served.http.post("/v1/sessions", json={}, headers={"Origin": origin})
        assert answer.status_code == (201 if allowed else 403)
        assert len(await served.rest.sessions()) == int(allowed)
        if not allowed:
            assert "access-control-allow-origin" not in answer.headers


async def test_a_preflight_is_answered_for_allowed_origins_only() -> None:
    ours = "https://app.example.com"
    async with gateway((), f"gateway: {{cors_origins: '{ours}'}}\nauth: {{required: true}}") as served:
        first = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        asked = await served.http.options("/v1/chat/completions", headers={"origin": ours, **first})
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, ours)
        assert "authorization" in asked.headers["access-control-allow-headers"]
        other = await served.http.options("/v1/chat/completions", headers={"origin": EVIL, **first})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)
        denied = await served.http.get("/v1/models", headers={"origin": ours})
        assert (denied.status_code, denied.headers["access-control-allow-origin"]) == (401, ours)


async def test_health_is_of_the_process_and_readiness_of_the_store() -> None:
    async with gateway() as served:
        assert (await served.http.get("/readyz")).json()["status"] == "ready"
        with inject("before-read", StoreUnavailable("the disk is full")):
            answer = await served.http.get("/readyz")
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
            assert (await served.http.get("/healthz")).json()["status"] == "ok"


async def test_metrics_count_by_route_and_never_by_id() -> None:
    async with gateway(["ok"]) as served:
        await served.chat("Hi.")
        for at in range(3):
            await served.http.get(f"/v1/sessions/gone{at}")
        await served.http.get("/v1/nothing")
        answer = await served.http.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        for line in (
            'holdfast_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1.0',
            'holdfast_requests_total{method="GET",route="/v1/sessions/{session_id}",status="404"} 3.0',
            'holdfast_request_seconds_count{route="/v1/chat/completions"} 1.0',
            "holdfast_requests_running 1.0",
        ):
            assert line in answer.text
        assert "gone0" not in answer.text


async def test_a_request_id_is_returned_if_it_is_valid() -> None:
    async with gateway(["ok"]) as served:
        for path in ("/healthz", "/v1/nothing", "/v1/sessions/t"):
            answer = await served.http.get(path, headers={"X-Request-Id": "my-id.1:2_3"})
            assert answer.headers["x-request-id"] == "my-id.1:2_3"
        for odd in ("a b", "", "x" * 129, '"}'):
            answer = await served.http.get("/healthz", headers={"X-Request-Id": odd})
            assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_an_unexpected_error_is_reported_without_its_words() -> None:
    async with gateway() as served:
        with inject("before-read", ZeroDivisionError("inner words")):
            answer = await served.http.get("/v1/sessions")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
        assert "inner words" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "application/json; charset=UTF-8"}, 200),
        ({"Content-Encoding": "identity"}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-16"}, 415),
        ({"Content-Encoding": "gzip"}, 415),
        ({"Content-Encoding": "identity, gzip"}, 415),
    ],
)
async def test_bodies_are_json_in_utf8_and_not_compressed(headers: dict[str, str], status: int) -> None:
    async with gateway() as served:
        body = b'{"messages": [{"role": "user", "content": "Hi."}]}'
        answer = await served.http.put("/v1/sessions/s", content=body, headers=headers)
        assert answer.status_code == status
        if status == 415:
            assert re.search("application/json|uncompressed|UTF-8", answer.json()["error"]["message"])
            assert await served.rest.sessions() == []


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "x" * 1_000_000, "content": ""}]},
        {"messages": [user("Hi.")], "agent": "x" * 1_000_000},
        {"messages": [user("Hi.")], "session_id": "x" * 1_000_000},
    ],
)
async def test_an_error_quotes_little_of_a_long_value(body: Any) -> None:
    async with gateway() as served:
        answer = await served.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert len(answer.content) < 10_000


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with gateway((), "gateway: {max_body: 1KiB}") as served:
        body = {"messages": [user("x" * 2_000)]}
        answer = await served.http.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert served.upstream.requests == []


async def test_the_description_names_every_route_and_its_references_resolve() -> None:
    async with gateway() as served:
        document = (await served.http.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        named = set(re.findall(r'"#/components/schemas/([^"]+)"', (await served.http.get("/openapi.json")).text))
        assert named <= set(document["components"]["schemas"])
        ids = set()
        for path, item in document["paths"].items():
            url = re.sub(r"\{\w+\}", "0", path)
            allowed = (await served.http.request("TRACE", url)).headers["allow"].split(", ")
            assert {method.upper() for method in item} <= {*allowed}, path
            ids |= {operation["operationId"] for operation in item.values()}
        assert len(ids) == sum(len(item) for item in document["paths"].values())


AGENTS = "agents: {clerk: {description: Books trips., llm: default}}"


async def test_models_are_listed_for_both_apis() -> None:
    async with gateway((), AGENTS) as served:
        rows = (await served.http.get("/v1/models")).json()["data"]
        owners = [("clerk", "holdfast-agent"), ("default", "gpt-4o"), ("scripted", "upstream")]
        assert [(row["id"], row["owned_by"]) for row in rows] == owners
        assert rows[0]["description"] == "Books trips."
        headers = {"anthropic-version": "2023-06-01"}
        theirs = (await served.http.get("/v1/models", headers=headers, params={"limit": 1})).json()
        assert [(row["id"], row["display_name"]) for row in theirs["data"]] == [("clerk", "agent clerk: Books trips.")]
        assert theirs["has_more"] is True
        assert len((await served.http.get("/v1/models", params={"limit": 1})).json()["data"]) == 1


async def test_status_has_figures_of_the_tenant_over_time() -> None:
    async with gateway(["One.", "Two."]) as served:
        await served.chat("Hi.")
        served.clock.now += 3_600_000
        await served.chat("Again.")
        status = (await served.http.get("/v1/status")).json()
        assert status["index"]["mode"] == "keyword"
        assert status["retention"]["session_ttl"] == 86_400_000
        turns = [bucket["counts"]["turns"] for bucket in status["activity"]["data"]]
        assert sum(turns) == 2
        assert (await served.http.get("/v1/status", params={"unknown": "x"})).status_code == 400
