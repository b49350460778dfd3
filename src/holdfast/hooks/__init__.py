"""Hooks, which are called when a session ends.

registry     the protocol and the registration       webhook    a signed POST when a session ends
transcripts  a JSON-lines file for each session      workspace  a commit when a session ends
"""

from __future__ import annotations

from holdfast.hooks.registry import EndedSession, Hook

__all__ = ["EndedSession", "Hook"]
