"""Count the files that a warm turn visits and the functions that it calls: in the library, in chat and Responses requests, in searches, and
for each token of a streamed reply.

`sys.setprofile` counts in the event loop's thread and includes each resumption of a coroutine or generator. The threads of the SQLite
store are counted separately, because they work for all sessions at once. The model is a stub and the application is called as ASGI,
so neither the upstream client nor the HTTP server is counted, except in the row that names the client.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import holdfast
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table
from holdfast.agents import Llm, Roster
from holdfast.holdfast import Holdfast
from holdfast.models.base import Model
from holdfast.models.collect import to_chunks
from holdfast.models.openai import OpenAIModel
from holdfast.server.app import make_app
from holdfast.testing import Reply, ScriptedUpstream

ROOT = str(Path(holdfast.__file__).parent)
WARM = 40
"""Turns before the one that is counted, whose working set continues that of the turn before."""
SHORT, LONG = 50, 250
"""Words of two replies, whose difference shows what one token costs."""
WORDS = 11
"""Words of the model's reply, each of which is a chunk of a stream."""
ANSWER = "It is on its way and should be here by Thursday."
_NOTES = (
    "Files and own calls: those of the package. All calls: including the standard library, other packages and calls into C.",
    "Index on: includes the part of its work that falls into the turn.",
    f"Generators: async generators that each of the {WORDS} chunks of a streamed reply passes, the model client's included.",
)


class Calls:
    """Counter of the calls of one or more threads while `is_on` is set."""

    def __init__(self) -> None:
        self.is_on = False
        self.own: Counter[CodeType] = Counter()
        self.other: Counter[str] = Counter()
        self.generators: Counter[CodeType] = Counter()
        self.python = 0
        self.into_c = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count an event of `sys.setprofile`."""
        if not self.is_on:
            return
        if event == "c_call":
            self.into_c += 1
        elif event == "call":
            self.python += 1
            code = frame.f_code
            if code.co_filename.startswith(ROOT):
                self.own[code] += 1
            else:
                self.other[_name_package(code.co_filename)] += 1
            if code.co_flags & inspect.CO_ASYNC_GENERATOR:
                self.generators[code] += 1

    def make_row(self, what: str, *, streamed: bool = False) -> dict[str, Figure]:
        """Return the counts as a row of the table."""
        files = len({code.co_filename for code in self.own})
        own, python = sum(self.own.values()), self.python
        row: dict[str, Figure] = {
            "what": what,
            "files": files,
            "own": own,
            "python": python,
            "all": python + self.into_c,
        }
        if streamed:
            row["generators"] = sum(count >= WORDS for count in self.generators.values())
        return row

    def make_parts(self, what: str) -> list[dict[str, Figure]]:
        """Return a row for each package that was called, in the order of the number of its calls."""
        packages: Counter[str] = Counter()
        for code, count in self.own.items():
            part = Path(code.co_filename).relative_to(ROOT).parts
            packages[f"holdfast.{part[0].removesuffix('.py')}"] += count
        packages.update(self.other)
        return [{"what": what, "package": name, "python": count} for name, count in packages.most_common()]


def _name_package(path: str) -> str:
    """Return the package of a file: its directory in `site-packages`, or the module of the standard library."""
    parts = Path(path).parts
    for folder in ("site-packages", f"python{sys.version_info.major}.{sys.version_info.minor}"):
        if folder in parts:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return "benchmark" if "benchmarks" in parts else "built in"


async def measure(run: Run) -> list[Table]:
    """Count turns, requests and searches; turns with and without the index."""
    rows: list[dict[str, Figure]] = []
    parts: list[dict[str, Figure]] = []
    for what, count, indexes in _CASES:
        for index in indexes:
            name = f"{what}, index {'on' if index else 'off'}" if len(indexes) > 1 else what
            path = run.folder / f"calls-{len(rows)}.db"
            streamed = "streamed" in what
            llm = _make_llm(_Stub(by_word=streamed))
            loop, threads = await _count_in_store(path, llm, count, {} if index else {"index": None})
            rows += [loop.make_row(name, streamed=streamed), threads.make_row(f"{name}: the store's threads")]
            parts += loop.make_parts(name) if what == _WITH_CLIENT else ()
    tokens = await _measure_tokens(run)
    delete_files(run.folder, "calls-*")
    columns = [
        Column("what", ""),
        Column("files", "files"),
        Column("own", "own calls"),
        Column("python", "Python calls"),
        Column("all", "all calls"),
        Column("generators", "generators"),
    ]
    part_columns = [Column("what", ""), Column("package", "package"), Column("python", "Python calls")]
    return [
        Table("calls", "Calls of one warm turn", columns, rows, _NOTES),
        Table("call_parts", "Python calls of one request by package", part_columns, parts),
        tokens,
    ]


async def _measure_tokens(run: Run) -> Table:
    """Count the calls for one token of a streamed reply in each API, from the upstream client to the ASGI server."""
    rows: list[dict[str, Figure]] = []
    words, question = [SHORT], "Where is it?"
    with ScriptedUpstream(lambda _: Reply(text="word " * words[0])).in_thread() as upstream:
        client = OpenAIModel(upstream.url)
        path = run.folder / "calls-tokens.db"
        async with Holdfast(f"sqlite:///{path}", roster=Roster({"default": _make_llm(client)})) as hf:
            app, messages = make_app(hf, close=False), [{"role": "user", "content": question}]
            for api, fields in (
                ("/v1/chat/completions", {"messages": messages}),
                ("/v1/messages", {"messages": messages, "max_tokens": 1000}),
                ("/v1/responses", {"input": question}),
            ):
                counted = {}
                for words[0] in (SHORT, LONG, SHORT, LONG):  # the first two requests warm up
                    counted[words[0]] = loop = Calls()
                    body = {"model": "gpt-4o", "stream": True, **fields}
                    await _run_counted(hf, loop, Calls(), _send(app, "POST", api, body=body))
                many = LONG - SHORT
                own = counted[LONG].own - counted[SHORT].own
                frames = [code for code, count in own.items() if count >= many / 2 and code.co_flags & _RESUMABLE]
                rows.append(
                    {
                        "what": api,
                        "own": round(own.total() / many, 1),
                        "frames": len(frames),
                        "python": round((counted[LONG].python - counted[SHORT].python) / many, 1),
                    }
                )
        await client.close()
    columns = [
        Column("what", ""),
        Column("own", "own calls"),
        Column("frames", "frames"),
        Column("python", "Python calls"),
    ]
    notes = ("Frames: coroutines and asynchronous generators of the package that run for each token.",)
    return Table("call_tokens", "Calls for one token of a streamed reply", columns, rows, notes)


_RESUMABLE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


CountFunction = Callable[[Holdfast, Calls, Calls], Awaitable[None]]


async def _count_in_store(
    path: Path, llm: Llm, count: CountFunction, options: Mapping[str, Any]
) -> tuple[Calls, Calls]:
    """Open a store and count the calls of one turn, in the event loop's thread and in the store's threads."""
    loop, threads = Calls(), Calls()
    threading.setprofile(threads)
    try:
        async with Holdfast(f"sqlite:///{path}", roster=Roster({"default": llm}), **options) as hf:
            await count(hf, loop, threads)
    finally:
        threading.setprofile(None)
    return loop, threads


async def _run_counted(hf: Holdfast, loop: Calls, threads: Calls, work: Awaitable[Any]) -> Any:
    if hf.index is not None:
        await hf.index.settled()
    await asyncio.sleep(1.5)  # let the background work of earlier turns end
    sys.setprofile(loop)
    loop.is_on = threads.is_on = True
    try:
        return await work
    finally:
        loop.is_on = threads.is_on = False
        sys.setprofile(None)


def _ask(number: int) -> str:
    return f"question {number}: where is order {number}?"


async def _run_turn(hf: Holdfast, number: int) -> None:
    session = await hf.session("counted", system="You help.")
    async with session.turn(_ask(number)) as running:
        running.add(f"It is on its way, order {number}.")


async def _count_turn(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    session = await hf.session("counted", system="You help.")

    async def turn(number: int) -> None:
        async with session.turn(_ask(number)) as running:
            running.add(f"It is on its way, order {number}.")

    for number in range(WARM):
        await turn(number)
    await _run_counted(hf, loop, threads, turn(WARM))


async def _count_chat(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    await _count_requests(hf, loop, threads, _make_chat_body)


async def _count_streamed_chat(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    await _count_requests(hf, loop, threads, lambda number: _make_chat_body(number) | {"stream": True})


async def _count_chat_with_client(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    """Count a streamed chat request whose model is called over HTTP. The upstream's thread is not counted."""
    threading.setprofile(None)  # the upstream's thread
    with ScriptedUpstream(lambda _: Reply(text=ANSWER)).in_thread() as upstream:
        threading.setprofile(threads)
        client = OpenAIModel(upstream.url)
        hf.roster.replace_agents(Roster({"default": _make_llm(client)}))
        await _count_streamed_chat(hf, loop, threads)
        await client.close()


def _make_chat_body(number: int) -> dict[str, Any]:
    return {"model": "gpt-4o", "session_id": "counted", "messages": [{"role": "user", "content": _ask(number)}]}


async def _count_requests(
    hf: Holdfast, loop: Calls, threads: Calls, make_body: Callable[[int], Mapping[str, Any]]
) -> None:
    app = make_app(hf, close=False)
    path = "/v1/chat/completions"
    for number in range(WARM):
        await _send(app, "POST", path, body=make_body(number))
    await _run_counted(hf, loop, threads, _send(app, "POST", path, body=make_body(WARM)))


async def _count_responses(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    app, previous = make_app(hf, close=False), dict[str, Any]()

    async def ask(number: int) -> bytes:
        body = {"model": "gpt-4o", "input": _ask(number), "stream": True, **previous}
        return await _send(app, "POST", "/v1/responses", body=body)

    for number in range(WARM):
        events = [line[6:] for line in (await ask(number)).splitlines() if line.startswith(b"data: ")]
        previous["previous_response_id"] = json.loads(events[-1])["response"]["id"]
    await _run_counted(hf, loop, threads, ask(WARM))


async def _count_search(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    for number in range(WARM):
        await _run_turn(hf, number)
    await _wait_for_index(hf)
    await hf.search("where is order 17")
    found = await _run_counted(hf, loop, threads, hf.search("where is order 23"))
    assert found.hits


async def _count_search_request(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    app = make_app(hf, close=False)
    for number in range(WARM):
        await _run_turn(hf, number)
    await _wait_for_index(hf)
    await _send(app, "GET", "/v1/search", query="q=where+is+order+17")
    found = await _run_counted(hf, loop, threads, _send(app, "GET", "/v1/search", query="q=where+is+order+23"))
    assert json.loads(found)["data"]


async def _wait_for_index(hf: Holdfast) -> None:
    """Wait until the index has all messages."""
    assert hf.index is not None
    await hf.index.settled()


_WITH_CLIENT = "streamed chat request with its upstream client"
_CASES: tuple[tuple[str, CountFunction, tuple[bool, ...]], ...] = (
    ("library turn", _count_turn, (False, True)),
    ("chat request", _count_chat, (False, True)),
    ("streamed chat request", _count_streamed_chat, (False, True)),
    (_WITH_CLIENT, _count_chat_with_client, (True,)),
    ("streamed Responses request", _count_responses, (False, True)),
    ("search in the library", _count_search, (True,)),
    ("search request", _count_search_request, (True,)),
)


async def _send(app: Any, method: str, path: str, *, query: str = "", body: Mapping[str, Any] | None = None) -> bytes:
    """Send a request to an ASGI application; return the body of its answer.

    Raises:
        ValueError: the status is not 200.
    """
    content = b"" if body is None else json.dumps(body).encode()
    sent = [{"type": "http.request", "body": content, "more_body": False}]
    answered, status, pieces = asyncio.Event(), 0, list[bytes]()

    async def receive() -> dict[str, Any]:
        if not sent:
            await answered.wait()
            return {"type": "http.disconnect"}
        return sent.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        if message["type"] == "http.response.body":
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                answered.set()

    headers = [(b"host", b"127.0.0.1")] + ([(b"content-type", b"application/json")] if content else [])
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8377),
    }
    await app(scope, receive, send)
    if status != 200:
        raise ValueError(f"{method} {path} was answered with status {status}: {b''.join(pieces)!r}")
    return b"".join(pieces)


class _Stub:
    """A model that replies at once, in one chunk or word by word."""

    name = "stub"

    def __init__(self, *, by_word: bool) -> None:
        self._by_word = by_word

    async def stream(self, request: Mapping[str, Any], *, headers: Any = None) -> AsyncIterator[dict[str, Any]]:
        message = {"role": "assistant", "content": ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        completion = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o", "choices": [choice]}
        for chunk in to_chunks(completion, by_word=self._by_word):
            yield chunk

    async def close(self) -> None:
        """Do nothing: no connection is open."""


def _make_llm(client: Model) -> Llm:
    return Llm(name="default", model="gpt-4o", client=client)
