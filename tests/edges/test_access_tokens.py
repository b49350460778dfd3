"""Tokens of somebody else's: what is taken, as whom, and every way in which one can be wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization

from holdfast.access import Principal
from holdfast.config.gateway import Jwt
from holdfast.errors import ConfigError, MissingExtra
from holdfast.server import jwks
from holdfast.server.jwks import FRESH, KEPT, PAUSE, RETRY, BadToken, TokenVerifier
from holdfast.server.permissions import Refused
from tests.clocks import START, Clock
from tests.edges.keys import AUDIENCE, ISSUER, bearer, key_set, public_key, signing_key, token
from tests.edges.server import gateway
from tests.serving import serve_app


class Issuer:
    """Whoever publishes keys: what it has now, and how often it was asked."""

    def __init__(self, content: bytes | Exception | None = None) -> None:
        self.content = key_set() if content is None else content
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def tokens(issuer: Issuer | None = None, clock: Clock | None = None, **settings: Any) -> TokenVerifier:
    """Who takes tokens, with these settings."""
    known = {"jwks_url": "https://issuer.example/keys", "issuer": ISSUER, "audience": (AUDIENCE,), **settings}
    return TokenVerifier(Jwt(**known), "default", clock or Clock(), fetch=issuer or Issuer())


# -- as whom -----------------------------------------------------------------


async def test_a_token_is_its_user() -> None:
    """`sub`, in the server's own tenant, with the role that holds for all."""
    assert await tokens().principal(token()) == Principal(tenant="default", user_id="ada", role="write", key_id="jwt")


@pytest.mark.parametrize("kind", ["RS256", "ES256", "EdDSA"])
async def test_ways_to_sign_that_are_taken(kind: str) -> None:
    """By default the three that are common."""
    issuer = Issuer(key_set(public_key(kind)))
    assert (await tokens(issuer).principal(token(kind))).user_id == "ada"


async def test_claims_say_who() -> None:
    """Tenant, user and role by whichever claims are configured."""
    taker = tokens(tenant_claim="org", user_claim="email", role_claim="roles")
    said: dict[str, Any] = {"sub": None, "org": "t2", "email": "ada@example.com"}
    for roles, role in (("read", "read"), ("admin", "admin"), (None, "write")):
        found = await taker.principal(token(**said, roles=roles))
        assert (found.tenant, found.user_id, found.role) == ("t2", "ada@example.com", role)
    assert (await tokens(tenant="t3", role="read").principal(token())).tenant == "t3"


@pytest.mark.parametrize(
    "claims",
    [
        {"org": None},
        {"org": ""},
        {"org": 5},
        {"org": ["t"]},
        {"org": "x" * 513},
        {"sub": None},
        {"sub": ""},
        {"sub": "x" * 513},
        {"roles": "owner"},
        {"roles": []},
        {"roles": 1},
        {"roles": [["admin"]]},
        {"roles": ["read"]},
        {"roles": ["x", "read", "admin"]},
        {"roles": {"admin": True}},
    ],
)
async def test_a_token_that_names_nobody_is_refused(claims: dict[str, Any]) -> None:
    """A claim that is missing never means anybody, and a role that is none never a default."""
    taker = tokens(tenant_claim="org", role_claim="roles")
    with pytest.raises(BadToken):
        await taker.principal(token(**{"org": "t", **claims}))


# -- wrong tokens ------------------------------------------------------------


def unsigned(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """A token put together by hand."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signature = sign(b".".join(parts))
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def confused(secret: bytes) -> str:
    """HS256 with something public as its secret."""
    return unsigned({"alg": "HS256", "kid": "k1"}, CLAIMS, lambda said: hmac.digest(secret, said, hashlib.sha256))


CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": START // 1000 + 600}
PEM = (
    signing_key().public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)
WRONG: dict[str, str] = {
    "no algorithm": unsigned({"alg": "none", "kid": "k1"}, CLAIMS),
    "no algorithm, spelt otherwise": unsigned({"alg": "nOnE", "kid": "k1"}, CLAIMS),
    "no algorithm at all": unsigned({"kid": "k1"}, CLAIMS),
    "an algorithm that is a list": unsigned({"alg": ["RS256"], "kid": "k1"}, CLAIMS),
    "the public key as secret": confused(PEM),
    "the public JSON key as secret": confused(json.dumps(public_key()).encode()),
    "the modulus as secret": confused(public_key()["n"].encode()),
    "a shared secret of the set": jwt.encode(CLAIMS, "s" * 32, algorithm="HS256", headers={"kid": "shared"}),
    "algorithm not allowed": jwt.encode(CLAIMS, signing_key(), algorithm="RS512", headers={"kid": "k1"}),
    "key of another type": token("ES256"),
    "another key": token("EdDSA", kid="k1"),
    "an unknown key": token(kid="k9"),
    "a key's name that is none": unsigned({"alg": "RS256", "kid": {"a": 1}}, CLAIMS),
    "a key for encryption": token("RS256", kid="enc"),
    "a key for another algorithm": token("RS256", kid="ps"),
    "a key of its own": jwt.encode(CLAIMS, signing_key(), "RS256", headers={"kid": "x", "jwk": public_key()}),
    "an address of its own": jwt.encode(CLAIMS, signing_key(), "RS256", headers={"kid": "x", "jku": "https://evil/"}),
    "a critical extension": jwt.encode(CLAIMS, signing_key(), "RS256", headers={"kid": "k1", "crit": ["b64"]}),
    "expired": token(exp=START // 1000 - 31),
    "without an end": token(exp=None),
    "an end that is no time": token(exp="tomorrow"),
    "not yet valid": token(nbf=START // 1000 + 31),
    "made in the future": token(iat=START // 1000 + 31),
    "another audience": token(aud="another"),
    "without an audience": token(aud=None),
    "another issuer": token(iss=ISSUER + "/"),
    "without an issuer": token(iss=None),
    "another signature": token()[:-8] + "AAAAAAAA",
    "without its signature": token().rpartition(".")[0] + ".",
    "too long": "a." + "b" * 20_000 + ".c",
    "nonsense": "a.b.c",
    "empty parts": "..",
    "not ASCII": "ä.ö.ü",
}
SET = key_set(
    public_key(),
    public_key(kid="enc", use="enc"),
    public_key(kid="ps", alg="PS256"),
    {"kty": "oct", "kid": "shared", "k": base64.urlsafe_b64encode(b"s" * 32).decode()},
)


@pytest.mark.parametrize("name", WRONG)
async def test_a_wrong_token(name: str) -> None:
    """None of them is anybody's; what was right beside it stays so."""
    taker = tokens(Issuer(SET))
    with pytest.raises(BadToken):
        await taker.principal(WRONG[name])
    assert (await taker.principal(token())).user_id == "ada"


async def test_all_wrong_tokens_get_one_answer(tmp_path: Path) -> None:
    """401 without a word on why, at the server's door; and a right one comes in."""
    (tmp_path / "jwks.json").write_bytes(SET)
    said = {"jwks_file": str(tmp_path / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    async with gateway([], f"auth: {json.dumps({'jwt': said})}", clock=Clock()) as (served, _):
        answers = set()
        for wrong in WRONG.values():
            answer = await served.http.get("/v1/sessions", headers={b"x-holdfast-key": wrong.encode()})
            answers.add((answer.status_code, answer.headers["www-authenticate"], answer.text))
        ((status, scheme, _),) = answers
        assert (status, scheme) == (401, "Bearer")
        assert (await served.http.get("/v1/sessions", headers=bearer(token()))).status_code == 200
        assert (await served.http.get("/v1/sessions")).status_code == 401


async def test_clocks_may_differ_a_little() -> None:
    """By the leeway, and not by a second more."""
    taker = tokens(leeway=30.0)
    now = START // 1000
    goods: tuple[dict[str, Any], ...] = ({"exp": now - 29}, {"nbf": now + 29}, {"iat": now + 29})
    for good in goods:
        assert (await taker.principal(token(**good))).user_id == "ada"
    with pytest.raises(BadToken):
        await taker.principal(token(exp=START // 1000 - 30))


# -- keys over time ----------------------------------------------------------


async def test_a_new_key_of_the_issuer_is_found() -> None:
    """An unknown name has the keys asked for again, but not more than once a minute, however many come."""
    issuer, clock = Issuer(), Clock()
    taker = tokens(issuer, clock)
    await taker.principal(token())
    issuer.content = key_set(public_key(), public_key(kid="k2"))
    for _ in range(20):
        with pytest.raises(BadToken):
            await taker.principal(token(kid="k2"))
    assert issuer.asked == 1
    clock.now += PAUSE
    assert (await taker.principal(token(kid="k2"))).user_id == "ada"
    for _ in range(20):
        with pytest.raises(BadToken):
            await taker.principal(token(kid="k3"))
    assert issuer.asked == 2


async def test_a_key_that_the_issuer_withdrew_is_forgotten() -> None:
    """Within the hour."""
    issuer, clock = Issuer(key_set(public_key(), public_key("EdDSA", kid="k2"))), Clock()
    taker = tokens(issuer, clock)
    await taker.principal(token())
    issuer.content = key_set(public_key("EdDSA", kid="k2"))
    clock.now += FRESH
    with pytest.raises(BadToken):
        await taker.principal(token(now=clock.now))


async def test_an_issuer_that_is_away() -> None:
    """Without any key it is a 503, asked for again in seconds; with keys, these hold for a day."""
    issuer, clock = Issuer(OSError("away")), Clock()
    taker = tokens(issuer, clock)
    for _ in range(5):
        with pytest.raises(Refused) as refused:
            await taker.principal(token())
        assert refused.value.status == 503
    assert issuer.asked == 1
    issuer.content = key_set()
    clock.now += RETRY
    assert (await taker.principal(token())).user_id == "ada"
    issuer.content = ValueError("garbage")
    clock.now += KEPT - 1
    assert (await taker.principal(token(now=clock.now))).user_id == "ada"
    clock.now += 1
    with pytest.raises(Refused):
        await taker.principal(token(now=clock.now))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1, {}]}'])
async def test_what_is_no_key_set(content: bytes) -> None:
    """It opens nothing."""
    with pytest.raises(Refused):
        await tokens(Issuer(content)).principal(token())


async def test_the_only_key_needs_no_name() -> None:
    """Some issuers name neither key nor token; of two keys one has to be named."""
    assert (await tokens().principal(token(kid=None))).user_id == "ada"
    nameless = Issuer(key_set(public_key(kid=None)))
    assert (await tokens(nameless).principal(token(kid=None))).user_id == "ada"
    with pytest.raises(BadToken):
        await tokens(Issuer(key_set(public_key(), public_key(kid="k2")))).principal(token(kid=None))


async def test_a_file_of_keys(tmp_path: Path) -> None:
    """It is read when the server starts, which a file without keys keeps from doing so."""
    file = tmp_path / "keys.json"
    settings = Jwt(jwks_file=str(file), issuer=ISSUER, audience=(AUDIENCE,))
    taker = TokenVerifier(settings, "default", Clock())
    with pytest.raises(ConfigError, match="contains no usable keys"):
        await taker.begin()
    file.write_bytes(key_set())
    await taker.begin()
    assert (await taker.principal(token())).user_id == "ada"


async def test_keys_come_from_the_configured_address() -> None:
    """By HTTP, as they are; no redirect is followed, and what is too large is not read."""
    from aiohttp import web

    answers = [
        web.Response(body=key_set()),
        web.Response(status=302, headers={"location": "/elsewhere"}),
        web.Response(body=b"x" * (1 << 20) + b"x"),
    ]

    async def answer(_: web.Request) -> web.Response:
        return answers.pop(0)

    app = web.Application()
    app.router.add_get("/keys", answer)
    async with serve_app(app) as origin:
        settings = Jwt(jwks_url=f"{origin}/keys", issuer=ISSUER, audience=(AUDIENCE,))
        assert await jwks.fetch_key_set(settings) == key_set()
        for words in ("answered with status 302", "more than"):
            with pytest.raises(ValueError, match=words):
                await jwks.fetch_key_set(settings)
    with pytest.raises(OSError, match="cannot be reached"):
        await jwks.fetch_key_set(settings)


def test_without_the_extra_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is to take tokens does not start without PyJWT."""
    monkeypatch.setitem(__import__("sys").modules, "jwt", None)
    with pytest.raises(MissingExtra, match=r"extra 'jwt' of holdfast-memory"):
        tokens()
