"""`verify` finds data changed outside of the store."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.errors import StoreCorrupt
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.verify import verify
from tests.contract.kit import REF, assistant, calls, result, session, user

COUNTERS = "its counters do not match its log"
TAMPERING = {
    "content": (
        "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'hello', 'hallo') AS BLOB) WHERE seq = 0",
        "message 0 has a wrong digest: it or one before it was changed",
    ),
    "tool arguments": (
        "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'look', 'loot') AS BLOB)",
        "message 1 has a wrong digest: it or one before it was changed",
    ),
    "a retired message": (
        "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'old', 'odd') AS BLOB)",
        "message 4 has a wrong digest: it or one before it was changed",
    ),
    "a digest": (
        "UPDATE entries SET digest = zeroblob(16) WHERE seq = 3",
        "message 3 has a wrong digest: it or one before it was changed",
    ),
    "a gap": ("DELETE FROM entries WHERE seq = 2", "message 2 is missing"),
    "the last entry": ("DELETE FROM entries WHERE seq = 5", "message 5 is missing"),
    "two swapped": (
        "UPDATE entries SET payload = (SELECT payload FROM entries AS e WHERE e.seq = 3 - entries.seq) WHERE seq IN (0, 3)",
        "message 0 has a wrong digest: it or one before it was changed",
    ),
    "a count": ("UPDATE entries SET tokens = tokens + 1 WHERE seq = 1", "message 1 has a wrong running total"),
    "a total": ("UPDATE entries SET total = total + 1 WHERE seq = 5", "message 5 has a wrong running total"),
    "a unit": ("UPDATE entries SET unit_back = 0 WHERE seq = 2", "message 2 is in a wrong unit"),
    "a turn": (
        "UPDATE entries SET turn_id = 7 WHERE seq = 1",
        "message 2 is in an earlier turn than the message before it",
    ),
    "revived": ("UPDATE entries SET retired_by = NULL WHERE seq = 4", "message 5 has a wrong running total"),
    "retired": ("UPDATE entries SET retired_by = 5 WHERE seq = 3", "message 5 has a wrong running total"),
    "retired alone": ("UPDATE entries SET retired_by = 5 WHERE seq = 1", "message 2 is retired by the wrong entry"),
    "retired by itself": ("UPDATE entries SET retired_by = 4 WHERE seq = 4", "message 4 is retired by the wrong entry"),
    "retired by the future": ("UPDATE entries SET retired_by = 60 WHERE seq = 4", "message 4 is retired by the future"),
    "retired by the past": (
        "UPDATE entries SET retired_by = 2 WHERE seq = 4",
        "message 4 is retired by the wrong entry",
    ),
    "the session's total": ("UPDATE sessions SET total = total + 1", COUNTERS),
    "the session's messages": ("UPDATE sessions SET messages = messages + 1", COUNTERS),
    "the session's turn": ("UPDATE sessions SET counts = CAST(json_set(counts, '$[1]', 99) AS BLOB)", COUNTERS),
    "the session's digest": ("UPDATE sessions SET digest = zeroblob(16)", COUNTERS),
    "the session's anchor": ("UPDATE sessions SET counts = CAST(json_set(counts, '$[3]', 3) AS BLOB)", COUNTERS),
    "no JSON": ("UPDATE entries SET payload = x'7b' WHERE seq = 1", "message 1 is damaged"),
}
"""What is changed in the file, and what is reported: where to look first."""


@pytest.mark.parametrize("what", TAMPERING)
async def test_verify_detects_changed_fields(database: Path, what: str) -> None:
    """One field of the file is changed by hand: `StoreCorrupt` names the session, and where it no longer fits."""
    store = await open_store(f"sqlite:///{database}", tenant="acme")
    await store.create(session())
    log = [user("hello"), calls("x"), result("x"), assistant("yes"), user("old")]
    await store.append(REF, Append(entries=log, timestamp=2))
    await store.append(REF, Append(entries=[user("new")], retire_from=4, timestamp=2))
    assert await verify(store, REF, page=2) == 6
    tamperer = apsw.Connection(str(database))
    statement, says = TAMPERING[what]
    tamperer.execute(statement)
    tamperer.close()
    with pytest.raises(StoreCorrupt, match=rf"session 's1'.*: {says}"):
        await verify(store, REF, page=2)
    await store.close()
