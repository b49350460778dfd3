"""Round trips to a database server, by operation: how often the store waits for an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.corpus import make_message, wait_for_index
from benchmarks.databases import open_database
from benchmarks.run import Run
from benchmarks.tables import Column, Figure, Table, format_count
from benchmarks.timing import report
from holdfast.domain.memory import Owner
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.holdfast import Holdfast
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession

USER, LENGTH = "ann", 40
_SERVERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "PostgreSQL": ("holdfast.stores.postgres_connection", ("fetch", "execute", "many")),
    "MariaDB": ("holdfast.stores.mysql_connection", ("_run",)),
}
"""The module of each server's connections, and the methods that wait for the server."""
Operation = Callable[[Holdfast], Awaitable[object]]


async def measure(run: Run) -> list[Table]:
    """Count the round trips of each operation on each server that is reachable."""
    rows: dict[str, dict[str, Figure]] = {name: {"what": name} for name in _OPERATIONS}
    servers = list[str]()
    for server in _SERVERS:
        async with open_database(server, run.folder) as url:
            if url is None:
                continue
            report(f"trips: {server}")
            servers.append(server)
            async with Holdfast(url) as hf:
                await _store_session(hf)
                for name, operation in _OPERATIONS.items():
                    await operation(
                        hf
                    )  # the first one may create rows of the owner, and read what is remembered afterwards
                    await wait_for_index(hf)
                    with _count_trips(server) as count:
                        await operation(hf)
                        rows[name][server] = count()
    columns = [Column("what", ""), *(Column(name, name, format_count) for name in servers)]
    return [Table("trips", "Round trips of an operation, transactions included", columns, [*rows.values()], _NOTES)]


_NOTES = (f"The session has {LENGTH} messages. Each operation ran once before it was counted.",)


@contextmanager
def _count_trips(server: str) -> Iterator[Callable[[], int]]:
    """Count what connections to a server send, until the block ends."""
    module, methods = _SERVERS[server]
    connection: Any = __import__(module, fromlist=["Connection"]).Connection
    before, trips = {name: getattr(connection, name) for name in methods}, 0

    def wrap(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*given: Any, **options: Any) -> Any:
            nonlocal trips
            trips += 1
            return await method(*given, **options)

        return counted

    for name, method in before.items():
        setattr(connection, name, wrap(method))
    try:
        yield lambda: trips
    finally:
        for name, method in before.items():
            setattr(connection, name, method)


# -- the operations ----------------------------------------------------------------

REF = SessionRef(USER, "s")


async def _store_session(hf: Holdfast) -> None:
    await hf.store.create(NewSession(id=REF.id, user_id=USER, timestamp=hf.clock()))
    new = [NewEntry(message=make_message(at), tokens=60, timestamp=hf.clock()) for at in range(LENGTH)]
    await hf.store.append(REF, Append(entries=new, timestamp=hf.clock()))
    await wait_for_index(hf)


async def _create(hf: Holdfast) -> None:
    await hf.store.create(NewSession(id=f"s{hf.clock()}", user_id=USER, timestamp=hf.clock()))


async def _append(hf: Holdfast, **fields: Any) -> None:
    entry = NewEntry(message=Message(role="user", content="Where is my order?"), tokens=8, timestamp=hf.clock())
    await hf.store.append(REF, Append(entries=(entry,), timestamp=hf.clock(), **fields))


async def _search(hf: Holdfast) -> None:
    assert len((await hf.search("order shipped", user_id=USER, limit=10)).hits) == 10, "all messages are about orders"


async def _remember(hf: Holdfast) -> None:
    await hf.memories.remember(f"Ann's order is number {hf.clock()}.", user_id=USER)


_OPERATIONS: Mapping[str, Operation] = {
    "create a session": _create,
    "read a session": lambda hf: hf.store.get(REF),
    "append a message": _append,
    "append, with state of the user": partial(_append, state_delta={"user:language": "de"}),
    "read a window": lambda hf: hf.store.window(REF, None),
    "read ten messages": lambda hf: hf.store.entries(REF, limit=10),
    "list sessions": lambda hf: hf.store.list(user_id=USER),
    "change state of a user": lambda hf: hf.store.change_state(USER, {"language": "de"}, timestamp=hf.clock()),
    "read state of a user": lambda hf: hf.store.state(USER),
    "store a memory": _remember,
    "read memories": lambda hf: hf.store.memories(Owner("user", USER)),
    "search, ten hits": _search,
    "pin a message": lambda hf: hf.store.annotate(REF, 1, pinned=True),
    "erase a message": lambda hf: hf.store.erase(REF, 2),
}
