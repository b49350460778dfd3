"""docs/quickstart.md as a newcomer follows it: its commands on a real server, without and with its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2

from tests.edges.curl_kit import Request, parse_commands
from tests.edges.server import Process

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"


def sent(server: Process, one: Request) -> dict[str, Any]:
    """What a command of the page is answered."""
    told = httpx2.request(one.method, server.url + one.path, headers=one.headers, content=one.body, trust_env=False)
    assert told.is_success, told.text
    answer: dict[str, Any] = told.json()
    return answer


def said(answer: dict[str, Any]) -> str:
    """The text of a reply."""
    return str(answer["choices"][0]["message"]["content"])


def test_the_page_as_it_stands(tmp_path: Path) -> None:
    """The second request is answered with the first one in sight; a new session is told of the old one, and of the memory."""
    booked, seen, gate, seat, code, prefers = parse_commands(PAGE)
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"
    with Process(store) as server:
        assert "Oslo" not in said(sent(server, booked)).partition("You just said")[0]
        answer = sent(server, seen)
        assert "Oslo" in said(answer)
        assert answer["session"]["turn"] == 1

    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "holdfast.yaml").write_text(configuration)
    with Process(store, config=tmp_path / "holdfast.yaml") as server:
        sent(server, gate)
        sent(server, seat)
        answer = sent(server, code)
        assert "4711" in said(answer)
        assert any(name.startswith("monday#") for name in answer["session"]["recalled"]["ids"])
        assert "window seat" in said(sent(server, prefers))
