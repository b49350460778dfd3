"""Voice agents over HTTP: records in and out, partly heard replies, injected speech, greetings."""

from __future__ import annotations

from typing import Any

from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, SessionRef
from holdfast.stores.log import Append
from tests.clocks import TickingClock
from tests.edges.server import Served, gateway
from tests.unit.seed_voice import JOKE

ONE = "/v1/sessions/s"
AGENTS = """agents:
  bot: {greeting: "How can I help you today?", silence_message: "Are you still there?", instruction: Be kind.}
  mute: {instruction: Be quiet.}"""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_reply(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


async def start_session(served: Served, *messages: dict[str, Any]) -> None:
    """Create session `s` with these messages."""
    assert (await served.http.put(ONE, json={"messages": list(messages)})).status_code == 200


async def post(served: Served, what: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await served.http.post(f"{ONE}/{what}", json=body)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def history(served: Served) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.http.get(f"{ONE}/history")).json()["contents"]
    return found


# -- records -------------------------------------------------------------------


# -- interrupting --------------------------------------------------------------


async def test_null_fields_are_ignored() -> None:
    async with gateway([]) as (served, _):
        await start_session(served, user("joke?"), make_reply(JOKE))
        done = await post(served, "interrupt", {"content": None, "chars": 3, "ms": None, "turn_id": None})
        assert done["entry"]["content"] == "Why"


# -- speaking ------------------------------------------------------------------


# -- greeting ------------------------------------------------------------------


async def test_session_created_by_a_chat_request_is_not_greeted() -> None:
    """Its client never showed a greeting."""
    async with gateway(["Hello."], AGENTS) as (served, upstream):
        assert (await served.chat("hi", agent="bot"))["status"] == 200
        assert await served.log() == [("user", "hi"), ("assistant", "Hello.")]
        assert [one["content"] for one in upstream.requests[0].body["messages"]] == ["Be kind.", "hi"]


async def test_agents_own_silence_message_is_used() -> None:
    async with gateway([], AGENTS, clock=TickingClock()) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "agent": "bot"})
        done = await post(served, "speak", {"source": "silence"})
        assert (done["entry"]["content"], done["entry"]["agent"]) == ("Are you still there?", "bot")
        session = await served.hf.store.get(SessionRef("default", "s"))
        assert session.tail.turn_id == 1


async def test_older_log_with_unknown_sources_can_be_replaced() -> None:
    """Existing entries are compared, not validated."""
    async with gateway([]) as (served, _):
        await start_session(served, user("a"))
        old = NewEntry(
            message=Message(role="assistant", content="b"), tokens=1, timestamp=1, metadata={"source": "tts"}
        )
        await served.hf.store.append(SessionRef("default", "s"), Append(entries=[old], timestamp=served.hf.clock()))
        assert (await history(served))[1]["metadata"] == {"source": "tts"}
        exported = (await served.http.get(ONE)).json()
        assert (await served.http.put(ONE, json=exported)).status_code == 422
        exported["messages"][1]["metadata"]["source"] = "llm"
        assert (await served.http.put(ONE, json=exported)).json()["imported"] is True
