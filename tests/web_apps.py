"""Small web applications of tests on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serve_app(app: web.Application, *, patience: float = 0.1) -> AsyncIterator[str]:
    """Serve an application on a free port of this machine; the address without a path.

    Args:
        app: what answers.
        patience: seconds that open requests have when it ends.
    """
    runner = web.AppRunner(app, shutdown_timeout=patience)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
