"""Wrap your own reranker, a function or an object; `make_reranker`; and the time limit of all rerankers."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread

from holdfast.errors import HoldfastError, InvalidRequest, RerankFailed
from holdfast.limits import RERANK_PROMPT_SECONDS, RERANK_QUERY_CHARS
from holdfast.rerankers.base import Reranker, check_scores
from holdfast.rerankers.cross_encoder import CrossEncoder
from holdfast.rerankers.endpoint import EndpointReranker
from holdfast.rerankers.settings import RerankSettings

_log: Final = logging.getLogger("holdfast.search")


class BoundedReranker:
    """The reranker of a `Holdfast`, with a time limit; shared by all tenants.

    Attributes:
        settings: among others, the number of texts that it gets, and how long a search waits.

    Args:
        settings: see above.

    Raises:
        InvalidRequest: a setting is invalid.
    """

    def __init__(self, settings: RerankSettings) -> None:
        self.settings = settings
        self._inner = make_reranker(settings)
        self._late: set[asyncio.Task[list[float]]] = set()

    def get_timeout(self, *, prompt: bool) -> float:
        """Return how long a search, or a prompt, waits for scores."""
        return min(self.settings.timeout, RERANK_PROMPT_SECONDS) if prompt else self.settings.timeout

    async def score_texts(self, query: str, texts: Sequence[str], *, prompt: bool = False) -> list[float] | str:
        """Return a score for each text, or the reason why there are none. Errors of the reranker are not raised.

        A late call is cancelled but not waited for: it may run in a thread, or ignore cancellation.

        Args:
            query: the question.
            texts: at least one.
            prompt: whether a prompt waits for the scores.
        """
        task = asyncio.create_task(self._inner.rerank(_clean(query[:RERANK_QUERY_CHARS]), texts), name="rerank")
        try:
            done, _ = await asyncio.wait({task}, timeout=self.get_timeout(prompt=prompt))
            if done and not task.cancelled():
                return task.result()
            why, detail = "failed" if done else "took too long", ""
        except HoldfastError as exc:
            why, detail = "failed", f" ({exc})"  # contains neither texts nor keys
        except Exception as exc:  # noqa: BLE001 - a search must not fail because of its reranker
            why, detail = "failed", f" ({type(exc).__name__})"
        finally:
            if not task.done():
                self._late.add(task)
                task.add_done_callback(self._forget)
                task.cancel()
        _log.warning("the reranker %s%s: the search keeps its order", why, detail)
        return why

    def _forget(self, task: asyncio.Task[list[float]]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # mark the error of a late call as retrieved

    async def close(self) -> None:
        """Release connections and weights. Closing twice is fine."""
        await self._inner.close()


def _clean(text: str) -> str:
    """Replace lone surrogates, which neither JSON nor tokenizers accept."""
    return text.encode("utf-8", "replace").decode()


_AT_ONCE: Final = 4
"""Maximum calls that run in threads. A late call keeps its thread; when this many are late, further calls fail at once."""


class GivenReranker:
    """Checks that a given function keeps the contract: as many scores as texts, all of them finite.

    Args:
        rerank: takes a question and a list of texts and returns their scores. A synchronous function runs in a thread, and continues
            there if the search stops waiting.
        name: the reranker's name, for errors.
        close: called by `close`, if given.
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
        """Return a score for each text, in order."""
        who = f"reranker {self.name!r}"
        try:
            returned = await self._call(query, list(texts))
        except HoldfastError:
            raise
        except Exception as exc:  # noqa: BLE001 - the program's function may raise anything
            kind = type(exc).__name__  # only the type, because the message may quote the texts
        else:
            return check_scores(returned, len(texts), who)
        raise RerankFailed(f"{who} failed: {kind}")

    async def close(self) -> None:
        """Call the given `close` function once, if there is one."""
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


def make_reranker(given: Any) -> Reranker:
    """Return a reranker. It connects or loads weights on its first call.

    Args:
        given: `RerankSettings`; an object with `name` and `rerank`; or a function from a question and a list of texts to a list
            of scores, synchronous or asynchronous.

    Raises:
        InvalidRequest: it is none of these, or a setting is invalid.
    """
    if isinstance(given, RerankSettings):
        if given.path is not None:
            return CrossEncoder(given.path)
        return EndpointReranker(given) if given.reranker is None else make_reranker(given.reranker)
    if isinstance(given, CrossEncoder | EndpointReranker | GivenReranker):
        return given
    rerank = getattr(given, "rerank", None)
    if isinstance(given, type) or not callable(rerank or given):
        kind = f"the class {given.__name__}" if isinstance(given, type) else f"a {type(given).__name__}"
        raise InvalidRequest(
            f"a reranker is a function from a question and texts to scores, or an object with `name` and `rerank`, not {kind}",
            param="index.rerank",
        )
    name = getattr(given, "name" if rerank else "__qualname__", None)
    if not isinstance(name, str) or not name:
        name = type(given).__name__
    return GivenReranker(rerank or given, name=name, close=getattr(given, "close", None) if rerank else None)
