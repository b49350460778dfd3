"""scripts/find-python: it finds a Python that can run Holdfast, or says why none of those that it found can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "find-python"


def find_python(folder: Path, lacking: str) -> subprocess.CompletedProcess[str]:
    """Run the script with an interpreter in which statements that contain a text fail."""
    interpreter = folder / "python3.11"
    interpreter.write_text(
        f'#!/bin/sh\ncase "$2" in *"{lacking}"*) exit 1;; esac\nexec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    interpreter.chmod(0o755)
    env = os.environ | {"PYTHON": f"no-such-python {interpreter}", "PATH": "/usr/bin:/bin"}  # without uv
    return subprocess.run(["bash", SCRIPT], env=env, capture_output=True, text=True, check=False)


def test_a_usable_python_is_printed(tmp_path: Path) -> None:
    found = find_python(tmp_path, "no statement has this")
    assert (found.returncode, found.stdout) == (0, f"{sys.executable}\n")


def test_python_without_pip_names_the_package_to_install(tmp_path: Path) -> None:
    """Debian's python3 alone is such a Python."""
    found = find_python(tmp_path, "import ensurepip")
    assert found.returncode == 1
    assert f"{sys.executable} is Python" in found.stderr
    assert "apt install python3-venv" in found.stderr


def test_an_old_python_is_named(tmp_path: Path) -> None:
    found = find_python(tmp_path, "version_info < (3, 11)")
    assert found.returncode == 1
    assert "which is too old" in found.stderr
