"""State over REST: of a session with shared scopes, of a user, of the tenant; versions, operations, access."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.limits import STATE_VALUE_BYTES
from holdfast.server.limits import STATE_CHANGES
from tests.edges.access_kit import auth
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway

S = "/v1/state?session_id=s"
SHORT = "/v1/sessions/s/state"
"""The same state; this route reads and changes it only by keys."""
ADA = "/v1/state?user_id=ada"
APP = "/v1/state?scope=tenant"


@asynccontextmanager
async def state_server(*config: str) -> AsyncIterator[Served]:
    """A server with ada's session `s`."""
    async with gateway([], *config) as (served, _):
        await served.hf.session("s", user_id="ada")
        yield served


def version(response: Any) -> str:
    return str(response.headers["etag"])


def code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_state_is_one_flat_object() -> None:
    """Keys have their prefix; null deletes; `temp:` is accepted and dropped; the answer is the new state."""
    async with state_server() as served:
        http = served.http
        assert (await http.get(S)).json() == {}
        given = {"topic": "x", "user:theme": "dark", "app:version": [2], "temp:x": 1}
        answer = await http.patch(SHORT, json=given)
        kept = {key: value for key, value in given.items() if key != "temp:x"}
        assert (answer.status_code, answer.json()) == (200, kept)
        assert (await http.get(f"{SHORT}?user_id=ada")).json() == kept
        assert (await http.patch(S, json={"topic": None, "user:theme": None, "n": 0})).json() == {
            "n": 0,
            "app:version": [2],
        }
        assert (await http.get(ADA)).json() == {}
        assert (await http.get(APP)).json() == {"app:version": [2]}
        assert (await http.patch(S, json={"temp:only": 1})).json() == {"n": 0, "app:version": [2]}
        assert (await http.patch(S, json={})).status_code == 200
        short = (await http.get("/sessions/s")).json()
        whole = (await http.get("/v1/sessions/s")).json()
        assert (short["state"], whole["state"]) == ({"n": 0, "app:version": [2]}, {"n": 0})


async def test_session_version_guards_its_state() -> None:
    """The `ETag` is that of the messages; another one in `If-Match` is a 412, and nothing is written in any scope."""
    async with state_server() as served:
        http = served.http
        first = version(await http.patch(S, json={"a": 1}))
        await http.post("/v1/sessions/s/messages", json={"messages": [{"role": "user", "content": "hi"}]})
        for body in ({"a": 2}, {"user:a": 2}, {"user:a": 2, "app:a": 2}, {"temp:a": 2}):
            assert code(await http.patch(S, json=body, headers={"if-match": first})) == (412, "stale_session")
        now = await http.get(S)
        assert now.json() == {"a": 1}
        after = await http.patch(S, json={"user:a": 2, "a": 2}, headers={"if-match": version(now)})
        assert after.json() == {"a": 2, "user:a": 2}
        assert version(after) != version(now)
        assert version(after).strip('"') == str((await http.get("/v1/sessions/s")).json()["version"])
        assert (await http.patch(S, json={"user:a": 3}, headers={"if-match": version(after)})).json()["user:a"] == 3
        assert code(await http.patch(S, json={"a": 3}, headers={"if-match": "x"})) == (400, "invalid_request")


@pytest.mark.parametrize(("path", "prefix"), [(ADA, "user:"), (APP, "app:")])
async def test_each_scope_has_its_own_version(path: str, prefix: str) -> None:
    """Another one in `If-Match` is a 412 with every method, and nothing is written."""
    async with state_server() as served:
        http, key = served.http, f"{prefix}a"
        none = await http.get(path)
        assert (none.json(), version(none)) == ({}, '"0"')
        one = await http.patch(path, json={key: 1, f"{prefix}b": 1}, headers={"if-match": '"0"'})
        assert (one.json(), version(one)) == ({key: 1, f"{prefix}b": 1}, '"1"')
        stale = {"if-match": '"0"'}
        changes = {"changes": [{"op": "increment", "key": key}]}
        for refused in (
            await http.patch(path, json={key: 2}, headers=stale),
            await http.post(path, json=changes, headers=stale),
            await http.delete(path, headers=stale),
        ):
            assert code(refused) == (412, "stale_state")
        two = await http.post(path, json=changes, headers={"if-match": version(one)})
        assert two.json() == {"object": "state.change", "version": 2, "values": {key: 2}}
        await http.patch(S, json={key: 3})
        assert version(await http.get(path)) == '"3"'
        gone = await http.delete(path, headers={"if-match": '"3"'})
        user = "ada" if path == ADA else None
        assert gone.json() == {"object": "state", "user_id": user, "deleted": True, "keys": 2}
        left = await http.get(path)
        assert (left.json(), int(version(left).strip('"')) > 3) == ({}, True)
        await http.patch(path, json={key: 1})
        assert (await http.delete(path)).json()["keys"] == 1
        assert (await http.delete(path)).json()["keys"] == 0


async def test_operations_are_applied_in_order() -> None:
    """Also several of one key; the answer is the result, and a refused request changes nothing."""
    async with state_server() as served:
        http = served.http
        changes = [
            {"op": "set", "key": "n", "value": 1},
            {"op": "increment", "key": "n", "by": 2.5},
            {"op": "increment", "key": "user:n"},
            {"op": "append", "key": "app:l", "values": [1, "b"]},
            {"op": "append", "key": "app:l", "values": [None]},
            {"op": "set", "key": "gone", "value": 1},
            {"op": "delete", "key": "gone"},
            {"op": "increment", "key": "temp:n"},
        ]
        answer = await http.post(S, json={"changes": changes})
        values = {"n": 3.5, "user:n": 1, "app:l": [1, "b", None], "gone": None, "temp:n": None}
        assert answer.json()["values"] == values
        assert answer.json()["version"] == (await http.get("/v1/sessions/s")).json()["version"]
        before = (await http.get(S)).json()
        expected = {"changes": [{"op": "expect", "key": "n", "value": 3.5}, {"op": "set", "key": "user:m", "value": 1}]}
        assert (await http.post(S, json=expected)).json()["values"] == {"user:m": 1}
        expected["changes"][0]["value"] = 3
        expected["changes"][1]["value"] = 2
        assert code(await http.post(S, json=expected)) == (412, "stale_state")
        none = [{"op": "expect", "key": "user:m", "value": None}, {"op": "delete", "key": "user:m"}]
        assert code(await http.post(ADA, json={"changes": none})) == (412, "stale_state")
        assert (await http.get(S)).json() == before | {"user:m": 1}


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


async def test_concurrent_writers_lose_nothing() -> None:
    """Increments over all routes add up; of several writers that expect the same value one succeeds."""
    async with state_server() as served:
        statuses: list[int] = []

        async def work(at: int) -> None:
            path = (S, ADA)[at % 2]
            changes = [{"op": "increment", "key": "user:n"}, {"op": "set", "key": f"user:k{at}", "value": at}]
            assert (await served.http.post(path, json={"changes": changes})).status_code == 200
            race = [{"op": "expect", "key": "user:won", "value": None}, {"op": "set", "key": "user:won", "value": at}]
            statuses.append((await served.http.post(path, json={"changes": race})).status_code)

        async with anyio.create_task_group() as group:
            for at in range(20):
                group.start_soon(work, at)
        found = (await served.http.get(ADA)).json()
        assert found["user:n"] == 20
        assert {found[f"user:k{at}"] for at in range(20)} == set(range(20))
        assert sorted(statuses) == [200] + [412] * 19


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


async def test_secrets_in_state_are_redacted() -> None:
    """Before they are stored, on every route."""
    secret = "sk-" + "a1B2c3D4" * 6
    async with state_server("redaction: {enabled: true}") as served:
        http = served.http
        append = {"changes": [{"op": "append", "key": "user:l", "values": [secret]}]}
        answers = [
            await http.patch(S, json={"a": secret, "user:a": secret}),
            await http.post(S, json=append),
            await http.patch(ADA, json={"user:b": secret}),
            await http.post(ADA, json=append),
            await http.patch(APP, json={"app:b": {"c": [secret]}}),
            await http.get(S),
        ]
        for answer in answers:
            assert answer.status_code == 200
            assert secret not in answer.text


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
