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

TAMPERING = {
    "content": "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'hello', 'hallo') AS BLOB) WHERE seq = 0",
    "tool arguments": "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'look', 'loot') AS BLOB)",
    "a retired message": "UPDATE entries SET payload = CAST(replace(CAST(payload AS TEXT), 'old', 'odd') AS BLOB)",
    "a digest": "UPDATE entries SET digest = zeroblob(16) WHERE seq = 3",
    "a gap": "DELETE FROM entries WHERE seq = 2",
    "the last entry": "DELETE FROM entries WHERE seq = 5",
    "two swapped": "UPDATE entries SET payload = (SELECT payload FROM entries AS e WHERE e.seq = 3 - entries.seq)"
    " WHERE seq IN (0, 3)",
    "a count": "UPDATE entries SET tokens = tokens + 1 WHERE seq = 1",
    "a total": "UPDATE entries SET total = total + 1 WHERE seq = 5",
    "a unit": "UPDATE entries SET unit_back = 0 WHERE seq = 2",
    "a turn": "UPDATE entries SET turn_id = 7 WHERE seq = 1",
    "revived": "UPDATE entries SET retired_by = NULL WHERE seq = 4",
    "retired": "UPDATE entries SET retired_by = 5 WHERE seq = 3",
    "retired alone": "UPDATE entries SET retired_by = 5 WHERE seq = 1",
    "retired by itself": "UPDATE entries SET retired_by = 4 WHERE seq = 4",
    "retired by the future": "UPDATE entries SET retired_by = 60 WHERE seq = 4",
    "retired by the past": "UPDATE entries SET retired_by = 2 WHERE seq = 4",
    "the session's total": "UPDATE sessions SET total = total + 1",
    "the session's messages": "UPDATE sessions SET messages = messages + 1",
    "the session's turn": "UPDATE sessions SET turn_id = turn_id + 1",
    "the session's digest": "UPDATE sessions SET digest = zeroblob(16)",
    "the session's anchor": "UPDATE sessions SET anchor = 3",
    "no JSON": "UPDATE entries SET payload = x'7b' WHERE seq = 1",
}
SAYS = {
    "content": "message 0 has a wrong digest: it or one before it was changed",
    "tool arguments": "message 1 has a wrong digest: it or one before it was changed",
    "a retired message": "message 4 has a wrong digest: it or one before it was changed",
    "a digest": "message 3 has a wrong digest: it or one before it was changed",
    "a gap": "message 2 is missing",
    "the last entry": "message 5 is missing",
    "two swapped": "message 0 has a wrong digest: it or one before it was changed",
    "a count": "message 1 has a wrong running total",
    "a total": "message 5 has a wrong running total",
    "a unit": "message 2 is in a wrong unit",
    "a turn": "message 2 is in an earlier turn than the message before it",
    "revived": "message 5 has a wrong running total",
    "retired": "message 5 has a wrong running total",
    "retired alone": "message 2 is retired by the wrong entry",
    "retired by itself": "message 4 is retired by the wrong entry",
    "retired by the future": "message 4 is retired by the future",
    "retired by the past": "message 4 is retired by the wrong entry",
}
"""What is told of it: where to look first. Of the others: that the session's counters are wrong."""


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
    tamperer.execute(TAMPERING[what])
    tamperer.close()
    with pytest.raises(StoreCorrupt) as told:
        await verify(store, REF, page=2)
    if what == "no JSON":
        assert "message 1 is damaged" in str(told.value)
    else:
        assert str(told.value) == f"session 's1': {SAYS.get(what, 'its counters do not match its log')}"
    await store.close()
