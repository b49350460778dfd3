"""A pytest plugin: Strands' own tests of `RepositorySessionManager` then test `HoldfastSessionManager`.

Each repository of the tests is a database of its own. `ShimRepository` writes and reads what the session manager stores.
"""

from __future__ import annotations

from importlib import import_module
from inspect import getsource
from typing import Any

import strands.session.repository_session_manager
import strands.session.session_repository
from strands.session import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage

import holdfast
from holdfast.adapters.strands import HoldfastSessionManager
from holdfast.adapters.strands.log import AgentLog, Change
from holdfast.adapters.strands.messages import make_entries

_portals: list[holdfast.Portal] = []


class ShimRepository:
    """The methods of a repository, for the tests only: the session manager does not call them."""

    def __init__(self) -> None:
        self.portal = holdfast.Portal("sqlite://:memory:").start()
        _portals.append(self.portal)
        self.sessions: dict[str, Session] = {}

    def create_session(self, session: Session, **_: Any) -> None:
        """Remember a session: Holdfast has sessions of agents only."""
        self.sessions[session.session_id] = session

    def read_session(self, session_id: str, **_: Any) -> Session | None:
        """Return a session."""
        return self.sessions.get(session_id)

    def create_agent(self, session_id: str, agent: SessionAgent, **_: Any) -> None:
        """Store an agent as the session manager does."""
        state = {**agent.to_dict(), "session_id": session_id}
        self.portal.call(AgentLog(session_id, agent.agent_id, "default").write, self.portal.hf, Change(state, "", None))

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> SessionAgent | None:
        """Return a stored agent."""
        state, _messages = self._load(session_id, agent_id)
        return state and SessionAgent.from_dict(state)

    def update_agent(self, session_id: str, agent: SessionAgent, **_: Any) -> None:
        """Store an agent again."""
        self.create_agent(session_id, agent)

    def create_message(self, session_id: str, agent_id: str, message: SessionMessage, **_: Any) -> None:
        """Store a message as the session manager does."""
        log = AgentLog(session_id, agent_id, "default")

        async def append() -> None:
            session = await self.portal.hf.session(log.id)
            await session.append(make_entries(message.to_message()))

        self.portal.call(append)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[SessionMessage]:
        """Return the messages of an agent."""
        _state, messages = self._load(session_id, agent_id)
        listed = [SessionMessage(message, at) for at, message in enumerate(messages)]  # type: ignore[arg-type]
        return listed[offset : None if limit is None else offset + limit]

    def create_multi_agent(self, session_id: str, source: Any, **_: Any) -> None:
        """Store a graph or swarm as the session manager does."""
        HoldfastSessionManager(self.portal, session_id).sync_multi_agent(source)

    update_multi_agent = create_multi_agent

    def read_multi_agent(self, session_id: str, name: str, **_: Any) -> Any:
        """Return the state of a graph or swarm."""

        async def read() -> Any:
            session = await self.portal.hf.session(session_id)
            record = await session.records(("strands", "multi_agents")).get(name)
            return record and record.value

        return self.portal.call(read)

    def _load(self, session_id: str, agent_id: str) -> Any:
        return self.portal.call(AgentLog(session_id, agent_id, "default").load, self.portal.hf)


class ShimManager(HoldfastSessionManager):
    """`HoldfastSessionManager` with the constructor of `RepositorySessionManager`."""

    def __init__(self, session_id: str, session_repository: Any, **_: Any) -> None:
        if not isinstance(session_repository, ShimRepository):
            raise SessionException("this test has a repository of its own")
        super().__init__(session_repository.portal, session_id)
        self.session_repository = session_repository
        self.session = session_repository.read_session(session_id) or Session(session_id, "AGENT")  # type: ignore[arg-type]
        session_repository.create_session(self.session)

    _fix_broken_tool_use = RepositorySessionManager._fix_broken_tool_use  # noqa: SLF001 - the adapter uses this class


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep only tests that use a session manager."""
    names = "RepositorySessionManager(", "session_manager"
    items[:] = [
        one for one in items if "session/" in one.nodeid or any(name in getsource(one.function) for name in names)
    ]


def pytest_sessionfinish() -> None:
    """Close the databases."""
    for portal in _portals:
        portal.close()


def pytest_configure() -> None:
    """Replace the classes before the tests import them."""
    fixture: Any = import_module("tests.fixtures.mock_session_repository")  # of the source distribution
    fixture.MockedSessionRepository = ShimRepository
    for module in (strands.session, strands.session.repository_session_manager):
        module.RepositorySessionManager = ShimManager
