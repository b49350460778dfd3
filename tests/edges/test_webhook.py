"""The webhook at a session's end: what is posted, how it is signed, and which answers count as success."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from holdfast.domain.session import Ending, NewEntry, Session, SessionRef
from holdfast.errors import HookFailed
from holdfast.hooks import EndedSession
from holdfast.hooks.webhook import Webhook
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.contract.kit import user
from tests.edges.webhook_receiver import Receiver, receiving

NOW = 1_760_000_000_000
REF = SessionRef("ada", "s1")
SECRET = "whsec_" + base64.b64encode(b"a key of thirty-two bytes, about").decode()


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


# -- answers -------------------------------------------------------------------------


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
