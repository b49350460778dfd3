"""Memories over REST: answers, access, and refused requests."""

from __future__ import annotations

from typing import Any

from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def post(served: Served, body: dict[str, Any], **headers: str) -> Any:
    return await served.http.post("/v1/memories", json=body, headers=headers)


# -- access --------------------------------------------------------------------


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
