"""The statements about compactions, on a working copy.

What a compaction says lies apart from what is known of it: all that is known of a session's is read at once where something
may concern any of them, and which one is live stands in the session's own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.log import view_saved
from holdfast.stores.redis.records import Laying, compaction_row_of, erased_body, laying_from, packed
from holdfast.stores.redis.work import State, Work, changed

_COLUMNS: Final = 18
"""Of a row of `compaction_rows`."""
_HISTORY: Final = ("superseded", "dropped", "dead")
_IN_USE: Final = ("live", "superseded")


# -- reading -----------------------------------------------------------------


def _all(work: Work, state: State) -> dict[int, Laying]:
    """All of a session's compactions, in order of id, as they stand now."""
    found: dict[int, Laying] = {}
    if state.base is not None and state.base.next_compaction > 1 and not state.fresh:
        flat = work.ask((b"HGETALL", state.keys.compactions))[0]
        found = {int(id_): laying_from(data) for id_, data in zip(flat[::2], flat[1::2], strict=True)}
    found.update(state.compactions)
    return {id_: found[id_] for id_ in sorted(found) if found[id_] is not None}


def _one(work: Work, state: State, id_: int) -> Laying | None:
    if id_ in state.compactions:
        changed_one: Laying | None = state.compactions[id_]
        return changed_one
    (found,) = work.ask((b"HGET", state.keys.compactions, id_))
    return None if found is None else laying_from(found)


def _body(work: Work, state: State, id_: int) -> bytes:
    if (state, id_) in work.overlay:
        body: bytes = work.overlay[state, id_]
        return body
    (found,) = work.ask((b"HGET", state.keys.bodies, id_))
    return bytes(found)


def _row(work: Work, state: State, id_: int, one: Laying) -> Row:
    return compaction_row_of(state, id_, one, _body(work, state, id_))


def view_get(work: Work, state: State, key: str) -> Rows:
    """A saved view and its live compaction: always one row."""
    nothing: Row = (None,) * _COLUMNS
    live = state.record.live.get(key)
    saved = view_saved(work, state, key)
    if live is None:
        return [(*saved, *nothing)]
    one = _one(work, state, live[0])
    assert one is not None
    return [(*saved, *_row(work, state, live[0], one))]


def compaction_next(work: Work, state: State) -> Rows:
    """The id of a session's next compaction, and the version before which one was made from what has gone since."""
    return [(state.record.next_compaction, state.record.compactions_from)]


def compaction_live(work: Work, state: State, view: str) -> Rows:
    """The range of a view's live compaction, and the version it was laid at."""
    live = state.record.live.get(view)
    return () if live is None else [(live[2], live[3], live[1])]


def compaction_get(work: Work, state: State, id_: int) -> Rows:
    """One compaction."""
    one = _one(work, state, id_)
    return () if one is None else [_row(work, state, id_, one)]


def compactions_list(work: Work, state: State, view: str | None, live: int) -> Rows:
    """A session's compactions, or a view's; all or the live ones."""
    wanted = {
        id_: one
        for id_, one in _all(work, state).items()
        if (view is None or one.view == view) and (not live or one.status == "live")
    }
    bodies = work.ask(*((b"HGET", state.keys.bodies, id_) for id_ in wanted))
    return [compaction_row_of(state, id_, one, body) for (id_, one), body in zip(wanted.items(), bodies, strict=True)]


# -- writing -----------------------------------------------------------------


def _put(work: Work, state: State, id_: int, one: Laying) -> None:
    """Set one, and keep up which one of its view is live."""
    state.compactions[id_] = one
    work.do("HSET", state.keys.compactions, id_, packed(one))
    live = dict(state.record.live)
    if one.status == "live":
        live[one.view] = (id_, one.laid_at, one.first, one.last)
        work.do("HSET", state.keys.lives, one.view, id_)
    elif one.view in live and live[one.view][0] == id_:
        del live[one.view]
        work.do("HDEL", state.keys.lives, one.view)
    changed(state, live=live)


def _put_body(work: Work, state: State, id_: int, body: bytes) -> None:
    work.overlay[state, id_] = body
    work.do("HSET", state.keys.bodies, id_, body)


def _all_with(work: Work, state: State, status: str, ids: Iterable[tuple[int, Laying]]) -> None:
    for id_, one in ids:
        _put(work, state, id_, msgspec.structs.replace(one, status=status))


def compaction_insert(work: Work, state: State, id_: int, *row: Any) -> None:
    """A compaction."""
    status, view, laid_at, first, last, kind, tokens, source_tokens, total, model, created_at, through = row[:12]
    prompt_tokens, completion_tokens, error, report, text = row[12:]
    made = (model, created_at, through, prompt_tokens, completion_tokens)
    _put(work, state, id_, Laying(status, view, laid_at, first, last, kind, tokens, source_tokens, total, *made))
    _put_body(work, state, id_, packed((error, report, text)))
    changed(state, next_compaction=id_ + 1)


def compaction_supersede(work: Work, state: State, view: str) -> None:
    """A view's live compaction, when another one takes its place."""
    live = state.record.live.get(view)
    if live is not None:
        one = _one(work, state, live[0])
        assert one is not None
        _all_with(work, state, "superseded", [(live[0], one)])


def compaction_drop(work: Work, state: State, id_: int) -> None:
    """One that is not to be used any more."""
    one = _one(work, state, id_)
    if one is not None:
        _all_with(work, state, "dropped", [(id_, one)])


def compactions_retire(work: Work, state: State, first: int) -> None:
    """Those that reach into what leaves the live path."""
    found = _all(work, state).items()
    _all_with(work, state, "dead", [(id_, one) for id_, one in found if one.last >= first and one.status in _IN_USE])


def compactions_erase(work: Work, state: State, seq: int, error: bytes) -> None:
    """Those, of every status, that may tell what an erased entry said."""
    found = {id_: one for id_, one in _all(work, state).items() if one.first <= seq <= one.last}
    bodies = {id_: _body(work, state, id_) for id_ in found}
    for id_, body in bodies.items():
        _put_body(work, state, id_, erased_body(body, error))
    _all_with(work, state, "dead", [(id_, one) for id_, one in found.items() if one.status in _IN_USE])


def compactions_revive(work: Work, state: State) -> None:
    """The newest superseded one of each view that has no live one any more."""
    newest: dict[str, tuple[int, Laying]] = {}
    for id_, one in _all(work, state).items():
        if one.status in _IN_USE:
            newest[one.view] = (id_, one)
    _all_with(work, state, "live", [(id_, one) for id_, one in newest.values() if one.status == "superseded"])


def compactions_shift(work: Work, state: State, seq: int, shift: int) -> None:
    """Running totals of compactions on the live path, after an entry on it got another count."""
    for id_, one in _all(work, state).items():
        if one.last >= seq and one.status != "dead":
            _put(work, state, id_, msgspec.structs.replace(one, total=one.total + shift))


def compactions_stale(work: Work, state: State, version: int) -> None:
    """From now on compactions that were made from what was read before this version are dead on arrival."""
    changed(state, compactions_from=version)


def compactions_trim(work: Work, state: State, kept: int) -> None:
    """All but the newest of those that are history."""
    _trim(work, state, kept, _HISTORY)


def compactions_trim_failed(work: Work, state: State, kept: int) -> None:
    """All but the newest failed attempts."""
    _trim(work, state, kept, ("failed",))


def _trim(work: Work, state: State, kept: int, statuses: tuple[str, ...]) -> None:
    ids = [id_ for id_, one in _all(work, state).items() if one.status in statuses]
    for id_ in ids[:-kept]:
        state.compactions[id_] = None
        work.do("HDEL", state.keys.compactions, id_)
        work.do("HDEL", state.keys.bodies, id_)


def compactions_delete(work: Work, state: State) -> None:
    """With their session."""
    for key in (state.keys.compactions, state.keys.bodies, state.keys.lives):
        work.do("UNLINK", key)
