"""Check the machine: Python, libraries, other distributions, tokenizer, open files, clock and sandbox."""

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
from holdfast.cli.terminal import format_line, format_time
from holdfast.errors import HoldfastError, PythonUnavailable
from holdfast.tools.python.settings import PythonSettings

MIN_OPEN_FILES = 1024
"""Limit of open files below which a warning is given. Each client needs one open file, and a second one while its model is called."""
EARLIEST, LATEST = 1_735_689_600, 4_102_444_800
"""First and last plausible time of the clock, in seconds since the epoch: the beginnings of 2025 and of 2100."""
PROBES = {"o200k_base": ("gpt-4o", "Hold fast!", 3), "cl100k_base": ("gpt-4", "Hold fast!", 3)}
"""For each vocabulary: a model that uses it, a text, and the correct number of tokens in the text."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?([^;]*)(;.*)?")
_REINSTALL = "install Holdfast again, from a clone: pip install --force-reinstall ."


def check_python() -> Finding:
    """Report the versions of Python and Holdfast."""
    return ok("python", f"{platform.python_implementation()} {platform.python_version()}, holdfast {__version__}")


def check_libraries() -> Finding:
    """Check that every required library is installed and recent enough."""
    wrong, versions = [], []
    for name, least, always in _read_requirements():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if always:
                wrong.append(f"{name} is missing")
            continue
        versions.append(f"{name} {version}")
        if _parse_version(version) < _parse_version(least):
            wrong.append(f"{name} {version} is older than {least}")
    if wrong:
        return fail("libraries", "; ".join(wrong), _REINSTALL)
    return ok("libraries", ", ".join(versions) or "not installed as a package: nothing to compare")


def check_tokenizer() -> Finding:
    """Check that the vocabularies of the tokenizer can be loaded and count correctly. Loading one verifies its hash."""
    from holdfast.tokens import DATA, get_counter

    loaded = []
    for name, (model, text, tokens) in PROBES.items():
        try:
            counted = get_counter(model).text(text)
            loaded.append(f"{name} {hashlib.sha256((DATA / f'{name}.ranks').read_bytes()).hexdigest()[:12]}")
        except (HoldfastError, OSError, ImportError) as error:
            return fail("tokenizer", f"{name}: {error}", _REINSTALL)
        if counted != tokens:
            return fail("tokenizer", f"{name} counts {counted} tokens instead of {tokens}", _REINSTALL)
    return ok("tokenizer", f"loads, hash verified: {', '.join(loaded)}")


def check_open_files() -> Finding:
    """Check that this process may open enough files."""
    if sys.platform == "win32":
        return ok("files", "no limit of open files on this system")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)]
    message = f"{shown[0]} open files, at most {shown[1]}"
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        return warn("files", f"{message}: enough for only a few clients at once", "ulimit -n 8192")
    return ok("files", message)


def check_sandbox(settings: PythonSettings | None) -> Finding:
    """Check that the system can sandbox the tool `python`.

    Args:
        settings: settings of the tool; None: the tool is disabled, so nothing can fail.
    """
    from holdfast.tools.python.kernels import check_platform
    from holdfast.tools.python.process import detect_sandbox

    found = detect_sandbox()
    there = {True: "yes", False: "no"}
    features = f"Landlock {found.landlock or 'none'}, seccomp {there[found.seccomp]}, limits {there[found.limits]}"
    if settings is None:
        return ok("sandbox", f"the tool python is disabled; {features}")
    try:
        check_platform(settings)
    except PythonUnavailable as error:
        remedy = "the server does not start: see docs/python.md#the-sandbox, or set python.enabled: false"
        return fail("sandbox", str(error), remedy)
    if not found.missing:
        return ok("sandbox", f"the tool python is enabled; {features}")
    message = f"the tool python is enabled; {features}: {'; '.join(found.missing)}"
    return warn("sandbox", message, "give access only to people whom you would give an account on this machine")


def check_clock() -> Finding:
    """Check that the clock is plausible."""
    now = time.time()
    message = f"{format_time(int(now * 1000))}, {time.strftime('%Z')}"
    if EARLIEST <= now <= LATEST:
        return ok("clock", message)
    return fail("clock", f"{message}: this cannot be right", "set the clock, or use NTP")


def _read_requirements() -> Iterator[tuple[str, str, bool]]:
    """Yield each library that Holdfast requires: its name, the minimum version, and True if it is required on every system.

    Libraries of extras are left out.
    """
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


def _parse_version(version: str) -> tuple[int, ...]:
    """Split a version such as `3.50.4.0` into numbers, which can be compared. A suffix such as `rc1` is ignored."""
    return tuple(int(part) for part in re.match(r"[\d.]*", version)[0].split(".") if part)  # type: ignore[index]


# -- distributions ---------------------------------------------------------------

_PACKAGE = re.compile(r'^"?holdfast/', re.MULTILINE)
"""Matches a file of the package `holdfast` in a distribution's file RECORD, in which each line begins with a path."""


def check_distribution() -> Finding:
    """Warn if an unrelated distribution provides the package `holdfast`."""
    others = [one for one in distributions() if _canonicalize(one) != distribution.NAME and _has_package(one)]
    if not others:
        return ok("distribution", f"{distribution.NAME} alone provides the package holdfast")
    names = sorted({str(one.metadata["Name"]) for one in others})
    also = f"is not {distribution.NAME} but also provides the package holdfast"
    found = [f"{format_line(one.metadata['Name'])} {format_line(one.version)} {also}" for one in others]
    remedy = f"pip uninstall {format_line(' '.join(names))}; then install Holdfast again, {distribution.INSTALL}"
    return warn("distribution", "; ".join(found), remedy)


def _canonicalize(found: Distribution) -> str:
    return re.sub(r"[-_.]+", "-", str(found.metadata["Name"] or "")).lower()


def _has_package(found: Distribution) -> bool:
    top_level = (found.read_text("top_level.txt") or "").split()
    return "holdfast" in top_level or _PACKAGE.search(found.read_text("RECORD") or "") is not None
