"""`holdfast keys`: a key is shown once and has the options it was created with."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.access import hash_key
from holdfast.cli import commands
from holdfast.stores import open_store
from tests.edges.keys import bearer
from tests.edges.server import gateway

KEY = re.compile(r"hf_[a-z2-7]{16}_[a-z2-7]{52}")


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


def test_key_is_shown_once(store: str, tmp_path: Path) -> None:
    """It is printed alone on stdout, for a pipe, and is then neither in the list nor in the file."""
    made = keys("create", "--store", store, "--name", "laptop")
    assert made.exit_code == 0
    key = made.stdout.strip()
    assert KEY.fullmatch(key)
    assert "not shown again" in made.stderr
    listed = keys("list", "--store", store)
    assert key.split("_")[1] in listed.stdout
    assert "laptop" in listed.stdout
    secret = key.rpartition("_")[2]
    for text in (listed.output, json.dumps(read_json("list", "--store", store))):
        assert secret not in text
        assert hash_key(key).hex() not in text
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


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


def test_key_options_are_stored(store: str) -> None:
    options = ["--tenant", "t2", "--user", "ada", "--role", "read", "--name", "n", "--rate", "5", "--max-body", "1MiB"]
    made = read_json("create", "--store", store, *options, "--expires", "90d")
    (row,) = read_json("list", "--store", store)
    assert {name: made[name] for name in row} == row
    assert (row["tenant"], row["user_id"], row["role"], row["name"]) == ("t2", "ada", "read", "n")
    assert (row["rate"], row["max_body"], row["status"]) == (5, 1 << 20, "valid")
    assert row["expires_at"] - row["created_at"] == 90 * 86_400_000
    plain = read_json("create", "--store", store)
    assert (plain["tenant"], plain["user_id"], plain["role"], plain["expires_at"]) == ("default", None, "write", None)


def test_many_keys_are_all_listed(store: str) -> None:
    """In order of their ids, over several pages."""
    made = {read_json("create", "--store", store)["id"] for _ in range(3)}
    assert [row["id"] for row in read_json("list", "--store", store)] == sorted(made)


def test_revoking_is_permanent(store: str) -> None:
    """By id or by the key itself; repeating it is fine; the key stays in the list."""
    one, two = read_json("create", "--store", store), read_json("create", "--store", store)
    assert keys("revoke", one["id"], "--store", store).stdout == f"Revoked {one['id']}.\n"
    again = read_json("revoke", one["id"], "--store", store)
    assert (again["status"], read_json("revoke", two["key"], "--store", store)["id"]) == ("revoked", two["id"])
    assert {row["status"] for row in read_json("list", "--store", store)} == {"revoked"}
    assert [row["revoked_at"] for row in read_json("list", "--store", store) if row["id"] == one["id"]] == [
        again["revoked_at"]
    ]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["create", "--expires", "soon"], 2, "--expires: expected a duration"),
        (["create", "--expires", "0"], 2, "--expires: expected a duration"),
        (["create", "--max-body", "much"], 2, "--max-body: expected a size"),
        (["create", "--role", "owner"], 2, "owner"),
        (["create", "--rate", "0"], 2, "rate"),
        (["create", "--user", ""], 2, "--user must have 1 to 512 bytes"),
        (["create", "--tenant", "x" * 513], 2, "--tenant must have 1 to 512 bytes"),
        (["revoke", "nobody"], 1, "there is no API key 'nobody'"),
    ],
)
def test_mistakes_are_one_clear_line(store: str, args: list[str], code: int, said: str) -> None:
    keys("create", "--store", store)
    result = keys(*args, "--store", store)
    assert result.exit_code == code
    assert said in result.stderr
    assert len(read_json("list", "--store", store)) == 1


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
