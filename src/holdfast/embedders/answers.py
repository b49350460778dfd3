"""One call of an embeddings endpoint: the request as OpenAI's API has it (`POST /embeddings`), and the vectors in its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import msgspec

from holdfast.errors import EmbeddingFailed, ModelProtocolError
from holdfast.limits import EMBEDDING_ANSWER_BYTES
from holdfast.models.client import Options
from holdfast.models.posting import PostingClient
from holdfast.recall.vectors import Vector, vector_of


class EmbeddingsClient(PostingClient):
    """The endpoint and its connections.

    Args:
        base_url: up to and with the version; a query in it is kept.
        api_key: sent as bearer token; None sends none.
        model: what it is called there.
        headers: sent with every call.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
    """

    def __init__(
        self, base_url: str, api_key: str | None, model: str, headers: Mapping[str, str], **options: Unpack[Options]
    ) -> None:
        options.setdefault("max_event_bytes", EMBEDDING_ANSWER_BYTES)
        super().__init__(base_url, api_key, model, headers, path=_path, mark=b'"embedding"', **options)

    async def ask(self, texts: Sequence[str], dimensions: int | None) -> bytes:
        """What the endpoint answers for `texts`, unread but whole.

        Args:
            texts: at least one.
            dimensions: asked for; None: the model's own.

        Raises:
            ModelError: it did not answer, or refused.
        """
        request: dict[str, Any] = {"model": self._model, "input": list(texts)}
        if dimensions is not None:
            request["dimensions"] = dimensions
        return await self.post(request)


def _path(path: str) -> str:
    return path.removesuffix("/embeddings") + "/embeddings"


class _Item(msgspec.Struct, frozen=True, gc=False):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    data: list[_Item]


def vectors_in(body: bytes, count: int, dimension: int | None, where: str) -> list[Vector]:
    """The vectors in an answer, in the order of the texts.

    Args:
        body: JSON.
        count: how many texts were sent.
        dimension: what each vector must have; None: what the first one has.
        where: who answered, for errors.

    Raises:
        EmbeddingFailed: a vector is missing, doubled, of another dimension, all zeros or not finite.
        ModelProtocolError: this is no answer of an embeddings endpoint.
    """
    try:
        items = msgspec.json.decode(body, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ModelProtocolError(f"{where} answered with something that is no list of vectors") from exc
    places = [at if item.index is None else item.index for at, item in enumerate(items)]
    if sorted(places) != list(range(count)):
        raise EmbeddingFailed(f"{where} answered with {len(items):,} vectors for {count:,} texts, or with wrong places")
    found = [b""] * count
    for at, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0]):
        found[at] = vector_of(item.embedding, dimension)
        dimension = len(item.embedding)
    return found
