"""What an embedder promises, and the checks that all of them share."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from holdfast.errors import InvalidRequest
from holdfast.recall.vectors import Vector

KEY_BYTES: Final = 16
Embed = Callable[[Sequence[str]], Awaitable[list[Vector]]]
"""See `Embedder.embed`."""


class Embedder(Protocol):
    """Makes vectors of texts that are the nearer, the more alike they are in meaning.

    Any object with these four is one, and so is a plain function: see `holdfast.embedders.embedder_of`. It may have four more:
    `min_similarity` (see `floor_of`), `languages` (see `knows_language`), `embed_queries` (see `query_vectors`) and a `name` that ends with
    `holdfast.recall.base.CONTEXT`: then turns are embedded with their speaker and the turn before.
    """

    @property
    def name(self) -> str:
        """Provider and model, like `openai/text-embedding-3-small`.

        It goes with each vector that is stored: vectors of two names are never compared. So it also says what is embedded where that
        is more than the text.
        """

    @property
    def dimension(self) -> int | None:
        """Numbers in a vector; None: not known before the first one came."""

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """A vector for each text, in their order; all of one dimension.

        All or nothing: where one text has no vector the call fails, and `EmbeddingFailed.vectors` has what came of the others.

        Args:
            texts: any number, none empty or of white space alone. Too long ones are cut at their end, not refused.

        Raises:
            InvalidRequest: a text is empty, or no text.
            EmbeddingFailed: there are no vectors; `again` says whether the same call may pass later, `refused` which texts never
                will.
        """

    async def close(self) -> None:
        """Let go of connections and weights. Closing twice is fine."""


async def query_vectors(embedder: Embedder, texts: Sequence[str]) -> list[Vector]:
    """Return vectors of questions, to compare with those of `Embedder.embed`.

    Models that want another prefix before a question than before what may answer it have `embed_queries`, with the arguments,
    results and errors of `embed`. Those that have none, or None, embed both in the same way.
    """
    embed: Embed = getattr(embedder, "embed_queries", None) or embedder.embed
    return await embed(texts)


def floor_of(embedder: Embedder) -> float:
    """The cosine below which texts have nothing to do with each other, by its `min_similarity`; 0: it is not known, and none is too low."""
    floor: float = getattr(embedder, "min_similarity", 0.0)
    return floor


def knows_language(embedder: Embedder, language: str | None) -> bool:
    """Return False if an embedder names the languages that it knows (`languages`), and one that is asked in is not among them.

    Args:
        embedder: any.
        language: as `holdfast.recall.questions.Question` has it; None: it does not show.
    """
    known: frozenset[str] | None = getattr(embedder, "languages", None)
    return known is None or language is None or language in known


def text_key(name: str, text: str, *, query: bool = False) -> bytes:
    """What a text's vector is known by: 16 bytes of the model's name and the text.

    Args:
        name: see `Embedder.name`.
        text: whole, as it was given.
        query: True for the vector of `embed_queries`, which is another one.
    """
    digest = hashlib.blake2b(digest_size=KEY_BYTES, person=b"holdfast.query" if query else b"holdfast.vector")
    digest.update(f"{len(name)}:{name}".encode())
    digest.update(text.encode())
    return digest.digest()


def checked(texts: Any) -> list[str]:
    """`texts` as a list, each a text with something in it. Raises `InvalidRequest`, which names the first that is not."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidRequest(f"texts must be a list of texts, not a {type(texts).__name__}", param="texts")
    for at, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequest(f"texts[{at}] must be a text, not a {type(text).__name__}", param="texts")
        if not text or text.isspace():
            raise InvalidRequest(f"texts[{at}] is empty, and nothing has no vector: leave it out", param="texts")
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidRequest(f"texts[{at}] has half a character (a lone surrogate) in it", param="texts") from exc
    return list(texts)
