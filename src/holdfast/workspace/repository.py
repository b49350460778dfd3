"""The repository in a workspace's folder, read and written by the git program, which sees nothing of it but its objects and branches.

The program's environment is made from nothing: no `GIT_*` of the process, no configuration of system or user, no prompt, no pager, no
editor. Nothing goes through a shell.

A process in a workspace can write to `.git`, too: a configuration there could name programs that git runs (filters, hooks,
monitors, diff and signing programs). So git is given a folder of its own for each piece of work, with our configuration
and with links to the branches; it finds objects by a variable. Neither attributes nor index of the workspace are used: contents
reach git through `git fast-import`, whole or not at all, and a branch moves last. Killed at any moment, it leaves
the branch unchanged, and nothing staged.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from holdfast.errors import GitMissing, TooLarge, WorkspaceUnavailable, WorkspaceUnusable
from holdfast.limits import GIT_SECONDS, MIB, WORKSPACE_DIFF_BYTES, WORKSPACE_FILES
from holdfast.workspace.files import OF_USERS, PART, Tracked, file_of_user, remove_parts

LEAST: Final = (2, 25)
"""The oldest git that is used."""
_INSTALL: Final = (
    f"install git {LEAST[0]}.{LEAST[1]} or later (Debian, Ubuntu: apt install git; macOS: brew install git)"
)
_WORDS_BYTES: Final = 16 * 1024
"""What is read of its error output."""
_WORDS_CHARS: Final = 600
_DRAINED_BYTES: Final = 64 * MIB
"""Output that is counted before the program is ended."""
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


class Ran(NamedTuple):
    """What became of a run."""

    code: int
    out: bytes
    """As much of it as was asked for."""
    missing: int
    """Bytes of the output behind that; where there are very many, at least so many."""
    words: str
    """The first lines of its error output, as one."""


class Git:
    """The git program of this machine, looked for when it is first needed.

    Args:
        seconds: longest time that a run may take.
    """

    def __init__(self, *, seconds: float = GIT_SECONDS) -> None:
        self.seconds = seconds
        self._checked: str | None = None
        self._version = ""

    async def version(self) -> str:
        """Which one it is, and where. Raises as `run` does."""
        program = await self._program()
        return f"git {self._version}, {program}"

    async def run(
        self,
        *arguments: str,
        environment: Mapping[str, str],
        folder: Path,
        stdin: Path | None = None,
        most: int = MIB,
    ) -> Ran:
        """Run it.

        Args:
            arguments: behind `git`.
            environment: beside what every run has; `GIT_DIR` for example.
            folder: where it runs.
            stdin: a file that it reads; None: it reads nothing.
            most: bytes of its output that are kept.

        Raises:
            GitMissing: it is not there, or too old.
            WorkspaceUnavailable: it took too long, or could not be started.
        """
        program = await self._program()
        return await self._run(program, arguments, environment=environment, folder=folder, stdin=stdin, most=most)

    async def _program(self) -> str:
        """Where it is. Looked up each time, which is cheap: it may be installed while this process runs."""
        found = _found()
        if found != self._checked:
            ran = await self._run(found, ("version",), environment={}, folder=Path("/"), stdin=None, most=_CHUNK)
            version = re.search(rb"(\d+)\.(\d+)", ran.out)
            if ran.code or version is None:
                raise GitMissing(f"{found} does not say which version of git it is: {_INSTALL}")
            if (int(version[1]), int(version[2])) < LEAST:
                raise GitMissing(f"{found} is git {version[0].decode()}: {_INSTALL}")
            self._checked, self._version = found, version[0].decode()
        return found

    async def _run(
        self,
        program: str,
        arguments: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        folder: Path,
        stdin: Path | None,
        most: int,
    ) -> Ran:
        try:
            with contextlib.ExitStack() as files:
                given = asyncio.subprocess.DEVNULL if stdin is None else files.enter_context(stdin.open("rb")).fileno()
                process = await asyncio.create_subprocess_exec(
                    program,
                    *arguments,
                    stdin=given,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=folder,
                    env={"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT, **environment},
                    start_new_session=True,
                )
        except OSError as exc:
            raise WorkspaceUnavailable(f"git could not be started: {exc.strerror or type(exc).__name__}") from exc
        try:
            async with asyncio.timeout(self.seconds):
                return await _outcome(process, most)
        except TimeoutError as exc:
            raise WorkspaceUnavailable(f"git {arguments[0]} took more than {self.seconds:g} s, and was ended") from exc
        finally:
            await _ended(process)


def _found() -> str:
    """Where the program is. Raises `GitMissing`."""
    found = shutil.which("git")
    if found is None:
        raise GitMissing(f"workspaces need the git program, and there is none on the PATH: {_INSTALL}")
    return str(Path(found).absolute())  # not resolved: some installations look at their own name


async def _outcome(process: asyncio.subprocess.Process, most: int) -> Ran:
    assert process.stdout is not None
    assert process.stderr is not None
    async with asyncio.TaskGroup() as readers:
        complaints = readers.create_task(_read(process.stderr, _WORDS_BYTES))
        out, missing = await _read(process.stdout, most)
        if missing >= _DRAINED_BYTES:
            await _ended(process)  # it would wait for a reader, and never come to the end of its errors
    words, _ = complaints.result()
    lines = words.decode(errors="replace").split("\n")
    told = "; ".join(" ".join(line.split()) for line in lines if line.strip())
    return Ran(await process.wait(), out, missing, told[:_WORDS_CHARS])


async def _read(stream: asyncio.StreamReader, most: int) -> tuple[bytes, int]:
    """The first bytes of a stream, and how many came behind them."""
    kept, missing = bytearray(), 0
    while missing < _DRAINED_BYTES and (chunk := await stream.read(_CHUNK)):
        room = most - len(kept)
        kept += chunk[:room]
        missing += max(0, len(chunk) - room)
    return bytes(kept), missing


async def _ended(process: asyncio.subprocess.Process) -> None:
    """End a process that still runs, and those that it has started."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await asyncio.shield(process.wait())


GIT: Final = ".git"
NEW: Final = ".git-holdfast-new"
OLD: Final = ".git-holdfast-old"
WHO: Final = "Holdfast <holdfast@localhost>"
BRANCH: Final = "refs/heads/main"
_CONFIG: Final = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
_OURS: Final = (
    _CONFIG + "\tlogAllRefUpdates = false\n\thooksPath = /dev/null\n\tattributesFile = /dev/null\n"
    "\texcludesFile = /dev/null\n\tfsmonitor = false\n\tquotePath = false\n\tfsync = committed,reference\n"
    "\tfilesRefLockTimeout = 1000\n\tcompression = 1\n[pack]\n\tcompression = 1\n[gc]\n\tauto = 0\n[fastimport]\n\tunpackLimit = 100\n"
    "[i18n]\n\tlogOutputEncoding = UTF-8\n[log]\n\tshowSignature = false\n\tmailmap = false\n"
)
_HEAD: Final = re.compile(rb"ref: (refs/heads/[^\x00-\x20~^:?*\[\\\x7f]{1,200})\n?")
_IN_THE_WAY: Final = re.compile("Not updating|cannot lock ref .*(?:File exists|but expected|already exists)")
"""What git says where another one was faster, or holds the branch."""
_LIST_BYTES: Final = 32 * MIB
_LOG_BYTES: Final = 4 * MIB
_SMALL: Final = MIB
_LOOSE: Final = 27
"""Objects in one of 256 folders, from which git itself packs them."""
_SHOWN: Final = "%H%n%at%n%an <%ae>%n%s%n%b"


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One commit of a workspace."""

    oid: str
    short_oid: str
    """Its first seven characters."""
    subject: str
    body: str
    author: str
    timestamp_unix: int
    """Seconds since the epoch."""


class Diff(NamedTuple):
    """What changed between two commits, as git tells it."""

    text: str
    missing: int
    """Bytes of it that are left out."""


class Repository:
    """What git does in one workspace. It is nobody else's meanwhile: see `holdfast.workspace.workspace`.

    Args:
        git: the program.
        folder: the workspace's; it is there.
        scratch: a folder of this piece of work alone.
        branch: where commits go, in full.
    """

    def __init__(self, git: Git, folder: Path, scratch: Path, branch: str, where: Path) -> None:
        self.scratch = scratch
        self.branch = branch
        self._git = git
        self._folder = folder
        self._where = where

    # -- looking -----------------------------------------------------------

    async def tip(self) -> str | None:
        """The newest commit; None: there is none."""
        ran = await self._done("for-each-ref", "--format=%(objectname)", self.branch)
        return ran.out.decode().strip() or None

    async def tracked(self, tip: str | None) -> dict[bytes, Tracked]:
        """The files of a commit, by path."""
        if tip is None:
            return {}
        ran = await self._done("ls-tree", "-r", "-z", "--full-tree", tip, most=_LIST_BYTES)
        found = {}
        for line in _records(ran):
            about, _, path = line.partition(b"\t")
            mode, _, oid = about.split(b" ")
            found[path] = Tracked(mode, oid.decode())
        return found

    async def listed(self) -> list[bytes]:
        """Paths of what is there and not ignored; a repository within has a slash at the end. Raises `TooLarge`."""
        own = self._folder / GIT / "info" / "exclude"
        more = [f"--exclude-from={own}"] if _is_file(own) else []
        ran = await self._done(
            *("ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"),
            *(f"--exclude={name}" for name in (f"/{NEW}", f"/{OLD}", f"*{PART}")),
            *more,
            most=_LIST_BYTES,
            tree=self._folder,
        )
        found = _records(ran)
        if len(found) > WORKSPACE_FILES:
            message = f"the workspace has {len(found):,} files that are not ignored; at most {WORKSPACE_FILES:,} are committed"
            raise TooLarge(message)
        return found

    async def log(self, tip: str, limit: int) -> list[Commit]:
        """The newest commits, newest first."""
        arguments = ("log", "-z", f"--max-count={limit}", "--no-color", "--no-decorate", "--no-notes")
        ran = await self._done(*arguments, f"--format=tformat:{_SHOWN}", tip, most=_LOG_BYTES)
        found = ran.out.decode("utf-8", "replace").split("\0")
        return [_commit(one) for one in found[:-1]]  # behind the last NUL: nothing, or what was cut off

    async def diff(self, old: str, new: str, user_id: str | None = None) -> Diff:
        """What changed from one commit to another.

        Args:
            old: the one.
            new: the other.
            user_id: who looks, and does not see files of other users' own. None: whoever may see all.
        """
        parts = [await self._diff(old, new, paths) for paths in _seen_by(user_id)]
        return Diff("".join(part.text for part in parts), sum(part.missing for part in parts))

    async def _diff(self, old: str, new: str, paths: Sequence[str]) -> Diff:
        arguments = ("diff-tree", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
        ran = await self._done(*arguments, old, new, "--", *paths, most=WORKSPACE_DIFF_BYTES)
        kept = ran.out
        if ran.missing:
            kept = kept[: kept.rfind(b"\n") + 1]
        return Diff(kept.decode("utf-8", "replace"), len(ran.out) - len(kept) + ran.missing)

    # -- writing -----------------------------------------------------------

    async def commit(self, blobs: Path, tip: str | None, changes: Sequence[bytes], message: str, at: int) -> str | None:
        """Make a commit; its id. None: the branch has moved meanwhile, or somebody holds it: look again.

        Args:
            blobs: a file with the contents, as `git fast-import` reads them; it is written on.
            tip: the commit before.
            changes: see `Draft.changes`.
            message: subject and body.
            at: seconds since the epoch.
        """
        words = message.encode()
        whose = f"{WHO} {max(0, at)} +0000".encode()
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
        ran = await self._ran(
            "fast-import", "--quiet", "--done", "--depth=0", "--date-format=raw", f"--export-marks={marks}", stdin=blobs
        )
        if ran.code:
            if _IN_THE_WAY.search(ran.words):
                return None
            raise WorkspaceUnavailable(f"git could not write to the repository in {self._folder}: {ran.words}")
        made = re.search(r"^:1 ([0-9a-f]{40})$", marks.read_text(), re.MULTILINE)
        if made is None:
            raise WorkspaceUnavailable(f"git did not say which commit it has made in {self._folder}")
        return made[1]

    async def settle(self, oid: str) -> None:
        """Have the index say what was committed, for people who run git there; and pack what has become many objects.

        The commit stands already: what fails here is only inconvenient. While somebody else's git works on the index (there is
        an `index.lock`) it is left alone.
        """
        index, part = self._where / "index", self._where / f"index{PART}"
        with contextlib.suppress(OSError, WorkspaceUnavailable):
            part.unlink(missing_ok=True)
            part.with_name(part.name + ".lock").unlink(missing_ok=True)  # nobody else makes it, and we are alone
            ran = await self._ran("read-tree", oid, index=part)
            if ran.code == 0 and not (self._where / "index.lock").exists():
                part.replace(index)
            part.unlink(missing_ok=True)
            if len(os.listdir(self._where / "objects" / "17")) > _LOOSE:  # noqa: PTH208
                await self._ran("repack", "-d", "-l", "-q")

    def free_branch(self, older: float) -> None:
        """Remove what a git that was killed has left in the way of the branch.

        Args:
            older: seconds; a younger one may be somebody's who is at work.
        """
        lock = self._where / f"{self.branch}.lock"
        now = self.scratch / "now"
        with contextlib.suppress(OSError):
            now.touch()
            if now.stat().st_mtime - lock.lstat().st_mtime > older:
                lock.unlink()

    # -- inside ------------------------------------------------------------

    async def _done(self, *arguments: str, most: int = _SMALL, tree: Path | None = None) -> Ran:
        ran = await self._ran(*arguments, most=most, tree=tree)
        if ran.code and not ran.missing:
            raise WorkspaceUnavailable(f"git {arguments[0]} failed in {self._folder}: {ran.words or ran.code}")
        return ran

    async def _ran(
        self,
        *arguments: str,
        stdin: Path | None = None,
        index: Path | None = None,
        most: int = _SMALL,
        tree: Path | None = None,
    ) -> Ran:
        """Run git; only what lists the files is given them as its `tree`, since it would look for attributes there."""
        work = tree or self.scratch
        environment = {
            "HOME": str(self.scratch),
            "XDG_CONFIG_HOME": str(self.scratch),
            "GIT_DIR": str(self.scratch),
            "GIT_WORK_TREE": str(work),
            "GIT_OBJECT_DIRECTORY": str(self._where / "objects"),
            "GIT_INDEX_FILE": str(index or self.scratch / "index"),
        }
        return await self._git.run(*arguments, environment=environment, folder=work, stdin=stdin, most=most)


@asynccontextmanager
async def opened(git: Git, folder: Path, *, fresh: bool = False) -> AsyncIterator[Repository]:
    """The repository of a folder, while the block runs.

    Args:
        git: the program.
        folder: the workspace's.
        fresh: a new one, which `take_place` puts where it belongs; else the one that is there.

    Raises:
        WorkspaceUnusable: it is none that can be worked with; says why.
        GitMissing: there is no git.
    """
    where = folder / (NEW if fresh else GIT)
    try:
        if fresh:
            _made(where)
        branch = _branch_of(folder, where)
        with _scratch(folder) as scratch:
            _linked(scratch, where, branch)
            repository = Repository(git, folder, scratch, branch, where)
            if not fresh:
                await _check_form(git, folder, scratch)
            yield repository
    except OSError as exc:
        raise WorkspaceUnavailable(f"the repository in {folder} cannot be used: {exc.strerror or exc}") from exc


def scratch_of(folder: Path) -> Path:
    """Where work on a workspace has its own folder: one at a time needs it, so what a killed process left is found again."""
    digest = hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=16).hexdigest()
    return Path(tempfile.gettempdir()) / f"holdfast-git-{digest}"


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    place = scratch_of(folder)
    shutil.rmtree(place, ignore_errors=True)
    try:
        place.mkdir(mode=0o700)
    except FileExistsError:  # somebody else's, who expects us there
        place = Path(tempfile.mkdtemp(prefix="holdfast-git-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def put_right(folder: Path) -> bool:
    """Whether a folder has a repository of its own, once what interrupted work has left is put right. Raises `OSError`."""
    remove_parts(folder)
    if not _is_there(folder / GIT) and _is_there(folder / OLD):
        # It ended between taking the old one away and putting the new one, which is whole, in its place.
        (folder / NEW if _is_there(folder / NEW) else folder / OLD).rename(folder / GIT)
    there = _is_there(folder / GIT)
    if there:
        for name in (OLD, NEW):
            _removed(folder / name)
    return there


def check_own(folder: Path) -> None:
    """Refuse a repository that lies elsewhere: what is not in the folder is not ours to replace. Raises `WorkspaceUnusable`."""
    if not _is_folder(folder / GIT):
        raise _elsewhere(folder / GIT)


def take_place(folder: Path) -> None:
    """Put a new repository where it belongs; what was there before is gone, with all that only it knew. Raises `OSError`."""
    if _is_there(folder / GIT):
        for name in ("config", "hooks", "info/exclude"):
            _copied(folder / GIT / name, folder / NEW / name)
        _removed(folder / OLD)
        (folder / GIT).rename(folder / OLD)
    (folder / NEW).rename(folder / GIT)
    put_right(folder)


def _removed(path: Path) -> None:
    """Remove what is there, a link as a link. Raises `OSError`."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _copied(old: Path, new: Path) -> None:
    if not _is_folder(old.parent):
        return
    if _is_folder(old):
        shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True, ignore=_pipes)
    elif _is_file(old):
        new.parent.mkdir(exist_ok=True)
        shutil.copyfile(old, new)


def _pipes(folder: str, names: Sequence[str]) -> list[str]:
    """What cannot be copied."""
    places = {name: Path(folder, name) for name in names}
    return [name for name, one in places.items() if not (one.is_symlink() or one.is_file() or one.is_dir())]


def _made(where: Path) -> None:
    """An empty repository."""
    _removed(where)
    for name in ("objects", "refs/heads", "refs/tags"):
        (where / name).mkdir(mode=0o700, parents=True)
    (where / "config").write_text(_CONFIG)
    (where / "HEAD").write_text(f"ref: {BRANCH}\n")


def _branch_of(folder: Path, where: Path) -> str:
    """The branch that a repository is at, once it is seen to lie in the folder itself. Raises `WorkspaceUnusable`."""
    for name in ("", "objects", "refs", "refs/heads", "info"):
        place = where / name
        if (name != "info" or _is_there(place)) and not _is_folder(place):
            raise _elsewhere(place)
    _check_objects(where / "objects")
    for name in ("packed-refs", "shallow"):  # without them the branch would seem to begin anew
        if _is_there(where / name) and not _is_file(where / name):
            raise _elsewhere(where / name)
    head = where / "HEAD"
    said = head.read_bytes()[:_SMALL] if _is_file(head) else b""
    found = _HEAD.fullmatch(said)
    if found is None or b".." in found[1]:
        raise WorkspaceUnusable(f"the repository in {folder} is at no branch: run `git switch` there")
    branch = found[1].decode("utf-8", "replace")
    ref = where / branch
    for place in (*(one for one in ref.parents if where in one.parents), ref):
        if _is_there(place) and not (_is_file(place) if place == ref else _is_folder(place)):
            raise _elsewhere(place)
    return branch


def _check_objects(objects: Path) -> None:
    """Refuse objects that are those of another repository: another agent's would be read, or packed away. Raises `WorkspaceUnusable`."""
    with os.scandir(objects) as found:
        links = [one.path for one in found if one.is_symlink()]
    borrowed = [objects / "info" / name for name in ("alternates", "http-alternates")]
    for place in (*map(Path, links), *borrowed):
        if _is_there(place):
            raise _elsewhere(place)


def _elsewhere(place: Path) -> WorkspaceUnusable:
    return WorkspaceUnusable(
        f"{place} leads elsewhere: a workspace's repository lies in the workspace, and nowhere else;"
        " give the workspace a place where no other repository's work tree is"
    )


def _linked(scratch: Path, where: Path, branch: str) -> None:
    (scratch / "HEAD").write_text(f"ref: {branch}\n")
    (scratch / "config").write_text(_OURS)
    for name in ("refs", "packed-refs", "shallow"):
        if name == "refs" or _is_file(where / name):
            (scratch / name).symlink_to(where / name)


async def _check_form(git: Git, folder: Path, scratch: Path) -> None:
    """Refuse a repository that is stored in a way that is not known here. Raises `WorkspaceUnusable`."""
    config = folder / GIT / "config"
    if not _is_file(config):
        return
    copy = scratch / "theirs"
    copy.write_bytes(config.read_bytes()[:_SMALL])
    arguments = ("config", "--file", str(copy), "--no-includes", "--null", "--get-regexp", r"^extensions\.")
    home = {"HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch), "GIT_CEILING_DIRECTORIES": str(scratch.parent)}
    ran = await git.run(*arguments, environment=home, folder=scratch)
    said = dict(one.partition("\n")[::2] for one in ran.out.decode("utf-8", "replace").split("\0") if one)
    for name, ours in (("extensions.objectformat", "sha1"), ("extensions.refstorage", "files")):
        if said.get(name, ours) != ours:
            raise WorkspaceUnusable(
                f"the repository in {folder} has {name} = {said[name][:40]!r}; only {ours!r} is known here"
            )


def _seen_by(user_id: str | None) -> list[Sequence[str]]:
    """Pathspecs of the files that a user may see, in two parts: what is left out of one cannot be taken in again. None: all."""
    if user_id is None:
        return [()]
    own = [f":(top,literal){file_of_user(name, user_id)}" for name in OF_USERS]
    others = [f":(top,exclude,glob,icase){name.replace('.', '.*.')}" for name in OF_USERS]
    return [own, [":(top)", *others]]


def _records(ran: Ran) -> list[bytes]:
    if ran.missing:
        raise TooLarge(f"the workspace has too many files: at most {WORKSPACE_FILES:,} are committed")
    return [one for one in ran.out.split(b"\0") if one]


def _commit(told: str) -> Commit:
    oid, at, author, subject, body = told.lstrip("\n").split("\n", 4)
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
