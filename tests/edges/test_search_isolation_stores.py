"""Search isolation on several stores: users said the same words; through every API each finds only their own, and
filters are exact.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.context.recalled import OPENING
from holdfast.domain.memory import Memory, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidRequest
from holdfast.holdfast import Holdfast
from holdfast.search.queries import SearchResults
from holdfast.testing import Reply, ScriptedUpstream
from tests.amounts import examples
from tests.clocks import START, Clock
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import Served, gateway
from tests.markers import strip_markers
from tests.stores.servers import place

WORDS = "the gate code of the harbour is"
SECRETS = {("default", "ada"): "1111", ("default", "bob"): "2222", ("t2", "ada"): "3333"}
"""What each has said beside the same words, by tenant and user."""
Who = tuple[str, str]
Call = tuple[str, dict[str, Any]]
AGENTS = """agents: {desk: {llm: default, tools: [search_conversations, memory], search: {enabled: true}, memory: {enabled: true}}}
auth: {required: true}"""
MINUTE = 60_000
SESSIONS = ("same", "of ada", "of bob", "nowhere")


class Line(NamedTuple):
    """One stored message."""

    session: str
    seq: int
    role: str
    agent: str | None
    at: int


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store."""
    with place(request.param, tmp_path) as found:
        yield found


def answer(calls: list[Call], _: dict[str, Any]) -> Any:
    """Return the model's reply: first the calls that a test wants, then text."""
    some = calls.copy()
    calls.clear()
    return Reply(tool_calls=some) if some else "ok"


class World:
    """A server with conversations and memories of all users.

    Attributes:
        said: the messages of each user.
        kept: the memories of each user.
        keys: headers of each user: with their own key, and with one of the tenant.
        calls: the calls that the model makes next.
    """

    def __init__(self, served: Served, upstream: ScriptedUpstream, calls: list[Call]) -> None:
        self.served = served
        self.upstream = upstream
        self.said: dict[Who, list[Line]] = {}
        self.kept: dict[Who, list[Memory]] = {}
        self.keys: dict[Who, tuple[dict[str, str], ...]] = {}
        self.calls = calls

    @asynccontextmanager
    async def of(self, who: Who) -> AsyncIterator[Holdfast]:
        """Yield the Holdfast instance of the caller's tenant."""
        async with self.served.hf.serve_tenant(who[0]) as hf:
            yield hf

    async def fill(self) -> None:
        """Store conversations of all users."""
        for who, secret in SECRETS.items():
            tenant, user = who
            wide, own = (
                await create_stored_key(self.served.hf, tenant=tenant),
                await create_stored_key(self.served.hf, tenant=tenant, user_id=user),
            )
            self.keys[who] = bearer(own), bearer(wide)
            self.said[who], self.kept[who] = [], []
            async with self.of(who) as hf:
                for session_id, agent in (("same", "desk"), (f"of {user}", None)):
                    await self._talk(hf, who, session_id, agent, secret)
                for text in (f"{WORDS} {secret}", f"the harbour gate of {secret} is red"):
                    self.kept[who].append((await hf.memories.remember(text, user_id=user, tags=["gate"])).memory)
                assert hf.engine.index is not None
                await hf.engine.index.settled()

    async def _talk(self, hf: Holdfast, who: Who, session_id: str, agent: str | None, secret: str) -> None:
        session = await hf.session(session_id, user_id=who[1], agent=agent)
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        turns: list[dict[str, Any]] = []
        for number in range(2):
            turns += [
                {"role": "user", "content": f"{WORDS} {secret} {number}"},
                {"role": "assistant", "content": f"the gate code {secret}", "tool_calls": [call]},
                {"role": "tool", "content": f"harbour {secret}", "tool_call_id": "c"},
                {"role": "assistant", "content": f"so the code is {secret}"},
            ]
        stamped = [{**one, "timestamp": START - MINUTE * (len(turns) - at)} for at, one in enumerate(turns)]
        await session.append(stamped)
        self.said[who] += [
            Line(session_id, one.seq, one.message.role, one.agent, one.timestamp)
            for one in await hf.store.entries(session.ref)
        ]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def world(runner: asyncio.Runner, url: str) -> Iterator[World]:
    calls: list[Call] = []
    opened = gateway(partial(answer, calls), AGENTS, store=url, clock=Clock())
    served, upstream = runner.run(opened.__aenter__())
    try:
        made = World(served, upstream, calls)
        runner.run(made.fill())
        yield made
    finally:
        runner.run(opened.__aexit__(None, None, None))


# -- questions -------------------------------------------------------------------------

_moments = st.integers(-1, 9).map(lambda at: START - at * MINUTE)
_known = st.sampled_from([WORDS, "harbour", "gate code", "so the code is"])
_strange = st.sampled_from(
    [
        *("1111", "2222", "3333 OR 2222", 'user:"bob" code', "*", "of bob#0", "%", "gate\x00code"),
        *("what did I ask today?", "what did bob say yesterday about the code?"),
    ]
)
_queries = st.one_of(_known, _known, _known, _strange, st.text(min_size=1, max_size=20))
_who = st.sampled_from(sorted(SECRETS))
PLAIN: dict[str, Any] = {
    **dict.fromkeys(("session_id", "agent", "role", "since", "until", "mode")),
    "time": "auto",
    "limit": 100,
    "neighbours": 0,
    "session_level": False,
}
FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "session_id": st.sampled_from(SESSIONS),
    "agent": st.sampled_from(["desk", "bob", "ada", "nobody"]),
    "role": st.sampled_from(["user", "assistant", "tool"]),
    "since": _moments,
    "until": _moments,
    "time": st.just("off"),
    "mode": st.sampled_from(["keyword", "hybrid"]),
    "limit": st.integers(1, 5),
    "neighbours": st.integers(1, 10),
    "session_level": st.just(value=True),
}


class Question(NamedTuple):
    """A query, its user, and the user whose cursor it continues from."""

    who: Who
    query: str
    filters: dict[str, Any]
    page: Who | None
    """Whose search the cursor is from; None: there is none."""


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Return a question with some filters."""
    names = draw(st.sets(st.sampled_from(sorted(FILTERS)), max_size=4))
    filters = {**PLAIN, **{name: draw(FILTERS[name]) for name in sorted(names)}}
    return Question(draw(_who), draw(_queries), filters, draw(st.none() | _who))


def matches(line: Line, filters: dict[str, Any]) -> bool:
    """Return True if the filters match a message, according to the log."""
    named = {"session_id": line.session, "agent": line.agent, "role": line.role}
    return (
        all(filters[name] in (None, value) for name, value in named.items())
        and (filters["role"] == "tool") == (line.role == "tool")
        and (filters["since"] is None or line.at >= filters["since"])
        and (filters["until"] is None or line.at < filters["until"])
    )


def assert_nothing_of_others(who: Who, shown: Any) -> None:
    """Fail if another user's secret appears as a word; a hash may contain its digits by chance."""
    words = set(re.findall(r"\w+", json.dumps(shown, default=str)))
    assert not [secret for other, secret in SECRETS.items() if other != who and secret in words]


def run_check(
    check: Callable[[World, Any], Awaitable[int]],
    runner: asyncio.Runner,
    world: World,
    strategy: st.SearchStrategy[Any],
    count: int,
) -> None:
    """Run a check with `count` examples, and require that some of them find something."""
    found: list[int] = []

    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(asked: Any) -> None:
        found.append(runner.run(check(world, asked)))  # type: ignore[arg-type]  # it is a coroutine

    one()
    assert sum(map(bool, found)) > len(found) // 10


# -- conversations -----------------------------------------------------------------------


async def cursor(world: World, asked: Question) -> str | None:
    """Return the cursor after the first hit of that user's search, or None."""
    if asked.page is None:
        return None
    async with world.of(asked.page) as hf:
        try:
            hits = (await hf.search(asked.query, asked.page[1], **asked.filters)).hits
        except InvalidRequest:
            return None
    return hits[0].cursor if hits else None


async def run_search(world: World, asked: Question, after: str | None) -> SearchResults | InvalidRequest:
    async with world.of(asked.who) as hf:
        try:
            return await hf.search(asked.query, asked.who[1], **asked.filters, after=after)
        except InvalidRequest as refused:
            return refused


async def check_search(world: World, asked: Question) -> int:
    """Check library and REST, whose answers must agree; return the number of hits."""
    after = await cursor(world, asked)
    found = await run_search(world, asked, after)
    await check_rest(world, asked, after, found)
    if isinstance(found, InvalidRequest):
        assert is_refused(asked, found)
        return 0
    assert after is None or asked.page == asked.who
    own = {(line.session, line.seq): line for line in world.said[asked.who]}
    for hit in found.hits:
        assert matches(own[hit.session_id, hit.seq], asked.filters)
        assert_nothing_of_others(asked.who, [hit.snippet, [one.text for one in (*hit.before, *hit.after)]])
    answer = [(hit.session_id, hit.seq) for hit in found.hits]
    assert len(set(answer)) == len(answer)
    if after is None and asked.query == WORDS and not asked.filters["session_level"] and asked.filters["limit"] == 100:
        assert set(answer) == {place for place, line in own.items() if matches(line, asked.filters)}
    return len(found.hits)


def is_refused(asked: Question, refused: InvalidRequest) -> bool:
    """Return True if the refused parameter really is invalid."""
    if refused.param == "until":
        return bool(asked.filters["since"] >= asked.filters["until"])
    if refused.param == "query":
        return not asked.query.strip()
    return refused.param == "after" and asked.page is not None and asked.page != asked.who


async def check_rest(world: World, asked: Question, after: str | None, found: SearchResults | InvalidRequest) -> None:
    """Check REST with the user's key and with a tenant-wide key that names the user."""
    level = "session" if asked.filters["session_level"] else "message"
    given = {**asked.filters, "level": level, "q": asked.query, "after": after, "user_id": asked.who[1]}
    parameters = {name: value for name, value in given.items() if value is not None and name != "session_level"}
    for headers in world.keys[asked.who]:
        answer = await world.served.http.get("/v1/search", params=parameters, headers=headers)
        if isinstance(found, InvalidRequest):
            assert answer.status_code == 400
            continue
        assert answer.status_code == 200, answer.text
        shown = answer.json()["data"]
        assert [one["id"] for one in shown] == [hit.cursor for hit in found.hits]
        told = [(one["snippet"], one["neighbours"]) for one in shown]
        assert_nothing_of_others(asked.who, told)


def test_no_search_finds_another_users_messages(runner: asyncio.Runner, world: World) -> None:
    run_check(check_search, runner, world, questions(), examples(80))


# -- memories -----------------------------------------------------------------------------


class Recall(NamedTuple):
    """A query for memories, and the user whose memory a list continues after."""

    who: Who
    query: str
    filters: dict[str, Any]
    page: Who


RECALL_FILTERS: dict[str, st.SearchStrategy[Any]] = {
    "tag": st.sampled_from(["gate", "bob"]),
    "type": st.sampled_from(["semantic", "project"]),
    "status": st.sampled_from(["active", "quarantined"]),
    "agent": st.sampled_from(["desk", "bob", "ada"]),
    "limit": st.integers(1, 20),
}
RECALL_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "mode": st.sampled_from(["keyword", "hybrid"]),
    "min_score": st.sampled_from([0, 0.1, 0.9]),
}


@st.composite
def recalls(draw: st.DrawFn) -> Recall:
    """Return a query for memories with some filters."""
    known = RECALL_FILTERS | RECALL_ONLY
    names = draw(st.sets(st.sampled_from(sorted(known)), max_size=3))
    return Recall(draw(_who), draw(_queries), {name: draw(known[name]) for name in sorted(names)}, draw(_who))


async def check_memories(world: World, asked: Recall) -> int:
    """Check recall, list and read over REST with both keys; return the number of results."""
    own = {one.id: one for one in world.kept[asked.who]}
    found = 0
    for headers in world.keys[asked.who]:

        async def ask(headers: dict[str, str] = headers, **parameters: Any) -> Any:
            given = {"user_id": asked.who[1], **parameters}
            return await world.served.http.get("/v1/memories", params=given, headers=headers)

        answer = await ask(q=asked.query, **asked.filters)
        assert answer.status_code in (200, 400), answer.text
        listed = {name: value for name, value in asked.filters.items() if name not in RECALL_ONLY}
        behind = world.kept[asked.page][0]
        whole, page = await ask(**listed), await ask(after=behind.id, **listed)
        assert page.status_code == (200 if asked.page == asked.who else 404)
        for shown in (answer, whole, page):
            data = shown.json().get("data", [])
            assert all(one["id"] in own and one["content"] == own[one["id"]].content for one in data)
            assert all(asked.filters.get(name) in (None, one[name]) for name in ("type", "status") for one in data)
            assert all("tag" not in asked.filters or asked.filters["tag"] in one["tags"] for one in data)
            assert_nothing_of_others(asked.who, data)
        if headers == world.keys[asked.who][0]:  # a tenant-wide key addresses a memory by its id alone
            one = await world.served.http.get(f"/v1/memories/{behind.id}", headers=headers)
            assert one.status_code == (200 if asked.page == asked.who else 404)
        found += len(answer.json().get("data", []))
    return found


async def memories(world: World, who: Who) -> tuple[Memory, ...]:
    """Return a user's memories."""
    async with world.of(who) as hf:
        return (await hf.memories.page(Owner("user", who[1]))).memories


def test_no_recall_finds_another_users_memories(runner: asyncio.Runner, world: World) -> None:
    run_check(check_memories, runner, world, recalls(), examples(40))


# -- the model's tools ---------------------------------------------------------------------


class Called(NamedTuple):
    """A user message, and the arguments that the model then passes to its tools."""

    who: Who
    text: str
    search: dict[str, Any]
    recall: dict[str, Any]


_stamps = _moments.map(str)
_more: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {}, optional={"max_results": st.integers(1, 5), "since": _stamps, "until": _stamps}
) | st.fixed_dictionaries({}, optional={"session_id": st.sampled_from(SESSIONS)})
_made_up: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{"user_id": "bob"}, {"tenant": "t2"}, {"agent": "ada"}])
_nothing: st.SearchStrategy[dict[str, Any]] = st.just({})
_modes = st.fixed_dictionaries(
    {}, optional={"limit": st.integers(1, 20), "mode": st.sampled_from(["keyword", "hybrid"])}
)


@st.composite
def calls(draw: st.DrawFn) -> Called:
    """Return known arguments of the tools, with some invented ones."""
    extra = _nothing | _nothing | _nothing | _made_up
    search = {"query": draw(_queries), **draw(_more), **draw(extra)}
    recall = {"action": "recall", "query": draw(_queries), **draw(_modes), **draw(extra)}
    return Called(draw(_who), draw(_known), search, recall)


async def check_tools(world: World, asked: Called) -> int:
    """Run a turn whose model calls both tools and tries to forget other users' memories; return the number of useful
    results.
    """
    others = [one.id for other, some in world.kept.items() if other != asked.who for one in some]
    forgets = [("memory", {"action": "forget", "id": one}) for one in others]
    world.calls += [("search_conversations", asked.search), ("memory", asked.recall), *forgets]
    before, ref = len(world.upstream.requests), SessionRef(asked.who[1], "asking")
    async with world.of(asked.who) as hf:
        try:
            await (await hf.session(ref.id, user_id=ref.user_id, agent="desk")).send(asked.text)
        finally:
            await hf.delete(ref)
    first, second = (received.body["messages"] for received in world.upstream.requests[before:])
    results = {one["tool_call_id"]: one["content"] for one in second if one["role"] == "tool"}
    ids = [call["id"] for one in second for call in one.get("tool_calls", ())]
    assert sorted(ids) == sorted(results)
    assert len(ids) == 2 + len(others)
    assert all("there is no memory" in results[one] for one in ids[2:])
    recalled = [text for one in (*first, *second) if (text := strip_markers(one.get("content"))).startswith(OPENING)]
    assert recalled
    told = [line for content in (*recalled, results[ids[0]], results[ids[1]]) for line in content.splitlines()]
    lines = [json.loads(line) for line in told if line.startswith('{"') and "error" not in json.loads(line)]
    assert_nothing_of_others(asked.who, lines)
    return sum(SECRETS[asked.who] in results[one] for one in ids[:2])


def test_no_tool_gives_a_model_another_users_data(runner: asyncio.Runner, world: World) -> None:
    run_check(check_tools, runner, world, calls(), examples(40))
    for who, kept in world.kept.items():
        page = runner.run(memories(world, who))
        assert {one.id for one in kept} == {one.id for one in page}
