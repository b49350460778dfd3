"""What a server answers a call with, as the model reads it: text as it is, media as artifacts of the session, the rest in words."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from mimetypes import guess_extension
from typing import Any, Final

import msgspec

from holdfast.errors import HoldfastError
from holdfast.limits import MCP_MEDIA
from holdfast.tools.context import ToolContext

AUTHOR: Final = "mcp"
"""`author` of artifacts that are made of media in results."""
_TYPE: Final = "application/octet-stream"


async def told(blocks: Sequence[Mapping[str, Any]], structured: Any, context: ToolContext, tool: str) -> str:
    """A result in words.

    Args:
        blocks: its content, as the protocol has it in JSON.
        structured: its structured content; told where no block says it already.
        context: of the call: media are kept as artifacts of its session.
        tool: what the model called.
    """
    said: list[str] = []
    media = 0
    for block in blocks:
        kept = _media(block)
        if kept is None:
            said.append(_words(block))
            continue
        media += 1
        said.append(await _kept(*kept, context, f"{tool}-{context.call.unit}", media))
    if structured is not None and not any(text.strip() for text in said):
        said.append(msgspec.json.encode(structured).decode())
    return "\n".join(filter(None, said)) or "[the tool returned nothing]"


def _words(block: Mapping[str, Any]) -> str:
    kind, resource = block.get("type"), block.get("resource")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource" and isinstance(resource, Mapping):
        return str(resource.get("text", ""))
    if kind == "resource_link":
        about = ": " + str(block["description"]) if block.get("description") else ""
        return f"[resource {block.get('name', '')!s} at {block.get('uri', '')!s}{about}]"
    return f"[content of type {kind!s}, which cannot be shown]"


def _media(block: Mapping[str, Any]) -> tuple[str, str] | None:
    """Media type and base64 of a block that is no text; None: it is text."""
    kind, resource = block.get("type"), block.get("resource")
    if kind in ("image", "audio"):
        return str(block.get("mimeType") or _TYPE), str(block.get("data", ""))
    if kind == "resource" and isinstance(resource, Mapping) and "blob" in resource:
        return str(resource.get("mimeType") or _TYPE), str(resource["blob"])
    return None


async def _kept(media_type: str, data: str, context: ToolContext, name: str, number: int) -> str:
    """Keep media as an artifact; a line that tells its name, or why there is none."""
    if number > MCP_MEDIA:
        return f"[{media_type}: not kept, a result may have {MCP_MEDIA} media]"
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{media_type}: not kept, its data are no base64]"
    named = f"{name}-{number}{guess_extension(media_type.partition(';')[0].strip()) or '.bin'}"
    try:
        artifact = await context.artifacts.save(named, content, mime_type=media_type, author=AUTHOR)
    except HoldfastError as exc:
        return f"[{media_type}, {len(content):,} bytes: not kept: {exc}]"
    where = f"artifact {artifact.name!r}, version {artifact.version}"  # calls side by side share a name
    return f"[{artifact.mime_type}, {artifact.size:,} bytes, kept as {where}]"
