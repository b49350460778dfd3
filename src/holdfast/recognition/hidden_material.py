"""What a session has that a request did not bring: tool messages, media, state, artifacts, a system prompt.

A user that is not identified may be anybody. Such material is used only where every session that the request could mean has
the same (docs/reconcile.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from holdfast.domain.messages import Message, calls_in, canonical
from holdfast.domain.session import Session, SessionRef
from holdfast.errors import SessionNotFound
from holdfast.limits import COMPARED_MESSAGES, COMPARED_SESSIONS
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting

_ANOTHER: Final = None
"""Stands for material that is not compared: it counts as different."""


class Material:
    """The hidden material of sessions, as one request sees it.

    Args:
        store: of the tenant.
        incoming: the request's messages without the leading system messages.
        prompted: whether the request has a system prompt of its own.
    """

    def __init__(self, store: Store, incoming: Sequence[Message], *, prompted: bool) -> None:
        self.store = store
        self._sent = _tool_messages(incoming)
        self._prompted = prompted

    async def is_nothing_else(self, session: Session) -> bool:
        """Return True if a session without tool messages and state has no artifacts and no system prompt to hide either."""
        if session.system_messages and not self._prompted:
            return False
        return not (await self.store.artifacts(session.ref, limit=1)).artifacts

    async def of(self, session: Session, end: Sighting) -> tuple[Any, ...] | None:
        """Return the material of a session up to the first visible message after `end`, or None if it is not comparable."""
        if not end.live or session.messages > COMPARED_MESSAGES:
            return _ANOTHER
        kept = []
        for entry in await self.store.entries(session.ref):
            if entry.seq > end.seq and entry.message.visible:
                break
            kept.append(entry.message)
        artifacts = await self.store.artifacts(session.ref, limit=COMPARED_MESSAGES)
        if artifacts.has_more:
            return _ANOTHER
        prompt = () if self._prompted else tuple(canonical(message) for message in session.system_messages)
        named = tuple((one.name, one.version, one.sha256) for one in artifacts.artifacts)
        return (end.digest, _tool_messages(kept), session.state, named, prompt)

    def was_sent(self, material: tuple[Any, ...] | None) -> bool:
        """Return True if the request brought all of some material itself."""
        if material is None:
            return False
        _, tools, state, artifacts, prompt = material
        return bool(tools == self._sent[: len(tools)] and not state and not artifacts and not prompt)


async def differs(
    material: Material, session: Session, end: Sighting, *, aliased: bool, digests: Sequence[bytes]
) -> bool:
    """Return True if a session has hidden material that another session with the same visible path does not have.

    Args:
        material: compares.
        session: the one that the request would continue.
        end: its last visible message.
        aliased: the session's own messages may say more than the request's.
        digests: of all places at which the same is visible.
    """
    others: dict[SessionRef, Sighting] = {}
    for digest in digests:
        found = await material.store.sightings(session.user_id, [digest], limit=COMPARED_SESSIONS + 1)
        others |= {one.ref: one for one in found if one.ref != session.ref and (one.live or one.ref not in others)}
    if not others:
        return False
    own = await material.of(session, end)
    if not aliased and material.was_sent(own):
        return False
    if own is None or len(others) > COMPARED_SESSIONS:
        return True
    for other in others.values():
        try:
            if await material.of(await material.store.get(other.ref), other) != own:
                return True
        except SessionNotFound:
            continue
    return False


def _tool_messages(messages: Sequence[Message]) -> tuple[tuple[int, bytes], ...]:
    """Return the tool messages among some, each with how many visible ones come before it; ids of calls do not count."""
    found, visible = [], 0
    for message in messages:
        visible += message.visible
        if message.tool_calls:
            found.append((visible, calls_in(message)))
        elif not message.visible:
            found.append((visible, canonical(message.evolve(tool_call_id=None))))
    return tuple(found)
