"""A library whose `Holdfast` is behind a server: for tests of `holdfast.connect`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import holdfast
from holdfast.config.loader import load
from holdfast.remote.connection import RemoteHoldfast
from tests.clocks import Pauses
from tests.edges.server import run_server

CONFIG = load("{}", env={})


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
    async with (
        holdfast.open(url, **settings) as hf,
        run_server(hf, CONFIG) as (address, _),
        holdfast.connect(address) as connected,
    ):
        yield connected
