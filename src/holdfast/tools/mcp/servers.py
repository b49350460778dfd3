"""All MCP servers that a Holdfast knows: the tools made of theirs, their names, and results as the model reads them.

Providers accept letters, digits, `_` and `-` in names of tools, at most 64. In results text is unchanged, media become artifacts of
the session, and the rest is described in words.
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
from holdfast.tools.mcp.connection import Connection
from holdfast.tools.mcp.settings import McpSettings
from holdfast.tools.tool import Tool, ToolLimits, Toolset

if TYPE_CHECKING:
    from mcp_types import Tool as Offered

_LONGEST: Final = 64
_HASHED: Final = 8
"""Characters of a hash that tells two names apart which are the same otherwise."""


def told_name(before: str, name: str, taken: Collection[str]) -> str:
    """A name for the tool `name`: the same each time, and none of those that are `taken`.

    >>> told_name("files_", "read.file", ())
    'files_read_file'
    """
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", before + name)
    if plain and len(plain) <= _LONGEST and plain not in taken:
        return plain
    mark = hashlib.blake2b(f"{before}{name}".encode("utf-8", "replace"), digest_size=_HASHED // 2).hexdigest()
    return f"{plain[: _LONGEST - _HASHED - 1]}_{mark}"


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


_log = logging.getLogger("holdfast.mcp")
_REFUSED: Final = frozenset({"allOf", "anyOf", "enum", "not", "oneOf"})
"""What providers refuse beside the type of a tool's arguments, and with it the whole call; the server looks at these itself."""


class McpServers:
    """Servers, connected while it is open.

    Args:
        settings: of each.
        own: the tools that there are beside theirs.
        changed: given the toolset when there are others.

    Raises:
        InvalidRequest: two servers have one name.
    """

    def __init__(self, settings: Iterable[McpSettings], own: Toolset, changed: Callable[[Toolset], None]) -> None:
        self._own = own
        self._tell = changed
        self._connections: dict[str, Connection] = {}
        for one in settings:
            check_kind(one, "mcp_servers", McpSettings, "a list of McpSettings")
            if one.name in self._connections:
                raise InvalidRequest(f"two MCP servers are called {one.name!r}", param="mcp_servers")
            self._connections[one.name] = Connection(one, self._changed)

    async def open(self) -> None:
        """Connect to all of them side by side. One that cannot be reached is tried again later, and by calls.

        Raises:
            MissingExtra: the SDK is not installed.
        """
        try:
            await asyncio.gather(*(connection.open() for connection in self._connections.values()))
        except BaseException:
            await self.close()
            raise
        self._changed()

    async def close(self) -> None:
        """Let go of all of them."""
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    def limit(self, limits: ToolLimits) -> None:
        """Have all tools go as far as these from now on."""
        self._own = msgspec.structs.replace(self._own, limits=limits)
        self._changed()

    @property
    def errors(self) -> dict[str, str | None]:
        """Why a server is away, by its name; None: it is there."""
        return {name: connection.error for name, connection in self._connections.items()}

    def _changed(self) -> None:
        """Tell the tools that there are now. Those of Holdfast's own go before a server's of the same name."""
        tools, groups = dict(self._own.tools), dict(self._own.groups)
        for name, connection in self._connections.items():
            made = []
            for offered in connection.offered:
                if (tool := _tool(connection, offered, tools)) is not None:
                    tools[tool.name] = tool
                    made.append(tool.name)
            groups[name] = tuple(made)
        away = tuple(one.settings.before for one in self._connections.values() if not one.told)
        self._tell(msgspec.structs.replace(self._own, tools=tools, groups=groups, away=away))


def _tool(connection: Connection, offered: Offered, taken: Collection[str]) -> Tool | None:
    """A server's tool as one of ours; None, and a word in the log, for one that no provider would take."""
    settings = connection.settings
    name = told_name(settings.before, offered.name, taken)
    said = {key: value for key, value in offered.input_schema.items() if key not in _REFUSED}
    schema = {"type": "object", "properties": {}, **said}
    if name in taken or not _fits(schema):
        fields = {"server": settings.name, "tool": offered.name[:200]}
        _log.warning(
            "a tool of an MCP server is left out: its schema is too large or its name taken", extra={"fields": fields}
        )
        return None
    return Tool(
        name=name,
        call=_calling(connection, offered.name, name),
        description=(offered.description or "")[:MCP_DESCRIPTION_CHARS],
        parameters=schema,
        timeout=settings.timeout + settings.start_timeout,
        max_result=settings.max_result,
        reads_state=False,
        named=True,
    )


def _fits(schema: Any) -> bool:
    try:
        return len(msgspec.json.encode(schema)) <= MCP_SCHEMA_BYTES
    except UNWRITABLE:
        return False


def _calling(connection: Connection, theirs: str, ours: str) -> Callable[[ToolContext, dict[str, Any]], Awaitable[str]]:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> str:
        result = await connection.call(theirs, arguments)
        blocks = [block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content]
        text = await told(blocks, result.structured_content, context, ours)
        if result.is_error:
            raise ToolFailed(text)
        return text

    return call
