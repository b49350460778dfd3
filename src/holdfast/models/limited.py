"""Limit the number of concurrent calls of a model. Calls above the limit wait in a queue."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from holdfast.domain.profiles import Profile, get_profile
from holdfast.errors import ModelBusy
from holdfast.models.base import Model, ModelRequest, closing, retire
from holdfast.models.deltas import DeltaModel, stream_deltas

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from holdfast.log.items import Delta


class LimitedModel(DeltaModel):
    """A `Model` that limits the number of concurrent calls of another model. A call lasts until its stream ends.

    Calls above the limit wait in a queue. A cancelled call leaves the queue.

    Args:
        model: The model that answers the calls.
        most: Maximum number of concurrent calls.
        patience: Maximum seconds that a call waits in the queue.
        seconds: Returns monotonic seconds. Tests replace it.

    Attributes:
        model: The model that answers the calls.
        patience: Maximum seconds that a call waits in the queue.
        running: Number of calls that are currently being answered.
        waiting: Number of calls that are currently waiting.
        waits: Total number of calls that have waited.
        waited: Total seconds that calls have waited.
    """

    def __init__(
        self, model: Model, most: int, *, patience: float = 300.0, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self.model = model
        self.running = 0
        self.waiting = 0
        self.waits = 0
        self.waited = 0.0
        self._most = most
        self.patience = patience
        self._seconds = seconds
        self._places = asyncio.Semaphore(most)

    def __repr__(self) -> str:
        return f"LimitedModel({self.model!r}, {self._most})"

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.model.name

    @property
    def origin(self) -> str | None:
        """Scheme, host and port of the model's upstream, or None if the model has no upstream."""
        return get_upstream_origin(self.model)

    @property
    def profile(self) -> Profile | None:
        """Rules of the model's upstream; None if its client has no profile."""
        return get_profile(self.model)

    def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """Wait until the call may run, then yield the model's answer.

        Raises:
            ModelBusy: The call has waited for `patience` seconds.
        """
        return self._limit(stream_deltas(self.model, request, headers=headers))

    def forward(self, *request: Any) -> AsyncGenerator[Any, None]:
        """Wait until the call may run, then send a request for another path, as `UpstreamClient.forward` does."""
        model: Any = self.model
        return self._limit(model.forward(*request))

    async def _limit(self, answer: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self.running += 1
        try:
            async with closing(answer) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.running -= 1
            self._places.release()

    def retire(self) -> None:
        """Close the model's connections as soon as no caller uses the model any more."""
        retire(self.model)

    async def close(self) -> None:
        """Close the model's connections."""
        await self.model.close()

    async def _wait(self) -> None:
        began = self._seconds()
        self.waits += 1
        self.waiting += 1
        try:
            async with asyncio.timeout(self.patience):
                await self._places.acquire()
        except TimeoutError:
            raise ModelBusy(self.model.name, self._most, self.patience) from None
        finally:
            self.waiting -= 1
            self.waited += self._seconds() - began


def get_upstream_origin(model: Model) -> str | None:
    """Return scheme, host and port of a model's upstream, or None if the model has no upstream."""
    found = getattr(model, "origin", None)
    return found if isinstance(found, str) else None
