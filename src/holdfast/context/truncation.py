"""Shrinking a window: long messages are cut, older tool results cleared, and refused messages replaced by notes.

The log keeps all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.context.cut import format_loader_call
from holdfast.context.escaping import escape_name, format_tag
from holdfast.context.units import Unit, list_messages
from holdfast.context.window import ANCHOR_SHARE, Window
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry

MUST = 0.5
"""Share of the room that required units may take once they have to be cut; the rest is for chosen units."""


def with_stub(window: Window, floor: int, *, everywhere: bool = False) -> Window:
    """Return the window with the anchor cut to its share of the room, if the anchor is in the head.

    Args:
        window: the window.
        floor: tokens below which no message is cut.
        everywhere: whether to cut the anchor outside of the head too, unless it is in the newest unit.
    """
    most = max(floor, int(ANCHOR_SHARE * window.room.tokens))
    for unit in list_older_units(window) if everywhere else window.head:
        if window.anchored and unit.first == window.anchor and window.measure_unit(unit) > most:
            return window.cut({unit.first: most})
    return window


def with_room_to_choose(window: Window, must: Window, floor: int) -> Window:
    """Return `window` with the required units cut, because they do not fit. They are cut further than necessary.

    Otherwise one long result would leave no room for anything else, and everything worth keeping so far would be lost.

    Args:
        window: the window before any eviction.
        must: the window after everything that may be evicted was evicted.
        floor: tokens below which no message is cut.
    """
    room = window.room.tokens
    must = squeeze(with_stub(must, floor), room, floor, list_older_units)
    must = squeeze(must, int(MUST * room), floor, list_units)
    return window.cut({seq: cut.tokens for seq, cut in must.cuts.items() if window.cuts.get(seq) is not cut})


def list_older_units(window: Window) -> Iterable[Unit]:
    """Return every unit except the newest."""
    return (*window.head, *window.units[:-1])


def list_units(window: Window) -> Iterable[Unit]:
    """Return every unit that is sent."""
    return (*window.head, *window.units)


def squeeze(window: Window, allowed: int, floor: int, which: Callable[[Window], Iterable[Unit]]) -> Window:
    """Cut the longest messages of some units, oldest first, until the body takes `allowed` tokens."""
    tried: dict[int, int] = {}
    while (over := window.body - allowed) > 0:
        caps = _compute_caps(_list_cuttable(window, which(window), floor), over, tried, floor)
        if not caps:
            break
        tried |= caps
        window = window.cut(caps)
    return window


def _list_cuttable(window: Window, units: Iterable[Unit], floor: int) -> list[tuple[int, int]]:
    """Return `(seq, tokens)` of the messages in `units` that are long enough to be cut: results before texts, each oldest first.

    A digest repeats what is cut from a result in a shorter form, but not a user's words.
    """
    units = tuple(units)
    results = {entry.seq for unit in units for entry in unit.entries if entry.kind == "result"}
    return sorted(window.list_cuttable(units, floor), key=lambda sized: sized[0] not in results)


def _compute_caps(
    cuttable: Iterable[tuple[int, int]], over: int, tried: Mapping[int, int], floor: int
) -> dict[int, int]:
    """Return the size to cut each message to in order to save `over` tokens. A message that could not be cut to its size before gets the least."""
    caps = {}
    for seq, tokens in cuttable:
        if over <= 0:
            break
        failed = tokens > tried.get(seq, tokens)
        if failed and tried[seq] == floor:
            continue
        caps[seq] = floor if failed else max(floor, tokens - over)
        over -= tokens - caps[seq]
    return caps


CLEARED_NOTE = "[result of {tool} cleared: {tokens} tokens, message {seq} of the log{tag}]"
"""Replaces a cleared result: it names the tool, the size and the entry."""
LOADABLE_NOTE = "[result of {tool} cleared: {tokens} tokens; {whole} gives it back{tag}]"
"""The same for a model that can load the result again."""
LEAST_CLEARED = 48
"""Tokens from which clearing a result is worthwhile: the note itself takes about half of that."""


class Clearing(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of `clear_tool_results`; `STRATEGIES` describes its keys."""

    trigger: int | None = None
    """Tokens beyond which results are cleared; None if only a full room triggers it."""
    keep: int = 3
    clear_at_least: int = 4000
    exclude_tools: tuple[str, ...] = ()
    keep_latest: bool = False

    def clear_results(self, window: Window) -> Window:
        """Return the window with every clearable result cleared; the same window if it is not due or would free too little.

        All clearable results are cleared in one batch, so that the prompt is rewritten rarely.
        """
        if window.allotted <= (window.room.tokens if self.trigger is None else min(self.trigger, window.room.tokens)):
            return window
        found = list(self._iter_clearable(window))
        if not found or sum(entry.tokens for entry, _ in found) < self.clear_at_least:
            return window  # not enough even without counting the notes
        after = window.clear({entry.seq: note for entry, note in found})
        return after if window.allotted - after.allotted >= self.clear_at_least else window

    def _iter_clearable(self, window: Window) -> Iterator[tuple[Entry, Message]]:
        """Yield results that may be cleared, each with its note, oldest first."""
        results = list(_iter_results(window))
        kept = {entry.seq for entry, *_ in results[max(0, len(results) - self.keep) :]}
        if self.keep_latest:
            kept |= set({tool: entry.seq for entry, _, tool, _ in results if tool}.values())
        newest = window.units[-1] if window.units else None
        for entry, message, tool, heading in results:
            cut = window.cuts.get(entry.seq)
            spared = (
                entry.seq in kept or entry.pinned or tool in self.exclude_tools or (cut is not None and cut.cleared)
            )
            if spared or entry.tokens < LEAST_CLEARED or (newest is not None and entry.unit == newest.first):
                continue
            note = LOADABLE_NOTE if window.room.loads else CLEARED_NOTE
            whole = format_loader_call(entry.seq)
            named, own = escape_name(tool) or "a tool", format_tag(window.room.marker)
            said = note.format(tool=named, tokens=entry.tokens, seq=entry.seq, whole=whole, tag=own)
            yield entry, message.evolve(content=heading + said)


_Result = tuple[Entry, Message, str, str]
"""The entry of a tool result, the message that is sent, the tool's name, and the heading if another agent called it."""


def _iter_results(window: Window) -> Iterator[_Result]:
    """Yield every tool result that is sent."""
    for unit in (*window.head, *window.units):
        if len(unit.entries) > 1:
            yield from _iter_unit_results(unit)


def _iter_unit_results(unit: Unit) -> Iterator[_Result]:
    entries = {entry.seq: entry for entry in unit.entries}
    if unit.overrides is not None:
        yield from ((entries[one.seq], one.message, one.tool, one.heading) for one in unit.overrides if one.tool)
        return
    tools: dict[str, str] = {}
    for seq, message in list_messages(unit):
        tools.update((call.id, call.name) for call in message.tool_calls)
        if seq is not None and message.role == "tool":
            yield entries[seq], message, tools.get(str(message.tool_call_id), ""), ""


REFUSED_NOTE: Final = "[message {seq} of the session is left out here{tag}: the model's provider refused it]"
REFUSED_RESULT_NOTE: Final = "[the result of a tool call in message {seq} of the session is left out with it{tag}]"


def find_refused(window: Window, upstream: str, without: Mapping[int, str]) -> dict[int, str]:
    """Return the reasons by `seq` of the messages in a window that are left out for an upstream.

    The current user message is never left out: if the provider refuses it, the client gets the error.

    Args:
        window: the window.
        upstream: name of the upstream.
        without: further reasons for this call alone.
    """
    if not without and not window.refused:
        return {}
    known = {seq: by[upstream] for seq, by in window.refused.items() if upstream in by}
    return {seq: why for seq, why in {**known, **without}.items() if seq != window.current}


def without_refused(window: Window, refused: Mapping[int, str], marker: str = "") -> list[Message]:
    """Return the conversation of a window with a note in place of each refused message.

    If calls are refused, their results become notes too: every provider refuses a result without its call.

    Args:
        window: the window that is sent.
        refused: reasons by `seq`.
        marker: the session's marker, for the notes.
    """
    messages = window.list_messages()
    if not refused:
        return messages
    calls: dict[str | None, int] = {}
    messages_sent: list[Message] = []
    for seq, message in zip(window.list_seqs(), messages, strict=True):
        if message.role != "tool":
            calls = {}
        if seq is not None and seq in refused and message.tool_calls:
            calls = {call.id: seq for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id in calls:
            messages_sent.append(
                Message(
                    role="user",
                    content=REFUSED_RESULT_NOTE.format(seq=calls[message.tool_call_id], tag=format_tag(marker)),
                )
            )
        elif seq in refused:
            messages_sent.append(
                Message(
                    role=message.role,
                    content=REFUSED_NOTE.format(seq=seq, tag=format_tag(marker)),
                    tool_call_id=message.tool_call_id,
                )
            )
        else:
            messages_sent.append(message)
    return messages_sent
