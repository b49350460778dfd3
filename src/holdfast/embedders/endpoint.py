"""Call any OpenAI-compatible embeddings endpoint (`POST /embeddings`).

Texts are shortened and sent in batches. If the endpoint refuses a batch, the refused texts are found and the others are still embedded.

Call order: `_embed -> _shorten_all -> _iter_batches -> _embed_batch -> _request_vectors -> EmbeddingsClient`, which handles HTTP and
retries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

import anyio
import anyio.to_thread
import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.counting import TokenCounter
from holdfast.embedders.base import Embed, check_texts
from holdfast.embedders.settings import EmbedderSettings
from holdfast.errors import ContextTooLong, EmbeddingFailed, ModelError, ModelProtocolError, ModelUnavailable
from holdfast.limits import EMBEDDING_ANSWER_BYTES, EMBEDDING_BATCH_BYTES
from holdfast.models.client import Options
from holdfast.models.json_endpoint import PostingClient, describe_failure
from holdfast.recall.vectors import Vector, to_vector
from holdfast.tokens import get_counter


class EmbeddingsClient(PostingClient):
    """An embeddings endpoint and its connections.

    Args:
        base_url: the URL up to and including the version, such as `/v1`. A query in it is kept.
        api_key: the key, which is sent as bearer token; None: no key is sent.
        model: the name by which the endpoint knows the model.
        headers: headers that are sent with every call.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the URL, the key or a header is malformed.
    """

    def __init__(
        self, base_url: str, api_key: str | None, model: str, headers: Mapping[str, str], **options: Unpack[Options]
    ) -> None:
        options.setdefault("max_event_bytes", EMBEDDING_ANSWER_BYTES)
        super().__init__(base_url, api_key, model, headers, path=_complete_path, mark=b'"embedding"', **options)

    async def ask(self, texts: Sequence[str], dimensions: int | None) -> bytes:
        """Send texts to the endpoint and return the complete response, which is not decoded yet.

        Args:
            texts: at least one text.
            dimensions: the dimension that the vectors must have; None: the model's default.

        Raises:
            ModelError: the endpoint did not answer, or refused the texts.
        """
        request: dict[str, Any] = {"model": self._model, "input": list(texts)}
        if dimensions is not None:
            request["dimensions"] = dimensions
        return await self.post(request)


def _complete_path(path: str) -> str:
    return path.removesuffix("/embeddings") + "/embeddings"


class _Item(msgspec.Struct, frozen=True, gc=False):
    embedding: list[float]
    index: int | None = None


class _Answer(msgspec.Struct, frozen=True):
    data: list[_Item]


def read_vectors(body: bytes, count: int, dimension: int | None, where: str) -> list[Vector]:
    """Decode the vectors in a response, in the order of the texts.

    Args:
        body: the response, as JSON.
        count: the number of texts that were sent.
        dimension: the required dimension of the vectors; None: the dimension of the first vector.
        where: the endpoint, for the messages of errors.

    Raises:
        EmbeddingFailed: a vector is missing, or there are two for one text; or a vector has another dimension, only zeros, or a number
            that is not finite.
        ModelProtocolError: the response does not have the format of an embeddings endpoint.
    """
    try:
        items = msgspec.json.decode(body, type=_Answer).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise ModelProtocolError(f"{where} answered with something that is not a list of vectors") from exc
    places = [at if item.index is None else item.index for at, item in enumerate(items)]
    if sorted(places) != list(range(count)):
        raise EmbeddingFailed(f"{where} returned {len(items):,} vectors for {count:,} texts, or with wrong indexes")
    found = [b""] * count
    for at, item in sorted(zip(places, items, strict=True), key=lambda pair: pair[0]):
        found[at] = to_vector(item.embedding, dimension)
        dimension = len(item.embedding)
    return found


_ABOUT_TEXTS: Final = frozenset({400, 413, 422})
"""HTTP statuses with which an endpoint may refuse a single text, while it accepts others."""
_SMALL_ANSWER: Final = 64 * 1024
"""Maximum size, in bytes, of a response that is decoded on the event loop. A larger one is decoded in a thread."""
_CUTS: Final = 4
"""Maximum number of times that a text is shortened because it is too long for the endpoint."""
_CHARS: Final = 16
"""A very long text is cut to this many characters for each allowed token, before its tokens are counted."""
CALL_SECONDS: Final = 60.0
"""Time limit of a call."""
CALLS_AT_ONCE: Final = 4
"""Maximum number of calls at the same time."""
BATCH_TEXTS: Final = 64
"""Maximum number of texts in a call."""
INPUT_TOKENS: Final = 8000
"""Maximum number of tokens of a text that are sent. The rest of the text is left out."""
_PLAIN: Final = "hello"
"""A text that no endpoint has a reason to refuse. If this text is refused, the endpoint has a problem, and not the texts sent before."""


class EndpointEmbedder:
    """An embedder with a model at an OpenAI-compatible endpoint, such as OpenAI, Ollama, vLLM, llama.cpp or a gateway.

    Texts are sent in batches, several of them at a time. Calls that fail (429, 5xx or a lost connection) are retried after the pause
    that the endpoint requests, like calls of chat models. If the endpoint refuses a text, the others are still embedded.

    Args:
        settings: the endpoint and the model.
        options: options of the connection, for tests; see `UpstreamClient`.

    Raises:
        InvalidRequest: the URL, the key or a header is malformed.
    """

    def __init__(self, settings: EmbedderSettings, **options: Unpack[Options]) -> None:
        options.setdefault("total_timeout", CALL_SECONDS)
        options.setdefault("read_timeout", CALL_SECONDS)
        options.setdefault("max_connections", CALLS_AT_ONCE)
        place = (settings.base_url, settings.api_key, settings.model, settings.headers)
        self._client = EmbeddingsClient(*place, **options)
        self._settings = settings
        self._dimension = settings.dimension
        self._places: anyio.Semaphore | None = None

    def __repr__(self) -> str:
        return f"EndpointEmbedder({self.name!r}, at {self._client.origin!r})"

    @property
    def name(self) -> str:
        """The name that is stored with each vector."""
        return self._settings.name

    @property
    def dimension(self) -> int | None:
        """The dimension of the vectors; None: not known before the first vector is made."""
        return self._dimension

    @property
    def min_similarity(self) -> float:
        """The cosine below which texts are unrelated; 0: not known."""
        return self._settings.floor

    @property
    def embed_queries(self) -> Embed | None:
        """A function that embeds questions; None if questions have the same prefix as other texts."""
        prefix = self._settings.query_prefix
        return None if prefix == self._settings.passage_prefix else partial(self._embed, prefix)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order."""
        return await self._embed(self._settings.passage_prefix, texts)

    async def _embed(self, prefix: str, texts: Sequence[str]) -> list[Vector]:
        wanted = [prefix + text for text in check_texts(texts)]
        if any(len(text.encode()) > INPUT_TOKENS for text in wanted):  # no token is shorter than a byte
            wanted = await anyio.to_thread.run_sync(self._shorten_all, wanted)
        results = _Results({}, [], [], [])
        batches = list(self._iter_batches(wanted))
        if len(batches) == 1:
            await self._embed_batch(wanted, batches[0], results)
        else:
            async with anyio.create_task_group() as group:
                for batch in batches:
                    group.start_soon(self._embed_batch, wanted, batch, results)
        if results.failed or results.refused:
            raise self._make_error(results)
        return [results.vectors[at] for at in range(len(wanted))]

    def retire(self) -> None:
        """Close the connections as soon as no call uses them."""
        self._client.retire()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    # -- batches -----------------------------------------------------------------

    def _shorten_all(self, texts: Sequence[str]) -> list[str]:
        count = get_counter(self._settings.model)
        return [shorten_text(text, INPUT_TOKENS, count) for text in texts]

    def _iter_batches(self, texts: Sequence[str]) -> Iterator[range]:
        start = size = 0
        for at, text in enumerate(texts):
            grown = len(text.encode())
            if at > start and (at - start == BATCH_TEXTS or size + grown > EMBEDDING_BATCH_BYTES):
                yield range(start, at)
                start, size = at, 0
            size += grown
        if texts:
            yield range(start, len(texts))

    # -- one batch ---------------------------------------------------------------

    async def _embed_batch(self, texts: Sequence[str], batch: range, results: _Results) -> None:
        """Embed a batch and add the vectors to `results`.

        A batch that the endpoint refuses is split into halves, again and again, until the refused texts are found.
        """
        self._places = self._places or anyio.Semaphore(CALLS_AT_ONCE)
        async with self._places:
            waiting = [batch]
            while waiting and not results.failed:
                part = waiting.pop()
                try:
                    vectors = await self._request_vectors([texts[at] for at in part])
                except ModelError as exc:
                    if exc.status not in _ABOUT_TEXTS and not isinstance(exc, ContextTooLong):
                        results.failed.append(_to_embedding_error(exc, [texts[at] for at in part]))
                    elif len(part) > 1:
                        middle = len(part) // 2
                        waiting += [part[middle:], part[:middle]]
                    else:
                        await self._record_refusal(_to_embedding_error(exc, [texts[part[0]]]), part[0], results)
                except EmbeddingFailed as exc:
                    results.failed.append(exc)
                else:
                    results.vectors.update(zip(part, vectors, strict=True))

    async def _record_refusal(self, error: EmbeddingFailed, at: int, results: _Results) -> None:
        """Record that the endpoint has refused a text.

        If the endpoint has not accepted any text in this call yet, send it a plain text once, to find out if it accepts texts at all.

        Args:
            error: the error for the refused text.
            at: the position of the refused text.
            results: the results of the call.
        """
        results.refused.append((at, error))
        if results.vectors or results.probed:
            return
        results.probed.append(True)
        try:
            await self._request_vectors([_PLAIN])
        except ModelError as exc:
            results.probed.append(False)
            results.failed.append(error if exc.status in _ABOUT_TEXTS else _to_embedding_error(exc, [_PLAIN]))
        except EmbeddingFailed as exc:
            results.probed.append(False)
            results.failed.append(exc)

    async def _request_vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vectors of texts. A single text that is too long for the endpoint is shortened and sent again."""
        for attempt in range(_CUTS + 1):
            try:
                body = await self._client.ask(texts, self._settings.dimension if self._settings.shortens else None)
                break
            except ContextTooLong as exc:
                if len(texts) > 1 or attempt == _CUTS:
                    raise
                keep = 0.5
                if exc.context_limit and exc.requested and exc.context_limit < exc.requested:
                    keep = 0.95 * exc.context_limit / exc.requested
                texts = [texts[0][: max(1, int(len(texts[0]) * keep))]]
        where, count, dimension = self._client.origin, len(texts), self._dimension
        vectors = await run_cpu(read_vectors, body, count, dimension, where, long=len(body) > _SMALL_ANSWER)
        self._dimension = len(vectors[0]) // 4
        return vectors

    def _make_error(self, results: _Results) -> EmbeddingFailed:
        cause = results.failed[0] if results.failed else None
        refused = tuple(sorted(at for at, _ in results.refused)) if all(results.probed) else ()
        words = str(cause) if cause else _format_refusal(results.refused)
        return EmbeddingFailed(
            words,
            again=cause is not None and cause.again,
            retry_after=cause.retry_after if cause else None,
            refused=refused,
            vectors=results.vectors,
        )


class _Results(NamedTuple):
    """The results of one call of `embed`, which its batches share."""

    vectors: dict[int, Vector]
    """The vectors, by the position of the text."""
    refused: list[tuple[int, EmbeddingFailed]]
    """The positions of refused texts, each with its error."""
    failed: list[EmbeddingFailed]
    """Errors that do not concern a single text. After such an error, nothing more is sent."""
    probed: list[bool]
    """Empty: the plain text was not sent. `[True]`: it was sent. `[True, False]`: it was sent, and the endpoint did not accept it."""


def shorten_text(text: str, most: int, count: TokenCounter) -> str:
    """Return a text, or only its beginning if it has more than `most` tokens."""
    text = text[: most * _CHARS]
    while (tokens := count.text(text)) > most:
        text = text[: max(1, int(len(text) * most / tokens * 0.98))]
        if len(text) == 1:
            break
    return text


def _to_embedding_error(exc: ModelError, texts: Sequence[str]) -> EmbeddingFailed:
    again = isinstance(exc, ModelUnavailable | ModelProtocolError)
    return EmbeddingFailed(f"no vectors: {describe_failure(exc, texts)}", again=again, retry_after=exc.retry_after)


def _format_refusal(refused: Sequence[tuple[int, EmbeddingFailed]]) -> str:
    """Describe refusals without the positions of the texts: a cache in front of this embedder counts them differently."""
    return f"the endpoint refuses {'a text' if len(refused) == 1 else f'{len(refused):,} texts'}: {refused[0][1]}"
