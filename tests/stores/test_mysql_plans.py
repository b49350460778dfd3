"""A page from the middle of a list: MySQL begins at its place, and reads no more than it gives."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import anyio
import pytest

from holdfast.domain.session import SessionRef
from holdfast.recall.base import Source, Space
from holdfast.stores import open_store
from holdfast.stores.indexes import open_index
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from holdfast.stores.sql.statements import load_statements
from tests.contract.index_kit import batch, document
from tests.contract.kit import assistant, session, user
from tests.stores.plans_kit import with_values
from tests.stores.servers import reach

MANY, LIMIT = 300, 10
MOST = 8 * LIMIT
"""Rows that are read for a page: each from its table, by its name, and what belongs to it; the last of all is far from the middle."""


async def _read(url: str, name: str, *params: Any) -> int:
    """Rows that a statement gives, and that the server read for it."""
    ask = partial(reach("mysql").in_place, url)

    def count_reads() -> int:
        return sum(int(row[1]) for row in ask("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    def both() -> int:
        before = count_reads()
        assert len(ask(with_values(load_statements("mysql")[name], params))) >= LIMIT
        return count_reads() - before

    return await anyio.to_thread.run_sync(both)


@pytest.mark.parametrize("tied", [False, True])
async def test_list_pages_start_at_their_position(mysql_url: str, tied: bool) -> None:
    """Also where all sessions were changed in the same millisecond."""
    store = await open_store(mysql_url, tenant="acme")
    new = [NewSession(id=f"s{at:03}", user_id="ann", timestamp=1 if tied else at) for at in range(MANY)]
    await asyncio.gather(*(store.create(one) for one in new))
    await store.close()
    middle = new[MANY // 2]
    behind = (middle.timestamp, "ann", middle.id, None, None, LIMIT, 0, 0, 1)
    for name in ("list_newest", "list_oldest", "list_newest_of_user", "list_oldest_of_user"):
        assert await _read(mysql_url, name, "acme", *behind) < MOST, name


async def test_source_pages_start_at_their_position(mysql_url: str) -> None:
    """Those of a space with many, and those of many spaces."""
    index = await open_index(mysql_url, tenant="acme")
    for at in range(MANY):
        for space, name in ((Space("talk", "ann"), f"s{at:03}"), (Space("talk", f"u{at:03}"), "s")):
            await index.write(space, batch(document(0, "x"), source=Source(name, "i")))
    await index.close()
    server = reach("mysql")
    sql = "SELECT number FROM index_spaces WHERE name = 'ann'"
    ((number,),) = await anyio.to_thread.run_sync(server.in_place, mysql_url, sql)
    assert await _read(mysql_url, "index_sources_of_after", number, f"s{MANY // 2}", 0, LIMIT) < MOST
    assert await _read(mysql_url, "index_sources_after", "acme", "talk", f"u{MANY // 2}", 16, LIMIT) < MOST + 16 * 8


async def test_digests_are_looked_up_in_their_index(mysql_url: str) -> None:
    """MySQL is told in which order it has to go, and sorts nothing: whatever it thinks of the tables."""
    store = await open_store(mysql_url, tenant="acme")
    for ref in (SessionRef("ann", "s1"), SessionRef("ann", "s2")):
        await store.create(session(ref))
        await store.append(ref, Append(entries=[user("a"), assistant("b")], timestamp=2))
    await store.close()
    wanted: dict[str, Any] = {"mark_last": '[[1, "00"]]', "mark_places": 1, "alias_last": "[1]", "alias_places": 1}
    for name, marks in wanted.items():
        sql = with_values(load_statements("mysql")[name], ("acme", "ann", None, marks, 16, b"digest"))
        plan = await anyio.to_thread.run_sync(reach("mysql").in_place, mysql_url, f"EXPLAIN {sql}")
        assert [row[2] for row in plan if f"entries_{name.partition('_')[0]}" in row] == ["e"], name
        assert not [row for row in plan if "filesort" in str(row[-1]) or "temporary" in str(row[-1])], name
