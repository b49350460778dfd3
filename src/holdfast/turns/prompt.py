"""Build the prompt of a turn's next call, from the cached session or from the store.

The agent's instruction is a template, filled with values of the session's state and with artifacts. A template with
placeholders costs one read of exactly the shared keys and artifacts that it names; without placeholders, nothing is
read. Prompts of agents that recall memories also contain promoted memories from before the session.

A *view* is the cached state of the prompt builder for one model and agent. It keeps the beginnings of successive
prompts equal.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.accounting import run_cpu
from holdfast.agents import Agent, Llm, Responder
from holdfast.artifacts.content import decode_text
from holdfast.context.build import Draft, Request, WorkingSet, draft, draft_from_view
from holdfast.context.recalled import KNOWN_SHARE as SHARE
from holdfast.context.recalled import Introduction, Recall, make_introduction
from holdfast.domain.calibration import Learned
from holdfast.domain.compaction import CompactionOrder
from holdfast.domain.messages import NOTE, Message
from holdfast.domain.provider_items import drop_items
from holdfast.domain.session import Session, SessionRef, StoredCompaction, is_child, is_unplaced
from holdfast.domain.state import TEMP
from holdfast.domain.templates import ARTIFACT, Template, parse_template
from holdfast.engine.engine import Engine
from holdfast.errors import ArtifactNotFound, BudgetTooSmall, InvalidRequest, SessionNotFound, StoreUnavailable
from holdfast.limits import INLINE_MESSAGES, INSTRUCTED_ARTIFACT_BYTES
from holdfast.media.outgoing import prepare_for_model
from holdfast.memory.checks import find_owners
from holdfast.models.base import ModelRequest
from holdfast.models.codecs.messages import requests as messages_api
from holdfast.models.codecs.messages.foreign import are_plain, drop_foreign_fields
from holdfast.models.codecs.messages.tools import add_betas, get_instruction, replace_typed_tools
from holdfast.models.codecs.responses.ids import SECRET_BYTES, make_reference
from holdfast.models.codecs.responses.notes import CompactionNote
from holdfast.overlays.session_cache import ReadView, is_heavy, read_view
from holdfast.stores.sessions import NewSession
from holdfast.turns.compaction import Compacted, compact_session, find_summary, make_item_text
from holdfast.turns.interruptions import check_interruptable
from holdfast.turns.recall import keep_recalled, recall_other_sessions
from holdfast.turns.session_recall import recall_session
from holdfast.turns.turn import Turn, TurnRequest, TurnWarning

_RECOUNTS = 3
"""Maximum number of times that a prompt is counted by the provider, and built again because the count exceeds the
budget."""


async def build_prompt(turn: Turn) -> WorkingSet:
    """Build the working set for the next call from the current log, with the agent's instruction filled in.

    Raises:
        MissingState: the instruction needs state, or an artifact, that does not exist.
        BudgetTooSmall: no valid working set fits.
    """
    session, responder = turn.session, turn.request.responder
    turn.instruction = await build_instruction(turn.engine, session, responder, turn.temp)
    if not is_unplaced(session.ref):  # whose it is is not known, or it is no talk of its user
        if responder.recalls:
            turn.introduction = await introduce_memories(turn.engine, session, responder)
        await recall_other_sessions(turn)
    built = await _build(turn, session)
    if turn.stepped and await _add_summary(turn, built):
        built = await _build(turn, turn.session)
    if turn.request.compaction is not None and await _compact(turn, turn.request.compaction, built):
        built = await _build(turn, turn.session)
    if turn.request.responder.llm.count is not None:
        built = await _recount(turn, built)
    if turn.request.settings.is_whole and not built.is_whole:
        raise BudgetTooSmall(
            budget=built.budget, needed=built.budget + 1, what="the whole conversation, which the request asks for"
        )
    if built.window.compacting is not None and not built.request.strategy.reads_items:
        if built.leading == len(built.messages):
            raise InvalidRequest(f"there is nothing to send to the model: {_NOT_READ}", param="input")
        turn.warnings.add(TurnWarning("compaction_not_read", _NOT_READ, param="input"))
    keep_recalled(turn, built)
    return built


_NOT_READ: Final = (
    "the session has a compaction item of another service, which this model cannot read: use a model with api: responses, send the"
    " messages that the item stands for, or compact them with POST /v1/responses/compact"
)


async def _add_summary(turn: Turn, built: WorkingSet) -> bool:
    """Write a summary if the prompt fits only with a digest of older entries. Return True if a summary was written."""
    if built.request.strategy.summarizer is None:
        return False
    if not await turn.engine.compactor.compact_inline(turn.request.ref, turn.request.responder, built.request):
        return False
    turn.forget_step()
    return True


async def _compact(turn: Turn, order: CompactionOrder, built: WorkingSet) -> bool:
    """Compact the session if the request wants it. Return True if the prompt must be built again."""
    if turn.has_compacted or turn.branched or (turn.request.responder.history and not order.is_alone):
        return False
    wants_item = order.is_alone or (order.threshold is not None and built.total_tokens > order.threshold)
    summary = built.window.summary
    if not wants_item and not await _is_summary_missing(turn, order, -1 if summary is None else summary.last):
        return False
    turn.has_compacted = True
    responder = turn.request.responder
    if not order.is_alone and await turn.engine.compactor.is_pausing(turn.request.ref, responder.view_key):
        return False
    made = await compact_session(turn.engine, turn.session, responder, built.request, prompt=order.prompt)
    if made is not None:
        turn.forget_step()
    if wants_item and (order.is_alone or made is not None):
        turn.compacted = await turn.settle(_make_item(turn, made))
    return made is not None


async def _make_item(turn: Turn, made: StoredCompaction | None) -> Compacted:
    """Write the note of a compaction item to the log, and return the item. `made` is the summary that was just made, if any."""
    engine, session = turn.engine, turn.session
    through = session.tail.last_seq
    summary = made or await find_summary(engine, session, turn.request.responder.view_key)
    note = CompactionNote(
        secret=secrets.token_hex(SECRET_BYTES),
        through=through,
        summary=None if summary is None else summary.id,
        summarized=-1 if summary is None else summary.last,
    )
    appended = await turn.append([Message(role=NOTE, origin=note.to_origin())])
    text = await make_item_text(engine, session, summary, through)
    return Compacted(text, make_reference(session.id, appended.start, note.secret), through, made)


async def _is_summary_missing(turn: Turn, order: CompactionOrder, last: int) -> bool:
    """Return True if the client has a summary that is in use for another model, and the prompt does not contain it. `last` ends the prompt's summary."""
    if order.summarized <= last:
        return False
    live = await turn.engine.store.compactions(turn.request.ref, live=True)
    return any(one.last >= order.summarized for one in live)


async def _build(turn: Turn, session: Session) -> WorkingSet:
    made = make_request(
        turn.request,
        session,
        turn.instruction,
        marker=await turn.engine.markers.derive(session),
        learned=turn.learned,
        input_budget=turn.input_budget,
        recall=turn.recalls.get(turn.request.responder.agent_name),
        introduction=turn.introduction,
    )
    if turn.without and (without := turn.without.get(turn.request.responder.llm.name)):
        made = msgspec.structs.replace(made, without=dict(without))
    key = turn.key
    found = None if turn.branched else await build_from_cache(turn.engine, session, made, key)
    if found is None:
        found = await build_from_store(turn.engine, session, made, key, cached=not turn.branched)
    built = found.built
    built.version = found.session.version
    turn.remember(key, built, found.saved, found.session.version)
    turn.working_set = built
    return built


class BuiltPrompt(NamedTuple):
    """A prompt that was built, and what is known of its view in the store."""

    built: WorkingSet
    session: Session
    """The session from which the prompt was built."""
    saved: int
    """The frontier of the view as stored."""


async def add_recall(engine: Engine, session: Session, drafted: Draft) -> WorkingSet:
    """Finish a prompt with messages recalled from older parts of the same session."""
    drafted, found = await recall_session(engine, session, drafted)
    return drafted.finish(found.items, found.missed)


async def build_from_cache(engine: Engine, session: Session, made: Request, key: str) -> BuiltPrompt | None:
    """Build from the cached view. Return None if no view is cached, or if only a build from the store may fit."""
    warm = engine.warm.get(session.ref)
    view = None if warm is None or not warm.is_at(session) else warm.find_view(key)
    if view is None:
        return None
    try:
        if view.is_heavy:
            drafted = await run_cpu(lambda: draft_from_view(made, view.view, reduced=False))
        else:
            drafted = draft_from_view(made, view.view, reduced=False)
    except BudgetTooSmall:
        return None
    return BuiltPrompt(await add_recall(engine, session, drafted), session, view.saved)


async def build_from_store(
    engine: Engine, session: Session, made: Request, key: str, *, cached: bool = True
) -> BuiltPrompt:
    """Build the prompt from data read from the store.

    Args:
        engine: the tenant's engine.
        session: the session as last read.
        made: the request for the prompt.
        key: key of the view.
        cached: True to use and fill the cache of views, for the next build.

    Raises:
        SessionNotFound: the session was deleted.
    """
    ref = session.ref
    warm = engine.warm.get(ref)
    read = warm.take_read(key) if cached and warm is not None and warm.is_at(session) else None
    if read is None:
        read = engine.warm.share(await read_view(engine.store, ref, key))
    if read.session.identity != session.identity:
        raise SessionNotFound(ref.id)
    drafted = await run_cpu(lambda: draft_from(made, read), long=made.strategy.history > 0 or is_heavy(read.entries))
    built = await add_recall(engine, read.session, drafted)
    if built.reduced:
        engine.warm.forget(ref)
    elif cached:
        engine.warm.put(read.session, read.entries, key, built.view, read.saved)
    return BuiltPrompt(built, read.session, read.saved)


def draft_from(made: Request, read: ReadView) -> Draft:
    """Return the working set for `made`, without its block of recalled text, from a view that was read from the store."""
    return draft(made, read.state, read.head, read.entries, live=read.live, anchor=read.session.tail.anchor)


async def _recount(turn: Turn, built: WorkingSet) -> WorkingSet:
    """Let the provider count the prompt too, and build it again while the provider's count exceeds the budget."""
    llm, learning = turn.request.responder.llm, turn.engine.learning
    for _ in range(_RECOUNTS):
        turn.provider_count = await count_by_provider(turn.engine, turn.request.ref, llm, built)
        if turn.provider_count is None:
            break
        turn.learned = learning.record_usage(llm, built.total_tokens, turn.provider_count)
        if built.request.budget is None or turn.provider_count <= built.request.budget.input:
            break
        built = await _build(turn, turn.session)
    return built


async def count_by_provider(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> int | None:
    """Return the prompt's tokens as counted by its provider; None if the provider cannot count, or does not answer."""
    if llm.count is None:
        return None
    tools = {"tools": built.request.tools} if built.request.tools else {}
    messages = await to_sendable(engine, ref, llm, built)
    return await llm.count.count_prompt(ModelRequest(messages, {"model": llm.model, **tools}))


async def to_sendable(engine: Engine, ref: SessionRef, llm: Llm, built: WorkingSet) -> Sequence[Message]:
    """Return the messages of a prompt, ready to send, with the media that the model accepts."""
    as_chat = llm.dialect == "openai"
    many = len(built.messages) > INLINE_MESSAGES
    tracker = built.view.prefix_tracker
    if as_chat and await run_cpu(tracker.are_plain, built.messages, are_plain, long=many):
        return built.messages
    limits = engine.roster.find_profile(llm, engine.clock())
    prepared = await prepare_for_model(engine.store, ref, built.messages, built.list_sources, limits, as_chat=as_chat)
    return await run_cpu(_drop_foreign, llm, prepared, long=many) if as_chat else prepared


def _drop_foreign(llm: Llm, messages: Sequence[Message]) -> Sequence[Message]:
    """Remove items of the Responses API and Anthropic's own fields from a prompt for an upstream that does not know them."""
    if not llm.hosts_tools:
        messages = [*map(drop_items, messages)]
    if "claude" in llm.model.lower():  # routers to Claude accept everything that Claude accepts
        return messages
    return [drop_foreign_fields(message, files=llm.hosts_tools) for message in messages]


def make_request(
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
    """Return the input for building a turn's working set: messages, settings, budget and recall.

    The system messages are the agent's instruction, followed by the system messages of the turn's request, or those of
    the session if the request has none.

    Args:
        request: the turn's request.
        session: the session as last read.
        instruction: the agent's instruction, from `build_instruction`.
        marker: the session's marker; see `holdfast.engine.engine`.
        learned: the calibration of the model.
        input_budget: maximum tokens of the whole prompt; None: as many as fit into the model's window.
        recall: the items that the prompt may recall. None: nothing was searched, and the tokens for recalled text are
            kept free.
        introduction: promoted memories, from `introduce_memories`.
    """
    responder, body = request.responder, request.body
    tools = _read_tools(add_tools(responder, {**body, "tools": _read_tools(body)})) if body or responder.tools else ()
    base = responder.make_request(learned, read_reply_tokens(body), tools)
    # In the session of an agent's call, another agent speaks as the user.
    strategy = msgspec.structs.replace(base.strategy, facts=False) if is_child(session.ref) else base.strategy
    made = msgspec.structs.replace(
        base,
        strategy=strategy,
        input_budget=base.input_budget if input_budget is None else min(input_budget, base.input_budget),
        larger_budgets=base.larger_budgets if input_budget is None else (),
        system=(
            *instruction,
            *(request.system or session.system_messages),
            *make_tool_instructions(responder, body.get("tools") or ()),
        ),
        dialect=request.dialect or base.dialect,
        unstored=instruction[-1:] if responder.agent and _uses_temp(responder.agent.instruction) else (),
        recall=recall or base.recall,
        introduction=introduction,
        marker=marker,
    )
    return made if strategy.perspective is None else made.with_marker(marker)


@lru_cache(maxsize=256)
def _uses_temp(instruction: str | None) -> bool:
    """Return True if an agent's instruction contains values of `temp:` keys, which are never stored."""
    return bool(instruction) and any(key.startswith(TEMP) for key in parse_template(instruction or "").keys)


def add_tools(responder: Responder, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request with the tools that Holdfast runs, all in a form that the responder's model knows."""
    native = responder.llm.dialect == "anthropic"
    added = responder.tools.add_to_request(fields, native=native)
    if not native:
        return replace_typed_tools(added)
    return add_betas(added) if any(tool.native for tool in responder.tools.tools.values()) else added


def make_tool_instructions(responder: Responder, declared: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Return a system message for each tool that the model gets as a function, although only Anthropic's models know how to use it.

    Args:
        responder: the responder.
        declared: the tools that the request declares.
    """
    if responder.llm.dialect == "anthropic" or not (declared or responder.tools.tools):
        return ()
    texts = [tool.instruction for tool in responder.tools.tools.values() if tool.instruction]
    texts += [text for tool in declared if not responder.tools.is_served(tool) and (text := get_instruction(tool))]
    return tuple(Message(role="system", content=text) for text in texts)


def check_body(responder: Responder, body: Mapping[str, Any], learned: Learned | None = None) -> None:
    """Check, before anything is written, that a working set can be built for a request.

    Raises:
        InvalidRequest: `tools` is not a list of tools, `interruptable` is not a boolean, the agent refers to agents
            that do not exist, the tools that Holdfast runs do not fit the request, or `max_tokens` leaves no tokens for
            a prompt.
    """
    tools = _read_tools(body)
    check_interruptable(body)
    if responder.unknown and responder.agent is not None:
        message = f"agent {responder.agent.name!r} refers to agents that do not exist: {', '.join(responder.unknown)}"
        raise InvalidRequest(message, param="agent")
    if responder.steps:
        _check_steps(responder, body)
        return
    responder.tools.check(body)
    if responder.llm.dialect == "anthropic":
        messages_api.check({**responder.llm.params, **body})
    responder.llm.compute_budget(read_reply_tokens(body), tools=bool(tools or responder.tools), learned=learned)


def _check_steps(responder: Responder, body: Mapping[str, Any]) -> None:
    """Check the request for each agent of the workflow `responder`.

    Raises:
        InvalidRequest: the request does not fit one of these agents, or asks for more than one reply.
    """
    if (body.get("n") or 1) != 1:
        raise InvalidRequest("n must be 1 if several agents answer: only one reply can continue", param="n")
    for step in responder.steps:
        check_body(step, body)


def _read_tools(body: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
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


def read_reply_tokens(body: Mapping[str, Any]) -> int | None:
    """Return the maximum tokens of the reply that a request sets; None if it sets no limit."""
    return body.get("max_completion_tokens") or body.get("max_tokens")


async def build_instruction(
    engine: Engine,
    session: Session,
    responder: Responder,
    temp: Mapping[str, Any] | None = None,
) -> tuple[Message, ...]:
    """Return the system messages of the agent's model, followed by the agent's instruction.

    Args:
        engine: the engine of the store.
        session: the session as last read.
        responder: the responder whose agent has the instruction.
        temp: values of the turn's `temp:` keys. None: the call belongs to no turn, and these keys are empty.

    Returns:
        The messages; empty if there are none.

    Raises:
        MissingState: an instruction needs state, or an artifact, that does not exist. The error names both.
        InvalidRequest: an artifact in the instruction is not text, or is too long.
    """
    agent = responder.agent
    if agent is None or not agent.instruction:
        return responder.llm.system_messages
    template = parse_template(agent.instruction)
    values = await _read_values(engine, session.ref, session.state, template, temp or {})
    if temp is None:
        values = {key: "" for key in template.keys if key.startswith(TEMP)} | values
    text = template.render(values, agent=agent.name)
    instruction = (Message(role="system", content=text),) if text else ()
    return (*responder.llm.system_messages, *instruction)


async def fill_template(
    engine: Engine,
    session: Session | NewSession,
    text: str,
    agent: Agent,
    temp: Mapping[str, Any] | None = None,
) -> str:
    """Fill a template for a text that the agent says without the model, such as a greeting or a failure message.

    Missing values are left empty. They cannot be supplied at that moment, and a greeting without a name is better than
    none.

    Args:
        engine: the engine of the store.
        session: the session. If it is a new session, the initial values in it for shared state are used too.
        text: the template.
        agent: the agent.
        temp: values of the turn's `temp:` keys.
    """
    template = parse_template(text)
    values = await _read_values(engine, session.ref, session.state, template, temp or {}, strict=False)
    return template.render(values, agent=agent.name, strict=False)


async def _read_values(
    engine: Engine,
    ref: SessionRef,
    state: Mapping[str, Any],
    template: Template,
    temp: Mapping[str, Any],
    *,
    strict: bool = True,
) -> dict[str, Any]:
    """Return the values of the placeholders in a template. Missing values are left out."""
    values: dict[str, Any] = {key: temp.get(key) if key.startswith(TEMP) else state.get(key) for key in template.keys}
    values |= await engine.scopes.read_keys(ref.user_id, [key for key, value in values.items() if value is None])
    for name in template.artifacts:
        values[ARTIFACT + name] = await _read_artifact(engine, ref, name, strict=strict)
    return {key: _redact_value(engine, ref, key, value) for key, value in values.items() if value is not None}


def _redact_value(engine: Engine, ref: SessionRef, key: str, value: Any) -> Any:
    """Return a value without secrets.

    Only `temp:` keys and artifacts are redacted here, because stored state was redacted when it was written.
    """
    if engine.guard is None or not key.startswith((TEMP, ARTIFACT)):
        return value
    sweep = engine.guard.sweep()
    cleaned = sweep.clean_value(value, key, sent=False)
    engine.guard.record(sweep.findings, ref.id)
    return cleaned


async def _read_artifact(engine: Engine, ref: SessionRef, name: str, *, strict: bool) -> str | None:
    """Return the text of an artifact; None if the artifact does not exist.

    If the artifact cannot be part of an instruction, raise the error of `_read_artifact_text` if `strict`, else return
    None.
    """
    try:
        return await _read_artifact_text(engine, ref, name)
    except ArtifactNotFound:
        return None
    except InvalidRequest:
        if strict:
            raise
        return None


async def _read_artifact_text(engine: Engine, ref: SessionRef, name: str) -> str:
    """Return the text of an artifact.

    Raises:
        ArtifactNotFound: the artifact does not exist.
        InvalidRequest: the artifact is not text, or is too long for an instruction.
    """
    artifact = await engine.artifacts.get(ref, name)
    if artifact.size > INSTRUCTED_ARTIFACT_BYTES:
        most = f"an instruction can include artifacts of at most {INSTRUCTED_ARTIFACT_BYTES:,}"
        raise InvalidRequest(f"artifact {name!r} has {artifact.size:,} bytes; {most}", param="artifact")
    loaded = await engine.artifacts.load(ref, name, artifact.version)
    text = decode_text(loaded.data, artifact.mime_type)
    if text is None:
        message = f"artifact {name!r} is {artifact.mime_type}: an instruction can only include text artifacts"
        raise InvalidRequest(message, param="artifact")
    return text


_log: Final = logging.getLogger("holdfast.consolidation")
PROMOTED_TOKENS: Final = 800
"""Maximum tokens of promoted memories in a prompt."""


async def prepare_request(engine: Engine, session: Session, request: TurnRequest) -> Request:
    """Return the input for building a prompt outside of a turn, for which nothing is searched.

    Raises:
        MissingState: the agent's instruction needs state, or an artifact, that does not exist.
    """
    responder, is_known = request.responder, not is_unplaced(session.ref)
    return make_request(
        request,
        session,
        await build_instruction(engine, session, responder),
        marker=await engine.markers.derive(session),
        learned=await engine.learning.get(responder.llm),
        introduction=await introduce_memories(engine, session, responder) if is_known else None,
    )


async def introduce_memories(
    engine: Engine,
    session: Session,
    responder: Responder,
) -> Introduction | None:
    """Return the promoted memories of the session's user, the agent and the app, for a prompt; None if there are none.

    The result is also None if the prompts of `responder` do not contain memories.

    Args:
        engine: the engine of the store.
        session: the session as last read.
        responder: the agent with its model.
    """
    recalls = responder.recalls.get("memory")
    if recalls is None or not recalls.budget:
        return None
    try:
        owners = find_owners(session.user_id, responder.agent_name)
        found = [await engine.promoted.get(owner) for owner in owners]
    except StoreUnavailable as exc:  # no turn may fail because of memories
        _log.warning("a session got no promoted memories: %s", exc.code)
        return None
    # Use the model's own window, not the calibrated one, which would change the block within a session.
    room = min(PROMOTED_TOKENS, responder.llm.compute_budget(None).input // SHARE)
    memories = [one for some in found for one in some.memories]
    marker = await engine.markers.derive(session)
    return make_introduction(memories, session.created_at, room, responder.llm.counter, marker=marker)
