"""State over REST: of a session with shared scopes, of a user, of the tenant; versions, operations, access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.limits import STATE_VALUE_BYTES
from holdfast.server.limits import STATE_CHANGES
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


WRONG: list[tuple[Any, int, str]] = [
    ({}, 400, "changes"),
    ({"changes": []}, 400, "changes"),
    ({"changes": {}}, 400, "changes"),
    ({"change": []}, 400, "change"),
    ({"changes": [1]}, 400, "changes[0]"),
    ({"changes": [{"op": "drop", "key": "a"}]}, 400, "changes[0].op"),
    ({"changes": [{"op": ["set"], "key": "a"}]}, 400, "changes[0].op"),
    ({"changes": [{"op": "set", "key": "a"}]}, 400, "changes[0].value"),
    ({"changes": [{"op": "set", "value": "a"}]}, 400, "changes[0].key"),
    ({"changes": [{"op": "set", "key": 1, "value": 1}]}, 400, "changes[0].key"),
    ({"changes": [{"op": "delete", "key": "a", "value": 1}]}, 400, "value"),
    ({"changes": [{"op": "increment", "key": "a", "by": "1"}]}, 400, "state"),
    ({"changes": [{"op": "increment", "key": "a", "by": True}]}, 400, "state"),
    ({"changes": [{"op": "increment", "key": "a"}, {"op": "increment", "key": "a", "by": "1"}]}, 400, "state"),
    ({"changes": [{"op": "increment", "key": "a", "by": None}, {"op": "increment", "key": "a"}]}, 400, "state"),
    ({"changes": [{"op": "increment", "key": "word"}]}, 400, "state"),
    ({"changes": [{"op": "append", "key": "word", "values": [1]}]}, 400, "state"),
    ({"changes": [{"op": "append", "key": "a", "values": "x"}]}, 400, "changes[0].values"),
    ({"changes": [{"op": "set", "key": "a", "value": "x"}, {"op": "increment", "key": "a"}]}, 400, "state"),
    ({"changes": [{"op": "increment", "key": "a"}, {"op": "append", "key": "a", "values": []}]}, 400, "state"),
    ({"changes": [{"op": "expect", "key": "a", "value": None}]}, 400, "changes"),
    ({"changes": [{"op": "expect", "key": "a", "value": None}] * 2}, 400, "changes[1]"),
    ({"changes": [{"op": "set", "key": "user:", "value": 1}]}, 400, "state"),
    ({"changes": [{"op": "set", "key": "", "value": 1}]}, 400, "state"),
    ({"changes": [{"op": "delete", "key": "a"}] * (STATE_CHANGES + 1)}, 413, "changes"),
    ({"changes": [{"op": "set", "key": "x" * 257, "value": 1}]}, 413, "state"),
    ({"changes": [{"op": "set", "key": "a", "value": "x" * STATE_VALUE_BYTES}]}, 413, "state"),
]


async def test_invalid_operations_are_refused() -> None:
    """With their place; nothing changes."""
    async with state_server() as served:
        await served.http.patch(S, json={"word": "w"})
        for body, status, param in WRONG:
            answer = await served.http.post(S, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), (body, answer.text)
        for path in (ADA, APP):
            for key in ("theme", "temp:x", "user:a" if path == APP else "app:a"):
                told = [
                    await served.http.patch(path, json={key: 1}),
                    await served.http.post(path, json={"changes": [{"op": "delete", "key": key}]}),
                ]
                for answer in told:
                    assert code(answer) == (400, "invalid_request")
                    assert "begin with" in answer.json()["error"]["message"]
        assert (await served.http.get(S)).json() == {"word": "w"}
        assert code(await served.http.get("/v1/sessions/none/state")) == (404, "session_not_found")
        assert (await served.http.get("/v1/state?user_id=" + "x" * 513)).status_code == 400


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


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/state"),
        ("DELETE", "/v1/records"),
        ("PATCH", "/v1/state"),
        ("DELETE", "/v1/state?scope=user"),
        ("DELETE", "/v1/records?scope=session"),
        ("GET", "/v1/state?scope=tenant&user_id=ada"),
    ],
)
async def test_write_without_an_owner_is_refused(method: str, path: str) -> None:
    """A client that loses a parameter must not change what all users share."""
    async with gateway([]) as (served, _):
        assert (await served.http.patch(APP, json={"app:motd": "x"})).status_code == 200
        body = {"app:motd": "y"} if method == "PATCH" else None
        refused = await served.http.request(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "scope")
        assert (await served.http.get("/v1/state")).json() == {"app:motd": "x"}
