"""The server's startup, allowed hosts and origins, logs, metrics and shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast.config import load_settings
from holdfast.config.build import build_roster
from holdfast.config.inspector import Inspector
from holdfast.domain.session import SessionRef
from holdfast.errors import StoreUnavailable
from holdfast.faults import inject
from holdfast.holdfast import Holdfast
from holdfast.server.app import make_app
from holdfast.server.logs import JsonLines
from holdfast.server.run import make_banner
from holdfast.stores import open_store
from holdfast.stores.verify import verify
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.server import CLIENT_KEY, PROGRAM, UPSTREAM_KEY, Process, config_text, gateway
from tests.waits import until

SECRET = "the-secret-of-the-user"


# -- hosts and origins -------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:9", "[::1]", "[::1]:8377"])
async def test_loopback_hosts_are_allowed(host: str) -> None:
    async with gateway([]) as (served, _):
        assert (await served.http.get("/v1/sessions", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8377", "10.0.0.1", "", "a b"],
)
async def test_other_hosts_are_refused(host: str) -> None:
    """A name that resolves to this machine (DNS rebinding) cannot read or write on any route."""
    async with gateway([]) as (served, upstream):
        body = {"messages": [{"role": "user", "content": "hi"}], "session_id": "s"}
        for method, url in (("GET", "/v1/sessions"), ("POST", "/v1/chat/completions"), ("GET", "/"), ("GET", "/x")):
            response = await served.http.request(method, url, json=body, headers={"Host": host})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "host_not_allowed")
        assert upstream.requests == []
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example", "null", "file://", "x"])
async def test_pages_of_other_origins_are_refused(origin: str) -> None:
    """Not from a sandboxed frame either."""
    async with gateway([]) as (served, _):
        response = await served.http.post("/v1/sessions", content=b"{}", headers={"Origin": origin})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
        assert (await served.http.get("/v1/sessions")).json()["data"] == []


async def test_pages_of_loopback_origins_are_answered() -> None:
    async with gateway([]) as (served, _):
        for origin in ("http://localhost:3000", "http://127.0.0.1:8377", "https://[::1]"):
            assert (await served.http.post("/v1/sessions", json={}, headers={"Origin": origin})).status_code == 201


# -- banner ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "flags", "told"),
    [
        (
            "",
            {},
            "model   offline (built in; set OPENAI_API_KEY, OPENAI_BASE_URL or ANTHROPIC_API_KEY to use a language model)",
        ),
        ("llms: {default: {provider: offline}}", {}, "model   offline (built in; chosen in llms.default)"),
        ("llms: {one: {provider: offline}}", {}, "model   offline (built in; chosen in llms.one)"),
        ("llms: {default: {base_url: 'http://x/v1'}}", {"model": "offline"}, "offline (built in; chosen with --model)"),
        ("llms: {default: {base_url: 'http://x/v1', model: m}}", {}, "model   m at http://x/v1\n"),
    ],
)
async def test_banner_says_which_model_answers_and_why(
    tmp_path: Path, text: str, flags: dict[str, Any], told: str
) -> None:
    """It names environment variables only if they would change the model."""
    (tmp_path / "holdfast.yaml").write_text(text)
    settings = load_settings({"config": str(tmp_path / "holdfast.yaml"), **flags}, env={})
    async with Holdfast("sqlite://:memory:", roster=build_roster(settings.config)) as hf:
        assert told in make_banner(settings, hf, 1, requires_key=False)


@pytest.mark.parametrize(
    ("config", "key", "access"),
    [
        ("", False, "this machine only; create a key with `holdfast keys create`"),
        ("auth: {required: true}", False, "a key is required; create a key with `holdfast keys create`"),
        ("auth: {required: true}", True, "a key is required"),
        ("auth: {jwt: {jwks_url: 'https://x/k', issuer: x, audience: x}}", False, "a key is required"),
    ],
)
async def test_banner_says_how_to_create_the_first_key(tmp_path: Path, config: str, *, key: bool, access: str) -> None:
    (tmp_path / "holdfast.yaml").write_text(config)
    settings = load_settings({"config": str(tmp_path / "holdfast.yaml")}, env={})
    requires_key = settings.config.auth.kind == "always"
    async with Holdfast("sqlite://:memory:", roster=build_roster(settings.config)) as hf:
        banner = make_banner(settings, hf, 1, requires_key=requires_key, has_key=key)
    assert f"\n  access  {access}\n" in banner
    assert ("\n  users   while there are no keys, " in banner) is (not config)


async def test_banner_warns_about_models_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "holdfast.yaml").write_text("llms: {default: {provider: openai, model: gpt-4o}}")
    for env, expected in (({}, 1), ({"OPENAI_API_KEY": "k"}, 0)):
        settings = load_settings({"config": str(tmp_path / "holdfast.yaml")}, env=env)
        async with Holdfast("sqlite://:memory:", roster=build_roster(settings.config)) as hf:
            banner = make_banner(settings, hf, 1, requires_key=False)
        assert (
            banner.count("holdfast.yaml:1: llms.default: no API key: https://api.openai.com/v1 will refuse") == expected
        )


async def test_banner_lists_agents_and_an_example(tmp_path: Path) -> None:
    """A request without an agent uses none of them, and recalls nothing."""
    (tmp_path / "holdfast.yaml").write_text(
        'agents: {"ada\'s": {}, desk: {memory: {enabled: true}}}\ngateway: {require_user: true}\n'
    )
    settings = load_settings({"config": str(tmp_path / "holdfast.yaml")}, env={})
    async with Holdfast("sqlite://:memory:", roster=build_roster(settings.config)) as hf:
        told = make_banner(settings, hf, 1, requires_key=False)
    assert "\n  agents  ada's, desk  (select one with `model`)\n" in told
    sent = json.loads(shlex.split(told.splitlines()[-1])[-1])
    assert (sent["model"], sent["user"], sent["messages"][0]["role"]) == ("ada's", "ada", "user")


# -- request ids and logs ----------------------------------------------------


async def test_request_id_is_echoed() -> None:
    """A valid one of the client is returned, on errors too; any other is replaced."""
    async with gateway(["ok"]) as (served, _):
        for url in ("/healthz", "/v1/nothing", "/v1/sessions/t"):
            response = await served.http.get(url, headers={"X-Request-Id": "my-id.1:2_3"})
            assert response.headers["x-request-id"] == "my-id.1:2_3"
        assert (await served.chat("hi", headers={"X-Request-Id": "mine"}))["headers"]["x-request-id"] == "mine"
        for odd in ("a b", "", "x" * 129, "é".encode(), '"}'):
            response = await served.http.get(
                "/healthz", headers=[(b"X-Request-Id", odd if isinstance(odd, bytes) else odd.encode())]
            )
            assert re.fullmatch(r"req_[0-9a-f]{32}", response.headers["x-request-id"])


async def test_log_line_has_request_and_session(caplog: pytest.LogCaptureFixture) -> None:
    """One JSON object per request with its id and session; no message, reply or key appears."""
    caplog.set_level(logging.DEBUG, "holdfast")
    caplog.handler.setFormatter(JsonLines())
    reply = Reply(text=f"reply {SECRET}", usage={"prompt_tokens": 1, "completion_tokens": 1})
    async with gateway([reply, Reply(status=500, error=SECRET), Reply(text=SECRET * 3, cut_after=2)]) as (served, _):
        headers = {"Authorization": f"Bearer {CLIENT_KEY}", "X-Request-Id": "r-1"}
        await served.chat(f"say {SECRET}", "käse/1", headers=headers)
        await served.http.get("/v1/sessions/k%C3%A4se%2F1")
        await served.chat(SECRET)
        await served.chat(SECRET)
        await served.http.post("/v1/sessions", content=SECRET.encode())
        await served.http.patch("/v1/sessions/s", json={SECRET: 1})
        lines = [json.loads(line) for line in caplog.text.splitlines()]
    chat, export, *_ = [line for line in lines if line["message"] == "request"]
    assert (chat["request_id"], chat["session_id"]) == ("r-1", "käse/1")
    assert (chat["method"], chat["route"], chat["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (export["session_id"], export["route"]) == ("käse/1", "/v1/sessions/{session_id}")
    assert len({line["request_id"] for line in lines if line["message"] == "request"}) == 6
    for secret in (SECRET, CLIENT_KEY, UPSTREAM_KEY):
        assert secret not in caplog.text


async def test_unexpected_error_is_logged_but_not_returned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A 500 in the usual shape without details; the log has them, with the request's id."""
    caplog.handler.setFormatter(JsonLines())
    async with gateway(["ok"]) as (served, _):
        with inject("before-read", ZeroDivisionError("inner words")):
            response = await served.http.get("/v1/sessions", headers={"X-Request-Id": "r-2"})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
        assert "inner words" not in response.text
        failed = [json.loads(line) for line in caplog.text.splitlines() if "ZeroDivisionError" in line]
        assert [line["request_id"] for line in failed] == ["r-2"]


# -- health, metrics, description --------------------------------------------


async def test_readiness_needs_a_store() -> None:
    """`/healthz` reports the process, `/readyz` the store."""
    async with gateway([]) as (served, _):
        assert (await served.http.get("/readyz")).json()["status"] == "ready"
        with inject("before-read", StoreUnavailable("the disk is full")):
            response = await served.http.get("/readyz")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "store_unavailable")
        assert (await served.http.get("/healthz")).json()["status"] == "ok"


async def test_metrics_count_by_route_not_by_id() -> None:
    """Requests, durations and running requests, under the route's pattern: ids would grow the list without end."""
    async with gateway(["ok"]) as (served, _):
        await served.chat("hi")
        for at in range(3):
            await served.http.get(f"/v1/sessions/t{at}")
        await served.http.get("/v1/nothing")
        response = await served.http.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        text = response.text
        assert 'holdfast_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1.0' in text
        assert 'holdfast_requests_total{method="GET",route="/v1/sessions/{session_id}",status="404"} 3.0' in text
        assert 'holdfast_request_seconds_count{route="/v1/chat/completions"} 1.0' in text
        assert "holdfast_requests_running 1.0" in text
        assert "t0" not in text


async def test_metrics_count_scored_messages() -> None:
    """Messages, batches, errors and tokens, because a scoring model costs money."""

    def answer(body: dict[str, Any]) -> str:
        asked = re.search(r"(\d+) messages: a JSON list", str(body["messages"][-1]["content"]))
        return json.dumps([7] * int(asked[1])) if asked else "ok"

    config = "context: {strategy: salience, scorer: default}"
    async with gateway(answer, config) as (served, _):
        for _ in range(5):
            await served.chat("hi", session_id="s")
            await served.hf.engine.scoring.wait_until_idle()
        text = (await served.http.get("/metrics")).text
        assert "holdfast_ratings_total 10.0" in text
        assert 'holdfast_rating_batches_total{outcome="asked"} 1.0' in text
        assert 'holdfast_rating_batches_total{outcome="nonsense"} 0.0' in text
        assert 'holdfast_rating_tokens_total{kind="prompt"} 10.0' in text


async def test_description_matches_the_app() -> None:
    """`/openapi.json` has exactly the routes and methods of the live app; all references resolve."""
    async with gateway([]) as (served, _):
        document = (await served.http.get("/openapi.json")).json()
        assert document["openapi"].startswith("3.1")
        ids = set()
        for path, item in document["paths"].items():
            url = path.replace("{seq}", "0").replace("{session_id}", "x")
            allowed = (await served.http.request("TRACE", url)).headers["allow"]
            assert {method.upper() for method in item} == set(allowed.split(", ")), path
            for operation in item.values():
                assert operation["summary"]
                assert operation["responses"]
                ids.add(operation["operationId"])
                named = [part["name"] for part in operation["parameters"] if part["in"] == "path"]
                assert named == re.findall(r"{(\w+)}", path)
        assert len(ids) == sum(len(item) for item in document["paths"].values())
        routes = {route.path for route in app_routes(served)} - {"/{path:path}"}
        assert routes == set(document["paths"])
        for reference in re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)):
            assert reference in document["components"]["schemas"]


def app_routes(served: Any) -> list[Any]:
    return make_app(served.hf, inspector=Inspector(enabled=False), close=False).routes


async def test_front_page_links_exist() -> None:
    async with gateway([]) as (served, _):
        page = (await served.http.get("/")).json()
        for method, url in (value.split(" ") for value in page.values() if " " in value):
            assert (await served.http.request(method, url, json={})).status_code != 404


# -- the process -------------------------------------------------------------


def test_non_loopback_address_requires_keys(tmp_path: Path) -> None:
    """The bind is refused before anything is opened."""
    env = {"HOLDFAST_HOST": "0.0.0.0", "HOLDFAST_STORE": f"sqlite:///{tmp_path}/s.db"}
    done = subprocess.run([sys.executable, *PROGRAM], env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "not loopback" in done.stderr
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_server_without_losing_data(tmp_path: Path, sent: signal.Signals) -> None:
    """A partial reply is stored and marked, and the exit is clean."""
    gate = Gate()
    store = f"sqlite:///{tmp_path}/s.db"
    config = tmp_path / "holdfast.yaml"
    async with ScriptedUpstream([Reply(text="one two three", hold=gate, hold_after=3)]) as upstream:
        config.write_text(config_text(upstream.url, "gateway: {shutdown_grace: 0}"))
        with Process(store, config=config) as server:
            body = {"messages": [{"role": "user", "content": "count"}], "session_id": "s", "stream": True}
            async with (
                httpx2.AsyncClient(trust_env=False) as client,
                client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response,
            ):
                lines = response.aiter_lines()
                async for line in lines:
                    if "two" in line:
                        break
                code = await asyncio.to_thread(server.stop, sent)
                rest = [line async for line in lines if line]
        assert (code, [line for line in server.log if "Traceback" in line]) == (0, [])
        assert [json.loads(line[6:])["error"]["code"] for line in rest[:-1] if "error" in line] == ["server_ending"]
        assert rest[-1] == "data: [DONE]"
    opened = await open_store(store, tenant="default")
    ref = SessionRef("default", "s")
    user, partial = await opened.entries(ref)
    assert (user.message.content, partial.message.content) == ("count", "one two ")
    assert (partial.metadata or {})["interrupted"] is True
    assert await verify(opened, ref) == 2
    await opened.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
async def test_second_signal_skips_the_grace_period(tmp_path: Path, sent: signal.Signals, *, stream: bool) -> None:
    """The server says what it waits for, ends on the second signal, and informs waiting clients."""
    config = tmp_path / "holdfast.yaml"
    async with ScriptedUpstream([Reply(text="one two three", hold=Gate(), hold_after=0)]) as upstream:
        config.write_text(config_text(upstream.url, "gateway: {shutdown_grace: 1d}"))
        with Process(f"sqlite:///{tmp_path}/s.db", config=config) as server:
            body = {"messages": [{"role": "user", "content": "count"}], "session_id": "s", "stream": stream}
            async with httpx2.AsyncClient(trust_env=False, timeout=60) as client:
                asked = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=body))
                await upstream.until(lambda: upstream.requests)
                server.process.send_signal(sent)
                await asyncio.to_thread(server.until, "again to stop now")
                code = await asyncio.to_thread(server.stop, sent)
                response = await asked
    assert (code, [line for line in server.log if "Traceback" in line]) == (0, [])
    assert (response.status_code, response.json()["error"]["code"]) == (503, "server_ending")


async def test_shutdown_during_startup_leaves_no_process_behind(tmp_path: Path) -> None:
    """The tool server that startup waits for never answers and would not end by itself."""
    config, place = tmp_path / "holdfast.yaml", tmp_path / "pid"
    script = f"import os, time; open({str(place)!r}, 'w').write(f'{{os.getpid()}}.'); time.sleep(600)"
    config.write_text(json.dumps({"mcp_servers": {"mute": {"command": sys.executable, "args": ["-c", script]}}}))
    command = [sys.executable, *PROGRAM, "--port", "0", "--store", "sqlite://:memory:", "--config", str(config)]
    server = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    async with asyncio.timeout(30):
        await until(lambda: place.exists() and place.read_text().endswith("."))
        server.send_signal(signal.SIGTERM)
        _, told = await server.communicate()
    assert (server.returncode, b"Traceback" in told) == (0, False)
    with pytest.raises(ProcessLookupError):
        os.kill(int(place.read_text().rstrip(".")), 0)


WATCHED = """
import atexit, gc, json, sys
def tell(when): print(json.dumps({when: [gc.get_freeze_count(), *gc.get_threshold()]}), file=sys.stderr)
import holdfast, holdfast.server.run
from holdfast.cli import main
tell("loaded")
atexit.register(tell, "served")
main()
"""


def test_serve_freezes_loaded_objects_for_the_garbage_collector(tmp_path: Path) -> None:
    """Only `serve` does this, since it owns its process."""
    with Process(f"sqlite:///{tmp_path}/s.db", program=("-c", WATCHED, "serve")) as server:
        assert server.stop(signal.SIGTERM) == 0
    loaded, served = (json.loads(line) for line in server.log if line.startswith(('{"loaded"', '{"served"')))
    asked = [sys.executable, "-c", "import gc, json; print(json.dumps(gc.get_threshold()))"]
    usual = json.loads(
        subprocess.run(asked, capture_output=True, check=True).stdout
    )  # not this process: see conftest.py
    assert tuple(loaded["loaded"]) == (0, *usual)
    frozen, *thresholds = served["served"]
    assert frozen > 10_000
    assert thresholds[0] > usual[0]
