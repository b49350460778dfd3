"""Two users, and two tenants, with the same words: whoever asks, by whatever parameter, nobody sees what is another's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.holdfast import Holdfast
from tests.edges.access_kit import server
from tests.edges.keys import bearer, made
from tests.edges.server import Served
from tests.words import says

WORDS = "the gate code of the harbour is"
OWN = {("default", "ada"): "1111", ("default", "bob"): "2222", ("t2", "ada"): "3333"}
"""What each of them has said, by tenant and user."""


async def said(hf: Holdfast, user: str, secret: str) -> None:
    """Have a user talk about it, in a session of the same name, with the same agent's name."""
    log = [{"role": "user", "content": f"{WORDS} {secret}"}, {"role": "assistant", "content": f"so it is {secret}"}]
    await hf.import_({"messages": log}, session_id="same", user_id=user)
    await hf.import_({"messages": log}, session_id=f"only-{user}-{secret}", user_id=user)
    assert hf.engine.index is not None
    await hf.engine.index.settled()


@asynccontextmanager
async def sharing(folder: Path) -> AsyncIterator[Served]:
    """A server with all of them."""
    async with server(folder) as served:
        for (tenant, user), secret in OWN.items():
            async with served.hf.serve_tenant(tenant) as hf:
                await said(hf, user, secret)
        yield served


QUERIES: list[dict[str, Any]] = [
    {},
    {"session_id": "same"},
    {"session_id": "only-bob-2222"},
    {"session_id": "only-ada-3333"},
    {"q": "2222"},
    {"q": "2222 OR 3333"},
    {"q": 'user:"bob" 2222'},
    {"q": "*"},
    {"q": "what did bob say yesterday"},
    {"q": "what did I say today"},
    {"limit": 100, "neighbours": 10},
    {"role": "assistant"},
    {"role": "tool"},
    {"agent": "bob"},
    {"since": 0},
    {"level": "session"},
    {"mode": "hybrid"},
]


@pytest.mark.parametrize("query", QUERIES)
async def test_nobody_sees_what_is_anothers(tmp_path: Path, query: dict[str, Any]) -> None:
    """By a key of the user, of the tenant for that user, or of the same user elsewhere."""
    async with sharing(tmp_path) as served:
        for (tenant, user), own in OWN.items():
            others = set(OWN.values()) - {own}
            bound = bearer(await made(served.hf, tenant=tenant, user_id=user))
            wide = bearer(await made(served.hf, tenant=tenant))
            for headers, more in ((bound, {}), (bound, {"user_id": user}), (wide, {"user_id": user})):
                parameters = {"q": WORDS, **query, **more}
                answer = await served.http.get("/v1/search", params=parameters, headers=headers)
                assert answer.status_code == 200, answer.text
                shown = json.dumps(answer.json()["data"])
                assert not any(other in shown for other in others)


async def test_everybody_finds_their_own(tmp_path: Path) -> None:
    """So that the test above can fail."""
    async with sharing(tmp_path) as served:
        for (tenant, user), own in OWN.items():
            key = bearer(await made(served.hf, tenant=tenant, user_id=user))
            found = (await served.http.get("/v1/search", params={"q": WORDS, "limit": 100}, headers=key)).json()["data"]
            assert {one["session_id"] for one in found} == {"same", f"only-{user}-{own}"}
            assert own in json.dumps(found)


async def test_a_key_of_a_user_names_no_other(tmp_path: Path) -> None:
    """Whether or not there is one of that name: one answer."""
    async with sharing(tmp_path) as served:
        key = bearer(await made(served.hf, user_id="bob"))
        for name in ("ada", "nobody"):
            answer = await served.http.get("/v1/search", params={"q": WORDS, "user_id": name}, headers=key)
            assert (answer.status_code, answer.json()["error"]["message"]) == (404, f"no user '{name}'")


async def test_a_cursor_opens_nothing(tmp_path: Path) -> None:
    """One that somebody else was given is refused, and says nothing of what is behind it."""
    async with sharing(tmp_path) as served:
        keys = {(tenant, user): bearer(await made(served.hf, tenant=tenant, user_id=user)) for tenant, user in OWN}
        for whose, headers in keys.items():
            page = await served.http.get("/v1/search", params={"q": WORDS, "limit": 1}, headers=headers)
            cursor = page.json()["last_id"]
            assert not says(cursor, "1111")
            for other, theirs in keys.items():
                answer = await served.http.get("/v1/search", params={"q": WORDS, "after": cursor}, headers=theirs)
                assert answer.status_code == (200 if other == whose else 400)


async def test_an_index_that_is_behind_shows_nothing_that_is_gone(tmp_path: Path) -> None:
    """Deleted, moved to another user, or erased: at once, whatever the index still has."""
    async with sharing(tmp_path) as served:
        ada, bob = bearer(await made(served.hf, user_id="ada")), bearer(await made(served.hf, user_id="bob"))
        admin = bearer(await made(served.hf, role="admin"))
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
