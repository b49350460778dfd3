"""The protocol of embedders, and functions that all embedders share."""

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
    """Converts texts to vectors. Texts with similar meanings get similar vectors.

    Any object with the four members `name`, `dimension`, `embed` and `close` is an embedder. A plain function can be used too; see
    `holdfast.embedders.embedder_of`. An embedder may have three more members: `min_similarity` (see `get_floor`), `languages` (see
    `can_read_language`) and `embed_queries` (see `make_query_vectors`).
    """

    @property
    def name(self) -> str:
        """The name of provider and model, such as `openai/text-embedding-3-small`.

        The name is stored with each vector. Vectors with different names are never compared, so the name must include everything that
        changes vectors, such as a prefix that is put before each text.
        """

    @property
    def dimension(self) -> int | None:
        """The dimension of the vectors; None: not known before the first vector is made."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return a vector for each text, in order. All vectors have the same dimension.

        If one of the texts cannot be embedded, the call fails, and `EmbeddingFailed.vectors` contains the vectors of the others.

        Args:
            texts: any number of texts, none of them empty or blank. The end of a text that is too long for the model is ignored.

        Raises:
            InvalidRequest: a text is empty, or is not a text.
            EmbeddingFailed: at least one text could not be embedded. `again` is True if the same call may succeed later. `refused` contains
                the positions of texts that can never be embedded.
        """

    async def close(self) -> None:
        """Release connections and weights. Closing twice is allowed."""


async def make_query_vectors(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    """Return vectors of questions, which can be compared with the vectors that `Embedder.embed` returns.

    Embedders that treat questions differently, for example with another prefix, have a method `embed_queries`. Its arguments, result
    and errors are those of `embed`. If it is missing or None, questions are embedded like other texts.
    """
    embed: Embed = getattr(embedder, "embed_queries", None) or embedder.embed
    return await embed(texts)


def get_floor(embedder: Embedder) -> float:
    """Return the embedder's `min_similarity`, the cosine below which texts are unrelated, or 0 if the embedder has none."""
    floor: float = getattr(embedder, "min_similarity", 0.0)
    return floor


def can_read_language(embedder: Embedder, language: str | None) -> bool:
    """Return False if the embedder has a list of `languages` and a question's language is not in it; otherwise True.

    Args:
        embedder: any embedder.
        language: the `language` of a `holdfast.recall.questions.Question`; None: not recognised.
    """
    known: frozenset[str] | None = getattr(embedder, "languages", None)
    return known is None or language is None or language in known


def make_text_key(name: str, text: str, *, query: bool = False) -> bytes:
    """Return the key of a text's vector: a 16-byte hash of the embedder's name and the text.

    Args:
        name: the name of the embedder.
        text: the complete text.
        query: True if `embed_queries` makes the vector. The key is then different, because the vector may be different.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"holdfast.query" if query else b"holdfast.vector")
    digest.update(f"{len(name)}:{name}".encode())
    digest.update(text.encode())
    return digest.digest()


def check_texts(texts: Any) -> list[str]:
    """Check that all items of `texts` are texts that are not empty, and return them as a list.

    Raises:
        InvalidRequest: a text is invalid. The message contains the position of the first invalid text.
    """
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
