"""What a tool is given of the session that it is called in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.artifacts import SessionArtifacts
from holdfast.domain.session import Entry
from holdfast.tools.state import State


class Found(NamedTuple):
    """Something that was said in an earlier conversation, as a model is told of it."""

    source: str
    """The session's id."""
    at: str
    """When."""
    by: str
    """Who said it: a role, a name."""
    text: str


class Wanted(NamedTuple):
    """What a model searches earlier conversations for; None: any."""

    query: str
    most: int | None = None
    """Hits."""
    since: str | None = None
    until: str | None = None
    session_id: str | None = None


async def _none(start: int, stop: int) -> Sequence[Entry]:
    return ()


def _all(entry: Entry) -> bool:
    return True


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call, and where in its session it stands: for tools that keep something of a session elsewhere."""

    id: str = ""
    """The call's, as the log has it: another call of another message may have the same."""
    tenant: str = ""
    identity: str = ""
    """See `Session.identity`."""
    unit: int = 0
    """`seq` of the message that calls."""
    entries: Callable[[int, int], Awaitable[Sequence[Entry]]] = _none
    """The live entries of the log from one `seq` to before another."""
    sees: Callable[[Entry], bool] = _all
    """Whether who calls may see one of these: it is not another branch's, of agents that speak side by side."""
    transfer: Callable[[str], Awaitable[None]] | None = None
    """Has the agent of that name answer from the next call of the model on; None: nobody can take over here."""
    delegate: Callable[[ToolContext, str, str], Awaitable[str]] | None = None
    """Given the context of the call, an agent's name and what is wanted, its reply; None: no agent can be called here."""
    search: Callable[[Wanted], Awaitable[Sequence[Found]]] | None = None
    """What the user's conversations have; None: nothing can be searched here."""
    memories: Any = None
    """The `holdfast.memory.session_memories.SessionMemories` of the session; None: there are none here."""
    most: int = 64 * 1024
    """Bytes of a result, as `ToolLimits` says."""


class ToolContext:
    """The session that a tool is called in. A parameter that is annotated with it gets it; the model never sees that one.

    Attributes:
        session_id: the session's id.
        user_id: whose session it is.
        agent: who answers; None: no agent.
        state: the session's state; see `State`.
        artifacts: the session's artifacts: save, load, list, versions, delete. Its methods are awaited.
        call: the call itself.
        noted: what a built-in tool has said of the call in the metadata of its result; nothing where it fails.
        marked: the same, whatever becomes of the call.
    """

    def __init__(
        self,
        *,
        session_id: str,
        user_id: str,
        agent: str | None,
        state: State,
        artifacts: SessionArtifacts,
        call: Call = Call(),  # noqa: B008  # frozen
    ) -> None:
        self.session_id = session_id
        self.user_id = user_id
        self.agent = agent
        self.state = state
        self.artifacts = artifacts
        self.call = call
        self.noted: dict[str, Any] = {}
        self.marked: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<context of a tool in session {self.session_id!r}>"
