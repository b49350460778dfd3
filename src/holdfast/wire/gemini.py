"""Google's Gemini API: a working set as the `contents` and `systemInstruction` of `generateContent`.

Follows the API reference ("Content", "Part", "FunctionCall", "FunctionResponse", "FunctionDeclaration") and the guides
"Function calling" and "Thought signatures". As with Anthropic's, order and words are the dialect's business
(`holdfast.context.dialects.adapted`).

Two turns of one role become one, so that roles alternate. Results of function calls stand alone in theirs: the API counts
them there, and Gemini 3 overlooks what stands beside them. So a word of the model stands between them and a user turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.context.dialects import (
    RECEIVED,
    THINKING,
    Thought,
    added,
    arguments_of,
    call_signature,
    signature_of,
    thoughts,
)
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.errors import InvalidRequest
from holdfast.wire.openai import Media, media_of, split_system

Block = dict[str, Any]
LEFT_OUT = "[a part of type {type} is left out here: Gemini does not take it]"
RETURNED = "[returned by {name}]"
"""Before the media of a result, which stand behind it: a result itself is JSON."""
SKIP_SIGNATURE = "skip_thought_signature_validator"
"""On a call that Gemini did not make, as "Thought signatures" wants it: Gemini 3 refuses a first call without any."""
NAME_LENGTH = 64
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"})
_NAME_SIGNS = frozenset("_-.:")


def request_to(messages: Sequence[Message]) -> dict[str, Any]:
    """The fields `systemInstruction` (only where there is a system prompt) and `contents` of a request.

    Args:
        messages: system prompt first, then a conversation adapted to Gemini's dialect.
    """
    front, conversation = split_system(messages)
    system = [part for message in front for part in _content(message.content, media=False)]
    contents: list[Block] = []
    calls: tuple[ToolCall, ...] = ()
    results: list[Message] = []
    for message in conversation:
        if message.role == "tool":
            results.append(message)
            continue
        _add_results(contents, calls, results)
        calls, results = message.tool_calls, []
        if added(message) and message.content == RECEIVED and "functionResponse" not in contents[-1]["parts"][0]:
            continue  # media of the results stand between already
        if message.role == "assistant":
            _add(contents, "model", _reply(message))
        else:
            named = [{"text": f"{message.name}:"}] if message.name and message.name.strip() else []
            _add(contents, "user", [*named, *_content(message.content)])
    _add_results(contents, calls, results)
    return {"systemInstruction": {"parts": system}, "contents": contents} if system else {"contents": contents}


def tools_to(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI's function tools as one Gemini tool with their declarations; tools in Gemini's own shape stay as they are.

    Raises:
        InvalidRequest: a tool is neither, or its name is none that Gemini takes.
    """
    declared, own = [], []
    for at, tool in enumerate(tools):
        if "function" in tool or "type" in tool:
            declared.append(_declaration(tool.get("function"), f"tools[{at}].function"))
        else:
            own.append(dict(tool))
    return [*([{"functionDeclarations": declared}] if declared else []), *own]


def function_name(name: str) -> str:
    """`name` in the characters that Gemini takes for the name of a function."""
    plain = "".join(sign if sign.isascii() and (sign.isalnum() or sign in _NAME_SIGNS) else "_" for sign in name)
    starts = plain[:1].isalpha() or plain[:1] == "_"
    return (plain if starts else f"_{plain}")[:NAME_LENGTH]


def _declaration(function: Any, where: str) -> Block:
    if not isinstance(function, Mapping):
        raise InvalidRequest(f"{where} is missing: Gemini takes functions, or tools in its own shape", param=where)
    name = function.get("name")
    if not isinstance(name, str) or name != function_name(name):
        raise InvalidRequest(
            f"{where}.name is {name!r}; Gemini takes up to {NAME_LENGTH} letters, digits, _ - . and :, a letter or _ first",
            param=f"{where}.name",
        )
    about = (("description", function.get("description")), ("parametersJsonSchema", function.get("parameters")))
    return {"name": name, **{key: value for key, value in about if value}}


# -- turns -------------------------------------------------------------------


def _add(contents: list[Block], role: str, parts: list[Block]) -> None:
    """Say `parts` in the last turn if it is of that role and can take them, else in a new one."""
    last = contents[-1] if contents else None
    if last and parts and last["role"] == role and "functionResponse" not in last["parts"][0]:
        last["parts"] += parts
    elif parts:
        if last and last["role"] == role:  # results stand alone, and turns alternate
            contents.append({"role": "model", "parts": [{"text": RECEIVED}]})
        contents.append({"role": role, "parts": parts})


def _add_results(contents: list[Block], calls: Sequence[ToolCall], results: Sequence[Message]) -> None:
    """The results of `calls` as a turn of its own, in their order, and their media behind it."""
    if not results:
        return
    by_id = {result.tool_call_id: result for result in results}
    pairs = [(function_name(call.name), call.id, by_id[call.id]) for call in calls if call.id in by_id]
    responses = [{"functionResponse": _response(*pair)} for pair in pairs]
    contents.append({"role": "user", "parts": responses})
    for name, _, result in pairs:
        if result.media:
            _add(contents, "user", [{"text": RETURNED.format(name=name)}, *_content(result.media)])


def _response(name: str, call_id: str, result: Message) -> Block:
    key = "error" if result.extra.get("is_error") is True else "output"
    return {"id": call_id, "name": name, "response": {key: result.text}}


def _reply(message: Message) -> list[Block]:
    """A model's parts: reasoning, words, media, calls, with the signatures where they were given."""
    found = thoughts(message)
    parts = [part for thought in found for part in _thought(thought)]
    said = _content(message.content)
    for text in (message.extra.get("refusal"), _transcript(message)):
        if isinstance(text, str) and text.strip():
            said.append({"text": text})
    if said and (signature := signature_of(message.extra)):
        said[-1]["thoughtSignature"] = signature
    return [*parts, *said, *_calls(message.tool_calls, found)]


def _transcript(message: Message) -> Any:
    """The words of a spoken reply."""
    audio = message.extra.get("audio")
    return audio.get("transcript") if isinstance(audio, Mapping) else None


def _thought(thought: Thought) -> Iterator[Block]:
    if thought.text.strip():
        signed = {"thoughtSignature": thought.signature} if thought.signed_by("gemini") and thought.signature else {}
        yield {"text": thought.text, "thought": True, **signed}


def _calls(calls: Sequence[ToolCall], found: Sequence[Thought]) -> list[Block]:
    sealed = [thought for thought in found if thought.signed_by("gemini") and thought.sealed]
    signatures = {thought.call_id: thought.sealed for thought in sealed}
    parts = []
    for at, call in enumerate(calls):
        signature = call_signature(call) or signatures.get(call.id)
        if at == 0 and signature is None:
            signature = sealed[0].sealed if sealed else SKIP_SIGNATURE
        made = {"id": call.id, "name": function_name(call.name), "args": arguments_of(call.arguments)}
        parts.append({"functionCall": made, **({"thoughtSignature": signature} if signature else {})})
    return parts


# -- parts -------------------------------------------------------------------


def _content(content: Content, *, media: bool = True) -> list[Block]:
    """Parts for content; reasoning in it is left to `_reply`."""
    if isinstance(content, str):
        content = (Part("text", content),)
    given = content if isinstance(content, tuple) else ()
    return [made for part in given if part.type not in THINKING for made in _part(part, media=media)]


def _part(part: Part, *, media: bool) -> Iterator[Block]:
    if part.text is None:
        medium = media_of(part) if media else None
        yield (_medium(medium) if medium else None) or {"text": LEFT_OUT.format(type=part.type)}
    elif part.text.strip():
        signature = signature_of(part.extra)
        yield {"text": part.text, **({"thoughtSignature": signature} if signature else {})}


def _medium(media: Media) -> Block | None:
    if media.kind == "image" and media.mime is not None and media.mime not in IMAGE_TYPES:
        return None
    if media.data is not None:
        return {"inlineData": {"mimeType": media.mime, "data": media.data}} if media.mime else None
    about = {"mimeType": media.mime} if media.mime else {}
    return {"fileData": {**about, "fileUri": media.url}}
