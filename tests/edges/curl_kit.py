"""Parse the curl commands of a page into requests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FORM = "application/x-www-form-urlencoded"


class Request(NamedTuple):
    """A request as curl would send it."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None


def parse_commands(page: Path) -> Iterator[Request]:
    """Yield the requests of the page's shell blocks, in order."""
    for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.DOTALL):
        for found in re.finditer(r"^curl (?:\\\n|'[^']*'|[^'\n\\])*", block, re.MULTILINE):
            yield parse_request(shlex.split(found[0]))


def parse_request(words: list[str]) -> Request:
    """Parse one curl command; each option has one value."""
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
