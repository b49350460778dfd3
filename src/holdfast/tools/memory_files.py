"""Define Anthropic's memory tool, run by Holdfast: files of a user and an agent, with the answers that models are trained on.

`holdfast.tools.memory_origin` decides where a text comes from before it is written, as for the facts of `holdfast.tools.memory`. If it may
come from a tool's result, a page or another person, the change is held for review, and the file does not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from holdfast.domain.memory import REVIEWED_ORIGINS, Origin
from holdfast.errors import HoldfastError
from holdfast.memory.file_edits import parse_command
from holdfast.memory.files import ROOT, ChangeSource
from holdfast.models.codecs.messages.tools import MEMORY_INSTRUCTION, MEMORY_TYPE, make_memory_function
from holdfast.tools.context import ToolContext
from holdfast.tools.memory import MEMORY
from holdfast.tools.memory_origin import OWN_FILES, trace_words
from holdfast.tools.tool import Tool, ToolRefusal, Toolset

HELD: Final = (
    "Held for review: the text may come from a tool, a page or another person, so nothing changes until it is accepted."
    " Continue without this change."
)
"""Answer of the tool if a change is held."""
HELD_CHANGE: Final = "memory_change_held"
"""Metadata of a result: the id of the change that is held."""
_WRITTEN: Final = {"create": "file_text", "str_replace": "new_str", "insert": "insert_text"}
"""The argument of a command whose text is stored in a file."""
_NAMING: Final = frozenset({"create", "rename"})
"""Commands that make a new path."""


async def run_memory_command(context: ToolContext, arguments: dict[str, Any]) -> str:
    """Run a command of the memory tool, or hold it for review.

    Raises:
        ToolRefusal: the command is not valid or is refused, or the change is held.
    """
    context.marked[OWN_FILES] = True
    assert context.call.files is not None, "every turn has memory files"
    try:
        name, given = parse_command(arguments)
        origin = await _find_origin(context, name, given)
        source = ChangeSource(context.session_id, context.call.turn, context.agent, origin)
        files = context.call.files.with_source(source)
        if origin in REVIEWED_ORIGINS and context.call.reviews_files:
            context.marked[HELD_CHANGE] = (await files.hold(arguments)).id
            raise ToolRefusal(HELD)
        return await files.run(arguments)
    except HoldfastError as exc:
        raise ToolRefusal(exc.public_message) from exc


async def _find_origin(context: ToolContext, name: str, given: Mapping[str, Any]) -> Origin | None:
    """Return where the words that a command writes come from. None: it writes no words.

    A new path is a part of these words, as the tags of a fact are.
    """
    text = str(given.get(_WRITTEN.get(name, ""), ""))
    path = str(given.get("new_path") or given.get("path") or "") if name in _NAMING else ""
    words = [one for one in (text, path.removeprefix(ROOT).replace("/", " ")) if one.strip()]
    return (await trace_words(context, words[0], words[1:])).origin if words else None


def add_memory_file_tool(known: Toolset) -> Toolset:
    """Return a toolset with the memory tool added.

    Raises:
        InvalidRequest: another tool has the name `memory`.
    """
    return known.add(_make_tool())


def remove_memory_file_tool(known: Toolset) -> Toolset:
    """Return a toolset without the memory tool."""
    left = {name: tool for name, tool in known.tools.items() if tool is not _make_tool()}
    return known if len(left) == len(known.tools) else msgspec.structs.replace(known, tools=left)


def has_fact_tool(tools: Toolset) -> bool:
    """Return True if a toolset has another tool of the name `memory`, such as the tool for facts."""
    return tools.tools.get(MEMORY) not in (None, _make_tool())


@cache
def _make_tool() -> Tool:
    """Return the memory tool. The first call creates it."""
    return Tool(
        name=MEMORY,
        call=run_memory_command,
        **make_memory_function(),
        reads_state=False,
        in_order=True,
        native={"type": MEMORY_TYPE, "name": MEMORY},
        serves=frozenset({MEMORY_TYPE}),
        instruction=MEMORY_INSTRUCTION,
    )
