"""A library whose `Holdfast` is behind a server: for tests of `holdfast.connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.config import load
from holdfast.remote.connection import RemoteHoldfast
from holdfast.remote.session import RemoteSession
from tests.clocks import Pauses
from tests.edges.server import run_server
from tests.service.summary_kit import Desk, desk

CONFIG = load("{}", env={})
open_library = holdfast.open
"""`holdfast.open` itself, even while a test has replaced it."""
_SERVED: dict[str, holdfast.Holdfast] = {}
"""The `Holdfast` of each running server, by its address."""


def connect_without_pauses(
    url: str, sleep: Callable[[float], Awaitable[object]] | None = None, **options: Any
) -> RemoteHoldfast:
    """Connect like `holdfast.connect`, without pauses and jitter between retries.

    Args:
        url: the server.
        sleep: what happens in place of a pause; None: nothing.
        options: other arguments of `holdfast.connect`.
    """
    connected = holdfast.connect(url, **options)
    transport = connected._transport  # noqa: SLF001 - its pauses are no setting
    transport._sleep, transport._random = Pauses() if sleep is None else sleep, lambda: 0.0  # noqa: SLF001
    return connected


@asynccontextmanager
async def open_remote(url: str = "sqlite://:memory:", **settings: Any) -> AsyncIterator[RemoteHoldfast]:
    """Open a `Holdfast` like `holdfast.open`, serve it, and connect to it."""
    async with open_library(url, **settings) as hf, _serve(hf) as connected:
        yield connected


@asynccontextmanager
async def open_remote_desk(*args: Any, **settings: Any) -> AsyncIterator[Desk]:
    """Open a desk like `summary_kit.desk`, whose session is one of `holdfast.connect`."""
    async with desk(*args, **settings) as at, _serve(at.hf) as connected:
        at.session = lambda: connected.session("s")  # type: ignore[assignment, method-assign, return-value]
        yield at


@asynccontextmanager
async def _serve(hf: holdfast.Holdfast) -> AsyncIterator[RemoteHoldfast]:
    async with run_server(hf, CONFIG) as (address, _), holdfast.connect(address) as connected:
        where = connected._transport.where  # noqa: SLF001 - it identifies the server
        _SERVED[where] = hf
        try:
            yield connected
        finally:
            del _SERVED[where]


async def verify_on_server(session: RemoteSession) -> int:
    """Check the log of a session as `SessionHandle.verify` does."""
    hf = _SERVED[session._transport.where]  # noqa: SLF001 - it identifies the server
    return await (await hf.get(session.ref)).verify()
