"""PostgreSQL goes by an index, whatever it knows of the tables: nothing, what was in them once, or what is."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.recognition.recognising import recognised
from holdfast.stores import open_store
from holdfast.stores.base import Append, NewSession, Store
from holdfast.testing.contract.kit import assistant, user
from tests.stores.servers import reached
from tests.waiting import blocked_until

FEW, MANY = 20, 1_000
"""Sessions."""
AGAIN = 8
"""Times that a statement is run until its plan is one for any parameters."""
MOST = 2_000
"""Rows that may be looked at by all turns together: half of what one statement would read that looked at every session."""


async def _open(store: Store, name: str) -> None:
    """A session that begins as all others do."""
    opening = [user("Hi"), assistant("Hello! What can I do for you?")]
    await store.replace(NewSession(id=name, user_id="ann", timestamp=1), opening, fresh=True)


async def _go_on(store: Store, name: str) -> None:
    """A turn of one session, and a request that could be another's, too."""
    ref = SessionRef("ann", name)
    await store.get(ref)
    await store.append(ref, Append(entries=[user("a"), assistant("b")], timestamp=2))
    await store.list(user_id="ann", limit=5)
    messages = [new.message for new in (user("Hi"), assistant("Hello! What can I do for you?"), user("something else"))]
    await recognised(store, "ann", messages)


def _looked_at(url: str, connected: int) -> int:
    """Rows that were read from tables, by connections that have ended: they tell it then."""
    server = reached("postgres")
    blocked_until(lambda: len(server.connections(url)) == connected)
    sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE schemaname = current_schema()"
    ((rows,),) = server.in_place(url, sql)
    return int(rows)


@pytest.mark.parametrize("counted", ["never", "when there were few", "now"])
async def test_no_turn_looks_at_all_sessions(postgres_url: str, counted: str) -> None:
    """Plans are kept, too: what was quick among few sessions would be slow among many."""
    ask = partial(anyio.to_thread.run_sync, reached("postgres").in_place, postgres_url)
    filling, turns = [await open_store(f"{postgres_url}&pool=1", tenant="acme") for _ in range(2)]
    await asyncio.gather(*(_open(filling, f"few{at}") for at in range(FEW)))
    if counted == "when there were few":
        await ask("ANALYZE sessions, profiles, entries")
    for _ in range(AGAIN):
        await _go_on(turns, "few1")
    await asyncio.gather(*(_open(filling, f"many{at}") for at in range(MANY)))
    await filling.close()
    if counted == "now":
        await ask("ANALYZE sessions, profiles, entries")
    before = await anyio.to_thread.run_sync(_looked_at, postgres_url, 1)
    for at in range(AGAIN):
        await _go_on(turns, f"many{at}")
    await turns.close()
    looked_at = await anyio.to_thread.run_sync(_looked_at, postgres_url, 0) - before
    assert looked_at < MOST
