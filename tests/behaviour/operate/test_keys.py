"""Keys, roles and tokens: who gets what, until when, and how much."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.behaviour.kit import Served, gateway, user
from tests.behaviour.kit.seams import bearer

DAY = 86_400_000


async def create(served: Served, key: str | None = None, status: int = 201, **fields: Any) -> Any:
    answer = await served.http.post("/v1/keys", json=fields, headers=bearer(key) if key else {})
    assert answer.status_code == status, answer.text
    return answer.json()


async def statuses(served: Served, key: str | None, *requests: tuple[str, str]) -> list[int]:
    """Return the statuses of requests with this key."""
    headers = bearer(key) if key else {}
    return [
        (await served.http.request(method, path, json={} if method == "POST" else None, headers=headers)).status_code
        for method, path in requests
    ]


READ, WRITE, ADMIN = ("GET", "/v1/sessions"), ("POST", "/v1/sessions"), ("GET", "/v1/keys")


async def test_the_first_key_closes_the_server_at_once() -> None:
    async with gateway() as served:
        assert await statuses(served, None, READ, WRITE, ADMIN) == [200, 201, 200]
        first = await create(served, role="admin")
        assert first["note"] == "This is the first key of the server. Every request needs a key from now on."
        assert await statuses(served, None, READ, WRITE, ADMIN, ("GET", "/healthz")) == [401, 401, 401, 200]
        assert "note" not in await create(served, first["key"])
    async with gateway() as served:
        assert "holdfast keys create --role admin" in (await create(served, role="write"))["note"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"role": "read"}, [200, 403, 403]),
        ({"role": "write"}, [200, 201, 403]),
        ({"role": "admin"}, [200, 201, 200]),
        ({"role": "admin", "user_id": "ada"}, [200, 201, 403]),
    ],
)
async def test_a_role_says_what_a_key_may_do(fields: dict[str, Any], expected: list[int]) -> None:
    async with gateway((), "auth: {required: true}") as served, gateway() as opened:
        admin = (await create(opened, role="admin"))["key"]
        assert await statuses(served, admin, READ) == [401], "a key of another server"
        made = await create(opened, admin, **fields)
        assert await statuses(opened, made["key"], READ, WRITE, ADMIN) == expected


async def test_a_key_of_a_user_reaches_this_user_only() -> None:
    async with gateway() as served:
        await served.rest.given("s", user("Hi."), user="bob")
        admin = (await create(served, role="admin"))["key"]
        key = (await create(served, admin, role="write", user_id="ada"))["key"]
        requests = (("GET", "/v1/sessions/s"), ("GET", "/v1/sessions/s?user_id=bob"), ("DELETE", "/v1/sessions/s"))
        assert await statuses(served, key, *requests) == [404, 404, 404]
        made = await served.http.post("/v1/sessions", json={"id": "mine"}, headers=bearer(key))
        assert made.json()["user_id"] == "ada"


async def test_a_key_ends_when_it_expires_and_within_seconds_when_it_is_revoked() -> None:
    async with gateway() as served:
        admin = (await create(served, role="admin"))["key"]
        made = await create(served, admin, name="laptop", expires="90d", rate=60, max_body=2048, budget=4096)
        assert made["expires_at"] == served.clock.now + 90 * DAY
        listed = (await served.http.get("/v1/keys", headers=bearer(admin))).json()["data"]
        assert made["key"].rpartition("_")[2] not in str(listed)
        assert [row["status"] for row in listed] == ["valid", "valid"]
        served.clock.now += 90 * DAY
        assert await statuses(served, made["key"], READ) == [401]
        other = await create(served, admin)
        assert await statuses(served, other["key"], READ) == [200]
        revoked = await served.http.delete(f"/v1/keys/{other['id']}", headers=bearer(admin))
        assert revoked.json()["status"] == "revoked"
        served.clock.now += 5_000
        assert await statuses(served, other["key"], READ) == [401]


async def test_a_key_creates_no_key_with_more_power() -> None:
    async with gateway() as served:
        first = (await create(served, role="admin"))["key"]
        limits = {"rate": 60, "max_body": 2048, "budget": 4096}
        key = (await create(served, first, role="admin", expires="1d", **limits))["key"]
        for name, most in limits.items():
            await create(served, key, 403, **{name: most + 1})
        await create(served, key, 403, expires="2d")
        made = await create(served, key)
        assert {name: made[name] for name in limits} == limits
        assert made["expires_at"] == served.clock.now + DAY


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_pages_of_keys_end_with_the_last_key_of_the_tenant(limit: int) -> None:
    """Keys of other tenants, whose ids come before, between and after, are neither listed nor counted."""
    tenants = ("acme", "default", "zoo")
    async with gateway() as served:
        made = {name: await served.create_key(tenant=name, role="admin") for name in tenants}
        for name in tenants * 3:
            await served.create_key(tenant=name, role="read")
        cases: list[Any] = [("default", {}, {*tenants}), ("acme", {}, {"acme"}), ("zoo", {}, {"zoo"})]
        cases += [(who, {"tenant": name}, {name}) for name in tenants for who in {name, "default"}]
        for who, query, listed in cases:
            found, page = list[Any](), dict[str, Any](has_more=True)
            while page["has_more"]:
                after = {"after": page["last_id"]} if found else {}
                given = {"limit": limit, **query, **after}
                page = (await served.http.get("/v1/keys", params=given, headers=bearer(made[who]))).json()
                assert page["data"], "a page that was announced is not empty"
                found += page["data"]
            assert {row["tenant"] for row in found} == listed
            assert len({row["id"] for row in found}) == len(found) == 4 * len(listed)


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "x-holdfast-key"])
async def test_a_key_is_taken_from_any_of_three_headers(header: str) -> None:
    async with gateway() as served:
        key = (await create(served, role="admin"))["key"]
        value = f"Bearer {key}" if header == "authorization" else key
        assert (await served.http.get("/v1/sessions", headers={header: value})).status_code == 200
        wrong = value[:-1] + ("a" if value[-1] != "a" else "q")
        refused = await served.http.get("/v1/sessions", headers={header: wrong})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_key_has_a_rate_and_a_size_of_bodies() -> None:
    async with gateway() as served:
        admin = (await create(served, role="admin"))["key"]
        key = (await create(served, admin, rate=3, max_body=300))["key"]
        large = await served.http.post("/v1/sessions", content=b" " * 301, headers=bearer(key))
        assert (large.status_code, "300 bytes" in large.text) == (413, True)
        answers = [await served.http.get("/v1/sessions", headers=bearer(key)) for _ in range(4)]
        assert [one.status_code for one in answers][-1] == 429
        assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
        assert int(answers[-1].headers["retry-after"]) > 0
        assert await statuses(served, admin, READ) == [200]


ISSUER, AUDIENCE = "https://issuer.example", "holdfast"
PRIVATE = ec.generate_private_key(ec.SECP256R1())


def token(key: Any = PRIVATE, algorithm: str = "ES256", **claims: Any) -> str:
    now = int(time.time())
    whole = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 300, "role": "write", **claims}
    return jwt.encode({name: value for name, value in whole.items() if value is not None}, key, algorithm)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, [200, 201, 403]),
        ({"role": "read"}, [200, 403, 403]),
        ({"role": "king"}, [401, 401, 401]),
        ({"aud": "other"}, [401, 401, 401]),
        ({"iss": "https://evil.example"}, [401, 401, 401]),
        ({"exp": 1}, [401, 401, 401]),
        ({"exp": None}, [401, 401, 401]),
        ({"sub": None}, [401, 401, 401]),
        ({"key": ec.generate_private_key(ec.SECP256R1())}, [401, 401, 401]),
        ({"key": "secret-of-the-attacker-0123456789", "algorithm": "HS256"}, [401, 401, 401]),
    ],
)
async def test_a_token_of_the_issuer_names_its_user_and_role(
    tmp_path: Path, given: dict[str, Any], expected: list[int]
) -> None:
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(PRIVATE.public_key()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [{**public, "alg": "ES256", "use": "sig"}]}))
    rules = {"jwks_url": str(tmp_path / "jwks.json"), "issuer": ISSUER, "audience": AUDIENCE, "role_claim": "role"}
    async with gateway((), f"auth: {json.dumps({'jwt': rules})}", clock=lambda: int(time.time() * 1000)) as served:
        text = token(**given)
        assert await statuses(served, text, READ, WRITE, ADMIN) == expected
        if expected[1] == 201:
            rows = (await served.http.get("/v1/sessions", headers=bearer(text))).json()["data"]
            assert [row["user_id"] for row in rows] == ["ada"]


async def test_a_key_of_one_user_does_not_change_the_state_of_all() -> None:
    """Neither through a session of the user, nor directly, one key at a time or several."""
    change, values = {"changes": [{"op": "set", "key": "app:version", "value": 2}]}, {"app:version": 2}
    async with gateway() as served:
        admin = (await create(served, role="admin"))["key"]
        key = (await create(served, admin, user_id="ada", role="write"))["key"]
        assert (await served.http.post("/v1/sessions", json={"id": "s"}, headers=bearer(key))).status_code == 201
        for method, path, body in (
            ("PATCH", "/v1/sessions/s/state", values),
            ("PATCH", "/v1/state?session_id=s", values),
            ("POST", "/v1/state?session_id=s", change),
            ("PATCH", "/v1/state?scope=tenant", values),
            ("POST", "/v1/state?scope=tenant", change),
        ):
            answer = await served.http.request(method, path, json=body, headers=bearer(key))
            assert answer.status_code == 403, (method, path, answer.text)
        assert (await served.http.get("/v1/state?scope=tenant", headers=bearer(admin))).json() == {}


async def test_a_key_that_only_reads_keeps_no_session_alive() -> None:
    """A prompt counts as use of its session, except with such a key."""
    async with gateway((), "sessions: {ttl: 1h}") as served:
        admin = (await create(served, role="admin"))["key"]
        keys = {"used": admin, "read": (await create(served, admin, role="read"))["key"]}
        for name in keys:
            body = {"id": name, "system_messages": "Be brief."}
            await served.http.post("/v1/sessions", json=body, headers=bearer(admin))
        served.clock.now += 50 * 60_000
        for name, key in keys.items():
            made = await served.http.post(f"/v1/sessions/{name}/context", json={}, headers=bearer(key))
            assert made.status_code == 200, made.text
        served.clock.now += 20 * 60_000
        listed = (await served.http.get("/v1/sessions?status=active", headers=bearer(admin))).json()["data"]
        assert [one["id"] for one in listed] == ["used"]


async def test_a_key_of_a_user_recalls_no_memories_of_an_agent() -> None:
    async with gateway() as served:
        await served.native.memories.remember("Clerks say please", agent="clerk")
        admin = (await create(served, role="admin"))["key"]
        found = []
        for key in (admin, (await create(served, admin, user_id="ada"))["key"]):
            query = {"q": "what do clerks say", "agent": "clerk"}
            answer = await served.http.get("/v1/memories", params=query, headers=bearer(key))
            found.append([one["content"] for one in answer.json()["data"]])
        assert found == [["Clerks say please"], []]
