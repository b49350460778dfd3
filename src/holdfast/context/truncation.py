"""What a window does without when it is too large: long messages are cut, older tool results cleared, refused messages replaced by notes.

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
"""Part of the room that what must stay is cut to, where it has to be cut at all: the rest is for what is chosen."""


def with_stub(window: Window, floor: int, *, everywhere: bool = False) -> Window:
    """The anchor in at most its share of the room, once it stands alone in the head.

    Args:
        window: what is cut.
        floor: tokens below which no message is cut.
        everywhere: also where it does not stand in the head yet, unless it is in the newest unit.
    """
    most = max(floor, int(ANCHOR_SHARE * window.room.tokens))
    for unit in list_older_units(window) if everywhere else window.head:
        if window.anchored and unit.first == window.anchor and window.measure_unit(unit) > most:
            return window.cut({unit.first: most})
    return window


def with_room_to_choose(window: Window, must: Window, floor: int) -> Window:
    """`window` with what must stay cut, because it does not fit: further than it would have to be.

    Otherwise one long result would leave no room for anything, and all that was worth keeping until now would be gone.

    Args:
        window: before anything left.
        must: what is left of it when all leaves that can.
        floor: tokens below which no message is cut.
    """
    room = window.room.tokens
    must = squeeze(with_stub(must, floor), room, floor, list_older_units)
    must = squeeze(must, int(MUST * room), floor, list_units)
    return window.cut({seq: cut.tokens for seq, cut in must.cuts.items() if window.cuts.get(seq) is not cut})


def list_older_units(window: Window) -> Iterable[Unit]:
    """Every unit but the newest."""
    return (*window.head, *window.units[:-1])


def list_units(window: Window) -> Iterable[Unit]:
    """Every unit that is sent."""
    return (*window.head, *window.units)


def squeeze(window: Window, allowed: int, floor: int, which: Callable[[Window], Iterable[Unit]]) -> Window:
    """With the longest messages of some units cut, oldest first, until the body takes `allowed` tokens."""
    tried: dict[int, int] = {}
    while (over := window.body - allowed) > 0:
        caps = _compute_caps(_list_cuttable(window, which(window), floor), over, tried, floor)
        if not caps:
            break
        tried |= caps
        window = window.cut(caps)
    return window


def _list_cuttable(window: Window, units: Iterable[Unit], floor: int) -> list[tuple[int, int]]:
    """`(seq, tokens)` of the messages in `units` that are long enough to be cut: results, then texts, each oldest first.

    What a result loses is told again in a digest, and shorter; what a person said is not.
    """
    units = tuple(units)
    results = {entry.seq for unit in units for entry in unit.entries if entry.kind == "result"}
    return sorted(window.list_cuttable(units, floor), key=lambda sized: sized[0] not in results)


def _compute_caps(
    cuttable: Iterable[tuple[int, int]], over: int, tried: Mapping[int, int], floor: int
) -> dict[int, int]:
    """How short to make which messages to save `over` tokens; one that did not get that short is asked for the least."""
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
"""Stands for a cleared result: which tool, how large it was, and which entry holds it."""
LOADABLE_NOTE = "[result of {tool} cleared: {tokens} tokens; {whole} gives it back{tag}]"
"""The same for a model that can load it back."""
LEAST_CLEARED = 48
"""Tokens from which a result is worth a note, which takes about half of that itself."""


class Clearing(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of `clear_tool_results`; see `STRATEGIES` for its keys."""

    trigger: int | None = None
    """Tokens past which results are cleared; None: when the room is full."""
    keep: int = 3
    clear_at_least: int = 4000
    exclude_tools: tuple[str, ...] = ()
    keep_latest: bool = False

    def clear_results(self, window: Window) -> Window:
        """The window with every result cleared that may be; as it is when it is not due, or that would free too little.

        A batch is all that can go at once, so that the prompt is rewritten seldom.
        """
        if window.allotted <= (window.room.tokens if self.trigger is None else min(self.trigger, window.room.tokens)):
            return window
        found = list(self._iter_clearable(window))
        if not found or sum(entry.tokens for entry, _ in found) < self.clear_at_least:
            return window  # the notes take room too: not even without them would it be enough
        after = window.clear({entry.seq: note for entry, note in found})
        return after if window.allotted - after.allotted >= self.clear_at_least else window

    def _iter_clearable(self, window: Window) -> Iterator[tuple[Entry, Message]]:
        """Results that may go, each with its note, oldest first."""
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
"""The entry of a tool result, the message it is sent as, its tool's name, and the heading of what is another agent's."""


def _iter_results(window: Window) -> Iterator[_Result]:
    """Every tool result that is sent."""
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

    The current user message is never left out: if the provider refuses it, the client is told.

    Args:
        upstream: its name.
        without: further ones for this call alone.
    """
    if not without and not window.refused:
        return {}
    known = {seq: by[upstream] for seq, by in window.refused.items() if upstream in by}
    return {seq: why for seq, why in {**known, **without}.items() if seq != window.current}


def without_refused(window: Window, refused: Mapping[int, str], marker: str = "") -> list[Message]:
    """Return the conversation of a window with a note in place of each refused message.

    Where calls are refused, their results become notes too: a result without its call is refused by every provider.

    Args:
        window: what is sent.
        refused: reasons by `seq`.
        marker: the session's, for the notes.
    """
    messages = window.messages()
    if not refused:
        return messages
    calls: dict[str | None, int] = {}
    told: list[Message] = []
    for seq, message in zip(window.list_seqs(), messages, strict=True):
        if message.role != "tool":
            calls = {}
        if seq is not None and seq in refused and message.tool_calls:
            calls = {call.id: seq for call in message.tool_calls}
        if message.role == "tool" and message.tool_call_id in calls:
            told.append(
                Message(
                    role="user",
                    content=REFUSED_RESULT_NOTE.format(seq=calls[message.tool_call_id], tag=format_tag(marker)),
                )
            )
        elif seq in refused:
            told.append(
                Message(
                    role=message.role,
                    content=REFUSED_NOTE.format(seq=seq, tag=format_tag(marker)),
                    tool_call_id=message.tool_call_id,
                )
            )
        else:
            told.append(message)
    return told
