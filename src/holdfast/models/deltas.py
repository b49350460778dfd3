"""Models that yield deltas, and the deltas of any other model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from holdfast.log.items import Delta
from holdfast.models.base import Model, ModelRequest, closing
from holdfast.models.codecs.chat import ChatDecoder, ChatEncoder, decode_request, encode_request


class DeltaModel(ABC):
    """Base class of Holdfast's own models, which yield deltas. They can also be used as a `Model`, which yields chunks."""

    @abstractmethod
    def stream_deltas(
        self, request: ModelRequest, *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Delta], None]:
        """Yield the deltas of each event of the answer. Otherwise like `Model.stream`."""

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the answer as chunks, as described in `Model.stream`."""
        encoder = ChatEncoder()
        async with closing(self.stream_deltas(decode_request(request), headers=headers)) as stream:
            async for deltas in stream:
                if (chunk := encoder.encode(deltas)) is not None:
                    yield chunk


def stream_deltas(
    model: Model, request: ModelRequest, *, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[list[Delta], None]:
    """Yield the deltas of each event of a model's answer. A custom model gets a Chat Completions body, and its chunks are decoded."""
    if isinstance(model, DeltaModel) and type(model).stream is DeltaModel.stream:
        return model.stream_deltas(request, headers=headers)
    return _decode_chunks(model.stream(encode_request(request), headers=headers))


async def _decode_chunks(stream: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[list[Delta], None]:
    decoder = ChatDecoder()
    async with closing(stream) as chunks:
        async for chunk in chunks:
            yield decoder.decode(chunk)
