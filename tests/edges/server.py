"""A real server on a free loopback port.

`serving` runs it in the test's own event loop, so that a test can inspect the store and move the clock; `Process`
runs the code of `holdfast serve` in a process that can be killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx2
import msgspec
import uvicorn
from openai import AsyncOpenAI

from holdfast.config.build import build_life_settings, build_roster, create_holdfast
from holdfast.config.loader import load
from holdfast.config.model import Config
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.models.limited import LimitedModel
from holdfast.server.app import make_app
from holdfast.server.body_limits import BodyLimits
from holdfast.server.protocol import make_protocol
from holdfast.server.run import create_access
from holdfast.testing import ScriptedUpstream
from tests.clocks import Pauses, TickingClock
from tests.edges import forked_servers

UPSTREAM_KEY = "sk-upstream-0123456789abcdef"
CLIENT_KEY = "sk-client-fedcba9876543210"
PROGRAM = ("-m", "holdfast", "serve")
TOOL_SERVER = (str(Path(__file__).with_name("tool_server.py")),)
"""A program with a tool of its own, whose claims expire sooner: for tests that kill it and ask the next one."""


@dataclass(kw_only=True)
class Served:
    """A running server and its clients."""

    url: str
    hf: Holdfast
    server: uvicorn.Server
    http: httpx2.AsyncClient
    client: Any
    """An `AsyncOpenAI` that tries nothing again by itself. (Its overloads want literal types; tests pass what may be wrong.)"""

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return int(self.url.rpartition(":")[2])

    async def chat(self, text: str | list[dict[str, Any]], session_id: str | None = "s", **fields: Any) -> Any:
        """Run one turn without streaming; return the decoded answer, with its status as `status`."""
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        headers = fields.pop("headers", {})
        body = {"messages": messages, **({"session_id": session_id} if session_id else {}), **fields}
        response = await self.http.post("/v1/chat/completions", json=body, headers=headers)
        return {"status": response.status_code, "headers": response.headers, **response.json()}

    async def log(self, session_id: str = "s", user_id: str = "default") -> list[tuple[str, Any]]:
        """Return role and content of the live entries."""
        entries = await self.hf.store.entries(SessionRef(user_id, session_id))
        return [(entry.message.role, entry.message.content) for entry in entries]


def config_text(upstream: str, *more: str) -> str:
    """Return a configuration whose default model is at `upstream`."""
    llm = {
        "model": "gpt-4o",
        "base_url": upstream,
        "api_key": UPSTREAM_KEY,
        "timeout": "20s",
        "profile": "openai",
    }
    return "\n".join([f"llms: {json.dumps({'default': llm})}", *more])


@asynccontextmanager
async def serving(
    config: str,
    *,
    store: str = "sqlite://:memory:",
    limits: BodyLimits | None = None,
    retries: bool = False,
    clock: Callable[[], int] | None = None,
) -> AsyncIterator[Served]:
    """Run a server with that configuration in this event loop, on a real socket.

    Args:
        config: the YAML.
        store: URL of the store.
        limits: request limits; by default those of the configuration.
        retries: whether model calls are retried, without a pause.
        clock: milliseconds; by default it advances on each read.
    """
    found = load(config, env={})
    roster = build_roster(found)
    for llm in roster.llms.values():
        client = llm.client.model if isinstance(llm.client, LimitedModel) else llm.client
        for name, value in (("_sleep", Pauses()), ("_max_retries", 2 if retries else 0)):
            if hasattr(client, name):
                setattr(client, name, value)
    found = msgspec.structs.replace(found, store=store)
    hf = create_holdfast(found, roster=roster, clock=clock or TickingClock(), life=build_life_settings(found))
    async with (
        hf,
        run_server(hf, found, limits) as (url, server),
        httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=CLIENT_KEY, max_retries=0, http_client=http) as openai,
    ):
        yield Served(url=url, hf=hf, server=server, http=http, client=openai)


@asynccontextmanager
async def run_server(
    hf: Holdfast, found: Config, limits: BodyLimits | None = None, *, port: int = 0
) -> AsyncIterator[tuple[str, uvicorn.Server]]:
    """Serve an open `Holdfast` in this event loop; its address, and the server.

    Args:
        hf: what the server serves.
        found: the configuration.
        limits: request limits; by default those of the configuration.
        port: the port; 0: any.
    """
    settings = uvicorn.Config(
        make_app(
            hf,
            found.gateway,
            limits=limits,
            access=create_access(hf, found),
            inspector=found.inspector,
            close=False,
        ),
        http=make_protocol(found.gateway.send_timeout),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    server = Quiet(settings)
    listening = socket.socket(
        proto=socket.IPPROTO_TCP
    )  # see `holdfast.server.run`: without it every reply takes 40 ms longer
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    running = asyncio.create_task(server.serve(sockets=[listening]))
    await server.listens.wait()
    try:
        yield url, server
    finally:
        server.ends.set()
        await running


class Quiet(uvicorn.Server):
    """A uvicorn server that ignores the test's signals, reports when it listens, and stops on request."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self.ends = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    async def main_loop(self) -> None:
        await self.ends.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, without its pause."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while tasks := list(self.server_state.tasks):
            await asyncio.wait(tasks)
        await self.lifespan.shutdown()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)


@asynccontextmanager
async def gateway(
    script: Sequence[Any] | Callable[[dict[str, Any]], Any] = (), *more: str, **options: Any
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Run a server in front of an upstream that follows a script; `more` adds lines of configuration."""
    async with ScriptedUpstream(script) as upstream, serving(config_text(upstream.url, *more), **options) as served:
        yield served, upstream


def _start(program: Sequence[str], env: Mapping[str, str]) -> forked_servers.Copy | subprocess.Popen[str]:
    """Run a program. Program text gets a new interpreter, because it may check which modules are loaded."""
    if program[0] != "-c":
        return forked_servers.template().copy(program, env)
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, *program], stdout=pipe, stderr=pipe, text=True, env=env)


class Process:
    """The server in its own process; its output is kept in `log`.

    Args:
        store: the store's URL.
        config: a file, or None.
        env: additional environment variables.
        program: arguments of Python.
    """

    def __init__(
        self,
        store: str,
        *,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        known = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        own = {"HOLDFAST_STORE": store, "HOLDFAST_PORT": "0", **({"HOLDFAST_CONFIG": str(config)} if config else {})}
        self.process = _start(program, known | own | dict(env or {}))
        self.log: list[str] = []
        self._bell = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.rpartition(" ")[2].strip()
        assert self.url.startswith("http://"), (line, self.log)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._bell.set()

    def until(self, text: str, since: int = 0) -> None:
        """Wait until a line of the log after the first `since` contains `text`."""
        while not any(text in line for line in self.log[since:]):
            assert self._bell.wait(timeout=30), (text, self.log)
            self._bell.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the process without a chance to clean up."""
        self.process.kill()
        self._wait_for_end()

    def stop(self, signal: int) -> int:
        """Send it a signal; return its exit code."""
        self.process.send_signal(signal)
        return self._wait_for_end()

    def _wait_for_end(self) -> int:
        code = self.process.wait(timeout=60)
        self._reader.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code
