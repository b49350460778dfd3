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
from tests.edges.keys import bearer, create_stored_key
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


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_key_reaches_the_model(stream: bool) -> None:
    """In place of the server's own key, for each call."""
    async with passthrough_server() as (served, upstream):
        for key in (KEY, OTHER, KEY):
            assert (await chat(served, bearer(key), stream=stream)).status_code == 200
        assert list_sent_keys(upstream) == [f"Bearer {key}" for key in (KEY, OTHER, KEY)]


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


async def test_wrong_client_key_is_the_clients_error() -> None:
    """The client gets the 401 without a retry; a wrong key of the server is a 502."""
    refusal = Reply(status=401, error="Incorrect API key provided")
    async with passthrough_server([refusal]) as (served, upstream):
        answer = await chat(served, bearer(KEY))
        assert answer.status_code == 401
        assert "Incorrect API key" in answer.json()["error"]["message"]
        assert len(upstream.requests) == 1
    async with gateway([refusal]) as (served, _):
        assert (await chat(served, {})).status_code == 502


async def test_keys_separate_users() -> None:
    """One session id of two keys means two sessions, whatever user the request names."""
    async with passthrough_server() as (served, _):
        for key in (KEY, OTHER):
            await chat(served, bearer(key), session_id="s", messages=[{"role": "user", "content": f"I am {key[3:8]}"}])
        for key, other in ((KEY, OTHER), (OTHER, KEY)):
            listed = (await served.http.get("/v1/sessions", headers=bearer(key))).json()["data"]
            assert [one["user_id"] for one in listed] == [derive_upstream_user("default", key)]
            theirs = derive_upstream_user("default", other)
            assert (await served.http.get(f"/v1/sessions/s?user_id={theirs}", headers=bearer(key))).status_code == 404
            answer = await chat(served, bearer(key), session_id="s", user=theirs)
            assert answer.json()["session"]["turn"] == 1
            assert (await served.http.get("/metrics", headers=bearer(key))).status_code == 403
            assert (await served.http.delete(f"/v1/users/{theirs}", headers=bearer(key))).status_code == 403


async def test_holdfast_key_next_to_the_models_key() -> None:
    """It decides about access and sessions; if it names no user, the model's key does."""
    async with passthrough_server() as (served, upstream):
        ours, adas = (
            await create_stored_key(served.hf, tenant="t2"),
            await create_stored_key(served.hf, tenant="t2", user_id="ada"),
        )
        for own in (ours, adas):
            for header in ("x-holdfast-key", "x-api-key"):
                answer = await chat(served, {**bearer(KEY), header: own}, session_id="s", user="eve")
                assert answer.status_code == 200
        assert set(list_sent_keys(upstream)) == {f"Bearer {KEY}"}
        async with served.hf.serve_tenant("t2") as other:
            users = {session.user_id for session in (await other.sessions()).sessions}
        assert users == {"ada", derive_upstream_user("t2", KEY)}
        assert (await served.hf.sessions()).sessions == ()


async def test_holdfast_key_is_not_sent_to_the_model() -> None:
    """Without a model key no model is called, neither with the Holdfast key nor with the server's own."""
    async with passthrough_server() as (served, upstream):
        own = await create_stored_key(served.hf)
        for headers in (bearer(own), {"x-holdfast-key": own}, {"authorization": f"Bearer {own}", "x-api-key": KEY}):
            answer = await chat(served, headers, session_id="s")
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "upstream_key_missing")
            assert (await served.http.get("/v1/sessions", headers=headers)).json()["data"] == []
        assert upstream.requests == []
        assert (await chat(served, {**bearer(KEY), "x-holdfast-key": own})).status_code == 200


async def test_requests_without_any_key_are_refused() -> None:
    """The server's own key is not used, and a missing key is not the default user."""
    async with passthrough_server() as (served, upstream):
        await chat(served, bearer(KEY), session_id="s")
        for url in ("/v1/sessions", "/v1/sessions/s", "/metrics"):
            for headers in (
                {},
                {"x-api-key": "sk-other"},
                {"authorization": "Bearer"},
                {"authorization": f"Basic {KEY}"},
            ):
                assert (await served.http.get(url, headers=headers)).status_code == 401
        assert (await served.http.get("/healthz")).status_code == 200
    async with passthrough_server() as (served, upstream):
        answer = await chat(served, {})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "upstream_key_missing")
        assert (upstream.requests, (await served.hf.sessions()).sessions) == ([], ())


async def test_required_auth_refuses_a_models_key_alone() -> None:
    async with passthrough_server(lambda _: "ok", "auth: {required: true}") as (served, upstream):
        assert (await chat(served, bearer(KEY))).status_code == 401
        assert upstream.requests == []


async def test_server_with_its_own_key_passes_none_on() -> None:
    """The client's key is sent nowhere."""
    async with gateway(lambda _: "ok") as (served, upstream):
        assert (await chat(served, bearer(KEY))).status_code == 200
        assert list_sent_keys(upstream) == [f"Bearer {UPSTREAM_KEY}"]


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


async def test_people_behind_one_provider_key_are_not_matched() -> None:
    """An application may send one key of a provider for all its users: what one of them says stays out of another's session."""

    async def send(served: Served, *messages: dict[str, Any], **fields: Any) -> Any:
        headers = {
            "x-holdfast-key": await create_stored_key(served.hf),
            "authorization": "Bearer sk-shared-app-key-123456",
        }
        body = {"model": "gpt-4o", "messages": list(messages), **fields}
        return (await served.http.post("/v1/chat/completions", json=body, headers=headers)).json()

    async with gateway(lambda _: "Hello.", PASS) as (served, _):
        hi, hello = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}
        first, second = await send(served, hi, user="bob"), await send(served, hi, user="alice")
        third = await send(served, hi, hello, {"role": "user", "content": "password hunter2"}, user="bob")
        assert third["session_id"] not in (first["session_id"], second["session_id"])
