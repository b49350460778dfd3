"""The model that orders the best hits of a search anew: the key `storage.index.rerank`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from holdfast.config.kinds import Mistake, Secret, Settings, Text, Url, header_mistakes, key_mistakes, url_mistakes
from holdfast.limits import RERANK_CHARS, RERANK_TEXTS


class Rerank(Settings, frozen=True, kw_only=True):
    """A model that reads a question and each of the best hits together: at `base_url`, or in the folder `path`."""

    ALIASES: ClassVar[dict[str, str]] = {"top_n": "top"}

    base_url: Url | None = None
    """Of an HTTP reranker, up to and with the version: `/rerank` is added. The texts of the best hits are sent there."""
    path: Text | None = None
    """In place of `base_url`: the folder of a cross-encoder that is computed here, `model.onnx` and `tokenizer.json`."""
    model: Text | None = None
    """The model's name there; only `tei` has none."""
    api_key: Secret | None = None
    """Sent as bearer token. Unset: none is sent; none is taken from the environment."""
    headers: dict[str, Secret] = {}
    """Sent with every call."""
    form: Literal["cohere", "voyage", "tei"] = "cohere"
    """How it is asked: `cohere` also for Jina, vLLM and LiteLLM; `tei` for Text Embeddings Inference."""
    top: Annotated[int, Meta(ge=2, le=RERANK_TEXTS)] = 50
    """Hits that it orders, the first ones of the ranking; the others follow."""
    max_chars: Annotated[int, Meta(ge=100, le=RERANK_CHARS)] = RERANK_CHARS
    """Characters of each of them that it reads, around what answers best. Set it lower for a model that takes less."""
    timeout: Annotated[float, Meta(ge=0.001, le=60, extra={"form": "duration"})] = 1.0
    """How long a search waits for it; then its order stays. A prompt waits for a quarter of a second at most."""
    prompts: bool = False
    """Whether it also orders what comes into prompts by itself."""

    def mistakes(self) -> list[Mistake]:
        found = [*url_mistakes("base_url", self.base_url), *key_mistakes("api_key", self.api_key)]
        found += header_mistakes(self.headers)
        if self.path is None:
            if self.base_url is None:
                return [*found, ("base_url", "missing; a reranker needs it, or `path`")]
            unnamed = self.model is None and self.form != "tei"
            return found + [("model", f"missing; form {self.form!r} needs one")] * unnamed
        elsewhere = [key for key in ("base_url", "model", "api_key", "headers") if getattr(self, key)]
        return found + [(key, "not with `path`, which calls no server") for key in elsewhere]
