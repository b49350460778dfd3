"""Exchanges about memories, written down without the fields that have their usual value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from tests.behaviour.kit.exchanges import Exchange

MEMORIES: Final = "/v1/memories"
_USUAL: Final[Mapping[str, Any]] = {
    "object": "memory", "scope": "user", "type": "semantic", "tags": [], "importance": 0.5, "origin": "user", "trust": 1.0,
    "status": "active", "sources": [], "supersedes": [], "metadata": {}, "similar": [],
}  # fmt: skip


async def keep(x: Exchange, *contents: str, **fields: Any) -> list[str]:
    """Remember statements, of Ada unless the fields say otherwise; return their ids."""
    return [
        (await ask(x, "POST", MEMORIES, {"content": content, "user_id": "ada", **fields})).get("id", "")
        for content in contents
    ]


async def change(x: Exchange, memory_id: str, *, expect: str | None = None, **fields: Any) -> str:
    """Change a memory; return the id of the result."""
    headers = None if expect is None else {"if-match": expect}
    return str((await ask(x, "PATCH", f"{MEMORIES}/{memory_id}", fields, headers)).get("id", ""))


async def review(x: Exchange, memory_id: str, decision: str) -> None:
    """Review a memory."""
    await ask(x, "POST", f"{MEMORIES}/{memory_id}/review", {"decision": decision})


async def ask(x: Exchange, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
    """Send a request and write down what it says and what is unusual in the answer; return the answer."""
    x.served.clock.now += 1000
    answer = await x.served.http.request(method, path, json=body, headers=dict(headers or {}))
    found = answer.json()
    x.write(f"> {method} {path}", {**(body or {}), **{f"~{name}": value for name, value in (headers or {}).items()}})
    x.write(f"< {answer.status_code}", found.get("error") or shorten(found))
    await x.settle()
    return found


def shorten(found: Any) -> Any:
    """Leave out what is usual."""
    if isinstance(found, list):
        return [shorten(one) for one in found]
    if not isinstance(found, Mapping):
        return found
    return {name: shorten(value) for name, value in found.items() if name not in _USUAL or value != _USUAL[name]}


def table(*rows: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return rows of fields, for loops."""
    return rows


def queries(*written: str) -> tuple[dict[str, Any], ...]:
    """Return the fields of queries such as `q=tea&limit=2`."""
    return tuple(dict(parse_qsl(one)) for one in written)
