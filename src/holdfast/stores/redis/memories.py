"""The statements about memories, on a working copy: an owner's lie together, guarded by its head; who has which, at the tenant's.

A user's memories lie in the user's slot, an agent's and the tenant's own in the tenant's. There are also the list of owners and
whose each id is, so that both can be asked for without knowing a user. Where that is another server, it is told before the write,
and told again of what went behind it: so it may know of a memory that is not there, and whoever reads it looks.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.memory import Owner, OwnerKind
from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Command
from holdfast.stores.redis.keys import OwnerKeys, name_part, names_of, number_of, number_part
from holdfast.stores.redis.records import fitting, list_from, packed
from holdfast.stores.redis.work import MARKED, State, Work

_END: Final = b"\xff" * 9
_TOKEN_BYTES: Final = 6
_LISTED: Final = b"\0"
"""What stands before an owner where a mark of its listing is kept among those of memories: no id begins with it."""
_ids = msgspec.json.Decoder(list[str]).decode
_numbers = msgspec.json.Decoder(list[int]).decode


def _keys(work: Work, tenant: str, kind: str, id_: str) -> OwnerKeys:
    return work.keys.owner(tenant, _owner(kind, id_))


def _owner(kind: Any, id_: str) -> Owner:
    known: OwnerKind = kind
    return Owner(known, id_)


def _in_parts(name: bytes, key: bytes, fields: Sequence[bytes | str | int]) -> list[Command]:
    """A command with many fields as several."""
    return [(name, key, *fields[at : at + MARKED]) for at in range(0, len(fields), MARKED)]


def _fields(work: Work, key: bytes, fields: Sequence[bytes | str | int]) -> list[Any]:
    """What stands in some fields of a hash, at one moment with the rest."""
    return [value for some in work.ask(*_in_parts(b"HMGET", key, fields)) for value in some]


# -- owners ------------------------------------------------------------------


def _head(keys: OwnerKeys) -> Command:
    """What reads an owner: version, how many, the next numbers, and when it was written to last."""
    return (b"HGET", keys.head, b"m")


def memory_owner_get(work: Work, tenant: str, kind: str, id_: str) -> Rows:
    """What an owner has, with its state in place of a key, and its floor; whoever asks in a write is guarded by its head."""
    keys = _keys(work, tenant, kind, id_)
    state = work.guarded or work.state(keys)
    work.guarded = state
    stored, floor = work.ask(_head(keys), (b"HGET", keys.head, b"f"))
    if stored is None:
        return [(state, 0, 0, 1, 1, 1, 0, int(floor or 0))] if "made" in work.overlay else ()
    return [(state, *list_from(stored), int(floor or 0))]


def memory_owner_new(work: Work, tenant: str, kind: str, id_: str) -> None:
    """An owner for whom nothing was ever written: the tenant's list has it from before it has anything."""
    keys, tenants = _keys(work, tenant, kind, id_), work.keys.tenant(tenant)
    state = work.guarded
    assert state is not None
    work.overlay["made"] = state.fresh = True
    member = name_part(kind) + name_part(id_)
    if _apart(work, keys):  # in this order: see `memory_owner_delete`
        work.before.append(("HSET", tenants.memory_ids, _LISTED + member, secrets.token_bytes(_TOKEN_BYTES)))
    _known_before(work, keys, "ZADD", tenants.memory_owners, 0, member)


def memory_owner_put(work: Work, state: State, *row: int) -> None:
    """An owner behind a write."""
    work.do("HSET", state.keys.head, "m", packed(row))


def memory_owner_delete(work: Work, state: State) -> None:
    """An owner that is dropped: its name leaves the tenant's list. What it had come to stays, under a key that is a digest.

    Where the list is on another server it is told behind the write, unless the owner was listed anew meanwhile.
    """
    keys = state.keys
    tenants, member = work.keys.tenant(keys.tenant), name_part(keys.owner.kind) + name_part(keys.owner.id)
    work.do("HSET", keys.head, "f", max(work.aside.floor, work.aside.ceiling))
    work.do("HDEL", keys.head, "m")
    if not _apart(work, keys):
        work.do("ZREM", tenants.memory_owners, member)
        return
    (token,) = work.ask_once((b"HGET", tenants.memory_ids, _LISTED + member))
    work.behind += (_LISTED + member, token or b"")


def floor_raise(work: Work, tenant: str, number: int) -> None:
    """Each owner has its own, see `memory_owner_delete`."""


def memory_owners_after(work: Work, tenant: str, kind: str, id_: str, limit: int) -> Rows:
    """Owners in order of kind and id, behind one of them; those are left out for whom nothing was written in the end."""
    key, place = work.keys.tenant(tenant).memory_owners, name_part(kind) + name_part(id_) if kind else b""
    rows: list[Row] = []
    while len(rows) < limit:
        begin = b"(" + place if place else b"-"
        (found,) = work.ask_once((b"ZRANGEBYLEX", key, begin, b"+", b"LIMIT", 0, limit))
        named = [names_of(member) for member in found]
        heads = work.ask_once(*(_head(_keys(work, tenant, *names)) for names in named))
        rows += [(*names, list_from(head)[-1]) for names, head in zip(named, heads, strict=True) if head is not None]
        if len(found) < limit:
            break
        place = found[-1]
    return rows[:limit]


def _apart(work: Work, keys: OwnerKeys) -> bool:
    """Whether an owner's memories and its tenant may lie on different servers."""
    return work.apart and bool(keys.user_id)


def _known_before(work: Work, keys: OwnerKeys, *command: Any) -> None:
    """The tenant is told of what is about to be written: with it, or where that cannot be, before it."""
    if _apart(work, keys):
        work.before.append(command)
    else:
        work.do(*command)


# -- reading -----------------------------------------------------------------


def _page(work: Work, keys: OwnerKeys, numbers: Sequence[int], limit: int = ENDLESS) -> Rows:
    """Rows of an owner's memories of those numbers, as far as they are there; without any, one row that tells of the owner."""
    (head,) = work.ask(_head(keys))
    if head is None:
        return ()
    version, held = list_from(head)[:2]
    numbers = numbers[:limit]
    commands = [*_in_parts(b"HMGET", keys.metas, numbers), *_in_parts(b"HMGET", keys.bodies, numbers)]
    answers = [value for some in work.ask(*commands) for value in some]
    rows: list[Row] = []
    for number, meta, body in zip(numbers, answers[: len(numbers)], answers[len(numbers) :], strict=True):
        if meta is not None and body is not None:
            id_, changed, _ = list_from(meta)
            rows.append((version, held, number, id_, changed, body))
    return rows or [(version, held, None, None, None, None)]


def _ranged(work: Work, place: Row, status: str, begin: bytes, end: bytes, limit: int, *, descending: bool) -> Rows:
    """Rows by number between two places, of a status or any."""
    keys = _keys(work, *place)
    name, ends = (b"ZREVRANGEBYLEX", (end, begin)) if descending else (b"ZRANGEBYLEX", (begin, end))
    _, found = work.ask(_head(keys), (name, keys.places, *ends, b"LIMIT", 0, limit))
    skip = len(name_part(status))
    return _page(work, keys, [number_of(member[skip:]) for member in found])


def memories_forward(work: Work, tenant: str, kind: str, id_: str, after: int, limit: int) -> Rows:
    """An owner with its memories behind a number; without any, one row."""
    return memories_forward_of(work, tenant, kind, id_, "", after, limit)


def memories_forward_of(work: Work, tenant: str, kind: str, id_: str, status: str, after: int, limit: int) -> Rows:
    """The same of a status."""
    part = name_part(status)
    begin, end = b"(" + part + number_part(after), b"(" + part + _END
    return _ranged(work, (tenant, kind, id_), status, begin, end, limit, descending=False)


def memories_backward(work: Work, tenant: str, kind: str, id_: str, before: int, limit: int) -> Rows:
    """The same, before a number, the last first."""
    return memories_backward_of(work, tenant, kind, id_, "", before, limit)


def memories_backward_of(work: Work, tenant: str, kind: str, id_: str, status: str, before: int, limit: int) -> Rows:
    """The same of a status."""
    part = name_part(status)
    begin, end = b"[" + part, b"(" + part + number_part(before)
    return _ranged(work, (tenant, kind, id_), status, begin, end, limit, descending=True)


def memories_since(
    work: Work, tenant: str, kind: str, id_: str, since: int, status: str, sign: int, after: int, limit: int
) -> Rows:
    """The same, changed behind a version, of a status or any, behind a place in a direction."""
    keys = _keys(work, tenant, kind, id_)
    _, found = work.ask(_head(keys), (b"ZRANGEBYSCORE", keys.versions, b"(%d" % since, b"+inf"))
    return _chosen(work, keys, map(int, found), since, status, sign, after, limit)


def memories_of_ids(
    work: Work, tenant: str, kind: str, id_: str, ids: str, since: int, status: str, sign: int, after: int, limit: int
) -> Rows:
    """The same, those of some ids."""
    keys = _keys(work, tenant, kind, id_)
    found = _fields(work, keys.ids, _ids(ids))
    return _chosen(work, keys, [int(number) for number in found if number], since, status, sign, after, limit)


def memories_of_numbers(
    work: Work,
    tenant: str,
    kind: str,
    id_: str,
    numbers: str,
    since: int,
    status: str,
    sign: int,
    after: int,
    limit: int,
) -> Rows:
    """The same, those of some numbers."""
    return _chosen(work, _keys(work, tenant, kind, id_), _numbers(numbers), since, status, sign, after, limit)


def _chosen(
    work: Work,
    keys: OwnerKeys,
    numbers: Iterable[int],
    since: int,
    status: str,
    sign: int,
    after: int,
    limit: int,
) -> Rows:
    """Those of some memories that are of a version, a status and a place."""
    behind = sorted((number for number in numbers if number * sign > after), key=lambda number: number * sign)
    kept: list[int] = []
    for number, meta in zip(behind, _fields(work, keys.metas, behind), strict=True):
        if meta is not None:
            _, version, found = list_from(meta)
            if version > since and status in ("", found):
                kept.append(number)
    return _page(work, keys, kept, limit)


def memory_find(work: Work, tenant: str, memory_id: str) -> Rows:
    """The memory of an id, with its owner."""
    (known,) = work.ask_once((b"HGET", work.keys.tenant(tenant).memory_ids, memory_id))
    if known is None:
        return ()
    kind, id_, _ = list_from(known)
    keys = _keys(work, tenant, kind, id_)
    (number,) = work.ask((b"HGET", keys.ids, memory_id))
    rows = () if number is None else _page(work, keys, [int(number)])
    return [(kind, id_, *row[2:]) for row in rows if row[2] is not None]


# -- writing -----------------------------------------------------------------


def memories_named(work: Work, tenant: str, ids: str) -> Rows:
    """Which numbers some ids have, and of which owner: the one that is written to, or another one."""
    state, named = work.guarded, _ids(ids)
    assert state is not None
    found = dict(zip(named, _fields(work, state.keys.ids, named), strict=True))
    rows: list[Row] = [(id_, state, int(number)) for id_, number in found.items() if number is not None]
    others = [id_ for id_, number in found.items() if number is None]
    for id_, known in zip(others, _fields(work, work.keys.tenant(tenant).memory_ids, others), strict=True):
        work.overlay["known", id_] = known
        if known is not None and (number := _elsewhere(work, tenant, state, id_, known)) is not None:
            rows.append((id_, None, number))
    return rows


def _elsewhere(work: Work, tenant: str, state: State, id_: str, known: bytes) -> int | None:
    """The number of a memory that another owner is said to have, if it is there."""
    kind, owner_id, _ = list_from(known)
    keys = _keys(work, tenant, kind, owner_id)
    if keys.head == state.keys.head:
        return None
    (number,) = work.ask((b"HGET", keys.ids, id_))
    return None if number is None else int(number)


def memory_insert(
    work: Work, state: State, number: int, tenant: str, id_: str, version: int, status: str, data: bytes
) -> None:
    """A memory that was not there."""
    keys, tenants = state.keys, work.keys.tenant(tenant)
    if not _apart(work, keys):
        work.check(tenants.memory_ids, id_, work.overlay["known", id_])
    whose = packed((keys.owner.kind, keys.owner.id, secrets.token_bytes(_TOKEN_BYTES)))
    _known_before(work, keys, "HSET", tenants.memory_ids, id_, whose)
    work.do("HSET", keys.ids, id_, number)
    work.do("ZADD", keys.places, 0, name_part("") + number_part(number))
    _written(work, keys, number, id_, version, status)
    work.do("HSET", keys.bodies, number, data)


def _written(work: Work, keys: OwnerKeys, number: int, id_: str, version: int, status: str) -> None:
    work.do("ZADD", keys.places, 0, name_part(status) + number_part(number))
    work.do("ZADD", keys.versions, version, number)
    work.do("HSET", keys.metas, number, packed((id_, version, status)))


def _meta(work: Work, keys: OwnerKeys, number: int) -> list[Any]:
    """Id, version and status of a memory that is there."""
    return list_from(work.ask((b"HGET", keys.metas, number))[0])


def memory_put(work: Work, state: State, number: int, version: int, status: str, data: bytes) -> None:
    """A memory in place of what it was."""
    keys = state.keys
    id_, _, before = _meta(work, keys, number)
    if before != status:
        work.do("ZREM", keys.places, name_part(before) + number_part(number))
    _written(work, keys, number, id_, version, status)
    work.do("HSET", keys.bodies, number, data)


def memory_delete(work: Work, state: State, number: int) -> None:
    """A memory that goes."""
    keys = state.keys
    id_, _, status = _meta(work, keys, number)
    _forgotten(work, keys, [id_])
    work.do("HDEL", keys.bodies, number)
    work.do("HDEL", keys.metas, number)
    work.do("HDEL", keys.ids, id_)
    work.do("ZREM", keys.versions, number)
    work.do("ZREM", keys.places, name_part("") + number_part(number), name_part(status) + number_part(number))


def _forgotten(work: Work, keys: OwnerKeys, ids: Sequence[str]) -> None:
    """The tenant need not know any more whose some ids are: told with the write, or where that cannot be, behind it."""
    key = work.keys.tenant(keys.tenant).memory_ids
    if not _apart(work, keys):
        for command in _in_parts(b"HDEL", key, ids):
            work.do("HDEL", key, *command[2:])
        return
    known = work.ask_once(*_in_parts(b"HMGET", key, ids))
    for id_, value in zip(ids, (value for some in known for value in some), strict=True):
        if value is not None:
            work.behind += (id_, value)


def memories_clear(work: Work, state: State) -> None:
    """All memories of an owner."""
    keys = state.keys
    (metas,) = work.ask((b"HVALS", keys.metas))
    _forgotten(work, keys, [list_from(meta)[0] for meta in metas])
    for key in (keys.bodies, keys.metas, keys.ids, keys.versions, keys.places):
        work.do("UNLINK", key)


# -- signals -----------------------------------------------------------------
# A member of a memory's is its place, time, digest of the question, score, and session; it has its place as its score.


def signal_insert(
    work: Work, state: State, memory: int, seq: int, at: int, asked: bytes, score: float, session: str
) -> None:
    """A recall of a memory."""
    work.do("ZADD", state.keys.signals_of(memory), seq, packed((seq, at, asked, score, session)))
    work.do("ZADD", state.keys.recalled, "GT", fitting(at), memory)


def signals_trim(work: Work, state: State, memory: int, kept: int) -> None:
    """All but the newest of a memory's signals."""
    work.do("ZREMRANGEBYRANK", state.keys.signals_of(memory), 0, -1 - kept)


def signals_before(work: Work, state: State, before: int) -> None:
    """Signals of an owner's memories that are too old: each that was ever recalled is looked at."""
    (found,) = work.ask((b"ZRANGE", state.keys.recalled, 0, -1))
    signals = [state.keys.signals_of(int(memory)) for memory in found]
    for key, members in zip(signals, work.ask(*((b"ZRANGE", key, 0, -1) for key in signals)), strict=True):
        old = [member for member in members if list_from(member)[1] < before]
        if old:
            work.do("ZREM", key, *old)


def signals_delete(work: Work, state: State, memory: int) -> None:
    """With their memory."""
    work.do("UNLINK", state.keys.signals_of(memory))
    work.do("ZREM", state.keys.recalled, memory)


def signals_clear(work: Work, state: State) -> None:
    """All signals of an owner's memories."""
    (found,) = work.ask((b"ZRANGE", state.keys.recalled, 0, -1))
    for memory in found:
        work.do("UNLINK", state.keys.signals_of(int(memory)))
    work.do("UNLINK", state.keys.recalled)


def signals_all(work: Work, tenant: str, kind: str, id_: str, since: int) -> Rows:
    """Signals of an owner's memories, from a time on, in the order in which they came."""
    keys = _keys(work, tenant, kind, id_)
    (found,) = work.ask((b"ZRANGEBYSCORE", keys.recalled, fitting(since), b"+inf"))
    memories = [int(memory) for memory in found]
    metas = _fields(work, keys.metas, memories)
    named = {memory: list_from(meta)[0] for memory, meta in zip(memories, metas, strict=True) if meta is not None}
    return _signals(work, keys, named, since)


def signals_of(work: Work, tenant: str, kind: str, id_: str, ids: str, since: int) -> Rows:
    """Those of some memories."""
    keys, named = _keys(work, tenant, kind, id_), _ids(ids)
    found = _fields(work, keys.ids, named)
    return _signals(work, keys, {int(at): one for one, at in zip(named, found, strict=True) if at is not None}, since)


def _signals(work: Work, keys: OwnerKeys, named: dict[int, str], since: int) -> Rows:
    """Those of memories by number, whose ids are given."""
    found = work.ask(*((b"ZRANGE", keys.signals_of(memory), 0, -1) for memory in named))
    rows = [
        (row[0], id_, *row[1:])
        for id_, members in zip(named.values(), found, strict=True)
        for row in map(list_from, members)
    ]
    return [row[1:] for row in sorted(rows) if row[2] >= since]


# -- the diary ---------------------------------------------------------------


def diary_insert(work: Work, state: State, seq: int, *row: Any) -> None:
    """A sweep over an owner's memories."""
    work.do("ZADD", state.keys.diary, seq, packed((seq, *row)))


def diary_trim(work: Work, state: State, before: int) -> None:
    """Those before a place."""
    work.do("ZREMRANGEBYSCORE", state.keys.diary, "-inf", f"({before}")


def diary_newest(work: Work, tenant: str, kind: str, id_: str, limit: int) -> Rows:
    """The newest of an owner, newest first."""
    (found,) = work.ask_once((b"ZREVRANGE", _keys(work, tenant, kind, id_).diary, 0, limit - 1))
    return [list_from(member)[1:] for member in found]


def diary_clear(work: Work, state: State) -> None:
    """All of an owner."""
    work.do("UNLINK", state.keys.diary)
