"""Which embedder, where it is, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

LOCAL: Final = "local"
"""The provider that needs no network: all-MiniLM-L6-v2, computed here."""
LOCAL_MODEL: Final = "all-MiniLM-L6-v2"
BATCH_SIZE: Final = 64
MAX_INPUT: Final = 8000
TIMEOUT: Final = 60.0
LOCAL_FLOOR: Final = 0.3
"""Cosine of the local model below which texts have nothing to do with each other: see docs/evaluation.md. Other models have others."""


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One embedder, with nothing left to look up; `Embedder` in the configuration says what each field means."""

    provider: str = "openai"
    model: str = "text-embedding-3-small"
    base_url: str = ""
    api_key: str | None = None
    headers: Mapping[str, str] = {}
    dimension: int | None = None
    batch_size: int = BATCH_SIZE
    """Texts in a call."""
    max_input: int = MAX_INPUT
    """Tokens of a text; what is behind is cut off."""
    max_requests: int = 4
    """Calls at once."""
    timeout: float = TIMEOUT
    """Seconds that a call may take."""
    min_similarity: float | None = None
    """See `holdfast.embedders.base.floor_of`; None: `LOCAL_FLOOR` for `local`, else 0."""
    path: str | None = None
    """`local`: the folder of the weights; None: where `holdfast embeddings install` puts them."""

    @property
    def name(self) -> str:
        """See `Embedder.name`."""
        shortened = f"@{self.dimension}" if self.shortens else ""
        return f"{self.provider}/{self.model}{shortened}"

    @property
    def floor(self) -> float:
        """What `min_similarity` comes to."""
        usual = LOCAL_FLOOR if self.provider == LOCAL else 0.0
        return usual if self.min_similarity is None else self.min_similarity

    @property
    def shortens(self) -> bool:
        """Whether the model is asked for vectors of `dimension`: OpenAI's third generation makes them of any size."""
        return self.dimension is not None and self.model.rpartition("/")[2].startswith("text-embedding-3")

    def __repr__(self) -> str:
        return f"EmbedderSettings({self.name!r})"  # key and headers are secrets
