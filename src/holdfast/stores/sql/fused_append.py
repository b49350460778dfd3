"""Several statements of an append as one, that does nothing unless the session is still as it was read.

Such a statement is its own transaction, so the session may have been read without a lock, and even before: it may be
remembered from the last append. No I/O here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from typing import Any, Final

from holdfast.stores.logic.network import SessionCache
from holdfast.stores.logic.steps import Many, Query, Row
from holdfast.stores.sql.statements import load_statements

MOST: Final = 12
"""Statements in one; more go through a transaction."""
READS: Final = frozenset({"session_get", "idempotency_get", "log_forward"})
"""Statements that an append may read with before it is known that the session has not changed."""
_FUSIBLE: Final = frozenset(
    {"session_advance", "session_claim", "profile_put", "entry_insert", "view_put", "idempotency_put", "call_insert"}
)
"""Statements that may be parts of one: none of them reads what another one writes."""
_HEADS: Final = frozenset({"session_advance", "session_claim"})
"""Those that change the session's own row: of them there is one at most, and it is the guard."""
_GUARDED: Final = ("version", "claim_holder", "claim_until", "claim_wanted")
"""What has to be as it was read: a claim changes without the version."""

_VALUES: Final = re.compile(r"VALUES \(([^()]*)\)")
# Places in a row of session_rows.
_VERSION, _UPDATED_AT, _STATUS, _TTL, _COUNTERS, _PROFILE, _LIFECYCLE, _CLAIM = (
    5,
    7,
    8,
    9,
    slice(10, 25),
    slice(25, 28),
    slice(28, 32),
    slice(34, 37),
)


@cache
def fuse_statements(dialect: str, names: tuple[str, ...]) -> str:
    """One statement out of several, the first of which updates or locks the session as it was read; a row if it did.

    The parameters are those of all, one after the other; what was read stands behind those of the first.
    """
    named = load_statements(dialect)
    guard, *rest = names
    sql = named[guard]
    if guard in _HEADS:
        count = _count_params(sql)
        still = " ".join(f"AND {column} = ${count + at}" for at, column in enumerate(_GUARDED, 1))
        sql = f"{sql} {still} RETURNING pk"
    offset = _count_params(sql)
    parts = [f"guard AS ({sql})"]
    for number, name in enumerate(rest):
        sql = named[name]
        parts.append(f"part_{number} AS ({_shift_params(_add_guard(sql), offset)})")
        offset += _count_params(sql)
    return f"WITH {', '.join(parts)} SELECT pk FROM guard"  # noqa: S608  # of our own statements


def _add_guard(sql: str) -> str:
    """Return an insertion that inserts only if the guard has a row."""
    if "\nSELECT " in sql:
        return sql.replace("\nWHERE ", "\nFROM guard WHERE ", 1)
    return _VALUES.sub(r"SELECT \1 FROM guard", sql, count=1)


def _count_params(sql: str) -> int:
    return max(int(number) for number in re.findall(r"\$(\d+)", sql))


def _shift_params(sql: str, by: int) -> str:
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + by}", sql)


class FusedAppend:
    """What an append of a session has asked to be written, until it is sent in one."""

    def __init__(self, row: Row) -> None:
        self._row = row
        self.guard: tuple[int, int] = (row[0], row[_VERSION])
        self._read: Row = (row[_VERSION], *row[_CLAIM])
        self._head: tuple[str, Row] = ("session_guard", (row[0], *self._read))
        self._parts: list[tuple[str, Row]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to be written."""
        return bool(self._parts) or self._head[0] != "session_guard"

    def can_add(self, step: Query | Many) -> bool:
        """Whether a statement may be a part. They run in any order: so one that is kept in order is alone."""
        more = len(step.rows) if isinstance(step, Many) else 1
        return (
            step.name in _FUSIBLE
            and len(self._parts) + more <= MOST
            and not (step.name == "call_insert" and (more > 1 or any(name == step.name for name, _ in self._parts)))
        )

    def add(self, step: Query | Many) -> None:
        """One more statement."""
        if isinstance(step, Many):
            self._parts.extend((step.name, row) for row in step.rows)
        elif step.name in _HEADS:
            self._head = (step.name, (*step.params, *self._read))
        else:
            self._parts.append((step.name, step.params))

    def build(self, dialect: str) -> tuple[str, list[Any]]:
        """The statement and its parameters."""
        parts = [self._head, *self._parts]
        return fuse_statements(dialect, tuple(name for name, _ in parts)), [
            value for _, params in parts for value in params
        ]

    def compute_row(self) -> Row:
        """The session's row when it is written."""
        row, (name, params) = list(self._row), self._head
        if name == "session_advance":
            row[_VERSION], row[_UPDATED_AT], row[_STATUS] = params[1:4]
            row[_COUNTERS] = params[4:19]
            row[_LIFECYCLE] = _compute_lifecycle(row)
            row[_CLAIM] = params[19:22]
        elif name == "session_claim":
            row[_CLAIM] = params[1:4]
        for part, values in self._parts:
            if part == "profile_put":
                row[_PROFILE] = values[1:4]
        return row


def _compute_lifecycle(row: Row) -> Row:
    """When a session that was just written to was used, and ended."""
    used, ttl = row[_UPDATED_AT], row[_TTL]
    _, ended_at, reason, _ = row[_LIFECYCLE]
    ended = (None, None) if row[_STATUS] == "active" else (ended_at, reason)
    return (used, *ended, used + ttl if ttl else None)


class LastKnownRows(SessionCache[Row]):
    """Rows of `session_rows`."""

    def keep(self, key: Hashable, row: Row) -> None:
        """Keep a row until it is taken, or others have come."""
        self.put(key, row, sum(len(column or b"") for column in row[_PROFILE]))
