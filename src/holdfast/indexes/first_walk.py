"""The first walk over an index: until it is over, a search does not find all that there is, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.repeating import given_up


class FirstWalk:
    """Whether everything there is was looked for once since an index was made; whoever asks has that begun.

    Args:
        walk: walks over it.
        walked: whether that was ever done, as the index has noted it.
        failed: told why it failed; it is tried again.
    """

    def __init__(
        self,
        walk: Callable[[], Awaitable[Any]],
        walked: Callable[[], Awaitable[bool]],
        failed: Callable[[HoldfastError], None],
    ) -> None:
        self._walk = walk
        self._walked = walked
        self._failed = failed
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def renewed(self) -> None:
        """The index is another one, with nothing in it."""
        self._over = False

    async def over(self, seconds: float) -> bool:
        """Whether it is over; where it is not, it is waited for.

        Args:
            seconds: how long at most.

        Raises:
            StoreError: the index cannot be used.
        """
        if not self._over and not await self._is_over():
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run(), name="first walk over the index")
            await asyncio.wait([self._task], timeout=seconds)
            await self._is_over()
        return self._over

    async def _is_over(self) -> bool:
        self._over = await self._walked()
        return self._over

    async def _run(self) -> None:
        try:
            await self._walk()
        except HoldfastError as exc:
            self._failed(exc)

    async def close(self) -> None:
        """End it. Closing twice is fine."""
        task, self._task = self._task, None
        await given_up(task)
