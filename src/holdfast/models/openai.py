"""The client for any OpenAI-compatible upstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from holdfast.models.answer import AnswerReader
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.http import address_of, check_headers, key_of


class OpenAIModel(UpstreamClient):
    """An upstream that speaks OpenAI's Chat Completions: OpenAI, vLLM, llama.cpp, Ollama, OpenRouter, a gateway.

    Args:
        base_url: up to and with the version, `https://api.openai.com/v1`; a query in it is kept (Azure's `api-version`).
        api_key: sent as bearer token; None sends none.
        model: what the upstream calls the model. It replaces the request's own; None leaves that in place.
        headers: sent with every call.
        options: timeouts, retries and limits; see `UpstreamClient`.

    Raises:
        InvalidRequest: the address, the key or a header is not one.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        **options: Unpack[Options],
    ) -> None:
        url, where = address_of(base_url, _path)
        own = {"authorization": f"Bearer {key_of(api_key)}"} if api_key else {}
        super().__init__(url, where, model=model, headers=own | check_headers(headers or {}), **options)

    def _call(self, request: Mapping[str, Any], headers: Mapping[str, str]) -> PreparedRequest:
        options = request.get("stream_options")
        options = options if isinstance(options, dict) else {}
        body = {**request, "stream": True, "stream_options": options | {"include_usage": True}}
        if self._model is not None:
            body["model"] = self._model
        return PreparedRequest.of(body, self._headers | check_headers(headers))

    def _reader(self, call: PreparedRequest) -> AnswerReader:
        return AnswerReader(self._where, call.secrets, self._max_event_bytes)


def _path(path: str) -> str:
    return path.removesuffix("/chat/completions") + "/chat/completions"
