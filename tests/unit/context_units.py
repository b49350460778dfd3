"""Reference analysis of a live path from the log alone: units, task, current message, and whether a model is called.

The rules (`tests.unit.context_rules`) and the second implementation (`tests.unit.context_reference`) both go by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.build import Request, WorkingSet
from holdfast.context.fitting import SYSTEM_NOTE
from holdfast.context.units import EMPTY
from holdfast.domain.messages import SYSTEM_ROLES, Message, Part
from holdfast.domain.session import Entry
from holdfast.limits import SYSTEM_IN_FORCE
from tests.unit.perspective_reference import Group, is_seen, replace_unit

GONE = {"evicted", "compacted"}
"""Decisions for entries that are not sent."""
SENT = {"kept", "pinned", "anchored", "cut", "cleared"}
"""Decisions for entries that are sent."""


def groups_of(entries: Sequence[Entry]) -> list[Group]:
    """Return the units of a live path: single messages, or calls with all tool messages up to the last result."""
    groups: list[Group] = []
    for entry in entries:
        waits = bool(groups) and results_of(groups[-1]) < len(groups[-1][0].message.tool_calls)
        waits = waits and entry.total - entry.tokens == groups[-1][-1].total
        if waits and entry.message.role == "tool":
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return groups


def visible_of(request: Request, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that are visible to the request's view."""
    groups = (group for group in groups_of(entries) if is_seen(request.strategy.perspective, group))
    return [entry for group in groups if not is_mute(request, group) for entry in group]


def is_mute(request: Request, group: Group) -> bool:
    """Return True if a unit is an own reply or a system message without content."""
    first = group[0].message
    relayed = replace_unit(request.strategy.perspective, group)
    if relayed is not None:
        first = relayed[0].message
    if first.role not in ("assistant", *SYSTEM_ROLES) or first.tool_calls:
        return False
    audio, blocks = first.extra.get("audio"), first.extra.get("content_blocks") or ()
    if (isinstance(audio, dict) and audio) or any(block["type"] == "server_tool_use" for block in blocks):
        return False
    parts = first.content if isinstance(first.content, tuple) else (Part("text", first.text),)
    return not any(part.text.strip() if part.text is not None else part.type != "thinking" for part in parts)


def fill(message: Message) -> Message:
    """Return `message` with a placeholder if it has no content."""
    content = message.content
    if isinstance(content, str) or (message.role == "assistant" and not isinstance(content, tuple)):
        return message
    parts = tuple(part for part in content if part.text != "") if isinstance(content, tuple) else ()
    if any(part.text is None or part.text.strip() for part in parts):
        return message.evolve(content=parts) if parts != content else message
    return message.evolve(content={"assistant": None, "tool": ""}.get(message.role, EMPTY))


def results_of(group: Group) -> int:
    """Return the number of calls of a unit that have a result."""
    return sum(entry.unit == group[0].seq for entry in group[1:])


def anchor_of(entries: Sequence[Entry]) -> Entry | None:
    """Return the first user message."""
    return next((entry for entry in entries if entry.message.role == "user"), None)


def current_of(entries: Sequence[Entry]) -> Entry | None:
    """Return the last user message."""
    return anchor_of(list(reversed(entries)))


def in_force_of(entries: Sequence[Entry]) -> set[int]:
    """Return the system messages in force: the last one with those directly before it."""
    groups = groups_of(entries)
    places = [at for at, group in enumerate(groups) if group[0].message.role in SYSTEM_ROLES]
    last = places[-1:] if places else []
    while last and last[0] - 1 in places:
        last.insert(0, last[0] - 1)
    return {groups[at][0].seq for at in last[-SYSTEM_IN_FORCE:]}


def callable_behind(entries: Sequence[Entry]) -> bool:
    """Return True if a model would be called now: there is something to answer and no open call."""
    groups = groups_of(entries)
    newest = groups[-1] if groups else []
    return bool(newest) and (
        newest[0].message.role != "assistant" or results_of(newest) == len(newest[0].message.tool_calls) > 0
    )


def is_called(request: Request, entries: Sequence[Entry]) -> bool:
    """Return True if the request's agent would be called now; messages of other agents can be answered too."""
    visible = visible_of(request, entries)
    newest = groups_of(visible)[-1:]
    others = any(replace_unit(request.strategy.perspective, group) for group in newest)
    whole = all(results_of(group) == len(group[0].message.tool_calls) for group in newest)
    return (others and whole) or callable_behind(visible)


def only_system_notes(conversation: Sequence[Message]) -> bool:
    """Return True if only system messages are sent, as user messages because the dialect requires one."""
    return all(
        message.role == "user" and message.text.startswith(SYSTEM_NOTE.split("{")[0]) for message in conversation
    )


def conversation_of(request: Request, built: WorkingSet) -> list[Message]:
    """Return the messages after the system prompt, without recalled text."""
    recalled = built.recalled.message if built.recalled else None
    return [message for message in built.messages[len(request.system) :] if message is not recalled]


def only_text(message: Message) -> bool:
    """Return True if the content is only text."""
    return isinstance(message.content, str) and not message.tool_calls and not message.extra and message.name is None
