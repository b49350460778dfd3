"""Anthropic's Messages API: a working set as its requests have it, where it is cut for the prompt cache, and its messages as Holdfast's.

Follows the API reference, "Create a Message", and the guides "Handle tool calls", "Extended thinking", "Prompt caching",
"Vision" and "PDF support". `holdfast.context.dialects.adapted` decides the order of messages and every word that has to be added;
here they only get another shape. Unknown fields are left out, because the API refuses them.

By the guide "Prompt caching" a prompt is cached up to each block with `cache_control`, at most four of them, in the order
tools, system, messages. A later request reads the longest of these that it begins with, looking back from each of its own
marks over at most 20 blocks. A mark is not part of what is cached, so it may be elsewhere in each request. Two marks make every call
read all that the call before wrote, however many blocks were added: one at the end of the part of this prompt that the next one begins
with, one at the end of the prompt before. The other two outlive a step of the frontier: one after system prompt and tools, one after
the first message, which is the task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.dialects import CLOSING, NATIVE_PARTS, THINKING, Thought, arguments_of, beside, thought_of
from holdfast.context.recalled import is_recalled
from holdfast.domain.messages import Content, Message, Part, ToolCall
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.wire.openai import Media, dumped, media_of, message_from, split_system

Block = dict[str, Any]
CACHE_MARKS: Final = 4
"""Blocks with `cache_control` that a request may have."""
MARK: Final[Mapping[str, Any]] = {"type": "ephemeral"}
"""For five minutes from the last read."""
_LONG: Final = "1h"


def mark(
    front: Sequence[Block],
    conversation: Sequence[Message],
    written: Sequence[list[Block]],
    cache: Mapping[str, Any] | None = MARK,
) -> None:
    """Put `cache_control` on the blocks of a request, in place.

    A client's own marks in tools, system prompt and what is new stay before any of ours. Those further back, which a log keeps
    from older requests, fill what the two marks that matter most leave.

    Args:
        front: tools, then the blocks of the system prompt.
        conversation: the messages.
        written: the blocks of each message.
        cache: what a mark says; None: none is added, and of the client's the last four stay.
    """
    newest = _behind_last_reply(conversation)
    blocks = [[inner for block in group for inner in (*_nested(block), block)] for group in written]
    current = _marked([*front, *(block for group in blocks[newest:] for block in group)])
    older = _marked([block for group in blocks[:newest] for block in group])
    chosen = current[-CACHE_MARKS:]
    ours = [] if cache is None else list(_ends(front, conversation, written, newest))
    for block in [*ours[:2], *reversed(older), *ours[2:]]:
        if len(chosen) < CACHE_MARKS and not any(block is other for other in chosen):
            chosen.append(block)
    kept = {id(block) for block in chosen}
    everything = [*front, *(block for group in blocks for block in group)]
    for block in everything:
        if id(block) not in kept:
            block.pop("cache_control", None)
        elif not block.get("cache_control"):
            block["cache_control"] = dict(cache or MARK)
    _in_order(everything)


def stable(conversation: Sequence[Message]) -> int:
    """How many of the messages the next prompt begins with, as long as the frontier stays.

    All but the word of the user that a dialect wants at the end where the assistant spoke last: the next prompt has what was
    said instead. What is recalled is of one turn: a call after a round of tools begins with it, the next turn does not; for
    that there is a mark of its own, see `_ends`.
    """
    closed = bool(conversation) and conversation[-1].role == "user" and conversation[-1].content == CLOSING
    return len(conversation) - closed


def _ends(
    front: Sequence[Block], conversation: Sequence[Message], written: Sequence[list[Block]], newest: int
) -> Iterator[Block]:
    """The blocks that a mark is worth most on, the best first."""
    yield from _last(block for group in written[: stable(conversation)] for block in group)
    yield from _last(block for group in written[: _recalled_at(conversation)] for block in group)
    yield from _last(block for group in written[: max(0, newest - 1)] for block in group)
    yield from _last(front)
    yield from _last(written[0] if written else ())


def _recalled_at(conversation: Sequence[Message]) -> int:
    """Where what is recalled for this turn alone stands; 0: nothing is."""
    return next((at for at in range(len(conversation) - 1, -1, -1) if is_recalled(conversation[at])), 0)


def _behind_last_reply(conversation: Sequence[Message]) -> int:
    """Where what the last reply was followed by begins."""
    until = stable(conversation)
    return next((at + 1 for at in range(until - 1, -1, -1) if conversation[at].role == "assistant"), 0)


def _last(blocks: Iterator[Block] | Sequence[Block]) -> list[Block]:
    """The last one that may bear a mark; none where there is none."""
    return [block for block in blocks if block.get("type") not in THINKING and not block.get("defer_loading")][-1:]


def _marked(blocks: Sequence[Block]) -> list[Block]:
    return [block for block in blocks if block.get("cache_control")]


def _nested(block: Block) -> list[Block]:
    return block.get("content") or [] if block.get("type") == "tool_result" else []


def _in_order(blocks: Sequence[Block]) -> None:
    """No mark for an hour may come behind one for five minutes: then that one is for an hour, too."""
    long = False
    for block in reversed(_marked(blocks)):
        long = long or block["cache_control"].get("ttl") == _LONG
        if long:
            block["cache_control"] = {**block["cache_control"], "ttl": _LONG}


REASONING = "[reasoning] "
"""Before reasoning that Anthropic did not sign: it takes its own back, and text."""
LEFT_OUT = "[a part of type {type} is left out here: Anthropic does not take it]"
BLOCKS = "content_blocks"
"""Field of a reply beside its content: its blocks as they came and in their order, calls aside, each with its `index`. Only where
there is more in them than text and reasoning in front of it: server tools and their results, citations, reasoning between texts."""
TOOL_FIELDS = (
    "cache_control",
    "strict",
    "defer_loading",
    "allowed_callers",
    "input_examples",
    "eager_input_streaming",
)
"""Fields of a tool that only Anthropic has, beside its function."""
_BESIDE_SOURCE = {"image": ("transformations",), "document": ("title", "context", "citations")}
"""Fields of an image or a document, beside its source."""
IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NAME_LENGTH = 128
_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NO_SCHEMA = {"type": "object", "properties": {}}


# -- out ---------------------------------------------------------------------


def request_to(
    messages: Sequence[Message], *, tools: list[Block] | None = None, cache: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields `system` (only where there is a system prompt), `messages` and `tools` (where given) of a request.

    Args:
        messages: system prompt first, then a conversation adapted to Anthropic's dialect.
        tools: in Anthropic's shape; they are marked for the cache with the rest.
        cache: what a mark for the prompt cache says; None: none is added to those of the messages.
    """
    front, conversation = split_system(messages)
    system = [block for message in front for block in _system(message)]
    written = [_blocks(message) for message in conversation]
    mark([*(tools or ()), *system], conversation, written, cache)
    told: list[dict[str, Any]] = []
    for message, blocks in zip(conversation, written, strict=True):
        role = "assistant" if message.role == "assistant" else "user"
        if told and told[-1]["role"] == role:
            told[-1]["content"] += blocks
        elif blocks:
            told.append({"role": role, "content": [*blocks]})
    request: dict[str, Any] = {"tools": tools} if tools else {}
    return {**request, **({"system": system} if system else {}), "messages": told}


def owners(messages: Sequence[Message]) -> list[list[int]]:
    """Return, for each message of a request and each of its blocks, which of `messages` it was made of; see `request_to`."""
    front, conversation = split_system(messages)
    made: list[list[int]] = []
    last = ""
    for at, message in enumerate(conversation, start=len(front)):
        role = "assistant" if message.role == "assistant" else "user"
        own = [at] * len(_blocks(message))
        if made and last == role:
            made[-1] += own
        elif own:
            made.append(own)
            last = role
    return made


def tools_to(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """OpenAI's function tools as Anthropic's; tools in Anthropic's own shape stay as they are.

    Raises:
        InvalidRequest: a tool is neither, or its name is none that Anthropic takes.
    """
    return [_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        if isinstance(tool.get("name"), str) and ("input_schema" in tool or "type" in tool) and "custom" not in tool:
            return dict(tool)
        raise InvalidRequest(
            f"{where} must be a function tool, or one in Anthropic's shape with name and input_schema", param=where
        )
    name = function.get("name")
    if not isinstance(name, str) or name != tool_name(name):
        raise InvalidRequest(
            f"{where}.function.name is {name!r}; Anthropic takes 1 to {NAME_LENGTH} letters, digits, _ and -",
            param=f"{where}.function.name",
        )
    about = {"description": function["description"]} if function.get("description") else {}
    own = {field: tool[field] for field in TOOL_FIELDS if field in tool}
    schema = {"type": "object", **(function.get("parameters") or _NO_SCHEMA)}
    return {"name": name, **about, "input_schema": schema, **own}


def tool_name(name: str) -> str:
    """`name` in the characters that Anthropic takes for the name of a tool."""
    return _NAME.sub("_", name)[:NAME_LENGTH] or "tool"


def _system(message: Message) -> Iterator[Block]:
    content = message.content
    for part in content if isinstance(content, tuple) else (Part("text", message.text),):
        yield from _text_block(part) if part.text is not None else _left_out(part)


def _blocks(message: Message) -> list[Block]:
    if message.role == "tool":
        return [_result(message)]
    if message.role == "assistant":
        return _reply(message)
    named = [{"type": "text", "text": f"{message.name}:"}] if message.name and message.name.strip() else []
    return [*named, *_content(message.content, user=True)]


def _reply(message: Message) -> list[Block]:
    """An assistant's blocks: signed reasoning first, as the API wants it, and calls last, as it gives them."""
    said = _as_they_came(message) if message.extra else []
    if not said:
        said = [block for thought in beside(message) for block in _thought(thought)]
        said += _content(message.content, user=False)
        said += [{"type": "text", "text": text} for text in _aside(message) if text.strip()]
    said = _paired(said)
    if any(block["type"] in THINKING for block in said) and said[0]["type"] not in THINKING:
        said.sort(key=lambda block: block["type"] not in THINKING)
    return [*said, *(_call(call) for call in message.tool_calls)]


def _as_they_came(message: Message) -> list[Block]:
    """The blocks of a reply that Anthropic gave, where they still say what its content says: it may have been cut since."""
    given = message.extra.get(BLOCKS)
    blocks = [block for block in given if isinstance(block, Mapping)] if isinstance(given, Sequence) else []
    texts = [block.get("text") for block in blocks if block.get("type") == "text"]
    # Any client may have put something into the field.
    if not blocks or isinstance(message.content, tuple) or not all(isinstance(text, str) for text in texts):
        return []
    if "".join(map(str, texts)) != message.text:
        return []
    return [made for block in blocks for made in _came(block)]


def _paired(made: list[Block]) -> list[Block]:
    """The blocks without halves of what server tools did, which a reply has that ended on its way: the API refuses those."""
    asked = {_pair_of(block) for block in made if block["type"].endswith("tool_use")}
    paired = asked & {_pair_of(block) for block in made if not block["type"].endswith("tool_use")}
    return [block for block in made if _pair_of(block) in (None, *paired)]


def _came(block: Mapping[str, Any]) -> Iterator[Block]:
    kind = str(block.get("type"))
    rest = {name: value for name, value in block.items() if name not in ("index", "type")}
    if kind == "text":
        yield from _text_block(Part("text", str(rest.pop("text")), rest))
    elif kind in THINKING:
        yield from _thought(thought_of(Part(kind, extra=rest)))
    else:
        yield {"type": kind, **rest}


def _pair_of(block: Block) -> str | None:
    """The id by which a call of a server tool and its result belong together."""
    found = block.get("id") if block["type"].endswith("tool_use") else block.get("tool_use_id")
    return None if found is None else str(found)


def _aside(message: Message) -> list[str]:
    """What an OpenAI reply says outside of its content: a refusal, the words of a spoken one."""
    audio = message.extra.get("audio")
    spoken = audio.get("transcript") if isinstance(audio, Mapping) else None
    return [text for text in (message.extra.get("refusal"), spoken) if isinstance(text, str)]


def _thought(thought: Thought) -> Iterator[Block]:
    if not thought.signed_by("anthropic"):
        if thought.text.strip():
            yield {"type": "text", "text": REASONING + thought.text}
    elif thought.sealed:
        yield {"type": "redacted_thinking", "data": thought.sealed}
    else:
        yield {"type": "thinking", "thinking": thought.text, "signature": thought.signature}


def _call(call: ToolCall) -> Block:
    name, arguments = tool_name(call.name), arguments_of(call.arguments)
    block = {"type": "tool_use", "id": call.id, "name": name, "input": arguments}
    return {**block, **_fields(call.extra, "cache_control", "caller", "toolset_name")}


def _result(message: Message) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
    if content := _content(message.content, user=True):
        block["content"] = content
    if message.extra.get("is_error") is True:
        block["is_error"] = True
    return {**block, **_fields(message.extra, "cache_control", "toolset_name")}


def _content(content: Content, *, user: bool) -> list[Block]:
    if isinstance(content, str):
        return list(_text_block(Part("text", content)))
    return [block for part in content for block in _part(part, user=user)] if isinstance(content, tuple) else []


def _part(part: Part, *, user: bool) -> Iterator[Block]:
    if part.text is not None:
        yield from _text_block(part)
    elif part.type in THINKING:
        yield from _thought(thought_of(part))
    elif part.type in NATIVE_PARTS:
        yield {"type": part.type, **part.extra}
    elif user and (block := _medium(part)):
        yield {**block, **_fields(part.extra, "cache_control")}
    else:
        yield from _left_out(part)


def _text_block(part: Part) -> Iterator[Block]:
    if part.text and part.text.strip():
        yield {"type": "text", "text": part.text, **_fields(part.extra, "cache_control", "citations")}


def _left_out(part: Part) -> Iterator[Block]:
    yield {"type": "text", "text": LEFT_OUT.format(type=part.type)}


def _medium(part: Part) -> Block | None:
    """An image or document block, if it is something that Anthropic takes."""
    source = part.extra.get("source")
    if part.type in ("image", "document") and isinstance(source, Mapping):
        return {"type": part.type, "source": source, **_fields(part.extra, *_BESIDE_SOURCE[part.type])}
    media = media_of(part)
    if media is None or media.kind not in ("image", "file"):
        return None
    image = media.kind == "image" or (media.mime or "") in IMAGE_TYPES
    made = _image_source(media) if image else _document_source(media)
    title = {"title": media.name} if media.name and not image else {}
    return {"type": "image" if image else "document", "source": made, **title} if made else None


def _image_source(media: Media) -> Block | None:
    if media.data is not None:
        known = media.mime in IMAGE_TYPES
        return {"type": "base64", "media_type": media.mime, "data": media.data} if known else None
    return _url_source(media)


def _document_source(media: Media) -> Block | None:
    if (words := media.words) is not None and words.strip():
        return {"type": "text", "media_type": "text/plain", "data": words}
    if media.data is not None:
        known = media.mime == "application/pdf"
        return {"type": "base64", "media_type": media.mime, "data": media.data} if known else None
    return _url_source(media)


def _url_source(media: Media) -> Block | None:
    usable = media.url is not None and media.url.lower().startswith(("https://", "http://"))
    return {"type": "url", "url": media.url} if usable else None


def _fields(extra: Mapping[str, Any], *names: str) -> Block:
    """Those of `names` that `extra` has; empty ones say nothing."""
    return {name: extra[name] for name in names if extra.get(name)}


# -- in ----------------------------------------------------------------------


def messages_from(data: Any, where: str = "messages") -> list[Message]:
    """The messages of an Anthropic request: each block kept, `tool_use` as tool calls, `tool_result` as tool messages.

    Reasoning stays a part of the content, where it stood. Calls stand behind the rest of their message, results before
    the rest of theirs, which is where the API wants them.

    Raises:
        InvalidMessage: it is no such list; says the field and what would be right.
    """
    return [message for group in message_groups(data, where) for message in group]


def message_groups(data: Any, where: str = "messages") -> list[list[Message]]:
    """Return, for each message of an Anthropic request, the messages that it is in the log; see `messages_from`."""
    if not isinstance(data, Sequence) or isinstance(data, str | bytes):
        raise InvalidMessage(f"{where} must be a list of messages", param=where)
    return [_messages(item, f"{where}[{at}]") for at, item in enumerate(data)]


def system_from(data: Any, where: str = "system") -> list[Message]:
    """The `system` of an Anthropic request, text or text blocks, as a system message; none where there is none."""
    return [message_from({"role": "system", "content": data}, where)] if data else []


def _messages(data: Any, where: str) -> list[Message]:
    data = dumped(data)
    if not isinstance(data, Mapping) or data.get("role") not in ("user", "assistant", "system"):
        raise InvalidMessage(f"{where} must be an object with a role, user or assistant, and content", param=where)
    role, content = data["role"], data.get("content")
    if isinstance(content, str):
        return [message_from({"role": role, "content": content}, where)]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidMessage(f"{where}.content must be a string or a list of blocks", param=f"{where}.content")
    tools, rest = _sorted(role, content, f"{where}.content")
    if role == "assistant":
        return [_reply_from(tools, rest, where)]
    results = [_result_from(block, place) for block, place in tools]
    left = [message_from({"role": role, "content": rest}, where)] if rest or not tools else []
    return [*results, *left]


def _sorted(role: str, content: Sequence[Any], where: str) -> tuple[list[tuple[Any, str]], list[Any]]:
    """The calls, or results, of a message with their places, and all other blocks."""
    own, foreign = ("tool_use", "tool_result") if role == "assistant" else ("tool_result", "tool_use")
    tools: list[tuple[Any, str]] = []
    rest: list[Any] = []
    for at, block in enumerate(map(dumped, content)):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == foreign:
            right = "assistant" if foreign == "tool_use" else "user"
            raise InvalidMessage(f"{where}[{at}] is a {foreign}, which only {right} messages have", param=where)
        if kind == own:
            tools.append((block, f"{where}[{at}]"))
        else:
            rest.append(block)
    return tools, rest


def _reply_from(calls: Sequence[tuple[Any, str]], rest: list[Any], where: str) -> Message:
    data: dict[str, Any] = {"role": "assistant", "content": rest or None}
    if calls:
        data["tool_calls"] = [_call_from(block, place) for block, place in calls]
    return message_from(data, where)


def _call_from(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = block.get("input")
    # A model may write arguments that are no object: a client that read them in a stream has them so, and sends them back.
    if not isinstance(block.get("id"), str) or not isinstance(block.get("name"), str) or "input" not in block:
        raise InvalidMessage(f"{where} must have an id, a name and an input that is an object", param=where)
    try:
        arguments = msgspec.json.encode(given).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidMessage(f"{where}.input cannot be written as JSON: {exc}", param=f"{where}.input") from exc
    rest = {key: value for key, value in block.items() if key not in {"type", "id", "name", "input"}}
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function, **rest}


def _result_from(block: Mapping[str, Any], where: str) -> Message:
    if not isinstance(block.get("tool_use_id"), str):
        raise InvalidMessage(f"{where}.tool_use_id is missing: a result names the call it answers", param=where)
    rest = {key: value for key, value in block.items() if key not in {"type", "tool_use_id", "content"}}
    content = block.get("content")
    return message_from({"role": "tool", "content": content, "tool_call_id": block["tool_use_id"], **rest}, where)
