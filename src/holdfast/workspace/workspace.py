"""Use the workspaces of agents: commit their files, list commits, delete old commits, and read and write single files.

Each agent of a tenant has a workspace, which is a folder. A lock allows only one commit, write or similar operation in it at a time, across
all processes.
"""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

import anyio.to_thread
import msgspec

from holdfast.durations import format_utc
from holdfast.errors import InvalidRequest, SecretBlocked, TooLarge, WorkspaceUnavailable, WorkspaceUnusable
from holdfast.limits import (
    WORKSPACE_BODY_CHARS,
    WORKSPACE_FILE_BYTES,
    WORKSPACE_HISTORY,
    WORKSPACE_SUBJECT_CHARS,
    WORKSPACE_WAIT_SECONDS,
)
from holdfast.numbers import check_whole
from holdfast.safe_names import is_safe_name, make_safe_name
from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import Hit, Redactor, make_redactor
from holdfast.secrets.rules import CREDENTIALS
from holdfast.stores.checks import check_id
from holdfast.workspace.files import (
    ATTRIBUTES,
    IGNORED,
    DraftBuilder,
    Find,
    LeftOut,
    check_file,
    clean_lines,
    find_secrets,
    format_left_out,
    make_folder,
    put_if_missing,
    read_file,
    to_one_line,
    write_file,
)
from holdfast.workspace.repository import (
    AUTHOR,
    Commit,
    Git,
    Repository,
    check_own,
    install_new,
    open_repository,
    recover,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
DEFAULT_NOTE: Final = "manual"
"""Default note of a checkpoint."""
_ATTEMPTS: Final = 5
"""Maximum number of attempts to commit if other git processes move the branch first."""
_PAUSE: Final = 0.05
_INITIAL_FILES: Final = (b".gitignore", b".gitattributes")


class _Message(NamedTuple):
    """The message of a commit."""

    subject: str
    body: str


_INIT_MESSAGE: Final = _Message("workspace init", "Auto-generated bootstrap commit.")
_PURGE_MESSAGE: Final = _Message("workspace purge", "What was committed before was removed.")


class CommitOutcome(NamedTuple):
    """The result of committing a workspace."""

    commit: Commit | None
    """The new commit; None: there was nothing to commit."""
    left_out: tuple[LeftOut, ...] = ()
    """Files whose current version is not in the commit, each with the reason."""


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Commits, newest first."""

    commits: list[Commit]
    diff: str | None = None
    """Changes from the oldest to the newest commit. None: not requested, fewer than two commits, or no difference."""


class WorkspaceResources(NamedTuple):
    """The clock, git, the search for secrets and the time limit, which all workspaces of a `Holdfast` share."""

    git: Git
    clock: Callable[[], int]
    """Returns the time in milliseconds since the epoch."""
    find: Find
    """Finds secrets in committed files."""
    wait: float
    """Maximum seconds to wait for a workspace that another process is using."""


class Workspace:
    """The workspace of one agent, created by `Workspaces`.

    Attributes:
        tenant: tenant of the agent.
        agent: name of the agent.
        folder: path of the workspace, which may not exist yet.
    """

    def __init__(self, resources: WorkspaceResources, tenant: str, agent: str, folder: Path) -> None:
        self.tenant = tenant
        self.agent = agent
        self.folder = folder
        self._resources = resources
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    @property
    def exists(self) -> bool:
        """True if the folder exists."""
        return self.folder.is_dir()

    async def open(self) -> None:
        """Create the folder and its repository, unless they exist. Raise the same errors as `commit`.

        A new repository contains `.gitignore` and `.gitattributes`, in one commit on the branch `main`. An existing one is left unchanged.
        """
        await self._run(self._ensure_repository)

    async def commit(self, subject: str, body: str = "") -> Commit | None:
        """Commit all changes of files that are not ignored. Return None if there is nothing to commit.

        Args:
            subject: first line of the commit message. Control characters are removed, and a long subject is cut.
            body: text after the subject. A list of the files that were left out is added to it.

        Raises:
            SecretBlocked: a change contains a secret; the error says where. Nothing was committed or staged.
            TooLarge: there are more files or changes than a commit may have.
            GitMissing: git is not installed or too old.
            WorkspaceUnusable: the repository cannot be used until it is repaired; the error says how.
            WorkspaceUnavailable: the disk or another program prevents the commit. It may succeed later.
        """
        return (await self.attempt(subject, body)).commit

    async def attempt(self, subject: str, body: str = "") -> CommitOutcome:
        """Commit all changes like `commit`, and also return the files that were left out, even if there was nothing to commit."""
        subject = to_one_line(subject)[:WORKSPACE_SUBJECT_CHARS].rstrip()
        if not subject:
            raise InvalidRequest("a commit needs a subject: one line that describes it", param="subject")
        message = _Message(subject, clean_lines(body)[:WORKSPACE_BODY_CHARS].rstrip())
        return await self._run(self._attempt, message)

    async def checkpoint(
        self, note: str | None = None, *, session_id: str | None = None, user_id: str | None = None
    ) -> CommitOutcome:
        """Commit all changes at the request of a person or an agent. Raise the same errors as `commit`.

        Args:
            note: reason for the commit, in one line; None or empty: `manual`.
            session_id: session in which the commit was requested; None: unknown.
            user_id: user of the session; None: unknown.
        """
        at = f"manual checkpoint at {format_utc(self._resources.clock())}"
        values = {"session": session_id, "agent": self.agent, "user": user_id}
        return await self.attempt(
            f"checkpoint: {to_one_line(note or '') or DEFAULT_NOTE}", "\n".join([at, format_fields(values)])
        )

    async def history(self, limit: int = 10, *, include_diff: bool = False, user_id: str | None = None) -> History:
        """Return the newest commits, newest first. A workspace that does not exist has no commits.

        Args:
            limit: maximum number of commits, 1 to 100.
            include_diff: also return the changes from the oldest to the newest of these commits.
            user_id: leave files of users other than this one (such as `MEMORY.ada.md`) out of the diff; None: include all files.

        Raises:
            InvalidRequest: the limit is not valid.
            WorkspaceUnavailable: the workspace cannot be read. Subclasses of this error are raised too, as by `commit`.
        """
        check_whole(limit, "limit", 1, WORKSPACE_HISTORY)
        if not self.exists:
            return History(commits=[])
        return await self._run(self._read_history, limit, include_diff, user_id)

    async def purge(self) -> CommitOutcome:
        """Replace the repository by a new one with a single commit of the current files.

        Earlier commits, other branches, tags, stashes and unreachable objects are deleted from the disk. Configuration and hooks are kept.
        If secrets block commits, a file that contains a secret is left out and named. Copies in a backup and free blocks of the disk are
        not erased.

        Raises:
            WorkspaceUnavailable: the repository cannot be replaced, and has not changed. Subclasses of this error are raised too, as by
                `commit`.
        """
        return await self._run(self._purge)

    # -- files -------------------------------------------------------------

    async def write(self, name: str, text: str) -> None:
        """Write a file to the workspace, completely or not at all. The next commit includes the file.

        A link with the same name is replaced, not followed.

        Args:
            name: name of a file directly in the folder of the workspace, such as MEMORY.md.
            text: the whole content of the file.

        Raises:
            InvalidRequest: the name is not valid, for example because it leads out of the folder or into the repository.
            TooLarge: the file would be too large to be committed.
            WorkspaceUnavailable: the disk prevents the write.
        """
        check_file(name)
        data = text.encode("utf-8", "replace")
        if len(data) > WORKSPACE_FILE_BYTES:
            raise TooLarge(
                f"{name} would have {len(data):,} bytes; at most {WORKSPACE_FILE_BYTES:,} are committed", param="text"
            )
        await self._run(write_file, self.folder, name, data)

    async def read(self, name: str) -> str | None:
        """Return the text of a file, at most its first 1 MiB. Return None if the file does not exist or is a link.

        Raises:
            InvalidRequest: the name is not valid.
            WorkspaceUnavailable: the disk prevents the read.
        """
        check_file(name)
        try:
            data = await anyio.to_thread.run_sync(read_file, self.folder / name)
        except OSError as exc:
            raise self._make_error(exc) from exc
        return None if data is None else data.decode("utf-8", "replace")

    # -- internals: the methods without `async` run in a thread, with the workspace locked, and may raise `OSError` ----

    async def _run(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Lock the workspace across all processes, and do work in a thread. The lock is also released if this process dies."""
        async with self._lock:
            try:
                folder = make_folder(self.folder)
                try:
                    await self._lock_folder(folder)
                    return await anyio.to_thread.run_sync(work, *args)
                finally:
                    os.close(folder)
            except OSError as exc:
                raise self._make_error(exc) from exc

    async def _lock_folder(self, folder: int) -> None:
        try:
            import fcntl
        except ImportError as exc:
            message = "workspaces need file locks that end with their process, which this system does not have"
            raise WorkspaceUnusable(message) from exc
        deadline = asyncio.get_running_loop().time() + self._resources.wait
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                if asyncio.get_running_loop().time() > deadline:
                    message = f"another process has been using {self.folder} for more than {self._resources.wait:g} s: try again later"
                    raise WorkspaceUnavailable(message) from exc
            else:
                return
            await asyncio.sleep(_PAUSE)

    def _ensure_repository(self) -> None:
        if not recover(self.folder):
            put_if_missing(self.folder, ".gitignore", IGNORED)
            put_if_missing(self.folder, ".gitattributes", ATTRIBUTES)
            self._start_repository(_INIT_MESSAGE, _INITIAL_FILES)

    def _purge(self) -> CommitOutcome:
        self._ensure_repository()
        check_own(self.folder)
        return self._start_repository(_PURGE_MESSAGE)

    def _start_repository(self, message: _Message, only: Sequence[bytes] | None = None) -> CommitOutcome:
        """Create a repository with one commit, without the files that contain secrets, and put it in the place of the old one.

        Args:
            message: the commit message.
            only: paths of the files to commit; None: all files that are not ignored.
        """
        git = self._resources.git
        with open_repository(git, self.folder, fresh=True) as repository:
            listed = repository.list_files() if only is None else only
            outcome = self._commit(repository, None, listed, message, is_first=True)
        if outcome is None or outcome.commit is None:
            raise WorkspaceUnavailable(f"a new repository in {self.folder} could not be written")
        install_new(self.folder)
        with open_repository(git, self.folder) as repository:
            repository.settle(outcome.commit.oid)
        return outcome

    def _attempt(self, message: _Message) -> CommitOutcome:
        find = self._resources.find
        found = find_secrets(message.subject, "the subject", find) + find_secrets(message.body, "the body", find)
        if found:
            raise SecretBlocked(found)
        self._ensure_repository()
        for _ in range(_ATTEMPTS):
            with open_repository(self._resources.git, self.folder) as repository:
                outcome = self._commit(repository, repository.get_tip(), repository.list_files(), message)
                if outcome is None:
                    repository.remove_stale_lock(self._resources.git.seconds)
                else:
                    if outcome.commit is not None:
                        repository.settle(outcome.commit.oid)
                    return outcome
            time.sleep(_PAUSE)
        raise WorkspaceUnavailable(
            f"another git process is using the repository in {self.folder}: try again when it is done"
        )

    def _commit(
        self,
        repository: Repository,
        tip: str | None,
        listed: Sequence[bytes],
        message: _Message,
        *,
        is_first: bool = False,
    ) -> CommitOutcome | None:
        """Commit all changes since the commit `tip`. Return None if another git process has moved or locked the branch.

        Args:
            repository: the repository.
            tip: id of the newest commit; None: there is none.
            listed: paths of the existing files that are not ignored.
            message: the commit message.
            is_first: True: make a commit even without changes, and leave files out that contain secrets.
        """
        blobs = repository.scratch / "blobs"
        with blobs.open("wb") as file:
            builder = DraftBuilder(self.folder, file, self._resources.find, leave_out_secrets=is_first)
            draft = builder.create(listed, repository.list_tracked(tip))
        if not draft.changes and not is_first:
            return CommitOutcome(None, draft.left_out)
        subject, body = message.subject, "\n\n".join(filter(None, [message.body, format_left_out(draft.left_out)]))
        at = self._resources.clock() // 1000
        text = f"{subject}\n\n{body}\n" if body else f"{subject}\n"
        oid = repository.commit(blobs, tip, draft.changes, text, at)
        if oid is None:
            return None
        commit = Commit(
            oid=oid, short_oid=oid[:7], subject=subject, body=body, author=AUTHOR, timestamp_unix=max(0, at)
        )
        return CommitOutcome(commit, draft.left_out)

    def _read_history(self, limit: int, include_diff: bool, user_id: str | None) -> History:  # noqa: FBT001
        if not recover(self.folder):
            return History(commits=[])
        with open_repository(self._resources.git, self.folder) as repository:
            tip = repository.get_tip()
            commits = [] if tip is None else repository.log(tip, limit)
            if not include_diff or len(commits) < 2:
                return History(commits=commits)
            found = repository.diff(commits[-1].oid, commits[0].oid, user_id)
            more = f"[{found.missing:,} more bytes of this diff are left out]\n" if found.missing else ""
            return History(commits=commits, diff=found.text + more or None)

    def _make_error(self, exc: OSError) -> WorkspaceUnavailable:
        return WorkspaceUnavailable(f"the workspace {self.folder} cannot be used: {exc.strerror or exc}")


def format_fields(values: Mapping[str, str | None]) -> str:
    """Format fields for the body of a commit message, as lines `name=value`. Fields without a value (None) are left out."""
    return "\n".join(f"{name}={to_one_line(value)}" for name, value in values.items() if value is not None)


DEFAULT: Final = "default"
"""Name of the workspace of sessions without an agent. It is also the name of the default tenant, whose workspaces are directly in the
common folder. Each other tenant has a subfolder."""


class WorkspaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the workspaces.

    Raises:
        InvalidRequest: a value is not valid.
    """

    path: str = "workspaces"
    """Folder that contains all workspaces."""

    def __post_init__(self) -> None:
        if not self.path or "\0" in self.path:
            raise InvalidRequest("path must be the path of a folder", param="path")


class Workspaces:
    """All workspaces in a folder.

    Args:
        root: the folder, created when needed.
        clock: returns the time in milliseconds since the epoch.
        guard: rules for secrets, in addition to well-known credentials, which are always found; None: no more rules.
        git: the git program; None: with the default time limit.
        wait: maximum seconds to wait for a workspace that another process is using.

    Raises:
        MissingExtra: the search for secrets needs an extra that is not installed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        clock: Callable[[], int],
        guard: Guard | None = None,
        *,
        git: Git | None = None,
        wait: float = WORKSPACE_WAIT_SECONDS,
    ) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - links are kept: where they lead is the owner's decision
        self.git = git or Git()
        self._resources = WorkspaceResources(self.git, clock, make_finder(guard), wait)
        self._known: weakref.WeakValueDictionary[Path, Workspace] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Workspaces({str(self.root)!r})"

    @classmethod
    def from_settings(
        cls, settings: WorkspaceSettings, clock: Callable[[], int], guard: Guard | None = None
    ) -> Workspaces:
        """Create the workspaces from their settings.

        Raise `MissingExtra` if the search for secrets needs an extra that is not installed.
        """
        return cls(settings.path, clock, guard)

    def workspace(self, tenant: str, agent: str | None) -> Workspace:
        """Return the workspace of an agent. Nothing is created or read on the disk.

        Args:
            tenant: tenant of the agent.
            agent: name of the agent; None: the workspace of sessions without an agent.

        Raises:
            InvalidRequest: a name is not valid.
        """
        name = DEFAULT if agent is None else agent
        for value, param in ((tenant, "tenant"), (name, "agent")):
            check_id(value, param)
        folder = self.root / name if is_safe_name(name) else self.root / make_safe_name(name, "agent", name)
        if tenant != DEFAULT:
            above = tenant if is_safe_name(tenant) else make_safe_name(tenant, "tenant", tenant)
            folder = self.root / f"@{above}" / folder.name
        known = self._known.get(folder)
        if known is None:
            known = self._known[folder] = Workspace(self._resources, tenant, name, folder)
        return known

    def list_workspaces(self, tenant: str) -> list[Workspace]:
        """Return the existing workspaces of a tenant.

        `Workspace.agent` is the agent's name if this process has used the workspace. Otherwise it is the name of the folder, which differs
        from the agent's name if that is not a safe file name.
        """
        above = self.workspace(tenant, DEFAULT).folder.parent
        try:
            names = sorted(
                path.name for path in above.iterdir() if path.is_dir() and not path.name.startswith((".", "@"))
            )
        except OSError:
            return []
        known = self._known
        return [known.get(above / name) or Workspace(self._resources, tenant, name, above / name) for name in names]


def make_finder(guard: Guard | None) -> Find:
    """Create a function that finds credentials in well-known formats, and secrets that match the rules of `guard`.

    Raises:
        MissingExtra: the search for secrets needs an extra that is not installed.
    """
    known: list[Redactor] = [make_redactor(rules=CREDENTIALS)]
    if guard is not None:
        known += [one for one in (guard.redaction, guard.watch) if one is not None]

    def find(text: str) -> list[Hit]:
        return sorted({hit for one in known for hit in one.find(text)}, key=lambda hit: hit.start)

    return find
