"""How PostgreSQL compares vectors where it has the extension pgvector: a table of float16 for each dimension, and a graph over it.

`index_vectors` stays what is kept and given back: with the extension gone nothing is lost but speed. What the server finds is
rated again by those, so similarities are exact. In a small space, of a few sources, or where a space is a small part of all
there is, every vector is compared: in the graph they would be far between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from heapq import nlargest
from struct import unpack
from typing import Any, Final, Protocol

from holdfast.errors import StoreError
from holdfast.recall.base import Lookup, Similar, Source, Space, Vectored
from holdfast.recall.vectors import similarities
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.steps import Database, Row, Rows
from holdfast.stores.sql.remote import UPGRADING, Retryable
from holdfast.stores.sql.statements import load_statements

ENGINE: Final = "pgvector-hnsw"
OLDEST: Final = (0, 8)
"""The first version whose graph goes on until enough pass a filter."""
WIDEST: Final = 4000
"""Numbers of the longest vector that a graph takes."""
SMALL: Final = 10_000
"""In a space with at most so many documents all vectors are compared."""
SCANNED: Final = 20_000
"""Vectors that a walk through the graph looks at, at most."""
FILLING: Final = 500
"""Vectors that are taken over at once."""
_NUMBER_BYTES: Final = 4
_SETTINGS: Final = (
    ("hnsw.iterative_scan", "relaxed_order"),
    ("hnsw.ef_search", "200"),
    ("hnsw.max_scan_tuples", str(SCANNED)),
)
_PASSES: Final = """d.model = $1 AND d.space = $2 AND d.channel = $3
      AND ($4::bytea IS NULL OR d.source IN (SELECT value::bigint FROM json_array_elements_text(convert_from($4, 'UTF8')::json) AS value))
      AND ($5::bytea IS NULL OR d.source NOT IN (SELECT value::bigint FROM json_array_elements_text(convert_from($5, 'UTF8')::json) AS value))
      AND ($6::bytea IS NULL OR d.agent IN (SELECT decode(value, 'hex') FROM json_array_elements_text(convert_from($6, 'UTF8')::json) AS value))
      AND ($7::bytea IS NULL OR d.role IN (SELECT decode(value, 'hex') FROM json_array_elements_text(convert_from($7, 'UTF8')::json) AS value))
      AND d.at >= $8 AND d.at < $9"""


class Connection(Protocol):
    """A connection that runs statements as text."""

    async def fetch(self, sql: str, params: Row) -> Rows:
        """One statement's rows."""
        ...

    async def execute(self, sql: str, *, patience: float | None = None) -> None:
        """Statements without parameters and rows."""
        ...


# -- what there is ---------------------------------------------------------------


class Extension:
    """What an opened database knows of the extension.

    Args:
        changing: makes a transaction that changes the schema, while nobody else does.
    """

    def __init__(self, changing: Callable[[Any], AbstractAsyncContextManager[None]]) -> None:
        self.schema: str | None = None
        """The one that has it; None: there is none."""
        self._changing = changing
        self._prepared: set[int] = set()

    async def set_up(self, connection: Connection) -> bool:
        """Look for it, or make it, and let vectors that are there be compared; whether a connection finds it now."""
        schema = await _find_schema(connection)
        if schema is None and await connection.fetch(
            "SELECT 1 FROM pg_available_extensions WHERE name = $1", ("vector",)
        ):
            with suppress(StoreError, Retryable):  # this user may not, or somebody else is at it
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
            schema = await _find_schema(connection)
        self.schema = schema
        if await self.configure(connection):
            sql = "SELECT DISTINCT dimensions FROM index_models WHERE dimensions BETWEEN 1 AND $1"
            for row in await connection.fetch(sql, (WIDEST,)):
                await self.create_table(connection, row[0])
        return schema is not None

    async def configure(self, connection: Connection) -> bool:
        """Let a connection find it, behind what it finds already; whether there is one."""
        if self.schema is None:
            return False
        rows = await connection.fetch("SELECT current_setting('search_path')", ())
        names, values = zip(*_SETTINGS, strict=True)
        path = f'{rows[0][0]}, "{self.schema.replace(chr(34), chr(34) * 2)}"'
        await connection.fetch(
            "SELECT set_config(name, value, false) FROM unnest($1::text[], $2::text[]) AS setting (name, value)",
            (["search_path", *names], [path, *values]),
        )
        return True

    def needs_table(self, dimensions: int) -> bool:
        """Whether vectors of so many numbers could be compared, and may not be yet."""
        return self.schema is not None and 0 < dimensions <= WIDEST and dimensions not in self._prepared

    async def create_table(self, connection: Connection, dimensions: int) -> None:
        """Let vectors of so many numbers be compared."""
        if not await _has_table(connection, dimensions):
            async with self._changing(connection):
                if not await _has_table(connection, dimensions):
                    await _create_table(connection, dimensions)
        self._prepared.add(dimensions)


async def _find_schema(connection: Connection) -> str | None:
    """The schema that has the extension, of a version that will do."""
    sql = (
        "SELECT n.nspname, x.extversion FROM pg_extension AS x JOIN pg_namespace AS n ON n.oid = x.extnamespace"
        " WHERE x.extname = $1"
    )
    rows = await connection.fetch(sql, ("vector",))
    if not rows:
        return None
    version = tuple(int(part) for part in str(rows[0][1]).split(".")[:2] if part.isdigit())
    return str(rows[0][0]) if version >= OLDEST else None


# -- tables ----------------------------------------------------------------------


def _format_table_name(dimensions: int) -> str:
    return f"index_near_{int(dimensions)}"


async def _has_table(connection: Connection, dimensions: int) -> bool:
    sql = "SELECT 1 FROM pg_tables WHERE schemaname = current_schema() AND tablename = $1"
    return bool(await connection.fetch(sql, (_format_table_name(dimensions),)))


async def _create_table(connection: Connection, dimensions: int) -> None:
    """Make the table for vectors of so many numbers, with those that are there, and a graph over them."""
    table = _format_table_name(dimensions)
    await connection.execute(
        f"CREATE TABLE {table} (id bigint PRIMARY KEY REFERENCES index_vectors (id) ON DELETE CASCADE,"
        f" embedding halfvec({dimensions}) NOT NULL);"
        f"ALTER TABLE {table} ALTER COLUMN embedding SET STORAGE {'PLAIN' if dimensions <= WIDEST // 2 else 'EXTERNAL'}"
    )
    sql = (
        "SELECT v.id, v.data FROM index_vectors AS v JOIN index_documents AS d ON d.id = v.id"
        " JOIN index_models AS m ON m.number = d.model"
        " WHERE v.id > $1 AND m.dimensions = $2 ORDER BY v.id LIMIT $3"
    )
    last = -1
    while rows := await connection.fetch(sql, (last, dimensions, FILLING)):
        for id_, data in rows:
            await connection.fetch(format_insert(dimensions), (id_, _unpack_numbers(data)))
        last = rows[-1][0]
    await connection.execute(
        f"CREATE INDEX {table}_graph ON {table} USING hnsw (embedding halfvec_ip_ops)", patience=UPGRADING
    )


def format_insert(dimensions: int) -> str:
    """The statement that keeps a vector: its document's id, and the numbers."""
    return (
        f"INSERT INTO {_format_table_name(dimensions)} (id, embedding) VALUES ($1, $2::real[]::halfvec)"  # noqa: S608  # a number
        " ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding"
    )


def group_by_dimension(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """What `format_insert` takes for rows of `index_vector_put`, by dimension."""
    found: dict[int, list[Row]] = {}
    for id_, _, data in rows:
        dimensions = len(data) // _NUMBER_BYTES
        if dimensions <= WIDEST:
            found.setdefault(dimensions, []).append((id_, _unpack_numbers(data)))
    return found


def _unpack_numbers(data: bytes) -> list[float]:
    return list(unpack(f"<{len(data) // _NUMBER_BYTES}f", data))


# -- searching -------------------------------------------------------------------


async def find_nearest(connection: Connection, params: Sequence[Any]) -> Rows:
    """See the statement `index_nearest`, whose parameters these are."""
    *_, vector, limit = params
    dimensions = len(vector) // _NUMBER_BYTES
    if dimensions > WIDEST:
        return await _scan_nearest(connection, params)
    given = (*params[:9], _unpack_numbers(vector), limit)
    # A plan for any filter would read all vectors; the graph is taken only where it is seen that most pass.
    await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
    if params[3] is not None:
        rows = await connection.fetch(_format_source_search(dimensions), given)
    elif await _is_sparse(connection, dimensions, params[1], limit):
        rows = await connection.fetch(_format_exact_search(dimensions), given)
    else:
        rows = await connection.fetch(_format_graph_search(dimensions), given)
        if len(rows) < limit:
            rows = await connection.fetch(_format_exact_search(dimensions), given)
    scores = similarities(vector, [bytes(row[1]) for row in rows], dimensions)
    rated = [(row[0], score) for row, score in zip(rows, scores, strict=True)]
    return sorted(rated, key=lambda one: (-one[1], -one[0]))


async def _scan_nearest(connection: Connection, params: Sequence[Any]) -> Rows:
    """The same of vectors that are too long to be compared there."""
    *scope, vector, limit = params
    best: list[tuple[float, int]] = []
    last = -1
    while rows := await connection.fetch(load_statements("postgres")["index_vectors_read"], (*scope, last, FILLING)):
        scores = similarities(vector, [bytes(row[1]) for row in rows], len(vector) // _NUMBER_BYTES)
        best = nlargest(limit, [*best, *zip(scores, (row[0] for row in rows), strict=True)])
        last = rows[-1][0]
    return [(id_, score) for score, id_ in best]


async def _is_sparse(connection: Connection, dimensions: int, space: int, limit: int) -> bool:
    """Whether so few of a graph's vectors are of a space that a walk would not come past enough of them."""
    sql = (
        "SELECT s.talk_documents, c.reltuples::bigint FROM index_spaces AS s, pg_class AS c"
        " WHERE s.number = $1 AND c.oid = $2::text::regclass"
    )
    rows = await connection.fetch(sql, (space, _format_table_name(dimensions)))
    documents, there = rows[0] if rows else (0, 0)
    return bool(documents <= SMALL or limit * max(there, documents) > documents * SCANNED // 2)


def _format_search(dimensions: int, tables: str, *, fence: str = "") -> str:
    return f"""SELECT v.id, v.data FROM (
    SELECT n.id FROM {tables}
    WHERE {_PASSES}
    ORDER BY (n.embedding <#> $10::real[]::halfvec({dimensions})){fence} LIMIT $11
) AS near JOIN index_vectors AS v ON v.id = near.id"""  # noqa: S608  # a number and constants


def _format_graph_search(dimensions: int) -> str:
    return _format_search(dimensions, f"{_format_table_name(dimensions)} AS n JOIN index_documents AS d ON d.id = n.id")


def _format_exact_search(dimensions: int) -> str:
    """Plus 0: no order that a graph has."""
    return _format_search(
        dimensions, f"index_documents AS d JOIN {_format_table_name(dimensions)} AS n ON n.id = d.id", fence=" + 0"
    )


def _format_source_search(dimensions: int) -> str:
    wanted = "json_array_elements_text(convert_from($4, 'UTF8')::json) AS wanted"
    documents = "index_documents AS d ON d.source = wanted.value::bigint"
    return _format_search(
        dimensions, f"{wanted} JOIN {documents} JOIN {_format_table_name(dimensions)} AS n ON n.id = d.id", fence=" + 0"
    )


# -- the handle ------------------------------------------------------------------


class VectorDatabase(Database, Protocol):
    """A database that lets the server compare vectors."""

    async def create_table(self, dimensions: int) -> None:
        """Let vectors of so many numbers be compared."""
        ...


class PgvectorIndex(LogicIndex):
    """A handle of one tenant; see `holdfast.recall.base.Index`."""

    database: VectorDatabase

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        """See `Index.put_vectors`."""
        await self._prepare(vectors[0].vector if vectors else b"")
        return await super().put_vectors(space, source, model, vectors)

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        """See `Index.similar`."""
        await self._prepare(vector)
        return await super().similar(lookup, model, vector)

    async def _prepare(self, vector: bytes) -> None:
        if not self._closed:
            await self.database.create_table(len(vector) // _NUMBER_BYTES)
