"""A reranker over HTTP: Cohere, Jina, Voyage, vLLM, Text Embeddings Inference, or a gateway that speaks like one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Unpack

from holdfast.errors import ModelError, ModelProtocolError, RerankFailed
from holdfast.models.client import Options
from holdfast.models.posting import describe_failure
from holdfast.rerankers.answers import RerankClient
from holdfast.rerankers.settings import RerankSettings

TEI_BATCH: Final = 32
"""Texts in a call of Text Embeddings Inference, which refuses more (`--max-client-batch-size`) unless it is set otherwise."""


class EndpointReranker:
    """A model that is called over HTTP.

    A call that fails is tried again as calls of models are (429, 5xx and lost connections), as far as `timeout` allows.

    Args:
        settings: where it is, and how it is called.
        options: of the connection; see `UpstreamClient`. For tests.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
    """

    def __init__(self, settings: RerankSettings, **options: Unpack[Options]) -> None:
        options.setdefault("total_timeout", settings.timeout)
        options.setdefault("read_timeout", settings.timeout)
        options.setdefault("connect_timeout", settings.timeout)
        place = (settings.base_url, settings.api_key, settings.model, settings.headers)
        self._client = RerankClient(*place, settings.form, **options)
        self._batch = TEI_BATCH if settings.form == "tei" else settings.top

    def __repr__(self) -> str:
        return f"EndpointReranker({self.name!r}, at {self._client.origin!r})"

    @property
    def name(self) -> str:
        """See `Reranker.name`."""
        return self._client.name

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """See `Reranker.rerank`."""
        batches = [texts[at : at + self._batch] for at in range(0, len(texts), self._batch)]
        try:
            found = await asyncio.gather(*(self._client.ask(query, batch) for batch in batches))
        except ModelError as exc:
            failure = _failure(exc, [query, *texts])
        else:
            return [score for scores in found for score in scores]
        raise failure  # outside of the block above: a logged trace has no error that may quote a text

    async def close(self) -> None:
        """See `Reranker.close`."""
        await self._client.close()


def _failure(exc: ModelError, texts: Sequence[str]) -> RerankFailed:
    words = describe_failure(exc, texts)
    if isinstance(exc, ModelProtocolError):  # ends with a piece of the answer, which may be a text
        words = words.split(": ", 1)[0]
    return RerankFailed(f"no scores: {words}")
