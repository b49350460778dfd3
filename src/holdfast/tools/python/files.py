"""Save files of a work folder as artifacts of the session, and restore them in the work folder of a later process."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import unicodedata
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

import anyio.to_thread
import msgspec

from holdfast.artifacts.blobs import CHUNK
from holdfast.artifacts.service import SessionArtifacts
from holdfast.domain.artifact import USER, Artifact, check_name
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ARTIFACT_NAME_BYTES, PYTHON_KEEP_SECONDS, PYTHON_RESTORED, PYTHON_RESTORED_BYTES
from holdfast.tools.python.calls import CallResult
from holdfast.tools.python.contents import open_file, split_path

AUTHOR: Final = "python"
PATH: Final = "path"
"""Metadata key of an artifact. The value is the path of the saved file in the work folder."""
PLOT: Final = re.compile(r"plot-([1-9][0-9]{0,8})\.png")
_EXTENSION_CHARS: Final = 20
_RESTORED_DEPTH: Final = 32
"""Maximum number of components in the path of a restored file."""
_log = logging.getLogger("holdfast.tools.python")


class SavedFiles(msgspec.Struct):
    """The files and plots of a call that were saved, and those that were not, in the form shown to the model."""

    files: list[dict[str, Any]] = []
    plots: list[dict[str, Any]] = []
    not_kept: list[dict[str, Any]] = []


async def save_files(
    folder: Path, ran: CallResult, artifacts: SessionArtifacts, *, call_id: str, plots: int, most: int
) -> SavedFiles:
    """Save plots and files of a call as artifacts. If one cannot be saved, list it with the reason.

    Args:
        folder: the work folder, whose content is untrusted.
        ran: result of the call.
        artifacts: artifacts of the session.
        call_id: id of the call.
        plots: number of plots that the session already has. New plots get the next numbers.
        most: maximum number of plots and files to save.
    """
    found = SavedFiles()
    try:
        async with asyncio.timeout(PYTHON_KEEP_SECONDS):
            for at, data in enumerate(ran.plots[:most], start=plots + 1):
                name = f"plot-{at}.png"
                saved = await _save(found, name, artifacts, data, {"call_id": call_id})
                if saved is not None:
                    found.plots.append({"artifact": name, "bytes": saved.size, "version": saved.version})
            for path in ran.files[: max(0, most - len(ran.plots))]:
                await _save_file(found, folder, path, artifacts, call_id)
    except TimeoutError:
        reason = f"saving files took longer than {PYTHON_KEEP_SECONDS:g} s"
        found.not_kept.append({"files": len(ran.files) + len(ran.plots) - _count(found), "reason": reason})
        return found
    if (left := len(ran.plots) + len(ran.files) - most) > 0:
        found.not_kept.append({"files": left, "reason": f"at most {most} files and plots of a call are kept"})
    return found


def _count(found: SavedFiles) -> int:
    return len(found.files) + len(found.plots) + len(found.not_kept)


async def _save_file(found: SavedFiles, folder: Path, path: str, artifacts: SessionArtifacts, call_id: str) -> None:
    shown, name = make_printable(path), make_artifact_name(path)
    metadata = {"call_id": call_id, PATH: shown}
    async with aclosing(read(folder, path)) as chunks:
        saved = await _save(found, name, artifacts, chunks, metadata)
    if saved is not None:
        named = {} if name == shown else {"artifact": name}
        found.files.append({"name": shown, "bytes": saved.size, **named, "version": saved.version})


async def _save(
    found: SavedFiles, name: str, artifacts: SessionArtifacts, data: Any, metadata: dict[str, Any]
) -> Artifact | None:
    """Save an artifact. If that fails, add the reason to `found` and return None."""
    try:
        return await artifacts.save(name, data, author=AUTHOR, metadata=metadata)
    except HoldfastError as exc:
        reason = str(exc)
    except OSError as exc:
        reason = f"it cannot be read: {exc.strerror or exc}"
    found.not_kept.append({"name": metadata.get(PATH, name), "reason": reason})
    return None


# -- names -----------------------------------------------------------------------


def make_printable(path: str) -> str:
    """Return a path without surrogates, which JSON text cannot contain."""
    return path.encode("utf-8", "replace").decode()


def make_artifact_name(path: str) -> str:
    """Return the name of the artifact in which a file is saved. Different paths have different names.

    It is the path with `,` in place of `/`, if that is a valid name and the path itself contains no comma. Otherwise a name is generated
    that contains a part of the path's hash.
    """
    plain = path.replace("/", ",")
    if "," not in path:
        try:
            if check_name(plain) == plain and not plain.startswith(USER) and not PLOT.fullmatch(plain):
                return plain
        except InvalidRequest:
            pass
    marks = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    signs = unicodedata.normalize("NFC", "".join(_replace_char(sign) for sign in make_printable(plain)))
    stem, ending = _split_extension(signs)
    room = ARTIFACT_NAME_BYTES - len(ending.encode()) - len(marks) - 1
    stem = stem.encode()[:room].decode(errors="ignore").strip(" .")
    return f"{stem or 'file'}-{marks}{ending}"


def _replace_char(sign: str) -> str:
    return sign if sign.isalnum() or sign in "._-()@+, " else "_"


def _split_extension(name: str) -> tuple[str, str]:
    """Split a file name into stem and extension. The extension includes the dot, and may be empty."""
    stem, dot, ending = name.rpartition(".")
    plain = stem and ending.isascii() and ending.isalnum() and len(ending) <= _EXTENSION_CHARS
    return (stem, dot + ending) if plain else (name, "")


# -- reading ---------------------------------------------------------------------


async def read(folder: Path, path: str) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file in a work folder in chunks, without following links.

    Raises:
        InvalidRequest: the path does not lead to a regular file that can be read.
        OSError: reading failed.
    """
    file = await anyio.to_thread.run_sync(open_file, folder, path)
    if file is None:
        raise InvalidRequest("it is not a regular file, cannot be read, or was deleted")
    try:
        while chunk := await anyio.to_thread.run_sync(os.read, file, CHUNK):
            yield chunk
    finally:
        os.close(file)


# -- restoring -------------------------------------------------------------------


class RestoredFiles(msgspec.Struct):
    """The result of restoring files that earlier processes of a session saved."""

    plots: int = 0
    """Highest number of a saved plot; 0: there are no plots."""
    restored: list[str] = []
    """Paths of the files that were restored."""
    left: int = 0
    """Number of files that were not restored, mostly because they are too many or too large."""


async def restore(found: RestoredFiles, folder: Path, artifacts: SessionArtifacts) -> None:
    """Restore the newest version of each file that the tool saved, in a new work folder and within the limits.

    Files that were saved last are restored first.

    Args:
        found: receives the result, even if this function is cancelled before its end.
        folder: the work folder, which no process uses yet.
        artifacts: artifacts of the session.
    """
    files: list[Artifact] = []
    for artifact in await artifacts.list():
        if artifact.author != AUTHOR:
            continue
        if number := PLOT.fullmatch(artifact.name):
            found.plots = max(found.plots, int(number[1]))
        elif PATH in artifact.metadata:
            files.append(artifact)
    room = PYTHON_RESTORED_BYTES
    for artifact in sorted(files, key=lambda one: one.created_at, reverse=True):
        path = _get_path(artifact)
        known = path is None or str(path) in found.restored
        if path is None or known or artifact.size > room or len(found.restored) == PYTHON_RESTORED:
            found.left += 1
        elif await _restore_file(folder, path, artifact, artifacts):
            room -= artifact.size
            found.restored.append(str(path))
        else:
            found.left += 1


def _get_path(artifact: Artifact) -> PurePosixPath | None:
    """Return the path of a saved file, or None if the path is not valid.

    The path is untrusted, because anyone who may write to the session can set it.
    """
    path = artifact.metadata[PATH]
    steps = split_path(path) if isinstance(path, str) else None
    return PurePosixPath(*steps) if steps and len(steps) <= _RESTORED_DEPTH else None


async def _restore_file(folder: Path, path: PurePosixPath, artifact: Artifact, artifacts: SessionArtifacts) -> bool:
    """Write a saved file to the work folder, completely or not at all. Return True on success.

    The work folder must contain only restored files.
    """
    place, whole = folder / path, False
    try:
        async with artifacts.open(artifact.name, artifact.version) as opened:
            place.parent.mkdir(parents=True, exist_ok=True)
            async with await anyio.open_file(place, "wb") as file:
                async for chunk in opened.chunks:
                    await file.write(chunk)
        whole = True
    except (HoldfastError, OSError, ValueError) as exc:
        _log.warning("a file of an earlier process could not be restored", exc_info=exc)
    finally:
        if not whole:
            with suppress(OSError, ValueError):  # ValueError: the system cannot encode the name
                place.unlink()
    return whole
