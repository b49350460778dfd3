"""Find the turn of a request that is known by its key, and continue it. See docs/placing.md.

A turn that is complete is answered with its stored reply. Otherwise its messages, and the results of tools that ran for it, stay in the
log, and a partial reply is made again. If other turns followed, they are written again before it, so that the prompt ends with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace as evolve

from holdfast.domain.messages import encode_canonical
from holdfast.domain.session import Entry, Session, SessionRef
from holdfast.errors import IdempotencyConflict, SessionNotFound, TurnGone
from holdfast.limits import RETRY_MILLISECONDS
from holdfast.log.align import Plan, is_complete, is_cut, is_from_user
from holdfast.stores.base import Store
from holdfast.stores.log import KeyedTurn, TurnKey
from holdfast.stores.walk import read_entries_until
from holdfast.turns.turn import Turn

_COPY_ENTRIES: Final = 64
"""Number of entries that are searched for the copy of a message that was written again."""
_MOVED_ENTRIES: Final = 1024
"""Maximum number of entries that are written again so that an incomplete turn is the last one."""


class KnownTurn(NamedTuple):
    """The turn of a request that is known by its key, if its messages are on the live path."""

    session: Session
    opening: Sequence[Entry]
    """The live entries that the request wrote, and its note."""
    following: Sequence[Entry]
    """The live entries after them, up to the next message of the user."""
    is_last: bool
    """True if there is no other turn after it."""

    @property
    def reply(self) -> Entry | None:
        """The reply to the turn's messages; None: there is none."""
        return self.following[0] if self.following and self.following[0].message.role == "assistant" else None


async def find_known_turn(
    store: Store, user_id: str, key: TurnKey | None, *, repeats: bool, now: int
) -> KnownTurn | None:
    """Return the turn of an earlier request with the key; None: there is none, or it does not count any more.

    Args:
        store: the store.
        user_id: the user of the request.
        key: the key.
        repeats: True if the client says that it repeats a request. A key that it did not choose counts only then, for ten minutes, and as
            long as its turn is the last one of its session.
        now: milliseconds since the epoch.

    Raises:
        IdempotencyConflict: the client used the key for another request.
        TurnGone: the turn of a key that the client chose is no longer part of the conversation.
    """
    found = await store.find_turn(user_id, key) if key is not None and (key.name or repeats) else None
    if key is None or found is None:
        return None
    if key.name and found.fingerprint != key.fingerprint:
        raise IdempotencyConflict(key.name)
    known = await _read_turn(store, found)
    if key.name and known is None:
        raise TurnGone(key.name)
    counts = key.name or (known is not None and known.is_last and found.made_at > now - RETRY_MILLISECONDS)
    return known if counts else None


async def _read_turn(store: Store, found: KeyedTurn) -> KnownTurn | None:
    """Return a turn; None: its session is gone, its messages are erased or not on the live path, or its reply is no longer in force."""
    if found.ref is None:
        return None
    try:
        session = await store.get(found.ref)
        end = found.first_seq + found.entries
        opening = await store.entries(found.ref, start=found.first_seq, stop=end, retired=True)
    except SessionNotFound:
        return None
    if session.identity != found.identity or any(entry.erased for entry in opening):
        return None
    last = next((entry for entry in reversed(opening) if not entry.is_note), None)
    if last is not None and last.retired_by is not None:
        copies = await store.entries(found.ref, start=last.retired_by, limit=_COPY_ENTRIES)
        copy = next((entry for entry in copies if _is_copy(last, entry)), None)
        if copy is None:
            return None
        opening, end = (*(entry for entry in opening if entry.is_note), copy), copy.seq + 1
    following, other = await read_entries_until(store, found.ref, is_from_user, start=end)
    known = KnownTurn(session, opening, following, other is None)
    is_over = not _is_partial(known.reply) and await _is_replaced(store, found.ref, end, known.reply)
    return None if is_over else known


async def _is_replaced(store: Store, ref: SessionRef, start: int, reply: Entry | None) -> bool:
    """Return True if the first complete reply from `start` on is no longer in force."""
    _, made = await read_entries_until(
        store, ref, lambda entry: is_from_user(entry) or is_complete(entry), start=start, retired=True
    )
    is_gone = made is not None and is_complete(made) and (made.retired_by is not None or made.erased)
    return is_gone or (reply is not None and reply.erased)


def _is_partial(reply: Entry | None) -> bool:
    return reply is not None and bool((reply.metadata or {}).get("interrupted"))


def _is_copy(original: Entry, entry: Entry) -> bool:
    same = (entry.turn_id, entry.timestamp, entry.kind) == (original.turn_id, original.timestamp, original.kind)
    return same and encode_canonical(entry.message) == encode_canonical(original.message)


async def continue_turn(turn: Turn, known: KnownTurn) -> None:
    """Answer a repeated request with the stored reply, or continue its turn.

    Raises:
        TurnGone: the turn cannot be continued, as others followed it.
        StaleSession: the session has changed since it was read.
    """
    turn.session, turn.plan = known.session, Plan("replayed")
    turn.note = next((entry for entry in reversed(known.opening) if entry.is_note), turn.note)
    following, reply = known.following, known.reply
    is_partial = _is_partial(reply)
    if any(map(is_complete, following)):
        turn.answered, turn.closed = reply, True
    elif not known.is_last:
        if is_partial and not is_cut(following[0]):  # the user interrupted it, and went on
            raise TurnGone(turn.request.key.name if turn.request.key else "")
        await _move_to_end(turn, known)
    elif reply is not None and not is_partial:
        turn.answered, turn.closed = reply, True
    elif reply is not None and len(following) == 1:
        plan = Plan("regenerated", retire_from=reply.seq)
        await turn.append((), plan=plan, expect=known.session.version)


async def _move_to_end(turn: Turn, known: KnownTurn) -> None:
    """Write an incomplete turn again after the turns that followed it, without a partial reply."""
    store, ref, key = turn.engine.store, turn.request.ref, turn.request.key
    opening = [entry for entry in known.opening if not entry.is_note and entry.retired_by is None]
    made = [entry for entry in known.following if not is_cut(entry)]
    live = await store.entries(ref, start=opening[0].seq, limit=_MOVED_ENTRIES + 1) if opening else ()
    own = {entry.seq for entry in (*opening, *known.following)}
    others = [entry for entry in live if entry.seq not in own]
    if len(live) > _MOVED_ENTRIES or key is None or not opening:
        raise TurnGone("" if key is None else key.name)
    again = [evolve(entry, turn_id=known.session.tail.turn_id + 1) for entry in (*opening, *made)]
    plan = Plan("regenerated", retire_from=opening[0].seq, restore=(*others, *again))
    moved = evolve(key, first=len(others), entries=len(opening), is_moved=True)
    await turn.append((), plan=plan, expect=known.session.version, key=moved)
