"""API keys over REST: create, list and revoke them, and what a caller may not do with the keys of others."""

from __future__ import annotations

from typing import Any

from holdfast.access import parse_key_id
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
