"""The prompt of a turn's next call: what it is built for, from what is remembered or from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Llm, Voice
from holdfast.context.build import Draft, Request, WorkingSet, draft, draft_on
from holdfast.context.introduced import Introduction
from holdfast.context.recalled import Recall
from holdfast.domain.calibration import Learned
from holdfast.domain.messages import Message
from holdfast.domain.session import Session, SessionRef, is_child
from holdfast.engine.engine import Engine
from holdfast.errors import BudgetTooSmall, InvalidRequest, SessionNotFound
from holdfast.limits import INLINE_MESSAGES
from holdfast.media.leaving import for_model
from holdfast.overlays.views import ReadView, read_view
from holdfast.overlays.warm import WarmSession, heavy
from holdfast.turns.instructing import instructed
from holdfast.turns.introducing_memories import introduced
from holdfast.turns.recalling import budgets_of, keep, recalled
from holdfast.turns.session_passages import prepare_recall, recall_session
from holdfast.turns.turn import Turn, TurnRequest
from holdfast.turns.voice_records import check_interruptable
from holdfast.wire import anthropic_request
from holdfast.wire.anthropic_others import plain_prompt, without_anthropics
from holdfast.wire.media import behind_results
from holdfast.wire.openai import message_to

_RECOUNTS = 3
"""Times that a prompt is built anew because the provider's own count of it is over the budget."""


async def build_prompt(turn: Turn) -> WorkingSet:
    """Build the working set for the next call from the log as it stands, and its instruction from the state.

    Raises:
        MissingState: the instruction needs state, or an artifact, that is not there.
        BudgetTooSmall: no legal working set fits.
    """
    turn.instruction = await instructed(turn.engine, turn.session, turn.request.voice, turn.temp)
    turn.introduction = await introduced(turn.engine, turn.session, turn.request.voice)
    await recalled(turn)
    built = await _build(turn)
    if await _summarized(turn, built):
        built = await _build(turn)
    if turn.request.voice.llm.count is not None:
        built = await _recounted(turn, built)
    keep(turn, built)
    return built


async def _summarized(turn: Turn, built: WorkingSet) -> bool:
    """Whether a summary was laid, because without one the digest had to take a step for this call to fit."""
    if not turn.stepped or built.request.policy.summarizer is None:
        return False
    if not await turn.engine.compactor.inline(turn.request.ref, turn.request.voice, built.request):
        return False
    turn.forget_step()
    return True


async def _build(turn: Turn) -> WorkingSet:
    made = working_set_request(
        turn.request,
        turn.session,
        turn.instruction,
        marker=await turn.engine.markers.of(turn.session),
        learned=turn.learned,
        input_budget=turn.input_budget,
        recall=turn.recalls.get(turn.request.voice.agent_name),
        introduction=turn.introduction,
    )
    if turn.without and (without := turn.without.get(turn.request.voice.llm.name)):
        made = msgspec.structs.replace(made, without=dict(without))
    key = turn.key
    built = await _build_warm(turn, made, key)
    if built is None:
        built = await _build_cold(turn, made, key)
    turn.working_set = built
    return built


async def _finish(turn: Turn, drafted: Draft) -> WorkingSet:
    """Add to a prompt what it recalls of the session itself."""
    prepare_recall(turn.engine, turn.session, drafted)
    found = await recall_session(turn.engine, turn.session, drafted)
    return drafted.finish(found.items, found.missed)


async def _build_warm(turn: Turn, made: Request, key: str) -> WorkingSet | None:
    """Build from the view that is carried on; None where there is none, or it does not fit as it is: read anew, it may with less."""
    warm = turn.engine.warm.get(turn.request.ref)
    if warm is None or warm.key != key or not warm.holds(turn.session) or turn.branched:
        return None
    try:
        drafted = await run_cpu(lambda: draft_on(made, warm.view, reduced=False), long=warm.heavy)
    except BudgetTooSmall:
        return None
    built = await _finish(turn, drafted)
    turn.remember(key, built, warm.saved, turn.session.version)
    return built


async def _build_cold(turn: Turn, made: Request, key: str) -> WorkingSet:
    """Build from what the store has, and remember the view for the next turn."""
    ref, engine = turn.request.ref, turn.engine
    read = await read_view(engine.store, ref, key)
    if read.session.identity != turn.session.identity:  # that of the turn was deleted
        raise SessionNotFound(ref.id)
    drafted = await run_cpu(lambda: draft_from(made, read), long=made.policy.history > 0 or heavy(read.entries))
    built = await _finish(turn, drafted)
    if built.reduced:
        engine.warm.forget(ref)
    elif not turn.branched:
        engine.warm.put(ref, WarmSession(read.session, read.entries, key, built.view, read.saved))
    turn.remember(key, built, read.saved, read.session.version)
    return built


def draft_from(made: Request, read: ReadView) -> Draft:
    """The working set for `made`, up to what is recalled in it, from a view as it was read."""
    return draft(made, read.state, read.head, read.entries, live=read.live, anchor=read.session.tail.anchor)


async def _recounted(turn: Turn, built: WorkingSet) -> WorkingSet:
    """`built`, counted by the provider too; built anew as long as that is more than the budget has."""
    llm, learning = turn.request.voice.llm, turn.engine.learning
    for _ in range(_RECOUNTS):
        turn.provider_count = await provider_count(turn.engine, turn.request.ref, llm, built)
        if turn.provider_count is None:
            break
        turn.learned = learning.reported(llm, built.total_tokens, turn.provider_count)
        if built.request.budget is None or turn.provider_count <= built.request.budget.input:
            break
        built = await _build(turn)
    return built


async def provider_count(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> int | None:
    """Tokens of a prompt by its provider's own count; None where that is not asked, or does not say."""
    if llm.count is None:
        return None
    tools = {"tools": built.request.tools} if built.request.tools else {}
    messages = await sendable(engine, ref, llm, built)
    return await llm.prompt_tokens({"model": llm.model, "messages": messages, **tools})


async def sendable(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> list[dict[str, Any]]:
    """A prompt as Chat Completions messages, ready to send: its media in it, as far as the model takes them."""
    as_chat = llm.dialect == "openai"
    many = len(built.messages) > INLINE_MESSAGES
    if as_chat and (plain := await run_cpu(plain_prompt, built.messages, long=many)) is not None:
        return plain
    told = await for_model(engine.store, ref, built.messages, llm.inputs, as_chat=as_chat)
    return await run_cpu(lambda: [*map(message_to, acceptable(llm, told) if as_chat else told)], long=many)


def acceptable(llm: Llm, messages: Sequence[Message]) -> Sequence[Message]:
    """A prompt in Chat Completions, without what only others take: Anthropic's own fields, media in results of tools."""
    if "claude" in llm.model.lower():  # whoever routes to Claude knows all that it takes
        return messages
    told = [without_anthropics(message) for message in messages]
    return told if llm.records else behind_results(told)  # a record stands for one message of the log


def working_set_request(
    request: TurnRequest,
    session: Session,
    instruction: tuple[Message, ...],
    *,
    marker: str,
    learned: Learned,
    input_budget: int | None = None,
    recall: Recall | None = None,
    introduction: Introduction | None = None,
) -> Request:
    """What the working set of a turn is built for: agent's instruction first, then the request's or session's system.

    Args:
        request: the turn's.
        session: as it stands.
        instruction: what the agent is told, as `holdfast.turns.instructing` makes it.
        marker: the session's, see `holdfast.engine.markers`.
        learned: what is known of the model from its provider's answers.
        input_budget: tokens for the whole prompt; None: what the model's window leaves.
        recall: what may be recalled in it; None: nothing was looked for, and its room is kept free.
        introduction: what is known since before the session, as `holdfast.turns.introducing_memories` makes it.
    """
    voice, body = request.voice, request.body
    tools = _tools(voice.tools.offered({**body, "tools": _tools(body)}))
    budget = voice.policy.cap(voice.llm.budget(reply_tokens(body), tools=bool(tools), learned=learned))
    # In the session of an agent's call, another agent speaks as the user.
    policy = msgspec.structs.replace(voice.policy, facts=False) if is_child(session.ref) else voice.policy
    made = Request(
        policy=policy,
        count=voice.llm.counter,
        input_budget=budget.counted if input_budget is None else min(input_budget, budget.counted),
        budget=budget,
        measure=voice.llm.measure(learned),
        system=(*instruction, *(request.system or session.system_messages)),
        tools=tools,
        dialect=request.dialect or voice.llm.dialect,
        upstream=voice.llm.name,
        loads=voice.loads,
        recall=recall or Recall(budgets=budgets_of(voice)),
        introduction=introduction,
    )
    return made.with_marker(marker)


def check_body(voice: Voice, body: Mapping[str, Any], learned: Learned | None = None) -> None:
    """Refuse what no working set can be built for, before anything is written.

    Raises:
        InvalidRequest: `tools` are none, `interruptable` is neither true nor false, the agent names others that are not there, the tools
            that run here do not go with the request, or `max_tokens` leaves no room for a prompt.
    """
    tools = _tools(body)
    check_interruptable(body)
    if voice.unknown and voice.agent is not None:
        message = f"agent {voice.agent.name!r} names agents that are not there: {', '.join(voice.unknown)}"
        raise InvalidRequest(message, param="agent")
    if voice.steps:
        _check_steps(voice, body)
        return
    voice.tools.check(body)
    if voice.llm.dialect == "anthropic":
        anthropic_request.check({**voice.llm.params, **body})
    voice.llm.budget(reply_tokens(body), tools=bool(tools or voice.tools), learned=learned)


def _check_steps(voice: Voice, body: Mapping[str, Any]) -> None:
    """Refuse what one of those cannot serve that speak in the place of `voice`. Raises `InvalidRequest`."""
    if (body.get("n") or 1) != 1:
        raise InvalidRequest("n must be 1 where several agents speak: only one reply can go on", param="n")
    for step in voice.steps:
        check_body(step, body)


def _tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = body.get("tools")
    if tools is None:
        return ()
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequest("tools must be a list of tools", param="tools")
    for at, tool in enumerate(tools):
        if not isinstance(tool, Mapping) or not all(
            isinstance(tool.get(key, {}), Mapping) for key in ("function", "custom")
        ):
            raise InvalidRequest(f"tools[{at}] must be an object with a type and a function", param=f"tools[{at}]")
    return tools


def reply_tokens(body: Mapping[str, Any]) -> int | None:
    """Tokens that a request allows the reply; None where it does not say."""
    return body.get("max_completion_tokens") or body.get("max_tokens")
