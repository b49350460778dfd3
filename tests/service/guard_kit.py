"""Shared by tests of the guard: a secret, a Holdfast that must keep it out of its file and logs, and a client of its server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2

from holdfast.agents import Llm, Roster
from holdfast.config.loader import load
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast
from holdfast.secrets.guard import Guard, make_guard
from holdfast.server.app import make_app
from holdfast.server.logs import JsonLines
from tests.service.scripted_model import REF, ScriptedModel

CANARY = "c4n4ry" * 5
KEY = f"sk-ant-{CANARY}"
GONE = "[REDACTED:anthropic_key]"
REDACTION = "redaction: {enabled: true}"
GUARD = "secret_guard: {on_secret: %s}"


def guard_from(text: str) -> Guard:
    config = load(text, env={})
    guard = make_guard(config.redaction, config.secret_guard)
    assert guard is not None
    return guard


class Desk:
    """A Holdfast with a guard on a file, its model, and a client of its server."""

    def __init__(
        self, hf: Holdfast, guard: Guard, model: ScriptedModel, http: httpx2.AsyncClient, folder: Path
    ) -> None:
        self.hf = hf
        self.guard = guard
        self.model = model
        self.http = http
        self.folder = folder

    def on_disk(self) -> bytes:
        """Return all bytes of the database's files."""
        files = sorted(self.folder.glob("chat.db*"))
        assert any(file.name == "chat.db-wal" for file in files)
        return b"".join(file.read_bytes() for file in files)

    def check(self) -> None:
        """Check that the secret is nowhere on the disk."""
        assert CANARY.encode() not in self.on_disk()

    async def texts(self, **filters: Any) -> list[str]:
        return [entry.message.text for entry in await self.hf.store.entries(REF, **filters)]

    async def chat(self, *messages: dict[str, Any], **more: Any) -> Any:
        headers = more.pop("headers", {})
        body = {"session_id": "s", "messages": messages, **more}
        return await self.http.post("/v1/chat/completions", json=body, headers=headers)


class Lines(logging.Handler):
    """Every line of the log, as the server writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(JsonLines().format(record))


@contextmanager
def quiet() -> Iterator[None]:
    """Check that no log line contains the secret, not even debug lines."""
    log, lines = logging.getLogger("holdfast"), Lines()
    level = log.level
    log.addHandler(lines)
    log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
    assert not [line for line in lines.told if CANARY in line]


@asynccontextmanager
async def desk(
    folder: Path, settings: str, say: Callable[[dict[str, Any]], Any] = lambda _: "ok", **options: Any
) -> AsyncIterator[Desk]:
    model, guard = ScriptedModel(say), guard_from(settings)
    context = ContextSettings(options.pop("strategy", "digest"), options)
    roster = Roster({"default": Llm(name="default", model="gpt-4o", client=model)}, context=context)
    with quiet():
        async with Holdfast(f"sqlite:///{folder}/chat.db", roster=roster, guard=guard) as hf:
            await hf.session("s")
            transport = httpx2.ASGITransport(app=make_app(hf, close=False))
            async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
                yield Desk(hf, guard, model, http, folder)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
