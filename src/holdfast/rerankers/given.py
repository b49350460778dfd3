"""A program's own reranker: a function from a question and texts to scores, or an object with the contract's methods."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread

from holdfast.errors import HoldfastError, RerankFailed
from holdfast.rerankers.base import check_scores

_AT_ONCE: Final = 4
"""Calls that run in threads. One that is late keeps its thread, so further calls fail at once when that many are late."""


class GivenReranker:
    """A function, held to the contract: as many scores as texts, all of them finite.

    Args:
        rerank: from a question and a list of texts to their scores. One that is not asynchronous runs in a thread, where it
            goes on if the search does not wait any longer.
        name: see `Reranker.name`.
        close: called by `close`, if there is one.
    """

    def __init__(
        self, rerank: Callable[[str, Sequence[str]], Any], *, name: str, close: Callable[[], Any] | None = None
    ) -> None:
        self._rerank = rerank
        self._close = close
        self._places = threading.BoundedSemaphore(_AT_ONCE)
        self.name = name

    def __repr__(self) -> str:
        return f"GivenReranker({self.name!r})"

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.rerank`."""
        who = f"reranker {self.name!r}"
        try:
            returned = await self._call(query, list(texts))
        except HoldfastError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the program's function raises
            kind = type(exc).__name__  # only its kind: its words may quote the texts
        else:
            return check_scores(returned, len(texts), who)
        raise RerankFailed(f"{who} failed: {kind}")

    async def close(self) -> None:
        """See `Reranker.close`."""
        close, self._close = self._close, None
        if close is not None and inspect.isawaitable(ended := close()):
            await ended

    async def _call(self, query: str, texts: list[str]) -> Any:
        if _is_async(self._rerank):
            return await self._rerank(query, texts)
        if not self._places.acquire(blocking=False):
            raise RerankFailed(f"reranker {self.name!r} is busy with {_AT_ONCE} calls")
        begun = threading.Event()
        try:
            returned = await anyio.to_thread.run_sync(self._run, query, texts, begun, abandon_on_cancel=True)
        except BaseException:
            if not begun.is_set():  # the search gave up while the call waited for a thread
                begun.set()
                self._places.release()
            raise
        return await returned if inspect.isawaitable(returned) else returned

    def _run(self, query: str, texts: list[str], begun: threading.Event) -> Any:
        if begun.is_set():
            return []
        begun.set()
        try:
            return self._rerank(query, texts)
        finally:
            self._places.release()


def _is_async(function: Callable[..., Any]) -> bool:
    plain = function.func if isinstance(function, partial) else function
    return inspect.iscoroutinefunction(plain) or inspect.iscoroutinefunction(getattr(plain, "__call__", None))  # noqa: B004 - an object may be called
