"""What is installed: a wheel has every file of the package and nothing else, and the version is told in one place."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import holdfast

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


def test_a_wheel_has_every_file(tmp_path: Path) -> None:
    """Scripts, statements and vocabularies too: without one of them a store opens nowhere but in a clone."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    there = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "holdfast").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert inside == there
    assert wheel.name.startswith(f"holdfast-{holdfast.__version__}-")


def test_the_changelog_tells_of_this_version() -> None:
    """Under its number, with the day; what is not released stands above it."""
    assert f"\n## {holdfast.__version__}, 20" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
