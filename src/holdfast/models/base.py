"""Protocol of a model, and what it is asked. Close streams, and models after a reload."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from holdfast.context.prefix_diff import PrefixTracker
from holdfast.domain.messages import Message
from holdfast.domain.profiles import Profile

T = TypeVar("T")


class Model(Protocol):
    """A language model that answers Chat Completions requests with a stream of chunks.

    `holdfast.models.collect` converts a stream to a complete answer. Any number of streams may run at once. Use a model in one event loop
    only.
    """

    @property
    def name(self) -> str:
        """Name of the model, used as `model` for requests that name none."""

    def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer to `request` as OpenAI `chat.completion.chunk` objects.

        Fields that Holdfast does not know are passed through, in the request and in the chunks. `request` itself is not changed. Callers
        may rely on the following:

        - Nothing happens before the first `anext`.
        - Token usage is always requested. An upstream that reports it does so in a last chunk with empty `choices`.
        - The iterator ends without an error only after a complete answer. If the answer is cut off, the iterator yields the chunks that
          have arrived, and then raises an error.
        - Closing the iterator stops the call at once. `closing` closes the iterator, and so does cancelling the task that waits for a
          chunk.

        Args:
            request: The Chat Completions body. Its `stream` and `stream_options` have no effect on the chunks.
            headers: Headers of this call only. They override the model's own headers, including `Authorization`.

        Raises:
            ModelUnavailable: The upstream is down, overloaded or silent. `retry_after` is set if the upstream asked for a pause.
            ModelRejected: The upstream rejected the request. The subclass `ContextTooLong` is raised if the only reason is its length.
            ModelProtocolError: The response is not a valid answer, or is cut off.
        """

    async def close(self) -> None:
        """Close all connections. Running streams fail. Calling the method again does nothing."""


class ModelRequest(NamedTuple):
    """A request to a model, in the same form for every API."""

    messages: Sequence[Message]
    """The prompt, with the data of its media."""
    fields: Mapping[str, Any]
    """All other fields of the Chat Completions request, such as `model` and `tools`."""
    profile: Profile | None = None
    """Rules of the upstream, with those learned from its refusals. None: the rules that its client knows."""
    tracker: PrefixTracker | None = None
    """Keeps what was encoded for the view's last prompt."""


@asynccontextmanager
async def closing(chunks: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Enter a context that yields the iterator `chunks`, and close the iterator when the context is left for any reason.

    An iterator that is not closed keeps its connection open until it is garbage-collected.
    """
    try:
        yield chunks
    finally:
        aclose = getattr(chunks, "aclose", None)
        if aclose is not None:
            await aclose()


class Pool(Protocol):
    """A pool of connections."""

    async def close(self) -> None:
        """Close the connections."""


_closing: Final[set[asyncio.Task[None]]] = set()


def retire(client: Any) -> None:
    """Close a client's connections as soon as no caller uses the client any more. Do nothing if the client has no method `retire`."""
    method = getattr(client, "retire", None)
    if method is not None:
        method()


def close_after(owner: object, pool: Pool) -> None:
    """Close `pool` when `owner` is garbage-collected. Call this function in the event loop that both use."""
    weakref.finalize(owner, _schedule_close, pool, asyncio.get_running_loop()).atexit = False


def _schedule_close(pool: Pool, loop: asyncio.AbstractEventLoop) -> None:
    # The finalizer may run in any thread, because the garbage collector does.
    if not loop.is_closed():
        loop.call_soon_threadsafe(_start_close, pool)


def _start_close(pool: Pool) -> None:
    task = asyncio.ensure_future(pool.close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
