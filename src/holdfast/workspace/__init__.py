"""Manage workspaces. A workspace is an agent's folder with a git repository, for files that the agent keeps across sessions.

- `workspace`: the workspaces of a Holdfast, and their operations: commit, list commits, write files, purge
- `files`: reads and writes files by name, and selects the files to commit
- `repository`: runs the git program in a workspace
"""

from __future__ import annotations

from holdfast.workspace.repository import Commit
from holdfast.workspace.workspace import CommitOutcome, History, Workspace, Workspaces, WorkspaceSettings

__all__ = ["Commit", "CommitOutcome", "History", "Workspace", "WorkspaceSettings", "Workspaces"]
