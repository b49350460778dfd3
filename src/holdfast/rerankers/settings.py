"""The settings of a reranker: URL or folder, model and time limit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from holdfast.errors import InvalidRequest
from holdfast.sections import Mistake, Secret, Settings, Text, Url, check_fields, check_header_value, check_url

RerankForm = Literal["cohere", "voyage", "tei"]
"""The format of requests to an endpoint. `cohere`: Cohere, Jina, vLLM, LiteLLM and most others. `voyage`: Voyage. `tei`: Text
Embeddings Inference."""


class Rerank(Settings, frozen=True, kw_only=True):
    """A model that scores how well each of the best hits answers a question. It is called at `base_url`, or run from the folder `path`."""

    base_url: Url | None = None
    """The URL of a reranker, up to and including the version; `/rerank` is added. The texts of the best hits are sent there."""
    path: Text | None = None
    """Instead of `base_url`: the folder of a local cross-encoder, with `model.onnx` and `tokenizer.json`."""
    model: Text | None = None
    """The name by which the endpoint knows the model. It is required, except for `tei`."""
    api_key: Secret | None = None
    """The key, which is sent as bearer token. Unset: no key is sent. It is never taken from the environment."""
    form: RerankForm = "cohere"
    """The format of requests: `cohere` for Cohere, Jina, vLLM and LiteLLM; `voyage` for Voyage; `tei` for Text Embeddings Inference."""
    timeout: Annotated[float, Meta(ge=0.001, le=60, extra={"form": "duration"})] = 1.0
    """Maximum time that a search waits for the reranker. After that, hits keep their order."""

    def find_mistakes(self) -> list[Mistake]:
        found = [*check_url("base_url", self.base_url), *check_header_value("api_key", self.api_key)]
        if self.path is None:
            if self.base_url is None:
                return [*found, ("base_url", "missing; a reranker needs it, or `path`")]
            unnamed = self.model is None and self.form != "tei"
            return found + [("model", f"missing; form {self.form!r} needs one")] * unnamed
        elsewhere = [key for key in ("base_url", "model", "api_key") if getattr(self, key)]
        return found + [(key, "not with `path`, which calls no server") for key in elsewhere]


class RerankSettings(Rerank, frozen=True, kw_only=True):
    """The complete settings of a reranker. Exactly one of `reranker`, `path` and `base_url` must be given.

    Raises:
        InvalidRequest: a value is invalid.
    """

    reranker: Any = None
    """Your own function or object; see `holdfast.rerankers.make_reranker`."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.reranker is not None, self.path, self.base_url))) != 1:
            raise InvalidRequest("a reranker needs one of base_url, path and reranker", param="index.rerank")
        check_fields(self, "index.rerank")
        if self.base_url and self.form != "tei" and not self.model:
            raise InvalidRequest("a reranker at a base_url needs a model", param="index.rerank.model")

    def __repr__(self) -> str:
        where = self.path or self.model or (self.base_url or "").partition("?")[0] or self.reranker
        return f"RerankSettings({where!r})"  # the key is a secret


def parse_rerank_settings(given: Any) -> RerankSettings | None:
    """Convert what a caller passes as reranker to settings: `RerankSettings`, your own function or object, or None for no reranker.

    Raises:
        InvalidRequest: the settings are invalid.
    """
    return given if given is None or isinstance(given, RerankSettings) else RerankSettings(reranker=given)
