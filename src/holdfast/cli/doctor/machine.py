"""What Holdfast needs of its machine: Python, libraries, other distributions, the tokenizer, open files, the clock, the sandbox."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import Distribution, distributions

from holdfast import distribution
from holdfast._version import __version__
from holdfast.cli.doctor.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import line, moment
from holdfast.errors import HoldfastError, PythonUnavailable
from holdfast.tools.python.settings import PythonSettings

FEWEST_FILES = 1024
"""Open files: a client takes one, and one more while its model is called."""
EARLIEST, LATEST = 1_735_689_600, 4_102_444_800
"""Seconds since the epoch, 2025 and 2100: a clock outside is wrong."""
PROBES = {"o200k_base": ("gpt-4o", "Hold fast!", 3), "cl100k_base": ("gpt-4", "Hold fast!", 3)}
"""Vocabulary: a model of its family, a text, and its tokens."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?([^;]*)(;.*)?")
_REINSTALL = "install Holdfast again, from a clone: pip install --force-reinstall ."


def python() -> Finding:
    """Which Python, and which Holdfast."""
    return ok("python", f"{platform.python_implementation()} {platform.python_version()}, holdfast {__version__}")


def libraries() -> Finding:
    """Every library that is needed: there, and new enough."""
    wrong, versions = [], []
    for name, least, always in _required():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if always:
                wrong.append(f"{name} is missing")
            continue
        versions.append(f"{name} {version}")
        if _numbers(version) < _numbers(least):
            wrong.append(f"{name} {version} is older than {least}")
    if wrong:
        return fail("libraries", "; ".join(wrong), _REINSTALL)
    return ok("libraries", ", ".join(versions) or "not installed as a package: nothing to compare with")


def tokenizer() -> Finding:
    """The vocabularies load (which verifies their hash) and count as they should."""
    from holdfast.tokens import DATA, counter_for

    told = []
    for name, (model, text, tokens) in PROBES.items():
        try:
            counted = counter_for(model).text(text)
            told.append(f"{name} {hashlib.sha256((DATA / f'{name}.ranks').read_bytes()).hexdigest()[:12]}")
        except (HoldfastError, OSError, ImportError) as error:
            return fail("tokenizer", f"{name}: {error}", _REINSTALL)
        if counted != tokens:
            return fail("tokenizer", f"{name} counts {counted} tokens where {tokens} are right", _REINSTALL)
    return ok("tokenizer", f"loads, hash verified: {', '.join(told)}")


def open_files() -> Finding:
    """How many files this process may open."""
    if sys.platform == "win32":
        return ok("files", "no limit of open files on this system")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = ["no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)]
    message = f"{told[0]} open files, at most {told[1]}"
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return warn("files", f"{message}: enough for few clients at once", "ulimit -n 8192")
    return ok("files", message)


def sandbox(settings: PythonSettings | None) -> Finding:
    """What the system has to hold in the code of the tool `python`. None: the tool is off."""
    from holdfast.tools.python.kernels import check_platform
    from holdfast.tools.python.process import supported

    found = supported()
    held = f"Landlock {found.landlock or 'none'}, seccomp {_yes(found.seccomp)}, limits {_yes(found.limits)}"
    if settings is None:
        return ok("sandbox", f"the tool python is off; {held}")
    try:
        check_platform(settings)
    except PythonUnavailable as error:
        return fail("sandbox", str(error), "the server does not start so: docs/python.md, or python.enabled: false")
    if not found.missing:
        return ok("sandbox", f"the tool python is on; {held}")
    message = f"the tool python is on; {held}: {'; '.join(found.missing)}"
    return warn("sandbox", message, "let only those chat who might as well have an account on this machine")


def clock() -> Finding:
    """Whether the time can be right."""
    now = time.time()
    message = f"{moment(int(now * 1000))}, {time.strftime('%Z')}"
    if EARLIEST <= now <= LATEST:
        return ok("clock", message)
    return fail("clock", f"{message}: that cannot be", "set the clock, or let NTP do it")


def _yes(there: bool) -> str:  # noqa: FBT001  # one word for it
    return "yes" if there else "no"


def _required() -> Iterator[tuple[str, str, bool]]:
    """Name, least version, and whether it is needed on every system; extras are left out."""
    try:
        requirements = metadata.requires(distribution.NAME) or []
    except metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        found = _REQUIREMENT.fullmatch(requirement.replace(" ", ""))
        if found is None or "extra==" in (found[3] or ""):
            continue
        least = re.search(r">=([\d.]+)", found[2])
        yield found[1], least[1] if least else "0", found[3] is None


def _numbers(version: str) -> tuple[int, ...]:
    """`3.50.4.0` as numbers, to compare; what follows them, like `rc1`, does not count."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


# -- distributions ---------------------------------------------------------------

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
