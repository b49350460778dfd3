"""The contract of embedders, and the checks that they share."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from holdfast.errors import InvalidRequest
from holdfast.recall.vectors import Vector

KEY_BYTES: Final = 16
Embed = Callable[[Sequence[str]], Awaitable[list[Vector]]]
"""The type of `Embedder.embed`."""


class Embedder(Protocol):
    """Converts texts to vectors; the closer two texts are in meaning, the closer their vectors.

    Any object with these four members is an embedder, and so is a plain function: see `holdfast.embedders.embedder_of`. It may have four more:
    `min_similarity` (see `get_floor`), `languages` (see `can_read_language`), `embed_queries` (see `make_query_vectors`), and a `name` that ends with
    `holdfast.recall.base.CONTEXT`, which makes Holdfast embed turns with their speaker and the previous turn.
    """

    @property
    def name(self) -> str:
        """Provider and model, such as `openai/text-embedding-3-small`.

        It is stored with each vector, and vectors of different names are never compared. So if more than the text is embedded, the name must
        say so.
        """

    @property
    def dimension(self) -> int | None:
        """Length of a vector; None: unknown before the first one."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order, all of the same dimension.

        If one text has no vector, the call fails, and `EmbeddingFailed.vectors` has those of the others.

        Args:
            texts: any number of texts, none empty or blank. A text that is too long is cut at the end, not refused.

        Raises:
            InvalidRequest: a text is empty, or is not a text.
            EmbeddingFailed: there are no vectors. `again` is True if the same call may succeed later, `refused` names the texts that never
                will.
        """

    async def close(self) -> None:
        """Release connections and weights. Closing twice is fine."""


async def make_query_vectors(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    """Return vectors of questions, to be compared with those of `Embedder.embed`.

    Models that need a different prefix for questions have `embed_queries`, which takes, returns and raises the same as
    `embed`. If it is missing or None, questions are embedded like texts.
    """
    embed: Embed = getattr(embedder, "embed_queries", None) or embedder.embed
    return await embed(texts)


def get_floor(embedder: Embedder) -> float:
    """Return the cosine below which texts are unrelated, from `min_similarity`; 0 if it is unknown."""
    floor: float = getattr(embedder, "min_similarity", 0.0)
    return floor


def can_read_language(embedder: Embedder, language: str | None) -> bool:
    """Return False if an embedder lists its `languages` and the question's language is not among them.

    Args:
        embedder: any embedder.
        language: the language of a `holdfast.recall.questions.Question`; None: not recognised.
    """
    known: frozenset[str] | None = getattr(embedder, "languages", None)
    return known is None or language is None or language in known


def make_text_key(name: str, text: str, *, query: bool = False) -> bytes:
    """Return the key of a text's vector: a 16-byte hash of the model's name and the text.

    Args:
        name: the name of the embedder.
        text: the complete text.
        query: True for a vector made by `embed_queries`, which differs.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"holdfast.query" if query else b"holdfast.vector")
    digest.update(f"{len(name)}:{name}".encode())
    digest.update(text.encode())
    return digest.digest()


def check_texts(texts: Any) -> list[str]:
    """Return `texts` as a list, checked to have no empty text. Raises `InvalidRequest`, which names the first invalid one."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidRequest(f"texts must be a list of texts, not a {type(texts).__name__}", param="texts")
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"texts[{at}] must be a text, not a {type(text).__name__}", param="texts")
        if not text or text.isspace():
            raise InvalidRequest(f"texts[{at}] is empty, so it has no vector: leave it out", param="texts")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"texts[{at}] contains half a character (a lone surrogate)", param="texts") from exc
    return list(texts)
