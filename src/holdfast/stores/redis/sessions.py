"""The statements about sessions themselves, on a working copy."""

from __future__ import annotations

from typing import Any

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.artifacts import artifact_totals
from holdfast.stores.redis.connection import Key
from holdfast.stores.redis.keys import SessionKeys, name_part, names_of
from holdfast.stores.redis.matching import mark_end
from holdfast.stores.redis.media import media_totals
from holdfast.stores.redis.origins import origins_delete
from holdfast.stores.redis.records import LAST_DIGEST, NEXT_SEQ, Record, fitting, packed, row_of
from holdfast.stores.redis.work import State, Work, changed, head_command, whose

# -- one session -------------------------------------------------------------


def session_get(work: Work, tenant: str, id_: str, user_id: str, withdrawn: str) -> Rows:
    """One session by its name."""
    state = work.state(work.keys.session(tenant, user_id, id_, withdrawn))
    work.guarded = work.guarded or state
    return [_row(state)] if state.record is not None else ()


def session_find(work: Work, tenant: str, id_: str) -> Rows:
    """Sessions of that id, two at most."""
    begin = name_part(id_)
    members = work.ask_once(
        (b"ZRANGEBYLEX", work.keys.tenant(tenant).named, b"[" + begin, b"(" + begin + b"\xff", b"LIMIT", 0, 2)
    )
    found = [names_of(member) for member in members[0]]
    return rows_of(work, [work.keys.session(tenant, user_id, id_, "") for _, user_id in found])


def session_insert(work: Work, *row: Any) -> Rows:
    """A new session."""
    tenant, user_id, id_, agent, version, created_at, updated_at, status, ttl, *counters, identity = row
    state = work.guarded
    assert state is not None
    assert state.keys.head == work.keys.session(tenant, user_id, id_, "").head
    if work.moved_to is not None:
        work.leave(state)
    fields = (agent, version, created_at, updated_at, status, ttl, list(counters))
    state.record = Record(*fields, accessed_at=updated_at, identity=identity)
    state.profile, state.fresh = None, True
    state.inserted, state.retired_from = {}, None
    state.compactions = {}
    mark_end(work, state, counters[LAST_DIGEST])
    return [[state]]


def session_advance(work: Work, state: State, version: int, updated_at: int, status: str, *columns: Any) -> None:
    """A session after its log grew, or its claim changed."""
    *counters, holder, until, wanted = columns
    ended = {"ended_at": None, "end_reason": None} if status == "active" else {}
    mark_end(work, state, counters[LAST_DIGEST])
    changed(
        state,
        version=version,
        updated_at=updated_at,
        status=status,
        counters=counters,
        accessed_at=updated_at,
        claim=(holder, fitting(until), wanted),
        **ended,
    )


def session_claim(work: Work, state: State, holder: str, until: int, wanted: int) -> None:
    """Who has a turn of a session open, where nothing else of it changes."""
    changed(state, claim=(holder, fitting(until), wanted))


def claim_want(work: Work, state: State, holder: str) -> None:
    """Somebody asks the holder of a turn to stop."""
    whose_turn, until, wanted = state.record.claim
    if whose_turn == holder and not wanted:
        changed(state, claim=(holder, until, 1))


def session_patch(work: Work, state: State, version: int, updated_at: int, agent: str | None, ttl: int | None) -> None:
    """A session's own fields."""
    changed(state, version=version, updated_at=updated_at, agent=agent, ttl=ttl, accessed_at=updated_at)


def session_touch(work: Work, state: State, version: int, total: int, size: int) -> None:
    """A session one of whose entries changed."""
    counters = list(state.record.counters)
    counters[1], counters[8] = size, total
    changed(state, version=version, counters=counters)


def session_used(work: Work, state: State, timestamp: int) -> None:
    """A session that somebody used without writing to it."""
    if state.record.accessed_at < timestamp:
        changed(state, accessed_at=timestamp)


def session_end(work: Work, state: State, version: int, ended_at: int, reason: str) -> None:
    """A session that has ended, and keeps its name."""
    changed(state, version=version, status="closed", ended_at=ended_at, end_reason=reason)


def session_withdraw(work: Work, state: State, version: int, ended_at: int, reason: str, ending: str) -> None:
    """A session that has ended, and loses its name: all that hangs on it gets another one."""
    session_end(work, state, version, ended_at, reason)
    old = state.keys
    new = work.keys.session(old.tenant, old.user_id, old.id, ending)
    work.moved_to = new
    _forget_marks(work, state)
    origins_delete(work, state)
    for before, after in zip((old.head, *old.hanging), (new.head, *new.hanging), strict=True):
        work.do("move", before, Key(after))
    work.do("HSET", new.head, b"i", whose(new))


def _forget_marks(work: Work, state: State) -> None:
    """What a session said is not found any more."""
    keys = state.keys
    if not keys.withdrawn:
        work.do("unmark_all", keys.marks, Key(keys.numbers), state.record.counters[NEXT_SEQ])


def session_holds(work: Work, state: State) -> Rows:
    """How much hangs on a session: compactions, views, model calls, idempotency keys, artifacts and media with their bytes."""
    keys = state.keys
    hashes, sets = (keys.compactions, keys.views, keys.calls, keys.keyed), (keys.calls,)
    counts = work.ask(*((b"ZCARD" if key in sets else b"HLEN", key) for key in hashes))
    _, versions, size = artifact_totals(work, state, keys.tenant, keys.user_id)[0]
    return [(*counts, versions, size, *media_totals(work, state))]


def session_delete(work: Work, state: State) -> None:
    """The session's row."""
    _forget_marks(work, state)
    work.do("UNLINK", state.keys.head)
    state.record = state.profile = None


def profile_put(work: Work, state: State, system_messages: bytes, session_state: bytes, metadata: bytes) -> None:
    """The large fields of a session."""
    state.profile = packed((system_messages, session_state, metadata))
    work.do("HSET", state.keys.head, b"p", state.profile)


def profile_delete(work: Work, state: State) -> None:
    """None of them any more."""
    if state.profile is not None:
        state.profile = None
        work.do("HDEL", state.keys.head, b"p")


def _row(state: State) -> Row:
    return row_of(state, state.keys, state.record, state.profile)


def rows_of(work: Work, keys: list[SessionKeys]) -> list[Row]:
    """The rows of those that are there: another process may have deleted one a moment ago."""
    commands = [head_command(one) for one in keys]
    heads = work.ask_once(*commands)
    rows: list[Row] = []
    for one, command, head in zip(keys, commands, heads, strict=True):
        # The steps of a list that goes through many are run again for each page of them.
        if command not in work.read:
            state = State(one, head)
            work.read[command] = _row(state) if state.record is not None else None
        row = work.read[command]
        if row is not None:
            rows.append(row)
    return rows


# -- their life --------------------------------------------------------------


def sessions_idle(work: Work, tenant: str, since: int, limit: int) -> Rows:
    """Active sessions without a ttl of their own that were not used since."""
    return _until(work, tenant, work.keys.tenant(tenant).idle, since, limit)


def sessions_expired(work: Work, tenant: str, now: int, limit: int) -> Rows:
    """Active sessions whose own ttl is over."""
    return _until(work, tenant, work.keys.tenant(tenant).expiring, now, limit)


def _until(work: Work, tenant: str, key: bytes, most: int, limit: int) -> Rows:
    return _active(work, tenant, work.ask_once((b"ZRANGEBYSCORE", key, b"-inf", most, b"LIMIT", 0, limit))[0])


def sessions_oldest(work: Work, tenant: str, limit: int) -> Rows:
    """Active sessions, the longest idle first."""
    keys = work.keys.tenant(tenant)
    found = work.ask_once(*((b"ZRANGE", key, 0, limit - 1, b"WITHSCORES") for key in (keys.idle, keys.owned)))
    both = sorted((float(score), member) for flat in found for member, score in zip(flat[::2], flat[1::2], strict=True))
    return _active(work, tenant, [member for _, member in both[:limit]])


def sessions_active(work: Work, tenant: str) -> Rows:
    """How many sessions are active."""
    keys = work.keys.tenant(tenant)
    return [[sum(work.ask_once((b"ZCARD", keys.idle), (b"ZCARD", keys.owned)))]]


def _active(work: Work, tenant: str, members: list[bytes]) -> list[Row]:
    rows = rows_of(work, [work.keys.session(tenant, *names_of(member)) for member in members])
    return [row for row in rows if row[8] == "active"]


def tenant_after(work: Work, after: str) -> Rows:
    """The next tenant that has sessions, or owners of memories."""
    place = after.encode()
    while True:
        (found,) = work.ask_once(
            (b"ZRANGEBYLEX", work.keys.tenants, b"(" + place if place else b"-", b"+", b"LIMIT", 0, 1)
        )
        if not found:
            return ()
        place = found[0]
        tenant = place.decode()
        keys = work.keys.tenant(tenant)
        if any(work.ask_once(*((b"ZCARD", key) for key in (keys.named, keys.withdrawn, keys.memory_owners)))):
            return [[tenant]]
