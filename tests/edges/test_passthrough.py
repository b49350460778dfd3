"""A server that calls the model with its client's own key: it reaches the model and appears nowhere else."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.access import ForwardedHeaders, derive_upstream_user
from holdfast.agents import Roster
from holdfast.domain.session import SessionRef
from holdfast.server.logs import JsonLines
from holdfast.testing import Reply, ScriptedUpstream
from holdfast.turns.turn import TurnRequest
from tests.edges.keys import bearer
from tests.edges.server import UPSTREAM_KEY, Served, gateway

KEY, OTHER = "sk-client-canary-0123456789", "sk-another-canary-987654321"
TURN: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PASS = "gateway: {upstream_auth: passthrough}"


@asynccontextmanager
async def passthrough_server(
    script: Any = lambda _: "ok", *more: str, **options: Any
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Run a server that passes keys on."""
    async with gateway(script, PASS, *more, **options) as (served, upstream):
        yield served, upstream


def list_sent_keys(upstream: ScriptedUpstream) -> list[str | None]:
    """Return the keys that the upstream was called with."""
    return [one.headers.get("authorization") for one in upstream.requests]


async def chat(served: Served, headers: dict[str, str], **fields: Any) -> Any:
    return await served.http.post("/v1/chat/completions", json={**TURN, **fields}, headers=headers)


def read_files(folder: Path) -> list[bytes]:
    """Return the content of all files in a folder."""
    return [file.read_bytes() for file in folder.rglob("*") if file.is_file()]


async def test_official_client_needs_no_other_setting() -> None:
    """Its `api_key` is the model's, and its sessions are found by it."""
    async with passthrough_server() as (served, upstream):
        client = served.client.with_options(api_key=KEY)
        for _ in range(2):
            await client.chat.completions.create(model="gpt-4o", extra_body={"session_id": "s"}, **TURN)
        assert list_sent_keys(upstream) == [f"Bearer {KEY}"] * 2
        (session,) = (await served.hf.sessions()).sessions
        assert (session.user_id, session.id) == (derive_upstream_user("default", KEY), "s")


async def test_clients_key_is_not_stored_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor is it in an answer or error, even if the provider quotes it."""
    caplog.set_level(logging.DEBUG)
    said = f"Incorrect API key provided: {KEY}"
    script = [
        "fine",
        Reply(status=401, error=said),
        Reply(status=500, error={"error": {"message": said, "code": KEY, KEY: [f"Bearer {KEY}"]}}),
        Reply(text="one two", error={"message": said}, cut_after=1, stream=True),
        Reply(status=400, raw=[said.encode()], content_type="text/plain"),
        Reply(status=200, raw=[b"data: " + said.encode() + b"\n\n"], content_type="text/event-stream"),
    ]
    answers = []
    async with passthrough_server(script, store=f"sqlite:///{tmp_path}/s.db") as (served, upstream):
        for at in range(len(script)):
            headers = {**bearer(KEY), "idempotency-key": f"k{at}"}
            answers.append(await chat(served, headers, session_id="s", stream=at > 2))
        answers += [
            await served.http.get(url, headers=bearer(KEY))
            for url in ("/v1/sessions/s?calls=true&retired=true", "/metrics")
        ]
        assert len(upstream.requests) == len(script)
        assert set(list_sent_keys(upstream)) == {f"Bearer {KEY}"}
        files = read_files(tmp_path)
    files += read_files(tmp_path)
    assert files
    assert not any(KEY.encode() in content for content in files)
    lines = [JsonLines().format(record) for record in caplog.records]
    assert any('"key": "upstream"' in line for line in lines)
    assert not [line for line in lines if KEY in line]
    for answer in answers:
        assert KEY not in answer.text + json.dumps(dict(answer.headers))


async def test_background_work_uses_the_servers_key() -> None:
    """A summary has no client."""
    async with passthrough_server() as (served, upstream):
        user = derive_upstream_user("default", KEY)
        long = [{"role": role, "content": "a word " * 200} for _ in range(10) for role in ("user", "assistant")]
        await served.http.put("/v1/sessions/s", json={"messages": long}, headers=bearer(KEY))
        await served.http.post("/v1/sessions/s/compactions", json={"budget": 1000}, headers=bearer(KEY))
        assert (await served.hf.store.get(SessionRef(user, "s"))).messages == len(long)
        assert list_sent_keys(upstream) == [f"Bearer {UPSTREAM_KEY}"]


def test_request_repr_hides_the_key() -> None:
    """So that logging a turn's request logs no key."""
    request = TurnRequest(
        ref=SessionRef("u", "s"),
        responder=Roster().find_responder(),
        incoming=(),
        headers=ForwardedHeaders(authorization=f"Bearer {KEY}"),
    )
    assert KEY not in repr(request)
