"""What a live path is made of, read from the log alone: its units, its task and its question, and whom a model would answer.

The rules (`tests.unit.context_rules`) and the second implementation (`tests.unit.context_reference`) both go by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.context.build import Request, WorkingSet
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry
from tests.unit.perspective_reference import Group, is_seen, told

GONE = {"evicted", "compacted"}
"""What is decided of an entry that is not sent."""
SENT = {"kept", "pinned", "anchored", "cut", "cleared"}
"""What is decided of one that is."""


def groups_of(entries: Sequence[Entry]) -> list[Group]:
    """The units of a live path: a message, or calls with all that tools said until each call had its result."""
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
    """The entries that the request's view gets to see."""
    groups = (group for group in groups_of(entries) if is_seen(request.policy.perspective, group))
    return [entry for group in groups for entry in group]


def results_of(group: Group) -> int:
    """How many of a unit's calls have their result."""
    return sum(entry.unit == group[0].seq for entry in group[1:])


def anchor_of(entries: Sequence[Entry]) -> Entry | None:
    """The first user message."""
    return next((entry for entry in entries if entry.message.role == "user"), None)


def current_of(entries: Sequence[Entry]) -> Entry | None:
    """The last user message."""
    return anchor_of(list(reversed(entries)))


def callable_behind(entries: Sequence[Entry]) -> bool:
    """Whether a model would be called now: there is something to answer, and no call is open."""
    groups = groups_of(entries)
    newest = groups[-1] if groups else []
    return bool(newest) and (
        newest[0].message.role != "assistant" or results_of(newest) == len(newest[0].message.tool_calls) > 0
    )


def called(request: Request, entries: Sequence[Entry]) -> bool:
    """Whether the request's agent would be called now: what another one has said is something to answer, too."""
    visible = visible_of(request, entries)
    newest = groups_of(visible)[-1:]
    others = any(told(request.policy.perspective, group) for group in newest)
    whole = all(results_of(group) == len(group[0].message.tool_calls) for group in newest)
    return (others and whole) or callable_behind(visible)


def conversation_of(request: Request, built: WorkingSet) -> list[Message]:
    """What is sent behind the system prompt, without what is recalled."""
    recalled = built.recalled.message if built.recalled else None
    return [message for message in built.messages[len(request.system) :] if message is not recalled]


def only_text(message: Message) -> bool:
    """Whether it is words, and nothing beside them."""
    return isinstance(message.content, str) and not message.tool_calls and not message.extra and message.name is None
