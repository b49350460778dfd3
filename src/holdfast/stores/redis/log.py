"""The statements about a session's log, and what is kept beside it, on a working copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.keys import SessionKeys, number_part
from holdfast.stores.redis.matching import marked, unaliased
from holdfast.stores.redis.records import (
    TOTAL_AT,
    changed_entry,
    entry_bytes,
    entry_row_of,
    fitting,
    head_of,
    importance_of,
    keyed_from,
    list_from,
    packed,
    retired_part,
    score_bound,
    view_bytes,
    view_of,
)
from holdfast.stores.redis.work import State, Work, changed

BACK: Final = 16
"""Entries that are read in one go, where one is looked for from the end."""
CALLS, RESULT = 3, 4
"""Kinds of entries that clients do not see, see `holdfast.stores.logic.rows.KINDS`."""
_array = msgspec.json.Decoder(list[int]).decode


# -- entries, writing --------------------------------------------------------


def entry_insert(work: Work, state: State, *row: Any) -> None:
    """One entry at the end of the log."""
    *entry, mark, alias = row
    state.inserted[entry[0]] = entry_bytes(entry)
    work.do("ZADD", state.keys.live, entry[0], state.inserted[entry[0]])
    marked(work, state, entry[0], mark, alias)


def entry_install(work: Work, state: State, *row: Any) -> None:
    """One entry of a log that has a past: retired, erased, or both."""
    *entry, mark, alias, retired_by, erased = row
    data = changed_entry(entry_bytes(entry), erased=erased)
    marked(work, state, entry[0], mark, alias)
    if retired_by is None:
        state.inserted[entry[0]] = data
        work.do("ZADD", state.keys.live, entry[0], data)
    else:
        work.do("ZADD", state.keys.retired, entry[0], retired_part(retired_by) + data)


def entry_annotate(
    work: Work, state: State, seq: int, pinned: int, importance: float | None, metadata: bytes | None
) -> None:
    """Set pin, importance and metadata of a live entry."""
    _rewrite(work, state, seq, pinned=pinned, importance=importance, metadata=metadata)


def entry_rate(work: Work, state: State, seq: int, importance: float) -> None:
    """The importance of a live entry that has none."""
    found = _one(work, state, state.keys.live, seq)
    if found is not None and importance_of(found) is None:
        _rewrite(work, state, seq, importance=importance)


def entry_erase_live(work: Work, state: State, seq: int, payload: bytes, tokens: int) -> None:
    """What stays of an erased entry of the live path."""
    _rewrite(work, state, seq, payload=payload, tokens=tokens, erased=1, metadata=None)
    unaliased(work, state, seq)


def entry_erase_retired(work: Work, state: State, seq: int, payload: bytes, tokens: int) -> None:
    """What stays of an erased entry that is retired."""
    _rewrite(work, state, seq, retired=True, payload=payload, tokens=tokens, erased=1, metadata=None)
    unaliased(work, state, seq)


def _rewrite(work: Work, state: State, seq: int, *, retired: bool = False, **fields: Any) -> None:
    key = state.keys.retired if retired else state.keys.live
    found = _one(work, state, key, seq)
    if found is not None:
        written = changed_entry(found, retired=retired, **fields)
        work.do("ZREMRANGEBYSCORE", key, seq, seq)
        work.do("ZADD", key, seq, written)
        if seq in state.inserted:
            state.inserted[seq] = written


def entries_shift_live(work: Work, state: State, first: int, end: int, shift: int) -> None:
    """Running totals of live entries."""
    work.do("shift", state.keys.live, first, _before(end), TOTAL_AT, shift)


def entries_shift_retired(work: Work, state: State, first: int, end: int, shift: int) -> None:
    """Running totals of retired entries."""
    work.do("shift", state.keys.retired, first, _before(end), TOTAL_AT + 8, shift)


def entries_retire(work: Work, state: State, first: int, by: int) -> None:
    """The end of the live path leaves it."""
    work.do("retire", state.keys.live, Key(state.keys.retired), first, retired_part(by))
    state.inserted = {seq: data for seq, data in state.inserted.items() if seq < first}
    state.retired_from = first if state.retired_from is None else min(first, state.retired_from)


def entries_delete_live(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.live)


def entries_delete_retired(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.retired)


# -- entries, reading --------------------------------------------------------


def ranged(key: bytes, start: int, stop: int, limit: int, *, descending: bool = False) -> Command:
    """What reads some entries of one of a session's two sets."""
    limits: Command = () if limit >= ENDLESS else (b"LIMIT", 0, limit)
    if descending:
        return (b"ZREVRANGEBYSCORE", key, _before(stop), score_bound(start), *limits)
    return (b"ZRANGEBYSCORE", key, score_bound(start), _before(stop), *limits)


def _before(stop: int) -> bytes:
    return b"+inf" if fitting(stop) >= ENDLESS else b"(%d" % stop


def live_forward(work: Work, state: State, start: int, stop: int, limit: int) -> Rows:
    """A range of the live path."""
    return _ranges(work, state, start, stop, limit, descending=False, retired=False)


def live_backward(work: Work, state: State, start: int, stop: int, limit: int) -> Rows:
    """A range of the live path, newest first."""
    return _ranges(work, state, start, stop, limit, descending=True, retired=False)


def log_forward(work: Work, state: State, start: int, stop: int, limit: int) -> Rows:
    """A range of the whole log."""
    return _ranges(work, state, start, stop, limit, descending=False, retired=True)


def log_backward(work: Work, state: State, start: int, stop: int, limit: int) -> Rows:
    """A range of the whole log, newest first."""
    return _ranges(work, state, start, stop, limit, descending=True, retired=True)


def _ranges(work: Work, state: State, start: int, stop: int, limit: int, *, descending: bool, retired: bool) -> Rows:
    assert state.log_is_as_read
    keys = (state.keys.live, state.keys.retired) if retired else (state.keys.live,)
    found = work.ask(*(ranged(key, start, stop, limit, descending=descending) for key in keys))
    rows = [entry_row_of(state, data) for data in found[0]]
    if retired:
        rows += [entry_row_of(state, data, retired=True) for data in found[1]]
        rows.sort(key=_seq, reverse=descending)
    return rows[:limit] if limit < ENDLESS else rows


def _seq(row: Row) -> int:
    seq: int = row[1]
    return seq


def _one(work: Work, state: State, key: bytes, seq: int) -> bytes | None:
    """One entry of one of the two sets, as it was just written or as it was read."""
    if key == state.keys.live and seq in state.inserted:
        return state.inserted[seq]
    found: list[bytes] = work.ask(_single(key, seq))[0]
    return found[0] if found else None


def _single(key: bytes, seq: int) -> Command:
    return (b"ZRANGEBYSCORE", key, fitting(seq), seq)


def entry_live(work: Work, state: State, seq: int) -> Rows:
    """One live entry."""
    found = _one(work, state, state.keys.live, seq)
    return () if found is None else [entry_row_of(state, found)]


def entry_retired(work: Work, state: State, seq: int) -> Rows:
    """One retired entry."""
    found = _one(work, state, state.keys.retired, seq)
    return () if found is None else [entry_row_of(state, found, retired=True)]


def entries_among(work: Work, state: State, seqs: str) -> Rows:
    """The live ones among some entries."""
    return [entry_row_of(state, found) for found in _among(work, state, seqs)]


def unrated_among(work: Work, state: State, seqs: str) -> Rows:
    """How many of some entries are live and have no importance yet."""
    return [[sum(importance_of(found) is None for found in _among(work, state, seqs))]]


def _among(work: Work, state: State, seqs: str) -> list[bytes]:
    commands = [_single(state.keys.live, seq) for seq in sorted(set(_array(seqs)))]
    return [found[0] for found in work.ask(*commands) if found]


def entry_is_live(work: Work, state: State, seq: int) -> Rows:
    """Whether an entry stands on the live path, those that were just appended or retired counted."""
    if seq in state.inserted:
        return [[1]]
    if state.fresh or (state.retired_from is not None and seq >= state.retired_from):
        return ()
    return [[1]] if work.ask((b"ZCOUNT", state.keys.live, seq, seq))[0] else ()


def entries_count_from(work: Work, state: State, first: int) -> Rows:
    """How many live entries would be retired."""
    assert state.log_is_as_read
    return [work.ask((b"ZCOUNT", state.keys.live, first, b"+inf"))]


def last_not_result(work: Work, state: State, before: int) -> Rows:
    """Where the last unit before a place begins."""
    found = _last(work, state, before, (RESULT,))
    return () if found is None else [[head_of(found)[0]]]


def last_visible(work: Work, state: State, before: int) -> Rows:
    """The digest of the last message before a place that clients see."""
    found = _last(work, state, before, (CALLS, RESULT))
    return () if found is None else [[head_of(found)[2]]]


def _last(work: Work, state: State, before: int, passed: Sequence[int]) -> bytes | None:
    """The last entry before a place that is of none of some kinds."""
    assert state.log_is_as_read
    while True:
        (found,) = work.ask(ranged(state.keys.live, 0, before, BACK, descending=True))
        for data in found:
            if head_of(data)[1] not in passed:
                return bytes(data)
        if len(found) < BACK:
            return None
        before = head_of(found[-1])[0]


# -- views -------------------------------------------------------------------


def view_put(
    work: Work, state: State, key: str, frontier: int, saved: bytes, kept: bytes | None, saved_at: int, known: int
) -> None:
    """A view's state; not when a compaction of the view was laid after it was built."""
    live = state.record.live.get(key)
    if live is None or live[1] <= known:
        state.views[key.encode()] = view_bytes(frontier, saved, kept)
        work.do("HSET", state.keys.views, key, state.views[key.encode()])


def view_saved(work: Work, state: State, key: str) -> Row:
    """Frontier, state and kept entries of a view; NULL for what there is not."""
    (found,) = work.ask((b"HGET", state.keys.views, key))
    return (None, None, None) if found is None else view_of(found)


def views_trim(work: Work, state: State, kept: int) -> None:
    """All but the views that have come furthest: mostly those that were saved last."""
    (number,) = work.ask((b"HLEN", state.keys.views))
    if number < kept:
        return
    (pairs,) = work.ask((b"HGETALL", state.keys.views))
    found = pairs.items() if isinstance(pairs, dict) else zip(pairs[::2], pairs[1::2], strict=True)
    views = {**dict(found), **state.views}
    for key in sorted(views, key=lambda key: view_of(views[key])[0])[:-kept]:
        work.do("HDEL", state.keys.views, key)


def views_stale(work: Work, state: State, version: int) -> None:
    """From now on views that were built before this version are not saved."""
    changed(state, views_from=version)


def views_delete(work: Work, state: State) -> None:
    """All views of a session."""
    work.do("UNLINK", state.keys.views)


# -- idempotency -------------------------------------------------------------


def idempotency_get(work: Work, state: State, key: str) -> Rows:
    """What a key stood for. With hope it stands for nothing yet, and the commit is to find out."""
    found = None if work.hopeful else work.ask((b"HGET", state.keys.keyed, key))[0]
    if found is None:
        work.check(state.keys.keyed, key, None)
        return ()
    return [keyed_from(found)]


def idempotency_put(work: Work, state: State, key: str, *row: Any) -> None:
    """A key that was used."""
    work.do("HSET", state.keys.keyed, key, packed(row))


def idempotency_delete(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.keyed)


# -- model calls -------------------------------------------------------------


def call_insert(work: Work, state: State, *row: Any) -> None:
    """A model call: behind those of its turn."""
    record, turn = state.record, row[5]
    work.do("ZADD", state.keys.calls, turn, number_part(record.next_call) + packed(row))
    changed(
        state,
        next_call=record.next_call + 1,
        last_turn=max(record.last_turn, turn),
        calls_mixed=record.calls_mixed or turn < record.last_turn,
    )


def calls_newest(work: Work, state: State, limit: int) -> Rows:
    """A session's model calls, newest first: all are looked at where one was recorded behind a later turn."""
    if not state.record.calls_mixed:
        return _calls(work.ask((b"ZREVRANGE", state.keys.calls, 0, limit - 1))[0])
    return _calls(sorted(work.ask((b"ZRANGE", state.keys.calls, 0, -1))[0], reverse=True)[:limit])


def calls_of_turn(work: Work, state: State, limit: int, turn: int) -> Rows:
    """The model calls of one turn, newest first."""
    return _calls(work.ask((b"ZREVRANGEBYSCORE", state.keys.calls, turn, turn, b"LIMIT", 0, limit))[0])


def _calls(members: list[bytes]) -> Rows:
    return [(model, timestamp, *rest) for timestamp, model, *rest in (list_from(member[8:]) for member in members)]


def calls_delete(work: Work, state: State) -> None:
    """With their session."""
    work.do("UNLINK", state.keys.calls)


# -- a window in one go --------------------------------------------------------


def window_command(keys: SessionKeys, view: str) -> Command:
    """What reads all that building a working set with a view needs, but for the session itself."""
    others = (Key(keys.lives), Key(keys.compactions), Key(keys.bodies), Key(keys.live))
    return (b"window", keys.views, view, *others)


def expanded(command: Command, answer: list[Any]) -> dict[Command, Any]:
    """The answer to a `window_command` as those to the commands that the statements ask one by one."""
    _, views, view, _, compactions, bodies, live = command
    assert isinstance(live, bytes)
    saved, id_, laying, body, kept, entries = answer
    answers: dict[Command, Any] = {(b"HGET", views, view): saved}
    if id_ is not None:
        answers[b"HGET", compactions, int(id_)] = laying
        answers[b"HGET", bodies, int(id_)] = body
    for seq, found in kept:
        answers[_single(live, int(seq))] = found
    frontier = 0 if saved is None else view_of(saved)[0]
    answers[ranged(live, frontier, ENDLESS, ENDLESS)] = entries
    return answers
