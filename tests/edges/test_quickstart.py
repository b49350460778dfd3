"""docs/quickstart.md as a newcomer follows it: its commands on a real server, without and with its file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2

from tests.edges.curl_kit import Request, parse_commands
from tests.edges.server import Process

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"


def run_request(server: Process, one: Request) -> dict[str, Any]:
    """Send a request of the page; return the answer."""
    told = httpx2.request(one.method, server.url + one.path, headers=one.headers, content=one.body, trust_env=False)
    assert told.is_success, told.text
    answer: dict[str, Any] = told.json()
    return answer


def read_reply(answer: dict[str, Any]) -> str:
    """Return the text of a reply."""
    return str(answer["choices"][0]["message"]["content"])


def test_quickstart_works_as_documented(tmp_path: Path) -> None:
    """The second request sees the first one; a new session recalls the old one and the memory."""
    booked, seen, gate, seat, code, prefers = parse_commands(PAGE)
    store = f"sqlite:///{tmp_path / 'holdfast.db'}"
    with Process(store) as server:
        assert "Oslo" not in read_reply(run_request(server, booked)).partition("You just said")[0]
        answer = run_request(server, seen)
        assert "Oslo" in read_reply(answer)
        assert answer["session"]["turn"] == 1

    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "holdfast.yaml").write_text(configuration)
    with Process(store, config=tmp_path / "holdfast.yaml") as server:
        run_request(server, gate)
        run_request(server, seat)
        answer = run_request(server, code)
        assert "4711" in read_reply(answer)
        assert any(name.startswith("monday#") for name in answer["session"]["recalled"]["ids"])
        assert "window seat" in read_reply(run_request(server, prefers))
