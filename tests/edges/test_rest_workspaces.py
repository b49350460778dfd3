"""Workspaces over REST: history, checkpoint, access, and answers when there is none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

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


async def test_unknown_agents_and_path_tricks_are_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        for name in ("nobody", "..%2F..%2Fetc", "%2e%2e", "@acme", "x" * 600):
            for method, path in (("GET", "history"), ("POST", "checkpoint")):
                url = f"/v1/workspaces/{name}/{path}"
                response = await served.http.request(method, url, json={} if method == "POST" else None)
                assert response.status_code in (400, 404), response.text
        assert not (tmp_path / "ws").exists()
        made_ = await served.http.post("/v1/workspaces/a%2Fb/checkpoint", json={})
        assert made_.json()["agent"] == "a/b"
        assert [path.name.partition("~")[0] for path in (tmp_path / "ws").iterdir()] == ["a-b"]


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


async def test_disabled_workspaces_are_reported() -> None:
    async with gateway(lambda _: "ok") as (served, _):
        assert code(await served.http.get(f"{WRITER}/history")) == (404, "workspace_not_found")
        response = await served.http.post(f"{WRITER}/checkpoint", json={})
        assert "enable hooks.workspace_git" in response.text


async def test_missing_git_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(tmp_path) as served:
        monkeypatch.setenv("PATH", "")
        response = await served.http.post(f"{WRITER}/checkpoint", json={})
        assert code(response) == (503, "git_missing")
        assert "install git" in response.text
