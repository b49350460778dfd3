"""Make a request fit the profile of its upstream. This module does no I/O.

A request is changed in the same way every time, so that prompts keep their beginning and a provider's cache holds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import CLOSING, OPENING, RECEIVED, SYSTEM_NOTE, parse_arguments
from holdfast.context.units import EMPTY, add_label, is_blank
from holdfast.domain.profiles import REPLY_FIELDS, Profile
from holdfast.wire.anthropic import to_tool_name
from holdfast.wire.gemini import to_function_name

Json = dict[str, Any]
NO_OUTPUT: Final = "(no output)"
"""Text that replaces a blank result of a tool."""
ENDED: Final = "This tool was used earlier in the conversation. It is not available any more."
"""Description of a tool that is declared only because the history has calls of it."""
NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""Google's replacement for the thought signature of a call that another model made (ai.google.dev, "Thought signatures")."""

_SHORT: Final = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of speakers that OpenAI accepts. Any other one is written before the text."""
_OF_CALLS: Final = frozenset({"extra_content", "provider_specific_fields", "thought_signature", "index"})


def fit_request(body: Mapping[str, Any], profile: Profile) -> Json:
    """Return a Chat Completions request that the upstream of `profile` accepts.

    No text is lost. The same request always becomes the same bytes, and a longer conversation begins like the shorter one.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return dict(body)
    declared = {_get_name(tool) for tool in body.get("tools") or ()}
    found = fit_messages(messages, profile, body.get("model"), declared)
    fitted: Json = {**body, "messages": [message for message, _ in found]}
    called = [_get_name(call) for message, _ in found for call in message.get("tool_calls") or ()]
    if profile.declares and not declared:
        fitted["tools"] = [_declare(name) for name in dict.fromkeys(called) if name]
    return fitted


def fit_messages(
    messages: Sequence[Mapping[str, Any]], profile: Profile, model: Any = None, declared: Collection[Any] = ()
) -> list[tuple[Json, list[int]]]:
    """Return the messages that are sent for `messages`, each with the indexes of the messages that it is made of.

    Args:
        messages: Messages in Chat Completions format.
        profile: What the upstream accepts.
        model: Name of the model at the upstream. Encrypted reasoning of OpenAI goes to no other vendor's models.
        declared: Names of the tools of the request. A model may have called others, with names that no upstream accepts.
    """
    fitted: list[tuple[Json, list[int]]] = []
    current = _find_round(messages)
    leading = True
    for at, given in enumerate(messages):
        message = _fit_message(given, profile, model, declared, signed=at >= current)
        if message["role"] == "system" and profile.template and not leading:
            message = {**message, "role": "user", "content": add_label(message["content"], SYSTEM_NOTE.format(tag=""))}
        leading = leading and message["role"] == "system"
        before = fitted[-1][0]["role"] if fitted else "system"
        if profile.template and (added := _find_missing(before, message["role"])) is not None:
            fitted.append((added, []))
        if profile.template and fitted and _can_merge(fitted[-1][0], message):
            fitted[-1] = (_merge(fitted[-1][0], message), [*fitted[-1][1], at])
        else:
            fitted.append((message, [at]))
    if profile.ends_with_user and fitted and fitted[-1][0]["role"] == "assistant":
        fitted.append(({"role": "user", "content": CLOSING}, []))
    return fitted


def _find_round(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the index at which the current round of tools begins: after the user's last message."""
    return next((at for at in range(len(messages) - 1, -1, -1) if messages[at].get("role") == "user"), -1) + 1


def _find_missing(before: str, role: str) -> Json | None:
    """Return the message that must stand between two roles where user and assistant take turns; None if there is none."""
    if role == "assistant" and before == "system":
        return {"role": "user", "content": OPENING}
    if role == "user" and before == "tool":
        return {"role": "assistant", "content": RECEIVED}
    return None


def _fit_message(
    given: Mapping[str, Any], profile: Profile, model: Any, declared: Collection[Any], *, signed: bool
) -> Json:
    role, content = given["role"], _read_content(given, profile)
    plain = len(given) == 2 and type(content) is str and role != "developer"
    if plain and (profile.blank or (content and not content.isspace())):
        return dict(given)  # nearly every message of a long prompt
    if role == "developer" and not profile.developer:
        role = "system"
    message = {
        name: value
        for name, value in {**given, "role": role}.items()
        if _is_accepted(name, value, role, profile, model)
    }
    calls = given.get("tool_calls")
    if calls:
        message["tool_calls"] = [
            _fit_call(call, profile, declared, sign=signed and at == 0) for at, call in enumerate(calls)
        ]
        if "reasoning_content" in profile.required:
            message["reasoning_content"] = message.get("reasoning_content") or ""
    if role == "tool":
        message["tool_call_id"] = _fit_id(given["tool_call_id"], profile)
    if isinstance(content, list) and not profile.blank:
        content = [part for part in content if not is_blank([part])]
    if content is not None or calls:
        message["content"] = content if content is not None or profile.null else ""
    if not profile.blank and not calls and is_blank(content):
        message["content"] = NO_OUTPUT if role == "tool" else EMPTY
    if "name" in message and not (profile.names and _NAME.fullmatch(str(message["name"]))):
        message["content"] = add_label(message.get("content"), f"{message.pop('name')}: ")
    return message


def _read_content(message: Mapping[str, Any], profile: Profile) -> Any:
    """Return the content of a message, with what a reply says in a field that the upstream does not know."""
    content, audio = message.get("content"), message.get("audio")
    if message["role"] != "assistant":
        return content
    texts = [] if "audio" in profile.fields or not isinstance(audio, Mapping) else [audio.get("transcript")]
    if "refusal" not in profile.fields:
        texts.append(message.get("refusal"))
        if isinstance(content, list):
            content = [
                {"type": "text", "text": part["refusal"]} if part["type"] == "refusal" else part for part in content
            ]
    elif content is None and message.get("refusal") and not message.get("tool_calls"):
        return ""
    said = [text for text in texts if isinstance(text, str) and text.strip()]
    if isinstance(content, list):
        return [*content, *({"type": "text", "text": text} for text in said)]
    return "\n\n".join([*([] if is_blank(content) else [str(content)]), *said]) if said else content


def _is_accepted(field: str, value: Any, role: str, profile: Profile, model: Any) -> bool:
    """Return True if a message may have this field. `name` is handled by `_fit_message`."""
    if field in ("role", "content", "tool_calls", "tool_call_id", "name"):
        return True
    if field in profile.refused or (field == "reasoning_details" and _has_foreign_details(value, model)):
        return False
    return field in profile.fields if role == "assistant" and field in REPLY_FIELDS else not profile.closed


def _has_foreign_details(details: Any, model: Any) -> bool:
    formats = [one.get("format") for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    return "openai-responses-v1" in formats and not str(model).startswith("openai/")


def _fit_call(call: Mapping[str, Any], profile: Profile, declared: Collection[Any], *, sign: bool) -> Json:
    fitted = {name: value for name, value in call.items() if name not in _OF_CALLS or name in profile.fields}
    fitted["id"] = _fit_id(call["id"], profile)
    if isinstance(function := call.get("function"), Mapping):
        own = {name: value for name, value in function.items() if name not in _OF_CALLS}
        if own["name"] not in declared:
            own["name"] = to_function_name(to_tool_name(own["name"]))
        fitted["function"] = {**own, "arguments": _fit_arguments(function.get("arguments"))}
    if sign and "thought_signature" in profile.required and "thought_signature" not in str(fitted.get("extra_content")):
        fitted["extra_content"] = {"google": {"thought_signature": NO_SIGNATURE}}
    return fitted


def _fit_arguments(text: Any) -> Any:
    """Return arguments as the text of a JSON object. Text that is one stays as it is, to the byte."""
    if not isinstance(text, str):
        return text
    made = parse_arguments(text)
    if made.get("arguments") == text or not text.strip():
        return msgspec.json.encode(made).decode()
    return text


def _fit_id(call_id: str, profile: Profile) -> str:
    if (_NINE if profile.nine else _SHORT).fullmatch(call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace")).hexdigest()
    return digest[:9] if profile.nine else f"call_{digest[:32]}"


def _can_merge(one: Json, other: Json) -> bool:
    """Return True for neighbours of one role. Nothing is added after calls, since their results follow them."""
    return one["role"] == other["role"] != "tool" and not one.get("tool_calls")


def _merge(one: Json, other: Json) -> Json:
    """Return one message with the contents and fields of both. If the names differ, each text begins with its name."""
    texts = [one["content"], other["content"]]
    merged = {**one, **other}
    if one.get("name") != other.get("name"):
        merged.pop("name")
        texts = [add_label(m["content"], f"{m['name']}: ") if "name" in m else m["content"] for m in (one, other)]
    texts = [text for text in texts if text] or [""]
    if all(isinstance(text, str) for text in texts):
        return {**merged, "content": "\n\n".join(texts)}
    parts = [[{"type": "text", "text": text}] if isinstance(text, str) else text for text in texts]
    return {**merged, "content": [part for content in parts for part in content]}


def _get_name(tool: Any) -> Any:
    """Return the name in a declaration or a call of a function; None if there is none."""
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function.get("name") if isinstance(function, Mapping) else None


def _declare(name: str) -> Json:
    parameters = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "description": ENDED, "parameters": parameters}}
