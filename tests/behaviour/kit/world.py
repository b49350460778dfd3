"""Opening the product through one of its drivers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx2
import pytest

import holdfast
from holdfast.testing import ScriptedUpstream
from tests.behaviour.kit.command_line import CommandLineDriver
from tests.behaviour.kit.drivers import DRIVERS
from tests.behaviour.kit.gateway import Served, gateway, model_fields
from tests.behaviour.kit.library import LibraryDriver
from tests.behaviour.kit.rest import RestDriver
from tests.behaviour.kit.seams import Clock, fresh_store, open_library, run_command, serve, settle

F = TypeVar("F", bound=Callable[..., Any])
MARK: Final = "through"


def through(*drivers: str) -> Callable[[F], F]:
    """Run a test through these drivers only: `library`, `connect`, `rest`, `cli`. Without it: through all of them."""
    assert set(drivers) <= set(DRIVERS), drivers
    return getattr(pytest.mark, MARK)(*drivers)  # type: ignore[no-any-return]


class World:
    """Opens the product through one driver. Times are milliseconds of `clock`, which stands until a test moves it.

    Attributes:
        driver: name of the driver.
        clock: the clock of everything that is opened, except of the command line.
        folder: an empty folder.
        native: the `Holdfast` that was opened last in this process, for what has no route: sweeps, and waiting for background work.
    """

    native: Any = None

    def __init__(self, driver: str, folder: Path) -> None:
        self.driver, self.folder = driver, folder
        self.clock = Clock()

    def gateway(self, *script: Any, **settings: Any) -> AbstractAsyncContextManager[Served]:
        """Run a gateway as `kit.gateway.gateway` does; for the library, what has its interface and serves nothing."""
        return gateway(*script, driver=self.driver, **settings)

    @asynccontextmanager
    async def open(
        self,
        *config: str,
        store: str = "",
        script: Sequence[Any] | Callable[..., Any] | ScriptedUpstream | None = None,
        llm: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> AsyncIterator[Any]:
        """Open the product, empty, and return its driver.

        Args:
            config: lines or blocks of YAML.
            store: `memory`, `file`, `postgres`, `mysql`, or a URL; by default a file for the command line, else memory.
            script: replies of the model `default`, or its server; its requests are `driver.upstream.requests`.
            llm: more keys of the model `default`.
            settings: settings of `holdfast.open` that a file does not have, for example `tools`, and `retries` of model calls (0). Not for
                the command line.
        """
        assert not (settings and self.driver == "cli"), "the command line takes no settings of a program"
        async with AsyncExitStack() as stack:
            upstream = None
            if script is not None:
                made = script if isinstance(script, ScriptedUpstream) else ScriptedUpstream(script)
                upstream = await stack.enter_async_context(made)
                config = (model_config(upstream.url, **(llm or {})), *config)
            file = self.folder / "holdfast.yaml"
            file.write_text("\n".join(config) + "\n")
            kind = store or ("file" if self.driver == "cli" else "memory")
            url = kind if "://" in kind else stack.enter_context(fresh_store(kind, self.folder))
            driver = await self._open(stack, file, url, settings)
            driver.upstream, driver.url = upstream, url
            yield driver

    async def _open(self, stack: AsyncExitStack, file: Path, url: str, settings: dict[str, Any]) -> Any:
        if self.driver == "cli":
            async with open_library(file, url):
                pass  # now there is a database
            return CommandLineDriver(run_command, url, str(file))
        hf = await stack.enter_async_context(open_library(file, url, **{"clock": self.clock, **settings}))
        self.native = hf
        made = await self._reach(stack, hf, file)
        made.settle = partial(settle, hf)
        return made

    async def _reach(self, stack: AsyncExitStack, hf: holdfast.Holdfast, file: Path) -> Any:
        if self.driver == "library":
            return LibraryDriver(hf, "library")
        address, _ = await stack.enter_async_context(serve(hf, file))
        if self.driver == "connect":
            client = await stack.enter_async_context(holdfast.connect(address, max_retries=0))
            return LibraryDriver(client, "connect")
        http = httpx2.AsyncClient(base_url=address, trust_env=False, timeout=60)
        return RestDriver(await stack.enter_async_context(http))


def model_config(url: str, **more: Any) -> str:
    """Return the configuration of a model `default` at this address, with more keys."""
    return f"llms: {json.dumps({'default': {**model_fields(url), **more}})}"
