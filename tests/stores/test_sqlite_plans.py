"""What statements of the SQLite store cost: its own plans of them, and the bytes that a message takes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from holdfast.domain.messages import encode_payload
from holdfast.domain.session import SessionRef
from holdfast.stores.log import Append
from holdfast.stores.sql.migrations import load_migrations
from holdfast.stores.sql.statements import load_statements
from tests.contract.kit import assistant, session, user
from tests.stores.plans_kit import LISTS, ON_A_TURNS_PATH
from tests.stores.sqlite_kit import open_file, open_once

NO_SCANS = ("CONSTANT ROW", "json_each VIRTUAL TABLE")
"""What a plan calls a scan of its own parameters."""


def test_migrations_have_no_gap_and_every_statement_begins_with_what_it_does() -> None:
    assert [migration.number for migration in load_migrations("sqlite")] == list(
        range(1, len(load_migrations("sqlite")) + 1)
    )
    assert all(re.match(r"(SELECT|INSERT|UPDATE|DELETE)\b", sql) for sql in load_statements("sqlite").values())


async def scans(database: Path, name: str) -> list[str]:
    """The steps of SQLite's own plan for a statement that say SCAN, or sort."""
    await open_once(database)
    connection = apsw.Connection(str(database))
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    sql = load_statements("sqlite")[name]
    count = max((int(number) for number in re.findall(r"\?(\d+)", sql)), default=0)
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", (1,) * count)]
    connection.close()
    plan = [step for step in plan if not any(harmless in step for harmless in NO_SCANS)]
    return [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step]


@pytest.mark.parametrize("name", ON_A_TURNS_PATH)
async def test_no_statement_of_a_turn_scans(database: Path, name: str) -> None:
    """SQLite's own plan says SEARCH, never SCAN or a sort."""
    assert await scans(database, name) == []


@pytest.mark.parametrize("name", LISTS)
async def test_lists_are_read_in_index_order(database: Path, name: str) -> None:
    """A page is read from an index, without sorting."""
    assert await scans(database, name) == []


@pytest.mark.parametrize("name", ["log_forward", "log_backward"])
async def test_live_and_retired_entries_are_merged_without_sorting(database: Path, name: str) -> None:
    """Live and retired entries are read in order from their two indexes."""
    assert await scans(database, name) == []


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
