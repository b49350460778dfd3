"""State over REST: of a session with shared scopes, of a user, of the tenant; versions, operations, access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.edges.access_kit import auth
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

S = "/v1/state?session_id=s"
ADA = "/v1/state?user_id=ada"
APP = "/v1/state?scope=tenant"


@asynccontextmanager
async def state_server(*config: str) -> AsyncIterator[Served]:
    """A server with ada's session `s`."""
    async with gateway([], *config) as (served, _):
        await served.hf.session("s", user_id="ada")
        yield served


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_users_key_cannot_write_app_state(tmp_path: Path) -> None:
    """A key of one user reads `app:` keys and writes none; others do."""
    async with state_server(auth(tmp_path)) as served:
        http, hf = served.http, served.hf
        ada, everybody = bearer(await create_stored_key(hf, user_id="ada")), bearer(await create_stored_key(hf))
        boss = bearer(await create_stored_key(hf, role="admin", user_id="bob"))
        refused = [
            await http.patch(S, json={"a": 1, "app:motd": "x"}, headers=ada),
            await http.post(S, json={"changes": [{"op": "set", "key": "app:motd", "value": 1}]}, headers=ada),
            await http.post("/v1/sessions", json={"id": "t", "state": {"app:motd": "x"}}, headers=ada),
            await http.patch("/v1/sessions/s", json={"state": {"app:motd": "x"}}, headers=ada),
            await http.patch(APP, json={"app:motd": "x"}, headers=ada),
            await http.delete(APP, headers=ada),
        ]
        for answer in refused:
            assert code(answer) == (403, "forbidden")
            assert "app state" in answer.json()["error"]["message"]
        assert (await http.get(S, headers=ada)).json() == {}
        assert (await http.get("/v1/sessions/t", headers=ada)).status_code == 404
        for headers, word in ((everybody, "all"), (boss, "boss")):
            assert (await http.patch(APP, json={"app:motd": word}, headers=headers)).status_code == 200
            assert (await http.get(APP, headers=ada)).json() == {"app:motd": word}
            assert (await http.get(S, headers=ada)).json() == {"app:motd": word}
        new = {"id": "t", "user_id": "ada", "state": {"app:motd": "new", "user:a": 1, "own": 1, "temp:x": 1}}
        assert (await http.post("/v1/sessions", json=new, headers=everybody)).json()["state"] == {"own": 1}
        changed = await http.patch("/v1/sessions/t", json={"state": {"user:a": 2, "temp:x": 1}}, headers=ada)
        assert changed.status_code == 200
        assert (await http.get("/v1/sessions/t/state", headers=ada)).json() == {
            "app:motd": "new",
            "user:a": 2,
            "own": 1,
        }


async def test_tenants_do_not_share_state(tmp_path: Path) -> None:
    """Neither of users with the same name nor of the app."""
    async with state_server(auth(tmp_path)) as served:
        http, hf = served.http, served.hf
        here, there = bearer(await create_stored_key(hf)), bearer(await create_stored_key(hf, tenant="t2"))
        await http.patch(ADA, json={"user:a": "here"}, headers=here)
        await http.patch(APP, json={"app:a": "here"}, headers=here)
        for path, key in ((ADA, "user:a"), (APP, "app:a")):
            assert (await http.get(path, headers=there)).json() == {}
            assert (await http.patch(path, json={key: "there"}, headers=there)).json() == {key: "there"}
            assert (await http.get(path, headers=here)).json() == {key: "here"}
