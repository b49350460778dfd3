"""Settings of the reranker: which one, where it is, and how long a search waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.limits import RERANK_CHARS, RERANK_TEXTS
from holdfast.settings import (
    Mistake,
    Secret,
    Settings,
    Text,
    Url,
    check_fields,
    check_header_value,
    check_headers,
    check_url,
)

RerankForm = Literal["cohere", "voyage", "tei"]
"""The format of an endpoint's requests. `cohere`: Cohere, Jina, vLLM, LiteLLM and most others. `tei`: Text Embeddings Inference."""


class Rerank(Settings, frozen=True, kw_only=True):
    """A model that reads a question and each of the best hits together: at `base_url`, or in the folder `path`."""

    ALIASES: ClassVar[dict[str, str]] = {"top_n": "top"}

    base_url: Url | None = None
    """URL of an HTTP reranker, up to and including the version: `/rerank` is added. The texts of the best hits are sent there."""
    path: Text | None = None
    """Instead of `base_url`: the folder of a local cross-encoder, with `model.onnx` and `tokenizer.json`."""
    model: Text | None = None
    """The endpoint's name of the model; only `tei` has none."""
    api_key: Secret | None = None
    """Sent as bearer token. Unset: none is sent; none is taken from the environment."""
    headers: Mapping[str, Secret] = {}
    """Sent with every call."""
    form: RerankForm = "cohere"
    """The format of requests: `cohere` also for Jina, vLLM and LiteLLM; `voyage` for Voyage; `tei` for Text Embeddings Inference."""
    top: Annotated[int, Meta(ge=2, le=RERANK_TEXTS)] = 50
    """Number of hits that it reorders, the first ones of the ranking; the others follow."""
    max_chars: Annotated[int, Meta(ge=100, le=RERANK_CHARS)] = RERANK_CHARS
    """Characters of each hit that it reads, around the best answer. Set it lower for a model that takes less."""
    timeout: Annotated[float, Meta(ge=0.001, le=60, extra={"form": "duration"})] = 1.0
    """How long a search waits for it; after that, hits keep their order. A prompt waits at most a quarter of a second."""
    prompts: bool = False
    """Whether it also reorders what is recalled into prompts."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        found += check_headers(self.headers)
        if self.path is None:
            if self.base_url is None:
                return [*found, ("base_url", "missing; a reranker needs it, or `path`")]
            unnamed = self.model is None and self.form != "tei"
            return found + [("model", f"missing; form {self.form!r} needs one")] * unnamed
        elsewhere = [key for key in ("base_url", "model", "api_key", "headers") if getattr(self, key)]
        return found + [(key, "not with `path`, which calls no server") for key in elsewhere]


class RerankSettings(Rerank, frozen=True, kw_only=True):
    """One reranker, given by `reranker`, `path` or `base_url`.

    Raises:
        InvalidRequest: a value is wrong.
    """

    reranker: Any = None
    """A function or an object: see `holdfast.rerankers.make_reranker`."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.reranker is not None, self.path, self.base_url))) != 1:
            raise InvalidRequest("a reranker needs one of base_url, path and reranker", param="index.rerank")
        check_fields(self, "index.rerank")
        if self.base_url and self.form != "tei" and not self.model:
            raise InvalidRequest("a reranker at a base_url needs a model", param="index.rerank.model")

    def __repr__(self) -> str:
        where = self.path or self.model or (self.base_url or "").partition("?")[0] or self.reranker
        return f"RerankSettings({where!r}, top={self.top})"  # key and headers are secrets


def parse_rerank_settings(given: Any) -> RerankSettings | None:
    """Return the settings for a given value: None (no reranker), settings, or a reranker.

    Raises:
        InvalidRequest: a setting is invalid.
    """
    return given if given is None or isinstance(given, RerankSettings) else RerankSettings(reranker=given)
