"""Protocol of a model: a request goes in, chunks come out."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


class Model(Protocol):
    """A language model that answers Chat Completions requests as a stream. To get a complete answer, collect the stream.

    Streams are independent: any number may run at once. Use a model within one event loop only.
    """

    @property
    def name(self) -> str:
        """Name of the model, used as `model` for requests that name none."""

    def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the answer to `request` as OpenAI `chat.completion.chunk` objects.

        The request is a Chat Completions body. It is not changed, and fields unknown to Holdfast are passed through in
        both
        directions. Callers may rely on this:

        - Nothing happens before the first `anext`.
        - Usage is always requested; an upstream that reports it does so in a last chunk with empty `choices`.
        - The iterator ends regularly only after a complete answer. If the answer is cut off, the iterator yields what
          has
          arrived, then raises.
        - Closing the iterator (with `closing`, or by cancelling the task that waits for it) stops the call at once.

        Args:
            request: The body; `stream` and `stream_options` in it have no effect on what is yielded.
            headers: Added to this call only, overriding the model's own (`Authorization` included).

        Raises:
            ModelUnavailable: The upstream is down, overloaded or silent; has `retry_after` if the upstream said when to
                retry.
            ModelRejected: The upstream refused the request; `ContextTooLong` if the only reason is its length.
            ModelProtocolError: The response is not a valid answer, or is cut off.
        """

    async def close(self) -> None:
        """Close all connections; running streams fail. Calling it again does nothing."""


@asynccontextmanager
async def closing(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Yield `chunks`, and close the iterator when the block is left for any reason.

    Without this, an abandoned iterator keeps its connection open until it is garbage-collected.
    """
    try:
        yield chunks
    finally:
        aclose = getattr(chunks, "aclose", None)
        if aclose is not None:
            await aclose()
