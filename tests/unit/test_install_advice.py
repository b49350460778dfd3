"""No message, page or script says to install `holdfast`, because an unrelated project has that name on the package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.distribution import NAME, format_install_hint
from holdfast.errors import MissingExtra

ROOT = Path(__file__).parents[2]
INSTALLS = re.compile(r"\b(?:pip3?|pipx|uv|poetry|pdm)\b[^\n`]*?\b(?:install|add|run)\b([^\n`]*)|\buvx\b([^\n`]*)")
STRANGER = re.compile(r"(?<![\w./@-])holdfast(?=\[|[=<>~!]=|['\"\s]|$)")
FOLDERS = ("src", "docs", "examples", "scripts", "tests", "benchmarks", "requirements")


def find_wrong_advice(text: str) -> list[str]:
    """Return the arguments of install commands that name the distribution `holdfast`, and any extra of that name."""
    found = [one[1] or one[2] or "" for one in INSTALLS.finditer(text)]
    return [one.strip() for one in found if STRANGER.search(one)] + re.findall(r"(?<![\w-])holdfast\[\w+\]", text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install 'holdfast[postgres]'",
        "pip install --upgrade holdfast",
        "python -m pip install -q holdfast==0.5.1",
        "uv tool install holdfast",
        "uvx holdfast serve",
        "needs holdfast[mysql]",
    ],
)
def test_install_commands_of_the_unrelated_project_are_found(text: str) -> None:
    assert find_wrong_advice(text)


@pytest.mark.parametrize(
    "text", ["pip install '.[postgres]'", "pip install 'holdfast-memory[s3]'", "pip install . && holdfast serve"]
)
def test_correct_install_commands_are_accepted(text: str) -> None:
    assert not find_wrong_advice(text.partition("&&")[0])


def test_no_file_names_the_unrelated_project() -> None:
    paths = [path for path in ROOT.iterdir() if path.is_file() and path.suffix in {".md", ".toml", ""}]
    paths += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths = [path for path in paths if "node_modules" not in path.parts]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in {".py", ".md", ".toml", ".lock", ".yaml", ".yml", ".txt", ""}
        and path.name != Path(__file__).name
    }
    assert {"README.md", "docs/storage.md", "src/holdfast/errors/caller.py", "Dockerfile"} <= set(texts)
    assert {name: found for name, text in texts.items() if (found := find_wrong_advice(text))} == {}


def test_every_error_gives_one_hint() -> None:
    assert str(MissingExtra("a plot", "plot")) == f"a plot needs {format_install_hint('plot')}"
    assert format_install_hint("plot") == f"the extra 'plot' of {NAME}; from a clone: pip install '.[plot]'"


@pytest.mark.parametrize("installed", [True, False])
def test_setup_removes_the_former_distribution_first(tmp_path: Path, installed: bool) -> None:
    """Both contain a package `holdfast`, so removing the old one later would delete files of the new one."""
    calls, site = tmp_path / "calls", tmp_path / "site"
    old = site / "holdfast-0.1.0.dist-info"
    (old if installed else site).mkdir(parents=True)
    if installed:
        (old / "METADATA").write_text("Metadata-Version: 2.4\nName: holdfast\nVersion: 0.1.0\n", encoding="utf-8")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then case "$2" in "import pip"*) exit 0;; esac\n'
        f'PYTHONPATH="{site}" exec "{sys.executable}" -I -c "import sys; sys.path[:] = [\'{site}\', *sys.path[:3]]; $2"; fi\n'
        f'echo "$*" >> "{calls}"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    tools = tmp_path / "tools"  # all that the script may find: not uv
    tools.mkdir()
    for tool in ("bash", "dirname"):
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    done = subprocess.run(
        [ROOT / "scripts" / "setup", "requirements/base.lock", str(tmp_path / "venv")],
        env=os.environ | {"PATH": str(tools)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps = [one for one in calls.read_text(encoding="utf-8").splitlines() if "install" in one]
    assert [("uninstall --yes holdfast" in one) for one in steps] == [True, False, False][not installed :]
    assert steps[-1].endswith("-e .")
