"""Settings of the reranker: which one, where it is, and how long a search waits for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.limits import RERANK_CHARS, RERANK_TEXTS
from holdfast.numbers import check_number, check_whole
from holdfast.wire.sendable import check_flag

RerankForm = Literal["cohere", "voyage", "tei"]
"""How an endpoint is asked. `cohere`: Cohere, Jina, vLLM, LiteLLM and most others. `tei`: Text Embeddings Inference."""
TOP: Final = 50
TIMEOUT: Final = 1.0


class RerankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One reranker, by `reranker`, `path` or `base_url`; `Rerank` in the configuration says what each field means."""

    reranker: Any = None
    """A function or an object: see `holdfast.rerankers.make_reranker`."""
    path: str | None = None
    base_url: str = ""
    model: str = ""
    api_key: str | None = None
    headers: Mapping[str, str] = {}
    form: RerankForm = "cohere"
    top: int = TOP
    max_chars: int = RERANK_CHARS
    timeout: float = TIMEOUT
    """Seconds."""
    prompts: bool = False

    def __post_init__(self) -> None:
        if sum(map(bool, (self.reranker is not None, self.path, self.base_url))) != 1:
            raise InvalidRequest("a reranker needs one of base_url, path and reranker", param="index.rerank")
        if self.form not in get_args(RerankForm):
            known = ", ".join(get_args(RerankForm))
            raise InvalidRequest(f"form must be one of {known}, not {self.form!r:.80}", param="index.rerank.form")
        if self.base_url and self.form != "tei" and not self.model:
            raise InvalidRequest("a reranker at a base_url needs a model", param="index.rerank.model")
        check_whole(self.top, "index.rerank.top", 2, RERANK_TEXTS)
        check_whole(self.max_chars, "index.rerank.max_chars", 100, RERANK_CHARS)
        check_number(self.timeout, "index.rerank.timeout", 0.001, 60)
        check_flag(self.prompts, "index.rerank.prompts")

    def __repr__(self) -> str:
        where = self.path or self.model or self.base_url.partition("?")[0] or self.reranker
        return f"RerankSettings({where!r}, top={self.top})"  # key and headers are secrets


def rerank_settings(given: Any) -> RerankSettings | None:
    """Return settings as people give them: None is no reranker, anything else but settings is a reranker itself.

    Raises:
        InvalidRequest: a setting that cannot be.
    """
    return given if given is None or isinstance(given, RerankSettings) else RerankSettings(reranker=given)
