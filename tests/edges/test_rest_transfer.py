"""Session transfer and removal over a socket: exports, imports, forks, rewinds, deletions with receipts."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.domain.history import Past
from holdfast.domain.session import ModelCall, SessionRef
from holdfast.hooks.transcripts import Transcripts
from holdfast.lifecycle.removal import Receipt
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.wire.exports import SCHEMA
from tests.edges.rest_kit import append_messages, assistant, create_session, user
from tests.edges.server import Served, gateway

ONE = "/v1/sessions/s"
HERE = ("version", "imported")
UNIT = [
    user("one", pinned=True),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "found", "x": 1},
    assistant("first", importance=0.5, metadata={"source": "llm"}),
]
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def export_session(served: Served, query: str = "?retired=true&calls=true", url: str = ONE) -> dict[str, Any]:
    """Return an export without the fields that depend on its place."""
    response = await served.http.get(url + query)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if name not in HERE}


async def fill_session(served: Served) -> None:
    """Create a session with everything in it."""
    await create_session(
        served, user_id="ada", state={"k": 1}, metadata={"m": [2]}, system_messages=["Sys."], ttl=10**9
    )
    await append_messages(served, *UNIT, user("secret"), assistant("two"), {"role": "user", "content": [PICTURE]})
    await served.http.delete(f"{ONE}/messages/4")
    ref = SessionRef("ada", "s")
    call = ModelCall(model="m", timestamp=1, prompt_tokens=10, build=b"b", hash=b"h" * 16)
    await served.hf.store.append(ref, Append(retire_from=5, calls=[call], timestamp=served.hf.clock()))
    await append_messages(served, assistant("two, better"))


async def put(served: Served, body: Any, url: str = ONE) -> Any:
    response = await served.http.put(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def test_export_is_complete() -> None:
    """Schema, times, retired and erased messages, usage and calls."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        exported = await export_session(served)
        assert exported["schema"] == SCHEMA
        assert [one.get("retired_by") for one in exported["messages"]] == [None] * 5 + [7, 7, None]
        erased = exported["messages"][4]
        assert (erased["content"], erased["erased"], "digest" in erased) == ("[erased]", True, False)
        full = await export_session(served, "?retired=true&calls=true&digests=true")
        assert len(full["messages"][4].pop("digest")) == 32
        assert full == exported
        (image,) = exported["images"]
        assert image.pop("sha256") == hashlib.sha256(b"\x89PNG\r\n\x1a\n").hexdigest()
        assert image == {"seq": 6, "part": 0, "type": "image_url", "mime_type": "image/png", "bytes": 8}
        assert exported["usage"]["prompt_tokens"] == exported["calls"][0]["prompt_tokens"] == 10
        assert (exported["artifacts"], exported["ended_at"], exported["end_reason"]) == ([], None, None)
        live = await export_session(served, "")
        assert [one["seq"] for one in live["messages"]] == [0, 1, 2, 3, 4, 7]
        assert "calls" not in live


async def test_second_import_with_calls_but_without_retired_changes_nothing() -> None:
    """So artifacts are kept, which a real import deletes."""
    async with gateway(["an answer"]) as (served, _):
        await served.chat("hello")
        await served.http.put("/v1/sessions/s/artifacts/a.txt", content=b"x")
        exported = (await served.http.get("/v1/sessions/s?retired=true&calls=true")).json()
        assert exported["calls"]
        assert (await put(served, exported, "/v1/sessions/s"))["imported"] is False
        assert (await served.http.get("/v1/sessions/s/artifacts/a.txt")).content == b"x"


BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"schema": 99}, 400, "schema"),
    ({"messages": [user("a"), {**user("b"), "tokens": "many"}]}, 400, "messages[1].tokens"),
    ({"messages": [{**user("a"), "retired_by": 0}]}, 400, "messages[0].retired_by"),
    ({"messages": [{**user("a"), "retired_by": 1, "seq": 4}]}, 400, "messages[0].seq"),
    ({"messages": [user("a", turn_id=4), user("b", turn_id=1)]}, 400, "messages[1].turn_id"),
    ({"messages": [{**user("a"), "erased": True, "digest": "00"}]}, 400, "messages[0].digest"),
    ({"images": ["AAAA"]}, 400, "images[0]"),
    ({"state": [1]}, 400, "state"),
    ({"metadata": {"x": "y" * 1_100_000}}, 413, "metadata"),
]


@pytest.mark.parametrize(("change", "status", "param"), BAD, ids=[f"{at}-{one[2]}" for at, one in enumerate(BAD)])
async def test_invalid_import_changes_nothing(change: dict[str, Any], status: int, param: str) -> None:
    """The error names the invalid field by its path."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        before = await export_session(served)
        response = await served.http.put(f"{ONE}?user_id=ada", json={**before, **change})
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert await export_session(served) == before


async def test_invalid_export_options_are_refused() -> None:
    """Calls refer to messages by seq, so they need all messages."""
    async with gateway([]) as (served, _):
        await create_session(served)
        for query, param in (("?calls=true", "calls"), ("?retired=yes", "retired")):
            response = await served.http.get(ONE + query)
            assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_import_for_another_user_keeps_the_original() -> None:
    """The copy belongs to that user."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        exported = await export_session(served)
        moved = await put(served, {**exported, "state": {"k": 2}}, f"{ONE}?user_id=bob")
        assert moved["user_id"] == "bob"
        assert (await served.hf.store.get(SessionRef("ada", "s"))).state == {"k": 1}


# -- fork and rewind ---------------------------------------------------------


async def test_fork() -> None:
    """The new session is returned whole; the original is unchanged."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        before = await export_session(served)
        response = await served.http.post(f"{ONE}/fork", json={"at_turn": 0, "id": "new"})
        made = response.json()
        assert (response.status_code, made["id"], made["user_id"], made["turns"]) == (201, "new", "ada", 1)
        assert made["metadata"] == {"m": [2], "forked_from": {"id": "s", "turn": 0, "seq": 3}}
        assert (made["state"], made["usage"]["calls"]) == ({"k": 1}, 0)
        random = (await served.http.post(f"{ONE}/fork", json={})).json()
        assert (random["id"][:5], random["message_count"]) == ("sess_", 6)
        assert await export_session(served) == before


async def test_erasing_a_message_erases_it_in_forks() -> None:
    """The answer lists the copies."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        await served.http.post(f"{ONE}/fork", json={"id": "new"})
        answer = await served.http.delete("/v1/sessions/new/messages/0", params={"user_id": "ada"})
        assert answer.json()["copies"] == [{"session_id": "s", "seq": 0}]
        again = await served.http.delete(f"{ONE}/messages/3")
        assert (again.status_code, again.json()["copies"]) == (200, [{"session_id": "new", "seq": 3}])
        for name in ("s", "new"):
            kept = await served.hf.store.entries(SessionRef("ada", name))
            assert [entry.seq for entry in kept if entry.erased] == [0, 3, 4]  # message 4 was erased before


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("fork", {"at_turn": 9}, 400, "at_turn"),
        ("fork", {"id": "s"}, 409, None),
        ("rewind", {"at_turn": 9}, 400, "at_turn"),
    ],
)
async def test_invalid_forks_and_rewinds_are_refused(path: str, body: Any, status: int, param: str | None) -> None:
    """Nothing is created or changed."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        before = await export_session(served)
        response = await served.http.post(f"{ONE}/{path}", json=body)
        assert (response.status_code, response.json()["error"]["param"]) == (status, param)
        assert await export_session(served) == before
        assert len((await served.http.get("/v1/sessions")).json()["data"]) == 1
        assert (await served.http.post(f"/v1/sessions/gone/{path}", json={"at_turn": 0})).status_code == 404


async def test_rewind() -> None:
    """In place; with `If-Match` only at that version; a second rewind to the same turn changes nothing."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        stale = await served.http.post(f"{ONE}/rewind", json={"at_turn": 0}, headers={"If-Match": "1"})
        assert stale.status_code == 412
        response = await served.http.post(f"{ONE}/rewind", json={"at_turn": 0})
        after = response.json()
        assert (after["retired"], after["message_count"], response.headers["etag"]) == (2, 4, f'"{after["version"]}"')
        again = (await served.http.post(f"{ONE}/rewind", json={"at_turn": 0})).json()
        assert (again["retired"], again["version"]) == (0, after["version"])
        assert [entry["retired_by"] for entry in (await export_session(served))["messages"][4:]] == [8, 7, 7, 8]


# -- deletion ----------------------------------------------------------------


async def test_transcript_of_a_missing_session_is_deleted(tmp_path: Path) -> None:
    """A program without transcripts removed the session; deleting it again removes the file."""
    async with gateway([]) as (served, _):
        keeper = Transcripts(tmp_path)
        served.hf.add_hook(keeper)
        await create_session(served, "s", user_id="ada")
        path = "/v1/sessions/s"
        keeper.path("default", "ada", "s").write_text("left\n")
        await served.hf.store.remove(SessionRef("ada", "s"))
        assert (await served.http.delete(path)).status_code == 404
        gone = (await served.http.delete(f"{path}?user_id=ada")).json()
        assert (gone["deleted"], gone["receipt"]) == (True, msgspec.structs.asdict(Receipt(transcripts=1)))
        assert (await served.http.delete(f"{path}?user_id=ada")).status_code == 404


async def test_times_that_are_no_date_are_refused_and_do_not_break_lists() -> None:
    """Earlier releases stored any number: such a session is listed, exported and can be replaced."""
    far = 2**53 - 1
    body = {"schema": SCHEMA, "messages": [user("one")], "updated_at": far}
    async with gateway([]) as (served, _):
        refused = await served.http.put(ONE, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "updated_at")
        assert "9999" in refused.json()["error"]["message"]
        assert (await served.http.get("/sessions")).json() == {"sessions": []}
        old = NewSession(id="s", user_id="default", timestamp=1, past=Past(created_at=1, updated_at=far))
        await served.hf.store.replace(old, [])
        (short,) = (await served.http.get("/sessions")).json()["sessions"]
        assert short["updated_at"] == "9999-12-31T23:59:59Z"
        assert (await served.http.get("/sessions/s")).json()["updated_at"] == short["updated_at"]
        (whole,) = (await served.http.get("/v1/sessions")).json()["data"]
        assert whole["updated_at"] == (await export_session(served))["updated_at"] == far
        assert (await put(served, {**body, "updated_at": 5}))["updated_at"] == 5
