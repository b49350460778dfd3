"""The only file of these tests that knows the inside of the product: how to serve an open `Holdfast` in this process.

A program does this with `holdfast.serve`, in a process of its own. Tests serve in their own event loop, so that they can move the
clock. A rewrite of the inside changes this file, and no test.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.cli import commands
from holdfast.config.loader import load_settings
from holdfast.context import escaping
from holdfast.engine.session_lock import LEASE
from holdfast.faults import inject
from holdfast.hooks.transcripts import find_transcripts
from holdfast.models.limited import LimitedModel
from holdfast.server.inspector import live
from holdfast.server.replies import make_failure_reply
from holdfast.sessions.memory_files import open_memory_files
from holdfast.stores import sqlite_nearest
from holdfast.turns import recall
from tests.behaviour.kit.command_line import Printed
from tests.clocks import Clock, Pauses
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import TOOL_SERVER, Process, config_text, run_server
from tests.stores.servers import reach
from tests.waits import until

__all__ = [
    "Clock",
    "Process",
    "bearer",
    "count_connections",
    "count_queued",
    "count_runs",
    "count_tasks",
    "count_waiting",
    "create_stored_key",
    "early_sketches",
    "fast_updates",
    "fresh_store",
    "hide_mcp",
    "inject",
    "make_failure_reply",
    "numbered_keys",
    "open_library",
    "reach",
    "read_schema",
    "run_command",
    "serve",
    "start_tool_server",
    "steady_prompts",
    "sweep_pause",
    "tune_models",
    "until",
    "write_memory_files",
]


def open_library(
    config: Path, store: str, *, retries: int = 0, env: Mapping[str, str] | None = None, **settings: Any
) -> holdfast.Holdfast:
    """Return a `Holdfast` as the file says; the caller opens it. Model calls are retried `retries` times, without pauses.

    Without `store`, the file and the variables in `env` name it.
    """
    named = {"HOLDFAST_STORE": store} if store else {}
    hf = holdfast.from_config(config, env={**(env or {}), **named}, **settings)
    for llm in hf.roster.llms.values():
        client: Any = llm.client.model if isinstance(llm.client, LimitedModel) else llm.client
        if hasattr(client, "_max_retries"):
            client._sleep, client._max_retries = Pauses(), retries  # noqa: SLF001  # they are no settings
    return hf


@asynccontextmanager
async def serve(
    hf: holdfast.Holdfast, config: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[str, Any]]:
    """Serve an open `Holdfast` on a free port, with the file's settings of the gateway; the address, and the server."""
    async with run_server(hf, load_settings({"config": str(config)}, env or {})) as served:
        yield served


def tune_models(hf: holdfast.Holdfast, limits: Mapping[str, Any], *names: str) -> list[float]:
    """Set limits of the clients of models that are no settings; return the pauses between their attempts, which take no time."""
    pauses = Pauses()
    for name in names:
        client: Any = hf.roster.llms[name].client
        for field, value in {"sleep": pauses, **limits}.items():
            assert hasattr(client, f"_{field}")
            setattr(client, f"_{field}", value)
    return pauses


def count_waiting(hf: holdfast.Holdfast) -> int:
    """Return how many turns wait for another turn of their session."""
    return sum(len(line.waiting) for line in hf.engine.locks._lines.values())  # noqa: SLF001  # no metric counts them


def count_queued(hf: holdfast.Holdfast) -> int:
    """Return how many calls wait for a model with `max_requests`."""
    return sum(llm.client.waiting for llm in hf.roster.llms.values() if isinstance(llm.client, LimitedModel))


def count_connections(server: Any) -> int:
    """Return how many clients are connected to a server."""
    return len(server.server_state.connections)


def count_tasks(server: Any) -> int:
    """Return how many requests a server works on."""
    return len(server.server_state.tasks)


async def settle(hf: holdfast.Holdfast) -> None:
    """Wait until work in the background is done: transcripts, calls of hooks, ratings of messages, summaries and the index."""
    if (transcripts := find_transcripts(hf.hooks)) is not None:
        await transcripts.wait_until_settled()
    await hf.engine.hook_dispatcher.wait_until_idle()
    await hf.engine.scoring.wait_until_idle()
    await hf.engine.compactor.wait_until_idle()
    if hf.engine.index is not None:
        await hf.engine.index.settled()


@contextmanager
def steady_prompts() -> Iterator[None]:
    """Let prompts be the same in each run: sessions have the same markers and ids, and recall waits for as long as it takes."""
    numbers: dict[str, int] = {}
    real = escaping.derive_marker
    ids, others = Random(1), Random(2)

    def derive(secret: bytes, identity: str) -> str:
        return real(bytes(32), str(numbers.setdefault(identity, len(numbers))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", lambda size: others.randbytes(size or 32))
        patch.setattr("tests.edges.keys._numbers", itertools.count(1))
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=ids.getrandbits(128), version=4))
        patch.setattr("holdfast.engine.engine.derive_marker", derive)
        patch.setattr("holdfast.replay.player.time", SimpleNamespace(perf_counter=lambda: 0.0))
        patch.setattr(recall, "RECALL_SECONDS", 60.0)
        yield


async def run_command(
    arguments: Sequence[str],
    given: str | None = None,
    env: Mapping[str, str | None] | None = None,
    clock: Clock | None = None,
    terminal: str | None = None,
) -> Printed:
    """Run `holdfast ARGUMENTS` in a thread of this process, with `given` as its input, at the time of `clock`.

    `terminal` is the encoding of a terminal on which the command draws and asks, in place of a file.
    """

    def run() -> Result:
        defaults: Any = holdfast.Holdfast.__init__.__kwdefaults__
        with pytest.MonkeyPatch.context() as patch:
            if clock is not None:
                patch.setitem(defaults, "clock", clock)
            for name in ("sessions.is_output_terminal", "explain.is_output_terminal", "command.is_interactive"):
                patch.setattr(f"holdfast.cli.{name}", lambda: True) if terminal else None
            return CliRunner(charset=terminal or "utf-8").invoke(
                commands, [*arguments], prog_name="holdfast", input=given, env=env
            )

    # The thread must not inherit the context of this event loop, because the command runs one of its own.
    ran = await asyncio.get_running_loop().run_in_executor(None, run)
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return Printed(ran.exit_code, ran.stdout, ran.stderr)


def read_schema() -> dict[str, Any]:
    """Return the JSON schema of the configuration file, as `holdfast config show --schema` prints it."""
    found: dict[str, Any] = json.loads(CliRunner().invoke(commands, ["config", "show", "--schema"]).stdout)
    return found


def sweep_pause(hf: holdfast.Holdfast) -> float:
    """Return the seconds between two sweeps."""
    return hf.engine.sweeper.interval


@contextmanager
def fresh_store(kind: str, folder: Path) -> Iterator[str]:
    """Return the URL of an empty store: `memory`, `file`, `postgres` or `mysql`. A server that is not there skips the test."""
    if kind in {"memory", "file"}:
        yield "sqlite://:memory:" if kind == "memory" else f"sqlite:///{folder}/chat.db"
        return
    with reach(kind).lend() as url:
        yield url


async def write_memory_files(
    hf: holdfast.Holdfast, user: str, files: Mapping[str, Sequence[str]], held: Mapping[str, str]
) -> None:
    """Write versions of memory files of a user, as the memory tool does, and hold changes for review."""
    found = open_memory_files(hf.engine, user)
    for path, versions in files.items():
        await found.create(path, versions[0])
        for old, new in itertools.pairwise(versions):
            await found.str_replace(path, old, new)
    for path, text in held.items():
        await found.hold({"command": "create", "path": path, "file_text": text})


@contextmanager
def numbered_keys() -> Iterator[None]:
    """Give new API keys ids in the order in which they are made: `aaaaaaaaaaaaaaab`, then `aaaaaaaaaaaaaaac`."""
    plain, numbers = secrets.token_bytes, itertools.count(1)

    def make(size: int | None = None) -> bytes:
        return next(numbers).to_bytes(10) + bytes(32) if size == 42 else plain(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", make)
        yield


@contextmanager
def fast_updates() -> Iterator[None]:
    """Let open pages of the inspector look for news again and again."""
    before, live.PAUSE_SECONDS = live.PAUSE_SECONDS, 0.02  # it is no setting
    try:
        yield
    finally:
        live.PAUSE_SECONDS = before


@contextmanager
def early_sketches() -> Iterator[None]:
    """Let SQLite compare sketches of vectors from 20 vectors on, as it does from very many on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_nearest, "LARGE", 20)
        patch.setattr(sqlite_nearest, "_READ", 15)
        yield


def start_tool_server(upstream: str, folder: Path) -> Process:
    """Start a server with the tool `count` in a process of its own. Those of one folder have one store, and claims as they always are."""
    config = folder / "holdfast.yaml"
    config.write_text(config_text(upstream), encoding="utf-8")
    env = {"TOOL_SERVER_COUNTS": f"{folder}/counts.db", "TOOL_SERVER_LEASE": str(LEASE)}
    return Process(f"sqlite:///{folder}/s.db", config=config, env=env, program=TOOL_SERVER)


def count_runs(folder: Path) -> int:
    """Return how often the tool of `start_tool_server` ran."""
    with sqlite3.connect(folder / "counts.db") as counts:
        return int(counts.execute("SELECT count(*) FROM runs").fetchone()[0])


def hide_mcp(patch: pytest.MonkeyPatch) -> None:
    """Make it as if the extra `mcp` were not installed."""
    patch.delitem(sys.modules, "holdfast.mcp_server.protocol", raising=False)
    patch.setitem(sys.modules, "mcp.server.lowlevel", None)
