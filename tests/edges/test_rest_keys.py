"""API keys over REST: create, list and revoke them, and what a caller may not do with the keys of others."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.access import parse_key_id
from holdfast.limits import PAGE
from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


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
