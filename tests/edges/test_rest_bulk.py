"""`POST /v1/bulk/sessions`: named and filtered sessions, dry runs, partial failures, and whose sessions are reached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.domain.session import SessionRef
from holdfast.server import bulk
from holdfast.server.http import Call
from holdfast.server.limits import BULK_EXPORT_BYTES, BULK_SESSIONS
from holdfast.server.permissions import Refused
from tests.clocks import Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway


async def ask(served: Served, body: dict[str, Any], *, key: str | None = None, status: int = 200) -> Any:
    """Send a request, and return its answer."""
    headers = {} if key is None else bearer(key)
    answer = await served.http.post("/v1/bulk/sessions", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def create(served: Served, names: Sequence[str], user: str = "ada", text: str = "hi") -> None:
    """Create sessions with one message each."""
    for name in names:
        session = await served.hf.session(name, user_id=user)
        await session.append([{"role": "user", "content": text}])


async def list_ids(served: Served, status: Literal["active", "closed"] | None = None) -> set[str]:
    return {one.id for one in (await served.hf.sessions(status=status, limit=1000)).sessions}


def name(*ids: str, user: str = "ada") -> dict[str, Any]:
    return {"sessions": [{"id": one, "user_id": user} for one in ids]}


async def test_named_sessions_are_processed_one_by_one(tmp_path: Path) -> None:
    """A session that does not exist is reported, and the others are processed."""
    async with gateway([], store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        await create(served, "abc")
        chosen = name("a", "gone", "b")
        dry = await ask(served, {"action": "delete", "dry_run": True, **chosen})
        assert [one["status"] for one in dry["results"]] == ["found", "failed", "found"]
        assert (dry["count"], dry["failed"], await list_ids(served)) == (2, 1, {"a", "b", "c"})
        closed = await ask(served, {"action": "close", **chosen})
        assert [one["status"] for one in closed["results"]] == ["done", "failed", "done"]
        assert closed["results"][1]["error"]["code"] == "session_not_found"
        assert await list_ids(served, "closed") == {"a", "b"}
        deleted = await ask(served, {"action": "delete", **chosen})
        assert [one["receipt"] and one["receipt"]["messages"] for one in deleted["results"]] == [1, None, 1]
        assert await list_ids(served) == {"c"}


async def test_exports_are_the_same_as_of_one_session() -> None:
    async with gateway([]) as (served, _):
        await create(served, "ab")
        answer = await ask(served, {"action": "export", **name("a", "b")})
        for result in answer["results"]:
            alone = (await served.http.get(f"/v1/sessions/{result['id']}?user_id=ada")).json()
            assert result["export"] == alone
        assert [one["export"]["messages"][0]["content"] for one in answer["results"]] == ["hi", "hi"]


async def test_a_filter_is_processed_in_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The longest unchanged sessions first; a dry run counts them all, and others stay."""
    monkeypatch.setattr(bulk, "BULK_SESSIONS", 2)
    async with gateway([], store=f"sqlite:///{tmp_path}/s.db") as (served, _):
        await create(served, "abcde")
        await create(served, "xyz", user="bob")
        selected: dict[str, Any] = {"filter": {"user_id": "ada"}}
        for action in ("export", "close", "delete"):
            dry = await ask(served, {"action": action, "dry_run": True, **selected})
            assert (dry["count"], dry["has_more"], dry["results"]) == (5, False, [])
        found = []
        for action in ("close", "delete"):
            while True:
                answer = await ask(served, {"action": action, **selected})
                found.append("".join(one["id"] for one in answer["results"]))
                if not answer["has_more"]:
                    break
        assert found == ["ab", "cd", "e"] * 2
        assert (await list_ids(served), await list_ids(served, "closed")) == ({"x", "y", "z"}, set())


async def test_an_export_of_a_filter_continues_after_the_last_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BULK_SESSIONS", 2)
    async with gateway([]) as (served, _):
        await create(served, "abc")
        first = await ask(served, {"action": "export", "filter": {}})
        last = first["results"][-1]
        rest = await ask(served, {"action": "export", "filter": {"after": last["id"], "after_user": last["user_id"]}})
        assert [one["id"] for one in (*first["results"], *rest["results"])] == ["a", "b", "c"]
        assert (first["has_more"], rest["has_more"]) == (True, False)


async def test_a_dry_run_counts_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BULK_SESSIONS", 2)
    monkeypatch.setattr(bulk, "PREVIEWED_SESSIONS", 4)
    async with gateway([]) as (served, _):
        await create(served, "abcdef")
        dry = await ask(served, {"action": "delete", "dry_run": True, "filter": {}})
        assert (dry["count"], dry["has_more"]) == (4, True)


async def test_exports_of_one_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that does not fit is reported, and smaller ones after it are exported."""
    monkeypatch.setattr(bulk, "BULK_EXPORT_BYTES", 20_000)
    async with gateway([]) as (served, _):
        await create(served, "ac")
        await create(served, "b", text="x" * 30_000)
        answer = await ask(served, {"action": "export", **name("a", "b", "c")})
        assert [one["status"] for one in answer["results"]] == ["done", "failed", "done"]
        assert answer["results"][1]["error"]["code"] == "too_large"
        await create(served, "de", text="x" * 12_000)
        answer = await ask(served, {"action": "export", **name("d", "e", "a")})
        assert [one["status"] for one in answer["results"]] == ["done", "failed", "done"]


async def test_memory_is_reserved_before_sessions_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that cannot have it is refused, and what needs none is not."""

    async def refuse(_: Call, size: int) -> None:
        if size == BULK_EXPORT_BYTES:
            raise Refused(503, "busy", "the server is busy with other large responses")

    monkeypatch.setattr(Call, "reserve_answer", refuse)
    async with gateway([]) as (served, _):
        await create(served, "a")
        for chosen in (name("a"), {"filter": dict[str, Any]()}):
            await ask(served, {"action": "export", **chosen}, status=503)
            await ask(served, {"action": "export", "dry_run": True, **chosen})
        await ask(served, {"action": "close", **name("a")})


async def test_a_key_of_one_user_reaches_only_its_sessions() -> None:
    """Sessions of others are not found, and no filter selects them."""
    async with gateway([], clock=Clock()) as (served, _):
        ada, reader = await create_stored_key(served.hf, user_id="ada"), await create_stored_key(served.hf, role="read")
        await create(served, "a")
        await create(served, "b", user="bob")
        refused = await ask(served, {"action": "delete", **name("b", user="bob")}, key=ada)
        assert (refused["failed"], refused["results"][0]["error"]["code"]) == (1, "user_not_found")
        unnamed = await ask(served, {"action": "delete", "sessions": [{"id": "b"}]}, key=ada)
        assert unnamed["results"][0]["error"]["code"] == "session_not_found"
        await ask(served, {"action": "delete", "filter": {"user_id": "bob"}}, key=ada, status=404)
        await ask(served, {"action": "delete", "filter": {}}, key=reader, status=403)
        assert (await ask(served, {"action": "delete", "filter": {}}, key=ada))["count"] == 1
        assert (await served.hf.store.get(SessionRef("bob", "b"))).messages == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"action": "close"}, 400),
        ({"action": "close", "sessions": [], "filter": {}}, 400),
        ({"action": "archive", "filter": {}}, 400),
        ({"action": "close", "filter": {"status": "closed"}}, 400),
        ({"action": "close", "filter": {"since": "yesterday"}}, 400),
        ({"action": "close", "filter": {"colour": "red"}}, 400),
        ({"action": "close", "filter": {"after": "gone"}}, 404),
        ({"action": "close", "sessions": [{"id": "s"}] * (BULK_SESSIONS + 1)}, 413),
        ({"action": "close", "sessions": ["s"]}, 400),
        ({"action": "close", "sessions": [{"id": ""}]}, 400),
        ({"action": "close", "sessions": [{"id": "s", "user_id": ""}]}, 400),
    ],
)
async def test_invalid_requests_are_refused(body: dict[str, Any], status: int) -> None:
    async with gateway([]) as (served, _):
        await create(served, "s")
        await ask(served, body, status=status)
        assert await list_ids(served, "active") == {"s"}
