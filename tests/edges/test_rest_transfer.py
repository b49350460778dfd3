"""Session transfer and removal over a socket: exports, imports, forks, rewinds, deletions with receipts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.history import Past
from holdfast.domain.session import Receipt, SessionRef
from holdfast.hooks.transcripts import Transcripts
from holdfast.stores.sessions import NewSession
from holdfast.wire.exports import SCHEMA
from tests.edges.rest_kit import create_session, user
from tests.edges.server import Served, gateway

ONE = "/v1/sessions/s"
HERE = ("version", "imported")


async def export_session(served: Served, query: str = "?retired=true&calls=true", url: str = ONE) -> dict[str, Any]:
    """Return an export without the fields that depend on its place."""
    response = await served.http.get(url + query)
    assert response.status_code == 200, response.text
    return {name: value for name, value in response.json().items() if name not in HERE}


async def put(served: Served, body: Any, url: str = ONE) -> Any:
    response = await served.http.put(url, json=body)
    assert response.status_code == 200, response.text
    return response.json()


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
