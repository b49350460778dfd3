"""Generated queries and forms for every route of the inspector: no 5xx, no markup from the caller, and nothing of other users.

Requests run in process. The routes come from the inspector's own list, so a new page is part of these tests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from holdfast.access import ID_RANDOM, SECRET_RANDOM, create_key
from holdfast.config.gateway import Auth
from holdfast.holdfast import Holdfast
from holdfast.server.access import Access
from holdfast.server.app import make_app
from holdfast.server.inspector.actions import ACTIONS
from holdfast.server.inspector.routes import PAGE_ROUTES
from holdfast.server.inspector.sessions import OPERATIONS
from holdfast.server.routes import Route
from holdfast.sessions.memory_files import open_memory_files
from holdfast.stores.keys import ApiKey
from tests.amounts import examples

EXAMPLES: Final = max(2, examples(40))
BASE: Final = "http://127.0.0.1"
HTML: Final = {"accept": "text/html"}
MARKUP: Final = "<img src=x onerror=1>"
"""No page may contain this unescaped."""
OF_ADA: Final = "ada-7b1f"
"""A text in all data of the user `ada`, and of no other user."""
THERE: Final[Mapping[str, str]] = {
    "session_id": "s",
    "seq": "0",
    "part": "0",
    "turn": "0",
    "name": "note",
    "agent": "default",
    "key_id": "none",
    "memory_id": "mem_" + "0" * 32,
    "user_id": "ada",
    "path": "/memories/a.md",
    "call": "next",
    "namespace": "n",
    "key": "k",
}
"""Values of parameters for which there is something."""
WORDS: Final = st.sampled_from(
    (
        *("", " ", "0", "-1", "1", "7", "1.5", "1e400", "nan", "9" * 30, "9" * 5_000, "true", "false", "null", "[]", "{}"),
        *(MARKUP, "{{ 7 * 7 }}", "a\x00b", "\u202ea", "\U0001f600", "%00", "..", "../..", "a/b", "//evil.example", "x" * 300),
        *("s", "gone", "ada", "default", "next", "last", "session", "user", "app", "json", "openai", "digest", '{"a":1}'),
    )
)  # fmt: skip
STREAMS: Final = {route.path for route in PAGE_ROUTES if route.path.endswith("/events")}
"""Streams of events do not end by themselves; the tests of each page read them."""
PAGES: Final = [route for route in PAGE_ROUTES if route.method == "GET" and route.path not in STREAMS]
FORMS: Final = [route for route in PAGE_ROUTES if route.method == "POST"]
FIELDS: Final = (
    *("action", "next", "operation", "scope", "session", "message", "session_id", "user_id", "agent", "model"),
    *("strategy", "budget", "budgets", "specs", "recordings", "namespace", "key", "value", "base", "delete", "text"),
    *("ttl", "version", "if-match", "status", "q", "unknown"),
)


class InProcessServer:
    """A server in this process with data of the users `default` and `ada`."""

    def __init__(self) -> None:
        self._hf = Holdfast("sqlite://:memory:")
        access = Access(self._hf, Auth(required=False))
        transport = httpx2.ASGITransport(app=make_app(self._hf, access=access, close=False), raise_app_exceptions=True)
        self.http = httpx2.AsyncClient(transport=transport, base_url=BASE, trust_env=False, headers=HTML)

    async def __aenter__(self) -> Self:
        await self._hf.__aenter__()
        await self.fill()
        page = (await self.http.get("/inspect/playground")).text
        [self.csrf] = set(re.findall(r'name="csrf" value="([^"]*)"', page))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self._hf.close()

    async def fill(self) -> None:
        """Create what the values in `THERE` name, for both users."""
        for user, text in (("default", MARKUP), ("ada", f"{OF_ADA} {MARKUP}")):
            query = {"user_id": user}
            messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
            await self._send("PUT", "/v1/sessions/s", query, {"messages": messages, "state": {"k": text}})
            await self._send("PATCH", "/v1/state", query, {"user:k": text})
            change = {"op": "put", "namespace": ["n"], "key": "k", "value": text}
            await self._send("POST", "/v1/records", query, {"changes": [change]})
            await self._send("POST", "/v1/memories", {}, {"content": f"The user likes {text}", **query})
            await self.http.delete(
                "/v1/sessions/s/artifacts/note", params=query
            )  # a name has a limited number of versions
            saved = await self.http.put(
                "/v1/sessions/s/artifacts/note",
                params=query,
                content=text.encode(),
                headers={"content-type": "text/plain"},
            )
            assert saved.status_code == 201, saved.text
            files = open_memory_files(self._hf.engine, user)
            if not (await files.view("/memories")).count("a.md"):
                await files.create("/memories/a.md", text)

    async def _send(self, method: str, path: str, query: Mapping[str, str], body: Any) -> None:
        answer = await self.http.request(method, path, params=query, json=body)
        assert answer.is_success, answer.text

    async def create_key(self, user_id: str) -> str:
        """Create an admin key of one user; from then on, pages need a key."""
        new = create_key(b"k" * (ID_RANDOM + SECRET_RANDOM))
        key = ApiKey(id=new.id, hash=new.hash, tenant=self._hf.tenant, user_id=user_id, role="admin", created_at=0)
        await self._hf.store.add_key(key)
        return new.text


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """Run all examples in one event loop."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def place(runner: asyncio.Runner) -> Iterator[InProcessServer]:
    place = InProcessServer()
    runner.run(place.__aenter__())
    yield place
    runner.run(place.__aexit__())


def make_path(route: Route, names: Mapping[str, str]) -> str:
    """Return the path of a route with these parameters."""
    return re.sub(r"{(\w+)}", lambda found: quote(names[found[1]], safe=""), route.path)


def make_paths(route: Route) -> st.SearchStrategy[str]:
    """Return a strategy of the route's paths; in most of them, a parameter names something that exists."""
    names = re.findall(r"{(\w+)}", route.path)
    values = {name: st.just(THERE[name]) | st.just(THERE[name]) | WORDS.filter(bool) for name in names}
    return st.fixed_dictionaries(values).map(lambda given: make_path(route, given))


def make_values(name: str) -> st.SearchStrategy[str]:
    return WORDS if name not in THERE else WORDS | st.just(THERE[name])


def list_parameters(route: Route) -> list[str]:
    return [one.encode_name for one in msgspec.structs.fields(route.query)] if route.query is not None else []


def check(answer: httpx2.Response) -> None:
    """Check that an answer is no failure of the server, and has no markup of the caller."""
    assert answer.status_code < 500, answer.text
    if answer.headers.get("content-type", "").startswith("text/html"):
        assert MARKUP not in answer.text
    assert "\n" not in answer.headers.get("location", "")


LIMITED: Final = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("route", PAGES, ids=lambda route: route.path)
def test_pages_answer_any_query(route: Route, runner: asyncio.Runner, place: InProcessServer) -> None:
    names = list_parameters(route)
    queries = st.dictionaries(st.sampled_from([*names, "unknown"]), st.text(max_size=5) | WORDS, max_size=4)
    known = st.fixed_dictionaries({}, optional={name: make_values(name) for name in names})

    @LIMITED
    @given(make_paths(route), queries | known | known)
    def one(path: str, query: dict[str, str]) -> None:
        query = {name: value.encode(errors="replace").decode() for name, value in query.items()}
        check(runner.run(place.http.get(path, params=query)))

    one()


@pytest.mark.parametrize("route", FORMS, ids=lambda route: route.path)
def test_forms_with_any_fields(route: Route, runner: asyncio.Runner, place: InProcessServer) -> None:
    """With the right `csrf`; other forms are refused before they are read."""
    fields = {name: make_values(name) for name in FIELDS}
    fields |= {"operation": WORDS | st.sampled_from(sorted(OPERATIONS)), "session": WORDS | st.just('["default","s"]')}

    @LIMITED
    @given(make_paths(route), st.fixed_dictionaries({}, optional=fields))
    def one(path: str, form: dict[str, str]) -> None:
        check(runner.run(place.http.post(path, data={"csrf": place.csrf, **form})))
        runner.run(place.fill())

    one()


@pytest.mark.parametrize("name", ACTIONS)
def test_actions_with_any_fields(name: str, runner: asyncio.Runner, place: InProcessServer) -> None:
    """Fields of the action's own kinds, with fitting and with other values."""
    action = ACTIONS[name]
    paths = {
        f"path.{one}": make_values(one) | st.just(THERE.get(one, "x")) for one in re.findall(r"{(\w+)}", action.route)
    }
    optional = {f"body.{one}": make_values(one) for one in action.kinds}
    optional |= {"body.x": WORDS, "query.user_id": WORDS, "if-match": WORDS, "next": WORDS, "path.x": WORDS}

    @LIMITED
    @given(st.fixed_dictionaries(paths, optional=optional))
    def one(form: dict[str, str]) -> None:
        data = {"csrf": place.csrf, "action": name, **form}
        check(runner.run(place.http.post("/inspect/do", data=data)))
        runner.run(place.fill())

    one()


async def test_no_page_shows_data_of_another_user() -> None:
    """A key of bob opens every page with ada as the user, and with every other value that names her data."""
    async with InProcessServer() as place:
        key = await place.create_key("bob")
        await place.http.get("/v1/sessions", headers={"x-holdfast-key": key})  # the server learns that keys exist
        headers = {"x-holdfast-key": key}
        for route in PAGES:
            names = list_parameters(route)
            path = make_path(route, THERE)
            queries = [
                {},
                {name: "ada" for name in names if name in ("user_id", "owner")},
                {name: THERE[name] for name in names if name in THERE},
                {name: "ada" if name == "owner" else OF_ADA for name in names if name in ("owner", "q")},
            ]
            for query in queries:
                answer = await place.http.get(path, params=query, headers=headers)
                assert answer.status_code < 500
                shown = answer.text.replace(quote(OF_ADA), "").replace(f'value="{OF_ADA}"', "")
                assert query.get("q") or OF_ADA not in shown, (path, query)
                assert "user likes" not in answer.text, (path, query)


def test_every_route_is_part_of_these_tests() -> None:
    assert {*PAGES, *FORMS} == {route for route in PAGE_ROUTES if route.path not in STREAMS}
    assert {name for route in PAGE_ROUTES for name in re.findall(r"{(\w+)}", route.path)} <= set(THERE)
