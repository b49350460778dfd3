"""Vector search in PostgreSQL with pgvector: for each number of dimensions a table of float16 vectors with an HNSW graph.

The table `index_vectors` remains the source of truth, so removing the extension only makes searches slower. The vectors that
the server finds are scored again from their exact values, so similarities are exact.

The graph is not used in a small space, or if the search names sources; all vectors are then compared. The graph is also not used
if a space is a small part of the table, because a search of the graph would rarely meet vectors of this space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from struct import unpack
from typing import Any, Final, Protocol

from holdfast.errors import StoreError
from holdfast.recall.base import Lookup, Similar, Source, Space, Vectored
from holdfast.recall.vectors import compute_similarities
from holdfast.stores.logic.index import LogicIndex
from holdfast.stores.logic.steps import Database, Row, Rows
from holdfast.stores.sql.remote import UPGRADING, Retryable
from holdfast.stores.sql.statements import compile_part

ENGINE: Final = "pgvector-hnsw"
OLDEST: Final = (0, 8)
"""The first version with iterative scans, in which a search of the graph continues until enough vectors pass the filter."""
WIDEST: Final = 4000
"""Maximum number of dimensions that a graph supports."""
SMALL: Final = 10_000
"""In a space with at most this many documents, all vectors are compared."""
SCAN_VECTORS: Final = 20_000
"""Maximum number of vectors that a search of the graph visits."""
FILLING: Final = 500
"""Number of vectors that are copied into a new table per round trip."""
_NUMBER_BYTES: Final = 4
_SETTINGS: Final = (
    ("hnsw.iterative_scan", "relaxed_order"),
    ("hnsw.ef_search", "200"),
    ("hnsw.max_scan_tuples", str(SCAN_VECTORS)),
)
_PASSES: Final = f"d.model = $1 AND d.space = $2 AND d.channel = $3 AND {compile_part('postgres', 'filters', first=4)}"


class Connection(Protocol):
    """A connection that runs SQL text."""

    async def fetch(self, sql: str, params: Row) -> Rows:
        """Run SQL text and return its rows."""
        ...

    async def execute(self, sql: str, *, patience: float | None = None) -> None:
        """Run statements that have no parameters and return no rows."""
        ...


# -- the extension ---------------------------------------------------------------


class Extension:
    """The pgvector extension of an open database.

    Args:
        begin_change: opens a transaction for a schema change. While it is open, no other process can change the schema.
    """

    def __init__(self, begin_change: Callable[[Any], AbstractAsyncContextManager[None]]) -> None:
        self.schema: str | None = None
        """The schema that contains the extension; None if the extension cannot be used."""
        self._begin_change = begin_change
        self._prepared: set[int] = set()

    async def set_up(self, connection: Connection) -> bool:
        """Find or install the extension, and create the tables for stored vectors. Return True if the extension can be used."""
        schema = await _find_schema(connection)
        if schema is None and await connection.fetch(
            "SELECT 1 FROM pg_available_extensions WHERE name = $1", ("vector",)
        ):
            with suppress(StoreError, Retryable):  # this user has no right to, or another process is doing it
                await connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
            schema = await _find_schema(connection)
        self.schema = schema
        if await self.configure(connection):
            sql = "SELECT DISTINCT dimensions FROM index_models WHERE dimensions BETWEEN 1 AND $1"
            for row in await connection.fetch(sql, (WIDEST,)):
                await self.create_table(connection, row[0])
        return schema is not None

    async def configure(self, connection: Connection) -> bool:
        """Append the extension's schema to the search path of a connection. Return False if the extension cannot be used."""
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
        """Return True if there can be a table for vectors with this number of dimensions, and the table may not exist yet."""
        return self.schema is not None and 0 < dimensions <= WIDEST and dimensions not in self._prepared

    async def create_table(self, connection: Connection, dimensions: int) -> None:
        """Create the table for vectors with this number of dimensions, unless it exists."""
        if not await _has_table(connection, dimensions):
            async with self._begin_change(connection):
                if not await _has_table(connection, dimensions):
                    await _create_table(connection, dimensions)
        self._prepared.add(dimensions)


async def _find_schema(connection: Connection) -> str | None:
    """Return the schema that contains the extension; None if the extension is not installed or its version is too old."""
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
    """Create the table for vectors with this number of dimensions, copy the stored vectors into it, and build the graph."""
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
    """Return the statement that stores a vector. Its parameters are the document's id and the vector's numbers."""
    return (
        f"INSERT INTO {_format_table_name(dimensions)} (id, embedding) VALUES ($1, $2::real[]::halfvec)"  # noqa: S608  # a number
        " ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding"
    )


def group_by_dimension(rows: Sequence[Row]) -> dict[int, list[Row]]:
    """Convert rows of `index_vector_put` to parameters of `format_insert`, grouped by number of dimensions.

    Vectors with more than `WIDEST` dimensions are left out.
    """
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
    """Return ids and similarities of the nearest documents, the most similar first. The parameters are those of `index_nearest`."""
    *_, vector, limit = params
    dimensions = len(vector) // _NUMBER_BYTES
    search_params = (*params[:11], _unpack_numbers(vector), limit)
    # A generic plan would read all vectors. The planner uses the graph only if it sees that most vectors pass the filter.
    await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
    if params[3] is not None:
        rows = await connection.fetch(_format_source_search(dimensions), search_params)
    elif await _is_sparse(connection, dimensions, params[1], limit):
        rows = await connection.fetch(_format_exact_search(dimensions), search_params)
    else:
        rows = await connection.fetch(_format_graph_search(dimensions), search_params)
        if len(rows) < limit:
            rows = await connection.fetch(_format_exact_search(dimensions), search_params)
    scores = compute_similarities(vector, [bytes(row[1]) for row in rows], dimensions)
    rated = [(row[0], score) for row, score in zip(rows, scores, strict=True)]
    return sorted(rated, key=lambda one: (-one[1], -one[0]))


async def _is_sparse(connection: Connection, dimensions: int, space: int, limit: int) -> bool:
    """Return True if so few of the table's vectors are from this space that a search of the graph would not find enough of them."""
    sql = (
        "SELECT s.talk_documents, c.reltuples::bigint FROM index_spaces AS s, pg_class AS c"
        " WHERE s.number = $1 AND c.oid = $2::text::regclass"
    )
    rows = await connection.fetch(sql, (space, _format_table_name(dimensions)))
    documents, total = rows[0] if rows else (0, 0)
    return bool(documents <= SMALL or limit * max(total, documents) > documents * SCAN_VECTORS // 2)


def _format_search(dimensions: int, tables: str, *, fence: str = "") -> str:
    return f"""SELECT v.id, v.data FROM (
    SELECT n.id FROM {tables}
    WHERE {_PASSES}
    ORDER BY (n.embedding <#> $12::real[]::halfvec({dimensions})){fence} LIMIT $13
) AS near JOIN index_vectors AS v ON v.id = near.id"""  # noqa: S608  # a number and constants


def _format_graph_search(dimensions: int) -> str:
    return _format_search(dimensions, f"{_format_table_name(dimensions)} AS n JOIN index_documents AS d ON d.id = n.id")


def _format_exact_search(dimensions: int) -> str:
    """Return the SQL of a search that compares all vectors. `+ 0` keeps the planner from using the graph for the order."""
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
    """A database whose server can compare vectors."""

    async def create_table(self, dimensions: int) -> None:
        """Create the table for vectors with this number of dimensions, unless it exists."""
        ...


class PgvectorIndex(LogicIndex):
    """An index of one tenant (`holdfast.recall.base.Index`). The database server compares the vectors, not this process."""

    database: VectorDatabase

    def _is_compared(self, dimensions: int) -> bool:
        return 0 < dimensions <= WIDEST

    async def put_vectors(self, space: Space, source: Source, model: str, vectors: Sequence[Vectored]) -> int:
        """Store vectors, after creating the table for their number of dimensions."""
        await self._prepare(vectors[0].vector if vectors else b"")
        return await super().put_vectors(space, source, model, vectors)

    async def similar(self, lookup: Lookup, model: str, vector: bytes) -> Sequence[Similar]:
        """Search for similar vectors, after creating the table for their number of dimensions."""
        await self._prepare(vector)
        return await super().similar(lookup, model, vector)

    async def _prepare(self, vector: bytes) -> None:
        if not self._closed:
            await self.database.create_table(len(vector) // _NUMBER_BYTES)
