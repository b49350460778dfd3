"""The interface of all drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

Row = dict[str, Any]
"""An object with the fields that the REST API gives it."""
DRIVERS: Final = ("library", "connect", "rest", "cli")


class Session(Protocol):
    """One session. All methods raise `Refused`. Arguments that are not named here are those of the library."""

    id: str
    user: str

    async def info(self) -> Row:
        """Return the session without its log."""

    async def messages(self, *, retired: bool = False) -> list[Row]:
        """Return the entries of the log: the live path, or retired ones too."""

    async def export(self, **options: Any) -> Row:
        """Return the whole session as one object."""

    async def history(self, view: str = "voice") -> list[Row]:
        """Return what user and assistant said."""

    async def append(self, *messages: Any, **options: Any) -> list[Row]:
        """Write messages to the end of the log; return their entries."""

    async def replace(self, seq: int, message: Any, **options: Any) -> Row:
        """Replace a message; return its new entry."""

    async def erase(self, seq: int) -> Row:
        """Erase the content of a message."""

    async def annotate(self, seq: int, **fields: Any) -> Row:
        """Set `pinned`, `importance` or `refused_by`."""

    async def update(self, **fields: Any) -> Row:
        """Change fields of the session."""

    async def fork(self, at_turn: int | None = None, id: str | None = None) -> Session:  # noqa: A002  # its name everywhere
        """Copy the session up to a turn."""

    async def rewind(self, at_turn: int) -> Row:
        """Go back to the end of a turn."""

    async def move(self, **to: Any) -> Session:
        """Give the session another `user_id`, `agent` or `id`."""

    async def close(self) -> Row:
        """Close the session."""

    async def delete(self) -> Row:
        """Delete the session; return the receipt."""

    async def context(self, **options: Any) -> Row:
        """Build a prompt; `messages`, `conversation_tokens`, `total_tokens`, `budget`, `hash`, `decisions`."""

    async def explain(self, **options: Any) -> Row:
        """Explain the prompt."""

    async def prompt(self, call_id: str = "next", **options: Any) -> Row:
        """Show the prompt of a model call."""

    async def calls(self, **options: Any) -> list[Row]:
        """Return the recorded model calls; `order` is `asc` or `desc`."""

    async def facts(self, **options: Any) -> list[Row]:
        """Return the user's standing facts."""

    async def change_fact(self, fact_id: str, how: str) -> None:
        """`pin`, `drop` or `reset` a fact."""

    async def compact(self, **options: Any) -> Row | None:
        """Summarize now; None: there is nothing to summarize."""

    async def compactions(self) -> list[Row]:
        """Return all summaries."""

    async def drop_compaction(self, compaction_id: int) -> Row:
        """Undo a summary."""

    async def state(self) -> Row:
        """Return the whole state, shared keys included."""

    async def change_state(self, **values: Any) -> Row:
        """Set keys (None deletes); return the state. Keys with a colon: `change_state(**{"user:theme": "dark"})`."""

    async def turn(self, *messages: Any, reply: str | None = None, **options: Any) -> Row:
        """Run a turn in which the caller is the model: return `messages` of the prompt; `reply` is stored as the answer."""

    async def send(self, *messages: Any, **options: Any) -> Row:
        """Run a turn with the configured model; return the answer of Chat Completions."""

    async def speak(self, text: str | None = None, **options: Any) -> Row:
        """Let the agent say a text."""

    async def interrupt(self, **heard: Any) -> Row:
        """Keep only what was heard of the last reply."""


class Driver(Protocol):
    """The product, opened in one way."""

    name: str

    def session(self, id: str = "s", user: str = "default") -> Session:  # noqa: A002
        """Return a handle. Nothing is created."""

    async def create(self, id: str | None = "s", *, user: str = "default", **fields: Any) -> Session:  # noqa: A002
        """Create a session: `agent`, `system_messages`, `state`, `metadata`, `ttl`, `carry_over`."""

    async def given(self, id: str, *messages: Any, user: str = "default", **fields: Any) -> Session:  # noqa: A002
        """Make a session with these messages, in whatever way the driver has."""

    async def sessions(self, **options: Any) -> list[Row]:
        """List sessions."""

    async def import_session(self, exported: Mapping[str, Any], **options: Any) -> Row:
        """Import what `export` returned; return what came of it."""

    async def search(self, query: str, **options: Any) -> list[Row]:
        """Search messages; return hits, best first. Options: `user`, `session_id`, `mode`, `limit`, `role`, …"""

    async def remember(self, content: str, **options: Any) -> Row:
        """Remember a fact for an owner: `user`, `agent` or `app`."""

    async def memories(self, query: str | None = None, **options: Any) -> list[Row]:
        """List memories of an owner, or recall those that answer a question."""

    async def review(self, memory_id: str, decision: str, **owner: Any) -> Row:
        """Accept or reject a memory that is held."""

    async def forget(self, memory_id: str) -> None:
        """Delete a memory with its history."""

    async def shared_state(self, user: str | None = None) -> Row:
        """Return the state of a user; without one, of the app."""

    async def change_shared_state(self, values: Mapping[str, Any], user: str | None = None) -> Row:
        """Set keys of the state of a user, or of the app."""

    async def delete_user(self, user: str) -> Row:
        """Delete everything of a user; return the receipt."""
