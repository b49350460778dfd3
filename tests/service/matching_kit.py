"""Session matching as the gateway does it, for tests and benchmarks without a gateway."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.domain.messages import Message
from holdfast.matching.log_match import Landing
from holdfast.matching.session_match import MatchFinder, Sender
from holdfast.stores.base import Store


async def find_landing(
    store: Store, user_id: str, incoming: Sequence[Message], system: Sequence[Message] = (), *, whole: bool = False
) -> Landing | None:
    """Return where a request continues or edits a session while no turn runs anywhere, or None for a new session."""
    sender = Sender(user_id, lambda _: "idle", lambda _: False)
    match = await MatchFinder(store, sender, incoming, system, whole=whole).find()
    return None if match is None else match.landing
