"""docs/licences.md: every dependency has a row, and all licences are known and acceptable."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
ROWS = {
    name: said
    for name, said in re.findall(r"^\|(?: `[\w-]+` \|)? ([\w.-]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)
    if name not in {"distribution", "---"}
}
ACCEPTED = re.compile(
    r"MIT|MIT-0|MIT-CMU|0BSD|BSD|BSD-2-Clause|BSD-3-Clause|Apache-2\.0|PSF-2\.0|CNRI-Python|Zlib|CC0-1\.0|any-OSI|MPL-2\.0 \(its own files\)"
)


def list_dependencies() -> set[str]:
    """Return the dependencies in pyproject.toml, extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for extra in extras.values() for line in extra)]
    return {canonicalize_name(name) for line in lines if (name := Requirement(line).name) != project["name"]}


def test_each_dependency_has_a_row() -> None:
    assert list_dependencies() <= set(ROWS), "python scripts/licences.py writes the page"


def test_each_licence_is_a_known_one() -> None:
    """A new licence has to be reviewed first."""
    unknown = {
        name: said
        for name, said in ROWS.items()
        for one in re.split(r" AND | OR ", said)
        if not ACCEPTED.fullmatch(one)
    }
    assert not unknown
    assert len(ROWS) > 50
