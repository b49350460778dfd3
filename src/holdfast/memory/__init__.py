"""Memories across sessions: storing, merging, finding and reviewing them, and the origin of their words."""
