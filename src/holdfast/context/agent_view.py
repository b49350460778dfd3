"""How an agent sees a session that other agents speak in: their messages are told to it, never taken for its own.

What another agent said, called and got back becomes text of the user's role, under a heading that names the agent:

    [agent researcher #qwertzui]: It lives at 12 m.
      What it says further is set in.
    [agent researcher called search with #qwertzui]: {"query": "kelp"}
    [agent researcher's tool search returned #qwertzui]: 3 pages
    [agent researcher handed the conversation over to writer #qwertzui]: They want a poem.

The heading carries the session's marker, and what is quoted is made inert; see `holdfast.context.escaping`.
Every further line of what is quoted is set in, whatever it was broken by, so that nothing in it can stand where a heading
stands. What is told is no user message to any strategy: no task, not the current message, nobody's instruction.

Agents that speak side by side write in branches, `panel.optimist` beside `panel.pessimist`, noted with each entry. A view sees
its own branch, those around it and those within it, and not the others. It is decided unit by unit, from what the unit itself
holds, so that folding a log at once and in pieces is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.cut import Count, cut
from holdfast.context.escaping import escape_inline, escape_name, format_tag
from holdfast.context.units import MessageOverride, Unit
from holdfast.domain.messages import UNSPOKEN_PARTS, Content, Message, Part, ToolCall
from holdfast.domain.session import BRANCH, HAND_OVER, JOINED, STEP, TRANSFER, TRANSFERRED, Entry

INDENT: Final = "  "
"""Before each further line of what is quoted."""
ARGUMENT_CHARS: Final = 1_000
"""Characters told of a call's arguments; of longer ones head and tail."""
_SAID = "[agent {agent}{tag}]: "
_CALLED = "[agent {agent} called {tool} with{tag}]: "
_RETURNED = "[agent {agent}'s tool {tool} returned{tag}]: "
_LATE = "[agent {agent}'s tool returned late{tag}]: "
_TRANSFERRED = "[agent {agent} handed the conversation over to {target}{tag}]"
_NOTHING = "[agent {agent} said nothing{tag}]"
_LEFT_OUT = " [… {missing} of {size} characters left out, message {seq} of the session{tag} …] "
_CUT = re.compile(r"\n\[… \d+ of \d+ characters cut, [^\n]+ …\]\n")
"""What a cut leaves. Nothing quoted has a line like it: its lines are set in."""
_INDENT_TOKENS = 2
"""Tokens that setting in what stands behind a cut may take."""


class Perspective(msgspec.Struct, frozen=True, kw_only=True):
    """Whose eyes a session is seen with."""

    agent: str
    """What this agent wrote is its own, and so is what nobody in particular wrote; all else is told to it."""
    count: Callable[[Message], int]
    """Tokens of a message as stored counts have them (o200k)."""
    branch: str = ""
    """The branch that it speaks in; empty: in none."""
    marker: str = ""
    """The session's; see `holdfast.context.escaping`."""

    def view_units(self, units: Iterable[Unit]) -> list[Unit]:
        """Units of the log as they are seen, without those that are not."""
        return [seen for unit in units if (seen := self.view_unit(unit)) is not None]

    def view_unit(self, unit: Unit) -> Unit | None:
        """A unit of the log as it is seen: itself where it is the agent's own; None where it is another branch's."""
        first = unit.entries[0]
        if first.message.role not in ("assistant", "tool"):
            return unit
        if first.metadata and self._is_hidden(unit):
            return None
        if first.agent is not None and first.agent != self.agent:
            return self._relay_unit(unit, first.agent)
        return self._strip_hand_over(unit) if is_hand_over(first) else unit

    def _is_hidden(self, unit: Unit) -> bool:
        first = unit.entries[0]
        branch = (first.metadata or {}).get(BRANCH)
        if not isinstance(branch, str) or _is_within(self.branch, branch):
            return False
        return self.is_other_branch(first) or any((entry.metadata or {}).get(JOINED) is True for entry in unit.entries)

    def is_other_branch(self, entry: Entry) -> bool:
        """Whether an entry is another branch's, beside this one."""
        branch = (entry.metadata or {}).get(BRANCH)
        return isinstance(branch, str) and not _is_within(self.branch, branch) and not _is_within(branch, self.branch)

    def _strip_hand_over(self, unit: Unit) -> Unit:
        """The agent's own reply of a step, without the call that ends it."""
        first = unit.entries[0]
        return Unit(unit.entries, overrides=(self._make_override(first, "", _drop_calls(first.message)),))

    def _relay_unit(self, unit: Unit, agent: str) -> Unit:
        by = escape_name(agent)
        first, *rest = unit.entries
        if first.kind == "result":
            rest, told = [first], []
        else:
            calls = () if is_hand_over(first) else first.message.tool_calls
            told = [self._make_override(first, *_relay_reply(by, first, calls, unit.entries[1:], self.marker))]
            rest = rest if calls else [entry for entry in rest if entry.unit != first.seq]
        for entry, tool in _iter_results(first, rest):
            told.append(self._make_override(entry, *_relay_result(by, entry, tool, self.marker), tool=tool))
        return Unit(unit.entries, overrides=tuple(told), by=by)

    def _make_override(self, entry: Entry, heading: str, message: Message, *, tool: str = "") -> MessageOverride:
        return MessageOverride(entry.seq, message, self.count(message), heading, tool)


def is_hand_over(entry: Entry) -> bool:
    """Whether `entry` is the reply of a step, with the one call that says that another step follows.

    A call of a tool that is only called so is none: somebody asked for that, and it has a result.
    """
    calls, metadata = entry.message.tool_calls, entry.metadata or {}
    return len(calls) == 1 and calls[0].name == HAND_OVER and STEP in metadata and metadata.get("returned") == []


def quote(text: str, marker: str = "") -> str:
    """`text` made inert, with every line but the first set in."""
    return _indent(escape_inline(text, marker))


def _indent(text: str) -> str:
    first, *others = text.splitlines() or [""]
    return "".join((first, *(f"\n{INDENT}{line}" if line else "\n" for line in others)))


def parse_transfer(call: ToolCall, result: Entry | None) -> tuple[str, str] | None:
    """Who the conversation was handed over to by a call, and with which words; None where the call is no such.

    Args:
        call: a tool call.
        result: what it returned; None: nothing yet.
    """
    if call.name != TRANSFER:
        return None
    target = (result.metadata or {}).get(TRANSFERRED) if result is not None else None
    if result is not None and not isinstance(target, str):
        return None
    arguments = _decode_object(call.arguments)
    target = target if isinstance(target, str) else arguments.get("agent_name")
    words = arguments.get("message")
    return (target, words if isinstance(words, str) else "") if isinstance(target, str) and target else None


def shorten_relayed(
    told: MessageOverride, tokens: int, *, count: Count, loads: bool = False, marker: str = ""
) -> Message:
    """What is told of another agent in at most `tokens` tokens where that can be, its heading whole.

    Like `holdfast.context.cut.cut`; what stands behind the cut is set in, for it may be the middle of a line.
    """
    message = told.message
    whole = count.message(message)
    if whole <= tokens:
        return message
    role = "tool" if told.tool else "assistant"
    body = message.evolve(role=role, content=_strip_heading(message.content, told.heading))
    left = tokens - (whole - count.message(body))
    for spare in (0, _INDENT_TOKENS):
        shorter = cut(body, left - spare, seq=told.seq, count=count, loads=loads, marker=marker)
        made = message.evolve(content=_restore_heading(shorter.content, body.content, told.heading))
        if count.message(made) <= tokens:
            break
    return made


# -- branches ----------------------------------------------------------------


def _is_within(branch: str, outer: str) -> bool:
    """Whether `branch` is `outer`, or stands in it; everything stands in none."""
    return not outer or branch == outer or branch.startswith(f"{outer}.")


# -- what another agent said ---------------------------------------------------


def _relay_reply(
    by: str, first: Entry, calls: Sequence[ToolCall], rest: Sequence[Entry], marker: str
) -> tuple[str, Message]:
    """The heading and the message that words and calls of another agent become."""
    heading = _SAID.format(agent=by, tag=format_tag(marker))
    runs = list(_iter_runs(first.message.content))
    lines = [_format_call(by, call, result, first.seq, marker) for call, result in _match_results(calls, first, rest)]
    if runs:
        return heading, Message(role="user", content=_attribute(heading, runs, lines, marker))
    lines = lines or [(_NOTHING.format(agent=by, tag=format_tag(marker)), "")]
    text = "\n".join("".join(line) for line in lines)
    return lines[0][0], Message(role="user", content=text)


def _format_call(by: str, call: ToolCall, result: Entry | None, seq: int, marker: str) -> tuple[str, str]:
    """The heading of a call, and what stands behind it."""
    handed = parse_transfer(call, result)
    if handed is None:
        heading = _CALLED.format(agent=by, tool=escape_name(call.name), tag=format_tag(marker))
        return heading, _quote_ends(call.arguments, seq, marker)
    target, words = handed
    heading = _TRANSFERRED.format(agent=by, target=escape_name(target), tag=format_tag(marker))
    return heading, f": {_quote_ends(words, seq, marker)}" if words else ""


def _quote_ends(text: str, seq: int, marker: str) -> str:
    """Quote `text`; of a long one the head (two thirds) and the tail."""
    if len(text) <= ARGUMENT_CHARS:
        return quote(text, marker)
    head = ARGUMENT_CHARS * 2 // 3
    note = _LEFT_OUT.format(missing=len(text) - ARGUMENT_CHARS, size=len(text), seq=seq, tag=format_tag(marker))
    ends = text[:head], text[len(text) - (ARGUMENT_CHARS - head) :]
    return note.join(_indent(escape_inline(end, marker)) for end in ends)


def _relay_result(by: str, result: Entry, tool: str, marker: str) -> tuple[str, Message]:
    """The heading and the message that a result of another agent's call becomes."""
    own = format_tag(marker)
    heading = _RETURNED.format(agent=by, tool=tool, tag=own) if tool else _LATE.format(agent=by, tag=own)
    return heading, Message(
        role="user", content=_attribute(heading, list(_iter_runs(result.message.content)), (), marker)
    )


def _attribute(heading: str, runs: list[str | Part], lines: Iterable[tuple[str, str]], marker: str) -> Content:
    """Texts and media under a heading, and further headings with their words behind them."""
    told = [run if isinstance(run, Part) else INDENT + quote(run, marker) for run in runs]
    if runs and isinstance(runs[0], str):
        told[0] = heading + quote(runs[0], marker)
    else:
        told.insert(0, heading)
    more = "\n".join("".join(line) for line in lines)
    if more and isinstance(told[-1], str):
        told[-1] += f"\n{more}"
    elif more:
        told.append(more)
    if len(told) == 1 and isinstance(told[0], str):
        return told[0]
    return tuple(run if isinstance(run, Part) else Part("text", run) for run in told)


def _iter_runs(content: Content) -> Iterator[str | Part]:
    """Texts, joined where they follow each other, and media, in their order. Reasoning is nobody else's to read."""
    if isinstance(content, str):
        content = (Part("text", content),)
    text = ""
    for part in content if isinstance(content, tuple) else ():
        if part.text is not None:
            text += part.text
        elif part.type not in UNSPOKEN_PARTS:
            if text.strip():
                yield text
            yield part
            text = ""
    if text.strip():
        yield text


def _match_results(
    calls: Sequence[ToolCall], first: Entry, rest: Sequence[Entry]
) -> Iterator[tuple[ToolCall, Entry | None]]:
    """Each call with its result, as far as there is one."""
    results: dict[str | None, list[Entry]] = {}
    for entry in rest:
        if entry.unit == first.seq:
            results.setdefault(entry.message.tool_call_id, []).append(entry)
    for call in calls:
        found = results.get(call.id)
        yield call, found.pop(0) if found else None


def _iter_results(first: Entry, rest: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
    """The results that are told, in their order, each with its tool's name; empty for one that came too late.

    What a transfer returned is left out: that it took place is told with the call.
    """
    tools: dict[int, str] = {}
    for call, result in _match_results(first.message.tool_calls, first, rest):
        if result is not None:
            tools[result.seq] = "" if parse_transfer(call, result) else escape_name(call.name) or "a tool"
    for entry in rest:
        if entry.seq not in tools:
            yield entry, ""
        elif tools[entry.seq]:
            yield entry, tools[entry.seq]


def _drop_calls(message: Message) -> Message:
    content = message.content if isinstance(message.content, str | tuple) else ""
    return message.evolve(content=content, tool_calls=())


def _decode_object(arguments: str) -> Mapping[str, Any]:
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}


# -- what is cut of it ---------------------------------------------------------


def _strip_heading(content: Content, heading: str) -> Content:
    if isinstance(content, tuple):
        first = msgspec.structs.replace(content[0], text=str(content[0].text).removeprefix(heading))
        return (first, *content[1:])
    return str(content).removeprefix(heading)


def _restore_heading(content: Content, original: Content, heading: str) -> Content:
    """What a cut left, under its heading again, with what stands behind the cut set in."""
    if isinstance(content, tuple) and isinstance(original, tuple):
        parts = [
            part
            if was.text is None
            else msgspec.structs.replace(part, text=_indent_after_cut(str(part.text), was.text))
            for part, was in zip(content, original, strict=True)
        ]
        return (msgspec.structs.replace(parts[0], text=f"{heading}{parts[0].text}"), *parts[1:])
    return heading + _indent_after_cut(str(content), str(original))


def _indent_after_cut(text: str, original: str) -> str:
    found = _CUT.search(text) if text != original else None
    if found is None or found.end() == len(text):
        return text
    starts = len(original) - (len(text) - found.end())
    return text if original[starts - 1] == "\n" else text[: found.end()] + INDENT + text[found.end() :]
