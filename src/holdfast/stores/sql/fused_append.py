"""Combine the statements of an append into a single statement, which does nothing if the session has changed since it was read.

The single statement is a transaction of its own. So the session can be read without a lock, or the session's row can be remembered
from the previous append. This module does no I/O.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable
from functools import cache
from typing import Any, Final

from holdfast.stores.logic.steps import Many, Query, Row
from holdfast.stores.sql.statements import get_parameters, get_view_columns, load_statements

MOST: Final = 12
"""Maximum number of statements that are combined. An append with more statements runs in a transaction."""
READS: Final = frozenset({"session_get", "idempotency_get", "turn_key_get", "log_forward"})
"""Statements with which an append reads before it writes. They run before the combined statement."""
_FUSIBLE: Final = frozenset(
    {
        *("session_advance", "session_claim", "profile_put", "entry_insert", "view_put", "idempotency_put"),
        *("call_insert", "prompt_text_put", "turn_key_new", "turn_key_put"),
    }
)
"""Statements that can be combined, because none of them reads what another one writes."""
_HEADS: Final = frozenset({"session_advance", "session_claim"})
"""Statements that change the session's own row. An append has at most one of them. This statement then serves as the guard: the
other statements take effect only if the guard does.
"""
_GUARDED: Final = ("version", "claim_holder", "claim_until", "claim_wanted")
"""Columns of the session that must still have the values that were read. The claim is checked too, because it can change
without a new version.
"""

_VALUES: Final = re.compile(r"VALUES \(([^()]*)\)")
_PLACES: Final = {column: at for at, column in enumerate(get_view_columns("session_rows"))}
"""The position of each column in a row of session_rows."""


@cache
def fuse_statements(dialect: str, names: tuple[str, ...]) -> str:
    """Combine several statements into one, which returns a row only if it was executed.

    The first of the statements is the guard: it updates or locks the session, unless the session has changed since it was read. In
    that case nothing is written.

    The combined parameters are those of the first statement, then the values of `_GUARDED` that were read, then the parameters
    of the other statements in order.
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
    """Change an INSERT so that it does nothing unless the guard returned a row. Return the changed statement."""
    if "\nSELECT " in sql:
        return sql.replace("\nWHERE ", "\nFROM guard WHERE ", 1)
    return _VALUES.sub(r"SELECT \1 FROM guard", sql, count=1)


def _count_params(sql: str) -> int:
    return max(int(number) for number in re.findall(r"\$(\d+)", sql))


def _shift_params(sql: str, by: int) -> str:
    return re.sub(r"\$(\d+)", lambda found: f"${int(found[1]) + by}", sql)


class FusedAppend:
    """Collects the statements of one append, to send them as a single statement.

    Args:
        row: the row of the session (`session_rows`) that was read.
    """

    def __init__(self, row: Row) -> None:
        self._row = row
        self._read: Row = [row[_PLACES[column]] for column in _GUARDED]
        self._head: tuple[str, Row] = ("session_guard", (row[0], *self._read))
        self._parts: list[tuple[str, Row]] = []

    def __bool__(self) -> bool:
        """Return True if there is anything to write."""
        return bool(self._parts) or self._head[0] != "session_guard"

    def can_add(self, step: Query | Many) -> bool:
        """Return True if a statement can be part of the combined statement.

        The parts of a combined statement run in no fixed order. The order of model calls matters, so at most one call can be added.
        """
        more = len(step.rows) if isinstance(step, Many) else 1
        return (
            step.name in _FUSIBLE
            and len(self._parts) + more <= MOST
            and not (step.name == "call_insert" and (more > 1 or any(name == step.name for name, _ in self._parts)))
        )

    def add(self, step: Query | Many) -> None:
        """Add a statement for which `can_add` returned True."""
        if isinstance(step, Many):
            self._parts.extend((step.name, row) for row in step.rows)
        elif step.name in _HEADS:
            self._head = (step.name, (*step.params, *self._read))
        else:
            self._parts.append((step.name, step.params))

    def build(self, dialect: str, write_id: bytes) -> tuple[str, list[Any]]:
        """Return the combined statement and its parameters. It also inserts the id of the write."""
        parts = [self._head, ("write_put", (write_id,)), *self._parts]
        return fuse_statements(dialect, tuple(name for name, _ in parts)), [
            value for _, params in parts for value in params
        ]

    def compute_row(self) -> Row:
        """Return the row that the session has after the write."""
        row = list(self._row)
        for name, params in (self._head, *self._parts):
            if name in _HEADS or name == "profile_put":
                for column, value in zip(get_parameters(name), params, strict=False):  # more follow: see `add`
                    if column in _PLACES:
                        row[_PLACES[column]] = value
        return row


class LastKnownRows:
    """Caches the rows (`session_rows`) of the sessions that were written most recently.

    A cached row may be out of date, so every write that uses it must check the session's version.
    """

    MOST: Final = 2048
    LARGEST: Final = 8192
    """Maximum bytes of the profile of a cached session."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Row] = OrderedDict()

    def take(self, key: Hashable) -> Row | None:
        """Remove a row from the cache and return it; None if it is not cached."""
        return self._known.pop(key, None)

    def clear(self) -> None:
        """Remove all rows."""
        self._known.clear()

    def keep(self, key: Hashable, row: Row) -> None:
        """Cache a row until it is taken, or evicted by those of sessions written later."""
        if sum(len(row[_PLACES[column]] or b"") for column in get_parameters("profile_put")[1:]) <= self.LARGEST:
            self._known[key] = row
            if len(self._known) > self.MOST:
                self._known.popitem(last=False)
