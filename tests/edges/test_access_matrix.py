"""Authorization: every route for every kind of caller against a table, and other users' objects in every parameter."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from starlette.routing import Route

from holdfast.config.gateway import Inspector
from holdfast.server.app import make_app
from holdfast.server.http import Call
from holdfast.server.permissions import REST
from tests.edges.access_kit import (
    CHAT,
    LOG,
    OWN,
    PERMISSIONS,
    QUERIES,
    ROUTES,
    TURN,
    append_response,
    ask,
    callers,
    create_objects,
    load_everything,
    normalize_session_name,
    server,
)

IN, NO_KEY, NO_ROLE, NOT_THERE = "in", "401", "403", "404"
ALL: Final = dict.fromkeys(("shared", "shared write"), IN)
NOT_ONE: Final = dict.fromkeys(("shared", "shared write", "shared admin"), NO_ROLE)
"""Who is one user sees nothing that has something of all of them."""
WRITING: Final = ("write", "shared write", "tenant", "admin", "shared admin", "server")
UNKNOWN: Final = {"public": IN, **dict.fromkeys(("read", "shared", *WRITING), NO_KEY)}
READER: Final = {"public": IN, "read": IN, "shared": IN, **dict.fromkeys(WRITING, NO_ROLE)}
READER_OF_ONE: Final = {**READER, **NOT_ONE}
WRITER: Final = {
    "public": IN,
    "read": IN,
    "write": IN,
    "tenant": IN,
    **ALL,
    **dict.fromkeys(("admin", "shared admin", "server"), NO_ROLE),
}
WRITER_OF_ONE: Final = {**WRITER, "tenant": NO_ROLE, **NOT_ONE}
"""Who is one user changes nothing that all of them share."""
EXPECTED: dict[str, dict[str, str]] = {
    "nobody": UNKNOWN,
    "bad": UNKNOWN,
    "malformed": UNKNOWN,
    "expired": UNKNOWN,
    "revoked": UNKNOWN,
    "forged": UNKNOWN,
    "read": READER,
    "read of ada": READER_OF_ONE,
    "reading token": READER_OF_ONE,
    "write": WRITER,
    "write of ada": WRITER_OF_ONE,
    "token": WRITER_OF_ONE,
    "admin": {**ALL, **dict.fromkeys(("public", "read", "write", "tenant", "admin", "shared admin", "server"), IN)},
    # An admin of one user is not an admin of the server.
    "admin of ada": {"public": IN, "read": IN, "write": IN, "tenant": IN, "admin": IN, "server": NO_ROLE, **NOT_ONE},
    "bob": {
        "public": IN,
        "read": NOT_THERE,
        "write": NOT_THERE,
        "tenant": IN,
        "admin": NOT_THERE,
        "server": NO_ROLE,
        **NOT_ONE,
    },
    "other tenant": {
        "public": IN,
        "read": NOT_THERE,
        "write": NOT_THERE,
        "tenant": IN,
        "admin": IN,
        "shared admin": IN,
        "server": NO_ROLE,
        **ALL,
    },
    "ada of another tenant": {
        "public": IN,
        "read": NOT_THERE,
        "write": NOT_THERE,
        "tenant": IN,
        "admin": IN,
        "server": NO_ROLE,
        **NOT_ONE,
    },
}
"""What becomes of a request for ada's session, by caller and by what its route asks. `404`: as if it were not there."""


ALLOWED: Final = ("nothing_to_compact", "record_not_found", "key_not_found", "compaction_not_found")
"""Errors of requests that were let in: there is nothing to do, or no such key, record or digest is there."""


def expect_status(caller: str, route: tuple[str, str]) -> str:
    """See `EXPECTED`; a route that names none of ada's sessions is the caller's own."""
    found, (method, path) = EXPECTED[caller][PERMISSIONS[route]], route
    named = any(f"{{{name}_id}}" in path for name in ("session", "memory", "conversation", "response"))
    names_hers = named and f"{method} {path}" not in OWN
    if path == "/v1/users/{user_id}" or found != NOT_THERE:
        return found
    if (
        path.startswith("/v1/users/") or "{user_id}" in path or (route in QUERIES and not names_hers)
    ):  # each tenant has its own ada
        return NOT_THERE if caller == "bob" else IN
    return NOT_THERE if names_hers else IN


@pytest.mark.parametrize("caller", EXPECTED)
async def test_every_route_for_every_caller(tmp_path: Path, caller: str) -> None:
    """Each answer is as the table says."""
    async with server(tmp_path) as served:
        headers = (await callers(served))[caller]
        document, touched = (await served.http.get("/openapi.json")).json()["paths"], True
        for route in ROUTES:
            if touched:  # a refused request must have changed nothing, or the following routes would detect it
                await create_objects(served)
                await append_response(served)
            response = await ask(served, route, headers)
            wanted = expect_status(caller, route)
            told = f"{caller}: {route} -> {response.status_code} {response.text[:200]}"
            if wanted == IN:
                assert response.is_success or response.json()["error"]["code"] in ALLOWED, told
            else:
                assert str(response.status_code) == wanted, told
                assert wanted in document[route[1].partition("?")[0]][route[0].lower()]["responses"], "it is described"
                assert "ada's" not in response.text
            assert ("www-authenticate" in response.headers) is (wanted == NO_KEY)
            if route == CHAT and wanted == IN:
                assert "ada's" not in response.text
            touched = wanted == IN and route[0] != "GET"


async def test_head_requests_get_the_same_status_as_get(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        known = await callers(served)
        await create_objects(served)
        for caller in ("nobody", "read", "bob"):
            for method, path in ROUTES:
                if method == "GET":
                    looked = await ask(served, ("GET", path), known[caller])
                    assert (await ask(served, ("HEAD", path), known[caller])).status_code == looked.status_code


async def test_unknown_routes_answer_401_without_a_key(tmp_path: Path) -> None:
    """Unknown routes and methods reveal nothing without a key."""
    async with server(tmp_path) as served:
        known = await callers(served)
        for method, path in (
            ("GET", "/v1/nothing"),
            ("PATCH", "/v1/models"),
            ("OPTIONS", "/v1/sessions"),
            ("POST", "/x"),
        ):
            assert (await served.http.request(method, path)).status_code == 401
            assert (await served.http.request(method, path, headers=known["read"])).status_code in (404, 405)


async def test_all_invalid_keys_get_the_same_answer(tmp_path: Path) -> None:
    """Unknown, expired, revoked and forged keys."""
    async with server(tmp_path) as served:
        known = await callers(served)
        wrong = ("bad", "malformed", "expired", "revoked", "forged")
        answers = {(await served.http.get("/v1/sessions", headers=known[name])).text for name in wrong}
        assert len(answers) == 1


# -- the table ---------------------------------------------------------------


async def test_permission_table_matches_the_live_app(tmp_path: Path) -> None:
    """Every route and method of the app is in the table and no others; the description agrees."""
    async with server(tmp_path) as served:
        app = make_app(served.hf, inspector=Inspector(enabled=False), close=False)
        routes = [route for route in app.routes if isinstance(route, Route)]
        assert len(routes) == len(app.routes)
        assert {route.path for route in routes} == {path.partition("?")[0] for _, path in PERMISSIONS} | {REST}
        document = (await served.http.get("/openapi.json")).json()
        assert set(document["components"]["securitySchemes"]) == {"bearer", "holdfastKey", "apiKey"}
        for method, path in PERMISSIONS:
            operation = document["paths"][path.partition("?")[0]][method.lower()]
            asks = PERMISSIONS[method, path] != "public"
            assert bool(operation["security"]) is asks
            assert {} not in operation["security"]
            assert {"401", "429"} & set(operation["responses"]) == ({"401", "429"} if asks else set())


# -- other people's objects --------------------------------------------------

POSITIONS = ("", "?user_id=ada", "?user_id=nobody")
"""What a session route may say of its user."""


@pytest.mark.parametrize("caller", ["bob", "other tenant", "ada of another tenant"])
async def test_other_users_objects_look_like_missing_ones(tmp_path: Path, caller: str) -> None:
    """In each parameter of each route the answer equals the one for a missing object, and nothing changes."""
    async with server(tmp_path) as served:
        known = await callers(served)
        await create_objects(served)
        before = await load_everything(served)
        for route in ROUTES:
            method, path = route
            if "{session_id}" not in path or f"{method} {path}" in OWN:
                continue
            for query in POSITIONS:
                asked = "&".join([QUERIES[route], query[1:]]).rstrip("&") if route in QUERIES else query
                there = await ask(served, route, known[caller], asked)
                gone = await ask(served, route, known[caller], asked, session_id="q")
                assert (there.status_code, normalize_session_name(there)) == (404, normalize_session_name(gone)), (
                    route,
                    query,
                    there.text,
                )
        assert await load_everything(served) == before


async def test_user_of_the_key_wins_over_named_users(tmp_path: Path) -> None:
    """Another user in a REST parameter or body is a 404, existing or not; in a chat the name is ignored."""
    async with server(tmp_path) as served:
        bob = (await callers(served))["bob"]
        await create_objects(served)
        http = served.http
        for name in ("ada", "nobody"):
            told = [
                await http.get(f"/v1/sessions?user_id={name}", headers=bob),
                await http.get(f"/v1/sessions?after=s&after_user={name}", headers=bob),
                await http.get(f"/sessions?user_id={name}", headers=bob),
                await http.post("/v1/sessions", json={"user_id": name}, headers=bob),
                await http.put(f"/v1/sessions/s?user_id={name}", json=TURN, headers=bob),
                await http.put("/v1/sessions/s", json={**TURN, "user_id": name}, headers=bob),
                await http.delete(f"/v1/users/{name}", headers=bob),
                await http.get(f"/v1/state?user_id={name}", headers=bob),
                await http.patch(f"/v1/state?user_id={name}", json={"user:a": 1}, headers=bob),
                await http.delete(f"/v1/state?user_id={name}", headers=bob),
            ]
            for answer in told:
                assert (answer.status_code, answer.json()["error"]["message"]) == (404, f"no user '{name}'")
        assert (await http.get("/v1/sessions?after=s", headers=bob)).status_code == 404
        assert (await http.get("/v1/sessions", headers=bob)).json()["data"] == []
        body = {**TURN, "session_id": "s", "user": "ada"}
        for headers in (bob, {**bob, "x-session-id": "s"}):
            answer = await http.post("/v1/chat/completions", json=body, headers=headers)
            assert (answer.status_code, answer.json()["session_id"]) == (200, "s")
        assert await served.log("s", "ada") == [(one["role"], one["content"]) for one in LOG]
        assert (await served.log("s", "bob"))[0] == ("user", "hi")
        own = await http.post("/v1/sessions", json={"id": "mine", "user_id": "bob"}, headers=bob)
        assert (own.status_code, own.json()["user_id"]) == (201, "bob")
        exported = (await http.get("/v1/sessions/mine", headers=bob)).json()
        assert (await http.put("/v1/sessions/copy", json=exported, headers=bob)).json()["user_id"] == "bob"


async def test_tenant_key_finds_a_session_id_that_only_one_user_has(tmp_path: Path) -> None:
    """A key without a user searches all users; a key of one user never does."""
    async with server(tmp_path) as served:
        known = await callers(served)
        await create_objects(served)
        assert (await served.http.get("/v1/sessions/s", headers=known["read"])).json()["user_id"] == "ada"
        assert (await served.http.get("/v1/sessions/s", headers=known["bob"])).status_code == 404
        answer = await served.http.post("/v1/sessions", json={"id": "s"}, headers=known["bob"])
        assert (answer.status_code, answer.json()["user_id"]) == (201, "bob")


def test_call_without_authentication_has_read_role_only() -> None:
    """A request that bypassed authentication may only read public data."""

    app = SimpleNamespace(state=SimpleNamespace(hf=SimpleNamespace(tenant="t"), limits=None))
    call = Call({"type": "http", "app": app}, None)  # type: ignore[arg-type]
    assert (call.principal.role, call.principal.key_id) == ("read", None)
