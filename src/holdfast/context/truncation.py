"""Shrink messages of a window without evicting their units: cut long messages, clear older tool results, replace refused messages by notes.

The log keeps the complete messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.context.cut import format_loader_call
from holdfast.context.dialects import drop_thoughts, parse_thoughts
from holdfast.context.escaping import escape_name, format_tag
from holdfast.context.units import Unit, list_messages
from holdfast.context.window import ANCHOR_SHARE, Window
from holdfast.domain.media.parts import describe_part
from holdfast.domain.medium import KINDS, find_medium
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.refusals import Refusal
from holdfast.domain.session import Entry

MUST = 0.5
"""Fraction of the token limit. If the required units do not fit, they are cut to this size. The rest is left for the units that a strategy
chooses."""


def with_stub(window: Window, floor: int, *, everywhere: bool = False) -> Window:
    """Return the window with the task anchor cut to `ANCHOR_SHARE` of the token limit, if the anchor is in the head and longer than that.

    Args:
        window: the window.
        floor: minimum size of a cut message, in tokens.
        everywhere: True to cut the anchor in the tail too, but not if it is in the newest unit.
    """
    most = max(floor, int(ANCHOR_SHARE * window.room.tokens))
    for unit in list_older_units(window) if everywhere else window.head:
        if window.anchored and unit.first == window.anchor and window.measure_unit(unit) > most:
            return window.cut({unit.first: most})
    return window


def with_room_to_choose(window: Window, must: Window, floor: int) -> Window:
    """Cut the messages of required units, so that a strategy can choose other units too. Return `window` with these cuts.

    A unit is required if it must not be evicted. Messages are cut until all required units together take at most the fraction `MUST` of the
    token limit, if that is possible. Without the cuts, one long tool result would take all tokens, and every other unit would be evicted.

    Args:
        window: the window before any eviction.
        must: the same window with only the required units. They are too large for the space available.
        floor: minimum size of a cut message, in tokens.
    """
    room = window.room.tokens
    must = squeeze(with_stub(must, floor), room, floor, list_older_units)
    must = squeeze(must, int(MUST * room), floor, list_units)
    return window.cut({seq: cut.tokens for seq, cut in must.cuts.items() if window.cuts.get(seq) is not cut})


def list_older_units(window: Window) -> Iterable[Unit]:
    """Return the units of head and tail except the newest unit."""
    return (*window.head, *window.units[:-1])


def list_units(window: Window) -> Iterable[Unit]:
    """Return the units of head and tail."""
    return (*window.head, *window.units)


def squeeze(window: Window, allowed: int, floor: int, which: Callable[[Window], Iterable[Unit]]) -> Window:
    """Cut long messages until `Window.body` is at most `allowed` tokens, or nothing more can be cut.

    Tool results are cut before other messages, and older messages before newer ones.

    Args:
        window: the window.
        allowed: maximum tokens of `Window.body`.
        floor: minimum size of a cut message, in tokens.
        which: returns the units whose messages may be cut.
    """
    tried: dict[int, int] = {}
    while (over := window.body - allowed) > 0:
        caps = _compute_caps(_list_cuttable(window, which(window), floor), over, tried, floor)
        if not caps:
            break
        tried |= caps
        window = window.cut(caps)
    return window


def _list_cuttable(window: Window, units: Iterable[Unit], floor: int) -> list[tuple[int, int]]:
    """Return `(seq, tokens)` of the messages that are long enough to be cut: first the tool results, then the others, both oldest first.

    Results come first because a digest repeats the facts that are cut from them. It repeats a user's words less completely.
    """
    units = tuple(units)
    results = {entry.seq for unit in units for entry in unit.entries if entry.kind == "result"}
    return sorted(window.list_cuttable(units, floor), key=lambda sized: sized[0] not in results)


def _compute_caps(
    cuttable: Iterable[tuple[int, int]], over: int, tried: Mapping[int, int], floor: int
) -> dict[int, int]:
    """Return the sizes, by `seq`, to which messages must be cut to save `over` tokens.

    Args:
        cuttable: `(seq, tokens)` of each message that may be cut, in the order in which to cut them.
        over: tokens to save.
        tried: sizes of earlier attempts, by `seq`. A message that is still larger than its earlier size gets `floor`.
        floor: minimum size of a cut message, in tokens.
    """
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
"""Text that replaces a cleared result. It names the tool, the size and the entry."""
LOADABLE_NOTE = "[result of {tool} cleared: {tokens} tokens; {whole} gives it back{tag}]"
"""Text that replaces a cleared result if the model can load the result again. It names the call that loads it."""
LEAST_CLEARED = 48
"""Smallest result that is cleared, in tokens. The note in its place takes about half as many tokens."""


class Clearing(msgspec.Struct, frozen=True, kw_only=True):
    """The rule that clears older tool results. Its fields are the keys of `clear_tool_results`, which `STRATEGIES` describes."""

    trigger: int | None = None
    """Results are cleared if the conversation exceeds this number of tokens; None to clear them only if it exceeds the token limit."""
    keep: int = 3
    clear_at_least: int = 4000
    exclude_tools: tuple[str, ...] = ()
    keep_latest: bool = False
    trigger_uses: int | None = None
    """Results are also cleared if the conversation has more than this number of results that are not cleared; None for no such limit."""
    clear_tool_inputs: bool = False
    clear_inputs_of: tuple[str, ...] = ()
    keep_thinking: int | None = None
    """Number of newest turns with reasoning whose reasoning stays; None for all."""

    def clear_results(self, window: Window) -> Window:
        """Return the window with all older tool results and the reasoning of older turns cleared; the same window if there is nothing to clear.

        Results are not cleared if the window is below `trigger`, or if that would free too few tokens.

        All results that may be cleared are cleared at once, so that earlier messages of the prompt change rarely.
        """
        window = self._clear_thinking(window)
        if not self._is_triggered(window):
            return window
        found = list(self._iter_clearable(window))
        calls = self._clear_calls(window, {entry.seq for entry, _ in found}) if found else {}
        if not found or (not calls and sum(entry.tokens for entry, _ in found) < self.clear_at_least):
            return window  # not enough even without counting the notes
        after = window.clear({**{entry.seq: note for entry, note in found}, **calls})
        return after if window.allotted - after.allotted >= self.clear_at_least else window

    def _clear_thinking(self, window: Window) -> Window:
        """Return the window without the reasoning of older turns; the same window if there is none."""
        if self.keep_thinking is None:
            return window
        found = list(_iter_thinking(window))
        turns = sorted({entry.turn_id for entry, _ in found})
        kept = turns[max(0, len(turns) - self.keep_thinking) :]
        cleared = {entry.seq: drop_thoughts(message) for entry, message in found if entry.turn_id not in kept}
        return window.clear(cleared) if cleared else window

    def _is_triggered(self, window: Window) -> bool:
        limit = window.room.tokens if self.trigger is None else min(self.trigger, window.room.tokens)
        if window.allotted > limit:
            return True
        if self.trigger_uses is None:
            return False
        cleared = (window.cuts.get(entry.seq) for entry, *_ in _iter_results(window))
        return sum(cut is None or not cut.cleared for cut in cleared) > self.trigger_uses

    def _clear_calls(self, window: Window, results: Collection[int]) -> dict[int, Message]:
        """Return the messages whose calls lose their arguments, because their results are cleared, by `seq`.

        Args:
            window: the window.
            results: `seq` of the results that are cleared now.
        """
        if not self.clear_tool_inputs and not self.clear_inputs_of:
            return {}
        made: dict[int, Message] = {}
        for unit in (*window.head, *window.units):
            if unit.overrides is not None:  # calls of another agent are shown as text
                continue
            cleared = {
                entry.message.tool_call_id
                for entry in unit.entries
                if entry.seq in results or ((cut := window.cuts.get(entry.seq)) is not None and cut.cleared)
            }
            for seq, original in list_messages(unit) if cleared else ():
                cut = None if seq is None else window.cuts.get(seq)
                message = original if cut is None or not cut.cleared else cut.message
                calls = tuple(self._without_arguments(call, cleared) for call in message.tool_calls)
                if seq is not None and calls != message.tool_calls:
                    made[seq] = message.evolve(tool_calls=calls)
        return made

    def _without_arguments(self, call: ToolCall, cleared: Collection[str | None]) -> ToolCall:
        named = self.clear_tool_inputs or call.name in self.clear_inputs_of
        return msgspec.structs.replace(call, arguments="{}") if named and call.id in cleared else call

    def _iter_clearable(self, window: Window) -> Iterator[tuple[Entry, Message]]:
        """Yield each result that may be cleared, oldest first, with the message that replaces it."""
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


def _iter_thinking(window: Window) -> Iterator[tuple[Entry, Message]]:
    """Yield each message of the agent with reasoning that is sent, with the message as it is sent."""
    for unit in (*window.head, *window.units):
        for entry in unit.entries if unit.overrides is None else ():
            cut = window.cuts.get(entry.seq)
            message = entry.message if cut is None or not cut.cleared else cut.message
            if message.role == "assistant" and parse_thoughts(message):
                yield entry, message


_Result = tuple[Entry, Message, str, str]
"""The entry of a tool result, the message that is sent for it, the tool's name, and the heading that names the agent if another agent
called the tool."""


def _iter_results(window: Window) -> Iterator[_Result]:
    """Yield every tool result in head and tail."""
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
REFUSED_PART_NOTE: Final = "[{part} is left out here{tag}: the model's provider refused it]"


def find_refused(window: Window, upstream: str, without: Mapping[int, Refusal]) -> dict[int, Refusal]:
    """Return the messages of a window that must not be sent to an upstream, or not with all of their parts, by `seq`.

    The current user message is always sent. If the provider refuses it, the client gets the error.

    Args:
        window: the window.
        upstream: name of the upstream, which refused some messages earlier.
        without: other refusals of this call.
    """
    if not without and not window.refused:
        return {}
    known = {seq: by[upstream] for seq, by in window.refused.items() if upstream in by}
    return {seq: refusal for seq, refusal in {**known, **without}.items() if seq != window.current}


def without_refused(window: Window, refused: Mapping[int, Refusal], marker: str = "") -> list[Message]:
    """Return the conversation of a window with a note in place of each refused message or part.

    If the refused message has tool calls, notes also replace their results, because every provider refuses a result without its call.

    Args:
        window: the window.
        refused: the refusals by `seq`.
        marker: the session's marker, which the notes contain.
    """
    calls: dict[str | None, int] = {}
    sent: list[Message] = []
    tag = format_tag(marker)
    for seq, message in zip(window.list_seqs(), window.list_messages(), strict=True):
        if message.role != "tool":
            calls = {}
        refusal = None if seq is None else refused.get(seq)
        if message.role == "tool" and message.tool_call_id in calls:
            note = REFUSED_RESULT_NOTE.format(seq=calls[message.tool_call_id], tag=tag)
            sent.append(Message(role="user", content=note))
        elif refusal is None or seq is None:
            sent.append(message)
        elif refusal.parts:
            sent.append(_without_parts(message, refusal.parts, tag))
        else:
            calls = {call.id: seq for call in message.tool_calls} or calls
            note = REFUSED_NOTE.format(seq=seq, tag=tag)
            sent.append(Message(role=message.role, content=note, tool_call_id=message.tool_call_id))
    return sent


def _without_parts(message: Message, refused: Collection[int], tag: str) -> Message:
    """Return a message with a line in place of each refused part, which says what it was."""
    if not isinstance(message.content, tuple):
        return message
    parts = [
        Part("text", REFUSED_PART_NOTE.format(part=_name_part(part), tag=tag)) if at in refused else part
        for at, part in enumerate(message.content)
    ]
    return message.evolve(content=tuple(parts))


def _name_part(part: Part) -> str:
    if part.text is not None:
        return f"a text of {len(part.text)} characters"
    medium = find_medium(part.type, part.extra, part.held)
    about = ": a link" if medium is not None and medium.url is not None else describe_part(part)
    return f"{KINDS.get(part.type) or 'a part of type ' + part.type}{about}"
