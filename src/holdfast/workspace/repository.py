"""Read and write the repository of a workspace with the git program, without running any program that the repository names.

Git gets environment variables of its own, not the `GIT_*` variables of this process. They disable the configuration of the system and of
the user, prompts, pagers and editors. No shell is involved.

A process in the workspace can write to `.git`. A configuration there could name programs for git to run: filters, hooks, monitors, diff and
signing programs. So each operation gives git another folder in place of `.git`. It contains Holdfast's configuration, and links to the
branches of the repository. An environment variable names the folder of the repository's objects. Git is a process of its own, so that what
it reads there can cost it time and memory, but not Holdfast.

Attributes and index of the workspace are not used either. File contents are passed to `git fast-import`, which writes all of them or none,
and moves the branch last. If git is killed before that, the branch is unchanged and nothing is staged.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import GitMissing, TooLarge, WorkspaceUnavailable, WorkspaceUnusable
from holdfast.limits import GIT_SECONDS, MIB, WORKSPACE_DIFF_BYTES, WORKSPACE_FILES
from holdfast.workspace.files import PART_SUFFIX, PER_USER_FILES, Tracked, make_user_file_name, remove_parts

MIN_VERSION: Final = (2, 25)
"""Oldest supported version of git."""
_INSTALL: Final = (
    f"install git {MIN_VERSION[0]}.{MIN_VERSION[1]} or later (Debian, Ubuntu: apt install git; macOS: brew install git)"
)
_WORDS_BYTES: Final = 16 * 1024
"""Maximum bytes of git's standard error that are kept."""
_WORDS_CHARS: Final = 600
_DRAINED_BYTES: Final = 64 * MIB
"""Git is killed after this many bytes beyond the requested output. The bytes are counted and dropped."""
_CHUNK: Final = 64 * 1024
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "LC_ALL": "C",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "false",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_PROTOCOL_FROM_USER": "0",
    "GIT_TERMINAL_PROMPT": "0",
}


class GitResult(NamedTuple):
    """The result of running git once."""

    code: int
    out: bytes
    """Standard output, up to the requested size."""
    missing: int
    """Bytes of standard output that were dropped. If git was killed because of them, there may be more."""
    words: str
    """The beginning of git's standard error, as one line."""


class Git:
    """The git program of this machine.

    Args:
        seconds: time limit of one run, in seconds.
    """

    def __init__(self, *, seconds: float = GIT_SECONDS) -> None:
        self.seconds = seconds
        self._checked: str | None = None
        self._version = ""

    def get_version(self) -> str:
        """Return version and path of git as text. Raise the same errors as `run`."""
        program = self._locate()
        return f"git {self._version}, {program}"

    def run(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        folder: Path,
        stdin: Path | None = None,
        most: int = MIB,
    ) -> GitResult:
        """Run git once, and return its exit code and output.

        Args:
            arguments: command-line arguments, without `git` itself.
            environment: environment variables for this run, for example `GIT_DIR`. Others are the same in every run.
            folder: working directory.
            stdin: file for git's standard input; None: no input.
            most: maximum bytes of standard output to keep.

        Raises:
            GitMissing: git is not installed or too old.
            WorkspaceUnavailable: git took too long or could not be started.
        """
        return self._run(self._locate(), *arguments, environment=environment, folder=folder, stdin=stdin, most=most)

    def _locate(self) -> str:
        """Return the path of git, after checking its version. Raise `GitMissing` if git is not installed or too old.

        The path is looked up each time, because git may be installed while this process runs. The lookup is cheap.
        """
        path = shutil.which("git")
        if path is None:
            raise GitMissing(f"workspaces need the git program, which is not on the PATH: {_INSTALL}")
        found = str(
            Path(path).absolute()
        )  # not resolved: some installations depend on the name by which they are called
        if found != self._checked:
            ran = self._run(found, "version", environment={}, folder=Path("/"), stdin=None, most=_CHUNK)
            version = re.search(rb"(\d+)\.(\d+)", ran.out)
            if ran.code or version is None:
                raise GitMissing(f"{found} did not report its version: {_INSTALL}")
            if (int(version[1]), int(version[2])) < MIN_VERSION:
                raise GitMissing(f"{found} is git {version[0].decode()}: {_INSTALL}")
            self._checked, self._version = found, version[0].decode()
        return found

    def _run(
        self, *command: str, environment: Mapping[str, str], folder: Path, stdin: Path | None, most: int
    ) -> GitResult:
        with contextlib.ExitStack() as files:
            words = files.enter_context(tempfile.TemporaryFile())
            try:
                process = subprocess.Popen(  # noqa: S603 - the program is git
                    command,
                    stdin=subprocess.DEVNULL if stdin is None else files.enter_context(stdin.open("rb")),
                    stdout=subprocess.PIPE,
                    stderr=words,
                    cwd=folder,
                    env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **environment},
                    start_new_session=True,
                )
            except OSError as exc:
                raise WorkspaceUnavailable(f"git could not be started: {exc.strerror or type(exc).__name__}") from exc
            timer = threading.Timer(self.seconds, _kill, (process,))
            timer.start()
            try:
                out, missing = _read(process, most)
                code = process.wait()
            finally:
                timer.cancel()
                _kill(process)
                process.wait()
            if code == -signal.SIGKILL and missing < _DRAINED_BYTES:
                raise WorkspaceUnavailable(f"git {command[1]} took more than {self.seconds:g} s and was killed")
            words.seek(0)
            lines = words.read(_WORDS_BYTES).decode(errors="replace").split("\n")
            text = "; ".join(" ".join(line.split()) for line in lines if line.strip())
            return GitResult(code, out, missing, text[:_WORDS_CHARS])


def _read(process: subprocess.Popen[bytes], most: int) -> tuple[bytes, int]:
    """Return the first `most` bytes of a process's output, and the number of bytes after them, which are dropped.

    The process is killed after `_DRAINED_BYTES` dropped bytes.
    """
    assert process.stdout is not None
    with process.stdout as stream:
        kept, missing = stream.read(most), 0
        while chunk := stream.read(_CHUNK):
            missing += len(chunk)
            if missing >= _DRAINED_BYTES:
                _kill(process)
                break
    return kept, missing


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, unless its end is known."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


GIT_FOLDER: Final = ".git"
NEW_GIT: Final = ".git-holdfast-new"
OLD_GIT: Final = ".git-holdfast-old"
AUTHOR: Final = "Holdfast <holdfast@localhost>"
BRANCH: Final = "refs/heads/main"
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
_SCRATCH_CONFIG: Final = (
    _CONFIG + "\tlogAllRefUpdates = false\n\thooksPath = /dev/null\n\tattributesFile = /dev/null\n"
    "\texcludesFile = /dev/null\n\tfsmonitor = false\n\tquotePath = false\n\tfsync = committed,reference\n"
    "\tfilesRefLockTimeout = 1000\n\tcompression = 1\n[pack]\n\tcompression = 1\n[gc]\n\tauto = 0\n[fastimport]\n\tunpackLimit = 100\n"
    "[i18n]\n\tlogOutputEncoding = UTF-8\n[log]\n\tshowSignature = false\n\tmailmap = false\n"
)
_HEAD: Final = re.compile(rb"ref: (refs/heads/[^\x00-\x20~^:?*\[\\\x7f]{1,200})\n?")
_CONFLICT: Final = re.compile("Not updating|cannot lock ref .*(?:File exists|but expected|already exists)")
"""Error messages of git if another process moved the branch first, or has locked it."""
_LIST_BYTES: Final = 32 * MIB
_LOG_BYTES: Final = 4 * MIB
_SMALL: Final = MIB
_LOOSE: Final = 27
"""Maximum number of loose objects in one of the 256 object folders before all are packed. Git itself uses the same limit."""
_SHOWN: Final = "%H%n%at%n%an <%ae>%n%s%n%b"


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A commit of a workspace."""

    oid: str
    """Commit id."""
    short_oid: str
    """First seven characters of the commit id."""
    subject: str
    """First line of the commit message."""
    body: str
    """Rest of the commit message. If the end of a session caused the commit, it names session, agent, user and reason."""
    author: str
    """Name and email address of the author."""
    timestamp_unix: int
    """Time of the commit in seconds since the epoch."""


class Diff(NamedTuple):
    """Changes between two commits, in git's format."""

    text: str
    missing: int
    """Bytes of the diff that are left out of `text`."""


class Repository:
    """The repository of one workspace, opened for one operation. The caller must hold the lock of the workspace.

    Args:
        git: the git program.
        folder: existing folder of the workspace.
        scratch: temporary folder for this operation. Git uses this folder instead of the workspace's `.git`.
        branch: full name of the branch for commits.
        git_folder: folder of the repository.
    """

    def __init__(self, git: Git, folder: Path, scratch: Path, branch: str, git_folder: Path) -> None:
        self.scratch = scratch
        self.branch = branch
        self._git = git
        self._folder = folder
        self._git_folder = git_folder

    # -- reading -----------------------------------------------------------

    def get_tip(self) -> str | None:
        """Return the id of the newest commit of the branch, or None if the branch has no commit."""
        ran = self._run_checked("for-each-ref", "--format=%(objectname)", self.branch)
        return ran.out.decode().strip() or None

    def list_tracked(self, tip: str | None) -> dict[bytes, Tracked]:
        """Return the files of the commit `tip`, by path. If `tip` is None, return no files."""
        if tip is None:
            return {}
        ran = self._run_checked("ls-tree", "-r", "-z", "--full-tree", tip, most=_LIST_BYTES)
        found = {}
        for line in _split_records(ran):
            about, _, path = line.partition(b"\t")
            mode, _, oid = about.split(b" ")
            found[path] = Tracked(mode, oid.decode())
        return found

    def list_files(self) -> list[bytes]:
        """Return the paths of all files that are not ignored. The path of a nested repository has a trailing slash.

        Raises:
            TooLarge: there are more files than a commit may have.
        """
        own = self._folder / GIT_FOLDER / "info" / "exclude"
        more = [f"--exclude-from={own}"] if _is_file(own) else []
        ran = self._run_checked(
            *("ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"),
            *(f"--exclude={name}" for name in (f"/{NEW_GIT}", f"/{OLD_GIT}", f"*{PART_SUFFIX}")),
            *more,
            most=_LIST_BYTES,
            tree=self._folder,
        )
        found = _split_records(ran)
        if len(found) > WORKSPACE_FILES:
            message = f"the workspace has {len(found):,} files that are not ignored; at most {WORKSPACE_FILES:,} are committed"
            raise TooLarge(message)
        return found

    def log(self, tip: str, limit: int) -> list[Commit]:
        """Return the commit `tip` and the commits before it, newest first, at most `limit` commits."""
        arguments = ("log", "-z", f"--max-count={limit}", "--no-color", "--no-decorate", "--no-notes")
        ran = self._run_checked(*arguments, f"--format=tformat:{_SHOWN}", tip, most=_LOG_BYTES)
        found = ran.out.decode("utf-8", "replace").split("\0")
        return [_parse_commit(one) for one in found[:-1]]  # after the last NUL: nothing, or a commit that was cut off

    def diff(self, old: str, new: str, user_id: str | None = None) -> Diff:
        """Return the changes from one commit to another.

        Args:
            old: id of the first commit.
            new: id of the second commit.
            user_id: leave out the files of users other than this one; None: include all files.
        """
        parts = [self._diff(old, new, paths) for paths in _list_visible_paths(user_id)]
        return Diff("".join(part.text for part in parts), sum(part.missing for part in parts))

    def _diff(self, old: str, new: str, paths: Sequence[str]) -> Diff:
        arguments = ("diff-tree", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        ran = self._run_checked(*arguments, old, new, "--", *paths, most=WORKSPACE_DIFF_BYTES)
        kept = ran.out
        if ran.missing:
            kept = kept[: kept.rfind(b"\n") + 1]
        return Diff(kept.decode("utf-8", "replace"), len(ran.out) - len(kept) + ran.missing)

    # -- writing -----------------------------------------------------------

    def commit(self, blobs: Path, tip: str | None, changes: Sequence[bytes], message: str, at: int) -> str | None:
        """Create a commit and return its id.

        Return None if another process has moved or locked the branch. The caller must then read the branch again.

        Args:
            blobs: file with the contents of changed files, in the format of `git fast-import`. Commands are appended to it.
            tip: id of the previous commit; None: this is the first commit.
            changes: commands for `git fast-import`, from `Draft.changes`.
            message: subject and body of the commit message.
            at: time of the commit, in seconds since the epoch.
        """
        words = message.encode()
        whose = f"{AUTHOR} {max(0, at)} +0000".encode()
        head = b"commit %b\nmark :1\nauthor %b\ncommitter %b\ndata %d\n" % (
            self.branch.encode(),
            whose,
            whose,
            len(words),
        )
        before = [] if tip is None else [f"from {tip}".encode()]
        with blobs.open("ab") as file:
            file.write(head + b"\n".join([words, *before, *changes, b"done", b""]))
        marks = self.scratch / "marks"
        ran = self._run_git(
            "fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw", f"--export-marks={marks}", stdin=blobs
        )
        if ran.code:
            if _CONFLICT.search(ran.words):
                return None
            raise WorkspaceUnavailable(f"git could not write to the repository in {self._folder}: {ran.words}")
        made = re.search(r"^:1 ([0-9a-f]{40})$", marks.read_text(), re.MULTILINE)
        if made is None:
            raise WorkspaceUnavailable(f"git did not report the commit that it created in {self._folder}")
        return made[1]

    def settle(self, oid: str) -> None:
        """Set the index to a commit, for people who run git in the workspace. Pack loose objects if there are many.

        The commit is already complete, so failures are ignored. If another git is using the index (there is an `index.lock`), the index is
        left unchanged.
        """
        index, part = self._git_folder / "index", self._git_folder / f"index{PART_SUFFIX}"
        with contextlib.suppress(OSError, WorkspaceUnavailable):
            part.unlink(missing_ok=True)
            part.with_name(part.name + ".lock").unlink(missing_ok=True)  # only we create it, and we have exclusive use
            ran = self._run_git("read-tree", oid, index=part)
            if ran.code == 0 and not (self._git_folder / "index.lock").exists():
                part.replace(index)
            part.unlink(missing_ok=True)
            if len(os.listdir(self._git_folder / "objects" / "17")) > _LOOSE:  # noqa: PTH208
                self._run_git("repack", "-d", "-l", "-q")

    def remove_stale_lock(self, older: float) -> None:
        """Remove the lock file of the branch if a killed git has left it.

        Args:
            older: minimum age of the lock file in seconds. A newer one may be in use.
        """
        lock = self._git_folder / f"{self.branch}.lock"
        now = self.scratch / "now"
        with contextlib.suppress(OSError):
            now.touch()
            if now.stat().st_mtime - lock.lstat().st_mtime > older:
                lock.unlink()

    # -- internals ---------------------------------------------------------

    def _run_checked(self, *arguments: str, most: int = _SMALL, tree: Path | None = None) -> GitResult:
        ran = self._run_git(*arguments, most=most, tree=tree)
        if ran.code and not ran.missing:
            raise WorkspaceUnavailable(f"git {arguments[0]} failed in {self._folder}: {ran.words or ran.code}")
        return ran

    def _run_git(
        self,
        *arguments: str,
        stdin: Path | None = None,
        index: Path | None = None,
        most: int = _SMALL,
        tree: Path | None = None,
    ) -> GitResult:
        """Run git on this repository.

        Args:
            arguments: command-line arguments.
            stdin: file for git's standard input; None: no input.
            index: index file to use; None: a temporary one.
            most: maximum bytes of standard output to keep.
            tree: folder of the workspace, only for the command that lists files. Other commands must not get it, because git would look for
                attributes there.
        """
        work = tree or self.scratch
        environment = {
            "HOME": str(self.scratch),
            "XDG_CONFIG_HOME": str(self.scratch),
            "GIT_DIR": str(self.scratch),
            "GIT_WORK_TREE": str(work),
            "GIT_OBJECT_DIRECTORY": str(self._git_folder / "objects"),
            "GIT_INDEX_FILE": str(index or self.scratch / "index"),
        }
        return self._git.run(*arguments, environment=environment, folder=work, stdin=stdin, most=most)


@contextmanager
def open_repository(git: Git, folder: Path, *, fresh: bool = False) -> Iterator[Repository]:
    """Open the repository of a folder for the duration of the block.

    Args:
        git: the git program.
        folder: folder of the workspace.
        fresh: True: create a new repository next to the existing one. `install_new` later puts it in place. False: open the existing one.

    Raises:
        WorkspaceUnusable: the repository cannot be used until it is repaired; the message says why.
        GitMissing: git is not installed.
        OSError: the disk prevents access to the repository.
    """
    git_folder = folder / (NEW_GIT if fresh else GIT_FOLDER)
    if fresh:
        _remove(git_folder)
        for name in ("objects", "refs/heads", "refs/tags"):
            (git_folder / name).mkdir(mode=0o700, parents=True)
        (git_folder / "config").write_text(_CONFIG)
        (git_folder / "HEAD").write_text(f"ref: {BRANCH}\n")
    branch = _read_branch(folder, git_folder)
    with _create_scratch(folder) as scratch:
        _link_repository(scratch, git_folder, branch)
        if not fresh:
            _check_format(git, folder, scratch)
        yield Repository(git, folder, scratch, branch, git_folder)


def get_scratch_folder(folder: Path) -> Path:
    """Return the path of the temporary folder for operations on a workspace.

    The path is always the same for a workspace, so that files of a killed process are found and removed.
    """
    digest = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir()) / f"holdfast-git-{digest}"


@contextmanager
def _create_scratch(folder: Path) -> Iterator[Path]:
    place = get_scratch_folder(folder)
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:  # the folder belongs to another user, who may have created it on purpose
        place = Path(tempfile.mkdtemp(prefix="holdfast-git-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Clean up after an interrupted operation. Return True if the workspace has a repository. Raise `OSError` if that fails."""
    remove_parts(folder)
    if not _is_there(folder / GIT_FOLDER) and _is_there(folder / OLD_GIT):
        # It was interrupted between moving the old repository away and moving the complete new one into place.
        (folder / NEW_GIT if _is_there(folder / NEW_GIT) else folder / OLD_GIT).rename(folder / GIT_FOLDER)
    there = _is_there(folder / GIT_FOLDER)
    if there:
        for name in (OLD_GIT, NEW_GIT):
            _remove(folder / name)
    return there


def check_own(folder: Path) -> None:
    """Raise `WorkspaceUnusable` if the repository is outside the workspace. Such a repository must not be replaced."""
    if not _is_folder(folder / GIT_FOLDER):
        raise _make_elsewhere_error(folder / GIT_FOLDER)


def install_new(folder: Path) -> None:
    """Replace the repository by the new one, and delete the old one. The new one gets the configuration and hooks of the old one.

    Raises:
        OSError: a file or folder cannot be moved or deleted.
    """
    if _is_there(folder / GIT_FOLDER):
        for name in ("config", "hooks", "info/exclude"):
            _copy(folder / GIT_FOLDER / name, folder / NEW_GIT / name)
        _remove(folder / OLD_GIT)
        (folder / GIT_FOLDER).rename(folder / OLD_GIT)
    (folder / NEW_GIT).rename(folder / GIT_FOLDER)
    recover(folder)


def _remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its content. Links are not followed. Raise `OSError` if that fails."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copy(old: Path, new: Path) -> None:
    if not _is_folder(old.parent):
        return
    if _is_folder(old):
        shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True, ignore=_list_special_files)
    elif _is_file(old):
        new.parent.mkdir(exist_ok=True)
        shutil.copyfile(old, new)


def _list_special_files(folder: str, names: Sequence[str]) -> list[str]:
    """Return the names of entries that cannot be copied, such as pipes."""
    places = {name: Path(folder, name) for name in names}
    return [name for name, one in places.items() if not (one.is_symlink() or one.is_file() or one.is_dir())]


def _read_branch(folder: Path, git_folder: Path) -> str:
    """Return the full name of the current branch, after checking that all of the repository is inside the workspace.

    Raises:
        WorkspaceUnusable: a part of the repository is outside the workspace, or the repository is not on a branch.
    """
    for name in ("", "objects", "refs", "refs/heads", "info"):
        place = git_folder / name
        if (name != "info" or _is_there(place)) and not _is_folder(place):
            raise _make_elsewhere_error(place)
    _check_objects(git_folder / "objects")
    for name in ("packed-refs", "shallow"):  # without them, the branch would seem to have no earlier commits
        if _is_there(git_folder / name) and not _is_file(git_folder / name):
            raise _make_elsewhere_error(git_folder / name)
    head = git_folder / "HEAD"
    content = head.read_bytes()[:_SMALL] if _is_file(head) else b""
    found = _HEAD.fullmatch(content)
    if found is None or b".." in found[1]:
        raise WorkspaceUnusable(f"the repository in {folder} is not on a branch: run `git switch` there")
    branch = found[1].decode("utf-8", "replace")
    ref = git_folder / branch
    for place in (*(one for one in ref.parents if git_folder in one.parents), ref):
        if _is_there(place) and not (_is_file(place) if place == ref else _is_folder(place)):
            raise _make_elsewhere_error(place)
    return branch


def _check_objects(objects: Path) -> None:
    """Raise `WorkspaceUnusable` if the repository uses objects of another repository.

    Such objects could belong to another agent. Git could read them, or pack and remove them.
    """
    with os.scandir(objects) as found:
        links = [one.path for one in found if one.is_symlink()]
    borrowed = [objects / "info" / name for name in ("alternates", "http-alternates")]
    for place in (*map(Path, links), *borrowed):
        if _is_there(place):
            raise _make_elsewhere_error(place)


def _make_elsewhere_error(place: Path) -> WorkspaceUnusable:
    return WorkspaceUnusable(
        f"{place} leads out of the workspace: the whole repository must be inside the workspace;"
        " move the workspace to a folder outside any other repository's work tree"
    )


def _link_repository(scratch: Path, git_folder: Path, branch: str) -> None:
    (scratch / "HEAD").write_text(f"ref: {branch}\n")
    (scratch / "config").write_text(_SCRATCH_CONFIG)
    for name in ("refs", "packed-refs", "shallow"):
        if name == "refs" or _is_file(git_folder / name):
            (scratch / name).symlink_to(git_folder / name)


def _check_format(git: Git, folder: Path, scratch: Path) -> None:
    """Raise `WorkspaceUnusable` if the repository has a storage format that is not supported."""
    config = folder / GIT_FOLDER / "config"
    if not _is_file(config):
        return
    copy = scratch / "theirs"
    copy.write_bytes(config.read_bytes()[:_SMALL])
    arguments = ("config", "--file", str(copy), "--no-includes", "--null", "--get-regexp", r"^extensions\.")
    home = {"HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch), "GIT_CEILING_DIRECTORIES": str(scratch.parent)}
    ran = git.run(*arguments, environment=home, folder=scratch)
    settings = dict(one.partition("\n")[::2] for one in ran.out.decode("utf-8", "replace").split("\0") if one)
    for name, ours in (("extensions.objectformat", "sha1"), ("extensions.refstorage", "files")):
        if settings.get(name, ours) != ours:
            raise WorkspaceUnusable(
                f"the repository in {folder} has {name} = {settings[name][:40]!r}; only {ours!r} is supported"
            )


def _list_visible_paths(user_id: str | None) -> list[Sequence[str]]:
    """Return git pathspecs of the files that a user may see. If `user_id` is None, all files are included.

    Each list is for a separate run of git, because git cannot include a path that the same list excludes.
    """
    if user_id is None:
        return [()]
    own = [f":(top,literal){make_user_file_name(name, user_id)}" for name in PER_USER_FILES]
    others = [f":(top,exclude,glob,icase){name.replace('.', '.*.')}" for name in PER_USER_FILES]
    return [own, [":(top)", *others]]


def _split_records(ran: GitResult) -> list[bytes]:
    if ran.missing:
        raise TooLarge(f"the workspace has too many files: at most {WORKSPACE_FILES:,} are committed")
    return [one for one in ran.out.split(b"\0") if one]


def _parse_commit(record: str) -> Commit:
    oid, at, author, subject, body = record.lstrip("\n").split("\n", 4)
    when = int(at) if at.removeprefix("-").isdigit() else 0
    return Commit(
        oid=oid, short_oid=oid[:7], subject=subject, body=body.strip("\n"), author=author, timestamp_unix=when
    )


def _is_there(path: Path) -> bool:
    return os.path.lexists(path)


def _is_folder(path: Path) -> bool:
    return _is_there(path) and stat.S_ISDIR(path.lstat().st_mode)


def _is_file(path: Path) -> bool:
    return _is_there(path) and stat.S_ISREG(path.lstat().st_mode)
