"""What statements of the SQLite store cost: its own plans of them, and the bytes that a message takes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw
from apsw import sqlite_extra

from holdfast.domain.messages import encode_payload
from holdfast.domain.session import SessionRef
from holdfast.stores.log import Append
from holdfast.stores.sql.migrations import load_migrations
from holdfast.stores.sql.statements import load_statements
from tests.contract.kit import assistant, session, user
from tests.stores.plans_kit import LISTS, ON_A_TURNS_PATH
from tests.stores.sqlite_kit import open_file, open_once

READS = (
    *("log_forward", "log_backward", "memory_find", "memories_forward", "memories_backward", "memories_forward_of"),
    *(
        "memories_backward_of",
        "memories_since",
        "memories_of_ids",
        "memories_of_numbers",
        "memories_named",
        "signals_of",
    ),
    *("memory_owners_after", "signals_all", "signals_trim", "signals_before", "owner_get", "records_info"),
    *("records_named", "records_sizes", "records_forward", "records_backward", "records_expired", "records_first"),
    *("records_delete_through", "owner_detached"),
)
"""Statements about logs, memories and records of any length."""
HARMLESS = ("json_each", "CONSTANT ROW", "VIRTUAL TABLE", "SCAN (subquery-1)", "SCAN p", "SCAN last_to_go")
"""Scans of what a statement was given, or has found by an index before: `p` is of a few spaces, a `page` of few rows, `last_to_go` of one."""


def list_steps(database: apsw.Connection, name: str) -> list[str]:
    """The steps of SQLite's own plan of a statement that scan or sort."""
    sql = load_statements("sqlite")[name]
    count = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
    steps = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * count)]
    steps = [step for step in steps if not any(harmless in step for harmless in HARMLESS)]
    return [step for step in steps if step.startswith("SCAN") or "TEMP B-TREE" in step]


def test_no_statement_scans() -> None:
    """None of a turn sorts either, and a page of a list is read in the order of its index."""
    raw = apsw.Connection(":memory:")
    raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    if sqlite_extra.has("vec1"):
        sqlite_extra.load(raw, "vec1")
    for migration in load_migrations("sqlite"):
        raw.execute(migration.sql)
    index = [name for name in load_statements("sqlite") if name.startswith("index_")]
    assert len(index) > 40
    for name in (*ON_A_TURNS_PATH, *LISTS, "log_forward", "log_backward", "entries_at"):
        assert list_steps(raw, name) == [], name
    for name in (*READS, *index):
        assert [step for step in list_steps(raw, name) if step.startswith("SCAN")] == [], name
    raw.close()


async def _fill(database: Path) -> int:
    """Twenty sessions of a hundred messages; the size of their JSON."""
    store, size = await open_file(database), 0
    for number in range(20):
        ref = SessionRef("ann", f"session-{number}")
        await store.create(session(ref))
        for at in range(50):
            entries = [user(f"{at} " + "word " * 90), assistant(f"{at} " + "word " * 95)]
            size += sum(len(encode_payload(entry.message)) for entry in entries)
            await store.append(ref, Append(entries=entries, timestamp=1_700_000_000_000 + at))
    await store.close()
    return size


def test_a_message_takes_little_more_than_its_json(database: Path) -> None:
    """At most 1.3 times the bytes of the messages as JSON, beyond what the file takes without any."""
    asyncio.run(open_once(database))
    empty = database.stat().st_size
    size = asyncio.run(_fill(database))
    assert database.stat().st_size - empty <= 1.3 * size
