"""A reranker that is held to a time: one that is late or fails costs a search its time and never its hits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from holdfast.errors import HoldfastError
from holdfast.limits import RERANK_PROMPT_SECONDS, RERANK_QUERY_CHARS
from holdfast.rerankers.opening import make_reranker
from holdfast.rerankers.settings import RerankSettings

_log: Final = logging.getLogger("holdfast.search")


class BoundedReranker:
    """The reranker of a `Holdfast`, shared by all tenants.

    Attributes:
        settings: how many texts it is given, and how long a search waits.

    Args:
        settings: see above.

    Raises:
        InvalidRequest: a setting that cannot be.
    """

    def __init__(self, settings: RerankSettings) -> None:
        self.settings = settings
        self._inner = make_reranker(settings)
        self._late: set[asyncio.Task[list[float]]] = set()

    def seconds(self, *, prompt: bool) -> float:
        """Return how long a search waits for scores, or a prompt."""
        return min(self.settings.timeout, RERANK_PROMPT_SECONDS) if prompt else self.settings.timeout

    async def scores(self, query: str, texts: Sequence[str], *, prompt: bool = False) -> list[float] | str:
        """Return a score for each text, or in words why there are none. Never raises for the reranker's sake.

        A call that is late is cancelled and not waited for: it may be in a thread, or deaf.

        Args:
            query: the question.
            texts: at least one.
            prompt: whether a prompt waits for it.
        """
        task = asyncio.create_task(self._inner.rerank(_clean(query[:RERANK_QUERY_CHARS]), texts), name="rerank")
        try:
            done, _ = await asyncio.wait({task}, timeout=self.seconds(prompt=prompt))
            if done and not task.cancelled():
                return task.result()
            why, detail = "failed" if done else "took too long", ""
        except HoldfastError as exc:
            why, detail = "failed", f" ({exc})"  # has neither texts nor keys
        except Exception as exc:  # noqa: BLE001 - no search fails by its reranker
            why, detail = "failed", f" ({type(exc).__name__})"
        finally:
            if not task.done():
                self._late.add(task)
                task.add_done_callback(self._forget)
                task.cancel()
        _log.warning("the reranker %s%s: the order of a search stays", why, detail)
        return why

    def _forget(self, task: asyncio.Task[list[float]]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # it was late, and nothing asks for its error any more

    async def close(self) -> None:
        """Release connections and weights. Closing twice is fine."""
        await self._inner.close()


def _clean(text: str) -> str:
    """Return the same without halves of characters (lone surrogates), which neither JSON nor a tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
