"""Hooks, which are called when a session ends, and observers, which are called when a session is written.

registry          protocols and registration                         webhook    a signed POST when a session ends
transcripts       a JSON-lines file for each session                 workspace  a commit when a session ends
transcript_files  names, lines and locks of transcripts
"""

from __future__ import annotations

from holdfast.hooks.registry import EndedSession, Hook, Observer

__all__ = ["EndedSession", "Hook", "Observer"]
