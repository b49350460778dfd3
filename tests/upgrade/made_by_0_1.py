"""Data that a server and a program of Holdfast 0.1 make, and how to compare them with what this release shows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import httpx2

from tests.upgrade.releases import Release
from tests.upgrade.traffic import TOOLS, make_picture

USER: Final = "ada"
CODE: Final = "QX-4711"
ASKED: Final = f"I fly to Lisbon on May 20, booking {CODE}."
HISTORY: Final = [{"role": "user", "content": "Which museums are open on Monday?"}]
"""A conversation without a session id."""
DERIVED: Final = ("timestamp", "tokens")
_PROGRAM: Final = """
import asyncio, sys, holdfast

async def main():
    async with holdfast.open(sys.argv[1]) as hf:
        session = await hf.session("trip", user_id="ada")
        await session.artifacts.save("plan.md", "# Lisbon")
        await session.artifacts.save("plan.md", "# Lisbon, four days")
        await session.artifacts.save("user:logo.bin", bytes(range(256)))

asyncio.run(main())
"""


def make_data(http: httpx2.Client) -> dict[str, Any]:
    """Fill an empty server of 0.1. Return what it shows afterwards."""
    _chat(http, "trip", ASKED)
    picture = {"type": "image_url", "image_url": {"url": make_picture(7)}}
    _chat(http, "trip", [{"type": "text", "text": "This is my ticket."}, picture])
    call = _chat(http, "trip", "[tool] When does the flight leave?", tools=TOOLS)["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "It leaves at 06:15."}
    _post(http, "/v1/chat/completions", {"session_id": "trip", "user": USER, "messages": [result], "tools": TOOLS})
    _post(http, f"/v1/sessions/trip/fork?user_id={USER}", {"id": "trip-fork", "at_turn": 0})
    _chat(http, "trip-fork", "And to Porto?")
    _chat(http, "edited", "I want a blue bicycle.")
    edited = [{"role": "user", "content": "I want a green bicycle."}]
    _post(http, "/v1/chat/completions", {"session_id": "edited", "user": USER, "messages": edited, "mode": "replace"})
    for number in range(12):
        _chat(http, "long", f"Remark {number} about the harbour: " + "it was windy " * 20)
    strategy = {"strategy": "summary_buffer", "budget": 1000, "target": 0.3}
    _post(http, f"/v1/sessions/long/compactions?user_id={USER}", strategy)
    reply = _post(http, "/v1/chat/completions", {"user": USER, "messages": HISTORY})
    _post(http, "/v1/memories", {"user_id": USER, "content": "Ada is allergic to shellfish"})
    state = {"changes": [{"op": "set", "key": key, "value": [key]} for key in ("topic", "user:theme", "app:version")]}
    _post(http, f"/v1/sessions/trip/state?user_id={USER}", state)
    body = {"messages": [{"role": "user", "content": "only once"}]}
    _post(http, f"/v1/sessions/trip/messages?user_id={USER}", body, {"idempotency-key": "once"})
    _chat(http, "closed", "Good bye.")
    _post(http, f"/v1/sessions/closed/close?user_id={USER}", {})
    return {"matched": [reply["session_id"], reply["choices"][0]["message"]["content"]], **read_data(http)}


def save_artifacts(release: Release, store: str) -> None:
    """Save artifacts with a program that uses the library of 0.1."""
    done = subprocess.run(
        [str(release.python), "-c", _PROGRAM, store],
        env=release.environment(store),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def read_data(http: httpx2.Client) -> dict[str, Any]:
    """Return what a server shows of the data, in a form that both releases have."""
    sessions = ("trip", "trip-fork", "edited", "long", "closed")
    logs = {name: _messages(http, name) for name in sessions}
    retired = _get(http, f"/v1/sessions/edited?user_id={USER}&retired=true")["messages"]
    compactions = _get(http, f"/v1/sessions/long/compactions?user_id={USER}")["data"]
    memories = _get(http, f"/v1/memories?user_id={USER}")["data"]
    return {
        "logs": logs,
        "retired": [(one["seq"], one["role"], one.get("content")) for one in retired],
        "compactions": [(one["id"], one["status"], one.get("text")) for one in compactions],
        "memories": [(one["id"], one["content"], one["status"]) for one in memories],
        "state": _get(http, f"/v1/sessions/trip/state?user_id={USER}"),
    }


def write_config(folder: Path, upstream: str) -> Path:
    """Write a configuration of 0.1, with transcripts as hooks."""
    llm = {"model": "gpt-4o", "base_url": upstream, "api_key": "sk-x"}
    lines = [
        f"llms: {json.dumps({'default': llm})}",
        "context: {strategy: digest, budget: 1500}",
        "hooks: {transcripts_dir: ./transcripts}",
    ]
    path = folder / "holdfast.yaml"
    path.write_text("\n".join(lines))
    return path


def _chat(http: httpx2.Client, session: str, content: Any, **more: Any) -> Any:
    body = {"session_id": session, "user": USER, "messages": [{"role": "user", "content": content}], **more}
    return _post(http, "/v1/chat/completions", body)


def _post(http: httpx2.Client, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
    response = http.post(path, json=body, headers=headers or {})
    assert response.status_code in {200, 201}, (path, response.status_code, response.text)
    return response.json()


def _get(http: httpx2.Client, path: str) -> Any:
    response = http.get(path)
    assert response.status_code == 200, (path, response.text)
    return response.json()


def _messages(http: httpx2.Client, session: str) -> list[dict[str, Any]]:
    data = _get(http, f"/v1/sessions/{session}/messages?user_id={USER}&limit=100")["data"]
    return [{name: value for name, value in one.items() if name not in DERIVED} for one in data]
