"""Workspaces of agents, one for each agent and tenant with a folder of its own: committed, read, purged and written to.

One piece of work at a time uses a workspace, in all processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread
import msgspec

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
from holdfast.secrets import CREDENTIALS, Guard, Hit, Redactor, make_redactor
from holdfast.stores.checks import check_id
from holdfast.workspace.files import (
    ATTRIBUTES,
    IGNORED,
    Draft,
    Drafting,
    Find,
    LeftOut,
    Limit,
    OnSecret,
    check_file,
    loaded,
    made,
    named,
    one_line,
    put_if_missing,
    replaced,
    secrets_in,
    several_lines,
)
from holdfast.workspace.repository import WHO, Commit, Git, Repository, check_own, opened, put_right, take_place

_log = logging.getLogger("holdfast.workspace")
NOTE: Final = "manual"
"""Note of a checkpoint that nobody gave one."""
_TRIES: Final = 5
"""Times that a commit is begun anew because somebody else's git was faster."""
_PAUSE: Final = 0.05
_FIRST: Final = (b".gitignore", b".gitattributes")


class _Words(NamedTuple):
    """What is said of a commit."""

    subject: str
    body: str


_INIT: Final = _Words("workspace init", "Auto-generated bootstrap commit.")
_PURGED: Final = _Words("workspace purge", "What was committed before was removed.")


class Outcome(NamedTuple):
    """What became of an attempt to commit."""

    commit: Commit | None
    """None: there was nothing to commit."""
    left_out: tuple[LeftOut, ...] = ()
    """Files that are not in it, or not as they are now, and why."""


class History(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was committed, newest first."""

    commits: list[Commit]
    diff: str | None = None
    """From the oldest of them to the newest; None: it was not asked for, there is one commit at most, or nothing differs."""


class Means(NamedTuple):
    """What all workspaces of a Holdfast are worked with."""

    git: Git
    clock: Callable[[], int]
    """Milliseconds since the epoch."""
    limit: Limit
    """What may be committed."""
    wait: float
    """Longest time in seconds that a workspace is waited for."""


class Workspace:
    """One agent's workspace. Made by `Workspaces`.

    Attributes:
        tenant: whose.
        agent: the agent's name.
        folder: where it is; it may not be there yet.
    """

    def __init__(self, means: Means, tenant: str, agent: str, folder: Path) -> None:
        self.tenant = tenant
        self.agent = agent
        self.folder = folder
        self._means = means
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Workspace({str(self.folder)!r})"

    @property
    def exists(self) -> bool:
        """Whether its folder is there."""
        return self.folder.is_dir()

    async def open(self) -> None:
        """Make folder and repository, where they are not there: ignore and attributes files, one commit on `main`.

        A repository of the folder itself stays as it is. Raises as `commit` does.
        """
        async with self._alone():
            await self._begun()

    async def commit(self, subject: str, body: str = "") -> Commit | None:
        """Commit all that is not ignored; None: there is nothing to commit.

        Args:
            subject: one line; what would break it is taken out, and a long one is cut.
            body: what else is to be said; what was left out is named behind it.

        Raises:
            SecretBlocked: what changes holds a secret; says where. Nothing was committed, nothing is staged.
            TooLarge: there are more files than one commit takes.
            GitMissing: there is no git program, or it is too old.
            WorkspaceUnusable: its repository cannot be worked with until somebody puts it right; says how.
            WorkspaceUnavailable: the disk, or another program, is in the way; later it may not be.
        """
        return (await self.attempt(subject, body)).commit

    async def attempt(self, subject: str, body: str = "") -> Outcome:
        """The same as `commit`, and which files were left out, also where there was nothing to commit."""
        subject = one_line(subject)[:WORKSPACE_SUBJECT_CHARS].rstrip()
        if not subject:
            raise InvalidRequest("a commit needs a subject: what it is about, in one line", param="subject")
        words = _Words(subject, several_lines(body)[:WORKSPACE_BODY_CHARS].rstrip())
        self._check_words(words)
        async with self._alone():
            await self._begun()
            for _ in range(_TRIES):
                async with opened(self._means.git, self.folder) as repository:
                    outcome = await self._committed(repository, words)
                    if outcome is not None:
                        return outcome
                    repository.free_branch(self._means.git.seconds)
                await asyncio.sleep(_PAUSE)
        raise WorkspaceUnavailable(f"another git holds the repository in {self.folder}: try again when it is done")

    async def checkpoint(
        self, note: str | None = None, *, session_id: str | None = None, user_id: str | None = None
    ) -> Outcome:
        """Commit because somebody wants to, with a note why. Raises as `commit` does.

        Args:
            note: one line; None or empty: `manual`.
            session_id: in which session.
            user_id: whose that is.
        """
        at = f"manual checkpoint at {_rfc3339(self._means.clock())}"
        told = {"session": session_id, "agent": self.agent, "user": user_id}
        return await self.attempt(f"checkpoint: {one_line(note or '') or NOTE}", "\n".join([at, fields(told)]))

    async def history(self, limit: int = 10, *, include_diff: bool = False, user_id: str | None = None) -> History:
        """What was committed, newest first; of a workspace that is not there, nothing.

        Args:
            limit: most commits, 1 to 100.
            include_diff: with what changed between the oldest and the newest of them.
            user_id: who looks: the diff has no files of other users' own (`MEMORY.ada.md`). None: it has all.

        Raises:
            InvalidRequest: the limit is none.
            WorkspaceUnavailable: as `commit` does; so its kinds.
        """
        check_whole(limit, "limit", 1, WORKSPACE_HISTORY)
        if not self.exists:
            return History(commits=[])
        async with self._alone():
            if not await anyio.to_thread.run_sync(put_right, self.folder):
                return History(commits=[])
            async with opened(self._means.git, self.folder) as repository:
                tip = await repository.tip()
                commits = [] if tip is None else await repository.log(tip, limit)
                diff = None
                if include_diff and len(commits) > 1:
                    found = await repository.diff(commits[-1].oid, commits[0].oid, user_id)
                    more = f"[{found.missing:,} more bytes of this diff are left out]\n" if found.missing else ""
                    diff = found.text + more or None
        return History(commits=commits, diff=diff)

    async def purge(self) -> Outcome:
        """Have the repository know nothing but what the workspace holds now, as one commit: all else is gone from the disk.

        Earlier commits, other branches, tags, stashes and what no commit has any more leave; its configuration and hooks stay. A file
        that holds a secret is left out, and named. The copies of a backup, and free blocks of the disk, are not reached.

        Raises:
            WorkspaceUnavailable: as `commit` does; so its kinds. Then all is as it was.
        """
        async with self._alone():
            await self._begun()
            check_own(self.folder)
            async with opened(self._means.git, self.folder, fresh=True) as repository:
                outcome = await self._first(repository, _PURGED)
            try:
                await anyio.to_thread.run_sync(take_place, self.folder)
            except OSError as exc:
                raise self._failed("purged", exc) from exc
            await self._settled(outcome)
            return outcome

    # -- its files ---------------------------------------------------------

    async def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all; a link by that name is replaced. It is committed by whoever commits next.

        Args:
            name: of a file in the folder itself: MEMORY.md.
            text: all of it.

        Raises:
            InvalidRequest: such a name leads elsewhere, or into the repository.
            TooLarge: it would not be committed.
            WorkspaceUnavailable: the disk is in the way.
        """
        check_file(name)
        data = text.encode("utf-8", "replace")
        if len(data) > WORKSPACE_FILE_BYTES:
            raise TooLarge(
                f"{name} would have {len(data):,} bytes; at most {WORKSPACE_FILE_BYTES:,} are committed", param="text"
            )
        async with self._alone():
            try:
                await anyio.to_thread.run_sync(replaced, self.folder, name, data)
            except OSError as exc:
                raise self._failed("written to", exc) from exc

    async def read(self, name: str) -> str | None:
        """A file's text, at most 1 MiB of it; None: there is none, or only a link, say. Raises as `write` does."""
        check_file(name)
        try:
            data = await anyio.to_thread.run_sync(loaded, self.folder / name)
        except OSError as exc:
            raise self._failed("read", exc) from exc
        return None if data is None else data.decode("utf-8", "replace")

    # -- inside ------------------------------------------------------------

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Be the only one who works here, in any process; what held it ends with its process, however that ends."""
        async with self._lock:
            try:
                folder = made(self.folder)
            except OSError as exc:
                raise self._failed("made", exc) from exc
            try:
                await self._locked(folder)
                yield
            finally:
                os.close(folder)

    async def _locked(self, folder: int) -> None:
        try:
            import fcntl
        except ImportError as exc:
            message = "workspaces need file locks that end with their process, and this system has none"
            raise WorkspaceUnusable(message) from exc
        deadline = asyncio.get_running_loop().time() + self._means.wait
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                if asyncio.get_running_loop().time() > deadline:
                    message = f"somebody else has worked in {self.folder} for more than {self._means.wait:g} s: try again later"
                    raise WorkspaceUnavailable(message) from exc
            except OSError as exc:
                raise self._failed("locked", exc) from exc
            else:
                return
            await asyncio.sleep(_PAUSE)

    async def _begun(self) -> None:
        """Have a repository there."""
        try:
            if await anyio.to_thread.run_sync(put_right, self.folder):
                return
            put_if_missing(self.folder, ".gitignore", IGNORED)
            put_if_missing(self.folder, ".gitattributes", ATTRIBUTES)
            async with opened(self._means.git, self.folder, fresh=True) as repository:
                outcome = await self._first(repository, _INIT, _FIRST)
            await anyio.to_thread.run_sync(take_place, self.folder)
        except OSError as exc:
            raise self._failed("made", exc) from exc
        await self._settled(outcome)

    async def _first(self, repository: Repository, words: _Words, only: Sequence[bytes] | None = None) -> Outcome:
        """The first commit of a new repository."""
        limit = self._means.limit
        if limit.policy == "block":
            limit = Limit(limit.find, "leave")
        listed = await repository.listed() if only is None else only
        blobs = repository.scratch / "blobs"
        draft = await self._draft(blobs, limit, listed, repository, None)
        outcome = await self._made_of(draft, repository, blobs, None, words)
        if outcome is None:
            raise WorkspaceUnavailable(f"a new repository in {self.folder} could not be written")
        return outcome

    async def _committed(self, repository: Repository, words: _Words) -> Outcome | None:
        """What a commit does; None: somebody else's git was faster."""
        tip = await repository.tip()
        blobs = repository.scratch / "blobs"
        draft = await self._draft(blobs, self._means.limit, await repository.listed(), repository, tip)
        if not draft.changes:
            return Outcome(None, draft.left_out)
        outcome = await self._made_of(draft, repository, blobs, tip, words)
        if outcome is not None and outcome.commit is not None:
            await repository.settle(outcome.commit.oid)
        return outcome

    async def _draft(
        self, blobs: Path, limit: Limit, listed: Sequence[bytes], repository: Repository, tip: str | None
    ) -> Draft:
        tracked = await repository.tracked(tip)

        def drafted() -> Draft:
            with blobs.open("wb") as file:
                return Drafting(self.folder, file, limit).drafted(listed, tracked)

        return await anyio.to_thread.run_sync(drafted)

    async def _made_of(
        self, draft: Draft, repository: Repository, blobs: Path, tip: str | None, words: _Words
    ) -> Outcome | None:
        for rule, place in draft.secrets:
            about = {"agent": self.agent, "rule": rule, "place": place}
            _log.warning("a secret is committed to a workspace", extra={"fields": about})
        subject, body = words.subject, "\n\n".join(filter(None, [words.body, named(draft.left_out)]))
        at = self._means.clock() // 1000
        message = f"{subject}\n\n{body}\n" if body else f"{subject}\n"
        oid = await repository.commit(blobs, tip, draft.changes, message, at)
        if oid is None:
            return None
        commit = Commit(oid=oid, short_oid=oid[:7], subject=subject, body=body, author=WHO, timestamp_unix=max(0, at))
        return Outcome(commit, draft.left_out)

    async def _settled(self, outcome: Outcome) -> None:
        if outcome.commit is not None:
            async with opened(self._means.git, self.folder) as repository:
                await repository.settle(outcome.commit.oid)

    def _check_words(self, words: _Words) -> None:
        """Refuse a secret in what is said of a commit."""
        limit = self._means.limit
        found = secrets_in(words.subject, "the subject", limit.find) + secrets_in(words.body, "the body", limit.find)
        if found and limit.policy == "block":
            raise SecretBlocked(found)

    def _failed(self, what: str, exc: OSError) -> WorkspaceUnavailable:
        return WorkspaceUnavailable(f"the workspace {self.folder} cannot be {what}: {exc.strerror or exc}")


def fields(told: Mapping[str, str | None]) -> str:
    """Names and values for the body of a commit, a line each; without those that nobody knows."""
    return "\n".join(f"{name}={one_line(value)}" for name, value in told.items() if value is not None)


def _rfc3339(milliseconds: int) -> str:
    with contextlib.suppress(OverflowError, ValueError, OSError):
        return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(milliseconds)


DEFAULT: Final = "default"
"""The workspace of sessions that have no agent; and the tenant whose workspaces' folders are called as the agents are."""


class WorkspaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where workspaces are, and what becomes of secrets in them.

    Raises:
        InvalidRequest: a value that cannot be.
    """

    path: str = "workspaces"
    """The folder that they are in."""
    on_secret: OnSecret = "block"  # noqa: S105 - what happens, no password
    """Whether a secret in what is to be committed refuses the commit, or is only told of in the log."""

    def __post_init__(self) -> None:
        if not self.path or "\0" in self.path:
            raise InvalidRequest("path must be that of a folder", param="path")
        if self.on_secret not in ("block", "warn"):
            raise InvalidRequest(f"on_secret must be block or warn, not {self.on_secret!r:.80}", param="on_secret")


class Workspaces:
    """All workspaces below a folder.

    Args:
        root: that folder; made when it is needed.
        clock: milliseconds since the epoch.
        guard: what else is a secret, beside well-known credentials.
        on_secret: see `WorkspaceSettings`.
        git: the program; tests give it less patience.
        wait: longest time in seconds that a workspace is waited for.

    Raises:
        MissingExtra: looking for secrets needs an extra.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        clock: Callable[[], int],
        guard: Guard | None = None,
        *,
        on_secret: OnSecret = "block",  # noqa: S107 - what happens, no password
        git: Git | None = None,
        wait: float = WORKSPACE_WAIT_SECONDS,
    ) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100 - links stay: where they lead is the owner's affair
        self.git = git or Git()
        self._means = Means(self.git, clock, Limit(finder(guard), on_secret), wait)
        self._known: weakref.WeakValueDictionary[Path, Workspace] = weakref.WeakValueDictionary()

    def __repr__(self) -> str:
        return f"Workspaces({str(self.root)!r})"

    @classmethod
    def of(cls, settings: WorkspaceSettings, clock: Callable[[], int], guard: Guard | None = None) -> Workspaces:
        """Those that settings ask for. Raises as the class does."""
        return cls(settings.path, clock, guard, on_secret=settings.on_secret)

    def workspace(self, tenant: str, agent: str | None) -> Workspace:
        """An agent's workspace; nothing is made, or looked at.

        Args:
            tenant: whose agent.
            agent: None: the one of sessions without an agent.

        Raises:
            InvalidRequest: that is nobody's name.
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
            known = self._known[folder] = Workspace(self._means, tenant, name, folder)
        return known

    def existing(self, tenant: str) -> list[Workspace]:
        """The workspaces of a tenant that there are, by their folders' names; of one whose name is made, that stands for its agent's."""
        above = self.workspace(tenant, DEFAULT).folder.parent
        try:
            names = sorted(
                path.name for path in above.iterdir() if path.is_dir() and not path.name.startswith((".", "@"))
            )
        except OSError:
            return []
        known = self._known
        return [known.get(above / name) or Workspace(self._means, tenant, name, above / name) for name in names]


def finder(guard: Guard | None) -> Find:
    """What finds secrets: the rules of a guard, and well-known credentials in any case. Raises `MissingExtra`."""
    known: list[Redactor] = [make_redactor(rules=CREDENTIALS)]
    if guard is not None:
        known += [one for one in (guard.redaction, guard.watch) if one is not None]

    def find(text: str) -> list[Hit]:
        return sorted({hit for one in known for hit in one.find(text)}, key=lambda hit: hit.start)

    return find
