"""Tokens of another issuer: which are accepted, as which user, and every way in which one can be wrong."""

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
from holdfast.server.jwks import ALGORITHMS, FRESH, KEY_LIFETIME_MS, PAUSE, RETRY, BadToken, TokenVerifier
from holdfast.server.permissions import Refused
from tests.clocks import START, Clock
from tests.edges.keys import AUDIENCE, ISSUER, bearer, key_set, public_key, signing_key, token
from tests.edges.server import gateway
from tests.web_apps import serve_app


class Issuer:
    """An issuer that publishes keys, with its current keys and a count of requests."""

    def __init__(self, content: bytes | Exception | None = None) -> None:
        self.content = key_set() if content is None else content
        self.asked = 0

    async def __call__(self) -> bytes:
        self.asked += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def make_verifier(issuer: Issuer | None = None, clock: Clock | None = None, **settings: Any) -> TokenVerifier:
    """Return a token verifier with these settings."""
    known = {"jwks_url": "https://issuer.example/keys", "issuer": ISSUER, "audience": (AUDIENCE,), **settings}
    return TokenVerifier(Jwt(**known), "default", clock or Clock(), fetch=issuer or Issuer())


# -- identity ----------------------------------------------------------------


async def test_token_identifies_its_user() -> None:
    """`sub` is the user in the server's own tenant, with the default role, until `exp` and the leeway of 30 seconds."""
    assert await make_verifier().principal(token()) == Principal(
        tenant="default", user_id="ada", role="write", key_id="jwt", expires_at=START + 630_000
    )


@pytest.mark.parametrize("kind", ALGORITHMS)
async def test_signatures_with_a_private_key_are_accepted(kind: str) -> None:
    issuer = Issuer(key_set(public_key(kind)))
    assert (await make_verifier(issuer).principal(token(kind))).user_id == "ada"


async def test_configured_claims_set_tenant_user_and_role() -> None:
    taker = make_verifier(tenant_claim="org", user_claim="email", role_claim="roles")
    said: dict[str, Any] = {"sub": None, "org": "t2", "email": "ada@example.com"}
    for roles, role in (("read", "read"), ("admin", "admin"), (None, "write")):
        found = await taker.principal(token(**said, roles=roles))
        assert (found.tenant, found.user_id, found.role) == ("t2", "ada@example.com", role)


async def test_token_without_a_role_has_the_configured_role() -> None:
    """Also if no claim is configured. A claim takes precedence."""
    assert (await make_verifier(role="read").principal(token())).role == "read"
    taker = make_verifier(role="read", role_claim="roles")
    assert [(await taker.principal(token(roles=role))).role for role in (None, "admin")] == ["read", "admin"]


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
async def test_token_without_a_user_is_refused(claims: dict[str, Any]) -> None:
    """A missing claim never means some user, and an unknown role never becomes the default."""
    taker = make_verifier(tenant_claim="org", role_claim="roles")
    with pytest.raises(BadToken):
        await taker.principal(token(**{"org": "t", **claims}))


# -- wrong tokens ------------------------------------------------------------


def make_token(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """Build a token by hand."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signature = sign(b".".join(parts))
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def sign_with_public_data(secret: bytes) -> str:
    """Sign with HS256, using public data as the secret."""
    return make_token({"alg": "HS256", "kid": "k1"}, CLAIMS, lambda said: hmac.digest(secret, said, hashlib.sha256))


CLAIMS = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": START // 1000 + 600}
PEM = (
    signing_key().public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)
WRONG: dict[str, str] = {
    "no algorithm": make_token({"alg": "none", "kid": "k1"}, CLAIMS),
    "no algorithm, spelt otherwise": make_token({"alg": "nOnE", "kid": "k1"}, CLAIMS),
    "no algorithm at all": make_token({"kid": "k1"}, CLAIMS),
    "an algorithm that is a list": make_token({"alg": ["RS256"], "kid": "k1"}, CLAIMS),
    "the public key as secret": sign_with_public_data(PEM),
    "the public JSON key as secret": sign_with_public_data(json.dumps(public_key()).encode()),
    "the modulus as secret": sign_with_public_data(public_key()["n"].encode()),
    "a shared secret of the set": jwt.encode(CLAIMS, "s" * 32, algorithm="HS256", headers={"kid": "shared"}),
    "a curve that the key is not on": token("ES384", kid="p256"),
    "key of another type": token("ES256"),
    "another key": token("EdDSA", kid="k1"),
    "an unknown key": token(kid="k9"),
    "a key's name that is none": make_token({"alg": "RS256", "kid": {"a": 1}}, CLAIMS),
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


async def test_all_wrong_tokens_get_one_answer(tmp_path: Path) -> None:
    """401 without a reason; a valid token is accepted."""
    (tmp_path / "jwks.json").write_bytes(SET)
    said = {"jwks_url": str(tmp_path / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE}
    async with gateway([], f"auth: {json.dumps({'jwt': said})}", clock=Clock()) as (served, _):
        answers = set()
        for wrong in WRONG.values():
            answer = await served.http.get("/v1/sessions", headers={b"x-holdfast-key": wrong.encode()})
            answers.add((answer.status_code, answer.headers["www-authenticate"], answer.text))
        ((status, scheme, _),) = answers
        assert (status, scheme) == (401, "Bearer")
        assert (await served.http.get("/v1/sessions", headers=bearer(token()))).status_code == 200
        assert (await served.http.get("/v1/sessions")).status_code == 401


async def test_clock_leeway_is_applied_exactly() -> None:
    taker = make_verifier()
    now = START // 1000
    goods: tuple[dict[str, Any], ...] = ({"exp": now - 29}, {"nbf": now + 29}, {"iat": now + 29})
    for good in goods:
        assert (await taker.principal(token(**good))).user_id == "ada"
    with pytest.raises(BadToken):
        await taker.principal(token(exp=START // 1000 - 30))


# -- keys over time ----------------------------------------------------------


async def test_new_key_of_the_issuer_is_fetched() -> None:
    """An unknown key id triggers a new fetch, at most once a minute."""
    issuer, clock = Issuer(), Clock()
    taker = make_verifier(issuer, clock)
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


async def test_withdrawn_key_of_the_issuer_is_dropped() -> None:
    """Within an hour."""
    issuer, clock = Issuer(key_set(public_key(), public_key("EdDSA", kid="k2"))), Clock()
    taker = make_verifier(issuer, clock)
    await taker.principal(token())
    issuer.content = key_set(public_key("EdDSA", kid="k2"))
    clock.now += FRESH
    with pytest.raises(BadToken):
        await taker.principal(token(now=clock.now))


async def test_unreachable_issuer_is_a_503_until_keys_are_cached() -> None:
    """Without keys the fetch is retried after seconds; cached keys are valid for a day."""
    issuer, clock = Issuer(OSError("away")), Clock()
    taker = make_verifier(issuer, clock)
    for _ in range(5):
        with pytest.raises(Refused) as refused:
            await taker.principal(token())
        assert refused.value.status == 503
    assert issuer.asked == 1
    issuer.content = key_set()
    clock.now += RETRY
    assert (await taker.principal(token())).user_id == "ada"
    issuer.content = ValueError("garbage")
    clock.now += KEY_LIFETIME_MS - 1
    assert (await taker.principal(token(now=clock.now))).user_id == "ada"
    clock.now += 1
    with pytest.raises(Refused):
        await taker.principal(token(now=clock.now))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"keys": {}}', b'{"keys": []}', b'{"keys": [1, {}]}'])
async def test_invalid_key_set_accepts_no_token(content: bytes) -> None:
    with pytest.raises(Refused):
        await make_verifier(Issuer(content)).principal(token())


async def test_single_key_needs_no_key_id() -> None:
    """Some issuers use no key ids; with two keys an id is required."""
    assert (await make_verifier().principal(token(kid=None))).user_id == "ada"
    nameless = Issuer(key_set(public_key(kid=None)))
    assert (await make_verifier(nameless).principal(token(kid=None))).user_id == "ada"
    with pytest.raises(BadToken):
        await make_verifier(Issuer(key_set(public_key(), public_key(kid="k2")))).principal(token(kid=None))


async def test_key_file_is_read_at_startup(tmp_path: Path) -> None:
    """A file without keys prevents the start."""
    file = tmp_path / "keys.json"
    settings = Jwt(jwks_url=str(file), issuer=ISSUER, audience=(AUDIENCE,))
    taker = TokenVerifier(settings, "default", Clock())
    with pytest.raises(ConfigError, match="contains no usable keys"):
        await taker.begin()
    file.write_bytes(key_set())
    await taker.begin()
    assert (await taker.principal(token())).user_id == "ada"


async def test_keys_are_fetched_from_the_configured_url() -> None:
    """No redirect is followed, and too large an answer is not read."""
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


def test_missing_jwt_extra_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server configured for tokens does not start without joserfc."""
    monkeypatch.setitem(__import__("sys").modules, "joserfc", None)
    with pytest.raises(MissingExtra, match=r"extra 'jwt' of holdfast-memory"):
        make_verifier()
