"""Manage workspaces: a folder per agent with a git repository, for files that the agent keeps across sessions.

- `workspace`: the workspaces of a Holdfast: commit, history, write, purge
- `files`: files by name, and which files are committed
- `repository`: the git program, and its operations in a workspace
"""

from __future__ import annotations

from holdfast.workspace.repository import Commit
from holdfast.workspace.workspace import CommitOutcome, History, Workspace, Workspaces, WorkspaceSettings

__all__ = ["Commit", "CommitOutcome", "History", "Workspace", "WorkspaceSettings", "Workspaces"]
