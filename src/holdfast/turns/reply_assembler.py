"""Assemble a turn's reply as the client receives it: one message over all rounds, without the calls that Holdfast runs.

A *round* is one reply of the model together with the tools that this reply calls. The end of a turn's reply also names
artifacts: those that the turn's tools saved, and those that the text mentions as `artifact:NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from holdfast.agents import Responder
from holdfast.context.units import make_distinct_id
from holdfast.domain.artifact import NAMED_ARTIFACTS, check_name, format_versions
from holdfast.domain.interruptions import APART
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ARTIFACTS_NAMED, METADATA_BYTES, MODEL_TRAILING_CHUNKS
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Text, Usage, has_content
from holdfast.models import Collector
from holdfast.models.codecs.chat import ChatDecoder
from holdfast.numbers import add_numbers
from holdfast.tools.tool import relax_choice
from holdfast.turns.turn import Turn
from holdfast.wire.openai import to_chat_message

STOPPED: Final = (
    "[stopped: the model called tools {rounds} times in a row, and once more where it was asked for an answer]"
)
"""Text of the reply if the model says nothing and still calls tools in the last allowed round; see `ToolLimits.rounds`."""
_NUMBERED: Final = ("thinking_blocks", "content_blocks")
"""Fields of a message that are lists of items with an `index`, which begins at 0 in each round."""
_ROUND: Final = 10_000
"""Number that is added to each `index` for each earlier round."""
_UNSAID: Final = frozenset({"reasoning", "reasoning_details", "thinking_blocks"})
"""Opaque fields of a message that are not part of the reply's text, but of the model's reasoning."""


class ReplyAssembler:
    """Assembles a turn's reply as the client receives it: one message over all rounds, without the calls that Holdfast runs.

    Attributes:
        calls: those calls in the model's last message that Holdfast runs.
        returned: those calls in the model's last message that the client runs.
        collector: the model's last message, as far as it has arrived.
        preface: text of the model's earlier messages in this turn, which the client has received.
        has_spoken: True if the client received any part of the model's last message.
        head: fields of the head that the client received; empty: it received none.

    Args:
        turn: the turn of the reply.
        used: usage of the agents that answered earlier in the same turn.
        before: the reply of an agent that transferred the conversation, which this reply continues; None: no such
            agent.
    """

    def __init__(self, turn: Turn, used: dict[str, Any] | None = None, before: ReplyAssembler | None = None) -> None:
        self._turn = turn
        self._tools = turn.request.responder.tools
        self._alone = not self._tools and turn.share is None
        self._theirs = turn.client_tools
        self._choice = {**turn.request.responder.llm.params, **turn.request.body}.get("tool_choice")
        self._first = False
        self.calls: tuple[ToolCall, ...] = ()
        self.returned: tuple[ToolCall, ...] = ()
        self.preface: str = before.preface if before else ""
        self.has_spoken = False
        self._rounds: int = before._rounds if before else 0  # noqa: SLF001 - of this class
        self.head: dict[str, Any] = before.head if before else {}
        self.collector = Collector()
        self._trailing = 0
        self._held: list[list[Delta]] = []
        self._said = False
        self._text = ""
        self._usage = used
        self._reason: str | None = None
        self._note = ""

    @property
    def tool_choice(self) -> Any:
        """The `tool_choice` of the next call; None: the request's own value applies.

        A forced choice applies once. After the last allowed round, no tool may be called. If another agent takes over,
        a choice that the client forced does not apply to that agent. A choice in the configuration of that agent's
        model applies.
        """
        if self._at_bound:
            return "none"
        if self._first:
            return relax_choice(self._turn.request.body.get("tool_choice"))
        return relax_choice(self._choice)

    def switch_responder(self, responder: Responder) -> None:
        """Continue the reply with another agent and its tools. The client still receives one reply."""
        self._tools, self._first = responder.tools, True
        self._choice = {**responder.llm.params, **self._turn.request.body}.get("tool_choice")

    @property
    def _at_bound(self) -> bool:
        return self._rounds >= (self._tools.limits.rounds or 1)

    # -- replies of the model ------------------------------------------------

    def record_reply(self, message: Message, usage: Any) -> tuple[Message, dict[str, Any] | None]:
        """Return the model's complete reply as the log stores it, and its metadata. Set `calls` and `returned`."""
        if self._alone:
            return message, None
        self._first = False
        self._usage = add_usage(self._usage, usage)
        self.calls = self.returned = ()
        calls = _make_distinct(message.tool_calls)
        if self._at_bound and calls:
            return self._remove_calls(message), self.metadata
        self.returned = tuple(call for call in calls if call.name in self._theirs)
        self.calls = tuple(call for call in calls if call.name not in self._theirs)
        self._text = message.text
        metadata = self.metadata if self.returned or not calls else None
        if self.calls:
            metadata = {**(metadata or {}), "returned": [at for at, call in enumerate(calls) if call in self.returned]}
        return message.evolve(tool_calls=calls), metadata

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Metadata of the message that ends the reply: the text that the client received earlier in this turn."""
        too_long = len(self.preface) > METADATA_BYTES // 8  # a character takes at most six bytes in JSON
        return {"preface": self.preface} if self.preface and not too_long else None

    def _remove_calls(self, message: Message) -> Message:
        """Return a reply without its calls, because the model must not call tools in this round.

        If the reply has no text, the text `STOPPED` is added.
        """
        self._reason = "length"
        if not message.text.strip():
            note = STOPPED.format(rounds=self._rounds)
            self._note = self._separate(note)
            message = message.evolve(content=note)
        return message.evolve(tool_calls=())

    # -- deltas for the client -----------------------------------------------

    def begin_reply(self) -> None:
        """Prepare for a message of the model."""
        self.collector, self._trailing = Collector(), 0

    async def add(self, deltas: list[Delta]) -> bool:
        """Add the deltas of an event of the model, and send those that can be sent to the client now.

        Those of the event with the finish reason, and of later ones, are held back.

        Return True if the message has ended, and more events follow than a message has.
        """
        self.collector.add(deltas)
        shown = deltas if self._alone else self._filter(deltas)
        if self._held or self.collector.finished:
            self._held.append(shown)
            self._trailing += self.collector.finished
            return self._trailing > MODEL_TRAILING_CHUNKS
        if shown:
            self.has_spoken = self.has_spoken or any(map(_is_said, shown))
            await self._turn.send(shown)
        if self._turn.lock.interrupted:
            self._turn.lock.check()
        return False

    def start_round(self) -> list[Delta]:
        """Begin the next round, and return those deltas of the last message, which has tool calls, that were held back.

        The finish reason is left out, because the reply continues.
        """
        held, self._held = self._held, []
        self.preface += self._text
        self._rounds += 1
        self._said = self.has_spoken = False
        rest: list[Delta] = [one for deltas in held for one in deltas if not isinstance(one, Head | Finish)]
        return rest if has_content(rest) else []

    def end(self) -> Iterator[list[Delta]]:
        """Yield the end of the reply: the client's calls, deltas that were held back, and the usage of all rounds."""
        if self._alone:
            yield from filter(None, self._held)
            return
        if self._note:
            yield [Text(self._note)]
        if self.returned:
            yield _to_deltas(self.returned)
        reason = "tool_calls" if self.returned else self._reason
        for deltas in filter(None, self._held):
            yield deltas if reason is None else [_with_reason(delta, reason) for delta in deltas]
        if self._usage is not None:
            yield [Usage(self._usage)]

    @property
    def text(self) -> str:
        """Text of the model's last message."""
        return self._text

    @property
    def used(self) -> dict[str, Any] | None:
        """Sum of the usage that the provider reported in all rounds; None if it reported none."""
        return self._usage

    def end_with_calls(self, used: dict[str, Any] | None, before: ReplyAssembler) -> Iterator[list[Delta]]:
        """Yield the last deltas of a reply that consists only of calls for the client.

        The client has received no other part of the message with the calls.

        Args:
            used: usage of all agents of the turn together.
            before: the part of the turn's reply that the client received from other agents; usually empty.
        """
        begun: list[Delta] = [] if before.head else [Head(self.head)]
        yield [*begun, *_to_deltas(self.returned)]
        yield [Finish("tool_calls")]
        if used is not None:
            yield [Usage(used)]

    def separate_text(self, text: str) -> str:
        """Return a text that replaces the model's last message, with a separator in front if the client already received text.

        The separator is also added to `preface`.
        """
        return self._separate(text)

    def end_with_text(self, text: str, head: Head) -> list[list[Delta]]:
        """Return the last deltas of a reply: `text`, the finish reason, and the usage of earlier rounds.

        Args:
            text: the text, from `separate_text`.
            head: the head of the reply, if none was sent before.
        """
        begun: list[Delta] = [] if self.head else [head]
        unused = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return [[*begun, Text(text)], [Finish("stop")], [Usage(self._usage or unused)]]

    def _filter(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas without calls and usage, and without a head if the reply has one."""
        shown: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, CallStart | CallArguments | Usage):
                continue
            if isinstance(delta, Head):
                if self._rounds and self.head:
                    continue
                self.head = self.head | delta.fields
            elif isinstance(delta, Text):
                delta = self._separate_delta(delta)  # noqa: PLW2901
            elif isinstance(delta, Opaque) and delta.name in _NUMBERED and self._rounds:
                delta = Opaque(delta.name, _renumber_blocks(delta.value, self._rounds), delta.choice)  # noqa: PLW2901
            shown.append(delta)
        return shown

    def _separate_delta(self, delta: Text) -> Text:
        """Return a text, with a separator before it if it is the first text of a later round."""
        return delta if self._said or not delta.text else Text(self._separate(delta.text), delta.choice)

    def _separate(self, content: str) -> str:
        self._said = True
        if not self.preface or self.preface[-1].isspace() or content[0].isspace():
            return content
        self.preface += APART
        return APART + content


# -- helpers ---------------------------------------------------------------------


def _make_distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with a distinct id each, because results refer to calls by id, in any order."""
    used: set[str] = set()
    return tuple(msgspec.structs.replace(call, id=make_distinct_id(call.id, used)) for call in calls)


def _to_deltas(calls: Sequence[ToolCall]) -> list[Delta]:
    wire_calls = to_chat_message(Message(role="assistant", tool_calls=tuple(calls)))["tool_calls"]
    return ChatDecoder().decode({"choices": [{"delta": {"tool_calls": wire_calls}}]})


def _renumber_blocks(blocks: Any, rounds: int) -> Any:
    """Return the blocks of a later round with higher indexes, so that clients do not merge them into earlier blocks."""
    if not isinstance(blocks, list):
        return blocks
    return [
        {**block, "index": block["index"] + rounds * _ROUND}
        if isinstance(block, dict) and isinstance(block.get("index"), int)
        else block
        for block in blocks
    ]


def _is_said(delta: Delta) -> bool:
    """Return True for a part of the reply that the client shows: neither reasoning nor a beginning."""
    if isinstance(delta, Opaque):
        return delta.in_message and delta.choice is not None and delta.name not in _UNSAID and bool(delta.value)
    return isinstance(delta, CallStart) or (isinstance(delta, Text) and bool(delta.text))


def _with_reason(delta: Delta, reason: str) -> Delta:
    return Finish(reason, delta.choice, delta.extra) if isinstance(delta, Finish) else delta


def add_usage(before: dict[str, Any] | None, usage: Any) -> dict[str, Any] | None:
    """Return the sum of the token usage of two calls. Numbers are added at any depth."""
    if not isinstance(usage, Mapping):
        return before
    added: dict[str, Any] = add_numbers(before or {}, usage)
    return added


_MENTION: Final = re.compile(r"\bartifact:((?:user:)?[^\s\"'`<>\[\]{}|\\^*]+)")
_BEHIND: Final = ".,;:!?)"
"""Punctuation marks that are removed from the end of a mentioned name, unless they belong to an artifact's name."""


async def with_named_artifacts(turn: Turn, text: str | None, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a reply's metadata with the artifacts that the turn's tools saved or that the text names.

    Args:
        turn: the turn of the reply.
        text: the reply's text.
        metadata: the metadata so far.

    Returns:
        The metadata with the field `artifacts`; unchanged if there are no artifacts.
    """
    for candidates in _find_mentions(text or ""):
        await _note_artifact(turn, candidates)
    return with_artifacts(turn, metadata)


def with_artifacts(turn: Turn, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a reply's metadata with the artifacts that are recorded in the turn; unchanged if there are none."""
    return {**(metadata or {}), NAMED_ARTIFACTS: format_versions(turn.artifacts)} if turn.artifacts else metadata


def take_artifacts(turn: Turn, entry: Entry) -> None:
    """Add the artifacts that a stored reply names to the turn, because the turn repeats this reply."""
    for one in (entry.metadata or {}).get(NAMED_ARTIFACTS, ()):
        turn.artifacts[one["name"]] = one["version"]


def _find_mentions(text: str) -> Iterator[list[str]]:
    """Yield a list for each mention of an artifact in a text: the possible names of the artifact, the longest first."""
    if "artifact:" not in text:
        return
    seen: dict[str, None] = {}
    for found in _MENTION.finditer(text):
        if len(seen) >= ARTIFACTS_NAMED:
            return
        if found[1] not in seen:
            seen[found[1]] = None
            name = unquote(found[1])
            yield list(dict.fromkeys([name, name.rstrip(_BEHIND), name.split(")", 1)[0]]))


async def _note_artifact(turn: Turn, candidates: list[str]) -> None:
    """Record the first of the possible names for which an artifact exists.

    An artifact that the store cannot read is skipped, because the reply is more important.
    """
    for name in candidates:
        try:
            whole = check_name(name)
        except InvalidRequest:
            continue
        if whole in turn.artifacts:
            return
        try:
            artifact = await turn.engine.artifacts.get(turn.request.ref, whole)
        except HoldfastError:
            continue
        turn.artifacts[artifact.name] = artifact.version
        return
