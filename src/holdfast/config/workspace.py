"""Where agents' workspaces are: the key `hooks.workspace_git`."""

from __future__ import annotations

from typing import Literal

from holdfast.config.kinds import Mistake, Settings, Text
from holdfast.workspace import WorkspaceSettings


class WorkspaceGit(Settings, frozen=True, kw_only=True):
    """A folder with a git repository for each agent."""

    enabled: bool = True
    """False: there are none. The key alone, or `true` in place of the mapping, turns them on."""
    path: Text = "workspaces"
    """The folder that they are in."""
    on_secret: Literal["block", "warn"] = "block"  # noqa: S105 - what happens, no password
    """A secret in what is to be committed refuses the commit, or is only told of in the log."""

    def mistakes(self) -> list[Mistake]:
        return [("path", "no path has a NUL in it")] * ("\0" in self.path)


def workspaces_of(settings: WorkspaceGit | None) -> WorkspaceSettings | None:
    """Where workspaces are; None: there are none."""
    if settings is None or not settings.enabled:
        return None
    return WorkspaceSettings(path=settings.path, on_secret=settings.on_secret)
