"""The settings of an embedder: provider, model and URL."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.limits import VECTOR_NUMBERS
from holdfast.sections import Mistake, Secret, Settings, Text, Url, check_header_value, check_headers, check_url

LOCAL: Final = "local"
"""Name of the provider that needs no network: a small model runs on this machine."""
OPENAI_MODEL: Final = "text-embedding-3-small"
MINILM_MODEL: Final = "all-MiniLM-L6-v2"
MINILM_FLOOR: Final = 0.3
"""Cosine below which texts are unrelated for all-MiniLM-L6-v2, as measured in docs/quality.md."""
_PREFIX_BYTES: Final = 4
"""Bytes of the hash that stands for a prefix in an embedder's name."""
EMBEDDER_URLS: Final = {"ollama": "http://127.0.0.1:11434/v1"}
"""Base URLs of providers for which `base_url` need not be set."""


class EmbedderEntry(Settings, frozen=True, kw_only=True):
    """A model that converts texts to vectors."""

    provider: Text = "openai"
    """`openai`; `local`, a small model that runs on this machine (`holdfast embeddings install`); or any other name, for an
    OpenAI-compatible API at `base_url`. It is part of the name that is stored with each vector."""
    model: Text | None = None
    """The provider's name of the model. Unset: `text-embedding-3-small` for `openai`, `all-MiniLM-L6-v2` for `local`, which has no
    other."""
    api_key: Secret | None = None
    """The key for the provider. Unset: the environment variable `OPENAI_API_KEY`, but only for `openai` without a `base_url`."""
    base_url: Url | None = None
    """The URL up to and including `/v1`. Unset: for `openai`, the environment variable `OPENAI_BASE_URL` or else OpenAI's URL; for
    `ollama`, this machine."""
    headers: Mapping[str, Secret] = {}
    """HTTP headers that are sent with every call."""
    dimension: Annotated[int, Meta(ge=1, le=VECTOR_NUMBERS)] | None = None
    """Dimension of the vectors; vectors of another dimension are refused. Unset: that of the first vector.
    `text-embedding-3-…` can make vectors of any dimension."""
    min_similarity: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cosine below which texts are unrelated: if no text reaches it for a question, vectors find nothing. 0: vectors always find
    something. Unset: the measured value of the local model; 0 for other models, because the value differs from model to model."""
    query_prefix: str = ""
    """Text that is put before each question if the model needs it, such as `"query: "`. White space at its end is kept."""
    passage_prefix: str = ""
    """Text that is put before each message or memory, such as `"passage: "`. If it changes, everything is embedded again, as after a
    change of the model."""
    path: Text | None = None
    """For `local`: the folder of the model's files (`model.safetensors` and `vocab.txt`). Unset: the folder in which `holdfast embeddings install` puts them."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.provider == LOCAL:
            elsewhere = [key for key in ("api_key", "base_url", "headers") if getattr(self, key)]
            found += [(key, "not for provider 'local', which calls no server") for key in elsewhere]
            prefixes = [key for key in ("query_prefix", "passage_prefix") if getattr(self, key)]
            found += [(key, "not for provider 'local', whose models have their own") for key in prefixes]
            if self.model not in {None, MINILM_MODEL}:
                found.append(("model", f"provider 'local' has {MINILM_MODEL}, not {self.model!r}"))
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
    """The provider's name of the model. For `local`, the default is replaced by `all-MiniLM-L6-v2`."""
    base_url: str = ""

    def __post_init__(self) -> None:
        if self.provider == LOCAL and self.model == OPENAI_MODEL:
            msgspec.structs.force_setattr(self, "model", MINILM_MODEL)

    @property
    def name(self) -> str:
        """The name that is stored with each vector. It includes everything that changes vectors."""
        shortened = f"@{self.dimension}" if self.shortens else ""
        prefix = blake2b(self.passage_prefix.encode(), digest_size=_PREFIX_BYTES).hexdigest()
        prefixed = f"+prefix-{prefix}" if self.passage_prefix else ""
        return f"{self.provider}/{self.model}{shortened}{prefixed}"

    @property
    def floor(self) -> float:
        """The cosine below which texts are unrelated: `min_similarity` or, if that is None, the local model's default."""
        if self.min_similarity is not None:
            return self.min_similarity
        return MINILM_FLOOR if self.provider == LOCAL else 0.0

    @property
    def shortens(self) -> bool:
        """True if calls request vectors of the given `dimension`, which OpenAI's models `text-embedding-3-…` can make."""
        return self.dimension is not None and self.model.rpartition("/")[2].startswith("text-embedding-3")

    def __repr__(self) -> str:
        return f"EmbedderSettings({self.name!r})"  # key and headers are secrets
