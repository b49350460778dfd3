"""A workspace's folder: files written and read by name, and which of them are committed, never what a link leads to. Not async.

Each file is read once: the same bytes are searched for secrets, compared with what is committed, and written. So nothing can
change between the check and the commit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

from holdfast.errors import InvalidRequest, SecretBlocked, TooLarge
from holdfast.limits import MIB, WORKSPACE_COMMIT_BYTES, WORKSPACE_FILE_BYTES, WORKSPACE_NAMED
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.secrets import Hit

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
    return f"{stem}.{user_id if is_safe_name(user_id) else make_safe_name(user_id, user_id)}.{suffix}"


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


OnSecret = Literal["block", "warn"]
"""What becomes of a commit with a secret in it: it is refused, or made all the same and told of in the log."""
Find = Callable[[str], Sequence[Hit]]
"""Finds secrets in a text."""

IGNORED: Final = "transcripts/\nmedia/\n*.tmp\n*.swp\n.DS_Store\n"
"""`.gitignore` of a new repository."""
ATTRIBUTES: Final = "*.md text eol=lf\n*.yaml text eol=lf\n*.yml text eol=lf\n*.json text eol=lf\n"
"""`.gitattributes` of a new repository."""
_TEXTS: Final = (b".md", b".yaml", b".yml", b".json")
"""Files whose lines end as `ATTRIBUTES` says, whatever stands in that file: what may run a filter is not asked."""
LINK: Final = b"120000"
_FILE: Final = b"100644"
_PROGRAM: Final = b"100755"
_REPOSITORY: Final = b"160000"
_FOUND: Final = 20
"""Secrets after which nothing more is looked for."""
_SHOWN_CHARS: Final = 200
_UNSEEN: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that some file systems pass over in a name."""
_MODULES: Final = re.compile(r"\.gitmodules|g\w{0,5}~[0-9]+")
"""Names that some file systems take for `.gitmodules`; git refuses a link of that name."""
_READABLE: Final = re.compile(rb"[\x20-\x7e\t]{7,}|\n")
_FLAGS: Final = READ | NO_FOLLOW
_LINES: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""What would begin a new line, move a cursor or turn the direction of what stands beside it."""


class Tracked(NamedTuple):
    """A file as it was committed last."""

    mode: bytes
    oid: str


class LeftOut(NamedTuple):
    """A file that is not in a commit, or not as it is now."""

    name: str
    why: str


class Draft(NamedTuple):
    """What a commit would change."""

    changes: tuple[bytes, ...]
    """As `git fast-import` reads them, behind those blobs that were written already."""
    left_out: tuple[LeftOut, ...]
    secrets: tuple[tuple[str, str], ...]
    """Rule and place of each; where they block, nobody gets this."""


class Limit(NamedTuple):
    """What may be committed."""

    find: Find | None
    """None: nobody looks for secrets."""
    policy: Literal["block", "warn", "leave"] = "block"
    """`leave`: a file that holds one is left out, and named."""


class _Read(NamedTuple):
    mode: bytes
    data: bytes


class Drafting:
    """Makes a draft. Not async: reading, hashing and looking for secrets take their time.

    Args:
        folder: the workspace's.
        blobs: where the contents that change are written, as `git fast-import` reads them.
        limit: what may be committed.
    """

    def __init__(self, folder: Path, blobs: BinaryIO, limit: Limit) -> None:
        self._folder = os.fsencode(folder)
        self._blobs = blobs
        self._limit = limit
        self._marks = 1  # the first is the commit's
        self._bytes = 0
        self._changes: list[bytes] = []
        self._gone: list[bytes] = []
        self._left: list[LeftOut] = []
        self._secrets: list[tuple[str, str]] = []

    def drafted(self, listed: Iterable[bytes], tracked: Mapping[bytes, Tracked]) -> Draft:
        """What changes from what is tracked to what is there.

        Args:
            listed: paths that are there and not ignored; with a slash at the end: a repository of its own.
            tracked: files as they were committed last; one that is ignored by now is followed all the same.

        Raises:
            SecretBlocked: a file that changes holds a secret; says which file, line and rule.
            TooLarge: more has changed than one commit takes.
        """
        for path in sorted({*listed, *(path for path, of in tracked.items() if of.mode != _REPOSITORY)}):
            self._take(path, tracked.get(path))
        if self._limit.policy == "block" and self._secrets:
            raise SecretBlocked(self._secrets)
        # What goes first makes room: a file may have become a folder of that name.
        return Draft((*self._gone, *self._changes), tuple(self._left), tuple(self._secrets))

    def _take(self, path: bytes, before: Tracked | None) -> None:
        if path.endswith(b"/"):
            self._leave(path, "a repository of its own")
            return
        if _is_gits(path):
            self._leave(path, "its name is one that git keeps for itself")
            return
        read = self._read(path)
        if isinstance(read, str):
            self._leave(path, read)
        elif read is None:
            self._gone += [b"D " + _quoted(path)] * (before is not None)
        elif read.mode == LINK and _MODULES.fullmatch(_plain(path.rpartition(b"/")[2])):
            self._leave(path, "its name is one that git keeps for itself")
        elif before != (read.mode, oid_of(read.data)):
            self._change(path, read)

    def _leave(self, path: bytes, why: str) -> None:
        """Note a file that is left out; its name is told in the commit, so it must be no secret."""
        find = self._limit.find
        hides = find is not None and self._limit.policy != "warn" and find(os.fsdecode(path))
        self._left.append(LeftOut("a file whose name is a secret" if hides else shown(path), why))

    def _read(self, path: bytes) -> _Read | str | None:
        """A file's content; why it is left out; None: there is none."""
        try:
            read = _content(self._folder, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ELOOP:  # a folder on the way is a link by now
                return None
            return f"it cannot be read: {exc.strerror or type(exc).__name__}"
        if isinstance(read, int):
            return f"it has {read:,} bytes; at most {WORKSPACE_FILE_BYTES:,} are committed"
        return read

    def _change(self, path: bytes, read: _Read) -> None:
        found = self._look(path, read.data)
        if found and self._limit.policy == "leave":
            self._leave(path, f"a secret stands in {found[0][1]} (rule {found[0][0]})")
            return
        self._secrets += found
        if found and self._limit.policy == "block":
            return
        self._bytes += len(read.data)
        if self._bytes > WORKSPACE_COMMIT_BYTES:
            raise TooLarge(
                f"more than {WORKSPACE_COMMIT_BYTES // MIB} MiB of the workspace have changed: ignore some of it"
            )
        self._marks += 1
        self._blobs.write(b"blob\nmark :%d\ndata %d\n%b\n" % (self._marks, len(read.data), read.data))
        self._changes.append(b"M %b :%d %b" % (read.mode, self._marks, _quoted(path)))

    def _look(self, path: bytes, data: bytes) -> list[tuple[str, str]]:
        """Rule and place of the secrets in a file, and in its name."""
        find = self._limit.find
        if find is None or len(self._secrets) >= _FOUND:
            return []
        if hits := find(os.fsdecode(path)):
            return [(hits[0].rule, "the name of a file")]
        text = text_of(data)
        return [(hit.rule, f"{shown(path)}, line {line_of(text, hit.start)}") for hit in find(text)[:_FOUND]]


def secrets_in(text: str, place: str, find: Find | None) -> list[tuple[str, str]]:
    """Rule and place of the secrets in a text."""
    return [(hit.rule, f"{place}, line {line_of(text, hit.start)}") for hit in find(text)] if find else []


def named(left_out: Sequence[LeftOut]) -> str:
    """The files that are left out, for the body of a commit."""
    if not left_out:
        return ""
    told = [f"- {one.name}: {one.why}" for one in left_out[:WORKSPACE_NAMED]]
    more = len(left_out) - len(told)
    return "\n".join(["Left out:", *told, *[f"- and {more:,} more"] * (more > 0)])


def oid_of(data: bytes) -> str:
    """What git calls a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def text_of(data: bytes) -> str:
    """The text that a file holds, as far as it is one: a byte that is none hides nothing of what stands around it."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        if b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
    # What can be read in it: a secret has seven characters at least. UTF-16 is ASCII with a NUL behind each character.
    return b" ".join(_READABLE.findall(data.replace(b"\0", b""))).decode()


def line_of(text: str, at: int) -> int:
    """The number of the line that a character stands in, from 1."""
    return text.count("\n", 0, at) + 1


def one_line(text: str) -> str:
    """A text as one line, without what only steers a terminal."""
    return " ".join(_LINES.sub(" ", _unicode(text)).split())


def several_lines(text: str) -> str:
    """The same for a text that may have several."""
    kept = (_LINES.sub(" ", line).rstrip() for line in _unicode(text).replace("\r\n", "\n").split("\n"))
    return "\n".join(kept).strip()


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def shown(path: bytes) -> str:
    """A path to be read by people: on one line, and not too long."""
    text = path.decode("utf-8", "backslashreplace")
    plain = "".join(ascii(one)[1:-1] if unicodedata.category(one)[0] == "C" else one for one in text)
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}…"


# -- on the disk -----------------------------------------------------------------


def _content(folder: bytes, path: bytes) -> _Read | int | None:
    """A file, or a link itself; its size where that is too large; None: neither. Raises `OSError`.

    Each folder on the way is opened in the one before, and no link is followed: what is outside is out of reach, also while
    somebody moves things about.
    """
    *above, name = path.split(b"/")
    at = os.open(folder, FOLDER)
    try:
        for part in above:
            below = os.open(part, _FLAGS | FOLDER, dir_fd=at)
            os.close(at)
            at = below
        return _at(at, name)
    finally:
        os.close(at)


def _at(folder: int, name: bytes) -> _Read | int | None:
    kind = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISLNK(kind):
        target = os.readlink(name, dir_fd=folder)
        return _Read(LINK, target)
    if not stat.S_ISREG(kind):
        return None
    file = os.open(name, _FLAGS, dir_fd=folder)
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            return None
        data = opened.read(WORKSPACE_FILE_BYTES + 1)
    if len(data) > WORKSPACE_FILE_BYTES:
        return max(found.st_size, len(data))
    if name.lower().endswith(_TEXTS) and b"\0" not in data:
        data = data.replace(b"\r\n", b"\n")
    return _Read(_PROGRAM if found.st_mode & stat.S_IXUSR else _FILE, data)


def _is_gits(path: bytes) -> bool:
    """Whether a part of a path is, on some file system, the folder of a repository."""
    return any(_plain(part) in {".git", "git~1"} for part in re.split(rb"[/\\]", path))


def _plain(part: bytes) -> str:
    """What is left of a name on a file system that passes over much of it."""
    return _UNSEEN.sub("", part.decode("utf-8", "replace")).partition(":")[0].rstrip(". ").lower()


def _quoted(path: bytes) -> bytes:
    """A path as `git fast-import` reads it."""
    escaped = b"".join(
        b"\\%03o" % byte if byte < 32 or byte in b'"\\' or byte == 127 else b"%c" % byte for byte in path
    )
    return b'"%b"' % escaped
