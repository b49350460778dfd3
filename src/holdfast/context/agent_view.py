"""Show an agent a session that it shares with other agents: their messages are quoted, so that the agent never takes them for its own.

The replies, tool calls and tool results of another agent become user messages. Each begins with a heading that names the agent:

    [agent researcher #qwertzui]: It lives at 12 m.
      Further lines are indented.
    [agent researcher called search with #qwertzui]: {"query": "kelp"}
    [agent researcher's tool search returned #qwertzui]: 3 pages
    [agent researcher handed the conversation over to writer #qwertzui]: They want a poem.

The heading contains the session's marker, and the quoted text is escaped; see `holdfast.context.escaping`. In a quote, every line but the
first is indented, whatever kind of line break precedes it, so that no quoted line can look like a heading. Strategies do not treat a quoted
message as a user message: it is never the task, the current message or an instruction.

Agents that run in parallel write in branches, for example `panel.optimist` and `panel.pessimist`; each entry stores its branch. An agent
sees its own branch, the branches that enclose it and the branches inside it, but no others. How a unit is shown depends on that unit only, so
a view gets the same result whether it adds a log at once or in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.context.cut import cut
from holdfast.context.escaping import escape_inline, escape_name, format_tag
from holdfast.context.units import MessageOverride, Unit
from holdfast.domain.counting import TokenCounter
from holdfast.domain.messages import UNSPOKEN_PARTS, Content, Message, Part, ToolCall
from holdfast.domain.session import BRANCH, HAND_OVER, JOINED, STEP, TRANSFER, TRANSFERRED, Entry

INDENT: Final = "  "
"""Prefix of each line of a quote except the first."""
ARGUMENT_CHARS: Final = 1_000
"""Maximum characters of a call's arguments that are quoted. Of longer arguments, only the beginning and the end are quoted."""
_SAID = "[agent {agent}{tag}]: "
_CALLED = "[agent {agent} called {tool} with{tag}]: "
_RETURNED = "[agent {agent}'s tool {tool} returned{tag}]: "
_LATE = "[agent {agent}'s tool returned late{tag}]: "
_TRANSFERRED = "[agent {agent} handed the conversation over to {target}{tag}]"
_NOTHING = "[agent {agent} said nothing{tag}]"
_LEFT_OUT = " [… {missing} of {size} characters left out, message {seq} of the session{tag} …] "
_CUT = re.compile(r"\n\[… \d+ of \d+ characters cut, [^\n]+ …\]\n")
"""Matches the note that `holdfast.context.cut` inserts. Quoted text cannot contain this line, because its lines are indented."""
_INDENT_TOKENS = 2
"""Maximum number of tokens that the indent after a cut takes."""


class Perspective(msgspec.Struct, frozen=True, kw_only=True):
    """The agent to which a session is shown, and its branch."""

    agent: str
    """Name of the agent. Its own messages, and messages without an agent, are shown as they are. All others are quoted."""
    count: Callable[[Message], int]
    """Returns the tokens of a message in the encoding of stored counts (o200k)."""
    branch: str = ""
    """The agent's branch; empty if it does not run in a branch."""
    marker: str = ""
    """The session's marker; see `holdfast.context.escaping`."""

    def view_units(self, units: Iterable[Unit]) -> list[Unit]:
        """Return units of the log in the form in which the agent sees them. Units of hidden branches are left out."""
        return [seen for unit in units if (seen := self.view_unit(unit)) is not None]

    def view_unit(self, unit: Unit) -> Unit | None:
        """Return a unit in the form in which the agent sees it: quoted if another agent wrote it, None if its branch is hidden."""
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
        """Return True if an entry belongs to a branch that neither encloses the agent's branch nor is inside it."""
        branch = (entry.metadata or {}).get(BRANCH)
        return isinstance(branch, str) and not _is_within(self.branch, branch) and not _is_within(branch, self.branch)

    def _strip_hand_over(self, unit: Unit) -> Unit:
        """Return the agent's own reply in a workflow without the call that hands over to the next workflow step."""
        first = unit.entries[0]
        return Unit(unit.entries, overrides=(self._make_override(first, "", _drop_calls(first.message)),))

    def _relay_unit(self, unit: Unit, agent: str) -> Unit:
        by = escape_name(agent)
        first, *rest = unit.entries
        if first.kind == "result":
            rest, overrides = [first], []
        else:
            calls = () if is_hand_over(first) else first.message.tool_calls
            overrides = [self._make_override(first, *_relay_reply(by, first, calls, unit.entries[1:], self.marker))]
            rest = rest if calls else [entry for entry in rest if entry.unit != first.seq]
        for entry, tool in _iter_results(first, rest):
            overrides.append(self._make_override(entry, *_relay_result(by, entry, tool, self.marker), tool=tool))
        return Unit(unit.entries, overrides=tuple(overrides), by=by)

    def _make_override(self, entry: Entry, heading: str, message: Message, *, tool: str = "") -> MessageOverride:
        return MessageOverride(entry.seq, message, self.count(message), heading, tool)


def is_hand_over(entry: Entry) -> bool:
    """Return True if `entry` is a reply in a workflow whose only call hands over to the next workflow step.

    Return False for an ordinary tool call with the same name: the model requested it, and it has a result.
    """
    calls, metadata = entry.message.tool_calls, entry.metadata or {}
    return len(calls) == 1 and calls[0].name == HAND_OVER and STEP in metadata and metadata.get("returned") == []


def quote(text: str, marker: str = "") -> str:
    """Return `text` escaped for a quote, with every line but the first indented."""
    return _indent(escape_inline(text, marker))


def _indent(text: str) -> str:
    first, *others = text.splitlines() or [""]
    return "".join((first, *(f"\n{INDENT}{line}" if line else "\n" for line in others)))


def parse_transfer(call: ToolCall, result: Entry | None) -> tuple[str, str] | None:
    """Return the target agent of a call that transfers the conversation, and the message for that agent; None for any other call.

    Args:
        call: a tool call.
        result: the result of the call; None if there is none yet.
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
    override: MessageOverride, tokens: int, *, count: TokenCounter, loads: bool = False, marker: str = ""
) -> Message:
    """Shorten another agent's message to `tokens` tokens if possible. Its heading is never cut.

    The message is cut by `holdfast.context.cut.cut`. The text after the cut is then indented, because it may start in the middle of a line.
    """
    message = override.message
    whole = count.message(message)
    if whole <= tokens:
        return message
    role = "tool" if override.tool else "assistant"
    body = message.evolve(role=role, content=_strip_heading(message.content, override.heading))
    left = tokens - (whole - count.message(body))
    for spare in (0, _INDENT_TOKENS):
        shorter = cut(body, left - spare, seq=override.seq, count=count, loads=loads, marker=marker)
        made = message.evolve(content=_restore_heading(shorter.content, body.content, override.heading))
        if count.message(made) <= tokens:
            break
    return made


# -- branches ----------------------------------------------------------------


def _is_within(branch: str, outer: str) -> bool:
    """Return True if `branch` is `outer` or inside it. Every branch is inside the empty branch."""
    return not outer or branch == outer or branch.startswith(f"{outer}.")


# -- quoting another agent ----------------------------------------------------


def _relay_reply(
    by: str, first: Entry, calls: Sequence[ToolCall], rest: Sequence[Entry], marker: str
) -> tuple[str, Message]:
    """Return the heading and the whole message that quote another agent's reply, with its calls."""
    heading = _SAID.format(agent=by, tag=format_tag(marker))
    runs = list(_iter_runs(first.message.content))
    lines = [_format_call(by, call, result, first.seq, marker) for call, result in _match_results(calls, first, rest)]
    if runs:
        return heading, Message(role="user", content=_attribute(heading, runs, lines, marker))
    lines = lines or [(_NOTHING.format(agent=by, tag=format_tag(marker)), "")]
    text = "\n".join("".join(line) for line in lines)
    return lines[0][0], Message(role="user", content=text)


def _format_call(by: str, call: ToolCall, result: Entry | None, seq: int, marker: str) -> tuple[str, str]:
    """Return the heading that quotes another agent's call, and the text that follows the heading."""
    handed = parse_transfer(call, result)
    if handed is None:
        heading = _CALLED.format(agent=by, tool=escape_name(call.name), tag=format_tag(marker))
        return heading, _quote_ends(call.arguments, seq, marker)
    target, words = handed
    heading = _TRANSFERRED.format(agent=by, target=escape_name(target), tag=format_tag(marker))
    return heading, f": {_quote_ends(words, seq, marker)}" if words else ""


def _quote_ends(text: str, seq: int, marker: str) -> str:
    """Quote `text`. Of a long text, quote only the beginning (two thirds) and the end (one third)."""
    if len(text) <= ARGUMENT_CHARS:
        return quote(text, marker)
    head = ARGUMENT_CHARS * 2 // 3
    note = _LEFT_OUT.format(missing=len(text) - ARGUMENT_CHARS, size=len(text), seq=seq, tag=format_tag(marker))
    ends = text[:head], text[len(text) - (ARGUMENT_CHARS - head) :]
    return note.join(_indent(escape_inline(end, marker)) for end in ends)


def _relay_result(by: str, result: Entry, tool: str, marker: str) -> tuple[str, Message]:
    """Return the heading and the whole message that quote a tool result of another agent."""
    own = format_tag(marker)
    heading = _RETURNED.format(agent=by, tool=tool, tag=own) if tool else _LATE.format(agent=by, tag=own)
    return heading, Message(
        role="user", content=_attribute(heading, list(_iter_runs(result.message.content)), (), marker)
    )


def _attribute(heading: str, runs: list[str | Part], lines: Iterable[tuple[str, str]], marker: str) -> Content:
    """Return the content of a quote: a heading with texts and media, then further headings with their texts.

    Args:
        heading: the first heading.
        runs: the texts and media under it.
        lines: the further headings, each with its text.
        marker: the session's marker.
    """
    attributed = [run if isinstance(run, Part) else INDENT + quote(run, marker) for run in runs]
    if runs and isinstance(runs[0], str):
        attributed[0] = heading + quote(runs[0], marker)
    else:
        attributed.insert(0, heading)
    more = "\n".join("".join(line) for line in lines)
    if more and isinstance(attributed[-1], str):
        attributed[-1] += f"\n{more}"
    elif more:
        attributed.append(more)
    if len(attributed) == 1 and isinstance(attributed[0], str):
        return attributed[0]
    return tuple(run if isinstance(run, Part) else Part("text", run) for run in attributed)


def _iter_runs(content: Content) -> Iterator[str | Part]:
    """Yield the texts and media of a content in order, adjacent texts joined. Reasoning is left out, because it is private to its agent."""
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
    """Yield each call with its result, or None if there is no result yet."""
    results: dict[str | None, list[Entry]] = {}
    for entry in rest:
        if entry.unit == first.seq:
            results.setdefault(entry.message.tool_call_id, []).append(entry)
    for call in calls:
        found = results.get(call.id)
        yield call, found.pop(0) if found else None


def _iter_results(first: Entry, rest: Sequence[Entry]) -> Iterator[tuple[Entry, str]]:
    """Yield the results to quote, in order, each with the name of its tool. The name is empty for a result whose call is not known.

    The result of a transfer is left out, because the quoted call already reports the transfer.
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


# -- cutting a quote ----------------------------------------------------------


def _strip_heading(content: Content, heading: str) -> Content:
    if isinstance(content, tuple):
        first = msgspec.structs.replace(content[0], text=str(content[0].text).removeprefix(heading))
        return (first, *content[1:])
    return str(content).removeprefix(heading)


def _restore_heading(content: Content, original: Content, heading: str) -> Content:
    """Return a cut quote with its heading put back in front, and with the text after the cut indented.

    Args:
        content: the cut quote, without its heading.
        original: the same quote before it was cut.
        heading: the heading.
    """
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
