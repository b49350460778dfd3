"""`GET /v1/deletions`: who may read it, its pages, and which key deleted something."""

from __future__ import annotations

from typing import Any

from holdfast.access import parse_key_id
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


async def test_deletions_are_listed_with_their_receipts() -> None:
    """Page by page, with the key that deleted, and found by ids that the answer does not contain."""
    clock = Clock()
    async with gateway([], clock=clock) as (served, _):
        admin, writer = await create_stored_key(served.hf, role="admin"), await create_stored_key(served.hf)
        receipts = await delete(served, writer, "hidden-one", "hidden-two")
        clock.now += 1
        answer = await served.http.post("/v1/sessions", json={"user_id": "bob"}, headers=bearer(writer))
        assert answer.status_code == 201
        assert (await served.http.delete("/v1/users/bob", headers=bearer(admin))).status_code == 200
        page = await read(served, admin)
        assert [one["kind"] for one in page["data"]] == ["user", "session", "session"]
        assert [one["key_id"] for one in page["data"]] == [parse_key_id(key) for key in (admin, writer, writer)]
        assert [one["receipt"] for one in page["data"][1:]] == receipts
        assert page["data"][0]["deleted_at"] == clock.now
        assert "hidden" not in str(page)
        assert "bob" not in str(page)
        first = await read(served, admin, "?limit=2")
        rest = await read(served, admin, f"?limit=2&after={first['last_id']}")
        assert (first["data"] + rest["data"], first["has_more"], rest["has_more"]) == (page["data"], True, False)
        assert (await read(served, admin, "?user_id=bob"))["data"] == page["data"][:1]
        found = await read(served, admin, "?user_id=ada&session_id=hidden-one")
        assert len(found["data"]) == 1
        assert (await read(served, admin, "?user_id=ada&limit=1"))["has_more"]
        assert (await read(served, admin, "?user_id=nobody"))["data"] == []
        await read(served, admin, "?session_id=hidden-one", status=400)
        await read(served, admin, "?after=nonsense", status=400)


async def test_deletions_belong_to_a_tenant_and_need_an_admin_key() -> None:
    async with gateway([], clock=Clock()) as (served, _):
        theirs = await create_stored_key(served.hf, role="admin", tenant="t2")
        await delete(served, await create_stored_key(served.hf), "s")
        assert (await read(served, theirs))["data"] == []
        await delete(served, theirs, "s")
        assert len((await read(served, theirs))["data"]) == 1
        for fields in ({"role": "write"}, {"role": "admin", "user_id": "ada"}):
            await read(served, await create_stored_key(served.hf, **fields), status=403)
