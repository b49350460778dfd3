"""Servers and commands of two releases: Holdfast 0.1 in an environment of its own, and this clone.

`HOLDFAST_TEST_0_1` names the Python interpreter of an environment with Holdfast 0.1; `scripts/release-0.1` makes one in
`.venv-0.1`. Tests are skipped if neither exists.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "HOLDFAST_TEST_0_1"
DEFAULT: Final = ROOT / ".venv-0.1" / "bin" / "python"
SECONDS: Final = 600
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Release:
    """A release of Holdfast, by its interpreter."""

    name: str
    python: Path
    path: str | None = None
    """The value of PYTHONPATH."""

    def environment(self, store: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment variables of a process of this release."""
        dropped = ("PYTHONPATH", "PYTHONHOME", "COVERAGE_PROCESS_START")
        env = {k: v for k, v in os.environ.items() if "proxy" not in k.lower() and not k.startswith("HOLDFAST_")}
        for name in dropped:
            env.pop(name, None)
        own = {"PYTHONPATH": self.path} if self.path else {}
        return {**env, **own, "HOLDFAST_STORE": store, "HOLDFAST_PORT": "0", **(more or {})}

    def run(
        self, store: str, *args: str, env: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of this release to its end."""
        return subprocess.run(
            [str(self.python), "-m", "holdfast", *args],
            env=self.environment(store, env),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def succeed(self, store: str, *args: str, env: Mapping[str, str] | None = None, folder: Path | None = None) -> str:
        """Run a command that must succeed; return its output."""
        done = self.run(store, *args, env=env, folder=folder)
        assert done.returncode == 0, (self.name, args, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout


class ReleaseServer:
    """`holdfast serve` of a release, in its own process; its output goes to files in `folder`.

    Args:
        release: the release.
        store: URL of the store.
        folder: for the output.
        config: the configuration.
        env: additional environment variables.
    """

    def __init__(
        self,
        release: Release,
        store: str,
        folder: Path,
        *,
        config: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.release = release
        self._log = folder / f"server-{release.name}-{len(list(folder.glob('server-*')))}.log"
        chosen = {"HOLDFAST_CONFIG": str(config)} if config else {}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [str(release.python), "-m", "holdfast", "serve"],
                env=release.environment(store, {**chosen, **(env or {})}),
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.rpartition(" ")[2].strip()
        assert self.url.startswith("http://"), (release.name, line, self.log)

    @property
    def log(self) -> str:
        """What the server has logged."""
        return self._log.read_text()

    def stop(self) -> int:
        """Stop the server as an operator does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()


def find_old() -> Release | None:
    """Return Holdfast 0.1, or None if no environment with it exists."""
    python = Path(os.environ.get(VARIABLE) or DEFAULT)
    return Release("0.1", python) if python.exists() else None


NEW: Final = Release("0.2", Path(sys.executable), str(ROOT / "src"))
"""This clone."""
MISSING: Final = f"no Holdfast 0.1: run scripts/release-0.1, or let {VARIABLE} name its Python interpreter"
