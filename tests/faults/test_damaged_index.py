"""A damaged index: clients and models are told that search is not available, and nothing of the server's files."""

from __future__ import annotations

import socket
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.indexes.settings import IndexSettings
from holdfast.server.replies import make_failure_reply
from holdfast.tools.tool import _format_error
from tests.edges.server import gateway

HI = {"role": "user", "content": "the harbour"}


def damage(database: Path) -> None:
    """Overwrite every page of the index's tables."""
    raw = apsw.Connection(str(database))
    pages = [
        page for (page,) in raw.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND rootpage > 1")
    ]
    raw.close()
    with database.open("rb+") as file:
        for page in pages:
            file.seek(4096 * (page - 1))
            file.write(bytes(4096))


async def make_damaged_index(folder: Path) -> str:
    """A store with a session, and its index, damaged."""
    url = f"sqlite:///{folder}/chat.db"
    async with holdfast.open(url) as hf:
        await (await hf.session("s")).append(HI)
        assert hf.index is not None
        await hf.index.settled()
    damage(folder / "chat.index.db")
    return url


async def test_a_search_tells_no_path_and_no_instructions(tmp_path: Path) -> None:
    url = await make_damaged_index(tmp_path)
    async with gateway([], store=url) as (served, _):
        response = await served.http.get("/v1/search", params={"q": "harbour"})
    assert response.status_code >= 500
    assert "search is not available" in response.json()["error"]["message"]
    assert str(tmp_path) not in response.text
    assert "remove the file" not in response.text


@pytest.mark.parametrize("kind", ["no file", "no server"])
async def test_a_search_in_an_index_that_cannot_be_opened_tells_no_place(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    with socket.create_server(("127.0.0.1", 0)) as unused:
        place = f"127.0.0.1:{unused.getsockname()[1]}"
    (tmp_path / "chat.index.db").mkdir()
    index = IndexSettings() if kind == "no file" else IndexSettings(url=f"postgresql://u:p@{place}/db")
    async with holdfast.open(url, index=index) as hf:
        with pytest.raises(StoreUnavailable) as told:
            await hf.search("harbour")
    assert (str(tmp_path) if kind == "no file" else place) in str(told.value)
    assert _format_error(told.value) == "search is not available: the index cannot be opened"
    assert str(tmp_path) not in str(make_failure_reply(told.value).body)
    assert place not in str(make_failure_reply(told.value).body)


async def test_a_model_is_told_no_path(tmp_path: Path) -> None:
    url = await make_damaged_index(tmp_path)
    async with holdfast.open(url) as hf:
        with pytest.raises(StoreCorrupt) as told:
            await hf.search("harbour")
        assert str(tmp_path) in str(told.value)  # the operator's log has it
        assert _format_error(told.value) == "search is not available: the index is damaged"


@pytest.mark.parametrize("kind", ["pages", "no database"])
async def test_a_rebuild_replaces_a_damaged_index(tmp_path: Path, kind: str) -> None:
    url = await make_damaged_index(tmp_path)
    if kind == "no database":
        (tmp_path / "chat.index.db").write_bytes(b"no database" * 1000)
    async with holdfast.open(url) as hf:
        assert hf.index is not None
        assert (await hf.index.rebuild(user="somebody")).sessions == 1
        assert [hit.session_id for hit in (await hf.search("harbour")).hits] == ["s"]
