"""`holdfast doctor` with a database user that lacks a privilege: the remedy is the SQL that grants it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.cli.doctor.store import suggest_grant
from holdfast.errors import StoreUnavailable
from tests.stores.servers import reach

pytestmark = pytest.mark.usefixtures("in_empty_folder")
USER = f"holdfast_test_{os.getpid()}_user"


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a database in which the user may create nothing."""
    name: str = request.param
    database = reach(name)
    place, parts = database.place(), urlsplit(database.base)
    if name == "postgres":
        database.ask(f"CREATE ROLE {USER} LOGIN PASSWORD 'x'")
        end = f"DROP ROLE {USER}"
    else:
        database.ask(f"CREATE USER '{USER}'@'%' IDENTIFIED BY 'x'")
        end = f"DROP USER '{USER}'@'%'"
    yield place.replace(parts.netloc, f"{USER}:x@{parts.netloc.rpartition('@')[2]}")
    database.drop(place)
    database.ask(end)


def test_remedy_works(url: str) -> None:
    """The administrator runs it as it is printed; then the database opens."""
    remedy = find_remedy(url)
    assert remedy is not None
    for statement in remedy.partition(": ")[2].partition(" (")[0].split("; "):
        reach("mysql" if url.startswith("mysql") else "postgres").ask(statement)
    assert find_remedy(url) is None


def find_remedy(url: str) -> str | None:
    """Return the remedy for a failure of the store, or None if it opens."""
    result = CliRunner().invoke(commands, ["doctor", "--store", url, "--json"])
    (store,) = (one for one in json.loads(result.stdout)["findings"] if one["check"] == "store")
    remedy: str | None = store["remedy"]
    return remedy


class DriverError(Exception):
    sqlstate: str | None = None


def make_error(*args: object, state: str | None = None) -> StoreUnavailable:
    error, cause = StoreUnavailable("no"), DriverError(*args)
    error.__cause__, cause.sqlstate = cause, state
    return error


@pytest.mark.parametrize("state", ["42501", "3F000"])
def test_names_that_need_quotes_are_quoted(state: str) -> None:
    url = "postgresql://Ada%22:secret@db/chat?schema=My-schema"
    remedy = (
        'as a superuser, in the database chat: CREATE SCHEMA "My-schema" AUTHORIZATION "Ada""" (if the schema exists: '
    )
    assert suggest_grant(url, make_error(state=state)) == f'{remedy}ALTER SCHEMA "My-schema" OWNER TO "Ada""")'
    granted = suggest_grant("mysql://o'neil:secret@db/my`chat", make_error(1044))
    assert granted is not None
    assert "GRANT ALL ON `my``chat`.* TO 'o''neil'@'%'" in granted


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("postgresql://ada@db/chat", make_error(state="28P01")),
        ("mysql://ada@db/chat", make_error(1045)),
        ("mysql://ada@db/chat", make_error()),
        ("postgresql://ada@db/chat", StoreUnavailable("no")),
    ],
)
def test_other_errors_have_other_remedies(url: str, error: StoreUnavailable) -> None:
    assert suggest_grant(url, error) is None
