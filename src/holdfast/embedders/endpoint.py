"""Any OpenAI-compatible embeddings endpoint (`POST /embeddings`): what is sent in which call, and what happens to texts that it refuses.

A call of `embed` or `embed_queries` reads as: `_embed -> _shortened -> _batches -> _batch -> _asked -> EmbeddingsClient`, which tries again and knows HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Unpack

import anyio
import anyio.to_thread
import msgspec

from holdfast.accounting import run_cpu
from holdfast.embedders.base import Embed, checked
from holdfast.embedders.settings import EmbedderSettings
from holdfast.errors import ContextTooLong, EmbeddingFailed, ModelError, ModelProtocolError, ModelUnavailable
from holdfast.limits import EMBEDDING_ANSWER_BYTES, EMBEDDING_BATCH_BYTES
from holdfast.models.client import Options
from holdfast.models.json_endpoint import PostingClient, describe_failure
from holdfast.recall.vectors import Vector, vector_of
from holdfast.tokens import TokenCounter, get_counter


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


_ABOUT_TEXTS: Final = frozenset({400, 413, 422})
"""Statuses that may be one text's fault."""
_SMALL_ANSWER: Final = 64 * 1024
"""Bytes of an answer that is read at once; for a larger one a thread is worth its while."""
_CUTS: Final = 4
"""How often a text is made shorter that the endpoint finds too long."""
_CHARS: Final = 16
"""Characters a token at most, for the first cut of a very long text."""
_PLAIN: Final = "hello"
"""What no endpoint has a reason to refuse: one that does is at fault itself, not the texts that it refused before."""


class EndpointEmbedder:
    """A model behind an OpenAI-compatible embeddings endpoint: OpenAI, Ollama, vLLM, llama.cpp, a gateway.

    Texts go in batches, several at a time; a call that fails is tried again as calls of models are (429, 5xx and lost connections,
    with the pause that is asked for). One text that is refused keeps no others from their vectors.

    Args:
        settings: where it is, and how it is called.
        options: of the connection; see `UpstreamClient`. For tests.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
    """

    def __init__(self, settings: EmbedderSettings, **options: Unpack[Options]) -> None:
        options.setdefault("total_timeout", settings.timeout)
        options.setdefault("read_timeout", settings.timeout)
        options.setdefault("max_connections", settings.max_requests)
        place = (settings.base_url, settings.api_key, settings.model, settings.headers)
        self._client = EmbeddingsClient(*place, **options)
        self._settings = settings
        self._dimension = settings.dimension
        self._places: anyio.Semaphore | None = None

    def __repr__(self) -> str:
        return f"EndpointEmbedder({self.name!r}, at {self._client.origin!r})"

    @property
    def name(self) -> str:
        """See `Embedder.name`."""
        return self._settings.name

    @property
    def dimension(self) -> int | None:
        """See `Embedder.dimension`."""
        return self._dimension

    @property
    def min_similarity(self) -> float:
        """See `floor_of`."""
        return self._settings.floor

    @property
    def embed_queries(self) -> Embed | None:
        """See `query_vectors`; None where questions have the prefix of other texts, or none has one."""
        prefix = self._settings.query_prefix
        return None if prefix == self._settings.passage_prefix else partial(self._embed, prefix)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """See `Embedder.embed`."""
        return await self._embed(self._settings.passage_prefix, texts)

    async def _embed(self, prefix: str, texts: Sequence[str]) -> list[Vector]:
        wanted = [prefix + text for text in checked(texts)]
        if any(len(text.encode()) > self._settings.max_input for text in wanted):  # no token is shorter than a byte
            wanted = await anyio.to_thread.run_sync(self._shortened, wanted)
        made = _Made({}, [], [], [])
        batches = list(self._batches(wanted))
        if len(batches) == 1:
            await self._batch(wanted, batches[0], made)
        else:
            async with anyio.create_task_group() as group:
                for batch in batches:
                    group.start_soon(self._batch, wanted, batch, made)
        if made.failed or made.refused:
            raise self._failure(made)
        return [made.vectors[at] for at in range(len(wanted))]

    def retire(self) -> None:
        """Close its connections as soon as nobody has it any more."""
        self._client.retire()

    async def close(self) -> None:
        """See `Embedder.close`."""
        await self._client.close()

    # -- what goes together ------------------------------------------------------

    def _shortened(self, texts: Sequence[str]) -> list[str]:
        count = get_counter(self._settings.model)
        return [shortened(text, self._settings.max_input, count) for text in texts]

    def _batches(self, texts: Sequence[str]) -> Iterator[range]:
        start = size = 0
        for at, text in enumerate(texts):
            grown = len(text.encode())
            if at > start and (at - start == self._settings.batch_size or size + grown > EMBEDDING_BATCH_BYTES):
                yield range(start, at)
                start, size = at, 0
            size += grown
        if texts:
            yield range(start, len(texts))

    # -- one batch ---------------------------------------------------------------

    async def _batch(self, texts: Sequence[str], batch: range, made: _Made) -> None:
        """The vectors of a batch, into `made`; where it is refused as it is, those of its halves, and so on."""
        self._places = self._places or anyio.Semaphore(self._settings.max_requests)
        async with self._places:
            waiting = [batch]
            while waiting and not made.failed:
                part = waiting.pop()
                try:
                    vectors = await self._asked([texts[at] for at in part])
                except ModelError as exc:
                    if exc.status not in _ABOUT_TEXTS and not isinstance(exc, ContextTooLong):
                        made.failed.append(_failure(exc, [texts[at] for at in part]))
                    elif len(part) > 1:
                        middle = len(part) // 2
                        waiting += [part[middle:], part[:middle]]
                    else:
                        await self._refused(_failure(exc, [texts[part[0]]]), part[0], made)
                except EmbeddingFailed as exc:
                    made.failed.append(exc)
                else:
                    made.vectors.update(zip(part, vectors, strict=True))

    async def _refused(self, error: EmbeddingFailed, at: int, made: _Made) -> None:
        """Note a text that is refused; where none was taken yet, once see whether the endpoint takes any."""
        made.refused.append((at, error))
        if made.vectors or made.probed:
            return
        made.probed.append(True)
        try:
            await self._asked([_PLAIN])
        except ModelError as exc:
            made.probed.append(False)
            made.failed.append(error if exc.status in _ABOUT_TEXTS else _failure(exc, [_PLAIN]))
        except EmbeddingFailed as exc:
            made.probed.append(False)
            made.failed.append(exc)

    async def _asked(self, texts: Sequence[str]) -> list[Vector]:
        """The vectors of texts in one call. One alone that is too long for the endpoint is made shorter, and sent again."""
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
        vectors = await run_cpu(vectors_in, body, count, dimension, where, long=len(body) > _SMALL_ANSWER)
        self._dimension = len(vectors[0]) // 4
        return vectors

    def _failure(self, made: _Made) -> EmbeddingFailed:
        """What a call ends with of which not all texts have their vectors."""
        cause = made.failed[0] if made.failed else None
        refused = tuple(sorted(at for at, _ in made.refused)) if all(made.probed) else ()
        words = str(cause) if cause else _refusal(refused, made.refused[0][1])
        return EmbeddingFailed(
            words,
            again=cause is not None and cause.again,
            retry_after=cause.retry_after if cause else None,
            refused=refused,
            vectors=made.vectors,
        )


class _Made(NamedTuple):
    """What a call of `embed` has come to so far."""

    vectors: dict[int, Vector]
    refused: list[tuple[int, EmbeddingFailed]]
    failed: list[EmbeddingFailed]
    """What no other text will fare better with; nothing further is sent then."""
    probed: list[bool]
    """Whether a text was sent that nobody refuses, and false behind that where it was refused."""


def shortened(text: str, most: int, count: TokenCounter) -> str:
    """The beginning of `text` that has at most `most` tokens; the whole where it has no more."""
    text = text[: most * _CHARS]
    while (tokens := count.text(text)) > most:
        text = text[: max(1, int(len(text) * most / tokens * 0.98))]
        if len(text) == 1:
            break
    return text


def _failure(exc: ModelError, texts: Sequence[str]) -> EmbeddingFailed:
    again = isinstance(exc, ModelUnavailable | ModelProtocolError)
    return EmbeddingFailed(f"no vectors: {describe_failure(exc, texts)}", again=again, retry_after=exc.retry_after)


def _refusal(refused: Sequence[int], error: EmbeddingFailed) -> str:
    named = ", ".join(f"texts[{at}]" for at in refused[:5]) + (" and more" if len(refused) > 5 else "")
    return f"the endpoint refuses {named}: {error}"
