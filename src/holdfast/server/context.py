"""The REST API that shows working sets: build one, explain what became of messages, list and choose standing facts."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.context.dialects import Dialect
from holdfast.context.settings import CLEARING, STRATEGIES, Key, parse
from holdfast.domain.calibration import How
from holdfast.errors import InvalidRequest
from holdfast.limits import EXPLAIN_MATCHES, EXPLAIN_QUERY_CHARS
from holdfast.server.http import Call
from holdfast.server.routes import BODY, OF_SESSION, Routes, SessionQuery
from holdfast.sessions.explanation import Explanation
from holdfast.sessions.facts import ChosenFact, FactObject, choose, list_facts
from holdfast.sessions.handle import SessionHandle
from holdfast.sessions.looking import Look, preview_context, to_context
from holdfast.sessions.message_explanations import MATCHES
from holdfast.wire.exports import system_messages_from
from holdfast.wire.objects import Answer, Count, Id, JsonObject, NonEmpty, Page, Request, json_schema, same_as
from holdfast.wire.sessions import SystemMessages

routes = Routes("messages")
_ONE: Final = "/v1/sessions/{session_id}"
_NO_KEYS: Final = frozenset({"model", "agent", "dialect", "at_turn", "tools", "explain", "system_messages", "touch"})
"""Fields of a context request that are not keys of the strategy."""

# -- what strategies take --------------------------------------------------------


def describe_key(key: Key) -> msgspec.Meta:
    """Describe a key of a strategy."""
    return json_schema(description=key.about, **_key_schema(key))


_KINDS: Final[dict[str, JsonObject]] = {
    "text": {"type": ["string", "null"]},
    "texts": {"type": ["array", "null"], "items": {"type": "string"}},
    "integer": {"type": ["integer", "null"]},
    "share": {"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "flag": {"type": ["boolean", "null"]},
    "switch": {"enum": ["auto", "on", "off", True, False, None]},
}


def _key_schema(key: Key) -> JsonObject:
    if key.kind == "integer":
        return {**_KINDS[key.kind], "minimum": key.low}
    if key.kind != "clearing":
        return _KINDS[key.kind]
    keys = {name: one for name, one in STRATEGIES[CLEARING].keys.items() if name != "budget"}
    inner = {name: {**_key_schema(one), "description": one.about} for name, one in keys.items()}
    mapping = {"type": "object", "properties": inner, "additionalProperties": False}
    return {"anyOf": [mapping, {"type": ["boolean", "null"]}]}


_STRATEGIES: Final = "; ".join(f"`{name}`: {strategy.about}" for name, strategy in STRATEGIES.items())
Strategy = Annotated[Any, json_schema(type=["string", "null"], enum=[*STRATEGIES, None], description=_STRATEGIES)]
_KEYS: Final = {name: key for strategy in STRATEGIES.values() for name, key in strategy.keys.items()}


# -- working sets ------------------------------------------------------------


class ContextFields(Request, kw_only=True):
    """What to build a working set for; unset: as the session's agent would."""

    strategy: Strategy = None
    model: str | None = None
    """Whose window and tokenizer count."""
    agent: str | None = None
    """An agent of the configuration."""
    dialect: Dialect | None = None
    """Whose messages to make; unset: `openai`."""
    at_turn: Count | None = None
    """As the model saw the session at its last call in that turn."""
    tools: list[JsonObject] | None = None
    """Tools' schemas, as the model takes them."""
    system_messages: SystemMessages = None
    explain: bool | None = None
    """With `decisions` and `build`."""
    touch: bool | None = None
    """Whether the session is in use by that, so that it does not expire: true unless given; looking back with `at_turn`, or for an
    explanation, never is."""


ContextRequest: Final = msgspec.defstruct(
    "ContextRequest",
    [(name, Annotated[Any, describe_key(key)], None) for name, key in _KEYS.items()],
    bases=(ContextFields,),
    namespace={"__doc__": ContextFields.__doc__},
    module=__name__,
    kw_only=True,
)
"""The same, with the keys of all strategies."""


class CountedTokens(Answer):
    """How many tokens all that is sent has, and how far that can be trusted."""

    tokens: Count
    """As the provider counts them, as far as that is known."""
    how: How
    margin: float
    """Share of them that is kept free, because the count may be too low."""


class AnthropicMessage(Answer):
    """A turn as Anthropic has it."""

    role: Literal["user", "assistant"]
    content: list[JsonObject]
    """Blocks, as Anthropic has them."""


class GeminiContent(Answer):
    """A turn as Gemini has it."""

    role: Literal["user", "model"]
    parts: list[JsonObject]
    """Parts, as Gemini has them."""


class Decision(Answer, rename={"first": "from", "last": "to"}):
    """A run of entries with the same fate."""

    first: Count
    """Seq of the first."""
    last: Count
    """Seq of the last."""
    decision: Literal["kept", "pinned", "anchored", "cut", "cleared", "compacted", "evicted", "refused"]
    reason: str
    """Why."""
    tokens: Count
    """What they take in the log; for what is cut, what is sent of them."""


class Overhead(Answer):
    """Tokens that a call costs besides what is said in the conversation."""

    system: Count
    """Of the system prompt."""
    tools: Count
    """Of the tools' schemas."""
    introduction: Count
    """Of the promoted memories that the session was told."""
    recalled: Count
    """Of the block of what is recalled."""


class Recalled(Answer, kw_only=True):
    """What was recalled in it; what was said or remembered is in the prompt alone."""

    ids: list[str] | UnsetType = UNSET
    """`session#seq` of messages, ids of memories."""
    tokens: Count | UnsetType = UNSET
    """Of the message that tells it."""
    missed: list[str] | UnsetType = UNSET
    """Why something was not recalled that might have been."""


class Build(Answer, kw_only=True):
    """How a working set came about; with `explain`."""

    policy: JsonObject
    """`strategy` and its keys, defaults included: asked for again, they build the same."""
    budget: JsonObject
    """Tokens: the model's window shared out, the room of the conversation, what is used, how it was counted."""
    overhead: Overhead
    recalled: Recalled | UnsetType = UNSET
    frontier: Count
    """Seq of the first entry that is sent for being recent."""
    compactions: list[JsonObject]
    """`kind`, `from`, `to`, `tokens`, `source_tokens` of the messages that it stands for."""
    prefix: JsonObject
    """Compared with the prompt that was sent last: `messages` in common, `before` (its messages), `whole`, and `broken`: the first
    message that differs, its seq, and why."""
    hash: str
    """As above."""
    summaries: JsonObject | UnsetType = UNSET
    """Of `summary_buffer`: the id of the one that is `live`, and `failed`: `error`, `attempts`, `retry_at`."""


_SENT: Final = json_schema(
    items={
        "anyOf": [{"$ref": f"#/components/schemas/{one}"} for one in ("Message", "AnthropicMessage", "GeminiContent")]
    }
)


class Context(Answer, kw_only=True):
    """A working set."""

    object: Literal["context"] = "context"
    session_id: Id
    version: Count
    """The session's."""
    messages: Annotated[list[Any], _SENT]
    """Ready to send: for `openai` with the system prompt first; Anthropic's `messages`; Gemini's `contents`."""
    tokens: Count
    """Of the conversation: what a strategy's budget limits."""
    total_tokens: Count
    """Of all that is sent."""
    budget: Count
    """Tokens that the conversation could use."""
    counted: Annotated[JsonObject, same_as(CountedTokens)]
    hash: str
    """Equal for equal log, policy and budget."""
    system: list[JsonObject] | JsonObject | UnsetType = UNSET
    """The system prompt, where there is one: blocks, Anthropic's `system`, or Gemini's `systemInstruction`."""
    sent_hash: str | UnsetType = UNSET
    """With `at_turn`: the hash recorded with the call; equal to `hash` where this is what was sent."""
    decisions: list[Decision] | UnsetType = UNSET
    """What became of each entry; with `explain`."""
    build: Annotated[JsonObject | UnsetType, same_as(Build)] = UNSET


@routes.add("POST", f"{_ONE}/context", "read", fails=(*BODY, *OF_SESSION), body=ContextRequest)
async def context(call: Call, query: SessionQuery, body: ContextFields) -> Context:
    """Build a working set without calling a model."""
    session = await call.session()
    given = msgspec.structs.asdict(body)
    options = {name: value for name, value in given.items() if name not in _NO_KEYS and value is not None}
    handle = call.hf.handle(session, agent=body.agent, model=body.model)
    look = _look(handle, body, options)
    if not call.principal.may("write"):  # a look alone must not keep a session alive
        look = msgspec.structs.replace(look, touch=False)
    found = await preview_context(call.hf.engine, session.ref, look)
    shown = to_context(found)
    decisions = [Decision.from_fields(one) for one in shown.decisions]
    return Context.from_fields(
        shown,
        session_id=session.id,
        version=session.version,
        system=UNSET if shown.system is None else shown.system,
        sent_hash=UNSET if shown.sent_hash is None else shown.sent_hash,
        decisions=decisions if body.explain else UNSET,
        build=found.explanation() if body.explain else UNSET,
    )


def _look(handle: SessionHandle, body: ContextFields, options: JsonObject) -> Look:
    """Return what is asked for. Raises `InvalidRequest`."""
    settings = parse(options, where="", base=handle.voice.context) if options else handle.voice.context
    return Look(
        voice=handle.voice,
        settings=settings,
        system=system_messages_from(body.system_messages),
        tools=body.tools or [],
        dialect=body.dialect or "openai",
        at_turn=body.at_turn,
        explain=bool(body.explain),
        touch=body.touch is not False,
    )


# -- explanations ----------------------------------------------------------------


class ExplainQuery(SessionQuery, kw_only=True):
    """Parameters of an explanation."""

    seq: Count | None = None
    """The message."""
    q: Annotated[
        str | None,
        json_schema(
            description=f"words that messages contain, instead of `seq`; at most {EXPLAIN_QUERY_CHARS} characters",
            minLength=1,
        ),
    ] = None
    turn: Count | None = None
    """The prompt of that turn's last model call; without it the one that would be built now."""
    before: Count | None = None
    """With `q`: only messages before this seq; `before` of the page before."""
    limit: Annotated[
        int,
        json_schema(description=f"with `q`: most messages; {MATCHES} unless given", minimum=1, maximum=EXPLAIN_MATCHES),
    ] = MATCHES
    agent: str | None = None
    """An agent of the configuration: whose prompt it is."""
    model: str | None = None
    """The same, for a model."""


@routes.add("GET", f"{_ONE}/explain", "read", fails=OF_SESSION)
async def explain(call: Call, query: ExplainQuery) -> Explanation:
    """Explain whether messages are in the prompt: whole, in part or not, where, why, since when, and what would bring them back.

    `seq` names a message, `q` a text that messages contain; without both the prompt alone is described. With `turn` it is the prompt of
    that turn's last model call, else the one that would be built now.
    """
    session = await call.session()
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    try:
        return await handle.explain(
            seq=query.seq, text=query.q, turn=query.turn, before=query.before, limit=query.limit
        )
    except InvalidRequest as exc:
        if exc.param == "text":
            raise InvalidRequest(str(exc), param="q") from exc
        raise


# -- standing facts --------------------------------------------------------------


class FactsQuery(SessionQuery, kw_only=True):
    """Parameters of the list of facts: whose prompt."""

    agent: str | None = None
    """Whose prompt; unset: the session's."""
    model: str | None = None
    """The same, for a model."""
    strategy: str | None = None
    """By this strategy, with its defaults."""
    budget: Annotated[int | None, json_schema(minimum=1)] = None
    """Tokens of the conversation."""


class FactList(Page[FactObject, NonEmpty]):
    """A page."""

    version: Count
    """The session's."""


class FactChange(Request, kw_only=True):
    """What is to change; one of both."""

    pinned: bool | None = None
    """It comes before all others in the block; false undoes it."""
    dropped: bool | None = None
    """It never appears in the block; false undoes it."""


@routes.add("GET", f"{_ONE}/facts", "read", tag="facts", fails=OF_SESSION)
async def facts(call: Call, query: FactsQuery) -> FactList:
    """List what a session's user said that may still hold, and whether the prompt has it.

    It is the prompt of this `agent` and `model`, by this `strategy` and `budget`; without them the session's own.
    """
    session = await call.session()
    handle = call.hf.handle(session, agent=query.agent, model=query.model)
    options = {name: value for name in ("strategy", "budget") if (value := getattr(query, name)) is not None}
    settings = parse(options, where="", base=handle.voice.context) if options else handle.voice.context
    found = await list_facts(call.hf.engine, session.ref, handle.voice, settings)
    listed = [FactObject.from_fact(session.id, one) for one in found]
    return FactList.of(listed, has_more=False, version=session.version)


@routes.add("PATCH", f"{_ONE}/facts/{{fact_id}}", "write", tag="facts", fails=(*BODY, *OF_SESSION))
async def choose_fact(call: Call, query: SessionQuery, body: FactChange) -> ChosenFact:
    """Pin a statement, so that it is in the prompt before all others; or drop it, so that it is not in the block.

    False undoes it. A choice holds for every view of the session, from its next prompt on.
    """
    given: dict[Any, bool | None] = {"pinned": body.pinned, "dropped": body.dropped}
    change = {name: value for name, value in given.items() if value is not None}
    if not change or all(given.values()):
        raise InvalidRequest("give one of pinned and dropped: true, or false to undo it", param="pinned")
    session = await call.session()
    one = await choose(call.hf.store, session.ref, call.path["fact_id"], change)
    return ChosenFact.from_fields(
        one, session_id=session.id, id=one.id, pinned=one.choice == "pinned", dropped=one.choice == "dropped"
    )
