"""What Holdfast stands on: Python, its libraries, the tokenizer, open files, the clock."""

from __future__ import annotations

import hashlib
import platform
import re
import sys
import time
from collections.abc import Iterator
from importlib import metadata

from holdfast import distribution
from holdfast._version import __version__
from holdfast.cli.checkup.finding import Finding, fail, ok, warn
from holdfast.cli.terminal import moment
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
