"""The dialects of SQL say the same: statements, parameters, migrations, tables and columns."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest

import holdfast.stores
from holdfast.domain.session import SessionRef
from holdfast.stores import open_store
from holdfast.stores.log import Append
from holdfast.stores.sql.fused_append import fuse_statements
from holdfast.stores.sql.migrations import load_migrations
from holdfast.stores.sql.statements import load_statements, read_declarations
from tests.contract.kit import assistant, session, user
from tests.stores.plans_kit import LISTS, ON_A_TURNS_PATH, planning, with_values
from tests.stores.servers import Server, reach

DIALECTS = ("postgres", "mysql")
EXTRA = {
    *("session_get_lock", "learned_get_lock", "ending_get_lock", "artifact_name_get_lock", "scope_get_lock"),
    "session_guard",
    "session_get_locked",
    *("memory_owner_get_lock", "record_owner_get_lock"),
    *("index_space_get_lock", "index_spaces_lock", "index_models_lock", "index_model_delete_lock"),
}
"""Statements for locks, which SQLite with its one writer does not need."""
VIEWS = {"session_rows", "entry_rows", "compaction_rows", "artifact_rows"}
ONLY_SQLITE = {("entries", "pk")}
"""A row's own number: elsewhere entries are found by session and `seq` alone."""
ONLY_MYSQL = {("records", "searched")}
"""In place of a partial index, which MySQL has not."""
OTHERWISE = {"index_posting_delete": ("INSERT", "DELETE")}
"""What SQLite does, and what the others do in its place: a row of its full-text table is deleted by an insertion."""
WITHOUT_INDEX = {("mysql", "entries_retired")}
"""An index of some rows only, which MySQL has not."""
POSTINGS = {
    "sqlite": {
        "index_postings": {"tokens"},
        "index_postings_data": {"id", "block"},
        "index_postings_idx": {"segid", "term", "pgno"},
        "index_postings_config": {"k", "v"},
    },
    "postgres": {"index_postings": {"id", "tokens"}},
    "mysql": {"index_postings": {"id", "word"}},
}
"""The engines' own: what posting lists are kept in."""
SCOPES = {"tenant", "session", "owner", "pk", "space", "source"}
"""Columns that bind a statement to a tenant, or to what was found under one."""
INDEX_SCOPES = {
    "number": {
        *("index_space_add", "index_space_rename", "index_space_delete", "index_source_put", "index_source_delete"),
        *("index_sources_of_after", "index_model_delete", "index_model_delete_lock"),
    },
    "model": {"index_model_of", "index_model_count", "index_pending", "index_documents_model", "index_vectors_at"},
    "id": {
        "index_documents_delete",
        "index_posting_put",
        "index_posting_delete",
        "index_vector_put",
        "index_vectors_delete",
    },
}
"""Statements of an index that go by the number of a space, a source or a model, or by those of documents, which were found under one."""
BY_WORDS = {"index_postings_read", "index_postings_newest", "index_postings_passing"}
"""Those that go by words, which begin with the number of their space."""
_GIVEN = r"(?:[?$]\d+|wanted\.\w+)"
_COMPARED = re.compile(
    rf"\b(\w+)\s*(?:=|>=|<=|>|<|\bIN\b)\s*(?:(?!\b(?:AND|OR|WHERE|SET|WHEN|THEN|LIMIT)\b|[,=<>]).)*?{_GIVEN}", re.DOTALL
)
_TUPLES = re.compile(rf"\(([\w., ]+)\)\s*(?:=|>|<|\bIN\b)\s*\(+\s*{_GIVEN}")
_INSERTED = re.compile(r"INSERT INTO \w+\s*(?:AS \w+\s*)?\(([\w,`\s]+)\)")


def _parameters(sql: str) -> set[int]:
    return {int(number) for number in re.findall(r"[?$](\d+)", sql)}


def _bound(sql: str) -> set[str]:
    """Columns that a statement gives a value, or compares with one that it was given; what it only reads is none."""
    bound = set(_COMPARED.findall(sql))
    for some in (*_TUPLES.findall(sql), *_INSERTED.findall(sql)):
        bound |= {name.strip(" `\n").rpartition(".")[2] for name in some.split(",")}
    return {"id" if name == "rowid" else name for name in bound}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_statements_have_the_same_names_and_parameters(dialect: str) -> None:
    sqlite, other = load_statements("sqlite"), load_statements(dialect)
    assert set(other) - EXTRA == set(sqlite)
    for name, sql in sqlite.items():
        assert _parameters(other[name]) == _parameters(sql) == set(range(1, len(_parameters(sql)) + 1)), name
        does = sql.split()[0], other[name].split()[0]
        assert does == OTHERWISE.get(name, (does[0], does[0])), name


@pytest.mark.parametrize("file", ["common.sql", *(f"{dialect}/overrides.sql" for dialect in ("sqlite", *DIALECTS))])
def test_statements_use_the_parameters_that_they_declare(file: str) -> None:
    common = read_declarations("common.sql")
    for name, one in read_declarations(file).items():
        text = one.text
        while re.search(r"\{\w+\}", text):
            text = re.sub(r"\{(\w+)\}", lambda found: common[found[1]].text, text)
        used = set(re.findall(r"(?<!:):([a-z_][a-z_0-9]*)", text))
        parameters = set((common.get(name) or one).parameters)
        assert used == parameters or not one.text, name


def _list_names_in_code() -> set[str]:
    """What the code of the stores may name a statement: its strings, and two of them joined."""
    found: set[str] = set()
    for file in Path(holdfast.stores.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"\w+", node.value):
                found.add(node.value)
    return found


def test_every_statement_is_used() -> None:
    """By its name, or by a name that is put together of several strings; a lock by what it locks for."""
    words = _list_names_in_code()

    def is_named(name: str) -> bool:
        return name in words or any(name[:at] in words and is_named(name[at:]) for at in range(1, len(name)))

    for dialect in ("sqlite", *DIALECTS):
        assert not [
            name
            for name in load_statements(dialect)
            if not is_named(name.removesuffix("_lock").removesuffix("_locked"))
        ]


@pytest.mark.parametrize("dialect", ["sqlite", *DIALECTS])
def test_statements_are_limited_to_one_tenant_or_row(dialect: str) -> None:
    """None reads or changes rows of more than a tenant, or of what was found under one: it is told which, or which row."""
    narrower = {name: column for column, names in INDEX_SCOPES.items() for name in names}
    for name, sql in load_statements(dialect).items():
        if name in BY_WORDS:
            assert re.search(r"\btokens @@|\bMATCH \(?(?:iif\()?\?1|\bword\b", sql), name
        elif name in narrower:
            assert narrower[name] in _bound(sql), name
            assert not _bound(sql) & SCOPES, f"{name} keeps to more than it is listed for"
        elif not name.startswith("ping"):
            assert _bound(sql) & SCOPES, name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_migrations_have_the_same_numbers_and_names(dialect: str) -> None:
    """So a schema's number means the same everywhere."""
    assert [(one.number, one.name) for one in load_migrations(dialect)] == [
        (one.number, one.name) for one in load_migrations("sqlite")
    ]


async def _of_sqlite(folder: str) -> dict[str, list[str]]:
    await (await open_store(f"sqlite:///{folder}/holdfast.db", tenant="acme")).close()
    connection = apsw.Connection(f"{folder}/holdfast.db")
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")]
    columns = {name: [row[1] for row in connection.execute(f"PRAGMA table_info({name})")] for name in names}
    connection.close()
    return columns


async def _of_server(server: Server, url: str) -> dict[str, list[str]]:
    await (await open_store(url, tenant="acme")).close()
    place = "DATABASE()" if server.name == "mysql" else "current_schema()"
    sql = (
        "SELECT table_name, column_name FROM information_schema.columns"
        f" WHERE table_schema = {place} ORDER BY table_name, ordinal_position"
    )
    columns: dict[str, list[str]] = {}
    for table, column in await anyio.to_thread.run_sync(server.in_place, url, sql):
        columns.setdefault(table, []).append(column)
    return columns


async def test_tables_have_the_same_columns(server: Server, server_url: str, tmp_path: str) -> None:
    """Views in the same order too: rows are decoded by it."""
    sqlite, other = await _of_sqlite(str(tmp_path)), await _of_server(server, server_url)
    for dialect, tables in (("sqlite", sqlite), (server.name, other)):
        theirs = {table: set(columns) for table, columns in tables.items() if table.startswith("index_postings")}
        assert theirs == POSTINGS[dialect]
        for table in theirs:
            del tables[table]
    assert set(other) == set(sqlite)
    for table in set(sqlite) - {"holdfast_schema"}:
        if table in VIEWS:
            assert other[table] == sqlite[table]
        else:
            ours = {name for name in other[table] if (table, name) not in ONLY_MYSQL}
            assert ours == {name for name in sqlite[table] if (table, name) not in ONLY_SQLITE}


async def test_indexes_have_the_same_names(server: Server, server_url: str, tmp_path: Path) -> None:
    """Where a dialect can have them. And no view is compared as a table."""
    await (await open_store(server_url, tenant="acme")).close()
    if server.name == "postgres":
        sql = "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()"
    else:
        sql = "SELECT DISTINCT index_name FROM information_schema.statistics WHERE table_schema = DATABASE()"
    found = {name for (name,) in await anyio.to_thread.run_sync(server.in_place, server_url, sql)}
    await (await open_store(f"sqlite:///{tmp_path}/holdfast.db", tenant="acme")).close()
    connection = apsw.Connection(f"{tmp_path}/holdfast.db")
    named = "SELECT name FROM sqlite_schema WHERE type = 'index' AND name NOT LIKE 'sqlite_%'"
    wanted = {name for (name,) in connection.execute(named) if (server.name, name) not in WITHOUT_INDEX}
    views = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'view'")}
    connection.close()
    assert len(wanted) > 20
    assert wanted - found == set()
    assert views == VIEWS


async def test_no_statement_of_a_turn_scans_or_sorts(postgres_url: str) -> None:
    """PostgreSQL has an index for each, and goes by it on the store's connections, whatever it knows of the tables."""
    await (await open_store(postgres_url, tenant="acme")).close()
    named = load_statements("postgres")
    others = ("session_get_lock", "session_guard", "scope_get_lock")
    texts = {name: named[name] for name in (*ON_A_TURNS_PATH, *LISTS, *others)}
    shape = ("session_advance", "entry_insert", "call_insert", "view_put", "idempotency_put")
    texts["fused"] = fuse_statements("postgres", shape)
    claiming = ("session_claim", "view_put")
    texts["fused_claim"] = fuse_statements("postgres", claiming)
    async with planning(postgres_url, "force_generic_plan") as connection:
        for name, sql in texts.items():
            await connection.execute(f"PREPARE {name}_ AS {sql}")
            given = ", ".join(["NULL"] * len(_parameters(sql)))
            rows = await connection.fetch(f"EXPLAIN EXECUTE {name}_{f'({given})' if given else ''}", ())
            plan = "\n".join(row[0] for row in rows)
            assert not re.search(r"Seq Scan on (?!holdfast)|Sort\b", plan), f"{name}:\n{plan}"


@pytest.mark.parametrize("name", ["mark_last", "mark_places", "alias_last", "alias_places"])
async def test_digests_are_looked_up_in_their_index(mysql_url: str, name: str) -> None:
    """MySQL is told in which order it has to go, and sorts nothing: whatever it thinks of the tables."""
    store = await open_store(mysql_url, tenant="acme")
    for ref in (SessionRef("ann", "s1"), SessionRef("ann", "s2")):
        await store.create(session(ref))
        await store.append(ref, Append(entries=[user("a"), assistant("b")], timestamp=2))
    await store.close()
    wanted: Any = '[[1, "00"]]' if name == "mark_last" else "[1]" if name == "alias_last" else 1
    given = ("acme", "ann", None, wanted, 16, b"digest")[: len(_parameters(load_statements("mysql")[name]))]
    sql = f"EXPLAIN {with_values(load_statements('mysql')[name], given)}"
    plan = await anyio.to_thread.run_sync(reach("mysql").in_place, mysql_url, sql)
    assert [row[2] for row in plan if f"entries_{name.partition('_')[0]}" in row] == ["e"]
    assert not [row for row in plan if "filesort" in str(row[-1]) or "temporary" in str(row[-1])]
