"""Which embedder, where it is, and how it is called."""

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
"""The provider that needs no network: a small model, computed here."""
OPENAI_MODEL: Final = "text-embedding-3-small"
MINILM_MODEL: Final = "all-MiniLM-L6-v2"
E5_MODEL: Final = "multilingual-e5-small"
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


EMBEDDER_URLS: Final = {"ollama": "http://127.0.0.1:11434/v1"}
"""Where providers are that need no key, unless `base_url` says otherwise."""


class EmbedderEntry(Settings, frozen=True, kw_only=True):
    """A model that makes vectors of texts."""

    ALIASES: ClassVar[dict[str, str]] = {"dimensions": "dimension", "vendor": "provider"}

    provider: Text = "openai"
    """`openai`; `local`, a small model that is computed here (`holdfast embeddings install`); or any other name, of what speaks
    OpenAI's API at `base_url`. It is a part of the name that is kept with each vector."""
    model: Text | None = None
    """The model's name there; unset: `text-embedding-3-small` with `openai`, `all-MiniLM-L6-v2` with `local`, which also has
    `multilingual-e5-small`."""
    api_key: Secret | None = None
    """Unset: `OPENAI_API_KEY`, but only with `openai` and where `base_url` is unset too."""
    base_url: Url | None = None
    """Up to and with `/v1`; unset: `OPENAI_BASE_URL`, else OpenAI's; with `ollama`, this machine."""
    headers: Mapping[str, Secret] = {}
    """Sent with every call."""
    dimension: Annotated[int, Meta(ge=1, le=VECTOR_NUMBERS)] | None = None
    """Numbers in a vector; others are refused. Unset: what comes first. `text-embedding-3-…` makes them of any size."""
    batch_size: Annotated[int, Meta(ge=1, le=2048)] = 64
    """Most texts in a call."""
    max_input: Annotated[int, Meta(ge=1, le=1_000_000)] = 8000
    """Tokens of a text that are sent; the rest is left out. `local` looks at 256, or with `multilingual-e5-small` at 512."""
    max_requests: Annotated[int, Meta(ge=1, le=1000)] = 4
    """Calls at once."""
    timeout: Timeout = 60.0
    """How long a call may take."""
    min_similarity: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Cosine below which texts have nothing to do with each other: where nothing said comes nearer to a question, vectors find nothing.
    0: something is always found. Unset: that of the local model, else 0, as it differs from model to model."""
    query_prefix: str = ""
    """Put before each question, where the model wants that: `"query: "`, for example. White space at its end counts."""
    passage_prefix: str = ""
    """Put before each message or memory: `"passage: "`. Another one is another model: everything is embedded again."""
    context: bool | None = None
    """Embed each message with its speaker and the end of the message before. Unset: true with `multilingual-e5-small`, else false."""
    path: Text | None = None
    """`local`: the folder of `model.safetensors` and `vocab.txt`, or of `_engine*.so` and `e5-small-q4.bin`; unset: where `holdfast embeddings install` puts them."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.provider == LOCAL:
            elsewhere = [key for key in ("api_key", "base_url", "headers") if getattr(self, key)]
            found += [(key, "not for provider 'local', which calls nobody") for key in elsewhere]
            prefixes = [key for key in ("query_prefix", "passage_prefix") if getattr(self, key)]
            found += [(key, "not for provider 'local', which has those of its models") for key in prefixes]
            if self.model not in {None, *LOCAL_MODELS}:
                found.append(("model", f"provider 'local' has {' and '.join(LOCAL_MODELS)}, not {self.model!r}"))
            if self.dimension not in {None, 384}:
                found.append(("dimension", f"provider 'local' has 384, not {self.dimension}"))
            return found
        found += [("path", "only for provider 'local'")] * (self.path is not None)
        if self.provider != "openai":
            known = self.base_url or self.provider in EMBEDDER_URLS
            found += [] if known else [("base_url", f"missing; where {self.provider!r} is, is not known here")]
            found += [] if self.model else [("model", f"missing; provider {self.provider!r} has no usual one")]
        return found


class EmbedderSettings(EmbedderEntry, frozen=True, kw_only=True):
    """One embedder, with nothing left to look up."""

    model: str = OPENAI_MODEL
    """With `local` one of `LOCAL_MODELS`; OpenAI's, the default, means all-MiniLM-L6-v2 there."""
    base_url: str = ""

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
