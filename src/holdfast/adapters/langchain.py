"""A middleware for agents of LangChain and LangGraph, whose state keeps all messages while the model gets fewer.

A call of the model gets the *working set*: the prompt that Holdfast builds within a token budget.

    agent = create_agent(model, tools, middleware=[HoldfastMiddleware(hf)], checkpointer=saver)
    await agent.ainvoke({"messages": [...]}, {"configurable": {"thread_id": "trip-7", "user_id": "ada"}})

Facts about LangChain 1.5 that this module relies on: `request.messages` has no system message; a middleware replaces messages for
one call with `request.override(messages=…)`, which does not change the agent's state; with structured output, `ModelResponse.result` may
have a tool message after the reply.

Facts about LangGraph 1.2: in a node, `checkpoint_ns` names the graphs from the outermost to the node, separated by `|`. A name is followed
by `:` and the id of its task, except for a subgraph with a checkpointer of its own. `checkpoint_map` has the current checkpoint of each
of these graphs. Tasks that run at the same time belong to the same checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, convert_to_messages, convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.config import get_config

import holdfast
from holdfast.errors import BudgetTooSmall

__all__ = ["HoldfastMiddleware"]

Json = dict[str, Any]
Handled = TypeVar("Handled")
Fit = Callable[..., holdfast.Context]
STEP: Final = 0.7
"""Fraction of the tokens to which a prompt is shortened after the provider rejected it as too long."""
THINKING: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""Types of content blocks that a prompt in Chat Completions format does not have."""
STEPS: Final = 4
"""Maximum number of prompts that are tried for one call."""
PLACES: Final = 4_096
"""Maximum number of subgraph sessions whose last caller a middleware remembers."""


class HoldfastMiddleware(AgentMiddleware):
    """Sends the model the working set of the conversation instead of all its messages, and stores the conversation.

    The agent's own `messages` stay complete. Messages that are sent in full are the agent's own objects, so ids and signatures of thinking
    do not change. If the provider rejects a prompt as too long, smaller ones are tried.

    Args:
        hf: an open `Holdfast`, or a `holdfast.Portal()` if the agent is called without `await` or from several event loops. None: nothing
            is stored, and each call fits the messages into the budget.
        strategy: name of the strategy; None: the strategy of `hf`, or `digest`.
        budget: maximum tokens of the conversation; None: the budget of `hf`, or as many tokens as the model's context window allows.
        session_id: the session, or a function that returns it for a request; None: the run's `thread_id`. An agent in a subgraph, such as
            an agent that another one calls as a tool, then has sessions of its own, whose ids begin with the `thread_id`.
        user_id: the user, or a function that returns it; None: the run's `user_id` if it has one, otherwise `default`.
        model: name of the model, to choose tokenizer and context window if `hf` is None; None: the name that the chat model has.
    """

    def __init__(
        self,
        hf: holdfast.Holdfast | holdfast.Portal | None = None,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        session_id: str | Callable[[ModelRequest[Any]], str] | None = None,
        user_id: str | Callable[[ModelRequest[Any]], str] | None = None,
        model: str | None = None,
    ) -> None:
        super().__init__()
        self._hf = hf
        self._strategy = strategy
        self._budget = budget
        self._session_id = session_id
        self._user_id = user_id
        self._model = model
        self._places: OrderedDict[tuple[str, str], _Place] = OrderedDict()
        self._lock = threading.Lock()

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]:
        """Call the model with the working set, and store its reply. For `ainvoke` and `astream`."""
        hf = self._hf
        if hf is None:
            return await _step_down(await asyncio.to_thread(self._fit, request), request, handler, self._make_fit())
        run = hf.run if isinstance(hf, holdfast.Portal) else _run_here
        owner = hf.hf if isinstance(hf, holdfast.Portal) else hf
        session = await run(owner.session, self._find_session(request), **self._make_session_options(request))
        turn = await run(session.begin_turn, _to_transcript(request), **self._make_options(request))
        try:
            response = await _step_down(turn.messages, request, handler, self._make_fit(session))
            _add_reply(turn, response)
        except BaseException as exc:
            await run(turn.abort, exc)
            raise
        await run(turn.end)
        return response

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any] | AIMessage | ExtendedModelResponse[Any]:
        """Call the model with the working set, and store its reply. For `invoke` and `stream`."""
        portal = self._hf
        if portal is None:
            return _step_down_sync(self._fit(request), request, handler, self._make_fit())
        if not isinstance(portal, holdfast.Portal):
            raise TypeError(
                "invoke() and stream() need HoldfastMiddleware(holdfast.Portal(…)); an open Holdfast needs ainvoke()"
            )
        session = portal.call(portal.hf.session, self._find_session(request), **self._make_session_options(request))
        with portal.enter(session.turn(_to_transcript(request), **self._make_options(request))) as turn:
            response = _step_down_sync(turn.messages, request, handler, self._make_fit(session))
            _add_reply(turn, response)
        return response

    def _make_session_options(self, request: ModelRequest[Any]) -> Json:
        """Return the owner of the session, and the system prompt to store with it, without which past prompts cannot be rebuilt."""
        return {"user_id": self._find_user(request), "system": _list_system(request) or None}

    def _make_options(self, request: ModelRequest[Any]) -> Json:
        tools = [_to_tool(tool) for tool in request.tools]
        given = {"strategy": self._strategy, "budget": self._budget, "tools": tools or None}
        return {"mode": "transcript", **{name: value for name, value in given.items() if value is not None}}

    def _fit(self, request: ModelRequest[Any]) -> list[Json]:
        options = {name: value for name, value in self._make_options(request).items() if name != "mode"}
        model = self._model or getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        return holdfast.fit(_to_transcript(request), model=model or "unknown", **options).messages

    def _make_fit(self, session: holdfast.SessionHandle | None = None) -> Fit:
        """Return the function that shortens a prompt to a budget, with the same strategy."""
        return partial(holdfast.fit, strategy=self._strategy, session=session)

    def _find_session(self, request: ModelRequest[Any]) -> str:
        found = self._session_id(request) if callable(self._session_id) else self._session_id
        if found:
            return str(found)
        thread = _get_configurable("thread_id")
        if not thread:
            raise ValueError(
                'Holdfast needs a session: call the agent with {"configurable": {"thread_id": "…"}},'
                " or pass session_id= to HoldfastMiddleware"
            )
        place = _Place.find()
        return str(thread) if not place.graphs else self._name_subgraph(str(thread), place, request)

    def _name_subgraph(self, thread: str, place: _Place, request: ModelRequest[Any]) -> str:
        """Return the session of an agent in a subgraph.

        Its id has the names of the graphs and of the agent, and the id of the first message. So an agent that shares the messages of the
        outer graph continues its session, while each call of an agent as a tool begins a new one. If copies of an agent run at the same
        time with the same messages, all but one also have the id of their task.
        """
        names = [graph.partition(":")[0] for graph in place.graphs]
        agent = get_config().get("metadata", {}).get("lc_agent_name")
        names += [agent] if agent and agent != names[-1] else []
        first = next(iter(request.state.get("messages") or request.messages), None)
        name = ":".join([thread, *names, str(getattr(first, "id", None) or "0")])
        key = (self._find_user(request), name)
        with self._lock:
            known = self._places.get(key)
            task = known and known.find_parallel_task(place)
            if task:
                return f"{name}:{task}"
            self._places[key] = place
            self._places.move_to_end(key)
            if len(self._places) > PLACES:
                self._places.popitem(last=False)
        return name

    def _find_user(self, request: ModelRequest[Any]) -> str:
        found = self._user_id(request) if callable(self._user_id) else self._user_id
        return str(found or _get_configurable("user_id") or "default")


# -- subgraphs -----------------------------------------------------------------


class _Place(NamedTuple):
    """The graph in which an agent runs."""

    graphs: tuple[str, ...]
    """Names of the graphs around the agent with ids of their tasks, outermost first; empty: no graph is around it."""
    checkpoints: Mapping[str, str]
    """The current checkpoint of each graph, by its namespace."""

    @classmethod
    def find(cls) -> _Place:
        """Return the place of the current node."""
        namespace = str(_get_configurable("checkpoint_ns") or "")
        return cls(tuple(namespace.split("|")[:-1]), _get_configurable("checkpoint_map") or {})

    def find_parallel_task(self, other: _Place) -> str | None:
        """Return the task id of `other` if both run at the same time, or None if one runs after the other or they are equal."""
        for at, (mine, theirs) in enumerate(zip(self.graphs, other.graphs, strict=False)):
            if mine != theirs:
                parent = "|".join(self.graphs[:at])
                same_step = parent in self.checkpoints and self.checkpoints[parent] == other.checkpoints.get(parent)
                return theirs.partition(":")[2] or theirs if same_step else None
        return None


# -- calls ---------------------------------------------------------------------


async def _run_here(function: Callable[..., Awaitable[Handled]], *args: Any, **kwargs: Any) -> Handled:
    return await function(*args, **kwargs)


def _iter_prompts(messages: Sequence[Json], request: ModelRequest[Any], fit: Fit) -> Iterator[ModelRequest[Any]]:
    """Yield the requests to try in turn: one with the working set, then smaller ones for a provider that rejects the prompt as too long."""
    yield _override(request, messages)
    budget = float(holdfast.fit(messages, budget=2**31).conversation_tokens)
    for _ in range(STEPS - 1):
        budget *= STEP
        try:
            smaller = fit(messages, budget=max(1, int(budget))).messages
        except BudgetTooSmall:
            return
        yield _override(request, smaller)


async def _step_down(
    messages: Sequence[Json],
    request: ModelRequest[Any],
    handler: Callable[[ModelRequest[Any]], Awaitable[Handled]],
    fit: Fit,
) -> Handled:
    """Call the model, with a smaller prompt each time the provider rejects one as too long."""
    error: ContextOverflowError | None = None
    for smaller in _iter_prompts(messages, request, fit):
        try:
            return await handler(smaller)
        except ContextOverflowError as exc:
            error = exc
    assert error is not None, "there is at least one prompt"
    raise error


def _step_down_sync(
    messages: Sequence[Json], request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Handled], fit: Fit
) -> Handled:
    """Call the model like `_step_down`, in synchronous code."""
    error: ContextOverflowError | None = None
    for smaller in _iter_prompts(messages, request, fit):
        try:
            return handler(smaller)
        except ContextOverflowError as exc:
            error = exc
    assert error is not None, "there is at least one prompt"
    raise error


def _get_configurable(name: str) -> Any:
    try:
        return get_config().get("configurable", {}).get(name)
    except RuntimeError:  # outside of a run
        return None


def _to_tool(tool: Any) -> Json:
    """Return a tool as Chat Completions declare it. A provider's own tool is returned unchanged."""
    try:
        converted: Json = convert_to_openai_tool(tool)
    except ValueError:
        return dict(tool)
    return converted


# -- messages ------------------------------------------------------------------


def _to_transcript(request: ModelRequest[Any]) -> list[Json]:
    return [*_list_system(request), *map(_to_dict, request.messages)]


def _list_system(request: ModelRequest[Any]) -> list[Json]:
    return [] if request.system_message is None else [_to_dict(request.system_message)]


def _to_dict(message: BaseMessage) -> Json:
    """Convert a message to Chat Completions format. Content blocks that this format lacks, such as thinking, are left out."""
    converted = convert_to_openai_messages(message)
    assert isinstance(converted, dict), "one message is converted to one dict"
    return converted


def _override(request: ModelRequest[Any], messages: Sequence[Json]) -> ModelRequest[Any]:
    """Return the request with a working set as its messages. Messages that are sent in full are the request's own objects."""
    leading = next((at for at, message in enumerate(messages) if message["role"] not in ("system", "developer")), 0)
    return request.override(messages=_restore(messages[leading:], request.messages))


def _restore(messages: Sequence[Json], own: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Replace each message by the equal message in `own`; if there is none, convert it.

    Both lists have the same order. The search goes from the newest message to the oldest.
    """
    restored: list[Any] = []
    keys = [_make_key(_to_dict(message)) for message in own]
    end = len(own)
    for message in reversed(messages):
        key = _make_key(message)
        at = next((at for at in range(end - 1, -1, -1) if keys[at] == key), None)
        if at is None:
            restored += convert_to_messages([dict(message)])
        else:
            restored.append(own[at])
            end = at
    return restored[::-1]


def _make_key(message: Mapping[str, Any]) -> str:
    """Return a key by which a message equals its copy in a prompt. The copy has no thinking and no empty fields."""
    content = message.get("content")
    if isinstance(content, list):
        content = [part for part in content if not (isinstance(part, dict) and part.get("type") in THINKING)]
    fields = {**message, "content": content}
    return json.dumps({name: value for name, value in fields.items() if value not in (None, "", [])}, sort_keys=True)


def _add_reply(turn: holdfast.OpenTurn, response: ModelResponse[Any] | ExtendedModelResponse[Any] | AIMessage) -> None:
    response = response.model_response if isinstance(response, ExtendedModelResponse) else response
    for message in [response] if isinstance(response, AIMessage) else response.result:
        usage = _to_usage(message.usage_metadata) if isinstance(message, AIMessage) else None
        turn.add(_to_dict(message), usage=usage)


def _to_usage(usage: Mapping[str, Any] | None) -> Json | None:
    if usage is None:
        return None
    cached = (usage.get("input_token_details") or {}).get("cache_read", 0)
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached},
    }
