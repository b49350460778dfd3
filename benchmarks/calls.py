"""Count the files that a warm turn visits and the functions that it calls, for a library turn and for a chat request.

`sys.setprofile` counts in the event loop's thread and includes each resumption of a coroutine or generator. The threads of the SQLite
store are counted separately, because they work for all sessions at once. The model is a stub and the application is called as ASGI,
so neither the upstream client nor the HTTP server is counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from benchmarks.run import Run, delete_files
from benchmarks.tables import Column, Figure, Table
from holdfast.agents import Llm, Roster
from holdfast.holdfast import Holdfast
from holdfast.models import to_chunks
from holdfast.server.app import make_app

ROOT = str(Path(holdfast.__file__).parent)
WARM = 40
"""Turns before the one that is counted, whose working set continues that of the turn before."""
_NOTES = (
    "Files and own calls: those of the package. All calls: including the standard library, other packages and calls into C.",
    "Index on: includes the part of its work that falls into the turn.",
)


class Calls:
    """Counter of the calls of one or more threads while `is_on` is set."""

    def __init__(self) -> None:
        self.is_on = False
        self.own: Counter[tuple[str, str]] = Counter()
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
                self.own[code.co_filename, code.co_qualname] += 1

    def make_row(self, what: str) -> dict[str, Figure]:
        """Return the counts as a row of the table."""
        files = len({name for name, _ in self.own})
        own, python = sum(self.own.values()), self.python
        return {"what": what, "files": files, "own": own, "python": python, "all": python + self.into_c}


async def measure(run: Run) -> list[Table]:
    """Count a library turn and a chat request, with and without the index."""
    rows: list[dict[str, Figure]] = []
    for index in ({"index": None}, {}):
        suffix = "index on" if not index else "index off"
        for what, count in (("library turn", _count_turn), ("chat request", _count_request)):
            rows += await _count_in_store(run.folder / f"calls-{len(rows)}.db", f"{what}, {suffix}", count, index)
    delete_files(run.folder, "calls-*")
    columns = [
        Column("what", ""),
        Column("files", "files"),
        Column("own", "own calls"),
        Column("python", "Python calls"),
        Column("all", "all calls"),
    ]
    return [Table("calls", "Calls of one warm turn", columns, rows, _NOTES)]


CountFunction = Callable[[Holdfast, Calls, Calls], Awaitable[None]]


async def _count_in_store(
    path: Path, what: str, count: CountFunction, options: Mapping[str, Any]
) -> list[dict[str, Figure]]:
    """Open a store and count the calls of one turn, in the event loop's thread and in the store's threads."""
    loop, threads = Calls(), Calls()
    threading.setprofile(threads)
    try:
        async with Holdfast(f"sqlite:///{path}", roster=Roster({"default": LLM}), **options) as hf:
            await count(hf, loop, threads)
    finally:
        threading.setprofile(None)
    return [loop.make_row(what), threads.make_row(f"{what}: the store's threads")]


async def _run_counted(loop: Calls, threads: Calls, work: Awaitable[Any]) -> Any:
    await asyncio.sleep(1.5)  # let the background work of earlier turns end
    sys.setprofile(loop)
    loop.is_on = threads.is_on = True
    try:
        return await work
    finally:
        loop.is_on = threads.is_on = False
        sys.setprofile(None)


async def _count_turn(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    session = await hf.session("counted", system="You help.")

    async def turn(number: int) -> None:
        async with session.turn(f"question {number}: where is order {number}?") as running:
            running.add(f"It is on its way, order {number}.")

    for number in range(WARM):
        await turn(number)
    await _run_counted(loop, threads, turn(WARM))


async def _count_request(hf: Holdfast, loop: Calls, threads: Calls) -> None:
    app = make_app(hf, close=False)

    async def ask(number: int) -> int:
        message = {"role": "user", "content": f"question {number}: where is order {number}?"}
        return await _post(app, {"model": "gpt-4o", "session_id": "counted", "messages": [message]})

    for number in range(WARM):
        assert await ask(number) == 200
    assert await _run_counted(loop, threads, ask(WARM)) == 200


async def _post(app: Any, body: Mapping[str, Any]) -> int:
    """Post a chat request to an ASGI application; return the status."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    answered, status = asyncio.Event(), 0

    async def receive() -> dict[str, Any]:
        if not sent:
            await answered.wait()
            return {"type": "http.disconnect"}
        return sent.pop()

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            answered.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8377),
    }
    await app(scope, receive, send)
    return status


class _Stub:
    """A model that replies at once."""

    name = "stub"

    async def stream(self, request: Mapping[str, Any], *, headers: Any = None) -> AsyncIterator[dict[str, Any]]:
        message = {"role": "assistant", "content": "It is on its way, and should be with you on Thursday."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        completion = {"id": "chatcmpl-1", "created": 1, "model": "gpt-4o", "choices": [choice]}
        for chunk in to_chunks(completion):
            yield chunk

    async def close(self) -> None:
        """Do nothing: no connection is open."""


LLM = Llm(name="default", model="gpt-4o", client=_Stub())
