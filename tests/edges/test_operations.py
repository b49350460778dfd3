"""The procedures of docs/operations.md, run as they stand there, on real servers with their own tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.holdfast import Holdfast
from holdfast.lifecycle.settings import LifeSettings
from tests.stores.histories import grown
from tests.stores.servers import Server, reached

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
SEEDS = range(4)
STILL = LifeSettings(session_ttl=0, sweep=False)


def blocks(heading: str) -> list[str]:
    """The commands below a heading, a block a step."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def run(block: str, folder: Path, **variables: str) -> None:
    """A block of commands, in a folder; one that fails ends it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env: Mapping[str, str] = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(["bash", "-euc", block], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


def needs(*tools: str) -> None:
    """Skip, which the summary tells, where a database's own tools are not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


async def filled(url: str) -> list[dict[str, Any]]:
    """Sessions with a past, of two users; how they are exported."""
    async with Holdfast(url, life=STILL) as hf:
        refs = [await grown(hf, seed, user_id=f"käse {seed % 2}") for seed in SEEDS]
        return [await hf.export(ref, retired=True, calls=True) for ref in refs]


async def held(url: str) -> list[dict[str, Any]]:
    """The same, of what is there."""
    async with Holdfast(url, life=STILL) as hf:
        sessions = (await hf.sessions(limit=100)).sessions
        found = [await hf.export(one.ref, retired=True, calls=True) for one in sessions]
        return sorted(found, key=lambda one: str(one["id"]))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    """A server, and an empty place on it."""
    server = reached(request.param)
    url = server.place()
    try:
        yield server, url
    finally:
        server.drop(url)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_postgresql(place: tuple[Server, str], tmp_path: Path) -> None:
    """Dumped and restored into another database: equal exports, and every log verifies."""
    needs("pg_dump", "pg_restore")
    server, url = place
    before = await filled(url)
    database, schema = url.partition("?")[0], url.rpartition("schema=")[2]
    fresh = f"{schema}_restored"
    restored = database.rpartition("/")[0] + f"/{fresh}"
    server.ask(f"CREATE DATABASE {fresh}")
    try:
        for block in blocks("PostgreSQL"):
            run(block, tmp_path, DATABASE=database, SCHEMA=schema, RESTORED=restored)
        assert await held(f"{restored}?schema={schema}") == before
    finally:
        server.ask(f"DROP DATABASE {fresh} WITH (FORCE)")


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
async def test_mysql(place: tuple[Server, str], tmp_path: Path) -> None:
    """The same, byte for byte in its identifiers."""
    needs("mysqldump", "mysql")
    server, url = place
    before = await filled(url)
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    fresh = f"{name}_restored"
    variables = {"HOST": str(parts.hostname), "PORT": str(parts.port or 3306), "DBUSER": parts.username or "root"}
    if parts.password:
        variables["MYSQL_PWD"] = parts.password
    server.ask(f"CREATE DATABASE {fresh}")
    try:
        for block in blocks("MySQL and MariaDB"):
            run(block, tmp_path, DATABASE=name, RESTORED=fresh, **variables)
        assert await held(url.replace(name, fresh)) == before
    finally:
        server.ask(f"DROP DATABASE {fresh}")


async def test_sqlite(tmp_path: Path) -> None:
    """With the paths of this test; then the drill."""
    url = f"sqlite:///{tmp_path}/chat.db"
    before = await filled(url)
    for block in blocks("SQLite"):
        run(re.sub(r"/backups/|/var/lib/holdfast/", f"{tmp_path}/", block), tmp_path)
    assert await held(url) == before
    (tmp_path / "holdfast-2026-11-20.db").rename(tmp_path / "latest.db")
    for block in blocks("A drill"):
        run(block, tmp_path)
    assert await held(f"sqlite:///{tmp_path}/drill.db") == before


async def test_moving_by_exports(tmp_path: Path) -> None:
    """What the page says for any store."""
    url = f"sqlite:///{tmp_path}/chat.db"
    before = await filled(url)
    (command,) = re.findall(r"`(holdfast sessions export [^`]+)`", PAGE)
    run(f"{command} --store {url}\nholdfast sessions import sessions.jsonl.gz --store {url}.copy", tmp_path)
    again = await held(f"{url}.copy")
    assert [{**one, "version": 0} for one in again] == [{**one, "version": 0} for one in before]
