"""Which session of a user a request goes on with that names none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec.structs import replace as evolve

from holdfast.domain.messages import GENESIS, Message, asked, canonical, chain
from holdfast.domain.reconcile import resent
from holdfast.domain.session import SessionRef
from holdfast.limits import SIGHTINGS
from holdfast.recognition.matching import Landing, Trail, behind, omitting, places_of
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting
from holdfast.stores.walk import entries_to

_RUN: Final = 3
"""Visible messages that a run in the middle of a log has at least, where the request leaves out what is before it."""
_OPEN: Final = 16
"""Sessions that are looked at where the first reply is still under way."""


async def recognised(
    store: Store,
    user_id: str,
    incoming: Sequence[Message],
    system: Sequence[Message] = (),
    *,
    match_system: Literal["rank", "strict"] = "rank",
    whole: bool = False,
) -> Landing | None:
    """The session of a user that a request goes on with which names none; None: it is a new one.

    The one with the longest common visible prefix, at least one reply in it; of equal ones one with the same system prompt,
    then one that goes on rather than one that is edited, then the one that was used last. A request that leaves out older
    messages is recognised by a run of `_RUN` of them.

    Args:
        store: of the tenant.
        user_id: whose sessions.
        incoming: the request's messages without the leading system messages.
        system: these. None of them: any session's will do.
        match_system: `strict`: a session with another system prompt is not the one.
        whole: the request is the whole truth: it leaves nothing out.
    """
    trail = Trail(store, user_id, incoming)
    replies = trail.replies(0)
    if not replies:
        return await _by_calls(trail, incoming, system, strict=match_system == "strict")
    places, count = await places_of(trail, 0, GENESIS, first=replies[0])
    prefix = await _best(store, places, system, strict=match_system == "strict") if count > replies[0] else None
    found = trail.landing(prefix, count, count) if prefix else None
    if whole or not trail.replies(count if prefix else 0):
        return found
    run = await omitting(trail, None, run=_RUN)
    if run is None or (found is not None and await _shared(trail, run) <= found.shared):
        return found
    return run if await _best(store, [run.place], system, strict=match_system == "strict") else found


async def _shared(trail: Trail, run: Landing) -> int:
    """What a request shares with a session by a run in its middle, and by its beginning."""
    places, count = await places_of(trail.within(run.place.ref), 0, GENESIS, first=0)
    before = any(place.live and place.seq < run.place.seq for place in places)
    return run.shared + (count if before else 0)


async def _by_calls(
    trail: Trail, incoming: Sequence[Message], system: Sequence[Message], *, strict: bool
) -> Landing | None:
    """The session whose first reply is still under way, with tools that the client runs: found by what the model asked for.

    One that has the very ids of the calls comes first: clients that keep them say so which of two like ones they mean.
    """
    digest, at, sent, marks = GENESIS, 0, 0, list[tuple[bytes, int, int, Message]]()
    for place, message in enumerate(incoming):
        if message.visible:
            digest, at, sent = chain(digest, message), at + 1, place + 1
        elif message.tool_calls:
            marks.append((asked(digest, message), at, sent, message))
    places = await trail.look([mark for mark, _, _, _ in marks], alias=True, limit=_OPEN)
    found: list[tuple[bool, Landing]] = []
    for sighting in places:
        _, shared, sent, calls = marks[sighting.mark]
        first = await _first_tool(trail.store, sighting) if sighting.live else None
        if first is None:
            continue
        tools = await behind(trail.store, sighting.ref, first - 1)
        if resent(tools, incoming[sent:]):
            ids = {call.id for tool in tools.tools for call in tool.message.tool_calls}
            exact = all(call.id in ids for call in calls.tool_calls)
            found.append((exact, Landing(evolve(sighting, last=tools.visible is None), sent, shared)))
    best = any(exact for exact, _ in found)
    landings = {one.place.ref: one for exact, one in found if exact or not best}
    chosen = await _best(trail.store, [one.place for one in landings.values()], system, strict=strict)
    return landings[chosen.ref] if chosen else None


async def _first_tool(store: Store, place: Sighting) -> int:
    """The first tool message of those that `place` is one of, behind the last visible message before it."""
    tools, _ = await entries_to(store, place.ref, lambda entry: entry.message.visible, stop=place.seq, descending=True)
    return tools[-1].seq if tools else place.seq


async def _best(
    store: Store, places: Sequence[Sighting], system: Sequence[Message], *, strict: bool
) -> Sighting | None:
    """The place to go on from, of several that share as much with the request.

    None where so many sessions have it that not all are told, and all that are have gone on otherwise: to edit one of them
    would be a guess.
    """
    if len(places) >= SIGHTINGS and not any(place.last for place in places):
        return None
    ranked = sorted(_one_each(places), key=lambda place: (place.live and place.last, place.updated_at), reverse=True)
    if not system or (len(ranked) <= 1 and not strict):
        return ranked[0] if ranked else None
    wanted = [canonical(message) for message in system]
    for place in ranked:
        session = await store.get(place.ref)
        if not session.system_messages or [canonical(message) for message in session.system_messages] == wanted:
            return place
    return None if strict or not ranked else ranked[0]


def _one_each(places: Sequence[Sighting]) -> list[Sighting]:
    """One place a session: the live one, else the newest."""
    chosen: dict[SessionRef, Sighting] = {}
    for place in places:
        known = chosen.get(place.ref)
        if known is None or (place.live, place.seq) > (known.live, known.seq):
            chosen[place.ref] = place
    return list(chosen.values())
