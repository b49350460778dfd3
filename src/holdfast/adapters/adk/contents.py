"""Convert contents of ADK to Chat Completions messages, and keep the event that a message comes from."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from google.adk.events.event import Event
from google.genai import types
from pydantic_core import to_jsonable_python

from holdfast.adapters.adk.state import is_unicode

Json = dict[str, Any]
EVENT: Final = "adk_event"
"""Key under which the `origin` of an event's first message contains the event, and the metadata of all its messages contains the event's
id."""

LATEST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. A message of a later event has this time; the event keeps its own."""


class ConvertedMessage(NamedTuple):
    """A message, and those parts of the content that became function calls or results in the message."""

    message: Json
    parts: Sequence[types.Part] = ()


NameCall = Callable[[types.Part, int], str]
"""Returns the id of a function call or result. Arguments: its part, and the position of the part in the content."""


def make_messages(event: Event) -> list[Json]:
    """Convert an event to messages. The first message's `origin` contains the event. An event without content becomes a note."""
    content = get_content(event)
    made = [one.message for one in convert_content(content, _make_namer(event.id), is_user=event.author == "user")]
    first, *rest = made or [{"role": "note"}]
    own = {"timestamp": min(max(0, int(event.timestamp * 1000)), LATEST), "metadata": {EVENT: event.id}}
    dumped: Json = event.model_dump(mode="json", exclude_none=True)
    if event.long_running_tool_ids:
        dumped["long_running_tool_ids"] = sorted(event.long_running_tool_ids)
    return [{**first, **own, "origin": {EVENT: dumped}}, *({**message, **own} for message in rest)]


async def prepare_event(event: Event) -> tuple[list[Json], str]:
    """Return the messages of an event and its idempotency key. Events with media are converted in a thread.

    Different events may have the same id, so the key includes a digest.
    """
    parts = event.content.parts if event.content else None
    has_media = any(part.inline_data is not None for part in parts or ())
    return await asyncio.to_thread(_prepare, event) if has_media else _prepare(event)


def _prepare(event: Event) -> tuple[list[Json], str]:
    messages = make_messages(event)
    stored = json.dumps(messages[0]["origin"], sort_keys=True)
    key = f"adk-{event.id[:64]}-{hashlib.blake2b(stored.encode(), digest_size=16).hexdigest()}"
    if "\\ud" in stored and not is_unicode(json.dumps(messages, ensure_ascii=False)):
        messages = _replace_surrogates(messages, stored)
    return messages, key


def _replace_surrogates(messages: list[Json], stored: str) -> list[Json]:
    """Replace lone surrogates by question marks, because databases refuse them. The event is stored as a text in which they are escaped."""
    made: list[Json] = json.loads(json.dumps(messages, ensure_ascii=False).encode(errors="replace"))
    return [{**made[0], "origin": {EVENT: json.dumps(json.loads(stored)[EVENT])}}, *made[1:]]


def read_event(origin: Any) -> Event | None:
    """Return the event in the `origin` of a message, or None if there is no event."""
    if not isinstance(origin, dict) or EVENT not in origin:
        return None
    event = origin[EVENT]
    return Event.model_validate(json.loads(event) if isinstance(event, str) else event)


def convert_content(content: types.Content | None, name_call: NameCall, *, is_user: bool) -> Iterator[ConvertedMessage]:
    """Convert a content to messages: first one for each result of a call, then one for everything else.

    Thoughts are left out.

    Args:
        content: the content, or None.
        name_call: returns the id of a call or result.
        is_user: True if the content comes from the user.
    """
    parts = list(content.parts or ()) if content else []
    for at, part in enumerate(parts):
        if part.function_response is not None:
            text = format_result(part.function_response.response)
            yield ConvertedMessage({"role": "tool", "tool_call_id": name_call(part, at), "content": text}, [part])
    said = [one for part in parts if not part.thought for one in _iter_content_parts(part)]
    called = [(part, name_call(part, at)) for at, part in enumerate(parts) if part.function_call is not None]
    if said or called:
        message: Json = {"role": "user" if is_user and not called else "assistant", "content": _join_texts(said)}
        if called:
            message["tool_calls"] = [_make_call(part, name) for part, name in called]
        yield ConvertedMessage(message, [part for part, _ in called])


def format_result(response: Any) -> str:
    """Format the result of a function as text: a single text without its key, anything else as JSON."""
    if isinstance(response, dict) and len(response) == 1:
        value = next(iter(response.values()))
        if isinstance(value, str) and next(iter(response)) in ("result", "output"):
            return value
    return _to_json(response)


def get_content(event: Event) -> types.Content | None:
    """Return the content of an event, or the transcript of what was said, as ADK does for prompts. None: there is nothing of both."""
    if event.content is not None:
        return event.content if event.content.parts else None
    heard, spoken = event.input_transcription, event.output_transcription
    if heard is not None and heard.text:
        return types.Content(role="user", parts=[types.Part(text=heard.text)])
    if spoken is not None and spoken.text:
        return types.Content(role="model", parts=[types.Part(text=spoken.text)])
    return None


def get_texts(content: types.Content) -> list[str]:
    """Return the texts of a content, without thoughts."""
    return [part.text for part in content.parts or () if part.text and not part.thought]


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=partial(to_jsonable_python, serialize_unknown=True))


def _make_namer(prefix: str) -> NameCall:
    def name_call(part: types.Part, at: int) -> str:
        named = part.function_call or part.function_response
        return (named.id if named else None) or f"{prefix}-{at}"

    return name_call


def _make_call(part: types.Part, name: str) -> Json:
    call = part.function_call or types.FunctionCall()
    arguments = _to_json(call.args or {})
    return {"id": name, "type": "function", "function": {"name": call.name or "unknown", "arguments": arguments}}


def _join_texts(said: list[Json]) -> list[Json] | str | None:
    if any(one["type"] != "text" for one in said):
        return said
    return "\n".join(one["text"] for one in said) or None


def _iter_content_parts(part: types.Part) -> Iterator[Json]:
    texts = [
        part.text,
        part.executable_code.code if part.executable_code else None,
        part.code_execution_result.output if part.code_execution_result else None,
        f"[file {part.file_data.file_uri}]" if part.file_data and part.file_data.file_uri else None,
    ]
    for text in texts:
        if text:
            yield {"type": "text", "text": text}
    blob = part.inline_data
    if blob is not None and blob.data:
        kind = blob.mime_type or "application/octet-stream"
        url = f"data:{kind};base64,{base64.b64encode(blob.data).decode()}"
        if kind.startswith("image/"):
            yield {"type": "image_url", "image_url": {"url": url}}
        else:
            yield {"type": "file", "file": {"filename": blob.display_name or "file", "file_data": url}}
