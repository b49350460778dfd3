"""A clean machine's trial of what is released: `python scripts/trial.py dist`, with every Python that is found, or those in `PYTHON`.

For each one: an empty virtual environment and an empty home, the wheel installed by pip as a user would, then serve, chat, export, import, search,
and the upgrade of a database that an earlier state wrote. What is typed and what comes back is printed: that is the transcript. Any command that fails,
and any answer that is not what it should be, ends it with exit code 1.
"""

from __future__ import annotations

import json
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDER = ROOT / "tests" / "edges" / "older_databases" / "schema-1.db.xz"
CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3.14")
FOREIGN = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "PYTHON")
"""Variables of the environment that begin so are not a clean machine's."""
SHOWN = 12
"""Lines of an answer that the transcript shows."""


class Trial:
    """One Python's: a folder with its virtual environment, its home and its data.

    Args:
        folder: empty; everything goes here.
        python: the interpreter to try.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        self.work = folder / "work"
        self.work.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        self.env = kept | {"HOME": str(folder), "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "110"}
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)

    def run(self, *command: str, shown: int = SHOWN) -> str:
        """What a command prints; it is shown, and has to succeed."""
        print(f"$ {shlex.join(command).replace(str(ROOT / 'dist'), 'dist')}")
        done = subprocess.run(command, cwd=self.work, env=self.env, capture_output=True, text=True, check=False)
        lines = (done.stdout + (done.stderr if done.returncode else "")).rstrip().splitlines()
        print(*lines[:shown], *(["…"] if len(lines) > shown else []), sep="\n", end="\n" if lines else "")
        if done.returncode:
            sys.exit(f"exit code {done.returncode}: {done.stderr}")
        return done.stdout

    @contextmanager
    def serving(self, *options: str) -> Iterator[str]:
        """`holdfast serve` in the background; where it listens."""
        print(f"$ {shlex.join(['holdfast', 'serve', '--port', '0', *options])} &")
        command = [str(self.bin / "holdfast"), "serve", "--port", "0", *options]
        with subprocess.Popen(
            command, cwd=self.work, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            print(line)
            try:
                yield line.rpartition(" ")[2]
            finally:
                process.terminate()
        if process.returncode not in (0, -15):
            sys.exit(f"the server ended with {process.returncode}")
        print("$ kill %1")

    def ask(self, url: str, session: str, text: str) -> str:
        """What the offline model answers to a user's message."""
        body = json.dumps({"session_id": session, "user": "ada", "messages": [{"role": "user", "content": text}]})
        print(f"$ curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            told: str = json.load(answer)["choices"][0]["message"]["content"]
        print(*told.splitlines()[:SHOWN], sep="\n")
        return told


def expect(whole: str, part: str) -> None:
    """End it where `part` is missing."""
    if part not in whole:
        sys.exit(f"expected {part!r} in {whole!r}")


def used(trial: Trial, older: Path) -> None:
    """What a new user does with it."""
    with trial.serving() as url:
        trial.ask(url, "trip", "Book me a flight to Oslo on May 20. My number is QX-4711.")
        expect(trial.ask(url, "trip", "what do you see?"), "QX-4711")
    expect(trial.run("holdfast", "sessions", "list"), "trip")
    trial.run("holdfast", "sessions", "export", "--all", "-o", "all.jsonl")
    trial.run("holdfast", "sessions", "import", "all.jsonl", "--store", "sqlite:///second.db")
    expect(
        trial.run("holdfast", "sessions", "show", "trip", "--user", "ada", "--store", "sqlite:///second.db"), "QX-4711"
    )
    expect(trial.run("holdfast", "search", "flight to Oslo", "--user", "ada"), "trip")
    print(f"# old.db was written before the first migration: tests/edges/older_databases/{older.name}")
    (trial.work / "old.db").write_bytes(lzma.decompress(older.read_bytes()))
    expect(trial.run("holdfast", "migrate", "--show", "--store", "sqlite:///old.db"), "pending")
    trial.run("holdfast", "migrate", "--store", "sqlite:///old.db")
    with trial.serving("--store", "sqlite:///old.db") as url:
        expect(trial.ask(url, "trip", "what do you see?"), "QX-4711")
    expect(trial.run("holdfast", "sessions", "verify", "--all", "--store", "sqlite:///old.db"), "Sound")
    trial.run("holdfast", "doctor", "--store", "sqlite:///old.db")


def measured(trial: Trial) -> None:
    """What an installation costs: distributions, bytes on the disk, the time that `import holdfast` and `holdfast --help` take."""
    listed = json.loads(
        subprocess.run(
            [trial.bin / "python", "-m", "pip", "list", "--format", "json"],
            env=trial.env,
            capture_output=True,
            check=True,
        ).stdout
    )
    brought = [one["name"] for one in listed if one["name"] not in {"pip", "setuptools", "wheel", "holdfast-memory"}]
    site = next((trial.folder / "venv" / "lib").glob("python3*/site-packages"))
    size = {
        folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        for folder in site.iterdir()
        if folder.is_dir()
    }
    of_pip = sum(bytes_ for name, bytes_ in size.items() if name.startswith(("pip", "setuptools", "_distutils")))
    print(
        f"# {len(brought)} other distributions, {(sum(size.values()) - of_pip) / 1e6:.1f} MB, of which holdfast {size['holdfast'] / 1e6:.1f} MB (compiled files not counted)"
    )
    nothing = _least(trial, [str(trial.bin / "python"), "-c", "pass"])
    imported = _least(trial, [str(trial.bin / "python"), "-c", "import holdfast"])
    helped = _least(trial, [str(trial.bin / "holdfast"), "--help"])
    print(
        f"# import holdfast {1000 * (imported - nothing):.0f} ms, holdfast --help {1000 * helped:.0f} ms (least of 10, this Python alone {1000 * nothing:.0f} ms)"
    )


def _least(trial: Trial, command: list[str]) -> float:
    """Seconds that a command takes at the least."""
    took = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run(command, cwd=trial.work, env=trial.env, stdout=subprocess.DEVNULL, check=True)
        took.append(time.perf_counter() - began)
    return min(took)


def same_inside(wheel: Path, sdist: Path, folder: Path) -> None:
    """A wheel that is built of the sdist has what the wheel has."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "built")],
        cwd=source,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (built,) = (folder / "built").iterdir()
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built) as other:
        contents = [
            {name.filename: name.CRC for name in archive.infolist() if not name.filename.endswith("RECORD")}
            for archive in (one, other)
        ]
    if contents[0] != contents[1]:
        sys.exit(f"{wheel.name} is not what {sdist.name} makes: {set(contents[0].items()) ^ set(contents[1].items())}")
    print(f"# a wheel built of {sdist.name} has the same {len(contents[0])} files")


def pythons() -> list[str]:
    """The interpreters to try."""
    named = os.environ.get("PYTHON", "").split()
    found = [name for name in named or CANDIDATES if shutil.which(name)]
    return [
        name
        for name in found
        if subprocess.run([name, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    ]


def main() -> None:
    """Try the one wheel and the one sdist of a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    tried = pythons()
    if not tried:
        sys.exit("no Python to try it with: PYTHON='python3.11 python3.12' names some")
    for python in tried:
        with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as place:
            trial = Trial(Path(place), python)
            print(f"\n## {trial.run('python', '--version').strip()}, an empty virtual environment\n")
            trial.run("pip", "--disable-pip-version-check", "install", "--quiet", str(wheel))
            trial.run("holdfast", "--version")
            used(trial, OLDER)
            measured(trial)
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as place:
        same_inside(wheel, sdist, Path(place))
    print(f"\nAll of it works with {', '.join(tried)}.")


if __name__ == "__main__":
    main()
