"""A folder for each agent, with a git repository in it: what the agent keeps across sessions, and its history.

workspace   the workspaces of a Holdfast, and one of them: commit, history, write, purge
files       which files are committed, and what is searched for in them; files by name
repository  the git program, and what it does in one of them
"""

from __future__ import annotations

from holdfast.workspace.repository import Commit
from holdfast.workspace.workspace import History, Outcome, Workspace, Workspaces, WorkspaceSettings

__all__ = ["Commit", "History", "Outcome", "Workspace", "WorkspaceSettings", "Workspaces"]
