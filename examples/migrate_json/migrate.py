"""Moving in from a JSON file of messages: every conversation becomes a session of its user, and nothing is lost on the way.

The file is what many programs have: one row a message, as a table was dumped, in no order. Two users may have a conversation of
the same number; sessions are their users', so both keep it. Running this twice changes nothing.
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
"""Columns that have a place of their own in a session; all others are kept in the message's metadata."""


def message_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a message, with when it was sent, and whatever else the row says."""
    return {
        "role": ROLES[row["author"]],
        "content": row["text"],
        "timestamp": round(datetime.fromisoformat(row["sent"]).timestamp() * 1000),
        "metadata": {name: value for name, value in row.items() if name not in OWN},
    }


def conversations(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The messages of each conversation, by its user and its number, in the order in which they were sent."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["sent"], row["id"])):
        found[row["user"], str(row["conversation"])].append(message_of(row))
    return dict(found)


async def main() -> None:
    """Import, compare, verify, search, go on."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    wanted = conversations(rows)
    print(f"{FILE.name}: {len(rows)} messages, {len(wanted)} conversations, {len({user for user, _ in wanted})} users")

    async with holdfast.open(STORE) as hf:
        # Each session is imported whole or not at all; one that is there already, just so, is left alone.
        changed = 0
        for (user, number), messages in wanted.items():
            arrival = await hf.import_({"messages": messages}, user_id=user, session_id=number)
            changed += arrival.changed
        print(f"imported {changed} sessions, {len(wanted) - changed} were there already")

        # What was imported is read back and compared, and the digest chain of each log is derived anew.
        same = verified = 0
        for (user, number), messages in wanted.items():
            session = await hf.session(number, user_id=user)
            kept = await session.export()
            same += sum(
                all(one[field] == given[field] for field in given) for one, given in zip(kept, messages, strict=True)
            )
            verified += await session.verify()
        print(f"{same} messages are as they were: words, roles, times, columns; {verified} verified")

        # What one user said, nobody else finds.
        for user, question in (("ada", "spare key"), ("bob", "spare key"), ("chloé", "where does kelp grow?")):
            hits = (await hf.search(question, user, limit=1)).hits
            told = [f"{hit.snippet!r} (session {hit.session_id}, message {hit.seq})" for hit in hits]
            print(f"{user} asks {question!r}: {told[0] if told else 'nothing'}")

        # An imported conversation can go on where it stopped: this is what a model would be sent. Once it has gone on it differs
        # from the file, and another import would put the file's in its place: import before you let users in.
        messages = (await (await hf.session("1", user_id="ada")).context()).messages
        print(f"the next prompt of ada's session 1 has {len(messages)} messages, the last: {messages[-1]['content']!r}")


if __name__ == "__main__":
    asyncio.run(main())
