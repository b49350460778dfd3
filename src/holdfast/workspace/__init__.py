"""A folder an agent, with a git repository in it: what the agent keeps across sessions, and how that came to be.

workspaces  those of a Holdfast, by tenant and agent                       workspace   one of them: commit, history, write, purge
files       which files are committed, and what is looked for in them      repository  what git does in one of them
disk        a workspace's folder, and files in it by name                  program     the git program, apart from this machine's
"""

from __future__ import annotations

from holdfast.workspace.repository import Commit
from holdfast.workspace.workspace import History, Outcome, Workspace
from holdfast.workspace.workspaces import Workspaces, WorkspaceSettings

__all__ = ["Commit", "History", "Outcome", "Workspace", "WorkspaceSettings", "Workspaces"]
