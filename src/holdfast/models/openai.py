"""Client for OpenAI-compatible upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Unpack

import msgspec

from holdfast.domain.profiles import PROFILES, ProfileName, find_profile
from holdfast.errors import ModelRejected
from holdfast.models.answer import AnswerReader
from holdfast.models.base import ModelRequest
from holdfast.models.client import Options, PreparedRequest, UpstreamClient
from holdfast.models.codecs.chat import encode_request
from holdfast.models.http import check_api_key, check_headers, parse_base_url


class OpenAIModel(UpstreamClient):
    """A model of an upstream with OpenAI's Chat Completions API, for example OpenAI, vLLM, llama.cpp, Ollama, OpenRouter or a gateway.

    Args:
        base_url: Base URL including the version, for example `https://api.openai.com/v1`. Its query is kept, such as Azure's `api-version`.
            If an address without a path answers 404, it is called with `/v1`.
        api_key: Key, which is sent as a bearer token. None: no key is sent.
        model: Name of the model at the upstream. It replaces the name in the request. None: the name in the request is sent.
        headers: Headers of every call.
        profile: What the upstream accepts: a name in `holdfast.domain.profiles.PROFILES`. None: that of the address.
        options: Timeouts, retries and limits, as described in `UpstreamClient`.

    Raises:
        InvalidRequest: The address, the key or a header is invalid.
    """

    _path = "/chat/completions"

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
        profile: ProfileName | Literal["custom"] | None = None,
        **options: Unpack[Options],
    ) -> None:
        url, where = parse_base_url(base_url, lambda path: path + self._path)
        own = {"authorization": f"Bearer {check_api_key(api_key)}"} if api_key else {}
        chosen = msgspec.structs.replace(PROFILES[profile], chosen_by="profile") if profile else None
        self.profile = chosen or find_profile(base_url)
        """Rules of the upstream."""
        # Most servers have the API below `/v1`, and some at their root: a 404 of an address without a path shows which.
        self._bare, self._versioned = where + self._path, f"{where}/v1{self._path}"
        self._may_lack_version = url == self._bare
        super().__init__(url, where, model=model, headers=own | check_headers(headers or {}), **options)

    def _build_request(self, request: ModelRequest, headers: Mapping[str, str]) -> PreparedRequest:
        options = request.fields.get("stream_options")
        options = options if isinstance(options, dict) else {}
        fields = {**request.fields, "stream": True, "stream_options": options | {"include_usage": True}}
        if self._model is not None:
            fields["model"] = self._model
        body = encode_request(request._replace(fields=fields), request.profile or self.profile, request.tracker)
        return PreparedRequest.from_body(body, self._make_headers(headers))

    def _changes_url(self, error: ModelRejected, url: str) -> bool:
        if error.status != 404 or not self._may_lack_version:
            return False
        self._url = self._versioned if url == self._bare else self._bare
        return url == self._bare

    def _create_reader(self, call: PreparedRequest) -> AnswerReader:
        return AnswerReader(self._where, call.secrets, self._max_event_bytes)
