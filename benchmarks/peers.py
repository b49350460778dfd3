"""The peers that Holdfast is compared with, each used as its documentation shows."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agents import SQLiteSession
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages

from holdfast.domain.messages import Message
from holdfast.tokens import STORED
from holdfast.wire.openai import to_chat_message

BUDGET = 8_000
LIMIT = 40
"""The `limit` of `SQLiteSession` where one is set."""

# -- langchain-core ----------------------------------------------------------


def to_langchain(number: int, message: Message) -> BaseMessage:
    """Convert a message to langchain's form, with `number` as its id."""
    name, text = str(number), message.text
    if message.role == "user":
        return HumanMessage(content=text, id=name)
    if message.role == "tool":
        return ToolMessage(content=text, tool_call_id=str(message.tool_call_id), id=name)
    if message.role == "assistant":
        calls = [
            {"id": call.id, "name": call.name, "args": _parse_arguments(call.arguments)} for call in message.tool_calls
        ]
        return AIMessage(content=text, tool_calls=calls, id=name)
    return SystemMessage(content=text, id=name)


def _parse_arguments(text: str) -> dict[str, Any]:
    """Parse the arguments of a tool call; langchain needs an object, so other values are wrapped in one."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"arguments": value}


class Trimmer:
    """A conversation of langchain messages that `trim_messages` trims.

    Args:
        messages: the conversation, system message first.
        remember: count each message only once, which langchain does not do. Used by tables that do not measure time.
    """

    def __init__(self, messages: Iterable[Message], *, remember: bool = False) -> None:
        self.messages: list[Message] = []
        self.history: list[BaseMessage] = []
        self._counts: dict[str, int] | None = {} if remember else None
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        """Append a message."""
        self.history.append(to_langchain(len(self.messages), message))
        self.messages.append(message)

    def truncate(self, length: int) -> None:
        """Keep only the first `length` messages."""
        del self.messages[length:], self.history[length:]
        if self._counts is not None:
            self._counts = {name: tokens for name, tokens in self._counts.items() if int(name) < length}

    def count_exact(self, messages: Sequence[BaseMessage]) -> int:
        """Count tokens with Holdfast's own exact (o200k) counter."""
        if self._counts is None:
            return sum(STORED.message(self.messages[int(str(message.id))]) for message in messages)
        for name in (names := [str(message.id) for message in messages]):
            if name not in self._counts:
                self._counts[name] = STORED.message(self.messages[int(name)])
        return sum(self._counts[name] for name in names)

    def trim(self, max_tokens: int, *, exact: bool, start_on: str | None = None) -> list[Message]:
        """Return the messages that `trim_messages` keeps within `max_tokens`, including the system message.

        Args:
            max_tokens: the budget.
            exact: count with Holdfast's counter instead of langchain's approximation.
            start_on: role of the first message after the system message, such as `human`; None: any role, which is the default.
        """
        kept = trim_messages(
            self.history,
            max_tokens=max_tokens,
            token_counter=self.count_exact if exact else "approximate",
            strategy="last",
            include_system=True,
            start_on=start_on,
        )
        return [self.messages[int(str(message.id))] for message in kept]


# -- openai-agents -----------------------------------------------------------


def open_agents_session(path: Path, name: str = "s") -> SQLiteSession:
    """Open a session of the Agents SDK in a file."""
    return SQLiteSession(name, path)


def to_items(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Convert messages to items of the Agents SDK, which stores any object as JSON."""
    return [to_chat_message(message) for message in messages]


async def run_agents_turn(session: SQLiteSession, user: str, answer: str, *, limit: int | None) -> None:
    """Run a turn: append the question, read the items for the model, append the answer."""
    await session.add_items([{"role": "user", "content": user}])
    await session.get_items(limit)
    await session.add_items([{"role": "assistant", "content": answer}])


# -- plain sqlite3 -----------------------------------------------------------


class PlainStore:
    """The simplest possible store: one table of messages with running token totals, in WAL mode with synchronous FULL."""

    def __init__(self, path: Path) -> None:
        self.raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            self.raw.execute(f"PRAGMA {pragma}")
        self.raw.execute(
            "CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, session TEXT, seq INT, total INT, message TEXT)"
        )
        self.raw.execute("CREATE UNIQUE INDEX IF NOT EXISTS log_place ON log (session, seq)")

    def begin(self) -> None:
        """Start a write transaction."""
        self.raw.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction to disk."""
        self.raw.execute("COMMIT")

    def append(self, name: str, message: Mapping[str, Any], tokens: int) -> None:
        """Append a message within the current transaction."""
        find = "SELECT seq, total FROM log WHERE session = ? ORDER BY seq DESC LIMIT 1"
        seq, total = self.raw.execute(find, (name,)).fetchone() or (-1, 0)
        row = (name, seq + 1, total + tokens, json.dumps(message))
        self.raw.execute("INSERT INTO log (session, seq, total, message) VALUES (?, ?, ?, ?)", row)

    def read_window(self, name: str, budget: int = BUDGET) -> list[Any]:
        """Return the newest messages that fit `budget`."""
        rows = self.raw.execute("SELECT total, message FROM log WHERE session = ? ORDER BY seq DESC", (name,))
        newest, kept = None, []
        for total, message in rows:
            newest = total if newest is None else newest
            if newest - total > budget:
                break
            kept.append(json.loads(message))
        return kept[::-1]

    def store_session(self, name: str, messages: Sequence[Message], counts: Sequence[int]) -> None:
        """Store a whole session in one transaction."""
        self.begin()
        total, rows = 0, []
        for seq, (message, tokens) in enumerate(zip(messages, counts, strict=True)):
            total += tokens
            rows.append((name, seq, total, json.dumps(to_chat_message(message))))
        self.raw.executemany("INSERT INTO log (session, seq, total, message) VALUES (?, ?, ?, ?)", rows)
        self.commit()

    def run_turn(self, user: str, answer: str, name: str = "s") -> None:
        """Run a turn: append, commit, read the window, append, commit."""
        self.commit_message(name, "user", user)
        self.read_window(name)
        self.commit_message(name, "assistant", answer)

    def commit_message(self, name: str, role: str, text: str) -> None:
        """Append a message in its own transaction."""
        self.begin()
        self.write_message(name, role, text)
        self.commit()

    def write_message(self, name: str, role: str, text: str) -> None:
        """Count the tokens of a message and append it within the current transaction."""
        message = Message(role="user" if role == "user" else "assistant", content=text)
        self.append(name, {"role": role, "content": text}, STORED.message(message))


class GroupCommit:
    """Group commit for a `PlainStore`: one thread writes all waiting messages in one transaction."""

    def __init__(self, plain: PlainStore) -> None:
        self._plain = plain
        self._waiting: list[tuple[Callable[[], object], asyncio.Future[None]]] = []
        self._running: asyncio.Task[None] | None = None

    async def write(self, work: Callable[[], object]) -> None:
        """Run `work` in the next transaction and wait until it is committed."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, committed))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._drain())
        await committed

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await asyncio.to_thread(self._commit_batch, [work for work, _ in batch])
            for _, committed in batch:
                committed.set_result(None)

    def _commit_batch(self, works: Sequence[Callable[[], object]]) -> None:
        self._plain.begin()
        for work in works:
            work()
        self._plain.commit()
