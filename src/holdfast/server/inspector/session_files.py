"""Contents that the pages of a session load or download: media, messages as JSON, and exports.

Stored contents are not trusted. Only images, audio and video of known types are shown by the browser; it saves everything else. The headers
let no content run scripts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.accounting import run_cpu
from holdfast.domain.medium import Medium, find_medium
from holdfast.domain.messages import Message
from holdfast.domain.objects import json_schema
from holdfast.domain.session import Session
from holdfast.limits import PAGE
from holdfast.media.outgoing import restore_entries
from holdfast.server.artifacts import SAFETY_HEADERS, format_disposition
from holdfast.server.http import Call
from holdfast.server.inspector.actions import call_route, run_route
from holdfast.server.inspector.frame import check_content, format_json
from holdfast.server.inspector.session import MESSAGE, SESSION, SessionPageQuery, load_entry
from holdfast.server.inspector.session_copies import to_markdown
from holdfast.server.permissions import Refused
from holdfast.server.replies import Reply
from holdfast.server.routes import TEXT, Routes
from holdfast.wire.openai import to_chat_message, to_entry_json

routes = Routes("inspector")
_ANY: Final = {"*/*": {"schema": {"type": "string", "format": "binary"}}}
SAFE_TYPES: Final = frozenset(
    {
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "image/avif",
        "image/bmp",
        "audio/mpeg",
        "audio/wav",
        "audio/ogg",
        "audio/flac",
        "audio/mp4",
        "audio/aac",
        "audio/webm",
        "video/mp4",
        "video/webm",
        "video/ogg",
    }
)
"""Types of media that a browser may show. SVG is not one of them, because it can contain scripts."""
_ALIASES: Final = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/m4a": "audio/mp4",
    "video/mov": "video/mp4",
}
_HEADERS: Final = {
    **SAFETY_HEADERS,
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-store",
}


class MediumQuery(SessionPageQuery, kw_only=True):
    """Query parameters of a medium."""

    download: bool = False
    """True: let the browser save it."""


@routes.add("GET", f"{SESSION}/media/{{seq}}/{{part}}", "read", answer=_ANY)
async def get_medium(call: Call, query: MediumQuery, session: Session) -> Reply:
    """Return the medium in one part of a message."""
    check_content(call)
    entry = await load_entry(call, session)
    part = call.get_path_number("part", "part must be the number of a part")
    found = _find_medium(entry.message, part)
    if found is None or found.url is not None:
        raise Refused(404, "not_found", f"part {part} of message {entry.seq} has no stored medium")
    await call.admit(2 * (found.length or 0))  # as text and decoded
    [restored] = await restore_entries(call.hf.store, session.ref, [entry])
    medium = _find_medium(restored.message, part)
    content = None if medium is None else await run_cpu(medium.decode)
    if medium is None or content is None:
        raise Refused(404, "not_found", f"the medium in part {part} of message {entry.seq} cannot be read")
    return Reply(content, headers=_make_headers(found.mime, found.name or f"message-{entry.seq}", query.download))


def _find_medium(message: Message, index: int) -> Medium | None:
    parts = message.content if isinstance(message.content, tuple) else ()
    if index >= len(parts):
        return None
    part = parts[index]
    return find_medium(part.type, part.extra, part.held)


def _make_headers(mime: str | None, name: str, download: bool) -> dict[str, str]:  # noqa: FBT001 - a private function
    """Return the headers of stored content. Content whose type is not known to be safe has no type, and is saved."""
    known = (mime or "").partition(";")[0].strip().lower()
    known = _ALIASES.get(known, known)
    is_safe = known in SAFE_TYPES
    return {
        **_HEADERS,
        "content-type": known if is_safe else "application/octet-stream",
        "content-disposition": "inline" if is_safe and not download else format_disposition(name[:200]),
    }


@routes.add("GET", f"{MESSAGE}/raw", "read", answer={"application/json": TEXT})
async def get_message(call: Call, query: SessionPageQuery, session: Session) -> Reply:
    """Return a message as JSON, as it is stored."""
    check_content(call)
    entry = await load_entry(call, session)
    data = await run_cpu(lambda: format_json(to_entry_json(entry)).encode())
    headers = {**_HEADERS, "content-type": "application/json; charset=utf-8"}
    return Reply(data, headers=headers)


# -- exports ---------------------------------------------------------------------

Format = Annotated[
    Literal["json", "jsonl", "markdown"],
    json_schema(description="`json`: for an import; `jsonl`: one message a line; `markdown`: to read"),
]
_FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "json": ("application/json", "json"),
    "jsonl": ("application/x-ndjson", "jsonl"),
    "markdown": ("text/markdown; charset=utf-8", "md"),
}
"""Type and file suffix of each format."""
_READ: Final = min(PAGE, 100)
"""Messages that are read at a time."""


class ExportPageQuery(SessionPageQuery, kw_only=True):
    """Query parameters of an export."""

    format: Format = "json"


@routes.add("GET", f"{SESSION}/export", "read", answer=_ANY)
async def export_session(call: Call, query: ExportPageQuery, session: Session) -> Reply:
    """Return a session as a file: a JSON export, its messages as JSON lines, or its transcript as Markdown."""
    check_content(call)
    kind, suffix = _FORMATS[query.format]
    headers = {**_make_headers(None, f"{session.id}.{suffix}", download=True), "content-type": kind}
    if query.format == "json":
        whole = {"user_id": session.user_id, "retired": True}
        data = await run_route(call, "GET /v1/sessions/{session_id}", {"session_id": session.id}, whole)
        return Reply(data, headers=headers)
    return Reply(_write_messages(call, session, suffix), headers=headers)


async def _write_messages(call: Call, session: Session, suffix: str) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a session, as many at a time as are read at once."""
    if suffix == "md":
        yield f"# {session.id}\n".encode(errors="replace")
        for message in session.system_messages:
            yield f"\n{to_markdown(to_chat_message(message))}".encode(errors="replace")
    query: dict[str, Any] = {"user_id": session.user_id, "limit": _READ}
    has_more = True
    while has_more:
        page = await call_route(call, "GET /v1/sessions/{session_id}/messages", {"session_id": session.id}, query)
        yield await run_cpu(_write_page, page["data"], suffix)
        has_more, query["after"] = page["has_more"], page["last_id"]


def _write_page(messages: list[dict[str, Any]], suffix: str) -> bytes:
    if suffix == "md":
        return b"".join(f"\n{to_markdown(one)}".encode(errors="replace") for one in messages)
    return b"".join(msgspec.json.encode(one) + b"\n" for one in messages)
