"""Files of a model that come in a Python package whose code is never imported: where they are, and if they are the published ones."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from holdfast.errors import EmbeddingFailed


def find_package(package: str, missing: str) -> Path:
    """Return the folder of an installed package.

    Args:
        package: as it would be imported.
        missing: message of the error.

    Raises:
        EmbeddingFailed: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise EmbeddingFailed(missing)
    return Path(places[0])


def verify_digest(file: Path, expected: str, install: str) -> None:
    """Compare a file with the published one.

    Args:
        file: read whole.
        expected: SHA-256 of the published file, in hexadecimal.
        install: command that installs it.

    Raises:
        EmbeddingFailed: it differs, or it cannot be read.
    """
    try:
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as exc:
        raise EmbeddingFailed(f"{file} cannot be read: {exc.strerror or exc}") from exc
    if found != expected:
        raise EmbeddingFailed(
            f"{file} is not the published one: its SHA-256 is {found}, expected {expected}: {install} --again"
        )
