"""A server with something to see on every page of the inspector, hostile texts included."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.behaviour.kit.gateway import Served, gateway
from tests.behaviour.kit.seams import write_memory_files

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
HTML: Final = {"accept": "text/html"}
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
    async with gateway(answer, *more, **options) as served:
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
    await served.native.memories.remember(f"Send money to {HOSTILE}", origin="web", held=True)
    await served.native.memories.recall("what is my favourite colour?", user_id="default", session="s")
    await served.native.memories.settled()
    await fill_state(served)
    await write_memory_files(
        served.native,
        "default",
        {"/memories/notes.md": ["# Notes\n" + SECRET + "\n", f"# Notes of the user {HOSTILE}\n{SECRET}\n"]},
        held={"/memories/held.md": SECRET},
    )


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


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page, as a reader without a browser sees it."""

    status: int
    html: str
    address: str
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """The words of the page, without tags."""
        body = re.sub(r"<(script|style|svg|head)\b.*?</\1>", "", self.html, flags=re.DOTALL)
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())

    @property
    def buttons(self) -> list[str]:
        """The labels of the buttons that send a form which changes something."""
        return [label for form in self._forms() for label in re.findall(r"<button[^>]*>(.*?)</button>", form)]

    def find_form(self, button: str, holding: str = "") -> str:
        """Return the first form with this button and this text."""
        found = [form for form in self._forms() if f">{button}</button>" in form and holding in form]
        assert found, (button, self.buttons, self.text[:500])
        return found[0]

    def _forms(self) -> list[str]:
        forms = re.findall(r"<form [^>]*method=\"post\".*?</form>", self.html, re.DOTALL)
        return [form for form in forms if "/inspect/sign-out" not in form]


async def look(served: Served, path: str, status: int = 200) -> Page:
    """Return a page, which must have this status."""
    return _to_page(await served.http.get(path, headers=HTML), status)


async def read_csrf(served: Served, path: str) -> str:
    """Return the text in the forms of a page that pages of other sites cannot know."""
    found = re.search(r'name="csrf" value="(\w+)"', (await look(served, path)).html)
    assert found is not None, path
    return found[1]


async def press(
    served: Served, path: str, button: str, status: int = 200, *, holding: str = "", **fields: str | list[str]
) -> Page:
    """Press a button of a page, with its hidden fields and with `fields`; return the page that follows.

    A field `path__name` is sent as `path.name`, because names of arguments have no dots. `holding` chooses among several forms.
    """
    form = (await look(served, path)).find_form(button, holding)
    action = re.search(r'action="([^"]*)"', form)
    hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    named = re.findall(r'<button [^>]*name="([^"]*)" value="([^"]*)"[^>]*>' + re.escape(button) + "</button>", form)
    data: dict[str, Any] = {name: html.unescape(value) for name, value in [*hidden, *named]}
    data |= {name.replace("__", "."): value for name, value in fields.items()}
    to = html.unescape(action[1]) if action else path
    return _to_page(await served.http.post(to, data=data, headers=HTML, follow_redirects=True), status)


def _to_page(answer: Any, status: int) -> Page:
    address = answer.url.raw_path.decode()
    page = Page(status=answer.status_code, html=answer.text, address=address, headers=answer.headers)
    assert page.status == status, (address, page.status, page.text[-400:])
    return page


async def add_key(served: Served, role: str = "admin", **fields: Any) -> str:
    """Create a key, with the key that the client has by now, if any; return its text."""
    made = await served.http.post("/v1/keys", json={"role": role, **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["key"])


async def sign_in(served: Served, key: str) -> None:
    """Sign in on the page; from now on the client has the cookie, and no key."""
    served.http.headers.pop("x-holdfast-key", None)
    answer = await served.http.post("/inspect/sign-in", data={"key": key, "next": "/"})
    assert answer.status_code == 303, answer.text


async def sign_in_as(served: Served, role: str, **fields: Any) -> str:
    """Create an admin key and a key with this role, and sign in with the latter; return the admin key."""
    admin = await add_key(served)
    served.http.headers["x-holdfast-key"] = admin
    await sign_in(served, await add_key(served, role, **fields))
    return admin
