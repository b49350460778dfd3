"""Connect to all MCP servers of a Holdfast, convert their tools for the model, and format the results.

Providers accept only tool names of at most 64 letters, digits, `_` and `-`, so tools with other names are renamed. In results, text is
unchanged, media become artifacts of the session, and everything else is described in words.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from mimetypes import guess_extension
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.messages import UNWRITABLE
from holdfast.errors import HoldfastError, InvalidRequest, ToolFailed
from holdfast.limits import MCP_DESCRIPTION_CHARS, MCP_MEDIA, MCP_SCHEMA_BYTES
from holdfast.stores.checks import check_kind
from holdfast.tools.context import ToolContext
from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.mcp.settings import START_SECONDS, McpSettings
from holdfast.tools.tool import Tool, ToolLimits, Toolset

if TYPE_CHECKING:
    from mcp_types import Tool as Offered

_NAME_CHARS: Final = 64
_HASH_CHARS: Final = 8
"""Characters of the hash that distinguishes tool names that would otherwise be the same."""


def make_tool_name(before: str, name: str, taken: Collection[str]) -> str:
    """Return the name that the model uses for a server's tool.

    The name is the prefix `before` and then `name`, the tool's name on the server. Characters that providers reject are replaced by `_`. If
    this name is too long, empty, or in `taken`, it is cut and gets a hash at its end. The same arguments always give the same name.

    >>> make_tool_name("files_", "read.file", ())
    'files_read_file'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", before + name)
    if plain and len(plain) <= _NAME_CHARS and plain not in taken:
        return plain
    mark = hashlib.blake2b(f"{before}{name}".encode("utf-8", "replace"), digest_size=_HASH_CHARS // 2).hexdigest()
    return f"{plain[: _NAME_CHARS - _HASH_CHARS - 1]}_{mark}"


AUTHOR: Final = "mcp"
"""`author` of artifacts that are created from media in results."""
_DEFAULT_TYPE: Final = "application/octet-stream"


async def format_result(blocks: Sequence[Mapping[str, Any]], structured: Any, context: ToolContext, tool: str) -> str:
    """Format the result of a tool as text for the model.

    Args:
        blocks: blocks of the result's content, in the protocol's JSON format.
        structured: structured content of the result, used only if no block has text.
        context: context of the call. Media are saved as artifacts of the context's session.
        tool: name by which the model called the tool.
    """
    texts: list[str] = []
    saved = 0
    for block in blocks:
        media = _get_media(block)
        if media is None:
            texts.append(_format_block(block))
            continue
        saved += 1
        texts.append(await _save_media(*media, context, f"{tool}-{context.call.unit}", saved))
    if structured is not None and not any(text.strip() for text in texts):
        texts.append(msgspec.json.encode(structured).decode())
    return "\n".join(filter(None, texts)) or "[the tool returned nothing]"


def _format_block(block: Mapping[str, Any]) -> str:
    kind, resource = block.get("type"), block.get("resource")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource" and isinstance(resource, Mapping):
        return str(resource.get("text", ""))
    if kind == "resource_link":
        about = ": " + str(block["description"]) if block.get("description") else ""
        return f"[resource {block.get('name', '')!s} at {block.get('uri', '')!s}{about}]"
    return f"[content of type {kind!s}, which cannot be shown]"


def _get_media(block: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return media type and base64 data of a block, or None if the block contains no media."""
    kind, resource = block.get("type"), block.get("resource")
    if kind in ("image", "audio"):
        return str(block.get("mimeType") or _DEFAULT_TYPE), str(block.get("data", ""))
    if kind == "resource" and isinstance(resource, Mapping) and "blob" in resource:
        return str(resource.get("mimeType") or _DEFAULT_TYPE), str(resource["blob"])
    return None


async def _save_media(media_type: str, data: str, context: ToolContext, name: str, number: int) -> str:
    """Save media as an artifact. Return a line for the model with the artifact's name, or with the reason why it was not saved."""
    if number > MCP_MEDIA:
        return f"[{media_type}: not saved, at most {MCP_MEDIA} media of a result are saved]"
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[{media_type}: not saved, its data is not valid base64]"
    named = f"{name}-{number}{guess_extension(media_type.partition(';')[0].strip()) or '.bin'}"
    try:
        artifact = await context.artifacts.save(named, content, mime_type=media_type, author=AUTHOR)
    except HoldfastError as exc:
        return f"[{media_type}, {len(content):,} bytes: not saved: {exc}]"
    where = f"artifact {artifact.name!r}, version {artifact.version}"  # parallel calls share a name
    return f"[{artifact.mime_type}, {artifact.size:,} bytes, saved as {where}]"


_log = logging.getLogger("holdfast.mcp")
_REJECTED_KEYWORDS: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""Keywords that providers reject at the top level of a tool's schema, together with the whole request. They are removed from the schema that
the model sees. The server still checks arguments against its own schema."""


class McpServers:
    """The MCP servers of a Holdfast, connected from `open` to `close`.

    Args:
        settings: settings of each server.
        own: the tools that do not come from MCP servers.
        changed: called with the toolset of all tools each time it changes.

    Raises:
        InvalidRequest: two servers have the same name.
    """

    def __init__(self, settings: Iterable[McpSettings], own: Toolset, changed: Callable[[Toolset], None]) -> None:
        self._own = own
        self._notify = changed
        self._connections: dict[str, McpConnection] = {}
        for one in settings:
            check_kind(one, "mcp_servers", McpSettings, "a list of McpSettings")
            if one.name in self._connections:
                raise InvalidRequest(
                    f"two MCP servers have the name {one.name!r}; rename one of them", param="mcp_servers"
                )
            self._connections[one.name] = McpConnection(one, self._publish_tools)

    async def open(self) -> None:
        """Connect to all servers concurrently. A server that cannot be reached is tried again later, and by each call of its tools.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        try:
            await asyncio.gather(*(connection.open() for connection in self._connections.values()))
        except BaseException:
            await self.close()
            raise
        self._publish_tools()

    async def close(self) -> None:
        """Disconnect from all servers."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def limit(self, limits: ToolLimits) -> None:
        """Replace the limits of all tools from now on."""
        self._own = msgspec.structs.replace(self._own, limits=limits)
        self._publish_tools()

    @property
    def errors(self) -> dict[str, str | None]:
        """Reason why each server is unavailable, by name of the server; None: it is available."""
        return {name: connection.error for name, connection in self._connections.items()}

    def _publish_tools(self) -> None:
        """Report the current toolset. If a server's tool has the name of another tool, the server's tool gets a new name."""
        tools, groups = dict(self._own.tools), dict(self._own.groups)
        for name, connection in self._connections.items():
            made = []
            for offered in connection.offered:
                if (tool := _convert_tool(connection, offered, tools)) is not None:
                    tools[tool.name] = tool
                    made.append(tool.name)
            groups[name] = tuple(made)
        unlisted = tuple(one.settings.tool_prefix for one in self._connections.values() if not one.is_listed)
        self._notify(msgspec.structs.replace(self._own, tools=tools, groups=groups, unlisted=unlisted))


def _convert_tool(connection: McpConnection, offered: Offered, taken: Collection[str]) -> Tool | None:
    """Convert a tool of a server. If its schema is too large or its new name is taken, log a warning and return None."""
    settings = connection.settings
    name = make_tool_name(settings.tool_prefix, offered.name, taken)
    accepted = {key: value for key, value in offered.input_schema.items() if key not in _REJECTED_KEYWORDS}
    schema = {"type": "object", "properties": {}, **accepted}
    if name in taken or not _is_within_limit(schema):
        fields = {"server": settings.name, "tool": offered.name[:200]}
        _log.warning(
            "a tool of an MCP server is left out: its schema is too large or its name is taken",
            extra={"fields": fields},
        )
        return None
    return Tool(
        name=name,
        call=_make_call(connection, offered.name, name),
        description=(offered.description or "")[:MCP_DESCRIPTION_CHARS],
        parameters=schema,
        timeout=settings.timeout + START_SECONDS,
        reads_state=False,
        named=True,
    )


def _is_within_limit(schema: Any) -> bool:
    try:
        return len(msgspec.json.encode(schema)) <= MCP_SCHEMA_BYTES
    except UNWRITABLE:
        return False


def _make_call(
    connection: McpConnection, theirs: str, ours: str
) -> Callable[[ToolContext, dict[str, Any]], Awaitable[str]]:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        result = await connection.call(theirs, arguments)
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        text = await format_result(blocks, result.structured_content, context, ours)
        if result.is_error:
            raise ToolFailed(text)
        return text

    return call
