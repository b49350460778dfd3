"""Memories over REST: answers, access, and refused requests."""

from __future__ import annotations

from typing import Any

from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def post(served: Served, body: dict[str, Any], **headers: str) -> Any:
    return await served.http.post("/v1/memories", json=body, headers=headers)


async def remember(served: Served, content: str = "Ann likes tea", **fields: Any) -> Any:
    response = await post(served, {"content": content, "user_id": "ann", **fields})
    assert response.is_success, response.text
    return response.json()


# -- access --------------------------------------------------------------------


async def test_users_key_reads_user_and_app_but_writes_only_user_memories() -> None:
    async with gateway() as (served, _):
        admin = bearer(await create_stored_key(served.hf, role="admin"))
        ann = bearer(await create_stored_key(served.hf, user_id="ann"))
        memories = served.hf.memories
        mine = (await memories.remember("Tea for Ann", user_id="ann")).memory
        theirs = (await memories.remember("Tea for Bob", user_id="bob")).memory
        agents = (await memories.remember("Tea of the desk", agent="desk")).memory
        shared = (await memories.remember("Tea for all", app=True)).memory
        http = served.http
        seen = await http.get("/v1/memories", params={"q": "tea", "agent": "desk", "limit": 9}, headers=ann)
        assert {one["id"] for one in seen.json()["data"]} == {mine.id, shared.id}
        for query in ({"user_id": "bob"}, {"user_id": "bob", "q": "tea"}):
            assert (await http.get("/v1/memories", params=query, headers=ann)).status_code == 404
        assert (
            await http.get("/v1/memories", params={"scope": "agent", "agent": "desk"}, headers=ann)
        ).status_code == 403
        for hidden in (theirs, agents):
            for method, path, body in _list_requests(hidden.id):
                response = await http.request(method, path, json=body, headers=ann)
                assert response.status_code == 404, (method, path)
                assert "Tea" not in response.text
        assert (await http.get(f"/v1/memories/{shared.id}", headers=ann)).status_code == 200
        for method, path, body in _list_requests(shared.id)[1:]:
            assert (await http.request(method, path, json=body, headers=ann)).status_code == 403, (method, path)
        for scope in ({"scope": "app"}, {"scope": "agent", "agent": "desk"}):
            assert (await post(served, {"content": "x y", **scope}, **ann)).status_code == 403
        assert (await post(served, {"content": "x y", "user_id": "bob"}, **ann)).status_code == 404
        assert (await post(served, {"content": "x y"}, **ann)).json()["user_id"] == "ann"
        where = {"source_session": "s", "user_id": "bob"}
        assert (await http.delete("/v1/memories", params=where, headers=ann)).status_code == 404
        assert (await http.get(f"/v1/memories/{theirs.id}", headers=admin)).status_code == 200


def _list_requests(memory_id: str) -> list[tuple[str, str, Any]]:
    place = f"/v1/memories/{memory_id}"
    return [
        ("GET", place, None),
        ("PATCH", place, {"importance": 1}),
        ("POST", f"{place}/review", {"decision": "accept"}),
        ("DELETE", place, None),
    ]


async def test_users_key_does_not_see_other_users_sources() -> None:
    async with gateway() as (served, _):
        ann = bearer(await create_stored_key(served.hf, user_id="ann"))
        source = {"session_id": "bobs-session", "user_id": "bob"}
        admin = bearer(await create_stored_key(served.hf, role="admin"))
        await post(served, {"content": "Tea for all", "scope": "app", "sources": [source]}, **admin)
        told = await served.http.get("/v1/memories?scope=app", headers=ann)
        assert "Tea for all" in told.text
        assert "bobs-session" not in told.text


# -- refused requests ------------------------------------------------------------


async def test_callers_role_decides_the_origin_of_a_memory() -> None:
    """A program's key cannot claim the user as origin; a user's or an admin's key can, and each can state a lower
    one.
    """
    async with gateway() as (served, _):
        keys = {
            "admin": bearer(await create_stored_key(served.hf, role="admin")),
            "program": bearer(await create_stored_key(served.hf, role="write")),
            "ann": bearer(await create_stored_key(served.hf, user_id="ann", role="write")),
        }
        found = {}
        for who, headers in keys.items():
            for stated, content in (
                (None, "Tea comes from Assam"),
                ("user", "The gate code is 4711"),
                ("tool", "Parking is behind the mill"),
            ):
                body: dict[str, Any] = {"content": content, "user_id": "ann" if who == "ann" else f"user-{who}"}
                body |= {"origin": stated} if stated else {}
                reply = await served.http.post("/v1/memories", json=body, headers=headers)
                assert reply.status_code == 201, reply.text
                found[who, stated] = reply.json()["origin"]
        assert {stated: found["admin", stated] for stated in (None, "user", "tool")} == {
            None: "user",
            "user": "user",
            "tool": "tool",
        }
        assert {stated: found["ann", stated] for stated in (None, "user", "tool")} == {
            None: "user",
            "user": "user",
            "tool": "tool",
        }
        assert {stated: found["program", stated] for stated in (None, "user", "tool")} == {
            None: "assistant",
            "user": "assistant",
            "tool": "tool",
        }
