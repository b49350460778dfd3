"""Sign-ins to the inspector: what they may do, and when they end."""

from __future__ import annotations

import pytest

from holdfast.access import Principal, parse_key_id
from holdfast.config.gateway import Jwt
from holdfast.server.access import COOKIE, Access
from holdfast.server.jwks import TokenVerifier
from holdfast.server.key_cache import KEY_CACHE_MS
from holdfast.server.limits import COOKIE_CHARS, SIGN_IN_HOURS
from holdfast.server.permissions import Refused
from tests.clocks import START, Clock
from tests.edges.keys import AUDIENCE, ISSUER, create_stored_key, key_set, token
from tests.edges.server import Served, gateway

DAY = 86_400_000


def open_access(served: Served, clock: Clock) -> Access:
    """Return the authentication of one more server on the same store, which also accepts tokens."""

    async def fetch() -> bytes:
        return key_set()

    settings = Jwt(jwks_url="https://issuer.example/keys", issuer=ISSUER, audience=(AUDIENCE,))
    return Access(served.hf, tokens=TokenVerifier(settings, "default", clock, fetch=fetch))


async def find(access: Access, cookie: str | None) -> Principal | None:
    """Return the principal of a request for a page with this cookie, or None if the caller has to sign in."""
    try:
        return (await access.authenticate_page({"cookie": f"{COOKIE}={cookie}"}))[0]
    except Refused as exc:
        if exc.status != 401:
            raise
        return None


async def test_a_sign_in_acts_as_its_key_on_every_server() -> None:
    """With all limits of the key, in its tenant; the cookie contains no part of the key's secret."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        limits = {"rate": 70, "max_body": 8, "session_mode": "delta", "budget": 9}
        fields = {"tenant": "blue", "user_id": "ann", "role": "admin", "expires_at": START + DAY, **limits}
        key = await create_stored_key(served.hf, **fields)
        first, second = open_access(served, clock), open_access(served, clock)
        cookie = await first.sign_in(key)
        expected = (await first.authenticate({"x-holdfast-key": key}))[0]
        assert [await find(one, cookie) for one in (first, second)] == [expected, expected]
        assert expected.user_id == "ann"
        assert key.rpartition("_")[2] not in str(cookie)


async def test_a_forged_cookie_is_refused() -> None:
    """One of another key, with another time, or without a signature."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        access = open_access(served, clock)
        mine, other = await create_stored_key(served.hf), await create_stored_key(served.hf, role="admin")
        cookie = str(await access.sign_in(mine))
        clock.now += 5_000
        name, when, mac = cookie.split(".")
        later = str(await access.sign_in(mine)).split(".")[1]
        forged = [f"{parse_key_id(other)}.{when}.{mac}", f"{name}.{later}.{mac}", f"{name}.{when}", mine, "x" * 1000]
        assert [await find(access, one) for one in forged] == [None] * len(forged)
        assert await find(access, cookie) is not None


async def test_a_sign_in_ends_after_hours() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        access = open_access(served, clock)
        cookie = await access.sign_in(await create_stored_key(served.hf))
        clock.now = START + SIGN_IN_HOURS * 3_600_000 - 1_000
        assert await find(access, cookie) is not None
        clock.now += 1_000
        assert await find(access, cookie) is None


@pytest.mark.parametrize("reason", ["revoked", "expired"])
async def test_a_sign_in_ends_with_its_key(reason: str) -> None:
    """On every server, after the few seconds for which a key is cached."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        key = await create_stored_key(served.hf, expires_at=START + 3_600_000)
        servers = open_access(served, clock), open_access(served, clock)
        cookie = await servers[0].sign_in(key)
        assert None not in [await find(one, cookie) for one in servers]
        if reason == "revoked":
            await served.hf.store.revoke_key(parse_key_id(key) or "", timestamp=clock.now)
        else:
            clock.now = START + 3_600_000
        clock.now += KEY_CACHE_MS
        assert [await find(one, cookie) for one in servers] == [None, None]


async def test_a_sign_in_of_a_token_ends_with_the_token() -> None:
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        access = open_access(served, clock)
        await create_stored_key(served.hf)
        cookie = await access.sign_in(token())
        found = await find(access, cookie)
        assert found is not None
        assert (found.user_id, found.key_id) == ("ada", "jwt")
        clock.now = START + 630_000
        assert await find(access, cookie) is None
        with pytest.raises(Refused, match="not valid"):
            await access.sign_in(token())
        with pytest.raises(Refused, match="too long for a cookie"):
            await access.sign_in(token(now=clock.now, more="x" * COOKIE_CHARS))
