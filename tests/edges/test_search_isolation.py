"""Search isolation: two users and two tenants with the same words; no caller finds another's messages with any
parameter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.holdfast import Holdfast
from tests.edges.access_kit import server
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served

WORDS = "the gate code of the harbour is"
OWN = {("default", "ada"): "1111", ("default", "bob"): "2222", ("t2", "ada"): "3333"}
"""What each of them has said, by tenant and user."""


async def store_conversations(hf: Holdfast, user: str, secret: str) -> None:
    """Store conversations of a user, under the same session and agent names as the others."""
    log = [{"role": "user", "content": f"{WORDS} {secret}"}, {"role": "assistant", "content": f"so it is {secret}"}]
    await hf.import_({"messages": log}, session_id="same", user_id=user)
    await hf.import_({"messages": log}, session_id=f"only-{user}-{secret}", user_id=user)
    assert hf.engine.index is not None
    await hf.engine.index.settled()


@asynccontextmanager
async def run_shared_server(folder: Path) -> AsyncIterator[Served]:
    """Run a server with the conversations of all users."""
    async with server(folder) as served:
        for (tenant, user), secret in OWN.items():
            async with served.hf.serve_tenant(tenant) as hf:
                await store_conversations(hf, user, secret)
        yield served


async def test_stale_index_does_not_show_removed_messages(tmp_path: Path) -> None:
    """Deleted, moved or erased messages disappear at once, whatever the index still contains."""
    async with run_shared_server(tmp_path) as served:
        ada, bob = (
            bearer(await create_stored_key(served.hf, user_id="ada")),
            bearer(await create_stored_key(served.hf, user_id="bob")),
        )
        admin = bearer(await create_stored_key(served.hf, role="admin"))
        target = {"user_id": "bob"}
        moved = await served.http.post("/v1/sessions/only-ada-1111/move?user_id=ada", json=target, headers=admin)
        assert moved.status_code == 200, moved.text
        shown = (await served.http.get("/v1/search", params={"q": WORDS, "limit": 100}, headers=ada)).json()["data"]
        assert {one["session_id"] for one in shown} == {"same"}
        assert served.hf.engine.index is not None
        await served.hf.engine.index.settled()
        shown = (await served.http.get("/v1/search", params={"q": WORDS, "limit": 100}, headers=bob)).json()["data"]
        assert "only-ada-1111" in {one["session_id"] for one in shown}
        assert (await served.http.delete("/v1/sessions/same", headers=ada)).status_code == 200
        left = (await served.http.get("/v1/search", params={"q": WORDS}, headers=ada)).json()["data"]
        assert left == []
