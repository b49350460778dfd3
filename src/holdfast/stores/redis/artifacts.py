"""The statements about artifacts, on a working copy. A scope's names and versions are sorted by name, then number."""

from __future__ import annotations

from typing import Any

from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.keys import SessionKeys, name_part, number_part
from holdfast.stores.redis.records import list_from, packed
from holdfast.stores.redis.work import State, Work, changed


def _scope(work: Work, session: State | int, tenant: str, user_id: str) -> State:
    """What has the artifacts: a session, or with 0 the user."""
    if isinstance(session, State):
        return session
    if ("scope", user_id) not in work.overlay:
        work.overlay["scope", user_id] = work.state(work.keys.user(tenant, user_id))
    state: State = work.overlay["scope", user_id]
    work.guarded = work.guarded or state
    return state


def _behind(key: bytes, after: bytes, end: bytes, limit: int = ENDLESS) -> Command:
    limits: Command = () if limit >= ENDLESS else (b"LIMIT", 0, limit)
    return (b"ZRANGEBYLEX", key, b"(" + after if after else b"-", b"(" + end if end else b"+", *limits)


def _begins(key: bytes, begin: bytes) -> Command:
    return (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + b"\xff" * 9)


# -- names -------------------------------------------------------------------


def _name(work: Work, state: State, folded: str) -> bytes | None:
    """The member of a name, if there is one."""
    found: list[bytes] = work.ask(_begins(state.keys.names, name_part(folded)))[0]
    return found[0] if found else None


def artifact_name_get(work: Work, session: State | int, tenant: str, user_id: str, folded: str) -> Rows:
    """What is known of an artifact's name in its scope."""
    found = _name(work, _scope(work, session, tenant, user_id), folded)
    return () if found is None else [list_from(found[len(name_part(folded)) :])]


def artifact_name_put(work: Work, session: State | int, tenant: str, user_id: str, folded: str, *row: Any) -> None:
    """A name, in place of what was known of it."""
    artifact_name_delete(work, session, tenant, user_id, folded)
    work.do("ZADD", _scope(work, session, tenant, user_id).keys.names, 0, name_part(folded) + packed(row))


def artifact_name_delete(work: Work, session: State | int, tenant: str, user_id: str, folded: str) -> None:
    """A name that has no version left."""
    state = _scope(work, session, tenant, user_id)
    found = _name(work, state, folded)
    if found is not None:
        work.do("ZREM", state.keys.names, found)


def artifact_totals(work: Work, session: State | int, tenant: str, user_id: str) -> Rows:
    """How many names, versions and bytes a scope has."""
    state = _scope(work, session, tenant, user_id)
    rows = [_after_names(member, 1) for member in work.ask(_behind(state.keys.names, b"", b""))[0]]
    return [(len(rows), sum(row[3] for row in rows), sum(row[4] for row in rows))]


def _after_names(member: bytes, names: int, skip: int = 0) -> list[Any]:
    """The row behind the names, and `skip` bytes, that a member begins with."""
    begin = 0
    for _ in range(names):
        begin = member.index(b"\0\1", begin) + 2
    return list_from(member[begin + skip :])


# -- versions ----------------------------------------------------------------
# A member is the folded name, the number, and a row: name, version, blob, type, size, hash, author, metadata, time.


def _row(member: bytes) -> Row:
    return _after_names(member, 1, 8)


def artifact_insert(
    work: Work, session: State | int, tenant: str, user_id: str, folded: str, version: int, name: str, *row: Any
) -> None:
    """A version."""
    state, blob = _scope(work, session, tenant, user_id), row[0]
    member = name_part(folded) + number_part(version) + packed((name, version, *row))
    work.do("ZADD", state.keys.versions, 0, member)
    work.do("HSET", state.keys.used, blob, member)
    work.tell(b"b", blob.encode(), b"1")
    if isinstance(state.keys, SessionKeys) and not state.record.artifacts:
        changed(state, artifacts=True)


def artifact_of_blob(work: Work, tenant: str, blob: str) -> Rows:
    """The version that has this content, among those of the user that the job is about."""
    assert isinstance(work.queue, tuple)
    user = work.keys.user(tenant, work.queue[1])
    (found,) = work.ask((b"HGET", user.used, blob))
    if found is None:
        work.check(user.used, blob, None)
        return ()
    return [_row(found)]


def artifact_get(work: Work, session: State | int, tenant: str, user_id: str, folded: str, version: int) -> Rows:
    """One version."""
    state = _scope(work, session, tenant, user_id)
    (found,) = work.ask(_begins(state.keys.versions, name_part(folded) + number_part(version)))
    return [_row(member) for member in found]


def artifact_versions(
    work: Work, session: State | int, tenant: str, user_id: str, folded: str, after: int, limit: int
) -> Rows:
    """A name's versions, behind one of them."""
    state, begin = _scope(work, session, tenant, user_id), name_part(folded)
    (found,) = work.ask(
        _behind(state.keys.versions, begin + number_part(after) + b"\xff" * 9, begin + b"\xff" * 9, limit)
    )
    return [_row(member) for member in found]


def artifact_last(work: Work, session: State | int, tenant: str, user_id: str, folded: str) -> Rows:
    """The number of a name's newest version, of which none was just taken away."""
    state, begin = _scope(work, session, tenant, user_id), name_part(folded)
    (found,) = work.ask(_begins(state.keys.versions, begin))
    left = [_row(member) for member in found if member not in work.overlay]
    return [[left[-1][1]]]


def artifacts_newest(work: Work, session: State | int, tenant: str, user_id: str, after: str, limit: int) -> Rows:
    """The newest version of each name in a scope, in order of the folded names, behind one of them."""
    state = _scope(work, session, tenant, user_id)
    place = name_part(after) + b"\xff" * 9 if after else b""
    names: list[bytes] = work.ask(_behind(state.keys.names, place, b"", limit))[0]
    wanted = [(member[: member.index(b"\0\1") + 2], _after_names(member, 1)) for member in names]
    commands = [_begins(state.keys.versions, begin + number_part(row[2])) for begin, row in wanted]
    return [_row(found[0]) for found in work.ask(*commands)]


def artifacts_all(work: Work, session: State | int, tenant: str, user_id: str) -> Rows:
    """All versions of all names in a scope."""
    state = _scope(work, session, tenant, user_id)
    return [_row(member) for member in work.ask(_behind(state.keys.versions, b"", b""))[0]]


def artifact_delete(work: Work, session: State | int, tenant: str, user_id: str, folded: str, version: int) -> None:
    """One version."""
    state = _scope(work, session, tenant, user_id)
    (found,) = work.ask(_begins(state.keys.versions, name_part(folded) + number_part(version)))
    _delete(work, state, found)


def artifact_versions_delete(work: Work, session: State | int, tenant: str, user_id: str, folded: str) -> None:
    """All versions of a name."""
    state = _scope(work, session, tenant, user_id)
    _delete(work, state, work.ask(_begins(state.keys.versions, name_part(folded)))[0])


def _delete(work: Work, state: State, members: list[bytes]) -> None:
    for member in members:
        work.overlay[member] = None
        work.do("ZREM", state.keys.versions, member)
        _unused(work, state, member)


def _unused(work: Work, state: State, member: bytes) -> None:
    blob: str = _row(member)[2]
    work.do("HDEL", state.keys.used, blob)
    work.tell(b"b", blob.encode(), b"")


def artifacts_delete(work: Work, state: State) -> None:
    """With their session."""
    if state.base is not None and state.base.artifacts:
        members = work.ask(_behind(state.keys.versions, b"", b""))[0]
        work.do("UNLINK", state.keys.versions)
        for member in members:
            _unused(work, state, member)


def artifact_names_delete(work: Work, state: State) -> None:
    """With their session."""
    if state.base is not None and state.base.artifacts:
        work.do("UNLINK", state.keys.names)
