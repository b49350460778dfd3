"""Check that a release can be built again: `python scripts/reproduce.py dist`.

It clones the committed state twice, into folders with different names, permissions and file times, and builds a wheel and an sdist in each
clone, in different time zones and locales. It exits with 1 if the bytes differ, or if they differ from the files in `dist`: then these were
built from other files than the committed ones, or by other versions of Python, zlib or hatchling.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CIRCUMSTANCES = (
    ("one", 0o022, {"TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    (
        "another/folder with a longer name",
        0o077,
        {"TZ": "Pacific/Auckland", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"},
    ),
)
"""For each build: the folder, the umask, and environment variables."""


def build_clone(folder: Path, umask: int, env: dict[str, str], seconds: int) -> dict[str, str]:
    """Build a clone of the committed state; return the hashes of the files.

    Args:
        folder: where to clone to.
        umask: the umask of the clone and of the build.
        env: environment variables of the build.
        seconds: the time to give to all files, since the epoch.
    """
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, umask=umask)  # noqa: S607
    for path in folder.rglob("*"):
        os.utime(path, (seconds, seconds))
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build"],
        cwd=folder,
        env=os.environ | env,
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode:
        sys.exit(built.stderr)
    return hash_files(folder / "dist")


def hash_files(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the wheel and the sdist in a folder, by name."""
    built = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}


def main() -> None:
    """Build twice and compare."""
    with tempfile.TemporaryDirectory(prefix="holdfast-reproduce-") as place:
        results = [
            build_clone(Path(place) / name, umask, env, 1_000_000_000 + 86_400 * number)
            for number, (name, umask, env) in enumerate(CIRCUMSTANCES)
        ]
    if results[0] != results[1]:
        sys.exit(f"Two builds of the same commit differ: {results[0]} and {results[1]}")
    for name, digest in results[0].items():
        print(f"{digest}  {name}")
    if len(sys.argv) > 1 and (released := hash_files(Path(sys.argv[1]))) != results[0]:
        sys.exit(
            f"The files in {sys.argv[1]} differ from a build of the commit: {released}. Run `make dist` without uncommitted and untracked files."
        )
    print("Two builds of the commit have the same bytes.")


if __name__ == "__main__":
    main()
