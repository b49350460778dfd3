"""Files of a work folder become artifacts of the session, and come back into a fresh one."""

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

from holdfast.artifacts import SessionArtifacts
from holdfast.artifacts.blobs import CHUNK
from holdfast.domain.artifact import USER, Artifact, check_name
from holdfast.errors import HoldfastError, InvalidRequest
from holdfast.limits import ARTIFACT_NAME_BYTES, PYTHON_KEEP_SECONDS, PYTHON_RESTORED, PYTHON_RESTORED_BYTES
from holdfast.tools.python.calls import Ran
from holdfast.tools.python.contents import open_file, steps_of

AUTHOR: Final = "python"
PATH: Final = "path"
"""In an artifact's metadata: where in the work folder it was."""
PLOT: Final = re.compile(r"plot-([1-9][0-9]{0,8})\.png")
_LONGEST_ENDING: Final = 20
_DEEPEST: Final = 32
"""Folders in each other that a file is put back into."""
_log = logging.getLogger("holdfast.tools.python")


class Kept(msgspec.Struct):
    """What became of the files and plots of a call, as the model is told."""

    files: list[dict[str, Any]] = []
    plots: list[dict[str, Any]] = []
    not_kept: list[dict[str, Any]] = []


async def kept(folder: Path, ran: Ran, artifacts: SessionArtifacts, *, call_id: str, plots: int, most: int) -> Kept:
    """Keep the plots and files of a call as artifacts. What cannot be kept is told, with the reason.

    Args:
        folder: where the files are. Whatever is in it is nobody's to trust.
        ran: what came of the call.
        artifacts: the session's.
        call_id: names the call.
        plots: plots that the session has already.
        most: plots and files that are kept.
    """
    found = Kept()
    try:
        async with asyncio.timeout(PYTHON_KEEP_SECONDS):
            for at, data in enumerate(ran.plots[:most], start=plots + 1):
                name = f"plot-{at}.png"
                saved = await _saved(found, name, artifacts, data, {"call_id": call_id})
                if saved is not None:
                    found.plots.append({"artifact": name, "bytes": saved.size, "version": saved.version})
            for path in ran.files[: max(0, most - len(ran.plots))]:
                await _keep_file(found, folder, path, artifacts, call_id)
    except TimeoutError:
        reason = f"keeping files took longer than {PYTHON_KEEP_SECONDS:g} s"
        found.not_kept.append({"files": len(ran.files) + len(ran.plots) - _told(found), "reason": reason})
        return found
    if (left := len(ran.plots) + len(ran.files) - most) > 0:
        found.not_kept.append({"files": left, "reason": f"at most {most} files and plots of a call are kept"})
    return found


def _told(found: Kept) -> int:
    return len(found.files) + len(found.plots) + len(found.not_kept)


async def _keep_file(found: Kept, folder: Path, path: str, artifacts: SessionArtifacts, call_id: str) -> None:
    shown, name = shown_path(path), artifact_name(path)
    metadata = {"call_id": call_id, PATH: shown}
    async with aclosing(read(folder, path)) as chunks:
        saved = await _saved(found, name, artifacts, chunks, metadata)
    if saved is not None:
        named = {} if name == shown else {"artifact": name}
        found.files.append({"name": shown, "bytes": saved.size, **named, "version": saved.version})


async def _saved(
    found: Kept, name: str, artifacts: SessionArtifacts, data: Any, metadata: dict[str, Any]
) -> Artifact | None:
    """The artifact; None where it is none, which is told."""
    try:
        return await artifacts.save(name, data, author=AUTHOR, metadata=metadata)
    except HoldfastError as exc:
        reason = str(exc)
    except OSError as exc:
        reason = f"it cannot be read: {exc.strerror or exc}"
    found.not_kept.append({"name": metadata.get(PATH, name), "reason": reason})
    return None


# -- names -----------------------------------------------------------------------


def shown_path(path: str) -> str:
    """A path as JSON can have it."""
    return path.encode("utf-8", "replace").decode()


def artifact_name(path: str) -> str:
    """What the artifact of a file is called: its path with `,` for `/` where that is a name, else one made from it.

    Two paths have different names: one that is made has a part of the path's hash in it.
    """
    plain = path.replace("/", ",")
    if "," not in path:
        try:
            if check_name(plain) == plain and not plain.startswith(USER) and not PLOT.fullmatch(plain):
                return plain
        except InvalidRequest:
            pass
    marks = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    signs = unicodedata.normalize("NFC", "".join(_sign(sign) for sign in shown_path(plain)))
    stem, ending = _split(signs)
    room = ARTIFACT_NAME_BYTES - len(ending.encode()) - len(marks) - 1
    stem = stem.encode()[:room].decode(errors="ignore").strip(" .")
    return f"{stem or 'file'}-{marks}{ending}"


def _sign(sign: str) -> str:
    return sign if sign.isalnum() or sign in "._-()@+, " else "_"


def _split(name: str) -> tuple[str, str]:
    """A name, and its ending with the dot."""
    stem, dot, ending = name.rpartition(".")
    plain = stem and ending.isascii() and ending.isalnum() and len(ending) <= _LONGEST_ENDING
    return (stem, dot + ending) if plain else (name, "")


# -- reading ---------------------------------------------------------------------


async def read(folder: Path, path: str) -> AsyncGenerator[bytes, None]:
    """A file of a work folder in chunks; see `holdfast.tools.python.contents.open_file`.

    Raises:
        InvalidRequest: it is no file that can be read.
        OSError: it could not be read to its end.
    """
    file = await anyio.to_thread.run_sync(open_file, folder, path)
    if file is None:
        raise InvalidRequest("it is no plain file, cannot be read, or is gone")
    try:
        while chunk := await anyio.to_thread.run_sync(os.read, file, CHUNK):
            yield chunk
    finally:
        os.close(file)


# -- coming back -----------------------------------------------------------------


class Earlier(msgspec.Struct):
    """What a session has of earlier processes."""

    plots: int = 0
    """The highest number of a plot."""
    restored: list[str] = []
    """Files that were put back."""
    left: int = 0
    """Files that were not, because they are too many or too large."""


async def restore(found: Earlier, folder: Path, artifacts: SessionArtifacts) -> None:
    """Put the newest versions of files that the tool kept into a fresh work folder, as far as the limits go.

    Args:
        found: takes what was found and done.
        folder: nobody is at work in it yet.
        artifacts: the session's.
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
        path = _place(artifact)
        known = path is None or str(path) in found.restored
        if path is None or known or artifact.size > room or len(found.restored) == PYTHON_RESTORED:
            found.left += 1
        elif await _put_back(folder, path, artifact, artifacts):
            room -= artifact.size
            found.restored.append(str(path))
        else:
            found.left += 1


def _place(artifact: Artifact) -> PurePosixPath | None:
    """Where a file is put: where it was. Anybody who may write to the session can say anything there."""
    said = artifact.metadata[PATH]
    steps = steps_of(said) if isinstance(said, str) else None
    return PurePosixPath(*steps) if steps and len(steps) <= _DEEPEST else None


async def _put_back(folder: Path, path: PurePosixPath, artifact: Artifact, artifacts: SessionArtifacts) -> bool:
    """Write a file, whole or not at all; whether it is there. In the folder is nothing but what was put back before."""
    place, whole = folder / path, False
    try:
        async with artifacts.open(artifact.name, artifact.version) as opened:
            place.parent.mkdir(parents=True, exist_ok=True)
            async with await anyio.open_file(place, "wb") as file:
                async for chunk in opened.chunks:
                    await file.write(chunk)
        whole = True
    except (HoldfastError, OSError, ValueError) as exc:
        _log.warning("a file of an earlier process could not be put back", exc_info=exc)
    finally:
        if not whole:
            with suppress(OSError, ValueError):  # the second: a name that this system has no bytes for
                place.unlink()
    return whole
