"""REST API for prompts: build one, explain what it contains, list and choose facts, and list model calls and show their prompts."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from holdfast.config.json_schema import build_option_schema
from holdfast.context.dialects import Dialect
from holdfast.context.settings import STRATEGIES, Key
from holdfast.domain.objects import (
    Count,
    Id,
    JsonObject,
    NonEmpty,
    Page,
    Request,
    json_schema,
    make_object,
)
from holdfast.domain.session import Session
from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_MATCHES, EXPLAIN_QUERY_CHARS, PROMPT_LOG
from holdfast.server.http import Call
from holdfast.server.routes import PageQuery, PromptOptions, Routes
from holdfast.sessions import contexts
from holdfast.sessions.contexts import preview_context
from holdfast.sessions.explanation import Explanation
from holdfast.sessions.facts import ChosenFact, FactObject, choose
from holdfast.sessions.message_explanations import MATCHES
from holdfast.sessions.model_calls import CallSummary
from holdfast.sessions.prompt_lookup import PromptRequest
from holdfast.sessions.prompt_views import PromptView
from holdfast.wire.exports import parse_system_messages
from holdfast.wire.sessions import SystemMessages

routes = Routes("messages")
_ONE: Final = "/v1/sessions/{session_id}"
_NO_KEYS: Final = frozenset(
    {"model", "agent", "dialect", "at_turn", "tools", "explain", "system_messages", "touch", "save"}
)
"""Fields of a context request that are not options of the strategy."""

# -- options of strategies -------------------------------------------------------


def describe_key(key: Key) -> msgspec.Meta:
    """Return the JSON Schema of a strategy's option."""
    return json_schema(description=key.about, **build_option_schema(key))


def describe_strategy() -> JsonObject:
    """Return the JSON Schema of a strategy's name, with the strategies that the application has registered so far."""
    about = "; ".join(f"`{name}`: {strategy.about}" for name, strategy in STRATEGIES.items())
    return {"type": ["string", "null"], "enum": [*STRATEGIES, None], "description": about}


Strategy = Annotated[Any, json_schema(**describe_strategy())]
_KEYS: Final = {name: key for strategy in STRATEGIES.values() for name, key in strategy.keys.items()}


# -- prompts -----------------------------------------------------------------


class ContextFields(Request, kw_only=True):
    """Options of the prompt to build. Options that are not set come from the session's agent.

    If `strategy` is set, the options of the strategy have their own defaults instead.
    """

    strategy: Strategy = None
    model: str | None = None
    """Model whose context window and tokenizer are used."""
    agent: str | None = None
    """Name of an agent of the configuration."""
    dialect: Dialect | None = None
    """API format of the messages; default: `openai`."""
    at_turn: Count | None = None
    """Number of a turn: build the prompt of the last model call of this turn."""
    tools: list[JsonObject] | None = None
    """Schemas of the tools."""
    system_messages: SystemMessages = None
    explain: bool | None = None
    """True: include `build`."""
    save: bool | None = None
    """True if you send this prompt to a model. The next prompt then continues from this one: its beginning stays the same until old
    messages have to be left out. Needs a key that may write."""
    touch: bool | None = None
    """True, the default: count this request as use of the session, which delays its expiry. A request with `at_turn` or `explain` never
    counts."""


ContextRequest: Final = msgspec.defstruct(
    "ContextRequest",
    [(name, Annotated[Any, describe_key(key)], None) for name, key in _KEYS.items()],
    bases=(ContextFields,),
    namespace={"__doc__": ContextFields.__doc__},
    module=__name__,
    kw_only=True,
)
"""`ContextFields` with the options of all strategies."""


class Context(contexts.Context, frozen=True, kw_only=True):
    """A prompt that was built without calling a model."""

    object: Literal["context"] = "context"
    session_id: Id
    version: Count
    """Version of the session."""


@routes.add("POST", f"{_ONE}/context", "read", body=ContextRequest)
async def context(call: Call, session: Session, body: ContextFields) -> Context:
    """Build a prompt without calling a model."""
    given = msgspec.structs.asdict(body)
    options = {name: value for name, value in given.items() if name not in _NO_KEYS and value is not None}
    handle = call.hf.handle(session, agent=body.agent, model=body.model)
    writes = call.principal.has_role("write")  # read-only callers must not keep a session alive
    look = PromptRequest(
        responder=call.hf.roster.with_options(handle.responder, options),
        system=parse_system_messages(body.system_messages),
        tools=body.tools or [],
        dialect=body.dialect or "openai",
        at_turn=body.at_turn,
        use_recorded=not options,
        compare=bool(body.explain),
        touch=writes and body.touch is not False,
        save=writes and body.save is True,
    )
    found = await preview_context(call.hf.engine, session.ref, look)
    return make_object(Context, found, session_id=session.id, version=session.version)


# -- explanations ----------------------------------------------------------------


class ExplainQuery(PromptOptions, kw_only=True):
    """Query parameters of an explanation."""

    seq: Count | None = None
    """Seq of the message to explain."""
    q: Annotated[
        str | None,
        json_schema(
            description=f"text that messages contain, instead of `seq`; at most {EXPLAIN_QUERY_CHARS} characters",
            minLength=1,
        ),
    ] = None
    turn: Count | None = None
    """Number of a turn whose last prompt is explained; default: the next prompt."""
    before: Count | None = None
    """With `q`: only messages before this seq. For the next page, pass `before` of the previous page."""
    limit: Annotated[
        int,
        json_schema(
            description=f"with `q`: maximum number of messages; default {MATCHES}", minimum=1, maximum=EXPLAIN_MATCHES
        ),
    ] = MATCHES


@routes.add("GET", f"{_ONE}/explain", "read")
async def explain(call: Call, query: ExplainQuery, session: Session) -> Explanation:
    """Explain which messages are in the prompt, and why.

    For each message, the response says whether the prompt contains it completely, in part or not at all, where, why, and since when. It
    also says what brings a missing message back. `seq` selects one message, and `q` all messages that contain a text. Without both,
    `decisions` lists what the prompt does with all messages.

    `turn` selects the prompt of the last model call of that turn; the default is the next prompt.
    """
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    try:
        return await handle.explain(
            seq=query.seq,
            text=query.q,
            turn=query.turn,
            before=query.before,
            limit=query.limit,
            strategy=query.strategy,
            budget=query.budget,
        )
    except InvalidRequest as exc:
        if exc.param == "text":
            raise InvalidRequest(str(exc), param="q") from exc
        raise


# -- facts -----------------------------------------------------------------------


class FactList(Page[FactObject, NonEmpty]):
    """The facts that the user stated in a session, and the session's version."""

    version: Count
    """Version of the session."""


class FactChange(Request, kw_only=True):
    """Change of a fact. Set one of the fields."""

    pinned: bool | None = None
    """True: put the fact before all other facts; false: undo this."""
    dropped: bool | None = None
    """True: leave the fact out of the prompt; false: undo this."""


@routes.add("GET", f"{_ONE}/facts", "read", tag="facts")
async def facts(call: Call, query: PromptOptions, session: Session) -> FactList:
    """List the facts that the user stated in a session, and say which of them the prompt contains.

    `agent`, `model`, `strategy` and `budget` select the prompt. The default is the prompt of the session's agent.
    """
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    found = await handle.facts(query.strategy, **({} if query.budget is None else {"budget": query.budget}))
    listed = [FactObject.from_fact(session.id, one) for one in found]
    return FactList.of(listed, has_more=False, version=session.version)


@routes.add("PATCH", f"{_ONE}/facts/{{fact_id}}", "write", tag="facts")
async def choose_fact(call: Call, session: Session, body: FactChange) -> ChosenFact:
    """Pin or drop a fact of a session.

    A pinned fact comes before all other facts in the prompt. A dropped fact is left out. False undoes either. The choice applies to all
    prompts of the session, from the next one on.
    """
    given: dict[Any, bool | None] = {"pinned": body.pinned, "dropped": body.dropped}
    change = {name: value for name, value in given.items() if value is not None}
    if not change or all(given.values()):
        raise InvalidRequest("set either pinned or dropped, to true or to false to undo it", param="pinned")
    one = await choose(call.hf.store, session.ref, call.path["fact_id"], change)
    return make_object(
        ChosenFact,
        one,
        session_id=session.id,
        id=one.id,
        pinned=one.choice == "pinned",
        dropped=one.choice == "dropped",
    )


# -- model calls -------------------------------------------------------------------


_CALLS: Final = "/v1/sessions/{session_id}/calls"


class CallsQuery(PageQuery, kw_only=True):
    """Query parameters of the list of model calls."""

    after: NonEmpty | None = None
    """`last_id` of the previous page, after which this page begins."""


class CallList(Page[CallSummary, NonEmpty]):
    """A page of model calls."""


@routes.add("GET", _CALLS, "read")
async def list_model_calls(call: Call, query: CallsQuery, session: Session) -> CallList:
    """List the recorded model calls of a session."""
    handle = call.hf.handle(session)
    page = await handle.calls(query.limit, after=query.after, descending=query.order == "desc")
    return CallList.of(page.calls, has_more=page.has_more)


class PromptViewQuery(PromptOptions, kw_only=True):
    """Query parameters of the view of a prompt."""

    dialect: Dialect | None = None
    """Also return the prompt as a request in the format of this provider."""
    log_after: Annotated[int | None, json_schema(minimum=-1)] = None
    """Mark the messages of the log after this seq; default: those around the frontier of the prompt."""
    log_limit: Annotated[
        int, json_schema(description="number of messages of the log to mark; default 0", minimum=0, maximum=PROMPT_LOG)
    ] = 0


@routes.add("GET", f"{_CALLS}/{{call_id}}", "read")
async def show_prompt(call: Call, query: PromptViewQuery, session: Session) -> PromptView:
    """Show the prompt of a model call: its sections, its messages, and the difference from the prompt before.

    `call_id` is `12.0` for the first call of turn 12, `12` for the last one, or `next` for the prompt that would be built now. No model is
    called. With `log_limit`, the response says for messages of the log whether the prompt contains them completely, in part or not at all.

    `agent`, `model`, `strategy` and `budget` show the prompt that other settings would give.
    """
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    return await handle.prompt(
        call.path["call_id"],
        strategy=query.strategy,
        budget=query.budget,
        dialect=query.dialect,
        log_after=query.log_after,
        log_limit=query.log_limit,
    )
