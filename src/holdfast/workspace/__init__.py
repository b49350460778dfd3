"""A folder an agent, with a git repository in it: what the agent keeps across sessions, and how that came to be.

service     the workspaces of a Holdfast: commit, history, write, purge     repository  what git does in one of them
files       which files are committed, and what is looked for in them      program     the git program, apart from this machine's
"""

from __future__ import annotations

from holdfast.workspace.repository import Commit
from holdfast.workspace.service import History, Outcome, Workspace, Workspaces, WorkspaceSettings

__all__ = ["Commit", "History", "Outcome", "Workspace", "WorkspaceSettings", "Workspaces"]
