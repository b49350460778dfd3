"""Write the software bills of materials of a release: `python -m scripts.sbom dist`, in the environment of requirements/sbom.lock.

A bill is a CycloneDX 1.6 document in JSON. The folder gets one for the base installation and one for each extra that can be combined
with the others, with the locked versions for Linux. `src/holdfast/data/contents.cdx.json` describes what the wheel itself contains; it is
committed, and hatchling copies it into the wheel (PEP 770). Equal input gives equal bytes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from holdfast import __version__
from scripts.licences import OURS, collect_dependencies, find_licence, list_extras

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "sbom.lock"
CONTENTS = ROOT / "src" / "holdfast" / "data" / "contents.cdx.json"
CHANGELOG = ROOT / "CHANGELOG.md"
VOCABULARIES = (("o200k_base", "o200k_base.ranks"), ("cl100k_base", "cl100k_base.ranks"))
"""Third-party data in the wheel: names and files of vocabularies that OpenAI publishes with tiktoken (MIT)."""


def make_component(name: str, version: str, licence: str, kind: ComponentType = ComponentType.LIBRARY) -> Component:
    """Return the component for a distribution of the Python package index."""
    purl = PackageURL("pypi", None, canonicalize_name(name), version)
    return Component(
        name=name,
        version=version,
        type=kind,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)],
    )


def make_root() -> Component:
    """Return the component for Holdfast, with the third-party data that the wheel contains."""
    root = make_component(OURS, __version__, "MIT")
    for name, file in VOCABULARIES:
        root.components.add(
            Component(
                name=name,
                type=ComponentType.DATA,
                bom_ref=f"holdfast/data/{file}",
                description="token ranks, published with tiktoken; packed by scripts/pack_ranks.py",
                copyright="Copyright (c) 2022 OpenAI, Shantanu Jain",
                licenses=[LicenseFactory().make_from_string("MIT")],
            )
        )
    return root


def make_bill(found: Mapping[str, Distribution], direct: Iterable[str], subject: str, at: datetime) -> Bom:
    """Return the bill for an installation.

    Args:
        found: all distributions that Holdfast needs, by canonical name.
        direct: canonical names of those that Holdfast itself requires.
        subject: what the bill describes; part of the serial number.
        at: the time to state.
    """
    root = make_root()
    bill = Bom(serial_number=uuid5(NAMESPACE_URL, f"{root.bom_ref.value}#{subject}"))
    bill.metadata.timestamp = at
    bill.metadata.component = root
    components = {name: make_component(one.name, one.version, find_licence(one)) for name, one in found.items()}
    bill.components.update(components.values())
    bill.register_dependency(root, [components[name] for name in sorted(direct) if name in components])
    for name, one in found.items():
        required = {canonicalize_name(Requirement(line).name) for line in one.requires or ()}
        bill.register_dependency(components[name], [components[other] for other in sorted(required & set(components))])
    return bill


def write_bill(bill: Bom, path: Path) -> None:
    """Write a bill; exit if it is not valid."""
    text = JsonV1Dot6(bill).output_as_string(indent=2) + "\n"
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"{path.name} is not a valid CycloneDX document: {error}")
    path.write_text(text, encoding="utf-8")


def read_release_time() -> datetime:
    """Return the time of SOURCE_DATE_EPOCH, or else the day of the newest release in the changelog."""
    if stated := os.environ.get("SOURCE_DATE_EPOCH"):
        return datetime.fromtimestamp(int(stated), UTC)
    day = re.search(r"^## \d\S* \S (\d{4}-\d\d-\d\d)$", CHANGELOG.read_text(encoding="utf-8"), re.MULTILINE)
    if day is None:
        sys.exit("write the day of the release into CHANGELOG.md, or set SOURCE_DATE_EPOCH")
    return datetime.fromisoformat(f"{day[1]}T00:00:00+00:00")


def check_versions(found: Mapping[str, Distribution]) -> None:
    """Exit if an installed version is not the locked one."""
    # One distribution can have several locked versions, for different versions of Python.
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    wrong = {name: one.version for name, one in found.items() if (name, one.version) not in locked}
    if wrong:
        sys.exit(f"These versions are not those of {LOCK.name}: {wrong}. Run `make sbom`, which installs the lock.")


def list_direct(extra: str) -> set[str]:
    """Return the canonical names of the distributions that Holdfast itself requires with an extra, or with none if it is empty."""
    requirements = [Requirement(line) for line in distribution(OURS).requires or ()]
    return {
        canonicalize_name(one.name)
        for one in requirements
        if one.marker is None or one.marker.evaluate({"extra": extra})
    }


def main() -> None:
    """Write the bills."""
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    at = read_release_time()
    write_bill(make_bill({}, (), "contents", at), CONTENTS)
    extras = list_extras()
    combined = sorted(name for name in extras if name != "all" and extras[name] <= extras["all"])
    for extra in ("", *combined, "all"):
        found: dict[str, Distribution] = {}
        collect_dependencies(OURS, frozenset({extra} if extra else ()), found)
        check_versions(found)
        path = folder / f"{OURS}-{__version__}{f'-{extra}' if extra else ''}.cdx.json"
        write_bill(make_bill(found, list_direct(extra), extra, at), path)
        print(f"{path.name}: {len(found)} distributions")


if __name__ == "__main__":
    main()
