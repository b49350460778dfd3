"""`holdfast keys`: a key is shown once and has the options it was created with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands
from holdfast.stores import open_store
from tests.edges.keys import bearer
from tests.edges.server import gateway


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


def keys(*args: str) -> Result:
    return CliRunner().invoke(commands, ["keys", *args])


def create_database(store: str) -> None:
    async def create() -> None:
        await (await open_store(store, tenant="default")).close()

    asyncio.run(create())


def read_json(*args: str) -> Any:
    """Return the JSON output of a successful command."""
    result = keys(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_new_folder_of_the_database_is_reported(tmp_path: Path) -> None:
    """It may come from a misspelt path."""
    url = f"sqlite:///{tmp_path}/new/deep/s.db"
    assert f"created the folder {tmp_path}/new/deep\n" in keys("create", "--store", url).stderr
    assert "created the folder" not in keys("create", "--store", url).stderr


@pytest.mark.usefixtures("in_empty_folder")
def test_database_of_a_new_key_is_named() -> None:
    """Without a configuration it is created in the current folder, which may not be the server's."""
    made = keys("create")
    assert made.stderr.endswith("\nIts hash is stored in sqlite:///holdfast.db.\n")
    assert Path("holdfast.db").exists()


def test_many_keys_are_all_listed(store: str) -> None:
    """In order of their ids, over several pages."""
    made = {read_json("create", "--store", store)["id"] for _ in range(3)}
    assert [row["id"] for row in read_json("list", "--store", store)] == sorted(made)


def test_commands_without_a_database(store: str, tmp_path: Path) -> None:
    """Listing a missing database is a mistake and creates nothing; a key in memory would be lost at once."""
    assert keys("list", "--store", store).exit_code == 1
    assert keys("revoke", "x", "--store", store).exit_code == 1
    assert list(tmp_path.iterdir()) == []
    result = keys("create", "--store", "sqlite://:memory:")
    assert (result.exit_code, "in memory" in result.stderr) == (1, True)


def test_empty_key_list_is_explained(store: str) -> None:
    """On stderr, separate from the output."""
    create_database(store)
    listed = keys("list", "--store", store)
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert listed.stderr == "There are no keys: the server accepts requests only from its own machine.\n"


@pytest.mark.usefixtures("in_empty_folder")
@pytest.mark.parametrize(
    ("auth", "said"),
    [
        ("{required: true}", "the server refuses every request. Create a key with `holdfast keys create`.\n"),
        ("{jwt: {jwks_url: 'https://x/k', issuer: x, audience: x}}", "the server accepts only tokens (auth.jwt).\n"),
    ],
)
def test_server_that_requires_keys_but_has_none_is_explained(store: str, auth: str, said: str) -> None:
    Path("holdfast.yaml").write_text(f"auth: {auth}")
    create_database(store)
    assert keys("list", "--store", store).stderr.endswith(said)


async def test_running_server_accepts_a_key_created_by_the_command_line(store: str) -> None:
    """And requires one from then on: the two share only the database."""
    import anyio.to_thread

    async with gateway([], store=store) as (served, _):
        assert (await served.http.get("/v1/models")).status_code == 200
        made = await anyio.to_thread.run_sync(lambda: read_json("create", "--store", store, "--role", "read"))
        assert (await served.http.get("/v1/models", headers=bearer(made["key"]))).status_code == 200
        # The clock of this server advances by a second each time it is read.
        answers = [(await served.http.get("/v1/models")).status_code for _ in range(5)]
        assert answers[-1] == 401
        await anyio.to_thread.run_sync(lambda: read_json("revoke", made["id"], "--store", store))
        answers = [(await served.http.get("/v1/models", headers=bearer(made["key"]))).status_code for _ in range(5)]
        assert answers[-1] == 401
    opened = await open_store(store, tenant="default")
    assert [key.id for key in await opened.keys()] == [made["id"]]
    await opened.close()
