"""Clearing: older tool results replaced by notes, in batches, before another strategy looks at the window."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.context.cut import loadable
from holdfast.context.escaping import escape_name, tag
from holdfast.context.units import Unit, spoken
from holdfast.context.window import Window
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry

NOTE = "[result of {tool} cleared: {tokens} tokens, message {seq} of the log{tag}]"
"""Stands for a cleared result: which tool, how large it was, and which entry holds it."""
LOADABLE = "[result of {tool} cleared: {tokens} tokens; {whole} gives it back{tag}]"
"""The same for a model that can load it back."""
LEAST = 48
"""Tokens from which a result is worth a note, which takes about half of that itself."""


class Clearing(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of `clear_tool_results`; see `STRATEGIES` for its keys."""

    trigger: int | None = None
    """Tokens past which results are cleared; None: when the room is full."""
    keep: int = 3
    clear_at_least: int = 4000
    exclude_tools: tuple[str, ...] = ()
    keep_latest: bool = False

    def cleared(self, window: Window) -> Window:
        """The window with every result cleared that may be; as it is when it is not due, or that would free too little.

        A batch is all that can go at once, so that the prompt is rewritten seldom.
        """
        if window.allotted <= (window.room.tokens if self.trigger is None else min(self.trigger, window.room.tokens)):
            return window
        found = list(self._clearable(window))
        if not found or sum(entry.tokens for entry, _ in found) < self.clear_at_least:
            return window  # the notes take room too: not even without them would it be enough
        after = window.clear({entry.seq: note for entry, note in found})
        return after if window.allotted - after.allotted >= self.clear_at_least else window

    def _clearable(self, window: Window) -> Iterator[tuple[Entry, Message]]:
        """Results that may go, each with its note, oldest first."""
        results = list(_results(window))
        kept = {entry.seq for entry, *_ in results[max(0, len(results) - self.keep) :]}
        if self.keep_latest:
            kept |= set({tool: entry.seq for entry, _, tool, _ in results if tool}.values())
        newest = window.units[-1] if window.units else None
        for entry, message, tool, heading in results:
            cut = window.cuts.get(entry.seq)
            spared = (
                entry.seq in kept or entry.pinned or tool in self.exclude_tools or (cut is not None and cut.cleared)
            )
            if spared or entry.tokens < LEAST or (newest is not None and entry.unit == newest.first):
                continue
            note = LOADABLE if window.room.loads else NOTE
            whole = loadable(entry.seq)
            named, own = escape_name(tool) or "a tool", tag(window.room.marker)
            said = note.format(tool=named, tokens=entry.tokens, seq=entry.seq, whole=whole, tag=own)
            yield entry, message.evolve(content=heading + said)


_Result = tuple[Entry, Message, str, str]
"""The entry of a tool result, the message it is sent as, its tool's name, and the heading of what is another agent's."""


def _results(window: Window) -> Iterator[_Result]:
    """Every tool result that is sent."""
    for unit in (*window.head, *window.units):
        if len(unit.entries) > 1:
            yield from _results_of(unit)


def _results_of(unit: Unit) -> Iterator[_Result]:
    entries = {entry.seq: entry for entry in unit.entries}
    if unit.told is not None:
        yield from ((entries[one.seq], one.message, one.tool, one.heading) for one in unit.told if one.tool)
        return
    tools: dict[str, str] = {}
    for seq, message in spoken(unit):
        tools.update((call.id, call.name) for call in message.tool_calls)
        if seq is not None and message.role == "tool":
            yield entries[seq], message, tools.get(str(message.tool_call_id), ""), ""
