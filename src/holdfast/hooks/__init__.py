"""Hooks of the ends of sessions, and observers of what is written to them.

registry          hooks and observers, and how writes reach them     webhook    a signed POST at an end
transcripts       a JSON-lines file for each session                 workspace  a commit at an end
transcript_files  names, lines and locks of such files
"""

from __future__ import annotations

from holdfast.hooks.registry import EndedSession, Hook, Observer

__all__ = ["EndedSession", "Hook", "Observer"]
