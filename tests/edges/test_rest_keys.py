"""API keys over REST: create, list and revoke them, and what a caller may not do with the keys of others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.access import parse_key_id, to_principal
from holdfast.limits import PAGE
from holdfast.server.key_cache import KEY_CACHE_MS
from holdfast.server.sign_in import SignIns
from tests.clocks import START, Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

DAY = 86_400_000


async def ask(
    served: Served, method: str, path: str = "", *, key: str | None = None, status: int = 200, **body: Any
) -> Any:
    """Send a request about keys, check the status of its answer, and return the answer."""
    headers = {} if key is None else bearer(key)
    answer = await served.http.request(method, f"/v1/keys{path}", json=body or None, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def create(served: Served, key: str | None = None, *, status: int = 201, **body: Any) -> Any:
    """Create a key."""
    return await ask(served, "POST", key=key, status=status, **{"name": "", **body})


async def test_a_key_is_created_listed_and_revoked() -> None:
    """Its text is in the first answer only, and gives what it says."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        admin = await create_stored_key(served.hf, role="admin")
        given: dict[str, Any] = {"name": "laptop", "user_id": "ada", "role": "read", "session_mode": "delta"}
        limits = {"rate": 60, "max_body": 2048, "budget": 4096}
        answer = await create(served, admin, expires="90d", **given, **limits)
        text = answer.pop("key")
        assert {name: answer[name] for name in (*given, *limits)} == {**given, **limits}
        assert (answer["expires_at"], answer["tenant"], answer["status"]) == (START + 90 * DAY, "default", "valid")
        assert answer["id"] == parse_key_id(text)
        assert "note" not in answer
        listed = await ask(served, "GET", key=admin)
        assert [one for one in listed["data"] if one["id"] == answer["id"]] == [answer]
        assert text.rpartition("_")[2] not in str(listed)
        assert (await served.http.get("/v1/sessions", headers=bearer(text))).status_code == 200
        assert (await served.http.post("/v1/sessions", json={}, headers=bearer(text))).status_code == 403
        clock.now += 5
        revoked = await ask(served, "DELETE", f"/{answer['id']}", key=admin)
        assert (revoked["status"], revoked["revoked_at"]) == ("revoked", clock.now)
        clock.now += KEY_CACHE_MS
        assert (await served.http.get("/v1/sessions", headers=bearer(text))).status_code == 401
        assert (await ask(served, "DELETE", f"/{answer['id']}", key=admin))["revoked_at"] == revoked["revoked_at"]


async def test_the_first_key_closes_the_server_at_once() -> None:
    """The answer says so, and warns if no one can manage keys afterwards."""
    async with gateway([], clock=Clock()) as (served, _):
        assert (await ask(served, "GET"))["data"] == []
        answer = await create(served, role="admin")
        assert answer["note"] == "This is the first key of the server. Every request needs a key from now on."
        await ask(served, "GET", status=401)
        assert "note" not in await create(served, answer["key"])
    async with gateway([], clock=Clock()) as (served, _):
        assert "holdfast keys create --role admin" in (await create(served))["note"]
    async with gateway([], "auth: {required: false}", clock=Clock()) as (served, _):
        assert "note" not in await create(served)
        await ask(served, "GET")


async def test_keys_of_a_tenant_are_its_own() -> None:
    """An admin of a tenant sees no keys of another one, and the server's own admin sees all."""
    async with gateway([], clock=Clock()) as (served, _):
        own, theirs = (
            await create_stored_key(served.hf, role="admin"),
            await create_stored_key(served.hf, role="admin", tenant="t2"),
        )
        mine = await create(served, own)
        await create(served, theirs, tenant="default", status=403)
        await ask(served, "GET", "?tenant=default", key=theirs, status=403)
        refused = await ask(served, "DELETE", f"/{mine['id']}", key=theirs, status=404)
        assert refused["error"]["code"] == "key_not_found"
        made_there = await create(served, theirs)
        assert made_there["tenant"] == "t2"
        listed = await ask(served, "GET", key=theirs)
        assert {one["id"] for one in listed["data"]} == {parse_key_id(theirs), made_there["id"]}
        assert len((await ask(served, "GET", key=own))["data"]) == 4
        assert len((await ask(served, "GET", "?tenant=t2", key=own))["data"]) == 2
        assert (await create(served, own, tenant="t3"))["tenant"] == "t3"
        assert (await ask(served, "DELETE", f"/{made_there['id']}", key=own))["status"] == "revoked"
        kept = {one["id"]: one["status"] for one in (await ask(served, "GET", key=own))["data"]}
        assert kept[mine["id"]] == "valid"


@pytest.mark.parametrize("fields", [{"role": "write"}, {"role": "read"}, {"role": "admin", "user_id": "ada"}])
async def test_only_an_admin_of_all_users_manages_keys(fields: dict[str, Any]) -> None:
    async with gateway([], clock=Clock()) as (served, _):
        key = await create_stored_key(served.hf, **fields)
        await ask(served, "GET", key=key, status=403)
        await create(served, key, status=403)
        await ask(served, "DELETE", f"/{parse_key_id(key)}", key=key, status=403)
        assert [one.revoked_at for one in await served.hf.store.keys()] == [None]


async def test_a_key_creates_no_key_with_more_power() -> None:
    """Values that are not given are those of the caller's own key."""
    async with gateway([], clock=Clock()) as (served, _):
        limits = {"rate": 60, "max_body": 2048, "budget": 4096}
        key = await create_stored_key(served.hf, role="admin", expires_at=START + DAY, **limits)
        for name, most in limits.items():
            await create(served, key, status=403, **{name: most + 1})
            assert (await create(served, key, status=201, **{name: most - 1}))[name] == most - 1
        await create(served, key, expires=DAY + 1, status=403)
        assert (await create(served, key, expires="12h"))["expires_at"] == START + DAY // 2
        answer = await create(served, key)
        assert {name: answer[name] for name in (*limits, "expires_at")} == {**limits, "expires_at": START + DAY}


async def test_lists_are_read_page_by_page() -> None:
    async with gateway([], clock=Clock()) as (served, _):
        admin = await create_stored_key(served.hf, role="admin")
        names = sorted([str(parse_key_id(admin)), *[(await create(served, admin))["id"] for _ in range(4)]])
        found, after = [], ""
        while True:
            page = await ask(served, "GET", f"?limit=2{after}", key=admin)
            found += [one["id"] for one in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert found == names
        assert [len(page["data"]), page["last_id"]] == [1, names[-1]]
        for wrong in ("0", str(PAGE + 1), "x"):
            await ask(served, "GET", f"?limit={wrong}", key=admin, status=400)


@pytest.mark.parametrize(
    "body",
    [
        {"role": "king"},
        {"expires": "soon"},
        {"expires": 0},
        {"expires": -1},
        {"expires": "0s"},
        {"expires": "36501d"},
        {"expires": 10**18},
        {"expires": 1.5},
        {"rate": 0},
        {"rate": 10**18},
        {"max_body": -1},
        {"budget": "many"},
        {"tenant": ""},
        {"tenant": ".."},
        {"user_id": ""},
        {"user_id": "x" * 513},
        {"session_mode": "all"},
        {"colour": "red"},
    ],
)
async def test_invalid_keys_are_refused(body: dict[str, Any]) -> None:
    """With the field that is wrong; nothing is stored."""
    async with gateway([], clock=Clock()) as (served, _):
        answer = await create(served, status=400, **body)
        assert next(iter(body)) in answer["error"]["message"]
        assert list(await served.hf.store.keys()) == []
        assert (await create(served, status=413, name="x" * 513))["error"]["param"] == "name"


async def test_revoking_a_key_ends_its_sign_ins() -> None:
    async with gateway([], clock=Clock()) as (served, _):
        admin = await create_stored_key(served.hf, role="admin")
        answer = await create(served, admin, role="read")
        stored = await served.hf.store.get_key(answer["id"])
        assert stored is not None
        text = await SignIns(served.hf).create(to_principal(stored))
        assert await SignIns(served.hf).find(text) is not None
        await ask(served, "DELETE", f"/{answer['id']}", key=admin)
        assert await SignIns(served.hf).find(text) is None
