"""Import a JSON file of messages: each conversation becomes a session of its user, without loss.

The file is a typical dump of a table: one row per message, unordered. Two users may have conversations with the same number,
because each user has their own sessions. Running the program twice changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import holdfast

FILE = Path(__file__).with_name("messages.json")
STORE = "sqlite:///migrated.db"
ROLES = {"person": "user", "assistant": "assistant"}
OWN = {"user", "conversation", "author", "text", "sent"}
"""Columns that have a field in a session; all others become metadata of the message."""


def message_of(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row to a message, with its time and all other columns as metadata."""
    return {
        "role": ROLES[row["author"]],
        "content": row["text"],
        "timestamp": round(datetime.fromisoformat(row["sent"]).timestamp() * 1000),
        "metadata": {name: value for name, value in row.items() if name not in OWN},
    }


def conversations(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Group the messages by user and number of the conversation, in the order in which they were sent."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["sent"], row["id"])):
        found[row["user"], str(row["conversation"])].append(message_of(row))
    return dict(found)


async def main() -> None:
    """Import, compare, verify and search the conversations, and show the next prompt of one."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    wanted = conversations(rows)
    print(f"{FILE.name}: {len(rows)} messages, {len(wanted)} conversations, {len({user for user, _ in wanted})} users")

    async with holdfast.open(STORE) as hf:
        # Each session is imported completely or not at all; an identical one that exists is left unchanged.
        changed = 0
        for (user, number), messages in wanted.items():
            arrival = await hf.import_({"messages": messages}, user_id=user, session_id=number)
            changed += arrival.changed
        print(f"imported {changed} sessions, {len(wanted) - changed} were there already")

        # Read back and compare what was imported, and check the digest chain of each log.
        same = verified = 0
        for (user, number), messages in wanted.items():
            session = await hf.session(number, user_id=user)
            kept = await session.export()
            same += sum(
                all(one[field] == given[field] for field in given) for one, given in zip(kept, messages, strict=True)
            )
            verified += await session.verify()
        print(f"{same} messages are unchanged: words, roles, times, columns; {verified} verified")

        # Users never find each other's messages.
        for user, question in (("ada", "spare key"), ("bob", "spare key"), ("chloé", "where does kelp grow?")):
            hits = (await hf.search(question, user, limit=1)).hits
            lines = [f"{hit.snippet!r} (session {hit.session_id}, message {hit.seq})" for hit in hits]
            print(f"{user} asks {question!r}: {lines[0] if lines else 'nothing'}")

        # An imported conversation can be continued: this is the prompt that a model would receive. A continued session differs
        # from the file, and a second import would replace it: import before users continue their sessions.
        messages = (await (await hf.session("1", user_id="ada")).context()).messages
        print(f"the next prompt of ada's session 1 has {len(messages)} messages, the last: {messages[-1]['content']!r}")


if __name__ == "__main__":
    asyncio.run(main())
