"""Requests of OpenAI's Responses API: those of clients as fields and messages of Chat Completions, and requests to upstreams.

Follows the API reference, "Create a model response". A field of a client is converted, or served by Holdfast, or refused by name. Fields that
neither API knows keep their names, as in a chat request. An upstream stores nothing (`store: false`): each request has the whole working set.
Reasoning is sent back as the provider encrypted it, and only to the upstream that it came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from holdfast.domain.messages import SYSTEM_ROLES, Message
from holdfast.errors import InvalidRequest
from holdfast.models.codecs.responses.ids import is_reference as is_compaction_reference
from holdfast.models.codecs.responses.items import encode_prompt, parse_items
from holdfast.models.codecs.responses.notes import ECHOED
from holdfast.models.codecs.responses.tools import Tools, encode_choice, encode_tool, parse_choice, parse_tools
from holdfast.numbers import check_whole
from holdfast.wire.openai import parse_message
from holdfast.wire.request_fields import PROVIDER_FIELDS, find_misspelt_name

Fields = Mapping[str, Any]
_MAX_TOKENS: Final = 2**31
_METADATA: Final = (16, 64, 512)
"""Maximum number of pairs of `metadata`, of characters of a key, and of characters of a value, as in OpenAI's API."""
_CACHE_KEY_CHARS: Final = 64
"""Maximum length of `prompt_cache_key`, as in OpenAI's API."""
_REFUSED: Final = {
    "prompt": "prompt templates are stored at OpenAI; send instructions and input",
    "background_options": "leave it out",
    "moderation": "leave it out",
}
"""Fields that would change the reply, and that Holdfast neither serves nor can pass to other providers."""
_SAME: Final = (
    "model",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "service_tier",
    "stream",
    "user",
    "safety_identifier",
)
"""Fields with the same name and meaning in Chat Completions."""
_READ: Final = frozenset(
    {
        *_SAME,
        *ECHOED,
        "client_metadata",  # Codex describes itself there; it has no effect on the reply
        "context_management",
        "conversation",
        "include",
        "input",
        "prompt_cache_options",
        "prompt_cache_retention",
        "stream_options",
    }
)
_LOGPROBS: Final = "message.output_text.logprobs"


class ResponsesRequest(NamedTuple):
    """A request of the Responses API, converted to Chat Completions."""

    fields: dict[str, Any]
    """Fields of Chat Completions. Fields that the Responses API does not know keep their names."""
    messages: list[Message]
    """The instructions as a system message, and the messages of the input."""
    tools: Tools
    echo: dict[str, Any]
    """Fields that the Response object repeats."""
    conversation: str | None
    """Id of the conversation that the request names, or None."""
    previous: str | None
    """Value of `previous_response_id`, or None."""
    cache_key: str | None
    """Value of `prompt_cache_key`."""
    store: bool
    background: bool
    """True: the reply is made even if the client disconnects, and can be read later."""
    references: list[Any]
    """The items of the input, if one of them refers to a stored item: they are not in `messages`. Otherwise empty."""
    threshold: int | None = None
    """Number of tokens of the prompt above which the conversation is compacted; None: any number."""
    compacts_now: bool = False
    """True: the conversation is compacted, and no model answers."""
    compacted: CompactedInput | None = None
    """The newest compaction item of the input that Holdfast made; None if there is none."""
    is_whole: bool = False
    """True: the prompt must have the whole conversation (`truncation: disabled`)."""
    instructions: int = 0
    """Number of system messages that the field `instructions` has."""


class CompactedInput(NamedTuple):
    """A compaction item in the input of a request. It is not in the request's messages."""

    reference: str
    where: str
    """Place of the reference in the request, for errors."""
    added: int
    """Number of the request's messages that follow the item."""


def decode_request(body: Fields) -> ResponsesRequest:
    """Convert a request.

    Raises:
        InvalidRequest: A field is not valid, or is not supported. The error names it.
        InvalidMessage: An item of the input is not valid. The error names it.
    """
    _check_names(body)
    tools = parse_tools(body.get("tools"))
    fields = {name: value for name, value in body.items() if name not in _READ}
    fields |= {name: body[name] for name in _SAME if body.get(name) is not None}
    fields |= _convert_sampling(body)
    fields |= _convert_text(body)
    if tools.functions:
        fields["tools"] = tools.functions
    else:
        fields.pop("parallel_tool_calls", None)  # OpenAI rejects it without tools
    if (choice := parse_choice(body.get("tool_choice"), tools.names)) is not None and tools.functions:
        fields["tool_choice"] = choice
    conversation = _parse_conversation(body.get("conversation"))
    previous = _read(body, "previous_response_id", str, "a string") or None
    both = "previous_response_id and conversation cannot be sent together: send one of them"
    _require(conversation is None or previous is None, both, "previous_response_id")
    given, is_triggered = _take_trigger(body.get("input") or [])
    references = list(given) if isinstance(given, list) and any(map(is_reference, given)) else []
    parsed, compacted = ([], None) if references else parse_input(given)
    instructions = _parse_instructions(body.get("instructions"))
    messages = [*instructions, *parsed]
    check_metadata(body.get("metadata"))
    echo = {name: body[name] for name in ECHOED if body.get(name) is not None}
    store = _read(body, "store", bool, "true or false") is not False
    background = _read(body, "background", bool, "true or false") is True
    unread = "background needs store: true, because the reply is read later by its id"
    _require(store or not background, unread, "background")
    fields |= {"on_disconnect": "finish"} if background else {}
    cache_key = _read(body, "prompt_cache_key", str, "a string") or None
    if cache_key is not None:
        long = f"prompt_cache_key must have at most {_CACHE_KEY_CHARS} characters, not {len(cache_key):,}"
        _require(len(cache_key) <= _CACHE_KEY_CHARS, long, "prompt_cache_key")
    return ResponsesRequest(
        *(fields, messages, tools, echo, conversation, previous, cache_key, store, background, references),
        threshold=_parse_threshold(body.get("context_management")),
        compacts_now=is_triggered,
        compacted=compacted,
        is_whole=_parse_truncation(body),
        instructions=len(instructions),
    )


def _require(is_right: bool, message: str, param: str) -> None:  # noqa: FBT001 - the condition
    if not is_right:
        raise InvalidRequest(message, param=param)


def _check_names(body: Fields) -> None:
    """Raise `InvalidRequest` if a field is not supported, or looks like a misspelt name of a field that would then have no effect."""
    for name, reason in _REFUSED.items():
        _require(body.get(name) in (None, False), f"{name} is not supported: {reason}", name)
    for name in body.keys() - _READ - PROVIDER_FIELDS:
        meant = find_misspelt_name(name, _READ)
        _require(meant is None, f"unknown field {name!r}: did you mean {meant!r}?", name)
    options, where = body.get("prompt_cache_options"), "prompt_cache_options.comparison_response_id"
    compared = options.get("comparison_response_id") if isinstance(options, Mapping) else None
    reason = "leave it out; usage has the tokens that the provider read from its cache"
    _require(compared is None, f"{where} is not supported: {reason}", where)


def _take_trigger(given: Any) -> tuple[Any, bool]:
    """Return the input without its last item, and True, if this item asks to compact the conversation now."""
    places = [at for at, item in enumerate(given) if _is_a(item, _TRIGGER)] if isinstance(given, list) else []
    if not places:
        return given, False
    where = f"input[{places[0]}]"
    _require(places == [len(given) - 1], f"{where}: {_TRIGGER} must be the last item of the input", where)
    return given[:-1], True


def _is_a(item: Any, kind: str) -> bool:
    return isinstance(item, Mapping) and item.get("type") == kind


def _parse_threshold(given: Any) -> int | None:
    """Return the number of tokens above which the conversation is compacted, from the field `context_management`."""
    if given is None or given == []:
        return None
    where = "context_management"
    entry: Any = given[0] if isinstance(given, list) and len(given) == 1 else None
    right = f"{where} must be a list with one object {{type: compaction, compact_threshold}}"
    _require(_is_a(entry, "compaction"), right, where)
    unknown = sorted(entry.keys() - {"type", "compact_threshold"})
    _require(not unknown, f"{where}[0] has the unknown key {next(iter(unknown), '')!r:.80}", f"{where}[0]")
    threshold: int | None = entry.get("compact_threshold")
    if threshold is None:
        return _THRESHOLD
    check_whole(threshold, f"{where}[0].compact_threshold", 1, _MAX_TOKENS)
    return threshold


_TRIGGER: Final = "compaction_trigger"
_THRESHOLD: Final = 150_000
"""Tokens of the prompt above which a conversation is compacted, if the request asks for it without a number."""


def parse_input(given: Any) -> tuple[list[Message], CompactedInput | None]:
    """Return the messages of an input, and its newest compaction item that Holdfast made.

    Raises:
        InvalidMessage: An item is not valid. The error names it.
    """
    places = [at for at, item in enumerate(given) if _is_own_compaction(item)] if isinstance(given, list) else []
    if not places:
        return parse_items(given), None
    at = places[-1]
    before = parse_items([item for item in given[:at] if not _is_own_compaction(item)])
    after = parse_items(given[at + 1 :])
    where = f"input[{at}].encrypted_content"
    return [*before, *after], CompactedInput(given[at]["encrypted_content"], where, len(after))


def _is_own_compaction(item: Any) -> bool:
    """Return True for a compaction item that Holdfast made, by the form of its reference. Whether anything has it is not checked."""
    return _is_a(item, "compaction") and is_compaction_reference(item.get("encrypted_content"))


def is_reference(item: Any) -> bool:
    """Return True for an item that only refers to a stored item."""
    return _is_a(item, "item_reference")


def _convert_sampling(body: Fields) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if body.get("max_output_tokens") is not None:
        check_whole(body["max_output_tokens"], "max_output_tokens", 1, _MAX_TOKENS)
        fields["max_completion_tokens"] = body["max_output_tokens"]
    if _LOGPROBS in (_read(body, "include", list, "a list of names") or ()):
        fields |= {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
    reasoning = _read(body, "reasoning", Mapping, "an object such as {effort: low}") or {}
    return {**fields, "reasoning_effort": reasoning["effort"]} if isinstance(reasoning.get("effort"), str) else fields


def _convert_text(body: Fields) -> dict[str, Any]:
    """Convert the field `text`: the format of the answer, and its verbosity."""
    text = _read(body, "text", Mapping, "an object such as {format: {type: text}}") or {}
    fields = {"verbosity": text["verbosity"]} if text.get("verbosity") else {}
    given = text.get("format") or {"type": "text"}
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind == "json_schema":
        schema = {name: value for name, value in given.items() if name != "type" and value is not None}
        return {**fields, "response_format": {"type": kind, kind: schema}}
    if kind == "json_object":
        return {**fields, "response_format": {"type": kind}}
    _require(kind == "text", "text.format must be of type text, json_schema or json_object", "text.format")
    return fields


def _parse_truncation(body: Fields) -> bool:
    """Return True if the prompt must have the whole conversation: the field `truncation` is `disabled`."""
    value = body.get("truncation")
    _require(value in (None, "auto", "disabled"), "truncation must be auto or disabled", "truncation")
    both = "truncation: disabled and strategy exclude each other: send one of them"
    _require(value != "disabled" or body.get("strategy") is None, both, "truncation")
    return value == "disabled"


def _parse_instructions(given: Any) -> list[Message]:
    if given is None or given == "":
        return []
    if isinstance(given, str):
        return [parse_message({"role": "system", "content": given}, "instructions")]
    messages = parse_items(given, "instructions")
    right = "instructions must be a string, or a list of system and developer messages"
    _require(all(message.role in SYSTEM_ROLES for message in messages), right, "instructions")
    return messages


def _parse_conversation(given: Any) -> str | None:
    named = given.get("id") if isinstance(given, Mapping) else given
    if not isinstance(named, str | None) or (given is not None and not named):
        raise InvalidRequest(
            "conversation must be the id of a conversation, or an object with it", param="conversation"
        )
    return named


def _read(body: Fields, name: str, kind: type, words: str) -> Any:
    """Return the value of a field, None if it has none. Raise `InvalidRequest` if it is of another type, which `words` describe."""
    value = body.get(name)
    _require(value is None or isinstance(value, kind), f"{name} must be {words}", name)
    return value


def check_metadata(given: Any) -> None:
    """Raise `InvalidRequest` if the `metadata` of a response or a conversation is not valid."""
    if given is None:
        return
    pairs, key_chars, value_chars = _METADATA
    is_object = isinstance(given, Mapping) and len(given) <= pairs
    _require(is_object, f"metadata must be an object with at most {pairs} strings", "metadata")
    right = f"a string of at most {value_chars} characters, and its name must have at most {key_chars}"
    for key, value in given.items():
        is_right = isinstance(value, str) and len(value) <= value_chars and len(key) <= key_chars
        _require(is_right, f"metadata.{key:.80} must be {right}", "metadata")


# -- for upstreams -----------------------------------------------------------------------

_UNKNOWN: Final = ("audio", "functions", "function_call", "logit_bias", "prediction", "stop", "web_search_options")
"""Fields of Chat Completions that change the answer and that the Responses API does not have."""
_DROPPED: Final = frozenset(
    {"frequency_penalty", "modalities", "n", "presence_penalty", "seed", "stream", "stream_options", "store"}
)
"""Fields that the Responses API does not have, and that do not change the form of the answer."""
_CONVERTED: Final = frozenset(
    {
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "reasoning",
        "reasoning_effort",
        "response_format",
        "tool_choice",
        "tools",
        "top_logprobs",
        "verbosity",
    }
)


def encode_request(messages: Sequence[Message], fields: Fields, upstream: str) -> dict[str, Any]:
    """Return the body of `POST /responses` for a request to an upstream.

    Args:
        messages: The prompt.
        fields: All other fields of a Chat Completions request.
        upstream: Address of the upstream. Only its own items and fields are sent.

    Raises:
        InvalidRequest: The request contains something that the Responses API does not have. The error names it.
    """
    for name in _UNKNOWN:
        _require(
            not fields.get(name), f"{name} is not supported by the Responses API of this model; leave it out", name
        )
    _require(fields.get("n") in (None, 1), "n must be 1: the Responses API returns one answer per request", "n")
    made = {name: one for name, one in fields.items() if name not in _DROPPED | _CONVERTED and one is not None}
    tools = [*map(encode_tool, fields.get("tools") or ())]
    declared = [tool.get("name") for tool in tools if isinstance(tool, Mapping)]
    made |= {"input": [*encode_prompt(messages, upstream, declared)], "store": False, "stream": True}
    if fields.get("logprobs") and fields.get("top_logprobs"):
        made["top_logprobs"] = fields["top_logprobs"]
    made["include"] = ["reasoning.encrypted_content", *([_LOGPROBS] if fields.get("logprobs") else [])]
    if limit := fields.get("max_completion_tokens") or fields.get("max_tokens"):
        made["max_output_tokens"] = limit
    reasoning = dict(fields["reasoning"]) if isinstance(fields.get("reasoning"), Mapping) else {}
    reasoning |= {"effort": fields["reasoning_effort"]} if fields.get("reasoning_effort") else {}
    text = {"verbosity": fields["verbosity"]} if fields.get("verbosity") else {}
    if isinstance(form := fields.get("response_format"), Mapping):
        inner = form.get("json_schema") if form.get("type") == "json_schema" else None
        text["format"] = {"type": form.get("type"), **(inner if isinstance(inner, Mapping) else {})}
    made |= {name: value for name, value in (("reasoning", reasoning), ("text", text)) if value}
    if not tools:
        made.pop("parallel_tool_calls", None)
        return made
    made["tools"] = tools
    if fields.get("tool_choice") is not None:
        made["tool_choice"] = encode_choice(fields["tool_choice"])
    return made
