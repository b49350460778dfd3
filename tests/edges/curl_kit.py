"""The curl commands of a page, and the requests that they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

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
