"""Interrupted replies, spoken texts, histories, lists of calls, and sessions that are carried over."""

from __future__ import annotations

from typing import Any

from tests.behaviour.kit import assistant, calls, result, system, user
from tests.behaviour.kit.exchanges import DATABASES, Exchange, exchange

AGENTS = """agents:
  kim: {greeting: "Hello {step?}", silence_message: "Still {step} there?"}
  lee: {}"""
S = "/v1/sessions/s"
PICTURE = {"type": "image_url", "image_url": {"url": "https://kelp.example/p.png"}}
LOOK = calls(("c1", "look", {}), ("c2", "look", {}), text="Let me look.")
REPLY = [user("Where?"), LOOK, result("c1", "rocks"), result("c2", "-"), assistant("It is on the rocks, my friend.")]
SOON = [*REPLY, user("And?"), {"role": "note", "origin": 1}, user("So?")]
OPEN = [user("Where?"), assistant("Well."), user("So?"), LOOK, result("c2", "-")]
PARTS = [
    user("Where?"),
    assistant([{"type": "text", "text": "It is "}, PICTURE, {"type": "text", "text": "on the rocks."}, PICTURE]),
]
MUTE = [user("Where?"), LOOK, result("c2", "-"), calls(("c3", "look", {})), calls(("c4", "look", {}), text="More?")]
CJK = [user("Where?"), assistant("在岩石上 and sand")]
HEARD: list[tuple[list[Any], dict[str, Any]]] = [
    (REPLY, {}),
    *(
        (REPLY, {"content": text})
        for text in ("Let me look. It is", "it", "Let me\nlook.  It i", "Let me look...", "", "It is")
    ),
    *((REPLY, {"chars": number}) for number in (0, 12, 13, 14, 15, 20, 44, 45)),
    *((REPLY, {"ms": number}) for number in (0, 1, 1000, 2000, 9000)),
    *((REPLY, {"ms": number, "total_ms": 2000}) for number in (500, 1000, 2000)),
    *(
        (REPLY, more)
        for more in ({"content": "x", "chars": 1}, {"total_ms": 5}, {"ms": 5, "total_ms": 0}, {"chars": -1})
    ),
    *((REPLY, {"chars": 20, "turn_id": turn, "timestamp": 77}) for turn in (0, 1)),
    *(
        (SOON, more)
        for more in (
            {"chars": 18, "return_session": True},
            {"chars": 12},
            {"chars": 3},
            {"turn_id": 0, "chars": 18},
            {},
        )
    ),
    *((OPEN, more) for more in ({}, {"chars": 3}, {"chars": 0}, {"turn_id": 0})),
    *((PARTS, {"chars": number}) for number in (0, 3, 6, 9, 19)),
    *((MUTE, {"chars": number}) for number in (0, 5, 12, 13, 15, 30)),
    *((CJK, {"ms": number}) for number in (1, 100, 300, 500)),
    ([*REPLY, system("Be brief.")], {"chars": 20}),
    ([*OPEN, user("Hm.")], {}),
    ([*REPLY[:4], assistant("Dinner is ready.", turn_id=1)], {"chars": 6}),
    ([user("Where?")], {}),
    ([], {}),
]
KEPT = ("seq", "turn_id", "role", "content", "tool_calls", "metadata", "retired_by")


async def put(x: Exchange, messages: list[Any], **more: Any) -> None:
    """Make the session `s` anew, without writing it down."""
    await x.served.http.delete(S)
    (await x.served.http.put(S, json={"schema": 1, "messages": messages, **more})).raise_for_status()


@exchange((), AGENTS)
async def test_heard(x: Exchange) -> None:
    """An interrupted reply is cut; calls and later messages follow it."""
    for messages, heard in HEARD:
        await put(x, messages)
        if "error" not in await x.post(f"{S}/interrupt", **heard):
            await x.rows(f"{S}/messages", *KEPT, retired=True)
    await put(x, REPLY)
    for chars in (30, 40, 20, 0, 0):
        await x.post(f"{S}/interrupt", chars=chars)
    await x.rows(f"{S}/messages", *KEPT, retired=True)
    for view in ("voice", "plain"):
        await put(x, REPLY)
        await x.post(f"{S}/interrupt", chars=20)
        await x.get(f"{S}/history", view=view)
    await put(x, [user("One?"), assistant("First."), user("Two?"), assistant("Second.")])
    for report in ({"chars": 0}, {"chars": 2}, {}, {"chars": 2, "turn_id": 0}, {"chars": 3}):
        await x.post(f"{S}/interrupt", **report)
    await x.rows(f"{S}/messages", *KEPT, retired=True)
    await x.post("/v1/sessions/none/interrupt")


SPOKEN: list[dict[str, Any]] = [
    {"text": "Dinner!"},
    {"text": "Quiet.", "source": "silence", "interruptable": False, "agent": "lee", "return_session": True},
    {"source": "greeting"},
    {"source": "silence"},
    {"source": "silence", "agent": "lee"},
    {"text": " "},
    {},
    {"text": "x", "source": "llm"},
    {"text": "x", "priority": "LATER"},
    {"text": "x", "agent": "nobody"},
    {"text": "x" * 16_385},
]


@exchange((), AGENTS)
async def test_spoken(x: Exchange) -> None:
    await put(x, REPLY, agent="kim", state={"step": 3})
    for body in SPOKEN:
        await x.post(f"{S}/speak", **body)
    await x.rows(f"{S}/messages", *KEPT, "agent", retired=True)
    await x.get(f"{S}/history")
    for priority in ("IGNORE", "APPEND", "INTERRUPT"):
        await put(x, OPEN)
        await x.post(f"{S}/speak", text="Hm.", priority=priority)
        await x.rows(f"{S}/messages", *KEPT, "agent", retired=True)
    await put(x, [])
    await x.post(f"{S}/speak", text="First.")
    await x.post(f"{S}/messages", messages=[user("Task."), assistant("Yes."), user("More.")])
    await x.post(f"{S}/context")
    await x.post(f"{S}/messages", messages=[LOOK, result("c1", "r"), result("c2", "-")], retire_from=3)
    await x.post(f"{S}/messages", retire_from=5)
    await x.post(f"{S}/speak", text="Not yet.", priority="APPEND")
    await x.post(f"{S}/messages", messages=[result("c2", "+")])
    await x.post(f"{S}/speak", text="Now.", priority="APPEND")
    await x.rows(f"{S}/messages", *KEPT)


@exchange((), AGENTS, stores=DATABASES)
async def test_call_lists(x: Exchange) -> None:
    """Calls of one turn are numbered; pages may end within a turn."""
    await x.post("/v1/sessions", id="s")
    for number, turn in enumerate((0, 0, 1, 3, 3, 3)):
        usage = {"prompt_tokens": number + 1, "completion_tokens": 2}
        await x.post(f"{S}/messages", messages=[user(str(number), turn_id=turn)])
        await x.post(f"{S}/messages", messages=[assistant("Yes.")], usage=usage)
    await x.get(f"{S}/calls", limit=1)
    for order in ("asc", "desc"):
        for limit in (1, 2, 4, 6, 7):
            await x.rows(f"{S}/calls", "id", "prompt_tokens", order=order, limit=limit)
        for after in ("0.0", "0.1", "1.0", "3.0", "3.2", "2.0", "9.9"):
            await x.rows(f"{S}/calls", "id", order=order, limit=2, after=after)
    for wrong in ("x", "1", "1.x", "-1.0"):
        await x.get(f"{S}/calls", after=wrong)


CARRIED: list[Any] = [
    "old",
    {"session_id": "old", "form": "content"},
    {"session_id": "old", "form": "content", "tokens": 64, "prefix": "Before:"},
    {"session_id": "old", "form": "content", "prefix": ""},
    {"session_id": "old", "user_id": "bob", "form": "content"},
    {"session_id": "empty"},
    {"session_id": "none"},
    {"session_id": "old", "form": "all"},
    {"session_id": "old", "tokens": 63},
    {"session_id": "old", "tokens": 32_001},
    {"session_id": "old", "prefix": "x" * 2001},
    {"form": "content"},
    {"session_id": "old", "size": 1},
    "",
    5,
]


@exchange(
    ["The user asked twelve questions about tides and rocks <it>, and the assistant said yes to each of them.\n# End"]
    * 9,
    AGENTS,
)
async def test_carried_over(x: Exchange) -> None:
    """As a summary, or as the last messages with their speakers; of another user; of a session that was carried over itself."""
    long = [user(f"Question {at} about tides and rocks.") for at in range(9)]
    await x.post("/v1/sessions", id="old", user_id="ada")
    await x.post("/v1/sessions/old/messages?user_id=ada", messages=[*long, LOOK, result("c1", "r"), assistant("Yes.")])
    await x.post("/v1/sessions", id="old", user_id="bob")
    await x.post("/v1/sessions/old/messages?user_id=bob", messages=[user("of Bob", name="Bob"), assistant("<a>")])
    await x.post("/v1/sessions", id="empty", user_id="ada")
    for number, how in enumerate(CARRIED):
        await x.post(
            "/v1/sessions", id=f"n{number}", user_id="ada", system_messages="Be.", metadata={"m": 1}, carry_over=how
        )
    await x.post("/v1/sessions", id="n0", user_id="ada", carry_over="old")
    await x.post("/v1/sessions/n1/messages?user_id=ada", messages=[user("Short."), assistant("Yes, short.")])
    await x.post("/v1/sessions", id="next", user_id="ada", carry_over={"session_id": "n1", "form": "content"})
    await x.post("/v1/sessions/n0/fork?user_id=ada", id="fork")
    await x.rows("/v1/sessions", "user_id", "id", "message_count", limit=100)
