"""The memories that an agent can use in a session: those of the session's user, of the agent and of the app.

New memories belong to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from holdfast.domain.memory import MemoryType, Owner
from holdfast.domain.session import SessionRef
from holdfast.errors import MemoryNotFound
from holdfast.memory.checks import find_owners
from holdfast.memory.lookup import RecalledMemories
from holdfast.memory.memories import Memories, Remembered
from holdfast.memory.provenance import Trace
from holdfast.recall.base import SearchMode

USUAL: Final = 5


class SessionMemories:
    """The memories that can be used in a session. No call can reach another user's memories.

    The arguments `ref`, `identity`, `is_in_prompt` and `quotes` become attributes.

    Args:
        service: the tenant's memories.
        ref: the session.
        identity: the session's identity (`Session.identity`).
        agent: the agent that answers in the session; None: no agent.
        most: the default limit of a recall; None: `USUAL`.
        is_in_prompt: returns True if the prompt contains a memory's content already.
        quotes: returns True if the prompt contains recalled words that are not the user's own.
        root: id of the session that signals of recalls name. It differs from this session's id if this session works on behalf of another
            one. None: this session.
    """

    def __init__(
        self,
        service: Memories,
        ref: SessionRef,
        identity: str,
        agent: str | None,
        *,
        most: int | None = None,
        is_in_prompt: Callable[[str], bool] = lambda _: False,
        quotes: Callable[[], bool] = lambda: False,
        root: str | None = None,
    ) -> None:
        self._service = service
        self._most = most or USUAL
        self.is_in_prompt = is_in_prompt
        self.ref = ref
        self.identity = identity
        self._agent = agent
        self.quotes = quotes
        self._root = root or ref.id

    @property
    def owners(self) -> tuple[Owner, ...]:
        """The owners whose memories are visible in the session."""
        return find_owners(self.ref.user_id, self._agent)

    async def remember(self, content: str, trace: Trace, **fields: Any) -> Remembered:
        """Remember a statement for the user.

        Args:
            content: the text of the memory.
            trace: where its words come from. The memory's trust depends on it.
            fields: `tags`, `type` and `importance`, as in `Memories.remember`.
        """
        return await self._service.remember(
            content,
            user_id=self.ref.user_id,
            agent=self._agent,
            origin=trace.origin,
            sources=trace.sources,
            **fields,
        )

    async def recall(
        self,
        query: str,
        *,
        limit: int | None = None,
        mode: SearchMode | None = None,
        types: Collection[MemoryType] = (),
        **more: Any,
    ) -> RecalledMemories:
        """Return the visible memories that answer a question, best first. The arguments are the same as those of `MemoryReader.recall`."""
        return await self._service.recall(
            query, owners=self.owners, limit=limit or self._most, mode=mode, types=types, session=self._root, **more
        )

    async def forget(self, memory_id: str) -> tuple[str, ...]:
        """Delete a memory of the user and its history; return the ids of all deleted memories.

        Raises:
            MemoryNotFound: the user has no memory with this id, or the memory is rejected. A rejected memory must be
                kept, because otherwise the rejection would be forgotten.
        """
        owners = (Owner("user", self.ref.user_id),)
        found = await self._service.get(memory_id, owners=owners)
        if found.status == "rejected":
            raise MemoryNotFound(memory_id)
        return await self._service.forget(memory_id, owners=owners)
