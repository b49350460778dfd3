"""Chat requests that say how much of the last reply was heard: log and model continue from that."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Gate
from tests.behaviour.kit.voice import CONTENTS, CUT, JOKE
from tests.edges.server import Served, gateway
from tests.edges.test_gateway_queue import script, start_stream

HEARD = "Why did the scarecrow "
ASKED, ANSWERED, THEN = CONTENTS[1], CONTENTS[2], CONTENTS[3]


async def chat(served: Served, messages: list[dict[str, Any]], *, named: bool = True, **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = await served.chat(messages, session_id="s" if named else None, **fields)
    return answer


async def history(served: Served, session_id: str = "s") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.http.get(f"/v1/sessions/{session_id}/history")).json()["contents"]
    return found


@pytest.mark.parametrize("named", [True, False])
async def test_record_in_the_next_request_corrects_the_reply(named: bool) -> None:
    """One session, by id or matched for an identified user; the model sees what was heard, and the log has both."""
    async with gateway([JOKE, "A story.", "The end."], "gateway: {single_user: true}") as (served, upstream):
        session_id = (await chat(served, [ASKED], named=named))["session_id"]
        told = [ASKED, ANSWERED, THEN]
        done = await chat(served, told, named=named)
        assert (done["status"], done["session_id"], done["session"]["reconciled"]) == (200, session_id, "continued")
        records = await history(served, session_id)
        assert [one["content"] for one in records] == [ASKED["content"], HEARD, THEN["content"], "A story."]
        assert records[1]["metadata"] == CUT
        assert records[2] == THEN
        assert [one["content"] for one in upstream.requests[1].body["messages"]] == [
            one["content"] for one in records[:-1]
        ]
        whole = (await served.http.get(f"/v1/sessions/{session_id}/messages?retired=true")).json()["data"]
        assert JOKE in [one["content"] for one in whole if "retired_by" in one]
        last = [*told, {"role": "assistant", "content": "A story."}, {"role": "user", "content": "And then?"}]
        again = await chat(served, last, named=named)
        assert (again["session_id"], again["session"]["reconciled"]) == (session_id, "continued")
        assert "edited_at" not in again["session"]
        assert len(await history(served, session_id)) == 6
        assert len((await served.hf.sessions()).sessions) == 1


async def test_repeated_request_corrects_the_reply_once() -> None:
    async with gateway([JOKE, 503, "A story."]) as (served, _):
        await chat(served, [ASKED])
        told = [ASKED, ANSWERED, THEN]
        assert (await chat(served, told))["status"] >= 500
        version = (await served.http.get("/v1/sessions/s")).json()["version"]
        assert (await chat(served, told))["status"] == 200
        assert (await served.http.get("/v1/sessions/s")).json()["version"] == version + 1, "the reply alone is written"
        assert [one["content"] for one in await history(served)] == [
            ASKED["content"],
            HEARD,
            THEN["content"],
            "A story.",
        ]


async def test_record_without_the_original_text_is_kept() -> None:
    """The heard text replaces the generated one in a named session."""
    async with gateway([JOKE, "A story."]) as (served, _):
        await chat(served, [ASKED])
        short = {**ANSWERED, "metadata": {"source": "llm", "interrupted": True, "interrupt_timestamp": 5}}
        await chat(served, [ASKED, short, THEN])
        records = await history(served)
        assert [one["content"] for one in records] == [ASKED["content"], HEARD, THEN["content"], "A story."]
        assert records[1]["metadata"]["interrupted"] is True


async def test_interruption_stops_the_running_reply() -> None:
    """With `session_queue: interrupt` the next request ends it and says what was heard."""
    gate = Gate()
    async with gateway(script(gate)) as (served, upstream):
        chunks = await start_stream(served)
        done = await chat(
            served, [{"role": "user", "content": "Stop."}], session_queue="interrupt", interrupt={"content": "on"}
        )
        assert done["status"] == 200
        assert [one["content"] for one in await history(served)][:3] == ["a", "on", "Stop."]
        assert upstream.requests[-1].body["messages"][1]["content"] == "on"
        assert [chunk async for chunk in chunks]
        gate.open()


async def test_messages_api_supports_interruptions() -> None:
    async with gateway([JOKE, "A story."]) as (served, _):
        for more in ({}, {"interrupt": {"chars": 22}}):
            body = {"session_id": "s", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], **more}
            answer = await served.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
        assert [one["content"] for one in await history(served)] == ["Hi", HEARD, "Hi", "A story."]
