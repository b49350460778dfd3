"""Find the messages that a request has in common with stored logs, in one session or in all sessions of the user.

The digests of the request's messages are looked up in an index of the store. So the cost depends on the request, and not on the
number and length of sessions. There are three ways to match the message after a match:

- by the chain of digests: each digest depends on all visible messages before it;
- by an alias, if a client resends a message in a shorter form than the stored one (without media, or a part of a reply);
- by comparing the messages themselves, if a request leaves out older messages.

Terms of this module:

- visible message: a message that clients see; tool calls and tool results are not visible.
- live path: the log without the entries that an edit or a rewind replaced.
- position: a `Sighting`, an entry of a log that has one of the digests searched for.
- landing: the last visible message that a request and a log have in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace as evolve

from holdfast.accounting import run_cpu
from holdfast.domain.messages import (
    GENESIS,
    Message,
    chain,
    digest_cut_reply,
    digest_reply,
    digest_without_media,
)
from holdfast.domain.reconcile import LogRemainder, compare_rounds, is_same_message, is_seen_prefix
from holdfast.domain.session import Entry, Session, SessionRef, is_always_named
from holdfast.limits import INLINE_MESSAGES, MARKS, SIGHTINGS
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting
from holdfast.stores.walk import ENTRIES, read_entries_until

_ANCHORS: Final = 4
"""If a request leaves out messages, this many of its last replies are looked up anywhere in a log."""
_PLACES: Final = 16
"""Maximum number of positions that are tried for each reply that is looked up anywhere in a log."""
_WINDOW: Final = 32
"""Messages per lookup after a message that the client resent in another form. The number doubles whenever all are found."""


class Landing(NamedTuple):
    """The last visible message that a request and a log have in common."""

    place: Sighting
    sent: int
    """Number of messages of the request up to and including the landing."""
    shared: int
    """Number of visible messages that the request and the log have in common."""


class Trail:
    """The visible messages of a request, and the user whose logs are searched for them."""

    def __init__(
        self, store: Store, user_id: str, incoming: Sequence[Message], session: SessionRef | None = None
    ) -> None:
        self.store = store
        self.user_id = user_id
        self.session = session
        self.at = [at for at, message in enumerate(incoming) if message.visible]
        self.messages = [incoming[at] for at in self.at]

    @property
    def is_long(self) -> bool:
        """True if there are so many messages that they must be hashed outside of the event loop."""
        return len(self.messages) > INLINE_MESSAGES

    def restrict_to(self, session: SessionRef) -> Trail:
        """Return a copy of this trail that searches only one session."""
        trail = Trail(self.store, self.user_id, (), session)
        trail.at, trail.messages = self.at, self.messages
        return trail

    def make_landing(self, place: Sighting, count: int, shared: int) -> Landing:
        """Return the landing if the first `count` visible messages match, and the last of them is at `place` in the log."""
        return Landing(place, self.at[count - 1] + 1, shared)

    def list_replies(self, start: int) -> list[int]:
        """Return the indexes of replies at index `start` or later."""
        return [at for at in range(start, len(self.messages)) if self.messages[at].role == "assistant"]

    async def find_places(
        self, marks: Sequence[bytes], *, alias: bool = False, limit: int = SIGHTINGS, ends: bool = False
    ) -> tuple[Sighting, ...]:
        """Search logs for the last digest first, then for earlier ones. Return all positions of the first digest that is found.

        Args:
            marks: digests in the order of the request.
            alias: True to search for aliases instead of digests.
            limit: maximum number of positions.
            ends: True to find only positions at the end of a live path.
        """
        if not marks:
            return ()
        for start in range(max(len(marks) - MARKS, 0), -MARKS, -MARKS):
            part = marks[max(start, 0) : start + MARKS]
            if found := await self._find_sightings(part, alias=alias, limit=limit, ends=ends):
                return tuple(_move_place(one, max(start, 0)) for one in found)
        return ()

    async def _find_sightings(
        self, marks: Sequence[bytes], *, alias: bool, limit: int, ends: bool
    ) -> Sequence[Sighting]:
        """Return the positions of the last digest that occurs in a log. `marks` has at most `MARKS` digests.

        Sessions that requests always name are left out, unless the search is restricted to one session.
        """
        while marks:
            found = await self.store.sightings(
                self.user_id, marks, alias=alias, session=self.session, limit=limit, ends=ends
            )
            own = found if self.session is not None else [one for one in found if not is_always_named(one.ref)]
            if own or not found:
                return own
            marks = marks[: found[0].mark]
        return ()


def _move_place(place: Sighting, by: int) -> Sighting:
    return evolve(place, mark=place.mark + by) if by else place


# -- in one session ----------------------------------------------------------------


async def find_landing(store: Store, session: Session, incoming: Sequence[Message], *, whole: bool) -> Landing | None:
    """Return the last visible message that a request for `session` has in common with the session's log, or None.

    Args:
        store: the store.
        session: the current session.
        incoming: the request's messages without the leading system messages.
        whole: True if the request is a complete transcript. Messages of the log that the request lacks were then deleted by the client.
    """
    trail = Trail(store, session.user_id, incoming, session.ref)
    prefix = await _find_prefix(trail)
    if whole or not trail.list_replies(_count_covered(trail, prefix)) or not (prefix is None or prefix.place.live):
        return prefix
    found = await find_omitting(trail, prefix, run=1)
    return found[0] if found else await _find_after_cut(trail, session, prefix) or prefix


def count_known_messages(digest: bytes, incoming: Sequence[Message]) -> int | None:
    """Return the number of the request's messages that the log already has, if only new messages follow them.

    Return None if digests alone cannot decide this; then use `find_landing`. This function does not read the store.

    Args:
        digest: the digest of the log.
        incoming: the request's messages without the leading system messages.
    """
    chained, sent = GENESIS, None
    for at, message in enumerate(incoming):
        if message.visible:
            chained = chain(chained, message)
            if chained == digest:
                sent = at + 1
    rest = incoming if sent is None else incoming[sent:]
    return None if any(message.visible and message.role == "assistant" for message in rest) else sent


async def read_end(store: Store, session: Session) -> LogRemainder:
    """Return the tool messages at the end of the live path, after its last visible message."""
    if session.tail.last_kind not in {"calls", "result"}:
        return LogRemainder((), None)
    tools, _ = await read_entries_until(store, session.ref, _is_visible, stop=session.tail.next_seq, descending=True)
    return LogRemainder(tools[::-1], None)


async def read_remainder(store: Store, ref: SessionRef, seq: int) -> LogRemainder:
    """Return the entries of the live path after `seq`, up to the next visible message."""
    tools, following = await read_entries_until(store, ref, _is_visible, start=seq + 1)
    return LogRemainder(tools, following.seq if following else None)


async def find_tool_round(
    store: Store, session: Session, incoming: Sequence[Message]
) -> tuple[LogRemainder, int] | None:
    """Return the tool messages of the last turn that the request repeats, and the number of messages before them in the request.

    Some clients resend only the messages of the current turn with the results of its tool calls. The ids of the calls show
    that nothing was edited. If the log has a reply to the results already, the client did not receive it, or wants another one.
    Return None if the request is not of this kind.

    Args:
        store: the store.
        session: the current session.
        incoming: the request's messages without the leading system messages.
    """
    sent = next((at for at, message in enumerate(incoming) if not message.visible), None)
    if sent is None or any(message.visible and message.role == "assistant" for message in incoming):
        return None
    calls = {call.id for call in incoming[sent].tool_calls}
    tools, reply = await _read_last_tools(store, session)
    starts = [at for at, tool in enumerate(tools) if calls and calls <= {call.id for call in tool.message.tool_calls}]
    if not starts:
        return None
    if len(starts) > 1:
        starts = _choose_starts(tools, starts, sum(bool(message.tool_calls) for message in incoming))
    start = max(starts, key=lambda at: (*compare_rounds(tools[at:], incoming[sent:]), at))
    before = await store.entries(session.ref, limit=sent, stop=tools[0].seq, descending=True) if sent else ()
    if len(before) < sent or not all(map(is_same_message, reversed(before), incoming)):
        return None
    return LogRemainder(tools[start:], reply), sent


def _choose_starts(tools: Sequence[Entry], starts: Sequence[int], count: int) -> list[int]:
    """Return the few places at which the rounds of a request may begin, if the upstream uses the same ids in each round.

    A request that has the results of the last round ends with it. One whose reply was lost ends a round before it.

    Args:
        tools: the tool messages at the end of the log.
        starts: the places of the rounds with the ids of the request's first round.
        count: number of rounds in the request.
    """
    rounds = [
        at for at, tool in enumerate(tools) if tool.kind == "calls" and (tool.metadata or {}).get("returned") != []
    ]
    likely = {starts[0], starts[-1], *rounds[-count:][:1], *rounds[-count - 1 :][:1]}
    return [at for at in starts if at in likely]


async def _read_last_tools(store: Store, session: Session) -> LogRemainder:
    """Return the tool messages at the end of the live path; those before the last message if this is a reply."""
    if session.tail.last_kind != "assistant":
        return await read_end(store, session)
    reply = session.tail.last_seq
    tools, _ = await read_entries_until(store, session.ref, _is_visible, stop=reply, descending=True)
    return LogRemainder(tools[::-1], reply)


def _is_visible(entry: Entry) -> bool:
    return entry.message.visible


class Branch(NamedTuple):
    """A part of the log that an edit or a rewind replaced, up to a visible message, with the data needed to continue the branch."""

    entries: Sequence[Entry]
    """The entries of the branch, from the point where the branch leaves the live path to the end of the branch."""
    tools: Sequence[Entry]
    """The tool messages that followed the end of the branch."""
    retire_from: int | None
    """`seq` of the first live entry after the point where the branch leaves the live path; None if there is no such entry."""
    ends: bool
    """True if no visible message followed the end of the branch."""


async def read_branch(store: Store, ref: SessionRef, seq: int) -> Branch:
    """Return the branch that ends at the entry `seq`, which an edit or a rewind replaced.

    The cost depends on the number of entries that were written since the branch left the live path.
    """
    path, joined = await read_entries_until(
        store,
        ref,
        lambda entry: entry.retired_by is None,  # entries that are live now were live too when the branch was
        keep=lambda entry: entry.retired_by is not None and entry.retired_by > seq and not entry.is_note,
        stop=seq + 1,
        descending=True,
        retired=True,
    )
    path.reverse()
    end = path[-1]
    tools, following = await read_entries_until(
        store,
        ref,
        lambda entry: entry.retired_by == end.retired_by and entry.message.visible,
        keep=lambda entry: (
            entry.retired_by == end.retired_by and not entry.is_note
        ),  # not the entries of a branch that was retired earlier
        start=seq + 1,
        stop=end.retired_by,
        retired=True,
    )
    live = await store.entries(ref, start=joined.seq + 1 if joined else 0, limit=1)
    return Branch(path, tools, live[0].seq if live else None, following is None)


# -- message by message ----------------------------------------------------------------


def _count_covered(trail: Trail, landing: Landing | None) -> int:
    return 0 if landing is None else sum(1 for at in trail.at if at < landing.sent)


async def _find_prefix(trail: Trail) -> Landing | None:
    """Return the landing of the request in the session whose log shares the longest beginning with the request, or None."""
    places, count = await find_shared_places(trail, 0, GENESIS, first=0)
    if not places:
        return None
    live = [place for place in places if place.live]
    return trail.make_landing((live or sorted(places, key=lambda one: one.seq))[-1], count, count)


async def find_shared_places(trail: Trail, start: int, digest: bytes, *, first: int) -> tuple[Sequence[Sighting], int]:
    """Return all positions of the last message that the request and a log share, and the number of messages up to that message.

    Each message is added to the digest chain only once. Only a few messages after one that the client resent in another form may be
    added again.

    Args:
        trail: the request.
        start: index of the first message to find.
        digest: the chained digest before this message.
        first: index of the first message that may be the last shared one.
    """
    chains, places, count, window = {digest}, tuple[Sighting, ...](), start, len(trail.messages)
    while count < len(trail.messages):
        chained = [await run_cpu(_compute_chain, trail, count, link, window, long=trail.is_long) for link in chains]
        straight = [one for some in chained for one in some if one[0] >= first]
        straight.sort(key=lambda one: one[0])
        found = await trail.find_places([mark for _, mark in straight])
        if found:
            at = straight[found[0].mark][0]
            heard = () if any(one.live for one in found) else await _find_heard_since(trail, count, chains, at)
            if heard:
                places, count = heard[0], heard[1]
                chains, window = {one.digest for one in places}, _WINDOW
                continue
            whole = at + 1 == count + window
            places, count, chains = found, at + 1, {found[0].digest}
            if whole and count < len(trail.messages):
                window *= 2
                continue
        if count == len(trail.messages) or (
            places and not trail.list_replies(count) and all(one.last for one in places)
        ):
            break
        strays = [stray for link in chains for stray in _list_strays(trail, count, link, max(count, first))]
        strays.sort(key=lambda one: one[0])
        aliased = await trail.find_places([mark for _, mark in strays], alias=True)
        if not aliased:
            break
        at = strays[aliased[0].mark][0]
        aliased = await _find_seen_places(trail, aliased, at)
        if not aliased:
            break
        places, count, chains, window = aliased, at + 1, {one.digest for one in aliased}, _WINDOW
    return places, count


def _compute_chain(trail: Trail, start: int, digest: bytes, count: int) -> list[tuple[int, bytes]]:
    """Return the chained digests of `count` messages, beginning at index `start`. Each digest comes with the index of its message."""
    found = []
    for at in range(start, min(start + count, len(trail.messages))):
        digest = chain(digest, trail.messages[at])
        found.append((at, digest))
    return found


def _list_strays(trail: Trail, start: int, digest: bytes, last: int) -> list[tuple[int, bytes]]:
    """Return the digests that find messages which the client resent in another form, each with the index of its message.

    The message with the digest is one from index `start` to `last`. The messages between `start` and that message have their stored form.
    """
    found = []
    for at in range(start, min(last + 1, len(trail.messages))):
        message = trail.messages[at]
        if message.role == "assistant":
            found.append((at, digest_cut_reply(digest)))
        elif not message.media:
            found.append((at, digest_without_media(digest, message)))
        digest = chain(digest, message)
    return found


async def _find_seen_places(trail: Trail, places: Sequence[Sighting], at: int) -> tuple[Sighting, ...]:
    """Return only the positions whose stored reply may be the one that the client resends, possibly cut by an interruption."""
    message = trail.messages[at]
    if message.role != "assistant":
        return tuple(places)
    kept = []
    for place in places:
        entries = await trail.store.entries(place.ref, start=place.seq, stop=place.seq + 1, retired=True)
        if entries and is_seen_prefix(entries[0], message):
            kept.append(place)
    return tuple(kept)


async def _find_heard_since(
    trail: Trail, start: int, chains: Collection[bytes], last: int
) -> tuple[tuple[Sighting, ...], int] | tuple[()]:
    """Return the positions of live replies that replaced a longer reply because only a part of it was heard.

    This applies to a client that received the whole reply and does not know that it was cut. The client's next messages follow
    the shorter reply in the log. Only the messages from `start` to `last` are looked up.

    Returns:
        The positions, and the number of messages up to and including the reply; an empty tuple if there are no such replies.
    """
    strays = [stray for link in chains for stray in _list_strays(trail, start, link, last)]
    strays = sorted((at, mark) for at, mark in strays if trail.messages[at].role == "assistant")
    aliased = await trail.find_places([mark for _, mark in strays], alias=True)
    if not aliased:
        return ()
    at = strays[aliased[0].mark][0]
    kept = []
    for place in aliased:
        entries = await trail.store.entries(place.ref, start=place.seq, stop=place.seq + 1) if place.live else ()
        if entries and "original" in (entries[0].metadata or {}) and is_seen_prefix(entries[0], trail.messages[at]):
            kept.append(place)
    return (tuple(kept), at + 1) if kept else ()


# -- requests that leave out messages -------------------------------------------------------


async def find_omitting(trail: Trail, prefix: Landing | None, *, run: int) -> list[Landing]:
    """Search for logs that match a request in which older messages are left out or merged. Return one landing per matching session.

    The request must leave out more messages of the log than it has in their place. Otherwise the request is an edit.

    Args:
        trail: the request.
        prefix: the landing of the messages that match from the beginning of one session's log; None to search all sessions.
        run: minimum number of consecutive messages in common.
    """
    floor = _count_covered(trail, prefix)
    replies = [(at, mark) for at in trail.list_replies(floor) if (mark := digest_reply(trail.messages[at])) is not None]
    for _ in range(_ANCHORS):
        places = await trail.find_places([mark for _, mark in replies], alias=True, limit=_PLACES)
        if not places:
            return []
        at = replies[places[0].mark][0]
        found: dict[SessionRef, Landing] = {}
        for place in places:
            if (
                place.live
                and place.ref not in found
                and (one := await _find_run_landing(trail, place, at, prefix, run)) is not None
            ):
                found[place.ref] = one
        if found:
            return list(found.values())
        del replies[places[0].mark :]
    return []


async def _find_run_landing(trail: Trail, place: Sighting, at: int, prefix: Landing | None, run: int) -> Landing | None:
    """Return the end of the consecutive shared messages around `place`, or None if they do not show a match.

    Message `at` of the request is at `place` in the log. `run` is the minimum number of consecutive shared messages.
    """
    floor = _count_covered(trail, prefix)
    found = await _read_run(trail, place, at, floor)
    begins = at - len(found) + 1
    if not found or (begins > floor and len(found) == 1 and not place.last):
        return None
    before = prefix.place.seq if prefix else -1
    if not await _has_more_between(trail, place.ref, before, found[-1].seq, begins - floor):
        return None
    further, count = await find_shared_places(trail.restrict_to(place.ref), at + 1, place.digest, first=at + 1)
    live = [one for one in further if one.live]
    place, count = (live[-1], count) if live else (place, at + 1)
    users = any(message.role == "user" for message in trail.messages[begins:count])
    if count - begins < run or (run > 1 and not users) or trail.list_replies(count):
        return None  # a request with more replies that the log does not have is an edit
    return trail.make_landing(place, count, floor + count - begins)


async def _find_after_cut(trail: Trail, session: Session, prefix: Landing | None) -> Landing | None:
    """Return the landing that is found through an interrupted reply near the end of the log, or None.

    The client may have seen more or less of the reply than the log has. Digests cannot find such a reply, so the texts are compared.
    """
    at = trail.list_replies(0)[-1]
    page = await trail.store.entries(session.ref, limit=ENTRIES, descending=True)
    visible = [entry for entry in page if entry.message.visible]
    cut = next((entry for entry in visible if is_seen_prefix(entry, trail.messages[at])), None)
    if cut is None:
        return None
    place = Sighting(
        ref=session.ref,
        identity=session.identity,
        mark=at,
        seq=cut.seq,
        digest=cut.digest,
        live=True,
        last=cut is visible[0],
        updated_at=session.updated_at,
    )
    return await _find_run_landing(trail, place, at, prefix, 1)


async def _read_run(trail: Trail, place: Sighting, at: int, floor: int) -> list[Entry]:
    """Return the live visible entries up to `place` that equal the request's messages up to `at`, newest first."""
    expected = iter(trail.messages[floor : at + 1][::-1])

    def is_different(entry: Entry) -> bool:
        if not entry.message.visible:
            return False
        message = next(expected, None)
        return message is None or not is_same_message(entry, message)

    found, _ = await read_entries_until(
        trail.store, place.ref, is_different, keep=_is_visible, stop=place.seq + 1, descending=True
    )
    return found


async def _has_more_between(trail: Trail, ref: SessionRef, after: int, stop: int, most: int) -> bool:
    """Return True if the live path has more than `most` visible messages with `after < seq < stop`."""
    numbers = itertools.count(1)

    def is_too_many(entry: Entry) -> bool:
        return entry.message.visible and next(numbers) > most

    _, one_more = await read_entries_until(
        trail.store, ref, is_too_many, keep=lambda _: False, start=after + 1, stop=stop, descending=True
    )
    return one_more is not None
