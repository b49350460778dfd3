"""PostgreSQL goes by an index, whatever it knows of the tables: nothing, what was in them once, or what is."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.recall.base import Batch, Document, Filters, Lookup, Progress, Source, Space
from holdfast.stores import open_store
from holdfast.stores.base import Store
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.contract.kit import assistant, user
from tests.service.matching_kit import find_session
from tests.stores.servers import reach
from tests.waits import block_until

FEW, MANY = 20, 1_000
"""Sessions."""
AGAIN = 8
"""Times that a statement is run until its plan is one for any parameters."""
MOST = 2_000
"""Rows that may be looked at by all turns together: a quarter of what one statement of theirs would, that looked at every session."""
OPENING = (user("Hi"), assistant("Hello! What can I do for you?"))


async def _open(store: Store, name: str) -> None:
    """A session that begins as all others do."""
    await store.replace(NewSession(id=name, user_id="ann", timestamp=1), OPENING, fresh=True)


async def _go_on(store: Store, name: str) -> None:
    """A turn of one session, and a request that could be another's, too."""
    ref = SessionRef("ann", name)
    await store.get(ref)
    await store.append(ref, Append(entries=[user("a"), assistant("b")], timestamp=2))
    for user_id in ("ann", None):
        await store.list(user_id=user_id, limit=5)
    assert len(await store.entries_at("ann", [(name, 0), (name, 1)], around=1)) == 2
    await find_session(store, "ann", [new.message for new in (*OPENING, user("something else"))])


def _count_rows(url: str, connected: int) -> int:
    """Rows that were read from tables, by connections that have ended: they tell it then."""
    server = reach("postgres")
    block_until(lambda: len(server.connections(url)) == connected)
    sql = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables WHERE schemaname = current_schema()"
    ((rows,),) = server.in_place(url, sql)
    return int(rows)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("counted", ["never", "when there were few", "now"])
async def test_no_turn_scans_all_sessions(postgres_url: str, counted: str, late: bool) -> None:
    """Plans are kept, too: what was quick among few sessions would be slow among many. A connection that comes late has none."""
    ask = partial(reach("postgres").in_place, postgres_url)
    filling = await open_store(postgres_url, tenant="acme")
    await asyncio.gather(*(_open(filling, f"few{at}") for at in range(FEW)))
    if counted == "when there were few":
        await anyio.to_thread.run_sync(ask, "ANALYZE sessions, profiles, entries")
    turns = await open_store(f"{postgres_url}&pool=1", tenant="acme")
    for _ in range(0 if late else AGAIN):
        await _go_on(turns, "few1")
    await asyncio.gather(*(_open(filling, f"many{at}") for at in range(MANY)))
    await filling.close()
    if counted == "now":
        await anyio.to_thread.run_sync(ask, "ANALYZE sessions, profiles, entries")
    before = await anyio.to_thread.run_sync(_count_rows, postgres_url, 1)
    for at in range(AGAIN):
        await _go_on(turns, f"many{at}")
    await turns.close()
    assert await anyio.to_thread.run_sync(_count_rows, postgres_url, 0) - before < MOST


async def test_a_list_is_read_in_order(postgres_url: str) -> None:
    """Also of a table that is large, and of which nothing is known yet: other indexes look as good then."""
    server = reach("postgres")
    store = await open_store(postgres_url, tenant="acme")
    await _open(store, "s")
    await store.close()

    def copy() -> None:
        sql = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = 'sessions'"
        names = [name for (name,) in server.in_place(postgres_url, sql) if name != "pk"]
        columns = ", ".join("id || convert_to(number::text, 'UTF8')" if name == "id" else name for name in names)
        copies = f"SELECT {columns} FROM sessions, generate_series(1, {6 * MANY}) AS number"
        server.in_place(postgres_url, f"INSERT INTO sessions ({', '.join(names)}) {copies}")

    await anyio.to_thread.run_sync(copy)
    store = await open_store(f"{postgres_url}&pool=1", tenant="acme")
    before = await anyio.to_thread.run_sync(_count_rows, postgres_url, 1)
    for descending in (False, True):
        assert len((await store.list(limit=5, descending=descending)).sessions) == 5
    await store.close()
    assert await anyio.to_thread.run_sync(_count_rows, postgres_url, 0) - before < MOST


@pytest.mark.parametrize("counted", ["never", "now"])
async def test_a_lookup_reads_only_the_documents_it_returns(postgres_url: str, counted: str) -> None:
    """Not all of the space, also where nothing is known of the tables yet: a server may never count them."""
    server, space = reach("postgres"), Space("talk", "ann")
    filling = await open_index(postgres_url, tenant="acme")
    for at in range(MANY // 20):
        source, progress = Source(f"s{at}", "i"), Progress(identity="i", version=100, next_seq=100, talk=100)
        put = [
            Document(
                seq=seq, place=seq, role="user", at=seq, digest=bytes(16), length=2, terms={"all": 1, f"w{seq}": 1}
            )
            for seq in range(100)
        ]
        await filling.write(space, Batch(source=source, progress=progress, put=put))
    await filling.close()
    if counted == "now":
        await anyio.to_thread.run_sync(server.in_place, postgres_url, "ANALYZE index_documents, index_sources")
    index = await open_index(f"{postgres_url}&pool=1", tenant="acme")
    before = await anyio.to_thread.run_sync(_count_rows, postgres_url, 1)
    for at in range(AGAIN):
        found = await index.lookup(Lookup(space=space, terms=(f"w{at}",)))
        assert len(found.found) == MANY // 20
        places = [(one.source, one.place + 1) for one in found.found]
        assert len(await index.near(Lookup(space=space), places)) == MANY // 20
    named = Filters(sessions=("s1", "s2"))
    assert len((await index.lookup(Lookup(space=space, filters=named))).found) == 200
    await index.close()
    assert await anyio.to_thread.run_sync(_count_rows, postgres_url, 0) - before < MOST + AGAIN * MANY // 4
