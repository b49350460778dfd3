"""A workspace's folder, and the files that are written and read there by name. Not async."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from holdfast.errors import InvalidRequest
from holdfast.limits import WORKSPACE_FILE_BYTES
from holdfast.safe_names import is_plain, with_digest

OF_USERS: Final = ("MEMORY.md", "DREAMS.md")
"""Files beside which there is one of each user's own, which other users do not see."""
PART: Final = ".holdfast-part"
"""End of the name of a file that is being written."""
_NAME: Final = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")
# Some systems lack some of these.
_SHUT: Final = getattr(os, "O_CLOEXEC", 0)
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
READ: Final = os.O_RDONLY | _SHUT | getattr(os, "O_NONBLOCK", 0)
"""How a file is opened that may be something else, which is not waited for."""
FOLDER: Final = os.O_RDONLY | _SHUT | getattr(os, "O_DIRECTORY", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | _SHUT


def check_file(name: str) -> None:
    """Refuse a name that leads elsewhere, or into the repository. Raises `InvalidRequest`."""
    taken = name.lower().startswith(".git") or name in {".", ".."} or name.endswith(PART)
    if not _NAME.fullmatch(name) or taken or len(name.encode("utf-8", "replace")) > 200:
        raise InvalidRequest(f"{name!r:.80} is no name of a file in a workspace: one like MEMORY.md is", param="name")


def file_of_user(name: str, user_id: str) -> str:
    """The file of a user's own that stands beside one of the agent's, of those in `OF_USERS`: `MEMORY.ada.md`."""
    stem, _, suffix = name.partition(".")
    return f"{stem}.{user_id if is_plain(user_id) else with_digest(user_id, user_id)}.{suffix}"


def made(folder: Path) -> int:
    """The folder, made if need be for its owner alone, and opened."""
    for one in (*reversed(folder.parents), folder):
        if not one.is_dir():
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode=0o700)
    return os.open(folder, FOLDER)


def replaced(folder: Path, name: str, data: bytes) -> None:
    """Write a file, whole or not at all. Raises `OSError`."""
    part = folder / f".{name}{PART}"
    part.unlink(missing_ok=True)  # what a process that was killed has left
    with os.fdopen(os.open(part, _NEW, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        part.replace(folder / name)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def remove_parts(folder: Path) -> None:
    """Remove what processes that were killed have left of files they wrote; nobody writes now. Raises `OSError`."""
    with os.scandir(folder) as found:
        left = [one.path for one in found if one.name.endswith(PART) and not one.is_dir(follow_symlinks=False)]
    for path in left:
        os.unlink(path)  # noqa: PTH108


def loaded(path: Path) -> bytes | None:
    """What a file holds, as far as it may be committed; None: there is none, but a link perhaps. Raises `OSError`."""
    try:
        file = os.open(path, READ | NO_FOLLOW)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            return None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read(WORKSPACE_FILE_BYTES)


def put_if_missing(folder: Path, name: str, text: str) -> None:
    """Write a file unless something is there by that name. Raises `OSError`."""
    with contextlib.suppress(FileExistsError):
        file = os.open(folder / name, _NEW, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)
