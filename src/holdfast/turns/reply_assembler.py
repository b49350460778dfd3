"""Assemble a turn's reply as the client receives it: one message over all rounds, without the calls that Holdfast runs.

A *round* is one reply of the model together with the tools that this reply calls. The end of a turn's reply also names
artifacts: those that the turn's tools saved, and those that the text mentions as `artifact:NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from holdfast.limits import ARTIFACTS_NAMED, METADATA_BYTES
from holdfast.numbers import is_number
from holdfast.tools.tool import relax_choice
from holdfast.turns.turn import Turn
from holdfast.wire.openai import to_chat_message

STOPPED: Final = (
    "[stopped: the model called tools {rounds} times in a row, and once more where it was asked for an answer]"
)
"""Text of the reply if the model says nothing and still calls tools in the last allowed round; see `ToolLimits.rounds`."""
_NUMBERED: Final = ("thinking_blocks", "content_blocks")
"""Fields of a delta that are lists of items with an `index`, which begins at 0 in each round."""
_ROUND: Final = 10_000
"""Number that is added to each `index` for each earlier round."""
_HEAD: Final = ("id", "object", "created", "model")
"""Fields that have the same values in all chunks of a reply."""
_UNSAID: Final = frozenset({"role", "reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"})
"""Fields of a delta that are not part of the reply's text: the role, and the model's reasoning."""


class Progress(dict[str, Any]):
    """A chunk that reports the status of a tool, or of an agent of a workflow.

    Only clients that ask for such chunks receive them (`Turn.progress`).
    """

    @property
    def comment(self) -> str:
        """The report as one line of text for people."""
        status = self["holdfast"]
        return f"{'tool' if 'tool' in status else 'agent'} {status.get('tool') or status['agent']} {status['status']}"


class ReplyAssembler:
    """Assembles a turn's reply as the client receives it: one message over all rounds, without the calls that Holdfast runs.

    Attributes:
        calls: those calls in the model's last message that Holdfast runs.
        returned: those calls in the model's last message that the client runs.
        preface: text of the model's earlier messages in this turn, which the client has received.
        has_spoken: True if the client received any part of the model's last message.

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
        self._head: dict[str, Any] = before._head if before else {}  # noqa: SLF001
        self._held: list[dict[str, Any]] = []
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

    # -- chunks for the client -----------------------------------------------

    def add(self, chunk: dict[str, Any], *, finished: bool) -> Sequence[dict[str, Any]]:
        """Add a chunk of the model, and return the chunks that can be sent to the client now.

        The chunk with the finish reason and all later ones are held back.
        """
        shown = chunk if self._alone else self._filter_chunk(chunk)
        if shown is None:
            return ()
        if self._held or finished:
            self._held.append(shown)
            return ()
        self.has_spoken = self.has_spoken or any(
            _has_words(choice, ignored=_UNSAID) for choice in shown.get("choices") or ()
        )
        return (shown,)

    def start_round(self) -> Iterator[dict[str, Any]]:
        """Begin the next round, and yield those chunks of the last message, which has tool calls, that were held back.

        The finish reason is left out, because the reply continues.
        """
        held, self._held = self._held, []
        self.preface += self._text
        self._rounds += 1
        self._said = self.has_spoken = False
        for chunk in held:
            choices = [{**choice, "finish_reason": None} for choice in chunk.get("choices") or ()]
            if any(_has_words(choice) for choice in choices):
                yield {**chunk, "choices": choices}

    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the reply: the client's calls, chunks that were held back, and the usage of all rounds."""
        if self._alone:
            yield from self._held
            return
        if self._note:
            yield self._make_chunk({"content": self._note})
        if self.returned:
            yield self._make_chunk({"tool_calls": _to_wire_calls(self.returned)})
        reason = "tool_calls" if self.returned else self._reason
        for chunk in self._held:
            choices = chunk.get("choices") or ()
            yield {**chunk, "choices": [_with_finish_reason(choice, reason) for choice in choices]}
        if self._usage is not None:
            yield {**self._head, "choices": [], "usage": self._usage}

    @property
    def text(self) -> str:
        """Text of the model's last message."""
        return self._text

    @property
    def used(self) -> dict[str, Any] | None:
        """Sum of the usage that the provider reported in all rounds; None if it reported none."""
        return self._usage

    def end_with_calls(self, used: dict[str, Any] | None, before: ReplyAssembler) -> Iterator[dict[str, Any]]:
        """Yield the last chunks of a reply that consists only of calls for the client.

        The client has received no other part of the message with the calls.

        Args:
            used: usage of all agents of the turn together.
            before: the part of the turn's reply that the client received from other agents; usually empty.
        """
        self._head = before._head or self._head
        begun = {} if before._rounds else {"role": "assistant", "content": None}
        yield self._make_chunk({**begun, "tool_calls": _to_wire_calls(self.returned)})
        yield {**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        if used is not None:
            yield {**self._head, "choices": [], "usage": used}

    def separate_text(self, text: str) -> str:
        """Return a text that replaces the model's last message, with a separator in front if the client already received text.

        The separator is also added to `preface`.
        """
        return self._separate(text)

    def end_with_text(self, text: str, head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the last chunks of a reply: `text`, the finish reason, and the usage of earlier rounds.

        Args:
            text: the text, from `separate_text`.
            head: the common fields of the chunks, if no chunk was sent before.
        """
        self._head = self._head or dict(head)
        yield self._make_chunk({"role": "assistant", "content": text} if not self._rounds else {"content": text})
        yield {**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        unused = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        yield {**self._head, "choices": [], "usage": self._usage or unused}

    def report_progress(self, call: ToolCall, status: str) -> Iterator[Progress]:
        """Yield a report of a tool's status.

        Yield nothing if the tool does not exist, because the model may have made up the name.
        """
        if self._tools.find(call.name) is not None:
            fields = {"tool": call.name, "call_id": call.id, "status": status}
            yield Progress({**self._head, "choices": [], "holdfast": fields})

    def _make_chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def _filter_chunk(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """Return a chunk without calls and usage, with the common fields of the reply; None if the result would be empty."""
        before = chunk.get("choices") or ()
        if before and not self._head:  # some upstreams first send chunks that do not belong to the reply
            self._head = {key: chunk[key] for key in _HEAD if key in chunk}
        choices = [kept for choice in before if (kept := self._filter_choice(choice)) is not None]
        if not choices and (before or chunk.get("usage")):
            return None
        rest = {key: value for key, value in chunk.items() if key != "usage"}
        return {**rest, **(self._head if self._rounds else {}), "choices": choices}

    def _filter_choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        shown, dropped = dict(choice), False
        for key in ("delta", "message"):
            delta = choice.get(key)
            if not isinstance(delta, dict):
                continue
            left = {name: value for name, value in delta.items() if name != "tool_calls"}
            if self._rounds:
                left.pop("role", None)
                left |= {name: _renumber_blocks(left[name], self._rounds) for name in _NUMBERED if name in left}
            dropped = dropped or len(left) < len(delta)
            if key == "delta" or "delta" not in choice:
                left = self._separate_delta(left)
            shown[key] = left
        return None if dropped and not _has_words(shown) and shown.get("finish_reason") is None else shown

    def _separate_delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Return a delta, with a separator before its text if this is the first text of a later round."""
        content = delta.get("content")
        if self._said or not isinstance(content, str) or not content:
            return delta
        return {**delta, "content": self._separate(content)}

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


def _to_wire_calls(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    wire_calls = to_chat_message(Message(role="assistant", tool_calls=tuple(calls)))["tool_calls"]
    return [{"index": at, **call} for at, call in enumerate(wire_calls)]


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


def _has_words(choice: Mapping[str, Any], *, ignored: Collection[str] = ()) -> bool:
    """Return True if a choice's delta has a value in any field that is not in `ignored`."""
    delta = choice.get("delta", choice.get("message"))
    return isinstance(delta, dict) and any(value for name, value in delta.items() if name not in ignored)


def _with_finish_reason(choice: dict[str, Any], reason: str | None) -> dict[str, Any]:
    """Return a choice with `reason` in place of its finish reason. A choice without a finish reason stays unchanged."""
    return choice if reason is None or choice.get("finish_reason") is None else {**choice, "finish_reason": reason}


def add_usage(before: dict[str, Any] | None, usage: Any) -> dict[str, Any] | None:
    """Return the sum of the token usage of two calls. Numbers are added at any depth."""
    if not isinstance(usage, Mapping):
        return before
    if before is None:
        return dict(usage)
    return {**before, **{key: _add_numbers(before.get(key), value) for key, value in usage.items()}}


def _add_numbers(one: Any, other: Any) -> Any:
    if isinstance(other, Mapping):
        return add_usage(one if isinstance(one, dict) else None, other)
    if is_number(one) and is_number(other):
        return one + other
    return one if other is None else other


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
