"""Session transfer and removal over a socket: exports, imports, forks, rewinds, deletions with receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

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


async def test_import_for_another_user_keeps_the_original() -> None:
    """The copy belongs to that user."""
    async with gateway([]) as (served, _):
        await fill_session(served)
        exported = await export_session(served)
        moved = await put(served, {**exported, "state": {"k": 2}}, f"{ONE}?user_id=bob")
        assert moved["user_id"] == "bob"
        assert (await served.hf.store.get(SessionRef("ada", "s"))).state == {"k": 1}


# -- fork and rewind ---------------------------------------------------------


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
