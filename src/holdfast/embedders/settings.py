"""Which embedder, where it is, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from holdfast.recall.base import CONTEXT

LOCAL: Final = "local"
"""The provider that needs no network: a small model, computed here."""
OPENAI_MODEL: Final = "text-embedding-3-small"
MINILM_MODEL: Final = "all-MiniLM-L6-v2"
E5_MODEL: Final = "multilingual-e5-small"
BATCH_SIZE: Final = 64
MAX_INPUT: Final = 8000
TIMEOUT: Final = 60.0
_PREFIX_BYTES: Final = 4
"""Of the hash that stands for a prefix in the name of a model."""


class LocalModel(NamedTuple):
    """A local model, and the form of text that it wants."""

    floor: float
    """Cosine below which texts have nothing to do with each other, measured: see docs/recall-quality.md."""
    context: bool
    """True if it finds more when turns are embedded with their speaker and the turn before."""


LOCAL_MODELS: Final = {
    MINILM_MODEL: LocalModel(floor=0.3, context=False),
    E5_MODEL: LocalModel(floor=0.79, context=True),
}


class EmbedderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One embedder, with nothing left to look up; `Embedder` in the configuration says what each field means."""

    provider: str = "openai"
    model: str = OPENAI_MODEL
    """With `local` one of `LOCAL_MODELS`; that of OpenAI is all-MiniLM-L6-v2 there, as nothing else was said."""
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
    """See `holdfast.embedders.base.floor_of`; None: that of the local model, else 0."""
    query_prefix: str = ""
    """Put before each question."""
    passage_prefix: str = ""
    """Put before each text that may answer one."""
    context: bool | None = None
    """Whether turns are embedded with their speaker and the turn before; None: as the local model has it, else not."""
    path: str | None = None
    """`local`: the folder of the weights; None: where `holdfast embeddings install` puts them."""

    def __post_init__(self) -> None:
        if self.provider == LOCAL and self.model == OPENAI_MODEL:
            msgspec.structs.force_setattr(self, "model", MINILM_MODEL)

    @property
    def name(self) -> str:
        """See `Embedder.name`."""
        shortened = f"@{self.dimension}" if self.shortens else ""
        prefix = blake2b(self.passage_prefix.encode(), digest_size=_PREFIX_BYTES).hexdigest()
        prefixed = f"+prefix-{prefix}" if self.passage_prefix else ""
        context = CONTEXT if self.has_context else ""
        return f"{self.provider}/{self.model}{shortened}{prefixed}{context}"

    @property
    def has_context(self) -> bool:
        """What `context` comes to."""
        return self._known.context if self.context is None else self.context

    @property
    def floor(self) -> float:
        """What `min_similarity` comes to."""
        return self._known.floor if self.min_similarity is None else self.min_similarity

    @property
    def _known(self) -> LocalModel:
        unknown = LocalModel(floor=0.0, context=False)
        return LOCAL_MODELS.get(self.model, unknown) if self.provider == LOCAL else unknown

    @property
    def shortens(self) -> bool:
        """Whether the model is asked for vectors of `dimension`: OpenAI's third generation makes them of any size."""
        return self.dimension is not None and self.model.rpartition("/")[2].startswith("text-embedding-3")

    def __repr__(self) -> str:
        return f"EmbedderSettings({self.name!r})"  # key and headers are secrets
