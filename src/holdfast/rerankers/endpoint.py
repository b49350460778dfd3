"""Call a reranker over HTTP: make the request in the format of its API, and decode the scores in the response."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, Unpack

import msgspec

from holdfast.errors import ModelError, ModelProtocolError, RerankFailed
from holdfast.limits import RERANK_ANSWER_BYTES, RERANK_TEXTS
from holdfast.models.client import Options
from holdfast.models.json_endpoint import PostingClient, describe_failure
from holdfast.rerankers.base import check_scores
from holdfast.rerankers.settings import RerankForm, RerankSettings


class RerankClient(PostingClient):
    """The endpoint of a reranker and its connections.

    Args:
        base_url: the URL up to and including the version, such as `/v1`. A query in it is kept.
        api_key: the key, which is sent as bearer token; None: no key is sent.
        model: the name by which the endpoint knows the model.
        form: the format of requests; see `RerankForm`.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the URL or the key is malformed.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        model: str,
        form: RerankForm,
        **options: Unpack[Options],
    ) -> None:
        options.setdefault("max_event_bytes", RERANK_ANSWER_BYTES)
        super().__init__(base_url, api_key, model, {}, path=_complete_path, mark=b'"index"', **options)
        self._form = form

    async def ask(self, query: str, texts: Sequence[str]) -> list[float]:
        """Send texts to the endpoint and return their scores, in order.

        Raises:
            ModelError: the endpoint did not answer, or refused the texts.
            RerankFailed: a text has no score or several, or a score is not finite.
        """
        body = await self.post(make_request(self._form, self._model or "", query, texts))
        return read_scores(body, len(texts), self._where)


def _complete_path(path: str) -> str:
    return path.removesuffix("/rerank") + "/rerank"


def make_request(form: RerankForm, model: str, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the body of a request for the scores of texts.

    Args:
        form: the format of the request.
        model: the name by which the endpoint knows the model.
        query: the question.
        texts: the texts.
    """
    if form == "tei":  # without `truncate`, it refuses texts that are too long for its model
        return {"query": query, "texts": list(texts), "truncate": True}
    body = {"model": model, "query": query, "documents": list(texts)}
    return body | {"top_k" if form == "voyage" else "top_n": len(texts)}


class _Item(msgspec.Struct, frozen=True, gc=False):
    """One score in a response. Cohere, Jina, vLLM and Voyage call it `relevance_score`, TEI calls it `score`."""

    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Answer(msgspec.Struct, frozen=True):
    """A response that is an object. Cohere, Jina and vLLM put the scores in `results`, Voyage puts them in `data`."""

    results: list[_Item] | None = None
    data: list[_Item] | None = None


def read_scores(body: bytes, count: int, where: str) -> list[float]:
    """Decode the scores in a response, in the order of the texts.

    The response is an object with the list of scores in `results` or `data`, or (TEI) only the list. Every format is accepted, whatever
    the format of the request was, because some gateways translate only requests or only responses.

    Args:
        body: the response, as JSON.
        count: the number of texts that were sent.
        where: the endpoint, for the messages of errors.

    Raises:
        RerankFailed: a text has no score or several, there is a score for a text that was not sent, or a score is not finite.
        ModelProtocolError: the response does not have the format of a reranker.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer | list[_Item])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ModelProtocolError(f"{where} answered with something that is not a list of scores") from None
    items = answer if isinstance(answer, list) else answer.results if answer.results is not None else answer.data
    if items is None:
        raise ModelProtocolError(f"{where} answered without results")
    if sorted(item.index for item in items) != list(range(count)):
        raise RerankFailed(f"{where} returned {len(items):,} scores for {count:,} texts, or with wrong indexes")
    ordered = sorted(items, key=lambda item: item.index)
    scores = [item.score if item.relevance_score is None else item.relevance_score for item in ordered]
    return check_scores(scores, count, where)


TEI_BATCH: Final = 32
"""Maximum number of texts in a call of Text Embeddings Inference. By default, it refuses more texts (`--max-client-batch-size`)."""


class EndpointReranker:
    """A reranker that is called over HTTP.

    Calls that fail (429, 5xx or a lost connection) are retried like calls of chat models, as long as `timeout` allows.

    Args:
        settings: the endpoint, the model and the time limit.
        options: options of the connection, for tests; see `UpstreamClient`.

    Raises:
        InvalidRequest: the URL or the key is malformed.
    """

    def __init__(self, settings: RerankSettings, **options: Unpack[Options]) -> None:
        options.setdefault("total_timeout", settings.timeout)
        options.setdefault("read_timeout", settings.timeout)
        options.setdefault("connect_timeout", settings.timeout)
        place = (settings.base_url or "", settings.api_key, settings.model or "")
        self._client = RerankClient(*place, settings.form, **options)
        self._batch = TEI_BATCH if settings.form == "tei" else RERANK_TEXTS

    def __repr__(self) -> str:
        return f"EndpointReranker({self.name!r}, at {self._client.origin!r})"

    @property
    def name(self) -> str:
        """The name of the model, for the messages of errors."""
        return self._client.name

    async def rerank(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return a score for each text, in order."""
        batches = [texts[at : at + self._batch] for at in range(0, len(texts), self._batch)]
        try:
            found = await asyncio.gather(*(self._client.ask(query, batch) for batch in batches))
        except ModelError as exc:
            words = describe_failure(exc, [query, *texts])
            if isinstance(exc, ModelProtocolError):
                # The error's message ends with a piece of the response, which may quote a text.
                words = words.split(": ", 1)[0]
            failure = RerankFailed(f"no scores: {words}")
        else:
            return [score for scores in found for score in scores]
        raise failure  # outside the block above, so that a logged traceback has no error that may quote a text

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
