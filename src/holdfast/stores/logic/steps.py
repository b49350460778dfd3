"""How an operation asks its database: a generator that yields statements and is sent their rows.

No I/O here: the same steps run on a thread with a blocking driver and on a loop with an async one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import msgspec

Row = Sequence[Any]
Rows = Sequence[Row]
T = TypeVar("T")


class Query(msgspec.Struct, frozen=True, gc=False):
    """One statement, by name, to be run once; its rows are sent back."""

    name: str
    params: Row
    aside: Any = None
    """What the parameters were worked out from, for a database that can do it itself, where it stands then."""


class Many(msgspec.Struct, frozen=True, gc=False):
    """One statement, by name, to be run for each row of parameters; no rows are sent back."""

    name: str
    rows: Sequence[Row]


Steps = Generator[Query | Many, Rows, T]


def nothing() -> Steps[None]:
    """No statement at all: for a write that only lets what was removed before leave the files, or only connects."""
    yield from ()
