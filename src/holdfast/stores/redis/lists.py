"""The statements that list sessions, on a working copy: by rank in an index, so that a page costs the same at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from holdfast.stores.logic.rows import ENDLESS
from holdfast.stores.logic.steps import Row, Rows
from holdfast.stores.redis.connection import Command, Key
from holdfast.stores.redis.keys import name_part, names_of
from holdfast.stores.redis.sessions import rows_of
from holdfast.stores.redis.work import Work

PAGE: Final = 500
"""Members of an index that are looked at in one go, where not each is what is wanted."""
SCANNED: Final = 5000
"""Members that a script looks at before it lets others on."""


class _Wanted(msgspec.Struct, frozen=True):
    """What is listed."""

    tenant: str
    place: tuple[int, bytes] | None
    """Behind which time and member; None: from the beginning."""
    agent: str | None
    status: str | None
    limit: int
    now: int | None
    idle_since: int | None
    descending: bool
    user_id: str | None


def list_newest(work: Work, *asked: Any) -> Rows:
    """A tenant's sessions, newest first, behind a place."""
    return _listed(work, _wanted(*asked, descending=True, user=False))


def list_oldest(work: Work, *asked: Any) -> Rows:
    """A tenant's sessions, oldest first, behind a place."""
    return _listed(work, _wanted(*asked, descending=False, user=False))


def list_newest_of_user(work: Work, *asked: Any) -> Rows:
    """A user's sessions, newest first, behind a place."""
    return _listed(work, _wanted(*asked, descending=True, user=True))


def list_oldest_of_user(work: Work, *asked: Any) -> Rows:
    """A user's sessions, oldest first, behind a place."""
    return _listed(work, _wanted(*asked, descending=False, user=True))


def _wanted(
    tenant: str,
    updated_at: int,
    user_id: str,
    id_: str,
    agent: str | None,
    status: str | None,
    limit: int,
    now: int | None,
    idle_since: int | None,
    *,
    descending: bool,
    user: bool,
) -> _Wanted:
    place = None
    if abs(updated_at) != ENDLESS:
        place = (updated_at, name_part(user_id) + name_part(id_) + name_part(""))
    times = {"now": now, "idle_since": idle_since}
    whose = user_id if user else None
    return _Wanted(tenant, place, agent, status, limit, **times, descending=descending, user_id=whose)


def _listed(work: Work, wanted: _Wanted) -> Rows:
    rows: dict[Row, Row] = {}
    for page in _pages(work, wanted):
        for row in page:
            rows.setdefault((row[2], row[3]), row)  # one that was used meanwhile may come again
        if len(rows) >= wanted.limit:
            break
    return list(rows.values())[: wanted.limit]


def _pages(work: Work, wanted: _Wanted) -> Iterator[list[Row]]:
    """Rows of what is wanted, page by page."""
    keys = work.keys.tenant(wanted.tenant)
    key = keys.recent if wanted.user_id is None else work.keys.user(wanted.tenant, wanted.user_id).recent
    by_index = wanted.status is not None and wanted.user_id is None
    begin: int | None = _begin(work, key, wanted)
    while begin is not None:
        if by_index:
            others = (Key(keys.idle), Key(keys.owned), Key(keys.expiring))
            times = ("" if time is None else time for time in (wanted.now, wanted.idle_since))
            limits = (wanted.limit, SCANNED, int(wanted.descending))
            command: Command = (b"standing", key, *others, begin, *limits, wanted.status or "", *times)
            ((after, members),) = work.ask_once(command)
            yield _matching(work, wanted, command, members)
            begin = None if after < 0 else after
        else:
            filtered = wanted.agent is not None or wanted.status is not None
            size = max(wanted.limit, PAGE) if filtered else wanted.limit
            command = (b"ZREVRANGE" if wanted.descending else b"ZRANGE", key, begin, begin + size - 1)
            (members,) = work.ask_once(command)
            yield _matching(work, wanted, command, members)
            begin = _after(work, key, members, begin, wanted) if len(members) == size else None


def _matching(work: Work, wanted: _Wanted, command: Command, members: list[bytes]) -> list[Row]:
    """The rows of a page that are wanted. The steps are run again for each page: those before are not looked at again."""
    known = (wanted, command)
    if known not in work.read:
        found = rows_of(work, [work.keys.session(wanted.tenant, *names_of(member)) for member in members])
        work.read[known] = [
            row
            for row in found
            if (wanted.agent is None or row[4] == wanted.agent)
            and wanted.status in (None, _status(row, wanted.now, wanted.idle_since))
        ]
    rows: list[Row] = work.read[known]
    return rows


# -- ranks -------------------------------------------------------------------


def _begin(work: Work, key: bytes, wanted: _Wanted) -> int:
    """The rank behind the place."""
    if wanted.place is None:
        return 0
    (found,) = work.ask_once((b"ZREVRANK" if wanted.descending else b"ZRANK", key, wanted.place[1]))
    return _rank(work, key, wanted.place, descending=wanted.descending) if found is None else found + 1


def _after(work: Work, key: bytes, members: list[bytes], begin: int, wanted: _Wanted) -> int:
    """The rank behind a page, wherever it stands now."""
    (found,) = work.ask_once((b"ZREVRANK" if wanted.descending else b"ZRANK", key, members[-1]))
    return begin + len(members) if found is None else found + 1


def _rank(work: Work, key: bytes, place: tuple[int, bytes], *, descending: bool) -> int:
    """Where a session would stand that is not there: looked for among those of the same time."""
    score, field = place
    behind, command = (b"+inf", b"ZREVRANGE") if descending else (b"-inf", b"ZRANGE")
    ends = (b"(%d" % score, behind) if descending else (behind, b"(%d" % score)
    (begin,) = work.ask_once((b"ZCOUNT", key, *ends))
    (same,) = work.ask_once((b"ZCOUNT", key, score, score))
    low, high = begin, begin + same
    while low < high:
        middle = (low + high) // 2
        ((member,),) = work.ask_once((command, key, middle, middle))
        low, high = (middle + 1, high) if (member > field) == descending else (low, middle)
    return int(low)


def _status(row: Row, now: int | None, idle_since: int | None) -> Any:
    """A session's status as a list counts it: one that has expired is closed."""
    status, ttl, accessed_at, expires_at = row[8], row[9], row[28], row[31]
    if status != "active":
        return status
    over = now is not None and expires_at is not None and expires_at <= now
    idle = ttl is None and idle_since is not None and accessed_at <= idle_since
    return "closed" if over or idle else status
