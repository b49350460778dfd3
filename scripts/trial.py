"""Try a release as a new user would: `python scripts/trial.py dist` uses every Python that it finds, or those named in `PYTHON`.

For each Python it creates an empty virtual environment and an empty home, installs the wheel with pip, then serves, chats, exports,
imports, searches, and upgrades a database that an earlier release wrote. It prints each command and its output as a transcript. It
exits with 1 if a command fails or an answer is wrong. Of the sdist it builds a wheel, and collects the tests.
"""

from __future__ import annotations

import json
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
CANDIDATES = ("python3.11", "python3.12", "python3.13", "python3.14")
FOREIGN = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "PYTHON")
"""Prefixes of environment variables that a clean machine does not have."""
SHOWN = 12
"""Lines of each answer that the transcript shows."""


class Trial:
    """The trial of one Python, with its own virtual environment, home and data.

    Args:
        folder: an empty folder for all of these.
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
        """Run a command and show it; return its output. Exit if it fails."""
        print(f"$ {shlex.join(command).replace(str(ROOT / 'dist'), 'dist')}")
        completed = subprocess.run(command, cwd=self.work, env=self.env, capture_output=True, text=True, check=False)
        lines = (completed.stdout + (completed.stderr if completed.returncode else "")).rstrip().splitlines()
        print(*lines[:shown], *(["…"] if len(lines) > shown else []), sep="\n", end="\n" if lines else "")
        if completed.returncode:
            sys.exit(f"exit code {completed.returncode}: {completed.stderr}")
        return completed.stdout

    @contextmanager
    def serve(self, *options: str) -> Iterator[str]:
        """Run `holdfast serve` in the background; yield its URL."""
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
            sys.exit(f"the server ended with exit code {process.returncode}")
        print("$ kill %1")

    def ask(self, url: str, session: str, text: str) -> str:
        """Send a user message; return the offline model's answer."""
        body = json.dumps({"session_id": session, "user": "ada", "messages": [{"role": "user", "content": text}]})
        print(f"$ curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'")
        request = urllib.request.Request(
            f"{url}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: str = json.load(answer)["choices"][0]["message"]["content"]
        print(*content.splitlines()[:SHOWN], sep="\n")
        return content


def expect(whole: str, part: str) -> None:
    """Exit if `part` is missing."""
    if part not in whole:
        sys.exit(f"expected {part!r} in {whole!r}")


def run_user_session(trial: Trial) -> None:
    """Do what a new user does."""
    with trial.serve() as url:
        trial.ask(url, "trip", "Book me a flight to Oslo on May 20. My number is QX-4711.")
        expect(trial.ask(url, "trip", "what do you see?"), "QX-4711")
    expect(trial.run("holdfast", "sessions", "list"), "trip")
    trial.run("holdfast", "sessions", "export", "--all", "-o", "all.jsonl")
    trial.run("holdfast", "sessions", "import", "all.jsonl", "--store", "sqlite:///second.db")
    expect(
        trial.run("holdfast", "sessions", "show", "trip", "--user", "ada", "--store", "sqlite:///second.db"), "QX-4711"
    )
    expect(trial.run("holdfast", "search", "flight to Oslo", "--user", "ada"), "trip")
    expect(trial.run("holdfast", "sessions", "verify", "--all", "--store", "sqlite:///second.db"), "no differences")
    trial.run("holdfast", "doctor", "--store", "sqlite:///second.db")


def measure_installation(trial: Trial) -> None:
    """Print the distributions and bytes of an installation, and the time of `import holdfast` and `holdfast --help`."""
    listed = json.loads(
        subprocess.run(
            [trial.bin / "python", "-m", "pip", "list", "--format", "json"],
            env=trial.env,
            capture_output=True,
            check=True,
        ).stdout
    )
    others = [one["name"] for one in listed if one["name"] not in {"pip", "setuptools", "wheel", "holdfast-memory"}]
    site = next((trial.folder / "venv" / "lib").glob("python3*/site-packages"))
    size = {
        folder.name: sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        for folder in site.iterdir()
        if folder.is_dir()
    }
    of_pip = sum(bytes_ for name, bytes_ in size.items() if name.startswith(("pip", "setuptools", "_distutils")))
    print(
        f"# {len(others)} other distributions, {(sum(size.values()) - of_pip) / 1e6:.1f} MB, of which holdfast {size['holdfast'] / 1e6:.1f} MB (without compiled files)"
    )
    nothing = _time_command(trial, [str(trial.bin / "python"), "-c", "pass"])
    imported = _time_command(trial, [str(trial.bin / "python"), "-c", "import holdfast"])
    helped = _time_command(trial, [str(trial.bin / "holdfast"), "--help"])
    print(
        f"# import holdfast {1000 * (imported - nothing):.0f} ms, holdfast --help {1000 * helped:.0f} ms (fastest of 10; this Python alone takes {1000 * nothing:.0f} ms)"
    )


def _time_command(trial: Trial, command: list[str]) -> float:
    """Return the seconds of the fastest of ten runs of a command."""
    times = []
    for _ in range(10):
        started = time.perf_counter()
        subprocess.run(command, cwd=trial.work, env=trial.env, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - started)
    return min(times)


def compare_contents(wheel: Path, source: Path) -> None:
    """Check that a wheel built from the unpacked sdist has the same files as the wheel."""
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as place:
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place],
            cwd=source,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (built,) = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(built) as other:
            contents = [
                {name.filename: name.CRC for name in archive.infolist() if not name.filename.endswith("RECORD")}
                for archive in (one, other)
            ]
    if contents[0] != contents[1]:
        sys.exit(
            f"{wheel.name} differs from a wheel built from the sdist: {set(contents[0].items()) ^ set(contents[1].items())}"
        )
    print(f"# a wheel built from the sdist has the same {len(contents[0])} files")


def collect_tests(source: Path) -> None:
    """Check that pytest can collect the tests of the unpacked sdist. Exit if a file cannot be imported."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=source,
        env=os.environ | {"PYTHONPATH": f"{source / 'src'}{os.pathsep}{source}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if collected.returncode:
        sys.exit(f"the tests of the sdist cannot be collected: {collected.stdout[-4000:]}{collected.stderr}")
    print(f"# pytest collects {sum('::' in line for line in collected.stdout.splitlines())} tests of the sdist")


def find_pythons() -> list[str]:
    """Return the interpreters to try."""
    named = os.environ.get("PYTHON", "").split()
    found = [name for name in named or CANDIDATES if shutil.which(name)]
    return [
        name
        for name in found
        if subprocess.run([name, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    ]


def main() -> None:
    """Try the wheel and the sdist in a folder."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist").absolute()
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    tried = find_pythons()
    if not tried:
        sys.exit("Found no Python to try. Name some, for example PYTHON='python3.11 python3.12'.")
    for python in tried:
        with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as place:
            trial = Trial(Path(place), python)
            print(f"\n## {trial.run('python', '--version').strip()}, an empty virtual environment\n")
            trial.run("pip", "--disable-pip-version-check", "install", "--quiet", str(wheel))
            trial.run("holdfast", "--version")
            run_user_session(trial)
            measure_installation(trial)
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-") as place:
        with tarfile.open(sdist) as packed:
            packed.extractall(place, filter="data")
        (source,) = Path(place).iterdir()
        compare_contents(wheel, source)
        collect_tests(source)
    print(f"\nAll of it works with {', '.join(tried)}.")


if __name__ == "__main__":
    main()
