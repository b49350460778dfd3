"""The procedures of docs/operations.md, run exactly as documented, on real servers with their own tools."""

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
from tests.stores.histories import grow_session
from tests.stores.servers import Server, reach

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
SEEDS = range(4)
STILL = LifeSettings(session_ttl=0, sweep=False)


def read_blocks(heading: str) -> list[str]:
    """Return the command blocks below a heading, one per step."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def run(block: str, folder: Path, **variables: str) -> None:
    """Run a block of commands in a folder; a failing command ends it."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env: Mapping[str, str] = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(["bash", "-euc", block], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"


def require_tools(*tools: str) -> None:
    """Skip the test if a database's own tools are not installed."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed")


async def fill_store(url: str) -> list[dict[str, Any]]:
    """Create sessions with a history for two users; return their exports."""
    async with Holdfast(url, life=STILL) as hf:
        refs = [await grow_session(hf, seed, user_id=f"käse {seed % 2}") for seed in SEEDS]
        return [await hf.export(ref, retired=True, calls=True) for ref in refs]


async def export_store(url: str) -> list[dict[str, Any]]:
    """Return the exports of all stored sessions."""
    async with Holdfast(url, life=STILL) as hf:
        sessions = (await hf.sessions(limit=100)).sessions
        found = [await hf.export(one.ref, retired=True, calls=True) for one in sessions]
        return sorted(found, key=lambda one: str(one["id"]))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Server, str]]:
    """Yield a server and an empty place on it."""
    server = reach(request.param)
    url = server.place()
    try:
        yield server, url
    finally:
        server.drop(url)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_postgresql_backup_and_restore(place: tuple[Server, str], tmp_path: Path) -> None:
    """Restored into another database: equal exports, and every log verifies."""
    require_tools("pg_dump", "pg_restore")
    server, url = place
    before = await fill_store(url)
    database, schema = url.partition("?")[0], url.rpartition("schema=")[2]
    fresh = f"{schema}_restored"
    restored = database.rpartition("/")[0] + f"/{fresh}"
    server.ask(f"CREATE DATABASE {fresh}")
    try:
        for block in read_blocks("PostgreSQL"):
            run(block, tmp_path, DATABASE=database, SCHEMA=schema, RESTORED=restored)
        assert await export_store(f"{restored}?schema={schema}") == before
    finally:
        server.ask(f"DROP DATABASE {fresh} WITH (FORCE)")


@pytest.mark.parametrize("place", ["mysql"], indirect=True)
async def test_mysql_backup_and_restore(place: tuple[Server, str], tmp_path: Path) -> None:
    """The same, with identifiers equal byte for byte."""
    require_tools("mysqldump", "mysql")
    server, url = place
    before = await fill_store(url)
    parts = urlsplit(url)
    name = parts.path.removeprefix("/")
    fresh = f"{name}_restored"
    variables = {"HOST": str(parts.hostname), "PORT": str(parts.port or 3306), "DBUSER": parts.username or "root"}
    if parts.password:
        variables["MYSQL_PWD"] = parts.password
    server.ask(f"CREATE DATABASE {fresh}")
    try:
        for block in read_blocks("MySQL and MariaDB"):
            run(block, tmp_path, DATABASE=name, RESTORED=fresh, **variables)
        assert await export_store(url.replace(name, fresh)) == before
    finally:
        server.ask(f"DROP DATABASE {fresh}")


async def test_sqlite_backup_and_drill(tmp_path: Path) -> None:
    """With the paths of this test; then the drill."""
    url = f"sqlite:///{tmp_path}/chat.db"
    before = await fill_store(url)
    for block in read_blocks("SQLite"):
        run(re.sub(r"/backups/|/var/lib/holdfast/", f"{tmp_path}/", block), tmp_path)
    assert await export_store(url) == before
    (tmp_path / "holdfast-2026-11-20.db").rename(tmp_path / "latest.db")
    for block in read_blocks("A drill"):
        run(block, tmp_path)
    assert await export_store(f"sqlite:///{tmp_path}/drill.db") == before


async def test_move_by_export_and_import(tmp_path: Path) -> None:
    """The documented way for any store."""
    url = f"sqlite:///{tmp_path}/chat.db"
    before = await fill_store(url)
    (command,) = re.findall(r"`(holdfast sessions export [^`]+)`", PAGE)
    run(f"{command} --store {url}\nholdfast sessions import sessions.jsonl.gz --store {url}.copy", tmp_path)
    again = await export_store(f"{url}.copy")
    assert [{**one, "version": 0} for one in again] == [{**one, "version": 0} for one in before]
