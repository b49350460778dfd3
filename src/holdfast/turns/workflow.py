"""Run a workflow: agents that answer one request together, one after the other or in parallel, in one turn.

    run_workflow -> aside … -> reply
    aside: one agent | each of a sequence | in parallel
    reply: one agent | the last of a sequence | in parallel -> joined

Each agent has its own model, view and tools. The last agent writes the reply. The texts of the other agents are in the
log, but are not sent to the client. Each of these texts ends with an artificial call, `hand_over`. So the text is
treated like a tool message wherever transcripts are returned or matched. After a crash, the turn continues after the
agents whose texts are complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.agents import Agent, Responder
from holdfast.context.agent_view import is_hand_over
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import HAND_OVER, STEP
from holdfast.domain.state import TEMP
from holdfast.engine.branches import Branch, Share, WriteArbiter
from holdfast.engine.session_lock import SessionLock
from holdfast.errors import BudgetTooSmall, Conflict, HoldfastError, InvalidRequest, ModelError, StaleSession
from holdfast.log.align import Plan
from holdfast.log.items import Delta, Progress
from holdfast.stores.walk import read_entries_until
from holdfast.tools.tool import relax_choice
from holdfast.turns.handover import may_share_key
from holdfast.turns.reply_assembler import ReplyAssembler, add_usage, make_failure_text, make_head, say_failure
from holdfast.turns.scope import compact
from holdfast.turns.turn import Send, Turn

Speak = Callable[[Turn, ReplyAssembler], Awaitable[None]]
"""Function that lets one agent answer. It sends everything but the end of the reply."""
HANDED_OVER: Final = "[handed over]"
"""Text of the tool result that follows a call `HAND_OVER`."""
SILENT: Final = "[agent {agent} did not answer: {code}]"
"""Text in place of an agent's own text, if the agent failed in a `parallel` in which other agents answered."""
PLACE: Final = "**{agent}**\n\n{text}"
"""Format of each agent's text in a reply that joins the texts of several agents."""
_ITS_OWN: Final = (ModelError, BudgetTooSmall, InvalidRequest)
"""Errors that prevent one agent of a `parallel` from answering, but not the others."""
_OF_THE_REPLY: Final = frozenset({"n", "response_format", "tool_choice"})
"""Fields of a request that apply only to the reply itself, which the last agent writes."""
_OF_TOOLS: Final = frozenset({"tools", "functions", "function_call", "parallel_tool_calls"})
_RACES: Final = 16
"""Maximum number of attempts to write while the session is also written to outside of turns."""


class _Place(NamedTuple):
    """The position of an agent in a workflow: its lock, and its path."""

    lock: SessionLock
    names: tuple[str, ...] = ()
    """The branch: the path from the outermost workflow to the agent, as names of workflows and agents."""
    joined: bool = False

    @property
    def branch(self) -> str:
        return ".".join(name.replace("%", "%25").replace(".", "%2E") for name in self.names)

    def enter(self, workflow: str, agent: str, lock: SessionLock) -> _Place:
        """Return the position of `agent` within the `parallel` agent `workflow`, which is at this position."""
        around = self.names if self.names[-1:] == (workflow,) else (*self.names, workflow)
        return self._replace(lock=lock, names=(*around, agent))


class _Failed(NamedTuple):
    """An agent that did not answer, and its error."""

    part: Turn
    assembler: ReplyAssembler
    error: HoldfastError


async def run_workflow(turn: Turn, speak: Speak, before: ReplyAssembler) -> None:
    """Send the complete reply of a turn whose agent is a workflow.

    Args:
        turn: the turn of the session.
        speak: the function that lets one agent answer.
        before: the part of the reply that the client received before the conversation was transferred to the workflow;
            usually empty.

    Raises:
        ModelError: an agent of a sequence, or every agent of a `parallel`, did not answer. The error is the one of the
            first agent that failed. If nothing was said yet, no error is raised if the workflow or this agent has a
            failure message; the workflow's message comes first.
    """
    workflow = _Workflow(turn, speak, await _read_finished(turn), before)
    try:
        await workflow.run(turn.request.responder, _Place(turn.lock), ends=True)
    except ModelError as exc:
        if not await workflow.say_failure(exc):
            raise
    finally:
        workflow.finish()


class _Workflow:
    """A workflow in progress.

    Args:
        turn: the turn of the session.
        speak: the function that lets one agent answer.
        finished_texts: texts of agents that finished in an earlier attempt, by agent. New texts are added.
        before: the part of the reply that the client received already; usually empty.
    """

    def __init__(self, turn: Turn, speak: Speak, finished_texts: dict[str, str], before: ReplyAssembler) -> None:
        self._turn = turn
        self._speak = speak
        self._said = finished_texts
        self._root = turn.request.responder
        self._arbiter = WriteArbiter()
        self._parts: list[Turn] = []
        self._failed: list[_Failed] = []
        self._before = before
        self._used = before.used

    async def run(self, responder: Responder, place: _Place, *, ends: bool) -> None:
        """Run an agent or a workflow.

        A sequence stops if one of its agents ends the turn by calling a tool of the client.

        Args:
            responder: the agent or workflow.
            place: its position.
            ends: True if it writes the end of the turn's reply. Of a sequence, the last agent does. False: only its
                progress is sent.
        """
        if _get_agent(responder).parallel:
            place = place._replace(joined=place.joined or ends)
            await self._run_side_by_side(responder, place)
            if ends:
                await self._send_joined(responder, place)
        elif responder.steps:
            for at, step in enumerate(responder.steps, 1):
                if self._turn.closed:
                    return
                await self.run(step, place, ends=ends and at == len(responder.steps))
        else:
            await (self._run_last if ends else self._run_one)(responder, place)

    # -- the reply -----------------------------------------------------------

    async def _run_last(self, responder: Responder, place: _Place) -> None:
        """Run one agent whose text is streamed to the client."""
        part = await self._make_part(responder, place, Share(ends=True), self._turn.request.body)
        assembler = ReplyAssembler(part, self._used, self._before)
        try:
            await self._speak(part, assembler)
        except ModelError as exc:
            self._failed.append(_Failed(part, assembler, exc))
            raise
        self._turn.request, self._turn.working_set = part.request, part.working_set
        self._turn.closed = True
        for deltas in assembler.end():
            await self._turn.send(deltas)

    async def _send_joined(self, responder: Responder, place: _Place) -> None:
        """Join the texts of parallel agents to one reply."""
        part = await self._make_part(responder, place, Share(ends=True), self._turn.request.body)
        text, llm = self._collect_text(responder), responder.llm
        assembler = ReplyAssembler(part, self._used, self._before)
        separated = assembler.separate_text(text)
        reply = Message(role="assistant", content=text)
        await part.settle(part.append([reply], metadata=assembler.metadata, last=True))
        self._turn.request = msgspec.structs.replace(self._turn.request, responder=responder)
        for deltas in assembler.end_with_text(separated, make_head(self._turn, llm.model)):
            await self._turn.say(deltas)
            self._turn.closed = True

    # -- agents before the last ------------------------------------------------

    async def _run_one(self, responder: Responder, place: _Place) -> None:
        """Run one agent whose text is passed on to the next agents instead of the client."""
        name, left_out = _get_agent(responder).name, _OF_THE_REPLY | (_OF_TOOLS if place.names else frozenset())
        if name in self._said:
            return
        body = {key: value for key, value in self._turn.request.body.items() if key not in left_out}
        if "tools" in body and (choice := relax_choice(self._turn.request.body.get("tool_choice"))) is not None:
            body["tool_choice"] = choice
        share = Share(step=name, joined=place.joined, branch=place.branch)
        part = await self._make_part(responder, place, share, body)
        part.send = partial(_send_progress, self._turn.send)
        assembler = ReplyAssembler(part)
        await self._report(part, "running")
        try:
            await self._speak(part, assembler)
        except _ITS_OWN as exc:
            self._failed.append(_Failed(part, assembler, exc))
            await self._report(part, "failed")
            raise
        finally:
            self._used = add_usage(self._used, assembler.used)
        await self._report(part, "done")
        if assembler.returned:
            self._turn.closed = True
            for deltas in assembler.end_with_calls(self._used, self._before):
                await self._turn.send(deltas)
        else:
            self._said[name] = assembler.text

    # -- agents in parallel ----------------------------------------------------

    async def _run_side_by_side(self, responder: Responder, place: _Place) -> None:
        """Run the agents of a `parallel` at the same time.

        If some agents fail and others answer, a note replaces the text of each agent that failed.
        """
        places = [
            place.enter(
                _get_agent(responder).name,
                _get_agent(step).name,
                Branch(place.lock, self._turn.engine.locks, self._arbiter),
            )
            for step in responder.steps
        ]
        tasks = [
            asyncio.ensure_future(self._run_branch(step, own))
            for step, own in zip(responder.steps, places, strict=True)
        ]
        running = set(tasks)
        try:
            while running:
                wait = partial(asyncio.wait, running, return_when=asyncio.FIRST_COMPLETED)
                done, running = await place.lock.run_interruptibly(wait)
                for task in done:
                    if not isinstance(task.exception(), (type(None), *_ITS_OWN)):
                        task.result()
        finally:
            if not all(task.done() for task in tasks):
                ending = self._turn.engine.locks.begin(self._turn.request.ref, _cancel_tasks(tasks))
                place.lock.keep_open_for(ending)
                await asyncio.shield(ending)
        errors = [task.exception() for task in tasks]
        if all(errors):
            raise errors[0] or AssertionError
        for step, own, error in zip(responder.steps, places, errors, strict=True):
            if isinstance(error, HoldfastError):
                await self._record_silence(step, own._replace(lock=place.lock), error)

    async def _run_branch(self, step: Responder, place: _Place) -> None:
        """Run one agent of a `parallel` until its writes have ended."""
        assert isinstance(place.lock, Branch), "an agent in parallel has a branch"
        try:
            await self.run(step, place, ends=False)
        finally:
            await asyncio.shield(self._turn.engine.locks.begin(self._turn.request.ref, place.lock.end()))

    async def _record_silence(self, responder: Responder, place: _Place, error: HoldfastError) -> None:
        """Write a note to the log that an agent failed, in place of the agent's text."""
        name = _get_agent(responder).name
        share = Share(step=name, joined=place.joined, branch=place.branch)
        part = await self._make_part(responder, place, share, {})
        self._said[name] = SILENT.format(agent=name, code=error.code)
        messages, noted = hand_over_reply(
            part, Message(role="assistant", content=self._said[name]), {"error": error.code}
        )
        await part.settle(part.append(messages, metadata=noted))

    # -- all agents ------------------------------------------------------------

    async def _make_part(self, responder: Responder, place: _Place, share: Share, body: Mapping[str, Any]) -> Turn:
        if not responder.steps and not may_share_key(self._turn, responder):
            message = f"{_get_agent(responder).name} cannot speak: the user's own key may not be sent to the provider of its model"
            raise InvalidRequest(message, param="agent")
        responder = msgspec.structs.replace(responder, branch=place.branch)
        part = self._turn.make_part(responder, share, place.lock, body)
        part.learned = await self._turn.engine.learning.get(responder.llm)
        self._parts.append(part)
        return part

    def _collect_text(self, responder: Responder) -> str:
        """Return the text of an agent.

        If it is a workflow, return the text of its last agent, or the joined texts of parallel agents.
        """
        if _get_agent(responder).parallel:
            places = ((_get_agent(step).name, self._collect_text(step)) for step in responder.steps)
            return "\n\n".join(PLACE.format(agent=name, text=text) for name, text in places)
        return (
            self._collect_text(responder.steps[-1])
            if responder.steps
            else self._said.get(_get_agent(responder).name, "")
        )

    async def _report(self, part: Turn, status: str) -> None:
        """Send what an agent is doing."""
        responder = part.request.responder
        fields = {"agent": _get_agent(responder).name, "status": status}
        if responder.branch:
            fields["branch"] = responder.branch
        await part.say([Progress(fields, make_head(self._turn, responder.llm.model).fields)])

    async def say_failure(self, error: ModelError) -> bool:
        """Say the failure message of the workflow, or, if it has none, that of the agent that failed with `error`.

        Return False if there is none to say.
        """
        failed = next(one for one in self._failed if one.error is error)
        aside = failed.part.share is not None and failed.part.share.step is not None
        assembler = ReplyAssembler(failed.part, self._used, self._before) if aside else failed.assembler
        responder = self._root if _get_agent(self._root).failure_message else failed.part.request.responder
        responder = msgspec.structs.replace(responder, branch="")
        closer = self._turn.make_part(responder, Share(ends=True), self._turn.lock, {})
        text = await make_failure_text(closer, assembler, error)
        if text is not None:
            await say_failure(closer, assembler, text, error, whole=self._turn)
        return text is not None

    def finish(self) -> None:
        """Schedule the background work after a turn (`compact`) for each agent that took part in the turn."""
        for part in self._parts:
            self._turn.wrote = self._turn.wrote or part.wrote
            if part.request is not self._turn.request:
                compact(part)


async def _send_progress(send: Send, deltas: list[Delta]) -> None:
    """Send deltas of an agent whose text the client does not get: only its progress."""
    if isinstance(deltas[0], Progress):
        await send(deltas)


async def _cancel_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel running agents and wait for them. Each agent's received text is in the log afterwards."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        _ = task.cancelled() or task.exception()


def _get_agent(responder: Responder) -> Agent:
    assert responder.agent is not None, "workflows are made of agents"
    return responder.agent


# -- handing over ------------------------------------------------------------------


def hand_over_reply(
    turn: Turn, reply: Message, metadata: dict[str, Any] | None
) -> tuple[list[Message], list[dict[str, Any] | None]]:
    """Return the messages that end an agent's text, and the metadata of each message.

    If other agents follow, an artificial call `hand_over` is added to the reply, followed by its result. Otherwise only
    the reply is returned.
    """
    if turn.share is None or turn.share.step is None:
        return [reply], [metadata]
    call = ToolCall(f"{HAND_OVER}_{turn.share.step}", HAND_OVER, "{}")
    noted = {name: value for name, value in (metadata or {}).items() if name != "preface"}
    result = Message(role="tool", content=HANDED_OVER, tool_call_id=call.id)
    return [reply.evolve(tool_calls=(call,)), result], [{**noted, "returned": []}, None]


async def _read_finished(turn: Turn) -> dict[str, str]:
    """Return the texts that agents completed in an earlier attempt at this turn, by agent, and remove the texts that were cut off."""
    if turn.session.tail.last_kind == "user":
        return {}
    entries, _ = await read_entries_until(
        turn.engine.store, turn.request.ref, lambda entry: entry.kind == "user", keep=is_hand_over, descending=True
    )
    cut = [entry.seq for entry in entries if (entry.metadata or {}).get("interrupted")]
    if cut:
        await _retire_units(turn, cut)
    done: dict[str, str] = {}
    for entry in entries:  # the newest first
        if entry.seq not in cut:
            done.setdefault(str((entry.metadata or {}).get(STEP)), entry.message.text)
    for name, text in done.items():
        agent = turn.roster.agents.get(name)
        if agent is not None and agent.output_key and agent.output_key.startswith(TEMP):
            turn.temp.setdefault(agent.output_key, text)
    return done


async def _retire_units(turn: Turn, units: Sequence[int]) -> None:
    """Remove messages of the turn, with their results, from the conversation. The entries after them are written again.

    An agent whose text was cut off answers again from the beginning. A model that saw the cut text would only continue
    it.
    """
    first, ref = min(units), turn.request.ref
    for _ in range(_RACES):
        version = (await turn.engine.store.get(ref)).version
        later = await turn.engine.store.entries(ref, start=first)
        plan = Plan("regenerated", retire_from=first, restore=tuple(one for one in later if one.unit not in units))
        try:
            await turn.settle(turn.append((), plan=plan, expect=version))
        except StaleSession:  # there was a write outside of turns: read again
            continue
        return
    raise Conflict(f"session {ref.id!r} is being written to constantly: try again")
