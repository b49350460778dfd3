"""The tools of a turn: which calls of a reply run here, what the client sees of it all, and how results get into the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.agents import Voice
from holdfast.artifact import Artifact
from holdfast.artifacts import SessionArtifacts
from holdfast.context.units import distinct_id
from holdfast.errors import InvalidRequest
from holdfast.handover import hand_over, transfer
from holdfast.heard import APART
from holdfast.limits import METADATA_BYTES
from holdfast.messages import Message, ToolCall
from holdfast.reminding import is_shared, looked_up
from holdfast.session import Entry
from holdfast.session_memories import SessionMemories
from holdfast.state import joined
from holdfast.tools.context import Call, State, ToolContext
from holdfast.tools.running import CANCELLED, NOT_RUN, Outcome, failure, run
from holdfast.tools.tool import name_of, relaxed
from holdfast.turning import Turn
from holdfast.wire.openai import message_to

STOPPED: Final = (
    "[stopped: the model called tools {rounds} times in a row, and once more where it was asked for an answer]"
)
"""The reply where there is none; see `ToolLimits.rounds`."""
_NUMBERED: Final = ("thinking_blocks", "content_blocks")
"""Lists of a delta whose items are told apart by their `index`, which begins anew in each round."""
_ROUND: Final = 10_000
"""What is added to it, a round."""
_HEAD: Final = ("id", "object", "created", "model")
"""Fields that all chunks of a reply have in common."""
_UNSAID: Final = frozenset({"role", "reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"})
"""Fields of a delta that are no part of what a reply says: who speaks, and what the model thought before."""


class Progress(dict[str, Any]):
    """A chunk that says what a tool, or an agent of a workflow, is doing. No plain client may see one: they are made where `Turn.progress` asks for them."""

    @property
    def comment(self) -> str:
        """The same in a line, for people."""
        told = self["holdfast"]
        return f"{'tool' if 'tool' in told else 'agent'} {told.get('tool') or told['agent']} {told['status']}"


class Shown:
    """A turn's reply as the client is sent it: one message over all its rounds, without the calls that run here.

    Attributes:
        calls: those of the last message that run here.
        returned: those of the last message that are the client's.
        preface: what the client was sent before that message: the texts that stood with calls.
        heard: whether the client was sent anything that the last message says.

    Args:
        turn: whose reply.
        used: what others used that spoke before in the same turn.
        before: what the client was sent already, by an agent that handed the conversation over.
    """

    def __init__(self, turn: Turn, used: dict[str, Any] | None = None, before: Shown | None = None) -> None:
        self._turn = turn
        self._tools = turn.request.voice.tools
        self._alone = not self._tools and turn.share is None
        self._theirs = {name_of(tool) for tool in turn.request.body.get("tools") or ()}
        self._choice = {**turn.request.voice.llm.params, **turn.request.body}.get("tool_choice")
        self._first = False
        self.calls: tuple[ToolCall, ...] = ()
        self.returned: tuple[ToolCall, ...] = ()
        self.preface: str = before.preface if before else ""
        self.heard = False
        self._rounds: int = before._rounds if before else 0  # noqa: SLF001 - its own kind
        self._head: dict[str, Any] = before._head if before else {}  # noqa: SLF001
        self._held: list[dict[str, Any]] = []
        self._said = False
        self._text = ""
        self._usage = used
        self._reason: str | None = None
        self._note = ""

    @property
    def tool_choice(self) -> Any:
        """The next call's; None: as the request has it. What was forced is forced once, and behind the last round nothing runs.

        What the client forced is not forced on the next agent; what that one's own model is configured to, it is.
        """
        if self._at_bound:
            return "none"
        if self._first:
            return relaxed(self._turn.request.body.get("tool_choice"))
        return relaxed(self._choice)

    def goes_on_with(self, voice: Voice) -> None:
        """Another agent answers from here on, with its own tools; what the client sees stays one reply."""
        self._tools, self._first = voice.tools, True
        self._choice = {**voice.llm.params, **self._turn.request.body}.get("tool_choice")

    @property
    def _at_bound(self) -> bool:
        return self._rounds >= (self._tools.limits.rounds or 1)

    # -- what a round said ---------------------------------------------------

    def taken(self, message: Message, usage: Any) -> tuple[Message, dict[str, Any] | None]:
        """A whole reply of the model as a log has it, and metadata: from here on it is known which of its calls run here."""
        if self._alone:
            return message, None
        self._first = False
        self._usage = summed(self._usage, usage)
        self.calls = self.returned = ()
        calls = _distinct(message.tool_calls)
        if self._at_bound and calls:
            return self._without_calls(message), self.metadata
        self.returned = tuple(call for call in calls if call.name in self._theirs)
        self.calls = tuple(call for call in calls if call.name not in self._theirs)
        self._text = message.text
        metadata = self.metadata if self.returned or not calls else None
        if self.calls:
            metadata = {**(metadata or {}), "returned": [at for at, call in enumerate(calls) if call in self.returned]}
        return message.evolve(tool_calls=calls), metadata

    @property
    def metadata(self) -> dict[str, Any] | None:
        """Of the message that ends the reply, whole or cut: what the client was sent before it."""
        too_long = len(self.preface) > METADATA_BYTES // 8  # of its JSON a character takes at most six bytes
        return {"preface": self.preface} if self.preface and not too_long else None

    def _without_calls(self, message: Message) -> Message:
        """The reply of a model that goes on calling when it may not: what it said, or that it was stopped."""
        self._reason = "length"
        if not message.text.strip():
            note = STOPPED.format(rounds=self._rounds)
            self._note = self._separated(note)
            message = message.evolve(content=note)
        return message.evolve(tool_calls=())

    # -- what the client is sent ---------------------------------------------

    def add(self, chunk: dict[str, Any], *, finished: bool) -> Iterator[dict[str, Any]]:
        """What of a chunk of the model can be sent on now. From the one that says why the reply ended, all are held back."""
        told = chunk if self._alone else self._seen(chunk)
        if told is None:
            return
        if self._held or finished:
            self._held.append(told)
        else:
            self.heard = self.heard or any(_says(choice, beside=_UNSAID) for choice in told.get("choices") or ())
            yield told

    def go_on(self) -> Iterator[dict[str, Any]]:
        """What was held back of a message that does not end the reply, without its end; the next round begins."""
        held, self._held = self._held, []
        self.preface += self._text
        self._rounds += 1
        self._said = self.heard = False
        for chunk in held:
            choices = [{**choice, "finish_reason": None} for choice in chunk.get("choices") or ()]
            if any(_says(choice) for choice in choices):
                yield {**chunk, "choices": choices}

    def ending(self) -> Iterator[dict[str, Any]]:
        """The end of the reply: the client's calls, what was held back, and what all rounds used."""
        if self._alone:
            yield from self._held
            return
        if self._note:
            yield self._chunk({"content": self._note})
        if self.returned:
            yield self._chunk({"tool_calls": _on_the_wire(self.returned)})
        reason = "tool_calls" if self.returned else self._reason
        for chunk in self._held:
            choices = chunk.get("choices") or ()
            yield {**chunk, "choices": [_ended(choice, reason) for choice in choices]}
        if self._usage is not None:
            yield {**self._head, "choices": [], "usage": self._usage}

    @property
    def text(self) -> str:
        """What the last message says."""
        return self._text

    @property
    def used(self) -> dict[str, Any] | None:
        """What all rounds used, as far as the provider said; None: it did not."""
        return self._usage

    def asking(self, used: dict[str, Any] | None, before: Shown) -> Iterator[dict[str, Any]]:
        """The end of a reply that is the client's calls, where the client was sent nothing of the message with them.

        Args:
            used: what all that spoke in the turn used together.
            before: what the client was sent already; mostly nothing.
        """
        self._head = before._head or self._head
        begun = {} if before._rounds else {"role": "assistant", "content": None}
        yield self._chunk({**begun, "tool_calls": _on_the_wire(self.returned)})
        yield {**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
        if used is not None:
            yield {**self._head, "choices": [], "usage": used}

    def apart(self, text: str) -> str:
        """`text` in place of the last message, set apart from what the client was sent before; noted in `preface`."""
        return self._separated(text)

    def told_instead(self, text: str, head: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The end of the reply where it has no other: `text`, why it ended, and what the rounds before used.

        Args:
            text: as `apart` gave it.
            head: what the chunks have in common, where no round before has said.
        """
        self._head = self._head or dict(head)
        yield self._chunk({"role": "assistant", "content": text} if not self._rounds else {"content": text})
        yield {**self._head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        unused = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        yield {**self._head, "choices": [], "usage": self._usage or unused}

    def progress(self, call: ToolCall, status: str) -> Iterator[Progress]:
        """What a tool is doing; nothing of one that is not there, whose name may be anything."""
        if call.name in self._tools.tools:
            told = {"tool": call.name, "call_id": call.id, "status": status}
            yield Progress({**self._head, "choices": [], "holdfast": told})

    def _chunk(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def _seen(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """`chunk` without calls and usage, and with the head of the first one; None where nothing is left of it."""
        before = chunk.get("choices") or ()
        if before and not self._head:  # some upstreams send notes ahead that are no chunks of the reply
            self._head = {key: chunk[key] for key in _HEAD if key in chunk}
        choices = [told for choice in before if (told := self._seen_choice(choice)) is not None]
        if not choices and (before or chunk.get("usage")):
            return None
        rest = {key: value for key, value in chunk.items() if key != "usage"}
        return {**rest, **(self._head if self._rounds else {}), "choices": choices}

    def _seen_choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        told, dropped = dict(choice), False
        for key in ("delta", "message"):
            said = choice.get(key)
            if not isinstance(said, dict):
                continue
            left = {name: value for name, value in said.items() if name != "tool_calls"}
            if self._rounds:
                left.pop("role", None)
                left |= {name: _further(left[name], self._rounds) for name in _NUMBERED if name in left}
            dropped = dropped or len(left) < len(said)
            if key == "delta" or "delta" not in choice:
                left = self._apart(left)
            told[key] = left
        return None if dropped and not _says(told) and told.get("finish_reason") is None else told

    def _apart(self, said: dict[str, Any]) -> dict[str, Any]:
        """The first words of a later message, set apart from what stands before them."""
        content = said.get("content")
        if self._said or not isinstance(content, str) or not content:
            return said
        return {**said, "content": self._separated(content)}

    def _separated(self, content: str) -> str:
        self._said = True
        if not self.preface or self.preface[-1].isspace() or content[0].isspace():
            return content
        self.preface += APART
        return APART + content


# -- running ---------------------------------------------------------------------


async def run_tools(turn: Turn, shown: Shown) -> AsyncGenerator[dict[str, Any], None]:
    """Run the calls that run here, side by side. Each result is in the log before the next call of the model.

    Left before its end, it cancels what still runs: what has a result by then is stored with it, the rest with an error.
    """
    under_way = _UnderWay(turn, shown)
    try:
        if not shown.returned:
            for chunk in shown.go_on():
                yield chunk
        for call in shown.calls:
            for told in shown.progress(call, "running"):
                yield told
        while under_way.left:
            done = await turn.hold.interruptible(under_way.some)
            for outcome in await under_way.write(done):
                for told in shown.progress(outcome.call, "failed" if outcome.failed else "done"):
                    yield told
        if not shown.returned and hand_over(turn):
            shown.goes_on_with(turn.request.voice)
    finally:
        if under_way.left:
            await turn.settle(under_way.give_up())


async def not_run(turn: Turn, shown: Shown) -> None:
    """Write that the calls of a message never ran, because the turn ended before."""
    await turn.append([failure(call, NOT_RUN).message for call in shown.calls], last=True)


class _UnderWay:
    """The calls of a message while they run.

    Attributes:
        left: those whose results are not being written yet, in the order of the calls.
    """

    def __init__(self, turn: Turn, shown: Shown) -> None:
        self._turn = turn
        self._returned = bool(shown.returned)
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._read = False
        contexts = {call.id: context_of(turn, call) for call in shown.calls}
        self._marked = {name: context.marked for name, context in contexts.items()}
        self.left = {asyncio.ensure_future(self._run(call, contexts[call.id])): call for call in shown.calls}

    async def _run(self, call: ToolCall, context: ToolContext) -> Outcome:
        tools = self._turn.request.voice.tools
        tool = tools.tools.get(call.name)
        if tool is not None and tool.reads_state:
            await self._load_state()
        return await run(tools, call, context)

    async def _load_state(self) -> None:
        """Have what sessions share read as it stands now: once for the calls of a message, and not where none looks at it."""
        async with self._reading:
            if not self._read:
                await self._turn.engine.scopes.load(self._turn.standing, self._turn.request.ref.user_id)
                self._read = True

    async def some(self) -> list[asyncio.Task[Outcome]]:
        """Those that are done, as soon as there are any."""
        done, _ = await asyncio.wait(self.left, return_when=asyncio.FIRST_COMPLETED)
        return [task for task in self.left if task in done]

    async def write(self, done: Iterable[asyncio.Task[Outcome]]) -> list[Outcome]:
        """Write the results of calls that are done. Raises what came out of a tool that is no `Exception`."""
        errors = [task for task in done if task.cancelled() or task.exception() is not None]
        outcomes = [_outcome(task, self.left.pop(task)) for task in done]
        last = self._returned and not self.left
        await self._turn.settle(self._append(outcomes, last=last))
        for task in errors:
            task.result()
        return outcomes

    async def give_up(self) -> None:
        """Cancel those that still run, and write what has come of all of them."""
        left, self.left = self.left, {}
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        await self._append([_outcome(task, call) for task, call in left.items()], last=True)

    async def _append(self, outcomes: Sequence[Outcome], *, last: bool) -> None:
        async with self._writing:
            try:
                await self._write(outcomes, last=last)
            except InvalidRequest:
                for at, outcome in enumerate(outcomes):
                    await self._write_or_tell(outcome, last=last and at == len(outcomes) - 1)

    async def _write_or_tell(self, outcome: Outcome, *, last: bool) -> None:
        """Write a result, or, where the store refuses it or what was written to the state with it, why."""
        try:
            await self._write([outcome], last=last)
        except InvalidRequest as exc:
            await self._write([failure(outcome.call, f"the tool's result could not be stored: {exc}")], last=last)

    async def _write(self, outcomes: Sequence[Outcome], *, last: bool) -> None:
        delta = joined(outcome.delta for outcome in outcomes)
        noted = [{**outcome.noted, **self._marked[outcome.call.id]} or None for outcome in outcomes]
        messages = [outcome.message for outcome in outcomes]
        await self._turn.append(messages, metadata=noted, state_delta=delta or None, last=last)


def _outcome(task: asyncio.Task[Outcome], call: ToolCall) -> Outcome:
    if task.cancelled() or task.exception() is not None:
        return failure(call, CANCELLED)
    return task.result()


def context_of(turn: Turn, call: ToolCall) -> ToolContext:
    """What a tool is given of the session."""
    ref, agent, session = turn.request.ref, turn.request.voice.agent, turn.session

    async def entries(start: int, stop: int) -> Sequence[Entry]:
        return await turn.engine.store.entries(ref, start=start, stop=stop)

    def sees(entry: Entry) -> bool:
        perspective = turn.request.voice.perspective
        return perspective is None or not perspective.apart(entry)

    def saved(artifact: Artifact) -> None:
        turn.artifacts[artifact.name] = max(artifact.version, turn.artifacts.get(artifact.name, 0))

    return ToolContext(
        session_id=ref.id,
        user_id=ref.user_id,
        agent=agent.name if agent else None,
        state=State(turn.standing),
        artifacts=SessionArtifacts(turn.engine.artifacts, ref, session.identity, saved),
        call=Call(
            id=call.id,
            tenant=session.tenant,
            identity=session.identity,
            unit=session.tail.unit,
            entries=entries,
            sees=sees,
            transfer=partial(transfer, turn),
            delegate=None if turn.engine.delegate is None else partial(turn.engine.delegate, turn),
            search=None if turn.engine.index is None else partial(looked_up, turn),
            memories=_memories(turn),
            most=turn.request.voice.tools.limits.result,
        ),
    )


def _memories(turn: Turn) -> SessionMemories:
    """The memories that a tool reaches: those that the turn's user and agent may see."""
    agent, ref = turn.request.voice.agent, turn.request.ref

    def told(content: str) -> bool:
        built = turn.working_set
        return built is not None and any(content in message.text for message in built.messages)

    settings = agent.recalls.get("memory") if agent else None
    return SessionMemories(
        turn.engine.memories,
        ref,
        turn.session.identity,
        agent.name if agent else None,
        most=settings.max_results if settings else None,
        told=told,
        shared=is_shared(turn),
    )


# -- shapes ----------------------------------------------------------------------


def _distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls with ids that differ: results come in any order."""
    used: set[str] = set()
    return tuple(msgspec.structs.replace(call, id=distinct_id(call.id, used)) for call in calls)


def _on_the_wire(calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    told = message_to(Message(role="assistant", tool_calls=tuple(calls)))["tool_calls"]
    return [{"index": at, **call} for at, call in enumerate(told)]


def _further(blocks: Any, rounds: int) -> Any:
    """Blocks of a later round with numbers of their own: else whoever puts deltas together would add them to earlier ones."""
    if not isinstance(blocks, list):
        return blocks
    return [
        {**block, "index": block["index"] + rounds * _ROUND}
        if isinstance(block, dict) and isinstance(block.get("index"), int)
        else block
        for block in blocks
    ]


def _says(choice: Mapping[str, Any], *, beside: Collection[str] = ()) -> bool:
    """Whether there is anything in the delta of a choice, `beside` some fields."""
    said = choice.get("delta", choice.get("message"))
    return isinstance(said, dict) and any(value for name, value in said.items() if name not in beside)


def _ended(choice: dict[str, Any], reason: str | None) -> dict[str, Any]:
    """A choice whose reply ended for another reason than the model's."""
    return choice if reason is None or choice.get("finish_reason") is None else {**choice, "finish_reason": reason}


def summed(before: dict[str, Any] | None, usage: Any) -> dict[str, Any] | None:
    """What two calls used together: numbers are added, at any depth."""
    if not isinstance(usage, Mapping):
        return before
    if before is None:
        return dict(usage)
    return {**before, **{key: _sum(before.get(key), value) for key, value in usage.items()}}


def _sum(one: Any, other: Any) -> Any:
    if isinstance(other, Mapping):
        return summed(one if isinstance(one, dict) else None, other)
    if _number(one) and _number(other):
        return one + other
    return one if other is None else other


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
