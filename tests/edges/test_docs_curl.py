"""The curl commands of README.md and docs/, sent as curl would send them: a server takes what they say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.edges.server import gateway

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FORM = "application/x-www-form-urlencoded"


class Request(NamedTuple):
    """What curl sends."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None


def commands(page: Path) -> Iterator[Request]:
    """Those of a page's blocks, in order."""
    for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.DOTALL):
        for found in re.finditer(r"^curl (?:\\\n|'[^']*'|[^'\n\\])*", block, re.MULTILINE):
            yield request(shlex.split(found[0]))


def request(words: list[str]) -> Request:
    """A command by its words: its options have one value each."""
    given = dict(pairwise(words))
    headers = {
        name.lower(): value
        for at, word in enumerate(words)
        if word == "-H"
        for name, _, value in [words[at + 1].partition(": ")]
    }
    body = given.get("-d")
    if body is not None:
        headers.setdefault("content-type", FORM)
    (url,) = [word for word in words if re.match(r"(http://)?(127\.0\.0\.1|localhost):8377/", word)]
    return Request(given.get("-X", "GET" if body is None else "POST"), url.partition(":8377")[2], headers, body)


BODIES = [(page.name, one) for page in PAGES for one in commands(page) if one.body is not None]


@pytest.mark.parametrize(("page", "sent"), BODIES, ids=[f"{page}-{one.path}" for page, one in BODIES])
async def test_a_body_that_a_page_sends_is_one_that_is_read(page: str, sent: Request) -> None:
    """It comes as JSON, to a route that there is: whatever the answer is, it is about what it says."""
    async with gateway(["ok"]) as (served, _):
        headers = {name: value for name, value in sent.headers.items() if name != "authorization"}
        told = await served.http.request(sent.method, sent.path, headers=headers, content=sent.body)
        found = told.json().get("error", {}).get("code")
        assert (told.status_code, found) in [(200, None), (201, None), (404, "session_not_found")], (page, told.text)


async def test_those_about_state_do_what_their_page_says() -> None:
    """One after the other, as somebody would who reads docs/state.md."""
    async with gateway() as (served, _):
        made = {"id": "support-42", "state": {"topic": "kelp"}}
        assert (await served.http.post("/v1/sessions", json=made)).status_code == 201
        for sent in commands(ROOT / "docs/state.md"):
            told = await served.http.request(sent.method, sent.path, headers=sent.headers, content=sent.body)
            assert told.status_code == 200, told.text
        assert (await served.http.get("/v1/sessions/support-42/state")).json() == {
            "user:theme": "dark",
            "user:owner": "support-42",
            "user:visits": 2,
            "user:places": ["Porto"],
        }
