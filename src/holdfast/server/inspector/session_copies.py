"""Copy messages and sessions: as Markdown, and as commands for curl that continue or repeat a conversation."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.domain.media.parts import list_hashes
from holdfast.domain.session import DEFAULT_USER, Entry, Session
from holdfast.durations import format_utc
from holdfast.server.http import Call
from holdfast.server.inspector.frame import make_origin, make_path, make_url
from holdfast.server.limits import INSPECTOR_TEXT_CHARS
from holdfast.wire.openai import to_chat_message

_FENCE: Final = re.compile(r"^\s*(`{3,})", re.MULTILINE)
_CHAT: Final = "/v1/chat/completions"

# -- Markdown --------------------------------------------------------------------


def to_markdown(entry: Mapping[str, Any]) -> str:
    """Return an entry of a log as Markdown.

    Args:
        entry: the entry as the REST API returns it. Media are named, not included.
    """
    speaker = (entry.get("metadata") or {}).get("user") or entry.get("agent") or entry.get("name")
    about = [entry["role"] + (f" ({speaker})" if isinstance(speaker, str) else "")]
    if "timestamp" in entry:
        about.append(format_utc(entry["timestamp"]))
    if "retired_by" in entry:
        about.append("not part of the conversation any more")
    number = f"{entry['seq']}. " if "seq" in entry else ""
    return "\n\n".join([f"### {number}{', '.join(about)}", *_list_paragraphs(entry)]) + "\n"


def _list_paragraphs(entry: Mapping[str, Any]) -> Iterator[str]:
    content = entry.get("content")
    if entry["role"] == "tool":
        yield _fence(content if isinstance(content, str) else "\n".join(_list_texts(content)))
    elif isinstance(content, str):
        yield content
    else:
        yield from _list_texts(content)
    for call in entry.get("tool_calls") or ():
        function = call.get("function") or call.get("custom") or {}
        yield f"Calls `{function.get('name', '')}`:"
        yield _fence(str(function.get("arguments") or function.get("input") or ""), "json")


def _list_texts(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        text = part.get("text", part.get("refusal"))
        yield text if isinstance(text, str) else f"[{part.get('type', 'part')}]"


def _fence(text: str, language: str = "") -> str:
    """Return a text as a block of code. Its fence is longer than any fence in the text."""
    longest = max((len(found) for found in _FENCE.findall(text)), default=2)
    mark = "`" * (longest + 1)
    return f"{mark}{language}\n{text}\n{mark}"


# -- commands --------------------------------------------------------------------


def make_continue_command(call: Call, session: Session) -> str:
    """Return a command that sends the next message of a session to this server."""
    return _make_command(call, _CHAT, _make_body(session, [{"role": "user", "content": "Your next message"}]))


def make_replay_commands(call: Call, session: Session, entry: Entry) -> str:
    """Return commands that send a user message again in a copy of the session as it was before; empty if that is not possible.

    It is not possible for messages of other roles, for erased and retired messages, for media, and for long texts.
    """
    if entry.kind != "user" or entry.erased or entry.retired_by is not None or list_hashes([entry.message]):
        return ""
    copy_id = f"{session.id}-from-{entry.seq}"
    messages = [to_chat_message(entry.message)]
    commands = []
    if entry.turn_id > 0:
        owner = None if session.user_id == DEFAULT_USER else session.user_id
        path = make_url(make_path("/v1/sessions/{session_id}/fork", session_id=session.id), user_id=owner)
        commands.append(_make_command(call, path, {"at_turn": entry.turn_id - 1, "id": copy_id}))
    else:
        messages = [*map(to_chat_message, session.system_messages), *messages]
    commands.append(_make_command(call, _CHAT, {**_make_body(session, messages), "session_id": copy_id}))
    text = "\n\n".join(commands)
    return text if len(text) <= INSPECTOR_TEXT_CHARS else ""


def _make_body(session: Session, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {"session_id": session.id, "messages": messages}
    return body if session.user_id == DEFAULT_USER else {**body, "user_id": session.user_id}


def _make_command(call: Call, path: str, body: Mapping[str, Any]) -> str:
    headers = ["-H 'Content-Type: application/json'"]
    if call.request.app.state.access.requires_key:
        headers.insert(0, '-H "X-Holdfast-Key: $HOLDFAST_KEY"')
    # In ASCII, so that no character changes how a terminal shows the command.
    parts = [f"curl {shlex.quote(f'{make_origin(call)}{path}')}", *headers, f"-d {shlex.quote(json.dumps(body))}"]
    return " \\\n  ".join(parts)
