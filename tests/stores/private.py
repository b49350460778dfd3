"""Servers of a test's own, on a port and with data of their own, so that they can be killed and started again."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncmy

STARTING = 30.0
"""Seconds that a server may take, recovery included."""
FOLDERS = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin", "usr/sbin")
"""Where programs are that no shell finds."""


class Missing(Exception):
    """The server's programs are not on this machine."""


class PrivateServer:
    """A server that runs inside a `with`; its data is thrown away behind it."""

    user = ""
    """Who it runs as where this user may not: a server refuses to be root."""

    def __init__(self) -> None:
        self._as = self.user if os.geteuid() == 0 else None
        self._group = _group_of(self.user) if self._as else None
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-private-", ignore_cleanup_errors=True)
        self.place = Path(self._folder.name)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self._as:
            shutil.chown(self.place, self._as)

    def __enter__(self) -> Self:
        self.prepare()
        self.start()
        self.furnish()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Start it, also one that was killed a moment ago; return when it answers."""
        until = time.monotonic() + STARTING
        while not self._answers():
            if self._process is None or self._process.poll() is not None:
                self._process = self._begin(self.command())  # what is left of the one before may be in its way
            assert time.monotonic() < until, (self.place / "log").read_text()
            time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power cut would: no warning, no clean-up."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(STARTING)

    def _begin(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.place / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.place)},
                user=self._as,
                group=self._group,
                extra_groups=[] if self._as else None,
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def run(self, *command: str) -> None:
        """Run one of its programs to its end."""
        assert self._begin(list(command)).wait(120) == 0, (self.place / "log").read_text()

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return self._process is not None and self._process.poll() is None

    @property
    def url(self) -> str:
        """Where an empty store can be opened on it."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make its data. Raises `Missing`."""

    def command(self) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    def furnish(self) -> None:
        """Make on the running server what a store does not make itself."""


class PrivatePostgres(PrivateServer):
    """PostgreSQL. Its other processes end by themselves when the first one is gone."""

    user = "postgres"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def prepare(self) -> None:
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        self.run(_program("initdb"), "-D", str(self.place / "data"), *options)

    def command(self) -> list[str]:
        options = ["-p", str(self.port), "-k", str(self.place), "-c", "listen_addresses=127.0.0.1"]
        return [_program("postgres"), "-D", str(self.place / "data"), *options]


class PrivateMariaDB(PrivateServer):
    """MariaDB."""

    user = "mysql"

    @property
    def url(self) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/holdfast"

    def prepare(self) -> None:
        options = ["--skip-test-db", "--auth-root-authentication-method=normal"]
        self.run(_program("mariadb-install-db"), "--no-defaults", f"--datadir={self.place}/data", *options)

    def command(self) -> list[str]:
        files = [f"--{name}={self.place}/{name}" for name in ("socket", "pid-file")]
        options = ["--bind-address=127.0.0.1", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M"]
        start = [_program("mariadbd"), "--no-defaults", f"--datadir={self.place}/data"]
        return [*start, f"--port={self.port}", *files, *options]

    def furnish(self) -> None:
        asyncio.run(self._make_database())

    async def _make_database(self) -> None:
        raw = await asyncmy.connect(host="127.0.0.1", port=self.port, user="root", password="", autocommit=True)
        async with raw.cursor() as cursor:
            await cursor.execute("CREATE DATABASE holdfast")
        await raw.ensure_closed()


PRIVATE: dict[str, type[PrivateServer]] = {
    "postgres": PrivatePostgres,
    "mysql": PrivateMariaDB,
}


def _program(name: str) -> str:
    folders = [str(folder) for pattern in FOLDERS for folder in sorted(Path("/").glob(pattern), reverse=True)]
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if found is None:
        raise Missing(f"no {name} on this machine")
    return found


def _group_of(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_gid
    except KeyError as exc:
        raise Missing(f"no user {user} on this machine") from exc


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
