"""Settings of the embedder: which one, where it is, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.limits import VECTOR_NUMBERS
from holdfast.recall.base import CONTEXT
from holdfast.settings import (
    Mistake,
    Secret,
    Settings,
    Text,
    Timeout,
    Url,
    check_header_value,
    check_headers,
    check_url,
)

LOCAL: Final = "local"
"""The provider that needs no network: a small model that runs on this machine."""
OPENAI_MODEL: Final = "text-embedding-3-small"
MINILM_MODEL: Final = "all-MiniLM-L6-v2"
E5_MODEL: Final = "multilingual-e5-small"
_PREFIX_BYTES: Final = 4
"""Bytes of the hash that represents a prefix in a model's name."""


class LocalModel(NamedTuple):
    """A local model and its preferences."""

    floor: float
    """Cosine below which texts are unrelated; measured, see docs/recall-quality.md."""
    context: bool
    """True if it finds more when turns are embedded with their speaker and the previous turn."""


LOCAL_MODELS: Final = {
    MINILM_MODEL: LocalModel(floor=0.3, context=False),
    E5_MODEL: LocalModel(floor=0.79, context=True),
}


EMBEDDER_URLS: Final = {"ollama": "http://127.0.0.1:11434/v1"}
"""Base URLs of providers that need no key, unless `base_url` is set."""


class EmbedderEntry(Settings, frozen=True, kw_only=True):
    """A model that makes vectors of texts."""

    ALIASES: ClassVar[dict[str, str]] = {"dimensions": "dimension", "vendor": "provider"}

    provider: Text = "openai"
    """`openai`; `local`, a small model that runs on this machine (`holdfast embeddings install`); or any other name for an OpenAI-compatible API
    at `base_url`. It is part of the name that is stored with each vector."""
    model: Text | None = None
    """The provider's name of the model. Unset: `text-embedding-3-small` for `openai`, `all-MiniLM-L6-v2` for `local`, which also has
    `multilingual-e5-small`."""
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY`, but only for `openai` without a `base_url`."""
    base_url: Url | None = None
    """The URL up to and including `/v1`. Unset: `OPENAI_BASE_URL`, else OpenAI's; for `ollama`, this machine."""
    headers: Mapping[str, Secret] = {}
    """Sent with every call."""
    dimension: Annotated[int, Meta(ge=1, le=VECTOR_NUMBERS)] | None = None
    """Numbers in a vector; others are refused. Unset: as the first vector. `text-embedding-3-…` makes them of any size."""
    batch_size: Annotated[int, Meta(ge=1, le=2048)] = 64
    """Most texts in a call."""
    max_input: Annotated[int, Meta(ge=1, le=1_000_000)] = 8000
    """Tokens of a text that are sent; the rest is left out. `local` reads 256, or with `multilingual-e5-small` 512."""
    max_requests: Annotated[int, Meta(ge=1, le=1000)] = 4
    """Most calls at once."""
    timeout: Timeout = 60.0
    """Time limit of a call."""
    min_similarity: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cosine below which texts are unrelated: if nothing is closer to a question, vectors find nothing. 0: something is always
    found. Unset: that of the local model, else 0, because it differs from model to model."""
    query_prefix: str = ""
    """Put before each question if the model needs that, such as `"query: "`. White space at its end counts."""
    passage_prefix: str = ""
    """Put before each message or memory, such as `"passage: "`. Changing it embeds everything again, like a change of the model."""
    context: bool | None = None
    """Embed each message with its speaker and the end of the previous message. Unset: true with `multilingual-e5-small`, else false."""
    path: Text | None = None
    """`local`: the folder of `model.safetensors` and `vocab.txt`, or of `_engine*.so` and `e5-small-q4.bin`; unset: where `holdfast embeddings install` puts them."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.provider == LOCAL:
            elsewhere = [key for key in ("api_key", "base_url", "headers") if getattr(self, key)]
            found += [(key, "not for provider 'local', which calls no server") for key in elsewhere]
            prefixes = [key for key in ("query_prefix", "passage_prefix") if getattr(self, key)]
            found += [(key, "not for provider 'local', whose models have their own") for key in prefixes]
            if self.model not in {None, *LOCAL_MODELS}:
                found.append(("model", f"provider 'local' has {' and '.join(LOCAL_MODELS)}, not {self.model!r}"))
            if self.dimension not in {None, 384}:
                found.append(("dimension", f"provider 'local' has 384, not {self.dimension}"))
            return found
        found += [("path", "only for provider 'local'")] * (self.path is not None)
        if self.provider != "openai":
            known = self.base_url or self.provider in EMBEDDER_URLS
            found += [] if known else [("base_url", f"missing; the address of provider {self.provider!r} is unknown")]
            found += [] if self.model else [("model", f"missing; provider {self.provider!r} has no default model")]
        return found


class EmbedderSettings(EmbedderEntry, frozen=True, kw_only=True):
    """The complete settings of one embedder."""

    model: str = OPENAI_MODEL
    """For `local` one of `LOCAL_MODELS`; there OpenAI's model, the default, means all-MiniLM-L6-v2."""
    base_url: str = ""

    def __post_init__(self) -> None:
        if self.provider == LOCAL and self.model == OPENAI_MODEL:
            msgspec.structs.force_setattr(self, "model", MINILM_MODEL)

    @property
    def name(self) -> str:
        """The name stored with each vector; it includes everything that changes vectors."""
        shortened = f"@{self.dimension}" if self.shortens else ""
        prefix = blake2b(self.passage_prefix.encode(), digest_size=_PREFIX_BYTES).hexdigest()
        prefixed = f"+prefix-{prefix}" if self.passage_prefix else ""
        context = CONTEXT if self.has_context else ""
        return f"{self.provider}/{self.model}{shortened}{prefixed}{context}"

    @property
    def has_context(self) -> bool:
        """True if turns are embedded with the previous turn: `context`, or the local model's preference."""
        return self._known.context if self.context is None else self.context

    @property
    def floor(self) -> float:
        """The similarity floor: `min_similarity`, or the local model's."""
        return self._known.floor if self.min_similarity is None else self.min_similarity

    @property
    def _known(self) -> LocalModel:
        unknown = LocalModel(floor=0.0, context=False)
        return LOCAL_MODELS.get(self.model, unknown) if self.provider == LOCAL else unknown

    @property
    def shortens(self) -> bool:
        """True if the model is asked for vectors of `dimension`: OpenAI's third generation makes them of any size."""
        return self.dimension is not None and self.model.rpartition("/")[2].startswith("text-embedding-3")

    def __repr__(self) -> str:
        return f"EmbedderSettings({self.name!r})"  # key and headers are secrets
