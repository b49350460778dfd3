"""`holdfast doctor` warns if another distribution provides the package `holdfast`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.doctor.finding import Finding
from holdfast.cli.doctor.machine import check_distribution


@pytest.fixture(autouse=True)
def hide_installed_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the distributions of this environment."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    install(tmp_path, "holdfast-memory", "0.2.0", record=["holdfast/__init__.py,,"])


def install(site: Path, name: str, version: str, *, record: list[str], **files: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    (folder / "RECORD").write_text("\n".join(record), encoding="utf-8")
    for file, text in files.items():
        (folder / f"{file}.txt").write_text(text, encoding="utf-8")


def warning(finding: Finding) -> str:
    assert finding.level == "warn"
    assert finding.remedy is not None
    assert "from a clone" in finding.remedy
    return f"{finding.message} -> {finding.remedy}"


def test_own_distribution_alone_is_ok(tmp_path: Path) -> None:
    install(tmp_path, "holdfast-tools", "1.0", record=["holdfast_tools/__init__.py,,", "x/holdfast/y.py,,"])
    assert check_distribution().level == "ok"


def test_unrelated_pypi_project_is_named(tmp_path: Path) -> None:
    install(tmp_path, "holdfast", "0.5.1", record=["holdfast/__init__.py,,"])
    told = warning(check_distribution())
    assert "holdfast 0.5.1 is not holdfast-memory" in told
    assert "pip uninstall holdfast;" in told


@pytest.mark.parametrize(
    ("record", "top_level"), [(["holdfast/cli.py,sha256=x,9"], ""), (['"holdfast/a,b.py",,'], ""), ([], "holdfast\n")]
)
def test_any_distribution_with_the_package_is_named(tmp_path: Path, record: list[str], top_level: str) -> None:
    install(tmp_path, "Bulk_Heads", "3.1", record=record, top_level=top_level)
    told = warning(check_distribution())
    assert "Bulk_Heads 3.1 is not holdfast-memory" in told
    assert "pip uninstall Bulk_Heads;" in told


def test_doctor_shows_the_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "holdfast", "0.5.1", record=["holdfast/__init__.py,,"])
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    (at,) = (at for at, line in enumerate(done.stdout.splitlines()) if line.startswith("warn  distribution"))
    assert "holdfast 0.5.1 is not holdfast-memory" in done.stdout.splitlines()[at]
