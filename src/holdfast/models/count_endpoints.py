"""URLs and request formats of providers' endpoints that count the tokens of a prompt. This module does no I/O.

It supports three endpoints, as the providers document them:

- Anthropic: "Count tokens in a Message" (`POST /v1/messages/count_tokens`).
- Gemini: `models.countTokens`, with a complete `generateContentRequest`.
- OpenAI: "Get input token counts" (`POST /v1/responses/input_tokens`), with items in the format of the Responses API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.context.dialects import Dialect
from holdfast.context.fitting import adapt_messages, fit_messages
from holdfast.domain.messages import Message
from holdfast.models.anthropic import HOST, make_headers, normalize_path
from holdfast.models.base import ModelRequest
from holdfast.models.codecs import gemini
from holdfast.models.codecs.messages.blocks import encode_messages
from holdfast.models.codecs.messages.tools import encode_tools
from holdfast.models.codecs.responses.items import encode_prompt
from holdfast.models.codecs.responses.tools import encode_tool
from holdfast.models.http import check_api_key
from holdfast.numbers import is_whole
from holdfast.wire.openai import split_system

Kind = Literal["openai", "anthropic", "gemini"]
_HOSTS: Final[dict[str, Kind]] = {HOST: "anthropic", "generativelanguage.googleapis.com": "gemini"}


class Endpoint(NamedTuple):
    """A token-counting endpoint of one provider."""

    kind: Kind
    url: str
    """URL of the endpoint. For Gemini, it contains the placeholder `{model}` for the name of the model."""
    headers: dict[str, str]
    """Headers of every call, including the key."""
    model: str
    """Name of the model for requests that do not name one."""

    def make_url(self, request: ModelRequest) -> str:
        """Return the URL of the call that counts the prompt of `request`."""
        return self.url.replace("{model}", quote(self._get_model(request).removeprefix("models/"), safe=""))

    def make_request(self, request: ModelRequest) -> dict[str, Any]:
        """Return the body of the call that counts the prompt of `request`.

        Raises:
            InvalidRequest: The prompt contains something that the provider's format cannot express.
        """
        return _SHAPES[self.kind](request, self._get_model(request))

    def _get_model(self, request: ModelRequest) -> str:
        model = request.fields.get("model")
        return model if isinstance(model, str) and model else self.model

    def parse_answer(self, data: Any) -> int | None:
        """Return the token count that a decoded response contains, or None if it contains none."""
        name = "totalTokens" if self.kind == "gemini" else "input_tokens"
        tokens = data.get(name) if isinstance(data, Mapping) else None
        return tokens if is_whole(tokens, 1) else None


def find_count_endpoint(base_url: str, api_key: str | None, model: str, *, provider: str = "openai") -> Endpoint:
    """Return the endpoint that counts the tokens of a model's prompts.

    The format of the endpoint depends on `provider` if it is `anthropic` or `gemini`. Otherwise it depends on the host of `base_url`, and
    for other hosts on the name of the model: a router is called in Anthropic's format if the model is a Claude. All other upstreams are
    called in OpenAI's format. An upstream without this endpoint answers 404.

    Args:
        base_url: Base URL of the calls of the model, including the version.
        api_key: Key, which is sent in the header that the provider expects. None: no key is sent.
        model: Name of the model at the upstream.
        provider: `anthropic`, `gemini` or any other provider.
    """
    parts = urlsplit(base_url.strip())
    plain = model.rpartition("/")[2].lower()
    kind: Kind = _HOSTS.get(parts.hostname or "", "anthropic" if plain.startswith("claude") else "openai")
    if provider in ("anthropic", "gemini"):
        kind = "anthropic" if provider == "anthropic" else "gemini"
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    if kind == "gemini":
        # Gemini's OpenAI-compatible API is in a subfolder of its own.
        path = f"{path.removesuffix('/openai') or '/v1beta'}/models/{{model}}:countTokens"
    elif provider == "anthropic":
        path = f"{normalize_path(path)}/messages/count_tokens"
    else:
        path = f"{path or '/v1'}/{'messages/count_tokens' if kind == 'anthropic' else 'responses/input_tokens'}"
    url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return Endpoint(kind, url, _build_headers(kind, parts.hostname or "", api_key), model)


def _build_headers(kind: Kind, host: str, api_key: str | None) -> dict[str, str]:
    if kind == "anthropic":
        return make_headers(host, api_key)
    if not api_key:
        return {}
    key = check_api_key(api_key)
    own = {"x-goog-api-key": key} if kind == "gemini" else {}
    bearer = {} if host in _HOSTS else {"authorization": f"Bearer {key}"}
    return own | bearer


# -- shapes -------------------------------------------------------------------


def _adapt(messages: Sequence[Message], dialect: Dialect) -> list[Message]:
    front, rest = split_system(messages)
    return [*front, *adapt_messages(rest, dialect)]


def _build_anthropic(request: ModelRequest, model: str) -> dict[str, Any]:
    made = {"model": model, **encode_messages(_adapt(request.messages, "anthropic"))}
    tools = request.fields.get("tools")
    return made | {"tools": encode_tools(tools)} if tools else made


def _build_gemini(request: ModelRequest, model: str) -> dict[str, Any]:
    name = model if model.startswith("models/") else f"models/{model}"
    made = {"model": name, **gemini.encode_messages(_adapt(request.messages, "gemini"))}
    tools = request.fields.get("tools")
    return {"generateContentRequest": made | {"tools": gemini.encode_tools(tools)} if tools else made}


def _build_openai(request: ModelRequest, model: str) -> dict[str, Any]:
    messages = [message for message, _ in fit_messages(request.messages, None, model)]
    tools = [*map(encode_tool, request.fields.get("tools") or ())]
    return {"model": model, "input": [*encode_prompt(messages, "")]} | ({"tools": tools} if tools else {})


_SHAPES: Final[Mapping[Kind, Callable[[ModelRequest, str], dict[str, Any]]]] = {
    "openai": _build_openai,
    "anthropic": _build_anthropic,
    "gemini": _build_gemini,
}
