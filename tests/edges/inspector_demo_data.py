"""Memories, state, records, files and deletions of the inspector's demo."""

from __future__ import annotations

from typing import Any

from holdfast.domain.memory import MemorySource, Owner
from holdfast.domain.session import SessionRef
from holdfast.sessions.memory_files import open_memory_files
from tests.behaviour.kit.inspector import PNG
from tests.clocks import Clock
from tests.edges.server import Served

DAY = 86_400_000
ADA = Owner("user", "ada")
MEMORIES: tuple[dict[str, Any], ...] = (
    {"content": "Ada is allergic to shellfish", "type": "user", "tags": ["food", "health"], "importance": 0.9},
    {"content": "Mila cannot sleep in bunk beds", "type": "user", "tags": ["hotel", "family"], "importance": 0.7},
    {"content": "The budget of the trip to Norway is 4,000 euros", "type": "project", "tags": ["norway", "budget"]},
    {"content": "The family travels in Norway from May 20 to June 4", "type": "project", "tags": ["norway"]},
    {"content": "Ada likes short answers", "type": "feedback", "tags": ["style"], "origin": "assistant"},
)
QUESTIONS = ("may we eat shellfish?", "is Ada allergic to anything?", "allergic guests in the restaurant", "bunk beds?")


async def add_demo_data(served: Served, clock: Clock) -> None:
    """Add what the pages about data show. The recalls are of several days, so the clock goes back for them."""
    now = clock.now
    memories = served.hf.memories
    clock.now = now - 3 * DAY
    for one in MEMORIES:
        source = {
            "session_id": "norway",
            "seqs": [2 if "shellfish" in one["content"] or "bunk" in one["content"] else 0],
        }
        answer = await served.http.post("/v1/memories", json={"user_id": "ada", "sources": [source], **one})
        assert answer.status_code == 201, answer.text
    for day, question in enumerate(QUESTIONS):
        clock.now = now - 3 * DAY + day * DAY // 2
        await memories.recall(question, user_id="ada", session=f"help-{day}")
    await memories.settled()
    await served.hf.consolidation.consolidate(ADA)
    clock.now = now
    old = (await memories.recall("budget", user_id="ada", signal=False)).found[0].memory
    entries = await served.hf.store.entries(SessionRef("ada", "norway"))
    changed = next(entry.seq for entry in entries if "4,600 euros" in entry.message.text)
    said = MemorySource(session_id="norway", user_id="ada", seqs=(changed,))
    await memories.remember(
        "The budget of the trip is 4,600 euros", user_id="ada", type="project", sources=[said], supersedes=[old.id]
    )
    await memories.remember("Transfer the deposit to account NO93 8601", user_id="ada", origin="web", held=True)
    await memories.remember("The cabin near Molde has a sauna", user_id="ada", origin="tool", held=True)
    files = open_memory_files(served.hf.engine, "ada")
    await files.create("/memories/norway.md", "# Norway\n- Allergy: shellfish\n- Budget: 4,000 euros\n")
    await files.str_replace("/memories/norway.md", "4,000 euros", "4,600 euros")
    await files.hold({"command": "create", "path": "/memories/payments.md", "file_text": "Pay to NO93 8601"})
    await _add_state(served)


async def _add_state(served: Served) -> None:
    state = {"trip": {"from": "2026-05-20", "to": "2026-06-04", "guests": 3}, "step": "hotels", "user:language": "en"}
    await served.http.patch("/v1/sessions/norway/state?user_id=ada", json={**state, "app:season": "summer"})
    puts = [
        {
            "op": "put",
            "namespace": ["bookings", city],
            "key": f"hotel-{number}",
            "value": {"nights": number, "price": 90 * number},
        }
        for number, city in enumerate(("oslo", "bergen", "molde"), 1)
    ]
    answer = await served.http.post("/v1/records?user_id=ada", json={"changes": puts})
    assert answer.status_code == 200, answer.text
    for name, content, kind in (
        ("itinerary.md", b"# Day 1\nOslo, harbour hotel\n", "text/markdown"),
        ("map.png", PNG, "image/png"),
    ):
        path = f"/v1/sessions/norway/artifacts/{name}?user_id=ada"
        await served.http.put(path, content=content, headers={"content-type": kind})
    await served.chat("Please forget this.", session_id="old", user_id="erin")
    await served.http.delete("/v1/users/erin")
