"""The webhook at a session's end: what is posted, how it is signed, and which answers count as success."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import hmac
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
from aiohttp import web

import holdfast
from holdfast.domain.session import Ending, NewEntry, Session, SessionRef
from holdfast.errors import HookFailed, InvalidRequest
from holdfast.hooks import EndedSession
from holdfast.hooks.webhook import Webhook
from holdfast.secrets import Pattern, make_redactor
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.contract.kit import user
from tests.edges.server import Process
from tests.edges.webhook_receiver import Receiver, fine, receiving

NOW = 1_760_000_000_000
REF = SessionRef("ada", "s1")
SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()


def answers(status: int, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={key.replace("_", "-"): value for key, value in headers.items()})

    return answer


@asynccontextmanager
async def open_stored(*entries: NewEntry, **fields: Any) -> AsyncIterator[Store]:
    """Open a store with a session of those entries."""
    store = await open_store("sqlite://:memory:", tenant="default")
    try:
        await store.create(NewSession(id=REF.id, user_id=REF.user_id, timestamp=NOW - 60_500, **fields))
        for at in range(0, len(entries), 1000):
            await store.append(REF, Append(entries=entries[at : at + 1000], timestamp=NOW))
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def end_session(*entries: NewEntry, **fields: Any) -> AsyncIterator[EndedSession]:
    """Yield an ended session with those entries."""
    async with open_stored(*entries, **fields) as store:
        yield await end_of(store)


async def end_of(store: Store, attempts: int = 0) -> EndedSession:
    ending = Ending(
        id="end_1",
        user_id=REF.user_id,
        session_id=REF.id,
        withdrawn=False,
        reason="ttl",
        ended_at=NOW,
        due_at=NOW,
        attempts=attempts,
    )
    session: Session = await store.get(REF)
    return EndedSession(store, session, ending)


def hook(receiver: Receiver, secret: str = SECRET, **settings: Any) -> Webhook:
    return Webhook(receiver.url, secret, **{"clock": lambda: NOW + 7, **settings})


# -- what is posted --------------------------------------------------------------


async def test_empty_session_is_posted_too() -> None:
    async with receiving() as receiver, end_session() as session:
        await hook(receiver)(session)
        (payload,) = receiver.payloads
    assert payload["contents"] == []
    assert not {"name", "channel", "labels"} & payload.keys()


async def test_ten_thousand_messages_are_posted() -> None:
    said = [user(f"Nachricht {at} äöü") for at in range(10_000)]
    async with receiving() as receiver, end_session(*said) as session:
        await hook(receiver)(session)
        (whole,) = receiver.payloads
        verify_signature(receiver, 0)
    assert [record["content"] for record in whole["contents"]] == [f"Nachricht {at} äöü" for at in range(10_000)]
    assert "is_truncated" not in whole


async def test_truncated_history_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.hooks.webhook.WEBHOOK_BYTES", 1000)
    said = [user(f"{at:03} " + "x" * 80) for at in range(30)]
    async with receiving() as receiver, end_session(*said) as session:
        await hook(receiver)(session)
        (payload,) = receiver.payloads
    assert payload["is_truncated"] is True
    assert 3 < len(payload["contents"]) < 10
    assert payload["contents"][-1]["content"].startswith("029 ")


async def test_secrets_are_not_posted() -> None:
    redactor = make_redactor(patterns=[Pattern("hunter[0-9]", "password")], rules=())
    message = user("it is hunter4", metadata={"x": "hunter5"})
    async with receiving() as receiver, end_session(message, metadata={"channel": "hunter6"}) as session:
        await hook(receiver, redactor=redactor)(session)
        verify_signature(receiver, 0)
        (payload,) = receiver.payloads
    assert "hunter" not in receiver.bodies[0].decode()
    assert payload["contents"][0]["content"] == "it is [REDACTED:password]"


# -- signatures --------------------------------------------------------------------


def verify_signature(receiver: Receiver, at: int, secret: str = SECRET) -> None:
    """Verify as a receiver would: from the raw body, without Holdfast's code."""
    body, headers = receiver.bodies[at], receiver.headers[at]
    key = base64.b64decode(secret[6:]) if secret.startswith("whsec_") else secret.encode()
    signed = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["agora-signature-v2"] == hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    assert headers["agora-signature"] == hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()


# -- answers -------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 299])
async def test_any_2xx_is_success(status: int) -> None:
    async with receiving() as receiver, end_session(user("Hi")) as session:
        receiver.answer = answers(status)
        await hook(receiver)(session)


async def test_slow_receiver_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.hooks.webhook.TIMEOUT", 0.05)
    released = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    async with receiving() as receiver, end_session(user("Hi")) as session:
        receiver.answer = slow
        with pytest.raises(HookFailed, match=r"did not answer within 0\.05 s"):
            await hook(receiver)(session)
        released.set()


async def test_endless_answer_is_not_read() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
        except ConnectionError:
            pass
        return response

    async with receiving() as receiver, end_session(user("Hi")) as session:
        receiver.answer = endless
        async with asyncio.timeout(10):
            await hook(receiver)(session)


async def test_unreachable_receiver_is_a_failure_without_secrets() -> None:
    async with receiving() as receiver:
        url = receiver.url
    async with end_session(user("my PIN is 4711")) as session:
        webhook = Webhook(url, SECRET)
        with pytest.raises(HookFailed, match="could not be reached") as raised:
            await webhook(session)
    said = f"{raised.value!r} {webhook!r} {raised.value.__cause__!r}"
    assert not any(secret in said for secret in ("sk-path-secret", SECRET, "4711", "/hook"))


async def test_turns_continue_while_a_receiver_is_slow() -> None:
    released = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await released.wait()
        return web.Response()

    async with receiving() as receiver, open_stored(user("Hi")) as store:
        receiver.answer = slow
        told = asyncio.ensure_future(hook(receiver)(await end_of(store)))
        await store.append(REF, Append(entries=[user("and?")], timestamp=NOW))
        assert not told.done()
        released.set()
        await told


# -- settings ------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "ftp://x/", "http://", "/hook", "http://x y/", "http://[::1", "http://x:99999/"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="url must begin with http"):
        Webhook(url, SECRET)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!!", "whsec_äöü"])
def test_invalid_secret_is_refused_and_not_quoted(secret: str) -> None:
    with pytest.raises(InvalidRequest, match="secret") as raised:
        Webhook("http://x/", secret)
    assert "!!!" not in str(raised.value)


def test_hook_names_are_stable_and_distinct() -> None:
    first, again, other = (Webhook(url, SECRET) for url in ("http://x/a", "http://x/a", "http://x/b"))
    assert first.name == again.name != other.name
    assert first.reasons == {"ttl", "cap", "close", "delete"}


# -- end to end ------------------------------------------------------------------------


async def test_configured_server_posts_and_writes_transcripts(tmp_path: Path) -> None:
    config, folder = tmp_path / "holdfast.yaml", tmp_path / "kept"
    async with receiving() as receiver, httpx2.AsyncClient(trust_env=False, timeout=60) as http:
        webhook = {"url": receiver.url, "secret": SECRET, "events": "delete"}
        config.write_text(f"hooks: {json.dumps({'transcripts_dir': str(folder), 'webhooks': [webhook]})}")
        started = functools.partial(Process, f"sqlite:///{tmp_path}/chat.db", config=config)
        server = await anyio.to_thread.run_sync(started)
        try:
            for name in ("stays", "goes"):
                body = {"session_id": name, "messages": [{"role": "user", "content": f"Ich heiße {name}."}]}
                assert (await http.post(f"{server.url}/v1/chat/completions", json=body)).status_code == 200
            assert (await http.delete(f"{server.url}/v1/sessions/goes")).status_code == 200
            async with asyncio.timeout(30):
                await receiver.arrived.wait()
        finally:
            code = await anyio.to_thread.run_sync(server.stop, signal.SIGTERM)
    assert code == 0
    verify_signature(receiver, 0)
    (payload,) = receiver.payloads
    assert (payload["session_id"], payload["reason"]) == ("goes", "delete")
    assert [record["role"] for record in payload["contents"]] == ["user", "assistant"]
    assert payload["contents"][0]["content"] == "Ich heiße goes."
    assert [path.name for path in folder.iterdir()] == ["stays.jsonl"]
    lines = [json.loads(line) for line in (folder / "stays.jsonl").read_bytes().splitlines()]
    assert [line.get("role", line.get("type")) for line in lines] == ["session", "user", "assistant"]


async def test_recovered_receiver_gets_the_notice_again() -> None:
    now = NOW
    async with receiving() as receiver:
        receiver.answer = answers(500)
        webhook = Webhook(receiver.url, SECRET)
        async with holdfast.open("sqlite://:memory:", hooks=[webhook], clock=lambda: now) as hf:
            session = await hf.session("s1", user_id="ada")
            await session.append([{"role": "user", "content": "Hi"}])
            await hf.close_session(session.ref)
            await hf.sweep()
            assert len(receiver.bodies) == 1
            receiver.answer = fine
            now += 3_600_000
            await hf.sweep()
            now += 3_600_000
            await hf.sweep()
        first, second = map(json.loads, receiver.bodies)
    assert first["noticeId"] == second["noticeId"]
    assert first["payload"] == second["payload"]
