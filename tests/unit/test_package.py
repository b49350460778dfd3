"""What is installed: a wheel has every file of the package and nothing else, and the version is told in one place."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import holdfast

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
ADAPTERS = ROOT / "tests" / "adapters"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it is released."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_a_wheel_has_every_file(wheel: Path) -> None:
    """Scripts, statements and vocabularies too: without one of them a store opens nowhere but in a clone."""
    with zipfile.ZipFile(wheel) as packed:
        inside = {name for name in packed.namelist() if ".dist-info/" not in name}
    there = {
        path.relative_to(SOURCE).as_posix()
        for path in (SOURCE / "holdfast").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert inside == there
    assert wheel.name.startswith(f"holdfast_memory-{holdfast.__version__}-")


def test_a_wheel_asks_the_index_for_no_distribution_of_our_import_name(wheel: Path) -> None:
    """The index has an unrelated `holdfast`: a requirement of that name would install it."""
    with zipfile.ZipFile(wheel) as packed:
        (metadata,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(packed.read(metadata).decode())
    assert said["Name"] == "holdfast-memory"
    requirements = [Requirement(line) for line in said.get_all("Requires-Dist", [])]
    assert len(requirements) > 20
    assert "holdfast" not in {canonicalize_name(one.name) for one in requirements}
    extras = set(said.get_all("Provides-Extra", []))
    assert {"all", "postgres", "secrets"} <= extras
    asked = {extra: _names(requirements, extra) for extra in extras}
    own = {extra for one in requirements if canonicalize_name(one.name) == said["Name"] for extra in one.extras}
    everything = asked["all"].union(*(asked[extra] for extra in own))
    alone = {
        "all",
        "testing",
        *(path.stem.removeprefix("test_").replace("_", "-") for path in ADAPTERS.glob("test_*.py")),
    }
    assert everything >= set().union(*(names for extra, names in asked.items() if extra not in alone))


def _names(requirements: list[Requirement], extra: str) -> set[str]:
    return {canonicalize_name(one.name) for one in requirements if one.marker and one.marker.evaluate({"extra": extra})}


def test_a_wheel_says_what_it_contains_of_others(wheel: Path) -> None:
    """The bill of materials (`make sbom`) is of this version, and the notice of the vocabularies is among the licences."""
    with zipfile.ZipFile(wheel) as packed:
        info = {name.partition(".dist-info/")[2]: name for name in packed.namelist() if ".dist-info/" in name}
        bill = json.loads(packed.read(info["sboms/contents.cdx.json"]))
        notice = packed.read(info["licenses/src/holdfast/data/README.md"]).decode()
        vocabularies = {name for name in packed.namelist() if name.endswith(".ranks")}
    ours = bill["metadata"]["component"]
    assert (ours["name"], ours["version"]) == ("holdfast-memory", holdfast.__version__)
    assert {one["bom-ref"] for one in ours["components"]} == vocabularies
    assert all(one["copyright"] in notice for one in ours["components"])
