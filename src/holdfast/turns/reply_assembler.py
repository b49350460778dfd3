"""Assemble a turn's reply as the client receives it: one message over all rounds, without the calls that Holdfast runs.

A *round* is one reply of the model together with the tools that this reply calls. The end of a turn's reply also names
artifacts: those that the turn's tools saved, and those that the text mentions as `artifact:NAME`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from holdfast.agents import Responder
from holdfast.domain.artifact import NAMED_ARTIFACTS, check_name, format_versions
from holdfast.domain.interruptions import APART
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import Entry
from holdfast.domain.state import TEMP
from holdfast.errors import HoldfastError, InvalidRequest, ModelError, ModelRejected
from holdfast.limits import ARTIFACTS_NAMED, ERROR_CHARS, METADATA_BYTES, MODEL_TRAILING_CHUNKS
from holdfast.log.items import CallArguments, CallStart, Delta, Finish, Head, Opaque, Text, Usage, has_content
from holdfast.models.codecs.chat import split_message
from holdfast.models.collect import Collector
from holdfast.numbers import add_numbers
from holdfast.stores.log import Appended
from holdfast.tools.tool import relax_choice
from holdfast.turns.model_call import OF_KEY
from holdfast.turns.prompt import fill_template
from holdfast.turns.turn import Turn

_log = logging.getLogger("holdfast.turn")
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
        calls = message.tool_calls
        if self._at_bound and calls:
            return self._remove_calls(message), self.metadata
        self.returned = tuple(call for call in calls if call.name in self._theirs)
        self.calls = tuple(call for call in calls if call.name not in self._theirs)
        self._text = message.text
        metadata = self.metadata if self.returned or not calls else None
        if self.calls:
            metadata = {**(metadata or {}), "returned": [at for at, call in enumerate(calls) if call in self.returned]}
        return message, metadata

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
            self._note = self.separate_text(note)
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
            yield split_message(Message(role="assistant", tool_calls=tuple(self.returned)))
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
        yield [*begun, *split_message(Message(role="assistant", tool_calls=tuple(self.returned)))]
        yield [Finish("tool_calls")]
        if used is not None:
            yield [Usage(used)]

    def separate_text(self, text: str) -> str:
        """Return a text that replaces the model's last message, with a separator in front if the client already received text.

        The separator is also added to `preface`.
        """
        self._said = True
        if not self.preface or self.preface[-1].isspace() or text[0].isspace():
            return text
        self.preface += APART
        return APART + text

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
                if not self._said and delta.text:  # the first text of a round
                    delta = Text(self.separate_text(delta.text), delta.choice)  # noqa: PLW2901
            elif isinstance(delta, Opaque) and delta.name in _NUMBERED and self._rounds:
                delta = Opaque(delta.name, _renumber_blocks(delta.value, self._rounds), delta.choice)  # noqa: PLW2901
            shown.append(delta)
        return shown


# -- helpers ---------------------------------------------------------------------


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


# -- writing a reply, and failure messages ------------------------------------------
#
# The text of a reply is also stored in the state under the agent's `output_key`, in the same write. A failure message
# replaces the reply if no model answers and nothing was said yet. Without it, the user of a voice agent would hear
# silence, because a voice agent cannot show an error. The failure message is in the log like any reply, but marked.


async def append_reply(
    turn: Turn,
    messages: Sequence[Message],
    text: str | None,
    *,
    state_delta: Mapping[str, Any] | None = None,
    **how: Any,
) -> Appended:
    """Write the messages that end the reply of the turn's agent, and store the text of the reply in the state.

    The state may refuse the text, for example because it is too long for a value. The reply is then written without
    storing the text, so that the reply is not lost, and a warning is logged.

    Args:
        turn: the turn of the agent.
        messages: the reply, and other messages to write with it.
        text: the text of the whole reply; None or empty: no text is stored in the state.
        state_delta: other changes of the state.
        **how: other arguments of `Turn.append`.

    Raises:
        InvalidRequest: the store refuses the messages, or the other changes.
    """
    agent = turn.request.responder.agent
    key = agent.output_key if agent is not None and text else None
    if key is None:
        return await turn.append(messages, state_delta=state_delta, **how)
    if key.startswith(TEMP):
        appended = await turn.append(messages, state_delta=state_delta, **how)
        turn.temp[key] = text
        return appended
    try:
        return await turn.append(messages, state_delta={**(state_delta or {}), key: text}, **how)
    except InvalidRequest as exc:
        appended = await turn.append(messages, state_delta=state_delta, **how)
        fields = {
            "session_id": turn.request.ref.id,
            "agent": turn.request.responder.agent_name,
            "key": key,
            "code": exc.code,
        }
        _log.warning("a reply could not be stored under its agent's output_key", extra={"fields": fields})
        return appended


def read_reply_text(messages: Sequence[Message]) -> str | None:
    """Return the text of the last assistant message; None if there is no assistant message, or the last one has tool calls."""
    last = next((one for one in reversed(messages) if one.role == "assistant"), None)
    return None if last is None or last.tool_calls else last.text


SOURCE: Final = "llm_failure"
"""Value of `metadata.source` of a failure message."""
_AGAIN: Final = "no model answered when this was asked first"


async def make_failure_text(turn: Turn, assembler: ReplyAssembler, error: ModelError) -> str | None:
    """Return the failure message that the turn's agent says after `error`, or None.

    The result is None if the agent has no failure message, if something was said already, or if a provider refused the
    caller's own key: the caller gets the error in this case, because only the caller can fix it.
    """
    agent = turn.request.responder.agent
    own_key = error.handed and isinstance(error, ModelRejected) and error.status in OF_KEY
    if agent is None or not agent.failure_message or assembler.has_spoken or own_key:
        return None
    text = await fill_template(turn.engine, turn.session, agent.failure_message, agent, turn.temp)
    return text if text.strip() else None


async def say_failure(
    turn: Turn, assembler: ReplyAssembler, text: str, error: ModelError, *, whole: Turn | None = None
) -> None:
    """Write the failure message to the log as the end of the reply, and send it.

    Args:
        turn: the turn of an agent with a failure message.
        assembler: the reply so far.
        text: the failure message, from `make_failure_text`.
        error: the error that it replaces.
        whole: the turn of which `turn` is a part; None: it is the whole turn.
    """
    agent, code, whole = turn.request.responder.agent, error.code, whole or turn
    assert agent is not None, "only an agent has a failure message"
    sent = assembler.separate_text(text)
    metadata = with_artifacts(turn, {**(assembler.metadata or {}), "source": SOURCE, "error": code})
    whole.failure = {"code": code, "message": _make_error_text(turn, error.public_message)}
    turn.engine.failures[code] += 1
    # The upstream's message is not logged, because it may quote the conversation.
    fields = {"session_id": turn.request.ref.id, "agent": agent.name, "code": code}
    _log.error("no model answered: the agent's failure message was said", extra={"fields": fields})
    reply = Message(role="assistant", content=text)
    await turn.settle(turn.append([reply], metadata=metadata, last=True))
    for deltas in assembler.end_with_text(sent, make_head(turn, turn.request.responder.llm.model)):
        await whole.say(deltas)
        whole.closed = True


def make_head(turn: Turn, model: str) -> Head:
    """Return the head of a reply that no model began."""
    name = f"chatcmpl-{turn.session.id}-{turn.session.tail.last_seq}"
    return Head({"id": name, "created": turn.engine.clock() // 1000, "model": model})


def read_failure(entry: Entry) -> dict[str, str] | None:
    """Return the `code` of the error that a failure message replaced, and a fixed `message`; None if `entry` is no failure message.

    The response reports these values if it repeats a stored failure message.
    """
    metadata = entry.metadata or {}
    if metadata.get("source") != SOURCE:
        return None
    return {"code": str(metadata.get("error", ModelError.code)), "message": _AGAIN}


def _make_error_text(turn: Turn, words: str) -> str:
    """Return the message of an error without secrets, cut to the maximum length."""
    guard = turn.engine.guard
    masked = words if guard is None else guard.mask_text(words)
    return masked if len(masked) <= ERROR_CHARS else masked[:ERROR_CHARS] + "…"
