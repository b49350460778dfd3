"""Make the messages of a prompt fit what their upstream accepts. This module does no I/O.

Logs and windows do not depend on upstreams. Messages are changed in the same way every time, so that prompts keep their beginning and a
provider's cache holds. For Anthropic and Gemini, the prompt is adapted when it is built, so that the tokens of added texts are counted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import is_, itemgetter
from typing import Any, Final

import msgspec

from holdfast.context.dialects import (
    THINKING,
    Dialect,
    parse_thoughts,
    to_function_name,
    to_tool_name,
    with_object_arguments,
)
from holdfast.context.escaping import format_tag
from holdfast.context.units import EMPTY, add_label, is_blank, make_distinct_id, with_id
from holdfast.domain.medium import KINDS
from holdfast.domain.messages import (
    CHAT_PARTS,
    SERVER_TOOL_PARTS,
    SYSTEM_ROLES,
    Content,
    Message,
    Part,
    ToolCall,
)
from holdfast.domain.profiles import ANTHROPIC, GEMINI, REPLY_FIELDS, Profile

OPENING = "[the conversation begins with the assistant]"
"""User message that is added before the conversation if the assistant begins it and the upstream requires the user to begin."""
CLOSING = "[continue]"
"""User message that is added after the conversation if the assistant ends it and the upstream requires the user to end. Also added between
two replies that must not be merged."""
SYSTEM_NOTE = "[a system message at this place of the conversation{tag}]\n"
"""Prefix of a system message inside the conversation, for upstreams that accept system messages only at the beginning."""
UNKNOWN_PART = "[a part of type {type}]\n{json}"
"""Text that replaces a content part that the dialect does not support."""
RECEIVED = "[received]"
"""Assistant message that is added between tool results and a user message, for dialects in which turns must alternate."""
RESERVE = 48
"""Tokens of a window that are reserved for messages that a dialect may add. With them the window rarely has to be shrunk again."""
_NATIVE_IN: dict[str, frozenset[str]] = {
    **dict.fromkeys(SERVER_TOOL_PARTS, frozenset({"assistant"})),
    "search_result": frozenset({"user", "tool"}),
    "container_upload": frozenset({"user", "assistant"}),
    "tool_reference": frozenset({"tool"}),
    "browser_state": frozenset({"tool"}),
}
"""Block types that only Anthropic has, with the roles of the messages in which Anthropic accepts them."""
NATIVE_PARTS = frozenset(_NATIVE_IN)
"""Block types that only Anthropic has. They are sent to Anthropic unchanged."""
NO_OUTPUT: Final = "(no output)"
"""Text that replaces a blank result of a tool."""
NO_SIGNATURE: Final = "skip_thought_signature_validator"
"""Google's replacement for the thought signature of a call that another model made (ai.google.dev, "Thought signatures")."""
SHOWN_AFTER: Final = "[media: shown after the results]"
"""Placeholder in a tool's result for media, which Chat Completions do not allow there."""
FROM_RESULT: Final = "[media in the result of {id}]"
"""Text before the media of a tool's result. The media are moved to a later message."""
CALL: Final = "[called {name} with {arguments}]"
RESULT: Final = "[result] "
"""Words for a call and its result, if a model knows no tools."""
_PLAIN: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names of speakers that OpenAI accepts. Any other one is written before the text."""
_FUNCTION: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
"""Names of functions that all upstreams accept."""
_OF_CALLS: Final = frozenset({"extra_content", "provider_specific_fields", "thought_signature", "index"})
"""Fields of calls that belong to the upstream that made them."""


Sent = tuple[Message, tuple[int, ...]]
"""A message of a request, and the indexes of the prompt's messages that it is made of; none if it was added."""


_IN_TURN: Final = frozenset(
    {
        *(("system", "user"), ("user", "assistant"), ("assistant", "user")),
        *(("assistant", "tool"), ("tool", "tool"), ("tool", "assistant")),
    }
)
"""Roles of two messages that a template accepts one after the other, whatever they contain."""
_OPENED: Final = Message(role="user", content=OPENING)
_GO_ON: Final = Message(role="user", content=CLOSING)
_RECEIVED: Final = Message(role="assistant", content=RECEIVED)


def is_added(message: Message) -> bool:
    """Return True if this module added this message object. A client's message with the same text is not recognised as added."""
    return message is _OPENED or message is _GO_ON or message is _RECEIVED


def adapt_messages(messages: Sequence[Message], dialect: Dialect, marker: str = "") -> list[Message]:
    """Return a conversation in the form that a provider's own API requires. OpenAI accepts every conversation unchanged.

    Args:
        messages: The conversation, without the system prompt.
        dialect: The provider's dialect.
        marker: As in `fit_messages`.
    """
    if dialect == "openai":
        return list(messages)
    profile = ANTHROPIC if dialect == "anthropic" else GEMINI
    return [message for message, _ in fit_messages(messages, profile, marker=marker)]


def fit_messages(
    messages: Sequence[Message],
    profile: Profile | None,
    model: Any = None,
    declared: Collection[Any] = (),
    marker: str = "",
) -> list[Sent]:
    """Return the messages that are sent for a prompt to an upstream.

    No text is lost. The same prompt always becomes the same messages, and a longer one begins like the shorter one.

    Args:
        messages: The prompt. For a native API, a conversation that has only system messages is one of the user.
        profile: What the upstream accepts. None: all that Chat Completions allow.
        model: Name of the model at the upstream. Routers to Claude accept media in results. Encrypted reasoning of OpenAI goes to no
            other vendor's models.
        declared: Names of the tools of the request. A model may have called others, with names that no upstream accepts.
        marker: The session's marker, for labels of system messages inside the conversation; see `holdfast.context.escaping`.
    """
    takes_media = profile is not None and (profile.is_native or profile.media_in_results)
    if takes_media or "claude" in str(model).lower():
        given: list[Sent] = [(one, (at,)) for at, one in enumerate(messages)]
    else:
        given = move_media_after_results(messages)
    if profile is None:
        return given
    given = _fit_rounds(given, profile)
    front = sum(1 for _ in takewhile(lambda sent: sent[0].role in SYSTEM_ROLES, given))
    if profile.is_native:
        front = front if front < len(given) else 0
        each = _fit_each_natively([message for message, _ in given], profile, front)
    else:
        each = _fit_each([message for message, _ in given], profile, model, declared)
    sent = zip(each, map(itemgetter(1), given), strict=True)
    fitted = _order_turns(sent, profile, front, marker) if profile.template else list(sent)
    if profile.ends_with_user and fitted and fitted[-1][0].role == "assistant":
        fitted.append((_GO_ON, ()))
    return fitted


def _order_turns(given: Iterable[Sent], profile: Profile, front: int, marker: str) -> list[Sent]:
    """Return the messages with roles as in a template, and those between them that the upstream requires.

    Anthropic treats consecutive replies as one turn, and requires that a turn with signed reasoning begins with that reasoning.

    Args:
        given: The messages.
        profile: What the upstream accepts.
        front: Number of the system messages at the beginning.
        marker: As in `fit_messages`.
    """
    ordered: list[Sent] = []
    last = "system"
    for at, sent in enumerate(given):
        message, sources = sent
        if (last, message.role) in _IN_TURN:  # nearly all of a long prompt
            ordered.append(sent)
            last = message.role
            continue
        if message.role in SYSTEM_ROLES and not (at < front and profile.system):
            note = SYSTEM_NOTE.format(tag=format_tag(marker))
            content = message.content if at < front else add_label(message.content, note)
            message = message.evolve(role="user", content=content)
        if (added := _find_separator(message, last, profile)) is not None:
            ordered.append((added, ()))
        elif not profile.is_native and ordered and message.role == last != "tool" and not ordered[-1][0].tool_calls:
            merged, earlier = ordered.pop()  # not a reply with calls, because results follow calls
            ordered.append((_merge(merged, message), earlier + sources))
            continue
        ordered.append((message, sources))
        last = message.role
    return ordered


def _find_separator(message: Message, last: str, profile: Profile) -> Message | None:
    """Return the message that must stand before a message, after one with the role `last`; None if there is none."""
    if message.role == "assistant" and last in SYSTEM_ROLES:
        return _OPENED
    if message.role == "user" and last == "tool" and profile.answers_results:
        return _RECEIVED
    is_second = profile.name == "anthropic" and message.role == last == "assistant"
    if is_second and any(thought.is_signed_by("anthropic") for thought in parse_thoughts(message)):
        return _GO_ON
    return None


def move_media_after_results(messages: Iterable[Message]) -> list[Sent]:
    """Move media from tool results to later messages, because Chat Completions allow only text in tool results.

    After all results of a round, a message with the user's role contains their media. Each result contains a
    placeholder.
    """
    converted: list[Sent] = []
    moved: list[Part] = []
    results: tuple[int, ...] = ()
    for at, message in enumerate(messages):
        if message.role != "tool":
            if moved:
                converted.append((Message(role="user", content=tuple(moved)), results))
                moved, results = [], ()
        elif isinstance(message.content, tuple) and (
            parts := [part for part in message.media if part.type in CHAT_PARTS]
        ):
            texts = [part for part in message.content if part not in parts]
            moved += [Part("text", FROM_RESULT.format(id=message.tool_call_id)), *parts]
            results += (at,)
            message = message.evolve(content=(*texts, Part("text", SHOWN_AFTER)))  # noqa: PLW2901 - the converted message
        converted.append((message, (at,)))
    return [*converted, (Message(role="user", content=tuple(moved)), results)] if moved else converted


def _fit_ids(messages: Iterable[Message], profile: Profile) -> Iterator[Message]:
    """Yield the messages with ids of calls that the upstream accepts. A result gets the id of its call.

    Some recorded conversations use an id several times.
    """
    used: set[str] = set()
    known: dict[str, str] = {}
    for message in messages:
        if message.tool_calls:
            known = {call.id: _fit_id(call.id, profile, used) for call in message.tool_calls}
            calls = tuple(with_id(call, known[call.id]) for call in message.tool_calls)
            yield message if all(map(is_, calls, message.tool_calls)) else message.evolve(tool_calls=calls)
        elif message.tool_call_id is not None:
            found = known.get(message.tool_call_id) or _fit_id(message.tool_call_id, profile, set())
            yield message if found == message.tool_call_id else message.evolve(tool_call_id=found)
        else:
            yield message


def _fit_id(call_id: str, profile: Profile, used: set[str]) -> str:
    fitted = fit_id(call_id, nine=profile.nine, longest=profile.id_length)
    if not profile.distinct_ids:
        return fitted
    distinct = make_distinct_id(fitted, used)
    return fitted if distinct == fitted else fit_id(distinct, nine=profile.nine, longest=profile.id_length)


# -- native APIs ---------------------------------------------------------------------


def _fit_each_natively(messages: Sequence[Message], profile: Profile, front: int) -> Iterator[Message]:
    """Yield each message with replacements for what a native API does not support, except for those of the system at the beginning.

    Unsupported parts are converted to text, and arguments of calls to JSON objects.
    """
    yield from messages[:front]
    for message in _fit_ids(messages[front:], profile):
        role = "user" if message.role in SYSTEM_ROLES else message.role
        content = message.content
        if isinstance(content, tuple) and any(_is_unsupported(part, role, profile) for part in content):
            content = tuple(_to_text_part(part) if _is_unsupported(part, role, profile) else part for part in content)
        if message.role == "user" and is_blank(content):
            content = EMPTY
        calls = tuple(map(with_object_arguments, message.tool_calls)) if message.tool_calls else ()
        if content is message.content and all(map(is_, calls, message.tool_calls)):
            yield message
        else:
            yield message.evolve(content=content, tool_calls=calls)


def _is_unsupported(part: Part, role: str, profile: Profile) -> bool:
    if part.text is not None or part.type in KINDS:
        return False
    if part.type in THINKING:
        return role != "assistant"
    return profile.name != "anthropic" or role not in _NATIVE_IN.get(part.type, ())


def _to_text_part(part: Part) -> Part:
    return Part("text", UNKNOWN_PART.format(type=part.type, json=msgspec.json.encode(part.extra).decode()))


# -- Chat Completions ------------------------------------------------------------------


def _fit_rounds(messages: list[Sent], profile: Profile) -> list[Sent]:
    """Return the messages with as many calls in a reply as a model knows. Each of several becomes a reply before its result."""
    if profile.calls == "none":
        return [(_write_calls(message), sources) for message, sources in messages]
    if profile.calls == "several":
        return messages
    split: list[Sent] = []
    waiting: dict[str, Sent] = {}
    for message, sources in messages:
        if message.tool_calls:
            for at, call in enumerate(message.tool_calls):
                first: dict[str, Any] = {} if at == 0 else {"content": None, "extra": {}}
                waiting[call.id] = (message.evolve(tool_calls=(call,), **first), sources)
        else:
            if message.tool_call_id in waiting:
                split.append(waiting.pop(message.tool_call_id))
            split.append((message, sources))
    return [*split, *waiting.values()]


def _write_calls(message: Message) -> Message:
    """Return a message with words in place of calls, or a result as a message of the user."""
    if message.role == "tool":
        return Message(role="user", content=add_label(message.content, RESULT))
    if not message.tool_calls:
        return message
    said = [] if is_blank(message.content) else [message.text]
    called = [CALL.format(name=call.name, arguments=call.arguments) for call in message.tool_calls]
    return message.evolve(content="\n\n".join(said + called), tool_calls=())


def _fit_each(
    messages: Sequence[Message], profile: Profile, model: Any, declared: Collection[Any]
) -> Iterator[Message]:
    """Yield each message with the fields, ids and content that the upstream accepts."""
    # The current round of tools begins after the user's last message.
    current = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user"), -1) + 1
    for at, message in enumerate(_fit_ids(messages, profile)):
        if (
            type(message.content) is str
            and message.role in ("user", "assistant", "system", "tool")
            and not (message.tool_calls or message.extra or message.name is not None)
            and (profile.blank or (message.content and not message.content.isspace()))
        ):
            yield message  # nearly every message of a long prompt
        else:
            yield _fit_message(message, profile, model, declared, signed=at >= current)


def _fit_message(given: Message, profile: Profile, model: Any, declared: Collection[Any], *, signed: bool) -> Message:
    role, content, calls = given.role, _read_content(given, profile), given.tool_calls
    if role == "developer" and not profile.developer:
        role = "system"
    extra = {
        name: value for name, value in given.extra.items() if _is_accepted(name, value, given.role, profile, model)
    }
    if calls:
        calls = tuple(_fit_call(call, profile, declared, sign=signed and at == 0) for at, call in enumerate(calls))
        if "reasoning_content" in profile.required:
            extra["reasoning_content"] = extra.get("reasoning_content") or ""
        if not isinstance(content, str | tuple):
            content = None if profile.null else ""
    if isinstance(content, tuple):
        content = _fit_parts(content, profile, "" if role == "assistant" else "\n\n")
    if not profile.blank and not calls and is_blank(content):
        content = NO_OUTPUT if role == "tool" else EMPTY
    name = given.name
    if name is not None and not (profile.names and _NAME.fullmatch(name)):
        name, content = None, add_label(content, f"{name}: ")
    return given.evolve(role=role, content=content, tool_calls=calls, name=name, extra=extra)


def _read_content(message: Message, profile: Profile) -> Content:
    """Return the content of a message, with what a reply says in a field that the upstream does not know."""
    content, audio = message.content, message.extra.get("audio")
    if message.role != "assistant" or not (message.extra or isinstance(content, tuple)):
        return content
    texts = [] if "audio" in profile.fields or not isinstance(audio, Mapping) else [audio.get("transcript")]
    refusal = message.extra.get("refusal")
    if "refusal" not in profile.fields:
        texts.append(refusal)
        if isinstance(content, tuple):
            content = tuple(Part("text", part.text) if part.type == "refusal" else part for part in content)
    elif not isinstance(content, str | tuple) and refusal and not message.tool_calls:
        return ""
    said = [text for text in texts if isinstance(text, str) and text.strip()]
    if isinstance(content, tuple):
        return (*content, *(Part("text", text) for text in said))
    return "\n\n".join([*([] if is_blank(content) else [str(content)]), *said]) if said else content


def _fit_parts(parts: tuple[Part, ...], profile: Profile, separator: str) -> Content:
    """Return parts without blank ones. If they are only texts, they become one string, because many templates take no lists."""
    if not profile.blank:
        parts = tuple(part for part in parts if not is_blank((part,)))
    texts = [part.text for part in parts if part.text is not None and not part.extra]
    return separator.join(texts) if profile.template and len(texts) == len(parts) else parts


def _is_accepted(field: str, value: Any, role: str, profile: Profile, model: Any) -> bool:
    """Return True if a message may have this field."""
    if field in profile.refused or (field == "reasoning_details" and _has_foreign_details(value, model)):
        return False
    if field in ("reasoning_content", "reasoning") and not isinstance(value, str):
        return False
    return field in profile.fields if role == "assistant" and field in REPLY_FIELDS else not profile.closed


def _has_foreign_details(details: Any, model: Any) -> bool:
    formats = [one.get("format") for one in details if isinstance(one, Mapping)] if isinstance(details, list) else []
    return "openai-responses-v1" in formats and not str(model).startswith("openai/")


def _fit_call(call: ToolCall, profile: Profile, declared: Collection[Any], *, sign: bool) -> ToolCall:
    changed: dict[str, Any] = {}
    extra = {name: value for name, value in call.extra.items() if name not in _OF_CALLS or name in profile.fields}
    if sign and "thought_signature" in profile.required and "thought_signature" not in str(extra.get("extra_content")):
        extra["extra_content"] = {"google": {"thought_signature": NO_SIGNATURE}}
    if extra != call.extra:
        changed["extra"] = extra
    if call.type != "custom":
        call = with_object_arguments(call)
        if not (call.name in declared or _FUNCTION.fullmatch(call.name)):
            changed["name"] = to_function_name(to_tool_name(call.name))
        if call.function_extra:
            changed["function_extra"] = {
                name: value for name, value in call.function_extra.items() if name not in _OF_CALLS
            }
    return msgspec.structs.replace(call, **changed) if changed else call


def fit_id(call_id: str, *, nine: bool = False, longest: int = 40) -> str:
    """Return the id of a call with length and characters that an upstream accepts. A call and its result get the same id.

    Args:
        call_id: The id.
        nine: True: exactly nine letters and digits.
        longest: Maximum length.
    """
    if len(call_id) <= longest and (_NINE if nine else _PLAIN).fullmatch(call_id):
        return call_id
    digest = hashlib.blake2b(call_id.encode(errors="replace")).hexdigest()
    return digest[:9] if nine else f"call_{digest[:32]}"


def _merge(one: Message, other: Message) -> Message:
    """Return one message with the contents and fields of both. If the names differ, each text begins with its name."""
    contents, name = [one.content, other.content], other.name
    if one.name != other.name:
        contents, name = [add_label(m.content, f"{m.name}: ") if m.name else m.content for m in (one, other)], None
    contents = [content for content in contents if content]
    merged = other.evolve(name=name, extra={**one.extra, **other.extra})
    if all(isinstance(content, str) for content in contents):
        return merged.evolve(content="\n\n".join(map(str, contents)))
    parts = [(Part("text", content),) if isinstance(content, str) else content for content in contents]
    return merged.evolve(content=tuple(part for content in parts if isinstance(content, tuple) for part in content))
