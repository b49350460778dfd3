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

import pytest

from holdfast.config import load_settings
from holdfast.config.build import build_roster
from holdfast.holdfast import Holdfast
from holdfast.server.logs import JsonLines
from holdfast.server.run import make_banner
from holdfast.testing import Reply
from tests.edges.server import CLIENT_KEY, PROGRAM, UPSTREAM_KEY, Process, gateway
from tests.waits import until

SECRET = "the-secret-of-the-user"


# -- hosts and origins -------------------------------------------------------


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


# -- health, metrics, description --------------------------------------------


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


async def test_front_page_links_exist() -> None:
    async with gateway([]) as (served, _):
        page = (await served.http.get("/")).json()
        for method, url in (value.split(" ") for value in page.values() if " " in value):
            assert (await served.http.request(method, url, json={})).status_code != 404


# -- the process -------------------------------------------------------------


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
