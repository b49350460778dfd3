"""Sign-ins to the inspector: what they may do, when they end, and what is stored of them."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from pathlib import Path

import pytest

from holdfast.access import Principal, parse_key_id, to_principal
from holdfast.errors import InvalidRequest, StoreUnavailable
from holdfast.holdfast import Holdfast
from holdfast.limits import SIGN_INS_OF_HOLDER
from holdfast.server.key_cache import KEY_CACHE_MS, USE_UPDATE_MS
from holdfast.server.limits import SIGN_IN_DAYS, SIGN_IN_IDLE_HOURS
from holdfast.server.sign_in import SignIns
from tests.clocks import START, Clock
from tests.edges.keys import create_stored_key
from tests.edges.server import gateway
from tests.waits import until

HOUR, DAY = 3_600_000, 86_400_000
TOKEN = Principal(tenant="acme", user_id="ann", role="read", key_id="jwt", expires_at=START + HOUR)


async def create_key(hf: Holdfast, **fields: object) -> Principal:
    """Create a key, and return the principal of a request that uses it."""
    key = await hf.store.get_key(parse_key_id(await create_stored_key(hf, **fields)) or "")
    assert key is not None
    return to_principal(key)


async def is_noted(hf: Holdfast, text: str, now: int) -> bool:
    """Return True if the store knows that a sign-in was used now."""
    stored = await hf.store.find_sign_in(hashlib.sha256(text.encode()).digest())
    return stored is not None and stored.used_at == now


async def test_a_sign_in_acts_as_its_key() -> None:
    """With all limits of the key, in every tenant; the store has only the hash of the text."""
    async with gateway([], clock=Clock()) as (served, _):
        limits = {"rate": 7, "max_body": 8, "session_mode": "delta", "budget": 9}
        principal = await create_key(
            served.hf, tenant="blue", user_id="ann", role="admin", expires_at=START + DAY, **limits
        )
        sign_ins = SignIns(served.hf)
        text = await sign_ins.create(principal)
        assert await sign_ins.find(text) == principal
        assert await SignIns(served.hf).find(text) == principal
        stored = await served.hf.store.find_sign_in(hashlib.sha256(text.encode()).digest())
        assert stored is not None
        assert (stored.tenant, stored.key_id, stored.expires_at) == ("blue", principal.key_id, START + DAY)
        assert text not in repr(stored)
        assert len(text) == 43
        assert await sign_ins.create(principal) != text


async def test_a_sign_in_of_a_token_ends_with_the_token() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        sign_ins = SignIns(served.hf)
        text = await sign_ins.create(TOKEN)
        clock.now = START + HOUR - 1
        assert await sign_ins.find(text) == TOKEN
        clock.now += 1
        assert await sign_ins.find(text) is None
        with pytest.raises(InvalidRequest):
            await sign_ins.create(TOKEN)


async def test_a_sign_in_ends_without_requests_and_after_days() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        sign_ins = SignIns(served.hf)
        principal = await create_key(served.hf)
        idle, used = await sign_ins.create(principal), await sign_ins.create(principal)
        step = SIGN_IN_IDLE_HOURS * 3_600_000 - USE_UPDATE_MS
        while clock.now + step < START + SIGN_IN_DAYS * 86_400_000:
            clock.now += step
            assert await sign_ins.find(used) == principal
            await until(partial(is_noted, served.hf, used, clock.now))
        assert await sign_ins.find(idle) is None
        clock.now = START + SIGN_IN_DAYS * 86_400_000
        assert await sign_ins.find(used) is None


@pytest.mark.parametrize("reason", ["revoked", "expired"])
async def test_a_sign_in_ends_with_its_key(reason: str) -> None:
    """On every server, after the few seconds for which a key is cached."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        principal = await create_key(served.hf)
        sign_ins, other = SignIns(served.hf), SignIns(served.hf)
        text = await sign_ins.create(principal)
        assert [await one.find(text) for one in (sign_ins, other)] == [principal, principal]
        if reason == "revoked":
            await served.hf.store.revoke_key(principal.key_id or "", timestamp=clock.now)
        else:
            clock.now = START + SIGN_IN_DAYS * 86_400_000
        clock.now += KEY_CACHE_MS
        assert [await one.find(text) for one in (sign_ins, other)] == [None, None]


async def test_signing_out_ends_one_sign_in() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        principal = await create_key(served.hf)
        sign_ins, other = SignIns(served.hf), SignIns(served.hf)
        text, second = await sign_ins.create(principal), await sign_ins.create(principal)
        assert await other.find(text) == principal
        await sign_ins.end(text)
        assert [await sign_ins.find(one) for one in (text, second)] == [None, principal]
        clock.now += KEY_CACHE_MS
        assert await other.find(text) is None
        await sign_ins.end(text)
        await sign_ins.end("x" * 1000)


async def test_the_oldest_sign_in_of_a_key_ends(tmp_path: Path) -> None:
    clock = Clock()
    async with gateway([], clock=clock, store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        principal, sign_ins = await create_key(served.hf), SignIns(served.hf)
        texts = []
        for _ in range(SIGN_INS_OF_HOLDER + 1):
            clock.now += 1
            texts.append(await sign_ins.create(principal))
        assert [await sign_ins.find(text) is not None for text in texts] == [False] + [True] * SIGN_INS_OF_HOLDER


async def test_a_use_that_cannot_be_recorded_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The request goes on, and the log has no part of the text."""
    async with gateway([], clock=Clock()) as (served, _):
        principal, sign_ins = await create_key(served.hf), SignIns(served.hf)
        text = await sign_ins.create(principal)

        async def fail(*_: object, **__: object) -> None:
            raise StoreUnavailable("read-only")

        monkeypatch.setattr(served.hf.store.inner, "use_sign_in", fail, raising=False)  # type: ignore[attr-defined]
        with caplog.at_level(logging.WARNING, "holdfast.access"):
            assert await sign_ins.find(text) == principal
            await until(lambda: caplog.messages)
        assert "cannot record the use of sign-in" in caplog.text
        assert text not in caplog.text
