"""Define the built-in tools for artifacts: save, load and list them.

The tool that loads an artifact also returns tool results that the prompt no longer contains in full.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.artifacts.content import UNKNOWN, decode_text, detect_type, get_charset, is_text
from holdfast.domain.artifact import LOADER, Artifact, parse_result_name
from holdfast.domain.messages import Part
from holdfast.errors import ArtifactNotFound, InvalidRequest
from holdfast.limits import LISTED_ARTIFACTS, LOADED_IMAGE_BYTES
from holdfast.secrets.guard import Guard
from holdfast.tools.context import ToolContext
from holdfast.tools.functions import tool_from
from holdfast.tools.tool import Tool, Toolset

SAVE: Final = "save_artifact"
LIST: Final = "list_artifacts"
TOOLS: Final = (SAVE, LOADER, LIST)
"""Names of the artifact tools."""
IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of the images that can be shown to models."""
AUTHOR: Final = "assistant"
"""`author` of artifacts that are saved in a turn without an agent."""
_NOTES: Final = 512
"""Bytes of each result that are reserved for a note after the text, such as its byte range."""
_SAVES: Final = """\
Save a file of this conversation under a name. Saving under the same name makes a new version; earlier ones stay."""
_LOADS: Final = """\
Read a file of this conversation: a text, an image, or a description of anything else. Also reads the whole tool result that was \
cleared or cut, by the name in the marker in its place."""
_LISTS: Final = """\
List the files of this conversation and those that all of the user's conversations share: name, version, type and size."""
_NAMED: Final = 10
"""Maximum number of artifact names in an error message."""
_PLAIN: Final = frozenset({"utf-8", "ascii"})
"""Charsets of texts that can be read in parts."""

_Name = Annotated[
    str, Meta(description="file name, like report.md; the prefix user: shares it with all of the user's sessions")
]
_Version = Annotated[int, Meta(ge=0, description="version; default: the newest")]
_Offset = Annotated[int, Meta(ge=0, description="first byte, to continue a long text")]
_Limit = Annotated[int, Meta(ge=16, description="maximum bytes of text")]


class _Page(NamedTuple):
    """A part of an artifact's content. It begins at the byte offset `start` and ends before the byte offset `stop`."""

    data: bytes
    start: int
    stop: int


class ArtifactTools:
    """The functions of the artifact tools.

    Args:
        guard: masks secrets in saved texts; None: nothing is masked.
        most: maximum bytes of a result.
    """

    def __init__(self, guard: Guard | None, most: int) -> None:
        self._guard = guard
        self._most = max(1, most - _NOTES)

    # -- saving ------------------------------------------------------------

    async def save(
        self,
        context: ToolContext,
        name: _Name,
        content: Annotated[str, Meta(description="the text, or the content in base64")],
        *,
        media_type: Annotated[str, Meta(description="like text/csv; default: by file extension")] = "",
        encoding: Literal["text", "base64"] = "text",
        expect: Annotated[int, Meta(ge=-1, description="required newest version, -1: none")] | None = None,
    ) -> dict[str, Any]:
        """Save an artifact, and return a description of the new version for the model."""
        if parse_result_name(name) is not None:
            raise InvalidRequest(f"{name!r} is the name of a tool result: choose another name", param="name")
        data = _decode(content) if encoding == "base64" else content.encode(get_charset(media_type), "replace")
        kind = detect_type(name, data, media_type or None)
        if kind == UNKNOWN and encoding == "text" and not media_type:
            kind = "text/plain"
        masked = mask_secrets(self._guard, data, kind, context)
        saved = await context.artifacts.save(
            name,
            masked,
            mime_type=kind,
            author=context.agent or AUTHOR,
            metadata={"call_id": context.call.id},
            expect=expect,
        )
        result = {**_describe(saved), "name": saved.name}
        return result if masked == data else {**result, "note": "secrets were removed before it was saved"}

    # -- loading -----------------------------------------------------------

    async def load(
        self,
        context: ToolContext,
        name: Annotated[str, Meta(description="file name, or name of a cleared result, like result-12")],
        version: _Version | None = None,
        offset: _Offset = 0,
        limit: _Limit | None = None,
    ) -> str | dict[str, Any] | tuple[Part, ...]:
        """Return the content of an artifact, or the full result of an earlier tool call, for the model."""
        room = min(limit or self._most, self._most)
        seq = parse_result_name(name)
        if seq is not None and version is None and (text := await _load_result(context, seq)) is not None:
            data = text.encode("utf-8", "replace")
            _check_offset(name, offset, len(data))
            page = _make_page(data[offset : offset + room], offset)
            return _format_text(name, page.data.decode(), page, len(data))
        artifact = await _get_artifact(context, name, version)
        if artifact.mime_type in IMAGES:
            return await _load_image(context, artifact)
        _check_offset(name, offset, artifact.size)
        if is_text(artifact.mime_type) and get_charset(artifact.mime_type) not in _PLAIN:
            return await self._load_other_charset(context, artifact)
        loaded = await context.artifacts.load(name, artifact.version, start=offset, stop=offset + room)
        page = _make_page(loaded.data, offset)
        shown = decode_text(page.data, artifact.mime_type)
        if shown is None:
            return _describe(artifact) | {"note": "it is not text and cannot be shown"}
        return _format_text(f"{artifact.name}, version {artifact.version}", shown, page, artifact.size)

    async def _load_other_charset(self, context: ToolContext, artifact: Artifact) -> str | dict[str, Any]:
        """Return the text of an artifact that is neither UTF-8 nor ASCII, or only its description if it is too large.

        Such a text cannot be read in parts, because it is not known where its characters start.
        """
        if artifact.size > self._most:
            note = f"texts in this charset are shown up to {self._most:,} bytes: save it in UTF-8"
            return _describe(artifact) | {"note": note}
        loaded = await context.artifacts.load(artifact.name, artifact.version)
        return decode_text(loaded.data, artifact.mime_type) or f"[{artifact.name} is empty]"

    # -- listing -----------------------------------------------------------

    async def list(
        self,
        context: ToolContext,
        prefix: Annotated[str, Meta(description="only names with this prefix; user: for the shared ones")] = "",
    ) -> dict[str, Any]:
        """Return descriptions of the artifacts, as many as fit into a result, and the number of the others."""
        found = [one for one in await context.artifacts.list() if one.name.startswith(prefix)]
        result: dict[str, Any] = {"artifacts": [_describe(one) for one in found[:LISTED_ARTIFACTS]]}
        while len(msgspec.json.encode(result)) > self._most and result["artifacts"]:
            result["artifacts"] = result["artifacts"][: len(result["artifacts"]) // 2]
        left = len(found) - len(result["artifacts"])
        return result | ({"more": left, "note": "name a prefix to see fewer"} if left else {})


def add_artifact_tools(known: Toolset, guard: Guard | None, *, everybody: bool) -> Toolset:
    """Return a toolset with the artifact tools added.

    If `everybody` is False, a tool of the program with the same name takes precedence.

    Args:
        known: the other tools.
        guard: masks secrets in saved texts; None: nothing is masked.
        everybody: True: all agents without a list of tools get the artifact tools; False: only agents that name them.

    Raises:
        InvalidRequest: `everybody` is True, and another tool has the name of an artifact tool.
    """
    made = make_artifact_tools(guard, known.limits.result, everybody=everybody)
    if not everybody:
        made = [tool for tool in made if tool.name not in known.tools]
    for tool in made:
        if tool.name in known.tools:
            message = f"two tools are named {tool.name!r}, one of them built in (artifact_tools): rename yours"
            raise InvalidRequest(message, param="tools")
    return msgspec.structs.replace(known, tools={**known.tools, **{tool.name: tool for tool in made}})


def make_artifact_tools(guard: Guard | None, most: int, *, everybody: bool) -> list[Tool]:
    """Create the artifact tools.

    Args:
        guard: masks secrets in saved texts; None: nothing is masked.
        most: maximum bytes of a result, as `ToolLimits.result`.
        everybody: True: all agents without a list of tools get the artifact tools; False: only agents that name them.
    """
    tools = ArtifactTools(guard, most)
    made = (
        tool_from(tools.save, name=SAVE, description=_SAVES),
        tool_from(tools.load, name=LOADER, description=_LOADS),
        tool_from(tools.list, name=LIST, description=_LISTS),
    )
    return [msgspec.structs.replace(tool, named=not everybody, reads_state=False) for tool in made]


def mask_secrets(guard: Guard | None, data: bytes, kind: str, context: ToolContext) -> bytes:
    """Return a content that a model saves, with secrets in its text masked."""
    text = None if guard is None else decode_text(data, kind)
    if guard is None or text is None:
        return data
    masked = guard.mask_model_text(text, "artifact", context.session_id)
    return data if masked == text else masked.encode(get_charset(kind), "replace")


# -- content to load -----------------------------------------------------------


async def _load_result(context: ToolContext, seq: int) -> str | None:
    """Return the text of the tool result in the entry `seq`.

    Return None in three cases: the entry is not live or not a tool result, the result was erased, or the caller may not see it.
    """
    found = await context.call.entries(seq, seq + 1)
    entry = next((one for one in found if one.seq == seq), None)
    if entry is None or entry.message.role != "tool" or entry.erased or not context.call.sees(entry):
        return None
    media = len(entry.message.media)
    more = f"\n[and {media} that are not text: images, recordings or files]" if media else ""
    return entry.message.text + more


async def _get_artifact(context: ToolContext, name: str, version: int | None) -> Artifact:
    """Return an artifact without its content. If it does not exist, raise `InvalidRequest` with names that exist."""
    try:
        return await context.artifacts.get(name, version)
    except ArtifactNotFound as exc:
        if parse_result_name(name) is not None:
            raise InvalidRequest(
                f"message {parse_result_name(name)} of this session is not a tool result", param="name"
            ) from exc
        names = [one.name for one in await context.artifacts.list()]
        if name in names:
            raise InvalidRequest(f"artifact {name!r} has no version {version}: leave it out for the newest") from exc
        raise InvalidRequest(f"there is no artifact {name!r}; {_suggest_names(name, names)}", param="name") from exc


def _suggest_names(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=3) or names[:_NAMED]
    if not near:
        return "this conversation has none yet"
    more = "" if len(near) >= len(names) else f" and {len(names) - len(near)} more"
    return f"available: {', '.join(near)}{more}"


async def _load_image(context: ToolContext, artifact: Artifact) -> dict[str, Any] | tuple[Part, ...]:
    """Return an image and its description as message parts, or only the description if the image is too large."""
    if artifact.size > LOADED_IMAGE_BYTES:
        return _describe(artifact) | {"note": f"images are shown up to {LOADED_IMAGE_BYTES:,} bytes"}
    loaded = await context.artifacts.load(artifact.name, artifact.version)
    url = f"data:{artifact.mime_type};base64,{base64.b64encode(loaded.data).decode()}"
    description = msgspec.json.encode(_describe(artifact)).decode()
    return Part("text", description), Part("image_url", extra={"image_url": {"url": url}})


def _describe(artifact: Artifact) -> dict[str, Any]:
    """Return name, version, type and size of an artifact for the model."""
    return {
        "name": artifact.name,
        "version": artifact.version,
        "media_type": artifact.mime_type,
        "bytes": artifact.size,
    }


# -- texts in parts --------------------------------------------------------------


def _decode(content: str) -> bytes:
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(
            f"content is not valid base64: {exc}; use encoding text to save a text", param="content"
        ) from exc


def _check_offset(name: str, offset: int, size: int) -> None:
    if offset > size or (offset == size and size):
        raise InvalidRequest(f"offset {offset:,} is past the end of {name}, which has {size:,} bytes", param="offset")


def _make_page(data: bytes, offset: int) -> _Page:
    """Make a page of the bytes that were read at `offset`. Incomplete UTF-8 characters at both ends are left out."""
    begin, end = 0, len(data)
    while offset and begin < min(3, end) and data[begin] & 0xC0 == 0x80:  # a later byte of a character
        begin += 1
    try:
        data[begin:].decode()
    except UnicodeDecodeError as exc:
        if exc.reason == "unexpected end of data":
            end = begin + exc.start
    return _Page(data[begin:end], offset + begin, offset + end)


def _format_text(name: str, text: str, page: _Page, size: int) -> str:
    """Return the text of a page. If the page is only a part of the content, the page's byte range follows the text."""
    if not size:
        return f"[{name} is empty]"
    if (page.start, page.stop) == (0, size):
        return text
    further = f"; continue with offset={page.stop}" if page.stop < size else ": its end"
    return f"{text}\n[bytes {page.start} to {page.stop} of {size} of {name}{further}]"
