"""Workspaces over REST: history, checkpoint, access, and answers when there is none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.workspace import Workspace
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway
from tests.service.workspace_kit import NEEDS_GIT

pytestmark = NEEDS_GIT

WRITER = "/v1/workspaces/writer"


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[Served]:
    hooks = json.dumps({"workspace_git": {"path": str(folder / "ws")}})
    async with gateway(lambda _: "ok", f"hooks: {hooks}", "agents: {writer: {}, 'a/b': {}}") as (served, _):
        yield served


def of(served: Served, agent: str = "writer", tenant: str = "default") -> Workspace:
    assert served.hf.workspaces is not None
    return served.hf.workspaces.workspace(tenant, agent)


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_tenants_have_separate_workspaces_and_users_have_none(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        for tenant in ("default", "acme"):
            await of(served, tenant=tenant).write("a.md", f"{tenant}'s")
            await of(served, tenant=tenant).checkpoint(tenant)
        for tenant in ("default", "acme"):
            key = bearer(await create_stored_key(served.hf, role="read", tenant=tenant))
            response = await served.http.get(f"{WRITER}/history?diff=true", headers=key)
            assert response.json()["commits"][0]["subject"] == f"checkpoint: {tenant}"
            assert f"+{tenant}'s" in response.json()["diff"]
            assert (await served.http.post(f"{WRITER}/checkpoint", headers=key, json={})).status_code == 403
            of_one = bearer(await create_stored_key(served.hf, role="admin", tenant=tenant, user_id="ada"))
            for method, path in (("GET", "history"), ("POST", "checkpoint")):
                response = await served.http.request(method, f"{WRITER}/{path}", headers=of_one)
                assert code(response) == (403, "forbidden")
