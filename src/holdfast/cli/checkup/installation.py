"""Which installed distributions provide the package `holdfast`: only ours should."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

from holdfast import distribution
from holdfast.cli.checkup.finding import Finding, ok, warn
from holdfast.cli.terminal import line

_PACKAGE = re.compile(r'^"?holdfast/', re.MULTILINE)
"""A file of the package in a RECORD, whose lines begin with a path."""
_OUR_COMMAND = "holdfast.cli:main"


def check_distribution() -> Finding:
    """Warn if a distribution other than `holdfast-memory` provides the package `holdfast`, or has its former name."""
    others = list(_find_others())
    if others:
        names = sorted({one.metadata["Name"] for one in others})
        return warn(
            "distribution",
            "; ".join(_describe(one) for one in others),
            f"pip uninstall {line(' '.join(names))}; then install Holdfast again, {distribution.INSTALL}",
        )
    return ok("distribution", f"{distribution.NAME} alone provides the package holdfast")


def _find_others() -> Iterator[Distribution]:
    for found in distributions():
        name = str(found.metadata["Name"] or "")
        canonical = re.sub(r"[-_.]+", "-", name).lower()
        if canonical == distribution.NAME:
            continue
        if canonical == distribution.FORMER_NAME or _provides_package(found):
            yield found


def _provides_package(found: Distribution) -> bool:
    top_level = (found.read_text("top_level.txt") or "").split()
    return "holdfast" in top_level or _PACKAGE.search(found.read_text("RECORD") or "") is not None


def _describe(found: Distribution) -> str:
    title = f"{line(found.metadata['Name'])} {line(found.version)}"
    if any(point.value == _OUR_COMMAND for point in found.entry_points):
        return f"{title} is Holdfast under its former name, next to {distribution.NAME}"
    return f"{title} is not {distribution.NAME}, and provides the package holdfast too"
