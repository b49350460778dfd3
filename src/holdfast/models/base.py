"""What a model is to Holdfast: a request goes in, chunks come out."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


class Model(Protocol):
    """Answers Chat Completions requests as a stream; there is no other way, a whole answer is a collected stream.

    Streams are independent: any number may run at once. A model is used within one event loop.
    """

    @property
    def name(self) -> str:
        """What the model is called: the `model` of a request that names none."""

    def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The answer to `request`, as OpenAI `chat.completion.chunk` objects.

        The request is a Chat Completions body. It is not changed, and fields unknown to Holdfast travel on untouched,
        in both directions. What a caller may rely on:

        - Nothing happens before the first `anext`.
        - Usage is always asked for; an upstream that has it tells it in a last chunk with empty `choices`.
        - The iterator ends by itself only after a whole answer. A cut one raises, after what did arrive.
        - Closing the iterator (`closing`, or cancelling the task that waits for it) ends the work behind it at once.

        Args:
            request: the body; `stream` and `stream_options` in it have no effect on what is yielded.
            headers: added to this one call, and stronger than the model's own (`Authorization` included).

        Raises:
            ModelUnavailable: down, overloaded or silent; with `retry_after` if the upstream said when to come again.
            ModelRejected: refused; `ContextTooLong` if only for its length.
            ModelProtocolError: what came was no answer, or only the beginning of one.
        """

    async def close(self) -> None:
        """Let go of all connections; running streams fail. Calling it again does nothing."""


@asynccontextmanager
async def closing(chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """`chunks`, closed when the block is left, however it is left.

    Without it an abandoned iterator keeps its connection until the garbage collector comes by.
    """
    try:
        yield chunks
    finally:
        aclose = getattr(chunks, "aclose", None)
        if aclose is not None:
            await aclose()
