"""`GET /v1/deletions`: who may read it, its pages, and which key deleted something."""

from __future__ import annotations

from typing import Any

from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def delete(served: Served, key: str, *names: str, user: str = "ada") -> list[dict[str, Any]]:
    """Create sessions and delete them; return their receipts."""
    receipts = []
    for name in names:
        body = {"id": name, "user_id": user}
        assert (await served.http.post("/v1/sessions", json=body, headers=bearer(key))).status_code == 201
        answer = await served.http.delete(f"/v1/sessions/{name}?user_id={user}", headers=bearer(key))
        receipts.append(answer.json()["receipt"])
    return receipts


async def read(served: Served, key: str, query: str = "", *, status: int = 200) -> Any:
    """Return the answer to a request for deletions."""
    answer = await served.http.get(f"/v1/deletions{query}", headers=bearer(key))
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_deletions_belong_to_a_tenant_and_need_an_admin_key() -> None:
    async with gateway([], clock=Clock()) as (served, _):
        theirs = await create_stored_key(served.hf, role="admin", tenant="t2")
        await delete(served, await create_stored_key(served.hf), "s")
        assert (await read(served, theirs))["data"] == []
        await delete(served, theirs, "s")
        assert len((await read(served, theirs))["data"]) == 1
        for fields in ({"role": "write"}, {"role": "admin", "user_id": "ada"}):
            await read(served, await create_stored_key(served.hf, **fields), status=403)
