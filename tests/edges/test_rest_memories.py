"""Memories over REST: answers, access, and refused requests."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.domain.memory import Owner
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

ANN = Owner("user", "ann")
SECRET = "redaction: {patterns: [{label: canary, regex: 'canary-[0-9]+'}]}\nsecret_guard: {on_secret: block}"


async def post(served: Served, body: dict[str, Any], **headers: str) -> Any:
    return await served.http.post("/v1/memories", json=body, headers=headers)


async def remember(served: Served, content: str = "Ann likes tea", **fields: Any) -> Any:
    response = await post(served, {"content": content, "user_id": "ann", **fields})
    assert response.is_success, response.text
    return response.json()


async def test_list_has_pages_and_filters() -> None:
    async with gateway() as (served, _):
        for number in range(5):
            await remember(
                served,
                f"fact number {number}",
                tags=["odd"] if number % 2 else [],
                agent="desk" if number > 2 else None,
            )
        await remember(served, "a planted fact", origin="web")

        async def contents(**params: Any) -> list[str]:
            found = await served.http.get("/v1/memories", params={"user_id": "ann", **params})
            return [one["content"][-1] for one in found.json()["data"]]

        page = (await served.http.get("/v1/memories", params={"user_id": "ann", "limit": 2})).json()
        assert (page["has_more"], page["last_id"]) == (True, page["data"][1]["id"])
        assert await contents(after=page["last_id"], limit=2) == ["2", "3"]
        assert await contents(tag="odd") == ["1", "3"]
        assert await contents(agent="desk") == ["3", "4"]
        assert await contents(order="desc", limit=1, status="active") == ["4"]
        assert len(await contents(status="quarantined")) == 1
        assert await contents(type="project") == []
        assert sorted(await contents(q="fact", status="active", limit=9)) == ["0", "1", "2", "3", "4"]


async def test_change_can_expect_a_version() -> None:
    async with gateway() as (served, _):
        one = await remember(served)
        place, old = f"/v1/memories/{one['id']}", {"if-match": f'"{one["version"]}"'}
        assert (await served.http.patch(place, json={"importance": 1}, headers=old)).status_code == 200
        stale = await served.http.patch(place, json={"importance": 0}, headers=old)
        assert stale.status_code == 412


async def test_memories_of_a_session_are_forgotten_together() -> None:
    async with gateway() as (served, _):
        for seq in (1, 2):
            await remember(served, f"fact number {seq}", sources=[{"session_id": "s", "seqs": [seq]}])
        where = {"user_id": "ann", "source_session": "s"}
        assert (await served.http.delete("/v1/memories", params={**where, "source_seq": 1})).json()["memories"] == 1
        assert (await served.http.delete("/v1/memories", params=where)).json()["memories"] == 1
        assert (await served.http.delete("/v1/memories", params={"user_id": "ann"})).status_code == 400


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

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"content": " "}, "content"),
    ({"content": "x", "tags": [1]}, "tags[0]"),
    ({"content": "x", "scope": "app", "user_id": "ann"}, "user_id"),
    ({"content": "x", "scope": "agent"}, "agent"),
    ({"content": "x", "sources": [{"seqs": [1]}]}, "sources[0].session_id"),
    ({"content": "x", "sources": [{"session_id": "s", "seqs": [-1]}]}, "sources[0].seqs"),
    ({"content": "x", "user_id": "ann", "sources": [{"session_id": "s", "user_id": "bob"}]}, "sources[0].user_id"),
]


@pytest.mark.parametrize(("body", "param"), WRONG)
async def test_invalid_memories_name_the_parameter(body: dict[str, Any], param: str) -> None:
    async with gateway() as (served, _):
        response = await post(served, body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "query",
    ["?mode=keyword", "?min_score=0.5", "?q=a&after=mem_1", "?q=a&limit=101", "?q=a&min_score=2", "?q=a&mode=vector", "?scope=agent",
     "?status=odd", "?type=odd", "?q=", "?limit=0", "?who=me"],
)  # fmt: skip
async def test_invalid_lists_are_refused(query: str) -> None:
    async with gateway() as (served, _):
        assert (await served.http.get(f"/v1/memories{query}")).status_code == 400


async def test_secrets_are_refused_and_not_quoted() -> None:
    async with gateway((), SECRET) as (served, _):
        response = await post(served, {"content": "the code is canary-77"})
        assert (response.status_code, response.json()["error"]["code"]) == (422, "secret_blocked")
        assert "canary-77" not in response.text
        one = await remember(served)
        changed = await served.http.patch(f"/v1/memories/{one['id']}", json={"content": "the code is canary-77"})
        assert changed.status_code == 422
        assert (await served.hf.memories.page(ANN)).total == 1


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
