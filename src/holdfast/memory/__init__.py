"""Memories across sessions: store, merge, find and review them, and determine the origin of their words."""
