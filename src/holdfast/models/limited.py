"""A model that so many calls at once may ask, and no more: the others wait in order."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from holdfast.errors import ModelBusy
from holdfast.models.base import Model, closing
from holdfast.models.retiring import retire

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping


class Limited:
    """A `Model` that is asked by `most` calls at once. A call lasts until its stream ends.

    Further calls wait, in order, for as long as getting a connection may take. One that is given up leaves the line.

    Args:
        model: who answers.
        most: calls at once.
        patience: seconds that a call waits.
        seconds: a clock that only goes on; for tests.

    Attributes:
        model: who answers.
        running: calls that are being answered.
        waiting: calls that wait.
        waits: how many calls have had to wait.
        waited: seconds that they have waited, all together.
    """

    def __init__(
        self, model: Model, most: int, *, patience: float, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.model = model
        self.running = 0
        self.waiting = 0
        self.waits = 0
        self.waited = 0.0
        self._most = most
        self._patience = patience
        self._seconds = seconds
        self._places = asyncio.Semaphore(most)

    def __repr__(self) -> str:
        return f"Limited({self.model!r}, {self._most})"

    @property
    def name(self) -> str:
        """See `Model.name`."""
        return self.model.name

    @property
    def origin(self) -> str | None:
        """See `origin_of`."""
        return origin_of(self.model)

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """See `Model.stream`.

        Raises:
            ModelBusy: no other call ended in time.
        """
        await self._admitted()
        try:
            async with closing(self.model.stream(request, headers=headers)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.running -= 1
            self._places.release()

    def retire(self) -> None:
        """Close the model's connections as soon as nobody has it any more."""
        retire(self.model)

    async def close(self) -> None:
        """See `Model.close`."""
        await self.model.close()

    async def _admitted(self) -> None:
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self.running += 1

    async def _wait(self) -> None:
        began = self._seconds()
        self.waits += 1
        self.waiting += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._places.acquire()
        except TimeoutError:
            raise ModelBusy(self.model.name, self._most, self._patience) from None
        finally:
            self.waiting -= 1
            self.waited += self._seconds() - began


def origin_of(model: Model) -> str | None:
    """Where a model is called, scheme, host and port; None where that is not known."""
    found = getattr(model, "origin", None)
    return found if isinstance(found, str) else None
