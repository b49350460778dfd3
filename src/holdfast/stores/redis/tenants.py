"""The statements about what belongs to a tenant: leases, what was learned, ends to be told of, contents.

Each write checks that what it was decided by is as it was read, so they need no lock.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Key
from holdfast.stores.redis.keys import number_of, number_part
from holdfast.stores.redis.records import fitting, list_from, packed
from holdfast.stores.redis.work import Work

_keys = msgspec.json.Decoder(list[str]).decode

# -- leases ------------------------------------------------------------------


def _lease(work: Work, tenant: str, name: str) -> tuple[bytes | None, list[Any] | None]:
    """Who holds a lease and until when, as it is stored and as it is."""
    (found,) = work.ask_once((b"HGET", work.keys.tenant(tenant).holders, name))
    return found, None if found is None else list_from(found)


def lease_put(work: Work, tenant: str, name: str, holder: str, until: int, now: int) -> None:
    """A lease, taken when nobody holds it any more, or renewed."""
    keys = work.of_tenant(tenant)
    stored, held = _lease(work, tenant, name)
    if held is not None and held[0] != holder and held[1] > now:
        return
    work.check(keys.holders, name, stored)
    work.do("HSET", keys.holders, name, packed((holder, until)))
    work.do("ZADD", keys.leases, until, name)
    work.overlay["lease", name] = [holder, until]


def lease_get(work: Work, tenant: str, name: str) -> Rows:
    """Who holds a lease, and until when."""
    if ("lease", name) in work.overlay:
        return [work.overlay["lease", name]]
    held = _lease(work, tenant, name)[1]
    return () if held is None else [held]


def lease_delete(work: Work, tenant: str, name: str, holder: str) -> None:
    """A lease that its holder gives back."""
    keys = work.of_tenant(tenant)
    stored, held = _lease(work, tenant, name)
    if held is not None and held[0] == holder:
        work.check(keys.holders, name, stored)
        work.do("HDEL", keys.holders, name)
        work.do("ZREM", keys.leases, name)


def leases_clean(work: Work, tenant: str, before: int) -> None:
    """Leases that were left to expire, a few with each that is taken."""
    keys = work.of_tenant(tenant)
    if work.commands:
        work.do("clean", keys.leases, Key(keys.holders), before)


# -- what was learned ----------------------------------------------------------


def _learned(work: Work, tenant: str, model: str) -> bytes | None:
    found: bytes | None = work.ask_once((b"HGET", work.keys.tenant(tenant).learned, model))[0]
    return found


def learned_get(work: Work, tenant: str, model: str) -> Rows:
    """What was learned of a model."""
    found = _learned(work, tenant, model)
    return () if found is None else [[found[8:]]]


def learned_put(work: Work, tenant: str, model: str, timestamp: int, data: bytes) -> None:
    """What was learned of a model, in place of what stood there."""
    keys = work.of_tenant(tenant)
    old = _learned(work, tenant, model)
    work.check(keys.learned, model, old)
    work.do("HSET", keys.learned, model, number_part(timestamp) + data)
    if old is not None:
        work.do("ZREM", keys.learned_at, old[:8] + model.encode())
    work.do("ZADD", keys.learned_at, 0, number_part(timestamp) + model.encode())


learned_new = learned_put


def learned_trim(work: Work, tenant: str, kept: int) -> None:
    """All but the models that were written last."""
    keys = work.of_tenant(tenant)
    work.do("trim", keys.learned_at, Key(keys.learned), kept)


# -- ends to be told of --------------------------------------------------------


def _due(ended_at: int, ending: str) -> bytes:
    return number_part(ended_at) + ending.encode()


def ending_insert(work: Work, tenant: str, *row: Any) -> None:
    """An end that hooks are to be told of: it follows the write that ends the session."""
    ending, _, _, _, _, _, ended_at, due_at, *_ = row
    work.tell(b"e", ending.encode(), fitting(due_at), _due(ended_at, ending), packed(row))


def _ending(work: Work, tenant: str, ending: str) -> tuple[bytes | None, list[Any]]:
    (found,) = work.ask_once((b"HGET", work.keys.tenant(tenant).endings, ending))
    return found, [] if found is None else list_from(found)


def ending_get(work: Work, tenant: str, ending: str) -> Rows:
    """One of them."""
    row = _ending(work, tenant, ending)[1]
    return [row] if row else ()


def endings_due(work: Work, tenant: str, due: int, limit: int) -> Rows:
    """Those that are due, in the order in which they are."""
    keys = work.keys.tenant(tenant)
    (members,) = work.ask_once((b"ZRANGEBYSCORE", keys.due, b"-inf", due, b"LIMIT", 0, limit))
    found = work.ask_once(*((b"HGET", keys.endings, member[8:]) for member in members))
    return [list_from(row) for row in found if row is not None]


def endings_of_user(work: Work, tenant: str, user_id: str, after: str, limit: int) -> Rows:
    """Those of a user's sessions, in order of id, behind one of them. Reads the tenant's: there are few at any time."""
    (found,) = work.ask_once((b"HVALS", work.keys.tenant(tenant).endings))
    rows = sorted((list_from(row) for row in found), key=lambda row: str(row[0]).encode())
    return [row for row in rows if row[1] == user_id and str(row[0]).encode() > after.encode()][:limit]


def ending_put(
    work: Work, tenant: str, ending: str, due_at: int, attempts: int, hooks: bytes, error: str | None
) -> None:
    """What became of telling one."""
    keys = work.of_tenant(tenant)
    stored, row = _ending(work, tenant, ending)
    work.check(keys.endings, ending, stored)
    work.do("HSET", keys.endings, ending, packed([*row[:7], due_at, attempts, hooks, error]))
    work.do("ZADD", keys.due, due_at, _due(row[6], ending))


def ending_delete(work: Work, tenant: str, ending: str) -> None:
    """One that everybody was told of."""
    stored, row = _ending(work, tenant, ending)
    if stored is not None:
        keys = work.of_tenant(tenant)
        work.check(keys.endings, ending, stored)
        work.do("f", b"", ending, _due(row[6], ending))


# -- contents ----------------------------------------------------------------


def blob_put(work: Work, tenant: str, blob: str, part: int, timestamp: int, data: bytes) -> None:
    """A part of a content that the database keeps."""
    keys = work.of_tenant(tenant)
    (found,) = work.ask_once((b"HGET", keys.written, blob))
    # When the last of its parts was written: which part that is does not matter.
    newest = timestamp if found is None else max(timestamp, number_of(found))
    work.do("HSET", keys.parts(blob), part, data)
    work.do("HSET", keys.written, blob, number_part(newest))
    work.do("ZADD", keys.blobs, 0, blob)


def blob_get(work: Work, tenant: str, blob: str, part: int) -> Rows:
    """A part of a content."""
    (found,) = work.ask_once((b"HGET", work.keys.tenant(tenant).parts(blob), part))
    return () if found is None else [[found]]


def blob_delete(work: Work, tenant: str, blob: str) -> None:
    """A content, all parts of it."""
    keys = work.of_tenant(tenant)
    work.do("UNLINK", keys.parts(blob))
    work.do("HDEL", keys.written, blob)
    work.do("ZREM", keys.blobs, blob)


def blobs_before(work: Work, tenant: str, before: int, after: str, limit: int) -> Rows:
    """Contents of which nothing was written since, behind a key."""
    keys, place = work.keys.tenant(tenant), after.encode()
    rows: list[Row] = []
    while len(rows) < limit:
        begin = b"(" + place if place else b"-"
        (found,) = work.ask_once((b"ZRANGEBYLEX", keys.blobs, begin, b"+", b"LIMIT", 0, limit))
        times = work.ask_once(*((b"HGET", keys.written, blob) for blob in found))
        rows += [[blob] for blob, time in zip(found, times, strict=True) if time and number_of(time) < before]
        if len(found) < limit:
            break
        place = found[-1]
    return rows[:limit]


def blobs_in_use(work: Work, tenant: str, blobs: str) -> Rows:
    """Those of some contents that a version has."""
    wanted = _keys(blobs)
    used = work.ask_once(*((b"HEXISTS", work.keys.tenant(tenant).used, blob) for blob in wanted))
    return [[blob] for blob, there in zip(wanted, used, strict=True) if there]


# -- others ------------------------------------------------------------------


def ping(work: Work) -> Rows:
    """Anything that reads."""
    return [work.ask_once((b"HLEN", work.keys.layout))]


def ping_put(work: Work, _: str) -> None:
    """Anything that writes; undone by `ping_delete`."""
    work.do("HSET", work.keys.layout, b"ping", b"1")


def ping_delete(work: Work) -> None:
    """See `ping_put`."""
    work.do("HDEL", work.keys.layout, b"ping")
