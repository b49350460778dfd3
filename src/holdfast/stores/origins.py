"""The part of the store contract that is about what sessions share: which entries are copies of one entry."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.domain.origins import Origin
from holdfast.domain.session import SessionRef


class OriginStore(Protocol):
    """Keep the origin of entries in a store; see `holdfast.domain.origins`. `NewSession.origins` brings a copy's own."""

    async def share(self, ref: SessionRef, identity: str) -> None:
        """Note that others are about to copy from a session, so that `sharing` finds it as well.

        Changes neither the session's version nor its times; one that has origins is left unchanged. Raises `SessionNotFound`.

        Args:
            ref: which session.
            identity: its identity; another one of its name is `SessionNotFound`.
        """
        ...

    async def origins(self, user_id: str, sessions: Collection[str]) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of some sessions of a user by id, in order of `first`. Those that share nothing are left out."""
        ...

    async def sharing(self, user_id: str, source: str) -> Mapping[str, Sequence[Origin]]:
        """Return the origins of all sessions of a user that have entries of the session with the identity `source`, by id.

        Costs what is returned, whatever the number of other sessions. Withdrawn sessions are left out.
        """
        ...
