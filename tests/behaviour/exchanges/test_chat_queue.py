"""Turns of one session at the same time: which waits, which is refused, which is stopped, and which gets a fork."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import assistant, user
from tests.behaviour.kit.exchanges import Exchange, exchange

CHAT: Final = "/v1/chat/completions"


def wait(body: dict[str, Any]) -> Reply:
    """Reply; wait before at the gate that the last message names."""
    said = str(body["messages"][-1]["content"])
    return Reply(text=f"To {said} I say yes.", hold=GATES.get(said))


GATES: dict[str, Gate] = {}


async def begin(x: Exchange, said: str, **fields: Any) -> Any:
    """Send a request that the model does not finish yet; return its task."""
    GATES[said] = Gate()
    before = len(x.served.upstream.requests)
    fields = {"messages": [user(said)], **fields}
    task = asyncio.create_task(x.served.http.post(CHAT, json=fields))
    await x.served.upstream.until(lambda: len(x.served.upstream.requests) > before)
    return task


async def end(x: Exchange, said: str, task: Any) -> None:
    if said in GATES:
        GATES.pop(said).open()
    answer = await task
    x.note(f"the answer to {said}", [answer.status_code, answer.text])


@exchange(wait)
async def test_turns_of_a_session_at_the_same_time(x: Exchange) -> None:
    running = await begin(x, "a", session_id="s")
    await x.post(CHAT, session_id="s", messages=[user("b")], session_queue="reject")
    await x.post(CHAT, session_id="t", messages=[user("c")], session_queue="reject")
    waiting = asyncio.create_task(x.served.http.post(CHAT, json={"session_id": "s", "messages": [user("d")]}))
    await x.served.until_waiting()
    await end(x, "a", running)
    await end(x, "d", waiting)
    for stream in (False, True):
        running = await begin(x, f"e {stream}", session_id="s", stream=stream)
        await x.post(CHAT, session_id="s", messages=[user("f")], session_queue="interrupt")
        await end(x, f"e {stream}", running)
    await x.rows("/v1/sessions/s/messages", "seq", "role", "content", "metadata", "turn_id")
    running = await begin(x, "g", session_id="s")
    await x.post("/v1/responses", conversation="conv_xcw", input="h", session_queue="reject")
    await x.delete("/v1/sessions/s")
    await end(x, "g", running)


@exchange(wait)
async def test_requests_without_a_name_while_a_turn_runs(x: Exchange) -> None:
    first = await x.post(CHAT, user="ada", messages=[user("One.")])
    said = first["choices"][0]["message"]["content"]
    whole = [user("One."), assistant(said)]
    running = await begin(x, "two", messages=[*whole, user("two")], user="ada")
    await x.post(CHAT, user="ada", messages=[*whole, user("three")])
    await x.post(CHAT, user="bob", messages=[*whole, user("three")])
    await x.post(CHAT, user="ada", messages=[*whole, user("four")], session_queue="interrupt")
    await end(x, "two", running)
    for row in await x.rows("/v1/sessions", "id", "user_id", "version", "metadata"):
        await x.rows(
            f"/v1/sessions/{row['id']}/messages",
            "seq",
            "role",
            "content",
            "retired_by",
            user_id=row["user_id"],
            retired=True,
        )
