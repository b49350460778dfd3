"""Read and write files of a workspace by name, and prepare the changes of a commit, without following links. Nothing here is async.

For a commit, each file is read only once. The same bytes are searched for secrets, compared with the last commit, and written to the new
one. So no file can change between the check and the commit.
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
from typing import BinaryIO, Final, NamedTuple

from holdfast.errors import InvalidRequest, SecretBlocked, TooLarge
from holdfast.limits import MIB, WORKSPACE_COMMIT_BYTES, WORKSPACE_FILE_BYTES, WORKSPACE_NAMED
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.secrets.redactor import Hit

PER_USER_FILES: Final = ("MEMORY.md", "DREAMS.md")
"""Names of files that each user may have in a separate version, which other users do not see."""
PART_SUFFIX: Final = ".holdfast-part"
"""Suffix of the temporary file to which a file is first written."""
_NAME: Final = re.compile(r"[^/\\\x00-\x1f\x7f]{1,200}")
# Some systems lack some of these flags.
_CLOSE_ON_EXEC: Final = getattr(os, "O_CLOEXEC", 0)
NO_FOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
READ: Final = os.O_RDONLY | _CLOSE_ON_EXEC | getattr(os, "O_NONBLOCK", 0)
"""Flags for opening a path without waiting, because the path may lead to a pipe."""
FOLDER: Final = os.O_RDONLY | _CLOSE_ON_EXEC | getattr(os, "O_DIRECTORY", 0)
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | _CLOSE_ON_EXEC


def check_file(name: str) -> None:
    """Raise `InvalidRequest` if a file name is not valid in a workspace, for example if the path leads out of the folder or into `.git`."""
    taken = name.lower().startswith(".git") or name in {".", ".."} or name.endswith(PART_SUFFIX)
    if not _NAME.fullmatch(name) or taken or len(name.encode("utf-8", "replace")) > 200:
        raise InvalidRequest(
            f"{name!r:.80} is not a valid file name in a workspace: use a name like MEMORY.md", param="name"
        )


def make_user_file_name(name: str, user_id: str) -> str:
    """Return the name of a user's own version of a file in `PER_USER_FILES`, for example `MEMORY.ada.md`."""
    stem, _, suffix = name.partition(".")
    return f"{stem}.{user_id if is_safe_name(user_id) else make_safe_name(user_id, user_id)}.{suffix}"


def make_folder(folder: Path) -> int:
    """Open a folder and return its descriptor. A missing folder is created, and only its owner may access it."""
    for one in (*reversed(folder.parents), folder):
        if not one.is_dir():
            with contextlib.suppress(FileExistsError):
                one.mkdir(mode=0o700)
    return os.open(folder, FOLDER)


def write_file(folder: Path, name: str, data: bytes) -> None:
    """Write a file completely or not at all. Raise `OSError` if that fails."""
    part = folder / f".{name}{PART_SUFFIX}"
    part.unlink(missing_ok=True)  # left by a killed process
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
    """Remove partially written files of killed processes. No other process may be writing. Raise `OSError` if that fails."""
    with os.scandir(folder) as found:
        left = [one.path for one in found if one.name.endswith(PART_SUFFIX) and not one.is_dir(follow_symlinks=False)]
    for path in left:
        os.unlink(path)  # noqa: PTH108


def read_file(path: Path) -> bytes | None:
    """Return the first `WORKSPACE_FILE_BYTES` bytes of a file. Return None if it does not exist or is no regular file, for example a link.

    Raises:
        OSError: the file cannot be read.
    """
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
    """Write a file, unless a file with that name exists. Raise `OSError` if writing fails."""
    with contextlib.suppress(FileExistsError):
        file = os.open(folder / name, _NEW, 0o600)
        with os.fdopen(file, "w", encoding="utf-8") as opened:
            opened.write(text)


Find = Callable[[str], Sequence[Hit]]
"""A function that finds secrets in a text."""

IGNORED: Final = "transcripts/\nmedia/\n*.tmp\n*.swp\n.DS_Store\n"
"""Content of `.gitignore` in a new repository."""
ATTRIBUTES: Final = "*.md text eol=lf\n*.yaml text eol=lf\n*.yml text eol=lf\n*.json text eol=lf\n"
"""Content of `.gitattributes` in a new repository."""
_TEXTS: Final = (b".md", b".yaml", b".yml", b".json")
"""Extensions of files whose line ends are converted, as `ATTRIBUTES` says. The `.gitattributes` of the workspace is not used, because it
could make git run a program.
"""
LINK: Final = b"120000"
_FILE: Final = b"100644"
_PROGRAM: Final = b"100755"
_REPOSITORY: Final = b"160000"
_MAX_SECRETS: Final = 20
"""Number of secrets in a commit after which the search stops."""
_SHOWN_CHARS: Final = 200
_IGNORED_CHARS: Final = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
"""Characters that some file systems ignore in names."""
_MODULES: Final = re.compile(r"\.gitmodules|g\w{0,5}~[0-9]+")
"""Names that some file systems treat as `.gitmodules`. Git rejects links with such names."""
_READABLE: Final = re.compile(rb"[\x20-\x7e\t]{7,}|\n")
_FLAGS: Final = READ | NO_FOLLOW
_CONTROL_CHARS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that start a new line, move the cursor, or change the direction of text."""


class Tracked(NamedTuple):
    """A file in the last commit."""

    mode: bytes
    oid: str


class LeftOut(NamedTuple):
    """A file whose current version is not in the commit, and the reason."""

    name: str
    why: str


class Draft(NamedTuple):
    """The prepared changes of a commit that was not made yet, and the files that are left out."""

    changes: tuple[bytes, ...]
    """Commands for `git fast-import`. They must be written after the file contents, which are already written."""
    left_out: tuple[LeftOut, ...]


class _FileContent(NamedTuple):
    mode: bytes
    data: bytes


class DraftBuilder:
    """Creates the draft of a commit. It blocks while it reads files, calculates hashes and searches for secrets.

    Args:
        folder: folder of the workspace.
        blobs: file to which the contents of changed files are written, in the format of `git fast-import`.
        find: finds secrets.
        leave_out_secrets: True: a file with a secret is left out, and named in the commit message. False: it blocks the commit.
    """

    def __init__(self, folder: Path, blobs: BinaryIO, find: Find, *, leave_out_secrets: bool) -> None:
        self._folder = os.fsencode(folder)
        self._blobs = blobs
        self._find = find
        self._leaves_out_secrets = leave_out_secrets
        self._mark_count = 1  # mark 1 is the commit
        self._bytes = 0
        self._changes: list[bytes] = []
        self._deletions: list[bytes] = []
        self._left_out: list[LeftOut] = []
        self._secrets: list[tuple[str, str]] = []

    def create(self, listed: Iterable[bytes], tracked: Mapping[bytes, Tracked]) -> Draft:
        """Return the changes from the last commit to the current files.

        Args:
            listed: paths of the existing files that are not ignored. A path with a trailing slash is a nested repository.
            tracked: files of the last commit. They are committed even if they are ignored now.

        Raises:
            SecretBlocked: a changed file contains a secret. The error names file, line and rule.
            TooLarge: the changed files together have more bytes than a commit may have.
        """
        for path in sorted({*listed, *(path for path, file in tracked.items() if file.mode != _REPOSITORY)}):
            self._examine(path, tracked.get(path))
        if self._secrets:
            raise SecretBlocked(self._secrets)
        # Deletions come first: a file may have become a folder with the same name.
        return Draft((*self._deletions, *self._changes), tuple(self._left_out))

    def _examine(self, path: bytes, before: Tracked | None) -> None:
        if path.endswith(b"/"):
            self._leave_out(path, "a nested repository")
            return
        # The folder `.git`, as some file system could read it.
        if any(_normalize(part) in {".git", "git~1"} for part in re.split(rb"[/\\]", path)):
            self._leave_out(path, "git reserves this name")
            return
        read = self._read(path)
        if isinstance(read, str):
            self._leave_out(path, read)
        elif read is None:
            self._deletions += [b"D " + _quote(path)] * (before is not None)
        elif read.mode == LINK and _MODULES.fullmatch(_normalize(path.rpartition(b"/")[2])):
            self._leave_out(path, "git reserves this name")
        elif before != (read.mode, hash_blob(read.data)):
            self._add_change(path, read)

    def _leave_out(self, path: bytes, why: str) -> None:
        """Record a file that is left out of the commit.

        The commit message contains the file's name. If the name contains a secret, it is replaced.
        """
        hides = self._find(os.fsdecode(path))
        self._left_out.append(LeftOut("a file whose name contains a secret" if hides else format_path(path), why))

    def _read(self, path: bytes) -> _FileContent | str | None:
        """Return the content of a file. If it must be left out, return the reason; if there is no file, return None."""
        try:
            read = _read_path(self._folder, path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ELOOP:  # a folder on the path is a link by now
                return None
            return f"it cannot be read: {exc.strerror or type(exc).__name__}"
        if isinstance(read, int):
            return f"it has {read:,} bytes; at most {WORKSPACE_FILE_BYTES:,} are committed"
        return read

    def _add_change(self, path: bytes, read: _FileContent) -> None:
        if found := self._find_secrets(path, read.data):
            if self._leaves_out_secrets:
                self._leave_out(path, f"a secret is in {found[0][1]} (rule {found[0][0]})")
            else:
                self._secrets += found
            return
        self._bytes += len(read.data)
        if self._bytes > WORKSPACE_COMMIT_BYTES:
            raise TooLarge(
                f"more than {WORKSPACE_COMMIT_BYTES // MIB} MiB of the workspace have changed: add some files to .gitignore"
            )
        self._mark_count += 1
        self._blobs.write(b"blob\nmark :%d\ndata %d\n%b\n" % (self._mark_count, len(read.data), read.data))
        self._changes.append(b"M %b :%d %b" % (read.mode, self._mark_count, _quote(path)))

    def _find_secrets(self, path: bytes, data: bytes) -> list[tuple[str, str]]:
        """Return each secret in a file or in its name, as the rule that matched and the place (file and line)."""
        if len(self._secrets) >= _MAX_SECRETS:
            return []
        if hits := self._find(os.fsdecode(path)):
            return [(hits[0].rule, "the file's name")]
        text = decode_text(data)
        return [
            (hit.rule, f"{format_path(path)}, line {count_line(text, hit.start)}")
            for hit in self._find(text)[:_MAX_SECRETS]
        ]


def find_secrets(text: str, place: str, find: Find) -> list[tuple[str, str]]:
    """Return each secret in a text, as the rule that matched and the place: `place`, the name of the text, with the line."""
    return [(hit.rule, f"{place}, line {count_line(text, hit.start)}") for hit in find(text)]


def format_left_out(left_out: Sequence[LeftOut]) -> str:
    """Format the list of left-out files for the body of a commit message."""
    if not left_out:
        return ""
    lines = [f"- {one.name}: {one.why}" for one in left_out[:WORKSPACE_NAMED]]
    more = len(left_out) - len(lines)
    return "\n".join(["Left out:", *lines, *[f"- and {more:,} more"] * (more > 0)])


def hash_blob(data: bytes) -> str:
    """Return the object id that git gives to a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def decode_text(data: bytes) -> str:
    """Decode the content of a file for the search for secrets, so that bytes that are not text do not hide a secret next to them."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        if b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")
    # Search readable parts: a secret has at least seven characters. UTF-16 is ASCII with a NUL after each character.
    return b" ".join(_READABLE.findall(data.replace(b"\0", b""))).decode()


def count_line(text: str, at: int) -> int:
    """Return the number of the line that contains the character at index `at`. The first line has number 1."""
    return text.count("\n", 0, at) + 1


def to_one_line(text: str) -> str:
    """Return a text as one line without control characters."""
    return " ".join(_CONTROL_CHARS.sub(" ", _replace_surrogates(text)).split())


def clean_lines(text: str) -> str:
    """Return a text without control characters, except its line breaks."""
    kept = (
        _CONTROL_CHARS.sub(" ", line).rstrip() for line in _replace_surrogates(text).replace("\r\n", "\n").split("\n")
    )
    return "\n".join(kept).strip()


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def format_path(path: bytes) -> str:
    """Format a path for people, on one line. A long path is cut."""
    text = path.decode("utf-8", "backslashreplace")
    plain = "".join(ascii(one)[1:-1] if unicodedata.category(one)[0] == "C" else one for one in text)
    return plain if len(plain) <= _SHOWN_CHARS else f"{plain[:_SHOWN_CHARS]}…"


# -- reading files ---------------------------------------------------------------


def _read_path(folder: bytes, path: bytes) -> _FileContent | int | None:
    """Read a file. If the path is a link, return only the target of the link.

    Each folder on the path is opened relative to its parent without following links. So nothing outside the workspace can be reached, even
    while files are being moved.

    Returns:
        The content; the size, if the file is too large; None, if the path is neither a file nor a link.

    Raises:
        OSError: the path does not exist or cannot be read.
    """
    *above, name = path.split(b"/")
    at = os.open(folder, FOLDER)
    try:
        for part in above:
            below = os.open(part, _FLAGS | FOLDER, dir_fd=at)
            os.close(at)
            at = below
        return _read_entry(at, name)
    finally:
        os.close(at)


def _read_entry(folder: int, name: bytes) -> _FileContent | int | None:
    kind = os.lstat(name, dir_fd=folder).st_mode
    if stat.S_ISLNK(kind):
        target = os.readlink(name, dir_fd=folder)
        return _FileContent(LINK, target)
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
    return _FileContent(_PROGRAM if found.st_mode & stat.S_IXUSR else _FILE, data)


def _normalize(part: bytes) -> str:
    """Return a name without the characters that some file systems ignore, in lower case."""
    return _IGNORED_CHARS.sub("", part.decode("utf-8", "replace")).partition(":")[0].rstrip(". ").lower()


def _quote(path: bytes) -> bytes:
    """Quote a path for `git fast-import`."""
    escaped = b"".join(
        b"\\%03o" % byte if byte < 32 or byte in b'"\\' or byte == 127 else b"%c" % byte for byte in path
    )
    return b'"%b"' % escaped
