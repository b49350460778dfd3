"""Store the messages and the state of agents, graphs and swarms in sessions of Holdfast."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar

from strands.bidi.hooks import BidiAgentStopEvent
from strands.hooks import (
    AfterInvocationEvent,
    AfterModelCallEvent,
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    AgentInitializedEvent,
    BeforeModelCallEvent,
    BeforeMultiAgentInvocationEvent,
    HookOrder,
    HookRegistry,
    MessageAddedEvent,
    MessageUpdatedEvent,
)
from strands.session import RepositorySessionManager, SessionManager, SessionRepository
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import holdfast
from holdfast.adapters.strands.log import AGENTS, DEFAULT_AGENT, AgentLog, Change, FoundContext
from holdfast.adapters.strands.messages import Json, decode_value, encode_value
from holdfast.errors import SessionNotFound

T = TypeVar("T")
ORCHESTRATORS = ("strands", "multi_agents")
"""Namespace of the records of a session that have the states of its graphs and swarms."""


class HoldfastSessionManager(SessionManager[Any]):
    """Stores a session of Strands: the messages and the state of its agents, and the state of graphs and swarms.

    The messages of each agent are the log of a session of Holdfast, together with a record of the agent's state. The log of an agent
    without an id is the session `session_id`, the log of another agent is the session `session_id:agent_id`.

    With a portal, agents may be called with and without `await`, from any thread. With an open `Holdfast`, agents must be called with
    `await`, in its event loop, and `load` must be awaited before an agent is created.

    Args:
        hf: an open `Holdfast`, or a `holdfast.Portal()`.
        session_id: the id of the session, which is created when it is used first.
        user_id: the owner of the session.
    """

    def __init__(self, hf: holdfast.Holdfast | holdfast.Portal, session_id: str, *, user_id: str = "default") -> None:
        self.session_id = session_id
        self._hf, self._user_id = hf, user_id
        self._loaded: dict[str, tuple[AgentLog, Json | None, list[Json]]] = {}
        self._logs: dict[str, AgentLog] = {}
        self._restored: set[str] = set()
        self._saving = asyncio.Lock()

    async def load(self, *agent_ids: str) -> Self:
        """Read the logs of agents, and return the session manager. The constructors of these agents then read nothing.

        Args:
            agent_ids: ids of the agents; without any, the id of an agent that has been given none.
        """
        for agent_id in agent_ids or (DEFAULT_AGENT,):
            log = AgentLog(self.session_id, agent_id, self._user_id)
            self._loaded[agent_id] = log, *await self._run(log.load)
        return self

    async def delete(self) -> None:
        """Delete the session, with the logs of all its agents and everything that belongs to them."""
        await self._run(self._delete)

    async def _delete(self, hf: holdfast.Holdfast) -> None:
        names = [self.session_id]
        try:
            session = await hf.get(self.session_id, user_id=self._user_id)
        except SessionNotFound:
            return
        names += [record.value async for record in session.records(AGENTS).iterate()]
        for name in reversed(names):  # the list of the others is deleted last
            await hf.delete(holdfast.SessionRef(self._user_id, name))

    # -- hooks ---------------------------------------------------------------------

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Register the hooks that restore and store agents, graphs and swarms. All but the first are asynchronous."""
        registry.add_callback(AgentInitializedEvent, lambda event: self.initialize(event.agent))
        registry.add_callback([MessageAddedEvent, MessageUpdatedEvent], self._store_message)
        registry.add_callback([BeforeModelCallEvent, AfterInvocationEvent], self._store_agent)
        registry.add_callback(BidiAgentStopEvent, self._store_agent, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterModelCallEvent, self._store_redaction)
        registry.add_callback(BeforeMultiAgentInvocationEvent, self._restore_orchestrator)
        registry.add_callback([AfterNodeCallEvent, AfterMultiAgentInvocationEvent], self._store_orchestrator)

    async def _store_message(self, event: MessageAddedEvent[Any] | MessageUpdatedEvent[Any]) -> None:
        log = self._get_log(event.agent)
        plan = log.plan_update if isinstance(event, MessageUpdatedEvent) else log.plan_change
        await self._write(event.agent, plan(event.agent, event.message))

    async def _store_redaction(self, event: AfterModelCallEvent) -> None:
        await self._write(event.agent, None)

    async def _store_agent(self, event: BeforeModelCallEvent | AfterInvocationEvent | BidiAgentStopEvent) -> None:
        await self._write(event.agent, self._get_log(event.agent).plan_change(event.agent))

    async def _write(self, agent: Any, change: Change | None) -> None:
        log = self._get_log(agent)
        if log.pending or change:
            # A cancelled invocation must not leave it open whether the message was written.
            await asyncio.shield(asyncio.ensure_future(self._run(log.write, change)))

    # -- methods that the framework calls without await ------------------------------

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        """Restore an agent from the session, or store a new one.

        Raises:
            SessionException: the session has an agent with this id already.
            TypeError: the agent's log was not loaded, and cannot be loaded without a portal.
        """
        if agent.agent_id in self._logs:
            raise SessionException("The `agent_id` of an agent must be unique in a session.")
        if agent.agent_id not in self._loaded:
            self._call(self.load, agent.agent_id)
        log, state, messages = self._loaded.pop(agent.agent_id)
        is_new = state is None and not messages
        fresh = SessionAgent.from_agent(agent)
        stored = None if is_new else SessionAgent.from_dict(state) if state else fresh
        name = fresh.conversation_manager_state.get("__name__")
        if stored is not None and stored.conversation_manager_state.get("__name__") != name:
            # The log has all messages, so an agent may have another conversation manager than before.
            stored.conversation_manager_state = fresh.conversation_manager_state
        # Strands' own class restores an agent: it calls conversation managers, and repairs calls without results.
        RepositorySessionManager(self.session_id, _LoadedSession(stored, messages)).initialize(agent)
        self._logs[agent.agent_id] = log
        if is_new and isinstance(self._hf, holdfast.Portal):
            self.sync_agent(agent)

    def append_message(self, message: Any, agent: Any, **kwargs: Any) -> None:
        """Store a message of an agent. Needs a portal; hooks store messages without this method."""
        self._call(self._write, agent, self._get_log(agent).plan_change(agent, message))

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        """Store the state of an agent, and messages that are not stored yet; without a portal, the next hook does it."""
        if isinstance(self._hf, holdfast.Portal):
            self._call(self._write, agent, self._get_log(agent).plan_change(agent))

    def redact_latest_message(self, redact_message: Any, agent: Any, **kwargs: Any) -> None:
        """Replace an agent's newest message, and erase the original for good; without a portal, the hook after the model call does it.

        Raises:
            SessionException: there is no message.
        """
        log = self._get_log(agent)
        if change := log.plan_redaction(agent, redact_message):
            log.pending.append(change)
        if isinstance(self._hf, holdfast.Portal):
            self._call(self._write, agent, None)

    # -- graphs and swarms -------------------------------------------------------------

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Restore a graph or swarm, or store a new one. Needs a portal; hooks do both without this method."""
        self._call(self._initialize_orchestrator, source)

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Store the state of a graph or swarm. Needs a portal; hooks store it without this method."""
        self._call(self._save_orchestrator, source)

    async def _restore_orchestrator(self, event: BeforeMultiAgentInvocationEvent) -> None:
        if event.source.id not in self._restored:
            await self._load_orchestrator(event.source)

    async def _store_orchestrator(self, event: AfterNodeCallEvent | AfterMultiAgentInvocationEvent) -> None:
        await self._save_orchestrator(event.source)

    async def _initialize_orchestrator(self, source: Any) -> None:
        if not await self._load_orchestrator(source):
            await self._save_orchestrator(source)

    async def _load_orchestrator(self, source: Any) -> bool:
        """Restore a graph or swarm. Return False if it is new."""

        async def load(hf: holdfast.Holdfast) -> Any:
            try:
                session = await hf.get(self.session_id, user_id=self._user_id)
            except SessionNotFound:
                return None
            record = await session.records(ORCHESTRATORS).get(source.id)
            return record.value if record else None

        state = await self._run(load)
        if state is not None:
            source.deserialize_state(decode_value(state))
        self._restored.add(source.id)
        return state is not None

    async def _save_orchestrator(self, source: Any) -> None:
        state = encode_value(source.serialize_state())

        async def save(hf: holdfast.Holdfast) -> None:
            async with self._saving:  # nodes may end at the same time: an older state must not replace a newer one
                session = await hf.session(self.session_id, user_id=self._user_id)
                await session.records(ORCHESTRATORS).put(source.id, state)

        await self._run(save)

    # -- event loops ---------------------------------------------------------------------

    async def read_context(
        self, agent: Any, keys: Sequence[int], pinned: Sequence[bool], options: Mapping[str, Any]
    ) -> FoundContext | None:
        """Return the working set of an agent, or None if the session has no log that equals the agent's messages.

        Args:
            agent: the agent.
            keys: the keys of its messages.
            pinned: whether each message is pinned.
            options: arguments of `SessionHandle.context`.
        """
        log = self._logs.get(agent.agent_id)
        return None if log is None else await self._run(log.read_context, keys, pinned, options)

    def _get_log(self, agent: Any) -> AgentLog:
        return self._logs[agent.agent_id]

    async def _run(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Call `function` with the open `Holdfast`, in its event loop."""
        if isinstance(self._hf, holdfast.Portal):
            return await self._hf.run(function, self._hf.hf, *args)
        return await function(self._hf, *args)

    def _call(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Call a method of this object from synchronous code.

        Raises:
            TypeError: there is no portal.
        """
        if not isinstance(self._hf, holdfast.Portal):
            raise TypeError(
                "an open Holdfast cannot be used without await: `await session_manager.load(agent_id)` before you create the agent,"
                " or use HoldfastSessionManager(holdfast.Portal(…).start(), …)"
            )
        self._hf.call(function, *args)


class _LoadedSession(SessionRepository):
    """A session from which `RepositorySessionManager` restores an agent. What it would write is ignored.

    Args:
        agent: the stored agent, or None if the agent is new.
        messages: its messages.
    """

    def __init__(self, agent: SessionAgent | None, messages: Sequence[Json]) -> None:
        self._agent, self._messages = agent, messages

    def read_session(self, session_id: str, **kwargs: Any) -> Session:
        return Session(session_id=session_id, session_type=SessionType.AGENT)

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        return self._agent

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        return [SessionMessage(message, at) for at, message in enumerate(self._messages)][offset:]  # type: ignore[arg-type]

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        return session

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None: ...

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None: ...

    def create_message(self, session_id: str, agent_id: str, session_message: Any, **kwargs: Any) -> None: ...

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> None: ...

    def update_message(self, session_id: str, agent_id: str, session_message: Any, **kwargs: Any) -> None: ...
