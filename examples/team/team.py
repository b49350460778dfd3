"""A team: two agents that hand over one conversation, and one that is called like a tool.

All of them share the session. Each has its own instruction, tools and view. Messages of the other agents appear in its prompt
as text labelled with their name, never as its own words. docs/team-example.md has another team, over HTTP.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import holdfast

CONFIG = Path(__file__).with_name("holdfast.yaml")
REAL = "OPENAI_API_KEY" in os.environ
"""True if real models decide who does what. The offline model makes the call that a message names."""

STEPS = [
    ("What does the kettle cost?", 'call transfer_to_agent {"agent_name": "expert", "message": "The kettle\'s price"}'),
    ("Are you sure? Look it up again.", 'call look_up {"product": "kettle"}'),
    ("Back to the desk, please.", 'call transfer_to_agent {"agent_name": "desk"}'),
    ("Tell me the price in German.", 'call translator {"request": "The kettle costs 12 euro."}'),
]


def look_up(product: str) -> str:
    """Look up a product in the catalogue.

    Args:
        product: its name
    """
    return f"{product}: 12 euro, in stock"


async def main() -> None:
    """Run four turns, then show the session as each agent sees it."""
    async with holdfast.from_config(CONFIG, tools=[look_up]) as hf:
        session = await hf.session(user_id="ada", agent="desk")
        for question, call in STEPS:
            await session.send(question if REAL else call)

        print("The log, and who wrote it:")
        for entry in await session.entries():
            calls = "".join(f" calls {one.name}" for one in entry.message.tool_calls)
            # The result of a called agent names the session in which that agent ran.
            child = (entry.metadata or {}).get("child")
            where = f" (in {child})" if child else ""
            print(f"  turn {entry.turn_id} {entry.agent or 'user'}: {entry.message.role}{calls}{where}")

        for name in ("desk", "expert"):
            # A handle with another agent's name shows the session as that agent sees it.
            theirs = await hf.session(session.id, user_id="ada", agent=name)
            print(f"\nWhat {name} would be sent:")
            for message in (await theirs.context()).messages:
                print(f"  {message['role']}: {' '.join(str(message['content'] or 'calls').split())[:110]}")

        print("\nSessions:")
        for one in (await hf.sessions(user_id="ada")).sessions:
            # The translator ran in its own session, which is closed and linked; it saw only the request.
            print(f"  {one.id}: {one.agent}, {one.status}, {one.messages} messages")
        print("state found:", " ".join(str(await session.state["found"]).split())[-60:])


if __name__ == "__main__":
    asyncio.run(main())
