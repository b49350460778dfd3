"""Find the place in a log from which a request continues. See docs/placing.md.

The digests of the request's messages are looked up in an index of the store, so the cost depends on the request, and not on
the number and length of sessions. `holdfast.log.align` then decides what changes.

Terms of this module:

- visible message: a message that clients see; tool calls and tool results are not visible.
- live path: the log without the entries that an edit or a rewind replaced.
- anchor: the last assistant message of a request that is a reply in a log, with the message before it.
- landing: the last visible message that a request and a log have in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace as evolve

from holdfast.accounting import run_cpu
from holdfast.domain.messages import (
    GENESIS,
    Message,
    chain,
    digest_cut_reply,
    digest_reply,
)
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.limits import INLINE_MESSAGES, MARKS
from holdfast.log.align import (
    LogRemainder,
    Plan,
    align_delta,
    align_rest,
    compare_rounds,
    is_same_message,
    is_seen_prefix,
    is_unheard,
    keep_media,
)
from holdfast.stores.base import Store
from holdfast.stores.matching import Sighting
from holdfast.stores.walk import ENTRIES, read_entries_until

PLACES: Final = 16
"""Maximum number of places that are compared for each reply that is looked up."""
ANCHORS: Final = 4
"""This many of the last replies of a request are looked up anywhere in a log."""


class MatchLost(Exception):
    """Raised if the session changed while the request waited for it, so that the request may belong elsewhere.

    Nothing was written. The caller places the request again.
    """


class Place(NamedTuple):
    """The session of a request."""

    session: Session
    """The session as it was when it was found."""
    kind: Literal["named", "matched", "new", "fork", "keyed"]
    """`matched` if it was found by the request's messages, `fork` if it was made to continue after an earlier message, `keyed` if it has the
    turn that the request repeats.
    """
    follows: int | None = None
    """`seq` of the message that the request continues after; None: the newest message."""
    find_again: Callable[[], Awaitable[Place]] | None = None
    """Places the request again; None: the request gets no other session."""

    def check(self, session: Session, retire_from: int | None) -> None:
        """Check that a request which was matched still belongs to the session.

        Args:
            session: the session now.
            retire_from: the first `seq` of the entries that the request would replace; None: it replaces nothing.

        Raises:
            MatchLost: the request would replace messages, and the session has changed since it was found.
        """
        is_changed = session.version != self.session.version
        if self.kind == "matched" and self.find_again is not None and retire_from is not None and is_changed:
            raise MatchLost


class Trail:
    """The visible messages of a request, with their digests.

    Attributes:
        incoming: the request's messages without the leading system messages, with secrets masked.
        at: indexes of the visible ones in `incoming`.
        messages: the visible ones.
        digests: for each of them, the digest of all visible messages up to it.
    """

    def __init__(self, incoming: Sequence[Message], digests: Sequence[bytes] = ()) -> None:
        self.incoming = incoming
        self.at = [at for at, message in enumerate(incoming) if message.visible]
        self.messages = [incoming[at] for at in self.at]
        self.digests = digests
        self._aliases: dict[int, list[bytes]] = {}

    @classmethod
    async def make(cls, incoming: Sequence[Message]) -> Trail:
        """Return the trail of a request. Many messages are hashed outside of the event loop."""
        trail = cls(incoming)
        trail.digests = await run_cpu(make_chain, GENESIS, trail.messages, long=len(incoming) > INLINE_MESSAGES)
        return trail

    def list_replies(self, start: int) -> list[int]:
        """Return the indexes of visible assistant messages at index `start` or later."""
        return [at for at in range(start, len(self.messages)) if self.messages[at].role == "assistant"]

    def list_aliases(self, at: int) -> list[bytes]:
        """Return the aliases that a stored reply may have, of which the client sends all or a part as its message with the index `at`."""
        if at not in self._aliases:
            alias = digest_reply(self.messages[at])
            self._aliases[at] = [digest_cut_reply(self.digests[at - 1]), *([alias] if alias else ())]
        return self._aliases[at]

    def make_landing(self, shared: int, entry: Entry | Sighting, *, live: bool = True) -> Landing:
        """Return the landing at an entry that equals the last one of the first `shared` visible messages."""
        return Landing(self.at[shared - 1] + 1 if shared else 0, shared, entry.seq, live)


class Landing(NamedTuple):
    """The last visible message that a request and a log have in common."""

    sent: int
    """Number of messages of the request up to and including it."""
    shared: int
    """Number of visible messages of the request up to and including it."""
    seq: int
    """Its `seq` in the log; -1: the beginning of the log."""
    live: bool = True
    """False if it was replaced, so that the request continues a retired branch."""


_START: Final = Landing(0, 0, -1)
"""The beginning of a log, where the first message was edited."""


def make_chain(digest: bytes, messages: Sequence[Message]) -> list[bytes]:
    """Return the chained digests of messages that follow a history with the digest `digest`."""
    return list(itertools.accumulate(messages, chain, initial=digest))[1:]


# -- which messages are new ----------------------------------------------------------


def count_known_messages(digest: bytes, incoming: Sequence[Message]) -> int | None:
    """Return the number of the request's messages that the log already has, if only new messages follow them.

    Return None if digests alone cannot decide this. This function does not read the store.

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


async def plan_history(
    store: Store, session: Session, incoming: Sequence[Message], *, whole: bool, named: bool
) -> Plan:
    """Return the changes to the log for a request with assistant messages, or with the whole conversation.

    Args:
        store: the store.
        session: the session as last read.
        incoming: the request's messages without the leading system messages, with secrets masked.
        whole: True if the request leaves nothing out (`session_mode: transcript`).
        named: True if the request named the session.

    Raises:
        ResultExists: the log has another result of a call.
    """
    if session.messages == 0:
        return Plan("new", tuple(incoming))
    sent = count_known_messages(session.tail.digest, incoming)
    if sent is not None:
        return align_rest(await read_end(store, session), incoming[sent:])
    if not whole and (tool_round := await _find_tool_round(store, session, incoming)) is not None:
        remainder, sent = tool_round
        return align_rest(remainder, incoming[sent:])
    landing = await find_landing(store, session, await Trail.make(incoming), whole=whole, named=named)
    if landing is None:
        return await (_replace_all if whole else _append_unknown)(store, session, incoming)
    if not landing.live:
        return await _revive(store, session, landing, incoming)
    remainder = await read_remainder(store, session.ref, landing.seq)
    plan = align_rest(remainder, incoming[landing.sent :])
    if plan.relation == "edited" and remainder.following is not None:
        plan = keep_media(plan, await _read_replaced(store, session.ref, remainder.following, plan))
    first = remainder.following or (remainder.tools[0] if remainder.tools else None)
    return _warn_of_turns(plan, session, first)


async def _read_replaced(store: Store, ref: SessionRef, first: Entry, plan: Plan) -> list[Entry]:
    """Return visible entries from `first` on that a plan retires: as many as the messages that it appends may stand for."""
    number = sum(message.role == "user" for message in plan.append)
    if number < 2:  # only the first one
        return [first]
    stored = await store.entries(ref, start=first.seq, limit=2 * len(plan.append))
    return [entry for entry in stored if entry.message.visible]


def _warn_of_turns(plan: Plan, session: Session, first: Entry | None) -> Plan:
    """Return the plan, with a warning if more than one turn is retired, the first of which has the entry `first`."""
    if plan.retire_from is None or first is None or plan.warning or session.tail.turn_id <= first.turn_id:
        return plan
    return plan.with_warning("several_turns_retired")


async def _replace_all(store: Store, session: Session, incoming: Sequence[Message]) -> Plan:
    if not incoming:
        return Plan("replayed")
    first = await store.entries(session.ref, limit=1)
    return _warn_of_turns(Plan("replaced", tuple(incoming), retire_from=first[0].seq), session, first[0])


async def _append_unknown(store: Store, session: Session, incoming: Sequence[Message]) -> Plan:
    """Return the plan for a request that has nothing in common with the log: what follows its last assistant message is new.

    A greeting directly before that, which is an assistant's message with nothing before it, is kept with it. Calls of tools are no
    reply: they stay with their results.
    """
    replies = [at for at, message in enumerate(incoming) if message.visible and message.role == "assistant"]
    begin = replies[-1] + 1 if replies else 0
    if begin == 1 or begin == len(incoming):
        begin -= 1
    rest = incoming[begin:]
    last = await store.entries(session.ref, limit=len(rest), descending=True)
    plan = align_delta(last[::-1], rest)
    return plan if plan.relation == "replayed" else plan.with_warning("nothing_in_common")


async def find_landing(store: Store, session: Session, trail: Trail, *, whole: bool, named: bool) -> Landing | None:
    """Return the last visible message that a request for a session has in common with its log, or None; see `plan_history`."""
    prefix = await _find_prefix(store, session.ref, trail)
    if whole:
        return prefix
    if prefix is not None and not prefix.live:  # the live reply may be the part of it that was heard
        heard = await _extend(store, session.ref, trail, _START)
        is_heard = heard.shared >= prefix.shared
        return heard if is_heard else await _find_lost(store, session.ref, trail, prefix.shared, whole=True) or prefix
    if prefix is not None:
        prefix = await _extend(store, session.ref, trail, prefix)
    shared = prefix.shared if prefix else 0
    if not trail.list_replies(shared):
        return prefix
    anchored = await _find_anchored(store, session, trail, prefix, named=named)
    if anchored is not None:
        return anchored
    if prefix is None or any(at and at < shared for at in trail.list_replies(0)):
        return prefix
    is_longer = await _has_more(store, session.ref, None, len(trail.messages))
    return None if is_longer else prefix  # else the client edited the first reply


async def _find_prefix(store: Store, ref: SessionRef, trail: Trail) -> Landing | None:
    """Return the landing of the longest beginning of a request with which the log, or a retired branch, begins."""
    found = await look_up(store, ref.user_id, trail.digests, session=ref)
    if not found:
        return None
    live = [one for one in found if one.live]
    place = live[0] if live else max(found, key=lambda one: one.seq)
    return trail.make_landing(place.mark + 1, place, live=place.live)


async def look_up(
    store: Store,
    user_id: str,
    marks: Sequence[bytes],
    *,
    alias: bool = False,
    session: SessionRef | None = None,
    limit: int = 0,
) -> Sequence[Sighting]:
    """Return the newest places of the last digest that occurs in a log, at most `limit`; `mark` is its index in `marks`."""
    limit = limit or (PLACES if alias else 2 * PLACES)
    for start in range(max(len(marks) - MARKS, 0), -MARKS, -MARKS):
        part = marks[max(start, 0) : start + MARKS]
        found = await store.sightings(user_id, part, alias=alias, session=session, limit=limit) if part else ()
        if found:
            return [evolve(one, mark=one.mark + max(start, 0)) for one in found]
    return ()


async def _extend(store: Store, ref: SessionRef, trail: Trail, landing: Landing) -> Landing:
    """Return the landing after following the log and the request as far as their messages are the same.

    A reply that its client may not have received is also the same as nothing at all.
    """

    def is_different(entry: Entry) -> bool:
        nonlocal landing
        if not entry.message.visible:
            return False
        if landing.shared == len(trail.messages):
            return True
        message = trail.messages[landing.shared]
        if is_same_message(entry, message):
            landing = trail.make_landing(landing.shared + 1, entry)
        elif is_unheard(entry) and message.role != "assistant":
            landing = landing._replace(seq=entry.seq)
        else:
            return True
        return False

    await read_entries_until(store, ref, is_different, keep=lambda _: False, start=landing.seq + 1)
    return landing


async def _find_lost(store: Store, ref: SessionRef, trail: Trail, start: int, *, whole: bool) -> Landing | None:
    """Return the landing at the last reply from index `start` on that a retired branch has, if the message before it is the same too.

    With `whole`, the request has all of the branch. A reply that was cut is searched near the end of the log, as in `_find_cut`.
    """
    replies = trail.list_replies(start)[: -ANCHORS - 1 : -1]
    page = await store.entries(ref, limit=ENTRIES, descending=True, retired=True) if replies else ()
    for at in replies:
        alias = digest_reply(trail.messages[at])
        places = await look_up(store, ref.user_id, [alias] if alias else (), alias=True, session=ref)
        cut = (one for one in page if one.retired_by is not None and is_seen_prefix(one, trail.messages[at]))
        lost = await find_retired(store, ref, trail, at, [*(one for one in places if not one.live), *cut])
        if lost is not None and (not whole or await _has_branch(store, ref, trail, lost)):
            return lost
    return None


async def _has_branch(store: Store, ref: SessionRef, trail: Trail, lost: Landing) -> bool:
    """Return True if the request has all messages that its client received of the retired branch which ends at a landing."""
    path, _ = await read_branch(store, ref, lost.seq)
    sent = trail.messages[: lost.shared]
    for entry in reversed(path):
        if entry.message.visible and sent and is_same_message(entry, sent[-1]):
            sent.pop()
        elif entry.message.visible and not is_unheard(entry):
            return False
    return True


# -- anchors -------------------------------------------------------------------------


async def _find_anchored(
    store: Store, session: Session, trail: Trail, prefix: Landing | None, *, named: bool
) -> Landing | None:
    """Return the landing of a request whose beginning is not that of the log, or None if it has no anchor there.

    If the request has fewer messages before its anchor than the log, it left some out. Else it is the whole conversation, which
    is compared from the beginning.
    """
    floor = prefix.shared if prefix else 0
    marks = [(at, digest) for at in trail.list_replies(floor) if (digest := digest_reply(trail.messages[at]))]
    run, copied, at = None, None, 0
    for _ in range(ANCHORS):
        places = await look_up(store, session.user_id, [mark for _, mark in marks], alias=True, session=session.ref)
        if not places:
            break
        at = marks[places[0].mark][0]
        runs = [await read_run(store, place.ref, trail, at, place.seq) for place in places if place.live]
        usable = [
            one for one in runs if len(one) > 1 or (named and one and (at or one[0].seq == session.tail.last_seq))
        ]
        if usable:
            run = max(usable, key=lambda one: (len(one), one[0].seq))
            break
        copied = copied or at
        del marks[places[0].mark :]
    start = floor if run is None else at + 1
    if named and (cut := await _find_cut(store, session.ref, trail, start, most=int(run is not None))):
        run, at = cut
        start = at + (len(run) > 1)
    lost = await _find_lost(store, session.ref, trail, start, whole=run is not None)
    if lost is not None:
        return lost
    if not run and named and copied:  # an edit before this reply retired it, and stored the client's copy of it
        page = await store.entries(session.ref, limit=ENTRIES, descending=True)
        copy = next((one for one in page if is_same_message(one, trail.messages[copied])), None)
        at, run = copied, await read_run(store, session.ref, trail, copied, copy.seq) if copy else []
    if not run:
        return None
    if await _has_more(store, session.ref, run[-1].seq, at + 1 - len(run)):
        return await _extend(store, session.ref, trail, trail.make_landing(at + 1, run[0]))
    return prefix or await _extend(store, session.ref, trail, _START)


async def read_run(store: Store, ref: SessionRef, trail: Trail, at: int, seq: int) -> list[Entry]:
    """Return the live visible entries up to `seq` that equal the request's messages up to index `at`, newest first."""
    expected = iter(trail.messages[at::-1])

    def is_different(entry: Entry) -> bool:
        if not entry.message.visible:
            return False
        message = next(expected, None)
        return message is None or not is_same_message(entry, message)

    found, _ = await read_entries_until(store, ref, is_different, keep=is_visible, stop=seq + 1, descending=True)
    return found


async def find_retired(
    store: Store, ref: SessionRef, trail: Trail, at: int, places: Sequence[Sighting | Entry]
) -> Landing | None:
    """Return the landing at a retired reply, if the message before it is the same too; None: there is none."""
    for place in places if at else ():
        reply, before = await _read_retired_pair(store, ref, place.seq)
        pair = ((reply, trail.messages[at]), (before, trail.messages[at - 1]))
        if all(entry is not None and is_same_message(entry, message) for entry, message in pair):
            return trail.make_landing(at + 1, place, live=False)
    return None


async def _find_cut(
    store: Store, ref: SessionRef, trail: Trail, start: int, *, most: int
) -> tuple[list[Entry], int] | None:
    """Return the run that ends at a reply near the end of the log of which the request has a part, and the index of this part.

    A reply that was cut has no digest that a part of it equals. Parts from index `start` on are compared, and runs of up to `most`
    messages do not count.
    """
    replies = trail.list_replies(start)[: -ANCHORS - 1 : -1]
    page = await store.entries(ref, limit=ENTRIES, descending=True) if replies else ()
    for at in replies:
        seen = next((one for one in page if is_seen_prefix(one, trail.messages[at])), None)
        run = await read_run(store, ref, trail, at, seen.seq) if seen else []
        if len(run) > most:
            return run, at
    return None


async def _read_retired_pair(store: Store, ref: SessionRef, seq: int) -> tuple[Entry | None, Entry | None]:
    """Return the entry of a retired branch, and the visible message before it, which may be live."""

    def is_before(entry: Entry) -> bool:
        was_live = entry.retired_by is None or entry.retired_by > seq
        return entry.message.visible and was_live and entry.seq < seq

    only: Callable[[Entry], bool] = lambda entry: entry.seq == seq  # noqa: E731
    found, before = await read_entries_until(
        store, ref, is_before, keep=only, stop=seq + 1, descending=True, retired=True
    )
    return (found[0] if found else None), before


async def _has_more(store: Store, ref: SessionRef, stop: int | None, most: int) -> bool:
    """Return True if the live path has more than `most` visible messages before `stop`; None: at all."""
    numbers = itertools.count(1)

    def is_too_many(entry: Entry) -> bool:
        return entry.message.visible and next(numbers) > most

    keep: Callable[[Entry], bool] = lambda _: False  # noqa: E731
    _, one_more = await read_entries_until(store, ref, is_too_many, keep=keep, stop=stop, descending=True)
    return one_more is not None


def is_visible(entry: Entry) -> bool:
    """Return True for an entry whose message clients see."""
    return entry.message.visible


# -- tool messages and retired branches ----------------------------------------------


async def read_end(store: Store, session: Session) -> LogRemainder:
    """Return the tool messages at the end of the live path, after its last visible message."""
    if session.tail.last_kind not in {"calls", "result"}:
        return LogRemainder((), None)
    tools, _ = await read_entries_until(store, session.ref, is_visible, stop=session.tail.next_seq, descending=True)
    return LogRemainder(tools[::-1], None)


async def read_remainder(store: Store, ref: SessionRef, seq: int) -> LogRemainder:
    """Return the entries of the live path after `seq`, up to the next visible message."""
    return LogRemainder(*await read_entries_until(store, ref, is_visible, start=seq + 1))


async def _find_tool_round(
    store: Store, session: Session, incoming: Sequence[Message]
) -> tuple[LogRemainder, int] | None:
    """Return the tool messages of the last turn that the request repeats, and the number of messages before them in the request.

    Some clients resend only the messages of the current turn with the results of its tool calls, which are found by the ids of
    the calls. If the log has a reply to the results already, the client did not receive it, or wants another one.
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
    before = await store.entries(session.ref, limit=sent + 1, stop=tools[0].seq, descending=True)
    is_same = len(before) >= sent and all(map(is_same_message, before[sent - 1 :: -1] if sent else (), incoming))
    return (LogRemainder(tools[start:], reply), sent) if is_same or len(before) > sent else None


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
    (reply,) = await store.entries(session.ref, start=session.tail.last_seq, limit=1)
    tools, _ = await read_entries_until(store, session.ref, is_visible, stop=reply.seq, descending=True)
    return LogRemainder(tools[::-1], reply)


async def _revive(store: Store, session: Session, landing: Landing, incoming: Sequence[Message]) -> Plan:
    """Return the plan for a request that continues a retired branch: it is written again, including its tool messages.

    Erased content cannot be restored, so the client's version replaces such a branch.
    """
    ref, seq = session.ref, landing.seq
    path, following = await read_branch(store, ref, seq)
    live = await store.entries(ref, start=path[0].seq, limit=1)
    retire_from = live[0].seq if live else None
    if any(entry.erased for entry in path):
        visible = [at for at, message in enumerate(incoming[: landing.sent]) if message.visible]
        begin = visible[-sum(entry.message.visible and entry.seq <= seq for entry in path)]
        return Plan("edited", tuple(incoming[begin:]), retire_from=retire_from)
    tools = [entry for entry in path if entry.seq > seq]
    plan = align_rest(LogRemainder(tools, following), incoming[landing.sent :])
    until = plan.retire_from if following is None or plan.retire_from != following.seq else None
    kept = tuple(entry for entry in path if until is None or entry.seq <= seq or entry.seq < until)
    found = Plan(plan.relation, plan.append, retire_from=retire_from, restore=kept, renamed=plan.renamed)
    return _warn_of_turns(found, session, live[0] if live else None)


async def read_branch(store: Store, ref: SessionRef, seq: int) -> tuple[list[Entry], Entry | None]:
    """Return the retired branch that ends at the entry `seq`, with the tool messages after it; then its next visible message, or None.

    The cost depends on the number of entries that were written since the branch left the live path.
    """
    path, _ = await read_entries_until(
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
        keep=lambda entry: entry.retired_by == end.retired_by and not entry.is_note,  # not of a branch retired earlier
        start=seq + 1,
        stop=end.retired_by,
        retired=True,
    )
    return [*path, *tools], following
