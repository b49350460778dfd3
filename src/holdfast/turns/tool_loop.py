"""Run the tools that a model calls: select the calls that Holdfast runs, write their results, and give tools their context."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from holdfast import faults
from holdfast.artifacts.service import SessionArtifacts
from holdfast.domain.artifact import Artifact
from holdfast.domain.messages import ToolCall
from holdfast.domain.session import Entry
from holdfast.domain.state import join_deltas
from holdfast.errors import InvalidRequest
from holdfast.log.items import Progress
from holdfast.memory.session_memories import SessionMemories
from holdfast.tools.context import Call, State, ToolContext
from holdfast.tools.memory_files import HELD_CHANGE
from holdfast.tools.tool import CANCELLED, NOT_RUN, CallOutcome, make_failure, run
from holdfast.turns.handover import hand_over, transfer
from holdfast.turns.recall import has_foreign_quotes, open_files, search_for_tool
from holdfast.turns.reply_assembler import ReplyAssembler
from holdfast.turns.turn import Turn, TurnWarning


async def run_tools(turn: Turn, assembler: ReplyAssembler) -> None:
    """Run those calls of a message that Holdfast runs, concurrently.

    The results are in the log before the model is called again.

    If the turn is interrupted or cancelled, running tools are cancelled. Results that exist are stored, and the other
    calls get an error as their result.
    """
    running = _RunningCalls(turn, assembler)
    try:
        if not assembler.returned and (held := assembler.start_round()):
            await turn.say(held)
        for call in assembler.calls:
            await _report(turn, assembler, call, "running")
        while running.left:
            done = await turn.lock.run_interruptibly(running.wait_for_some)
            for outcome in await running.write(done):
                await _report(turn, assembler, outcome.call, "failed" if outcome.failed else "done")
        if not assembler.returned and hand_over(turn):
            assembler.switch_responder(turn.request.responder)
    finally:
        if running.left:
            await turn.settle(running.give_up())


async def _report(turn: Turn, assembler: ReplyAssembler, call: ToolCall, status: str) -> None:
    """Send the status of a call, unless its tool does not exist, because the model may have made up the name."""
    if turn.request.responder.tools.find(call.name) is not None:
        await turn.say([Progress({"tool": call.name, "call_id": call.id, "status": status}, assembler.head)])


async def record_calls_not_run(turn: Turn, assembler: ReplyAssembler) -> None:
    """Write, as the result of each call of a message, that the call did not run, because the turn had ended."""
    await turn.append([make_failure(call, NOT_RUN).message for call in assembler.calls], last=True)


class _RunningCalls:
    """The calls of a message while they run.

    Attributes:
        left: the calls whose results are not written yet, by task, in order.
    """

    def __init__(self, turn: Turn, assembler: ReplyAssembler) -> None:
        self._turn = turn
        self._returned = bool(assembler.returned)
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._queues: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._read = False
        contexts = {call.id: make_context(turn, call) for call in assembler.calls}
        self._marked = {name: context.marked for name, context in contexts.items()}
        self.left = {asyncio.ensure_future(self._run(call, contexts[call.id])): call for call in assembler.calls}

    async def _run(self, call: ToolCall, context: ToolContext) -> CallOutcome:
        tools = self._turn.request.responder.tools
        tool = tools.find(call.name)
        await faults.hit("before-tool-call")
        if tool is not None and tool.reads_state:
            await self._load_state()
        # Locks are granted in the order in which they were requested.
        async with self._queues[tool.name] if tool is not None and tool.in_order else nullcontext():
            outcome = await run(tools, call, context)
        await faults.hit("after-tool-call")
        return outcome

    async def _load_state(self) -> None:
        """Read the shared state when the first tool needs it. All calls of a message share this read."""
        async with self._reading:
            if not self._read:
                await self._turn.engine.scopes.load(self._turn.turn_state, self._turn.request.ref.user_id)
                self._read = True

    async def wait_for_some(self) -> list[asyncio.Task[CallOutcome]]:
        """Wait until at least one call has finished, and return the tasks of all finished calls."""
        done, _ = await asyncio.wait(self.left, return_when=asyncio.FIRST_COMPLETED)
        return [task for task in self.left if task in done]

    async def write(self, done: Iterable[asyncio.Task[CallOutcome]]) -> list[CallOutcome]:
        """Write the results of finished calls, and return the calls' outcomes.

        If a tool raised a `BaseException` that is not an `Exception`, the error is raised after the write.
        """
        errors = [task for task in done if task.cancelled() or task.exception() is not None]
        outcomes = [_read_outcome(task, self.left.pop(task)) for task in done]
        last = self._returned and not self.left
        await self._turn.settle(self._append(outcomes, last=last))
        for task in errors:
            task.result()
        return outcomes

    async def give_up(self) -> None:
        """Cancel the calls that still run, and write a result for each of them."""
        left, self.left = self.left, {}
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        await self._append([_read_outcome(task, call) for task, call in left.items()], last=True)

    async def _append(self, outcomes: Sequence[CallOutcome], *, last: bool) -> None:
        async with self._writing:
            try:
                await self._write(outcomes, last=last)
            except InvalidRequest:
                for left, outcome in enumerate(outcomes, 1 - len(outcomes)):
                    try:
                        await self._write([outcome], last=last and not left)
                    except InvalidRequest as exc:  # the store refuses the result, or its changes of the state
                        reason = f"the tool's result could not be stored: {exc}"
                        await self._write([make_failure(outcome.call, reason)], last=last and not left)

    async def _write(self, outcomes: Sequence[CallOutcome], *, last: bool) -> None:
        delta = join_deltas(outcome.delta for outcome in outcomes)
        noted = [{**outcome.noted, **self._marked[outcome.call.id]} or None for outcome in outcomes]
        for marked in noted:
            _warn_of_held_change(self._turn, marked or {})
        messages = [outcome.message for outcome in outcomes]
        await self._turn.append(messages, metadata=noted, state_delta=delta or None, last=last)


def _read_outcome(task: asyncio.Task[CallOutcome], call: ToolCall) -> CallOutcome:
    if task.cancelled() or task.exception() is not None:
        return make_failure(call, CANCELLED)
    return task.result()


def make_context(turn: Turn, call: ToolCall) -> ToolContext:
    """Return the context of a tool call, which gives the tool access to parts of the session."""
    ref, session = turn.request.ref, turn.session

    async def entries(start: int, stop: int) -> Sequence[Entry]:
        return await turn.engine.store.entries(ref, start=start, stop=stop)

    def can_see(entry: Entry) -> bool:
        perspective = turn.request.responder.perspective
        return perspective is None or not perspective.is_other_branch(entry)

    def note_artifact(artifact: Artifact) -> None:
        turn.artifacts[artifact.name] = max(artifact.version, turn.artifacts.get(artifact.name, 0))

    return ToolContext(
        session_id=ref.id,
        user_id=ref.user_id,
        agent=turn.request.responder.agent_name,
        state=State(turn.turn_state),
        artifacts=SessionArtifacts(turn.engine.artifacts, ref, session.identity, note_artifact),
        call=Call(
            id=call.id,
            tenant=session.tenant,
            identity=session.identity,
            unit=session.tail.unit,
            entries=entries,
            sees=can_see,
            transfer=partial(transfer, turn),
            delegate=None if turn.engine.delegate is None else partial(turn.engine.delegate, turn),
            search=None if turn.engine.index is None else partial(search_for_tool, turn),
            declared=_find_declaration(turn, call.name),
            turn=session.tail.turn_id,
            files=open_files(turn),
            reviews_files=turn.request.responder.memory_files.review,
            memories=_open_memories(turn),
            most=turn.request.responder.tools.limits.result,
        ),
    )


def _warn_of_held_change(turn: Turn, marked: Mapping[str, Any]) -> None:
    """Add a warning to the response if a call of the memory tool was held for review."""
    if (number := marked.get(HELD_CHANGE)) is not None:
        agent = turn.request.responder.agent_name
        whose = "" if agent is None else f" of the agent {agent!r:.80}"
        message = f"change {number} of the memory files{whose} is held, because its words may come from a tool: accept or reject it"
        turn.warnings.add(TurnWarning(HELD_CHANGE, message))


def _find_declaration(turn: Turn, name: str) -> Mapping[str, Any]:
    """Return the request's declaration of a tool of Anthropic's that Holdfast runs; empty if the request does not declare it."""
    tools, given = turn.request.responder.tools, turn.request.body.get("tools") or ()
    return next((one for one in given if tools.is_served(one) and tools.find(name) is tools.find(one["name"])), {})


def _open_memories(turn: Turn) -> SessionMemories:
    """Return the memories that the turn's user and agent may access."""
    ref, settings = turn.request.ref, turn.request.responder.recalls.get("memory")

    def is_in_prompt(content: str) -> bool:
        built = turn.working_set
        return built is not None and any(content in message.text for message in built.messages)

    return SessionMemories(
        turn.engine.memories,
        ref,
        turn.session.identity,
        turn.request.responder.agent_name,
        most=settings.max_results if settings else None,
        is_in_prompt=is_in_prompt,
        quotes=partial(has_foreign_quotes, turn),
        root=turn.root,
    )
