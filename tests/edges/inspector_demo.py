"""A realistic conversation of 300 messages for screenshots, and for finding out why the agent forgot a sentence.

Ada plans a trip with an agent that calls tools. Early on she mentions an allergy, a hotel rule and the name of her daughter. Much later she
asks for what has left the prompt by then. Nothing is random, so screenshots change only if the pages change.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from holdfast.testing import Reply
from tests.clocks import Clock
from tests.edges.inspector_demo_data import add_demo_data
from tests.edges.server import Served, gateway

FORGOTTEN = "the parking code of the cabin is 4417"
"""A sentence of an early message that is not in the last prompt."""
BUDGET = 2_400
CITIES = ("Oslo", "Bergen", "Trondheim", "Stavanger", "Bodø", "Tromsø", "Ålesund", "Molde", "Narvik", "Alta")
TOPICS = ("hotel", "train", "museum", "restaurant", "ferry", "hike", "concert", "bakery")
TOOL = {
    "type": "function",
    "function": {
        "name": "search_places",
        "description": "Find places of one kind in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "kind": {"type": "string"}, "guests": {"type": "integer"}},
            "required": ["city", "kind"],
        },
    },
}
OPENING = (
    "We want to travel through Norway with our daughter Mila from May 20 to June 4. Please plan the whole trip, at most 4,000 euros.",
    "Always answer briefly. I am allergic to shellfish, and Mila cannot sleep in bunk beds.",
    f'My brother lends us his cabin near Molde. He writes: "It is yours for two nights; {FORGOTTEN}, and the key is under the bench."',
)


def list_messages() -> Iterator[str]:
    """Yield what the user says, turn by turn."""
    yield from OPENING
    for number in range(72):
        city, topic = CITIES[number % len(CITIES)], TOPICS[number % len(TOPICS)]
        yield (
            f"Now day {number // 5 + 1}: find a {topic} in {city}"
            + ("." if number % 3 else f", not more than {60 + 5 * number} euros, and close to the harbour.")
            + (" We changed our mind, the budget is 4,600 euros now." if number == 40 else "")
        )
    yield "We have arrived and stand at the barrier. Which number do I type in?"


class TravelAgent:
    """A scripted model that calls a tool in every turn, and then answers from the tool's result."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sent = ""

    def __call__(self, request: dict[str, Any]) -> Reply:
        reply = self._answer(request["messages"][-1])
        sent = json.dumps(request["messages"])
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(sent, self._sent, strict=False)))
        self._sent = sent
        usage = {
            "prompt_tokens": len(sent) // 4,
            "completion_tokens": 40,
            "prompt_tokens_details": {"cached_tokens": same // 512 * 128},
        }
        return replace(reply, usage=usage)

    def _answer(self, last: dict[str, Any]) -> Reply:
        if last["role"] == "tool":
            found = json.loads(last["content"])["results"][0]
            return Reply(text=f"{found['name']} fits: {found['price']} euros, {found['rating']} of 5. Shall I book it?")
        text = str(last["content"])
        if "find a" not in text:
            return Reply(
                text="I am sorry, I know of no number for a barrier."
                if "barrier" in text
                else "Noted. I will keep that in mind for the plan."
            )
        topic, _, rest = text.partition("find a ")[2].partition(" in ")
        city = rest.replace(".", ",").partition(",")[0]
        number = next(self._numbers)
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "search_places", "arguments": json.dumps({"city": city, "kind": topic, "guests": 3})},
        }
        return Reply(tool_calls=[call])


def make_results(number: int) -> str:
    """Return the result of the tool call with this number."""
    names = ("Nordlys", "Fjordblikk", "Havnehjem", "Bryggen", "Solsiden")
    results = [
        {
            "name": f"{names[(number + offset) % 5]} {10 + number % 40}",
            "price": 48 + (number * 17 + offset * 23) % 130,
            "rating": round(3.4 + ((number + offset) % 7) / 5, 1),
            "address": f"Strandgata {number + offset}",
            "cancellation": "free until two days before",
        }
        for offset in range(3)
    ]
    return json.dumps({"results": results, "total": 3})


@asynccontextmanager
async def serve_demo(*more: str, **options: Any) -> AsyncIterator[Served]:
    """Run a server with the session `norway` of the user `ada`, and a few shorter sessions of other users."""
    clock = Clock(int(time.time() * 1000) - 3 * 3_600_000)
    async with gateway(TravelAgent(), *more, clock=clock, **options) as (served, _):
        await play(served, clock)
        for user, text in (
            ("ben", "My invoice 2024-118 shows the wrong address."),
            ("chris", "How do I reset the password of my router?"),
            ("dana", "Summarize the meeting notes of Monday, please."),
        ):
            await served.chat(text, session_id=f"help-{user}", user_id=user)
            await served.chat("Thanks, and what do I do next?", session_id=f"help-{user}", user_id=user)
        await add_demo_data(served, clock)
        yield served


async def play(served: Served, clock: Clock) -> None:
    """Run all turns of the session `norway` through the gateway."""
    fields: dict[str, Any] = {
        "session_id": "norway",
        "user_id": "ada",
        "budget": BUDGET,
        "strategy": "digest",
        "tools": [TOOL],
    }
    for text in list_messages():
        clock.now += 120_000
        reply = await served.chat(text, **fields)
        while calls := reply["choices"][0]["message"].get("tool_calls"):
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": make_results(int(call["id"].partition("_")[2]))}
                for call in calls
            ]
            reply = await served.chat(results, **fields)
