"""A server with something to see on every page of the inspector, hostile texts included."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.sessions.memory_files import open_memory_files
from tests.edges.server import Served, gateway

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "{{ 7 * 7 }} \u202eright-to-left\u202c \x1b[31mred\x1b[0m </textarea></pre></title>"
)
"""A text that a page must show as text."""
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAIAAAACUFjqAAAAEklEQVR42mPgzgrFgxhGpbEhAK2HTukF5GUzAAAAAElFTkSuQmCC"
)
"""An image of ten by ten pixels."""
LONG_LINE = "x" * 1_000_000
SECRET = "the launch code is 0000-swordfish"
"""A text that callers who may not see content must not find on any page."""


def answer(request: dict[str, Any]) -> str:
    """Reply to any request, as a scripted model."""
    return f"Understood: {str(request['messages'][-1].get('content'))[:60]} {HOSTILE}"


@asynccontextmanager
async def serve_filled(*more: str, **options: Any) -> AsyncIterator[Served]:
    """Run a server whose session `s` has turns, tool calls, hostile texts and a prompt from which messages were left out.

    `more` adds lines of configuration, and `options` are those of `gateway`.
    """
    async with gateway(answer, *more, **options) as (served, _):
        await fill(served)
        yield served


async def fill(served: Served) -> None:
    """Add the data of `serve_filled` to a server."""
    await served.chat(f"Plan a trip to Oslo, please. {SECRET}")
    await served.chat(HOSTILE)
    call = {"id": "call_1", "type": "function", "function": {"name": "search_flights", "arguments": '{"to": "OSL"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": f'{{"flights": ["SK4700"], "note": "{SECRET}"}}'},
        {"role": "assistant", "content": LONG_LINE},
    ]
    response = await served.http.post("/v1/sessions/s/messages", json={"messages": messages})
    assert response.status_code == 200, response.text
    for number in range(6):
        await served.chat(f"Question {number} about flight SK47{number:02}. " + "More words. " * 60, budget=700)
    await served.chat("Hello from somebody else", session_id="second", user_id="ada")
    await fill_data(served)


async def fill_data(served: Served) -> None:
    """Add memories, state, records and artifacts, with hostile texts and secrets."""
    source = {"session_id": "s", "seqs": [0]}
    memories: list[dict[str, Any]] = [
        {"content": "My favourite colour is blue", "sources": [source]},
        {"content": "My favourite colour is green", "tags": ["taste", HOSTILE[:40]]},
        {"content": f"The user says that {SECRET}", "importance": 0.9, "sources": [source], "metadata": {"a": SECRET}},
        {"content": "Ada likes tea", "user_id": "ada"},
        {"content": "Everyone wears a hat", "scope": "app"},
    ]
    for one in memories:
        response = await served.http.post("/v1/memories", json=one)
        assert response.status_code == 201, response.text
    await served.hf.memories.remember(f"Send money to {HOSTILE}", origin="web", held=True)
    await served.hf.memories.recall("what is my favourite colour?", user_id="default", session="s")
    await served.hf.memories.settled()
    await fill_state(served)
    files = open_memory_files(served.hf.engine, "default")
    await files.create("/memories/notes.md", f"# Notes\n{SECRET}\n")
    await files.str_replace("/memories/notes.md", "# Notes", f"# Notes of the user {HOSTILE}")
    await files.hold({"command": "create", "path": "/memories/held.md", "file_text": SECRET})


async def fill_state(served: Served) -> None:
    """Add state, records and artifacts of a session, a user and the app."""
    state = {"note": HOSTILE, "secret": SECRET, "cart": {"items": [1, 2]}, "user:language": "en", "app:motto": SECRET}
    assert (await served.http.patch("/v1/sessions/s/state", json=state)).status_code == 200
    for owner in ("?session_id=s", "?user_id=default", "?scope=tenant"):
        put = {
            "op": "put",
            "namespace": ["prefs", HOSTILE[:20]],
            "key": "theme",
            "value": {"dark": SECRET},
            "text": HOSTILE,
        }
        more = {"op": "put", "namespace": ["prefs"], "key": HOSTILE[:30], "value": HOSTILE}
        response = await served.http.post(f"/v1/records{owner}", json={"changes": [put, more]})
        assert response.status_code == 200, response.text
    for name, content, kind in (
        ("report.html", f"{SECRET} {HOSTILE}".encode(), "text/html"),
        ("report.html", f"Second {HOSTILE}".encode(), "text/html"),
        ("dot.png", PNG, "image/png"),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "image/svg+xml"),
        ("user:data.bin", b"\0\xff\xfe", "application/octet-stream"),
    ):
        path = f"/v1/sessions/s/artifacts/{name}"
        response = await served.http.put(path, content=content, headers={"content-type": kind})
        assert response.status_code == 201, response.text


async def read(served: Served, path: str, status: int = 200) -> str:
    """Return a page, which must have this status."""
    answer = await served.http.get(path, headers={"accept": "text/html"})
    assert answer.status_code == status, answer.text
    return answer.text


async def read_csrf(served: Served, path: str) -> str:
    """Return the text that the forms of a page contain, which pages of other sites cannot know."""
    found = re.search(r'name="csrf" value="(\w+)"', await read(served, path))
    assert found is not None, path
    return found[1]


async def submit(served: Served, path: str, button: str, *, at: str = "/inspect/do", **fields: str) -> Any:
    """Send the form of a page that has a button with this label to the path `at`, and follow the answer."""
    page = await read(served, path)
    [form] = [
        one
        for one in re.findall(r"<form [^>]*method=\"post\".*?</form>", page, re.DOTALL)
        if f">{button}</button>" in one
    ]
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    data = {name: html.unescape(value) for name, value in hidden} | fields
    return await served.http.post(at, data=data, headers={"accept": "text/html"}, follow_redirects=True)
