"""Define the text editor: Anthropic's tool over the text artifacts of a session, for every model.

Each change saves a new version of the artifact. Its metadata names the version that was edited, so that `undo_edit` can go back step by step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from holdfast.artifacts.content import UNKNOWN, decode_text, detect_type, get_charset
from holdfast.domain.artifact import Artifact, parse_result_name
from holdfast.errors import ArtifactNotFound, HoldfastError, InvalidRequest, StaleArtifact, TooLarge
from holdfast.limits import EDITED_ARTIFACT_BYTES
from holdfast.memory.file_edits import (
    EDITOR_COMMANDS,
    MISSING,
    insert_lines,
    list_directory,
    parse_command,
    replace_once,
    show_file,
)
from holdfast.models.codecs.messages.tools import (
    EDITOR_NATIVE,
    EDITOR_TYPES,
    UNDOING_NAME,
    UNDOING_TYPES,
    make_editor_function,
)
from holdfast.secrets.guard import Guard
from holdfast.tools.artifacts import AUTHOR, mask_secrets
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import Tool, ToolRefusal, Toolset

TEXT_EDITOR: Final = "text_editor"
"""Name of the tool."""
_BASE: Final = "edited"
"""Metadata of a version that the editor saved: the number of the version that it edited, -1 if it was the first one."""
_TRIES: Final = 8
"""Maximum number of attempts at an edit while other writers save the same artifact."""
_CUT: Final = "\n[… cut: use view_range to see the rest]"
"""End of a view that is longer than the `max_characters` of the tool's declaration."""
_ROOTS: Final = frozenset({"", ".", "/"})
"""Paths of the directory that contains all artifacts."""


class TextEditor:
    """The commands of the text editor.

    Args:
        guard: masks secrets in saved texts; None: nothing is masked.
    """

    def __init__(self, guard: Guard | None) -> None:
        self._guard = guard

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> str:
        """Run a command and return the answer for the model.

        Raises:
            ToolRefusal: the command is not valid, or is refused.
        """
        try:
            kind = context.call.declared.get("type")
            allowed = EDITOR_COMMANDS if kind is None or kind in UNDOING_TYPES else EDITOR_COMMANDS[:-1]
            name, given = parse_command(arguments, allowed)
            answer: str = await getattr(self, f"_{name}")(context, **given)
        except HoldfastError as exc:
            raise ToolRefusal(exc.public_message) from exc
        return answer

    async def _view(self, context: ToolContext, path: str, view_range: list[int] | None = None) -> str:
        if path in _ROOTS:
            return list_directory(".", {one.name: one.size for one in await context.artifacts.list()})
        artifact = await self._get(context, path)
        shown = show_file(path, await self._load(context, artifact, path), view_range)
        most = context.call.declared.get("max_characters")
        return shown if type(most) is not int or len(shown) <= most else shown[:most] + _CUT

    async def _create(self, context: ToolContext, path: str, file_text: str) -> str:
        """Save a text. If there is such a file, the text becomes its new version."""
        name = _parse_path(path)

        async def save() -> None:
            try:
                newest: Artifact | None = await context.artifacts.get(name)
            except ArtifactNotFound:
                newest = None
            await self._save(context, name, file_text, newest)

        await _repeat_until_saved(path, save)
        return f"File created successfully at: {path}"

    async def _str_replace(self, context: ToolContext, path: str, old_str: str, new_str: str) -> str:
        snippet = ""

        def edit(content: str) -> str:
            nonlocal snippet
            changed, snippet = replace_once(path, content, old_str, new_str)
            return changed

        await self._edit(context, path, edit)
        return (
            f"The file {path} has been edited. Here is the snippet showing the change (with line numbers):\n{snippet}"
        )

    async def _insert(self, context: ToolContext, path: str, insert_line: int, insert_text: str) -> str:
        await self._edit(context, path, lambda content: insert_lines(content, insert_line, insert_text))
        return f"The file {path} has been edited."

    async def _undo_edit(self, context: ToolContext, path: str) -> str:
        """Save the content before the last edit again. The next undo then goes back one edit further."""

        async def save() -> None:
            newest = await self._get(context, path)
            base = _get_base(newest)
            if base is None or base < 0:
                raise InvalidRequest(f"No edit history found for {path}.")
            try:
                before = await context.artifacts.get(newest.name, base)
            except ArtifactNotFound as exc:
                raise InvalidRequest(f"No edit history found for {path}.") from exc
            earlier, content = _get_base(before), await self._load(context, before, path)
            await self._save(context, newest.name, content, newest, base=-1 if earlier is None else earlier)

        await _repeat_until_saved(path, save)
        return f"Last edit to {path} undone successfully."

    # -- artifacts -----------------------------------------------------------

    async def _edit(self, context: ToolContext, path: str, edit: Callable[[str], str]) -> None:
        """Change the content of a file. If another writer has saved it in between, apply `edit` again to the new content."""

        async def save() -> None:
            newest = await self._get(context, path)
            changed = edit(await self._load(context, newest, path))
            await self._save(context, newest.name, changed, newest)

        await _repeat_until_saved(path, save)

    async def _get(self, context: ToolContext, path: str) -> Artifact:
        name = _parse_path(path)
        try:
            return await context.artifacts.get(name)
        except ArtifactNotFound as exc:
            raise InvalidRequest(MISSING.format(path=path)) from exc

    async def _load(self, context: ToolContext, artifact: Artifact, path: str) -> str:
        if artifact.size > EDITED_ARTIFACT_BYTES:
            raise InvalidRequest(
                f"The file {path} has more than {EDITED_ARTIFACT_BYTES:,} bytes, so it cannot be edited."
            )
        loaded = await context.artifacts.load(artifact.name, artifact.version)
        text = decode_text(loaded.data, artifact.mime_type)
        if text is None:
            raise InvalidRequest(f"The file {path} is not text: its type is {artifact.mime_type}.")
        return text

    async def _save(
        self, context: ToolContext, name: str, text: str, newest: Artifact | None, *, base: int | None = None
    ) -> None:
        """Save a text as a new version.

        Args:
            context: the context of the call.
            name: name of the artifact.
            text: the new content.
            newest: the newest version, which must still be the newest one; None: there must be none.
            base: the version to which the next undo goes back; None: `newest`.
        """
        version = -1 if newest is None else newest.version
        kind = detect_type(name, text.encode("utf-8", "replace"), None) if newest is None else newest.mime_type
        kind = "text/plain" if kind == UNKNOWN else kind
        data = text.encode(get_charset(kind), "replace")
        if len(data) > EDITED_ARTIFACT_BYTES:
            raise TooLarge(
                f"The file would have more than {EDITED_ARTIFACT_BYTES:,} bytes; split it into several files."
            )
        await context.artifacts.save(
            name,
            mask_secrets(self._guard, data, kind, context),
            mime_type=kind,
            author=context.agent or AUTHOR,
            metadata={"call_id": context.call.id, _BASE: version if base is None else base},
            expect=version,
        )


async def _repeat_until_saved(path: str, save: Callable[[], Awaitable[None]]) -> None:
    """Call `save`, which reads a file and saves its new version. Call it again if another writer has saved the file in between.

    Raises:
        InvalidRequest: other writers did so each time.
    """
    for _ in range(_TRIES):
        with suppress(StaleArtifact):
            return await save()
    raise InvalidRequest(f"The file {path} is being edited constantly: try again.")


def _get_base(artifact: Artifact) -> int | None:
    """Return the number of the version that a version was made from; None if the editor did not save it."""
    found: Mapping[str, Any] = artifact.metadata or {}
    base = found.get(_BASE)
    return base if isinstance(base, int) else None


def _parse_path(path: str) -> str:
    """Return the name of the artifact at a path: `NAME`, `/NAME` or `./NAME`.

    Raises:
        InvalidRequest: the path has folders, or is the name of a tool result.
    """
    name = path.removeprefix(".").removeprefix("/") if path.startswith(("/", "./")) else path
    if "/" in name or "\\" in name:
        raise InvalidRequest(f"There are no folders here: use a plain name such as /report.md, got: {path}")
    if parse_result_name(name) is not None:
        raise InvalidRequest(f"{path} is the name of a tool result: choose another name")
    return name


def add_text_editor(known: Toolset, guard: Guard | None) -> Toolset:
    """Return a toolset with the text editor added, for agents that name it.

    If the program has a tool with the same name, that tool takes precedence.

    Args:
        known: the other tools.
        guard: masks secrets in saved texts; None: nothing is masked.
    """
    if TEXT_EDITOR in known.tools:
        return known
    tool = Tool(
        name=TEXT_EDITOR,
        call=TextEditor(guard).run,
        **make_editor_function(undoes=True),
        reads_state=False,
        named=True,
        in_order=True,
        native=EDITOR_NATIVE,
        serves=EDITOR_TYPES,
        aliases=frozenset({EDITOR_NATIVE["name"], UNDOING_NAME}),
    )
    return msgspec.structs.replace(known, tools={**known.tools, TEXT_EDITOR: tool})
