"""Where providers count a prompt, and in which shape they want it. Decisions only; no I/O.

Three endpoints are documented: Anthropic's "Count tokens in a Message" (`POST /v1/messages/count_tokens`), Gemini's
`models.countTokens` with a whole `generateContentRequest`, and OpenAI's "Get input token counts"
(`POST /v1/responses/input_tokens`), which takes the Responses API's items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from holdfast.context.dialects import Dialect, adapted
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest
from holdfast.models import anthropic_access
from holdfast.models.http import key_of
from holdfast.numbers import is_whole
from holdfast.wire import anthropic, gemini
from holdfast.wire.openai import messages_from, split_system

Kind = Literal["openai", "anthropic", "gemini"]
_HOSTS: Final[dict[str, Kind]] = {anthropic_access.HOST: "anthropic", "generativelanguage.googleapis.com": "gemini"}

Body = Mapping[str, Any]


class Endpoint(NamedTuple):
    """One place that counts."""

    kind: Kind
    url: str
    """With `{model}` where Gemini wants the model's name."""
    headers: dict[str, str]
    """With the key."""
    model: str
    """Of requests that name none."""

    def address(self, body: Body) -> str:
        """Where the prompt of `body` is counted."""
        return self.url.replace("{model}", quote(self._named(body).removeprefix("models/"), safe=""))

    def request(self, body: Body) -> dict[str, Any]:
        """What is sent to have the prompt of `body`, a Chat Completions request, counted.

        Raises:
            InvalidRequest: it holds something that the provider's shape has no place for.
        """
        return _SHAPES[self.kind](body, self._named(body))

    def _named(self, body: Body) -> str:
        named = body.get("model")
        return named if isinstance(named, str) and named else self.model

    def answer(self, data: Any) -> int | None:
        """The tokens in what came back; None when it has none."""
        name = "totalTokens" if self.kind == "gemini" else "input_tokens"
        tokens = data.get(name) if isinstance(data, Mapping) else None
        return tokens if is_whole(tokens, 1) else None


def endpoint_of(base_url: str, api_key: str | None, model: str, *, provider: str = "openai") -> Endpoint:
    """Where the prompts of a model are counted.

    By `provider`, else by the host, else by the model's name: a router that serves Claude is asked as Anthropic is.
    Anywhere else OpenAI's endpoint is asked; who does not have it answers 404.

    Args:
        base_url: of the model's own calls, up to and with the version.
        api_key: sent as that provider wants it; None sends none.
        model: what the upstream calls it.
        provider: `anthropic`, `gemini` or anything else.
    """
    parts = urlsplit(base_url.strip())
    plain = model.rpartition("/")[2].lower()
    kind: Kind = _HOSTS.get(parts.hostname or "", "anthropic" if plain.startswith("claude") else "openai")
    if provider in ("anthropic", "gemini"):
        kind = "anthropic" if provider == "anthropic" else "gemini"
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    if kind == "gemini":
        # Its OpenAI-compatible calls go to a folder of their own.
        path = f"{path.removesuffix('/openai') or '/v1beta'}/models/{{model}}:countTokens"
    elif provider == "anthropic":
        path = f"{anthropic_access.path_of(path)}/messages/count_tokens"
    else:
        path = f"{path or '/v1'}/{'messages/count_tokens' if kind == 'anthropic' else 'responses/input_tokens'}"
    url = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
    return Endpoint(kind, url, _headers(kind, parts.hostname or "", api_key), model)


def _headers(kind: Kind, host: str, api_key: str | None) -> dict[str, str]:
    if kind == "anthropic":
        return anthropic_access.headers_of(host, api_key)
    if not api_key:
        return {}
    key = key_of(api_key)
    own = {"x-goog-api-key": key} if kind == "gemini" else {}
    bearer = {} if host in _HOSTS else {"authorization": f"Bearer {key}"}
    return own | bearer


# -- shapes -------------------------------------------------------------------


def _conversation(body: Body, dialect: Dialect) -> list[Message]:
    front, rest = split_system(messages_from(list(body.get("messages") or ())))
    return [*front, *adapted(rest, dialect)]


def _anthropic(body: Body, model: str) -> dict[str, Any]:
    request = {"model": model, **anthropic.request_to(_conversation(body, "anthropic"))}
    tools = body.get("tools")
    return request | {"tools": anthropic.tools_to(tools)} if tools else request


def _gemini(body: Body, model: str) -> dict[str, Any]:
    name = model if model.startswith("models/") else f"models/{model}"
    request = {"model": name, **gemini.request_to(_conversation(body, "gemini"))}
    tools = body.get("tools")
    return {"generateContentRequest": request | {"tools": gemini.tools_to(tools)} if tools else request}


def _openai(body: Body, model: str) -> dict[str, Any]:
    items = [item for message in body.get("messages") or () for item in _items(message)]
    tools = [_flat(tool) for tool in body.get("tools") or ()]
    return {"model": model, "input": items} | ({"tools": tools} if tools else {})


def _items(message: Body) -> Iterator[dict[str, Any]]:
    """A Chat Completions message as the Responses API's items: text and calls apart, results without a role."""
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        parts = content if isinstance(content, str) else _parts(content, "input_text")
        yield {"type": "function_call_output", "call_id": message.get("tool_call_id") or "", "output": parts}
        return
    if content:
        kind = "output_text" if role == "assistant" else "input_text"
        yield {"role": role, "content": content if isinstance(content, str) else _parts(content, kind)}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "function_call",
            "call_id": call.get("id") or "",
            "name": function.get("name") or "",
            "arguments": function.get("arguments") or "",
        }


def _parts(content: Any, kind: str) -> list[dict[str, Any]]:
    return [_part(part, kind) for part in content or () if isinstance(part, Mapping)]


def _part(part: Body, kind: str) -> dict[str, Any]:
    match part.get("type"):
        case "text" | "input_text" | "output_text":
            return {"type": kind, "text": part.get("text") or ""}
        case "image_url":
            image = part.get("image_url")
            fields = image if isinstance(image, Mapping) else {"url": image}
            return {"type": "input_image", "image_url": fields.get("url"), "detail": fields.get("detail") or "auto"}
        case "file":
            return {"type": "input_file", **(part.get("file") or {})}
        case "input_image" | "input_file" | "refusal":
            return dict(part)
    raise InvalidRequest(f"a part of type {part.get('type')!r} cannot be counted there", param="messages")


def _flat(tool: Body) -> dict[str, Any]:
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, Mapping) else dict(tool)


_SHAPES: Final[Mapping[Kind, Callable[[Body, str], dict[str, Any]]]] = {
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
