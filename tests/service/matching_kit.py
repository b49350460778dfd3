"""Session matching as the gateway does it, for tests and benchmarks without a gateway."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.messages import Message
from holdfast.domain.session import Session
from holdfast.stores.base import Store
from holdfast.turns.place import Trail
from holdfast.turns.session_finder import Finder, Sender


async def find_session(store: Store, user_id: str, incoming: Sequence[Message]) -> Session | None:
    """Return the session that a request continues or edits while no turn runs anywhere, or None for a new session."""
    return await Finder(store, Sender(user_id, await Trail.make(incoming)), lambda _: False).find()
