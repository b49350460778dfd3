"""What is told of sessions: hooks of their ends, and observers of what is written to them.

base       what a hook gets and promises       transcripts  a JSON-lines file a session
callbacks  who is told, in which order         webhook      a signed POST when one ends
observing  a store that tells what is written
"""

from __future__ import annotations

from holdfast.hooks.base import EndedSession, Hook, Observer

__all__ = ["EndedSession", "Hook", "Observer"]
