"""The gallery of `examples/`, run by the lines of its README and compared with the output that stands there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
SERVE = re.compile(r"holdfast serve *(#.*)?")
LEFT_OUT = "…"
OUTSIDE = ("HOLDFAST_", "OPENAI_", "ANTHROPIC_", "LANGSMITH_", "LANGCHAIN_")


class Example:
    """One section of the README.

    Args:
        path: the program that it is about, as the section links to it.
        place: where it is run: a copy of the examples lies there, as they lie in a clone.
    """

    def __init__(self, path: str, place: Path) -> None:
        (section,) = [one for one in sections() if f"]({path})" in one]
        (self.commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
        (self.output,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
        self.place = place
        if not (place / "examples").exists():
            shutil.copytree(FOLDER, place / "examples", ignore=shutil.ignore_patterns("__pycache__", "*.db*"))

    def run(self, store: str | None = None, **env: str) -> str:
        """What its lines print, a server started where they say so.

        Args:
            store: in place of the one that the lines name, which is anybody's.
            env: what the reader has set.
        """
        lines = self.commands.splitlines()
        served = SERVE.fullmatch(lines[0]) is not None
        script = "\n".join(lines[1:] if served else lines)
        if store is not None:
            script, found = re.subn(r"HOLDFAST_STORE='[^']*'", f"HOLDFAST_STORE='{store}'", script)
            assert found == 1, script
        if not served:
            return self.shell(script, **env)
        with self.serving(**env) as url:
            return self.shell(script, HOLDFAST_URL=url, **env)

    def shell(self, script: str, **env: str) -> str:
        """What a script prints; it has to succeed, each line of it."""
        command = ["bash", "-euo", "pipefail", "-c", script]
        done = subprocess.run(
            command, cwd=self.place, env=environment(env), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def serving(self, **env: str) -> Iterator[str]:
        """`holdfast serve` as it is called there, but on a free port; its URL. It ends as it should."""
        process = subprocess.Popen(
            ["holdfast", "serve"],
            cwd=self.place,
            env=environment({"HOLDFAST_PORT": "0", **env}),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert first.startswith("Holdfast listens on http://"), first
            yield first.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.close()
            code = process.wait(timeout=60)
        assert code == 0

    def check_output(self, output: str) -> None:
        """The README tells the truth: its lines are in the output, in this order; `…` is anything, on a line of its own any lines."""
        said, at = output.splitlines(), 0
        between = True
        for wanted in self.output.splitlines():
            if wanted == LEFT_OUT:
                between = True
                continue
            rule = re.compile(".*".join(re.escape(part) for part in wanted.split(LEFT_OUT)))
            places = range(at, len(said) if between else min(at + 1, len(said)))
            found = next((place for place in places if rule.fullmatch(said[place].rstrip())), None)
            assert found is not None, f"not shown: {wanted!r}\nbehind line {at} of\n{output}"
            at, between = found + 1, False


def sections() -> list[str]:
    """The README's sections, one for each example."""
    return re.split(r"^## ", README, flags=re.MULTILINE)[1:]


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """That of a reader: `python` and `holdfast` are those of the project; nothing of the outside, no proxies."""
    known = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(OUTSIDE) and "proxy" not in name.lower()
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**known, "PATH": path, "PYTHONIOENCODING": "utf-8", "LANGSMITH_TRACING": "false", **more}
