"""`holdfast search` finds the same as the library, and stored text cannot control the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast

AT = 1_700_000_000_000
EVIL = "gate \x1b[2J\x1b]0;owned\x07 code \u202e reversed\r\n  1.  forged #9  user"


def make_message(text: str, at: int = AT, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text, "timestamp": at}


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with conversations of ada and bob."""
    url = f"sqlite:///{tmp_path}/s.db"

    async def make() -> None:
        async with Holdfast(url) as hf:
            talk = [
                make_message("My gate code is 4711."),
                make_message("Noted: the gate.", role="assistant"),
                make_message("And kelp soup."),
            ]
            await hf.import_({"messages": talk}, session_id="harbour", user_id="ada")
            await hf.import_({"messages": [make_message("My gate code is 9999.")]}, session_id="harbour", user_id="bob")
            await hf.import_({"messages": [make_message(EVIL, AT + 86_400_000)]}, session_id="evil", user_id="eve")

    anyio.run(make)
    return url


def search(url: str, *args: str, **options: Any) -> Result:
    return CliRunner().invoke(commands, ["search", *args, "--store", url], **options)


def search_json(url: str, *args: str) -> Any:
    """Return the hits as JSON."""
    result = search(url, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_matching_words_are_highlighted_on_a_terminal(store: str) -> None:
    """Only on a terminal."""
    marked = search(store, "gate", "--user", "ada", color=True, env={"FORCE_COLOR": "1"}).stdout
    assert "\x1b[33m\x1b[1mgate\x1b[0m" in marked
    assert "\x1b" not in search(store, "gate", "--user", "ada").stdout


def test_shown_cursor_leads_to_the_next_page(store: str) -> None:
    first = search_json(store, "gate", "--user", "ada", "--limit", "1")
    assert first["has_more"] is True
    shown = search(store, "gate", "--user", "ada", "--limit", "1").stdout
    cursor = re.findall(r"^Next page: --after (\S+)$", shown, re.MULTILINE)[0]
    rest = search_json(store, "gate", "--user", "ada", "--limit", "9", "--after", cursor)
    whole = search_json(store, "gate", "--user", "ada")
    assert [hit["seq"] for hit in (*first["hits"], *rest["hits"])] == [hit["seq"] for hit in whole["hits"]]


def test_searched_time_range_is_reported(store: str) -> None:
    """The range that a phrase of the query was read as, in the requested zone; nothing if all times were searched."""
    result = search(store, "what did I say on 2023-11-14", "--user", "ada", "--tz", "Asia/Tokyo")
    told = "only messages from 2023-11-14 00:00:00 until 2023-11-15 00:00:00 (Asia/Tokyo)\n"
    assert (result.stdout, result.stderr) == ("No matches in the sessions of user ada.\n", told)
    assert search(store, "gate", "--user", "ada", "--since", "2023-11-01").stderr == (
        "only messages from 2023-11-01 00:00:00 (UTC)\n"
    )
    assert search(store, "gate", "--user", "ada").stderr == ""


def test_query_without_searchable_words_is_reported(store: str) -> None:
    assert search(store, "what is the", "--user", "ada").stderr == "the query has no word to search for\n"


def test_unconfigured_agent_is_reported(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nothing is found, since it may be a typo."""
    monkeypatch.chdir(tmp_path)
    Path("holdfast.yaml").write_text("agents: {writer: {instruction: Write.}}\n", encoding="utf-8")
    doubt = "The configuration has no agent writr; did you mean writer?\n"
    assert search(store, "gate", "--user", "ada", "--agent", "writr").stderr == doubt
    assert search(store, "gate", "--user", "ada", "--agent", "writer").stderr == ""


def test_incomplete_index_is_reported(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.search._WALK_SECONDS", 0.0)
    assert "the index is not complete yet" in search(store, "gate", "--user", "ada").stderr


def test_store_without_an_index_is_indexed_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/old.db"

    async def make() -> None:
        async with Holdfast(url, index=None) as hf:
            await hf.import_({"messages": [make_message("My gate code is 4711.")]}, session_id="s", user_id="ada")
            assert (await hf.store.get(SessionRef("ada", "s"))).messages == 1

    anyio.run(make)
    assert [hit["seq"] for hit in search_json(url, "gate", "--user", "ada")["hits"]] == [0]


def test_no_rerank_skips_the_reranker(store: str, tmp_path: Path) -> None:
    config = tmp_path / "holdfast.yaml"
    config.write_text("storage: {index: {rerank: {path: nowhere}}}", encoding="utf-8")
    note = "not reranked: the reranker failed"
    assert search_json(store, "gate", "--user", "ada", "--config", str(config))["notes"] == [note]
    assert search_json(store, "gate", "--user", "ada", "--config", str(config), "--no-rerank")["notes"] == []
