"""The workspaces of a Holdfast: one an agent and tenant, each with a folder of its own."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.limits import WORKSPACE_WAIT_SECONDS
from holdfast.safe_names import is_plain, with_digest
from holdfast.secrets import CREDENTIALS, Guard, Hit, Redactor, make_redactor
from holdfast.stores.checks import check_id
from holdfast.workspace.files import Find, Limit, OnSecret
from holdfast.workspace.program import Git
from holdfast.workspace.workspace import Means, Workspace

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
        folder = self.root / name if is_plain(name) else self.root / with_digest(name, "agent", name)
        if tenant != DEFAULT:
            above = tenant if is_plain(tenant) else with_digest(tenant, "tenant", tenant)
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
