"""Session matching as the gateway does it, for tests and benchmarks without a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from holdfast.domain.messages import Message
from holdfast.matching.log_match import Landing
from holdfast.matching.session_match import Match, MatchFinder, Sender
from holdfast.stores.base import Store


async def find_match(
    store: Store,
    user_id: str,
    incoming: Sequence[Message],
    system: Sequence[Message] = (),
    *,
    match_system: Literal["rank", "strict"] = "rank",
    whole: bool = False,
    identified: bool = True,
) -> Match | None:
    """Return the match of a request while no turn runs anywhere, or None for a new session."""
    sender = Sender(user_id, identified, lambda _: "idle", lambda _: False)
    return await MatchFinder(store, sender, incoming, system, strict=match_system == "strict", whole=whole).find()


async def find_landing(
    store: Store,
    user_id: str,
    incoming: Sequence[Message],
    system: Sequence[Message] = (),
    *,
    match_system: Literal["rank", "strict"] = "rank",
    whole: bool = False,
) -> Landing | None:
    """Return where an identified user's request continues or edits a session, or None for a new session."""
    match = await find_match(store, user_id, incoming, system, match_system=match_system, whole=whole)
    return None if match is None else match.landing
