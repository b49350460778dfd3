"""Make rerankers from settings, your own function or your own object, and limit the time that a search waits for one."""

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
from holdfast.limits import RERANK_QUERY_CHARS
from holdfast.rerankers.base import Reranker, check_scores
from holdfast.rerankers.cross_encoder import CrossEncoder
from holdfast.rerankers.endpoint import EndpointReranker
from holdfast.rerankers.settings import RerankSettings

_log: Final = logging.getLogger("holdfast.search")


class BoundedReranker:
    """The reranker of a `Holdfast` instance, with a time limit. All tenants share it.

    Args:
        settings: the settings of the reranker, with the time limit.

    Raises:
        InvalidRequest: a setting is invalid.
    """

    def __init__(self, settings: RerankSettings) -> None:
        self._inner = make_reranker(settings)
        self._timeout = settings.timeout
        self._late: set[asyncio.Task[list[float]]] = set()

    async def score_texts(self, query: str, texts: Sequence[str]) -> list[float] | str:
        """Return a score for each text, or an error message if the reranker fails or takes too long.

        Errors of the reranker are not raised. A call that takes too long is cancelled, but this method does not wait until the call ends,
        because the call may run in a thread or ignore the cancellation.

        Args:
            query: the question.
            texts: at least one text.
        """
        task = asyncio.create_task(self._inner.rerank(_clean(query[:RERANK_QUERY_CHARS]), texts), name="rerank")
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout)
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
        """Release connections and weights. Closing twice is allowed."""
        await self._inner.close()


def _clean(text: str) -> str:
    """Return a text with lone surrogates replaced, because neither JSON nor tokenizers accept them."""
    return text.encode("utf-8", "replace").decode()


_AT_ONCE: Final = 4
"""Maximum number of calls of a reranker that run in threads. A call that takes too long keeps its thread. While the maximum number of calls
is running, another call fails at once."""


class GivenReranker:
    """A reranker that calls your own function and checks the result: one finite score for each text.

    Args:
        rerank: takes a question and a list of texts and returns their scores. A synchronous function runs in a thread; if the search
            stops waiting, the function still runs to its end.
        name: the reranker's name, for the messages of errors.
        close: called once when the reranker is closed.
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
        """Call the `close` function, if one was given and it was not called yet."""
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
    """Return a reranker. It connects, or loads weights, when it is called for the first time.

    Args:
        given: `RerankSettings`, an object with `name` and `rerank`, or a function. The function takes a question and a list of texts
            and returns a list of scores; it may be asynchronous.

    Raises:
        InvalidRequest: `given` is none of these, or a setting is invalid.
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
