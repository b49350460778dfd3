"""The part of the store contract that is about origins, on top of any database: checks, and leaves the rest to the steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from holdfast.domain.artifact import Scope
from holdfast.domain.origins import Origin
from holdfast.domain.session import SessionRef
from holdfast.stores import checks
from holdfast.stores.logic import origins
from holdfast.stores.logic.steps import Steps

T = TypeVar("T")


class OriginMethods(ABC):
    """The methods of `MatchingStore` of a handle that runs steps."""

    tenant: str

    @abstractmethod
    async def _read(self, steps: Callable[[], Steps[T]], *, single: bool = False) -> T:
        """See `Database.read`."""

    @abstractmethod
    async def _write(self, steps: Callable[[], Steps[T]], scope: Scope | None = None, *, scrub: bool = False) -> T:
        """See `Database.write`; writes of one scope come one after the other."""

    async def share(self, ref: SessionRef, identity: str) -> None:
        """See `MatchingStore.share`."""
        checks.check_ref(ref)
        checks.check_id(identity, "identity")
        await self._write(partial(origins.share, self.tenant, ref, identity), ref)

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """See `MatchingStore.origins`."""
        checks.check_id(user_id, "user_id")
        for id_ in sessions:
            checks.check_id(id_, "session_id")
        return await self._read(partial(origins.origins, self.tenant, user_id, sessions), single=True)

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """See `MatchingStore.sharing`."""
        checks.check_id(user_id, "user_id")
        checks.check_id(source, "source")
        return await self._read(partial(origins.sharing, self.tenant, user_id, source), single=True)
