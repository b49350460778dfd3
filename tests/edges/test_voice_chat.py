"""Voice records in chat requests: their fields are kept on every route, under either name of the list."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.kit.voice import CONTENTS, JOKE, PLAIN
from tests.edges.server import Served, gateway

ONE = "/v1/sessions/s"
ANSWER: dict[str, Any] = {
    "role": "user",
    "content": "Yes, I am.",
    "turn_id": 5,
    "timestamp": 1678905240,
    "metadata": {"source": "asr", "user": "user123"},
}
"""What is recognised after the last of the records."""
FIELDS = {"turn_id": 4, "timestamp": 1678905236, "interruptable": True}
"""What Agora's request has beside its records."""


async def post(served: Served, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = await served.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def history(served: Served, session_id: str = "s") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await served.http.get(f"/v1/sessions/{session_id}/history")).json()["contents"]
    return found


# -- kept ------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("name", ["messages", "contents"])
async def test_records_of_a_chat_request_are_kept(name: str, named: bool) -> None:
    """Source, speaker, times, turns, and interruptions; the model gets role and content."""
    async with gateway(["Good."]) as (served, upstream):
        session = {"session_id": "s"} if named else {}
        done = await post(served, {name: [*CONTENTS, ANSWER], **FIELDS, **session})
        *records, reply = await history(served, done["session_id"])
        assert records == [*CONTENTS, ANSWER]
        assert (reply["content"], reply["turn_id"], reply["metadata"]) == ("Good.", 5, {"source": "llm"})
        assert upstream.requests[0].body["messages"] == [*PLAIN, {"role": "user", "content": "Yes, I am."}]


@pytest.mark.parametrize("named", [True, False])
async def test_resent_transcript_of_records_continues(named: bool) -> None:
    """Only new records are written, with their fields."""
    async with gateway(["Good.", "Bye."]) as (served, _):
        session = {"session_id": "s"} if named else {}
        first = await post(served, {"messages": [*CONTENTS[:5]], **session})
        said = {"role": "assistant", "content": "Good.", "turn_id": 3, "metadata": {"source": "llm"}}
        told = [*CONTENTS[:5], said, ANSWER]
        second = await post(served, {"messages": told, **session})
        assert (second["session_id"], second["session"]["reconciled"]) == (first["session_id"], "continued")
        found = await history(served, first["session_id"])
        assert [one["content"] for one in found] == [*(one["content"] for one in told), "Bye."]
        assert found[:5] == CONTENTS[:5]
        assert found[6] == ANSWER


async def test_turns_out_of_order_are_refused() -> None:
    async with gateway([]) as (served, _):
        answer = await served.chat([CONTENTS[3], CONTENTS[2], ANSWER])
        assert (answer["status"], answer["error"]["param"]) == (400, "messages[1].turn_id")


async def test_internal_metadata_cannot_be_sent() -> None:
    """Metadata about the delivery of a reply are Holdfast's own."""
    async with gateway(["Good."]) as (served, _):
        forged = {**CONTENTS[4], "metadata": {"source": "llm", "preface": "x", "returned": [0], "note": "kept"}}
        await post(served, {"messages": [CONTENTS[3], forged, ANSWER], "session_id": "s"})
        entries = (await served.http.get(f"{ONE}/messages")).json()["data"]
        assert entries[1]["metadata"] == {"source": "llm", "note": "kept"}


async def test_chat_records_cannot_pin_or_rate() -> None:
    async with gateway(["Good."]) as (served, _):
        await post(served, {"messages": [{**ANSWER, "pinned": True, "importance": 1}], "session_id": "s"})
        entry = (await served.http.get(f"{ONE}/messages")).json()["data"][0]
        assert not {"pinned", "importance"} & entry.keys()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["messages", "contents"])
async def test_messages_api_keeps_records(name: str, stream: bool) -> None:
    """A voice client may use Anthropic's API."""
    async with gateway(["Good."]) as (served, upstream):
        body = {name: [*CONTENTS, ANSWER], "system": "Be kind.", "session_id": "s", "stream": stream, **FIELDS}
        done = await served.http.post("/v1/messages", json=body)
        assert done.status_code == 200, done.text
        assert "unknown_field" not in done.text
        *records, reply = await history(served)
        assert records == [*CONTENTS, ANSWER]
        assert (reply["content"], reply["turn_id"], reply["metadata"]) == ("Good.", 5, {"source": "llm"})
        assert not {"turn_id", "timestamp", "contents"} & upstream.requests[0].body.keys()


async def test_tool_results_in_a_messages_api_record_have_its_time() -> None:
    """A user message there can contain tool results, which have no source."""
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "found"}
    said = {**ANSWER, "content": [result, {"type": "text", "text": "Go on."}]}
    async with gateway(["Good."]) as (served, _):
        messages = [CONTENTS[1], {"role": "assistant", "content": [call]}, said]
        done = await served.http.post("/v1/messages", json={"messages": messages, "session_id": "s"})
        assert done.status_code == 200, done.text
        entries = (await served.http.get(f"{ONE}/messages")).json()["data"]
        kept = [(one["role"], one["timestamp"], one.get("metadata")) for one in entries[2:4]]
        assert kept == [("tool", 1678905240, None), ("user", 1678905240, ANSWER["metadata"])]


async def test_tokens_of_records_are_counted() -> None:
    async with gateway([]) as (served, _):
        counts = [
            (await served.http.post("/v1/messages/count_tokens", json={name: CONTENTS})).json()["input_tokens"]
            for name in ("messages", "contents")
        ]
        assert counts[0] == counts[1] > 0


# -- contents ----------------------------------------------------------------------


async def test_idempotency_key_covers_contents() -> None:
    """Other records with the same key are a conflict."""
    async with gateway(["Good."]) as (served, _):
        sent = {"contents": [ANSWER], "session_id": "s"}
        headers = {"idempotency-key": "k"}
        for other, status in ((ANSWER, 200), (ANSWER, 200), ({**ANSWER, "content": "No."}, 422)):
            body = {**sent, "contents": [other]}
            answer = await served.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == status, answer.text
        assert answer.json()["error"]["code"] == "idempotency_conflict"


# -- no new messages ------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_empty_messages_answer_the_last_record_in_both_apis(path: str, stream: bool) -> None:
    async with gateway(["Good."]) as (served, upstream):
        await served.http.post("/v1/sessions", json={"id": "s"})
        empty = {"session_id": "s", "messages": [], "stream": stream}
        refused = await served.http.post(path, json=empty)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
        await served.http.post(f"{ONE}/messages", json={"contents": [*CONTENTS, ANSWER]})
        answer = await served.http.post(path, json=empty)
        assert (answer.status_code, "Good." in answer.text) == (200, True)
        assert [one["content"] for one in await history(served)][6:] == ["Yes, I am.", "Good."]
        assert len(upstream.requests) == 1


async def test_repeated_empty_request_with_a_key_is_answered_once() -> None:
    async with gateway(["Good.", "Again?"]) as (served, upstream):
        await served.http.post("/v1/sessions", json={"id": "s"})
        await served.http.post(f"{ONE}/messages", json={"contents": [ANSWER]})
        replies = [await served.chat([], headers={"idempotency-key": "k"}) for _ in range(2)]
        assert [one["choices"][0]["message"]["content"] for one in replies] == ["Good.", "Good."]
        assert len(upstream.requests) == 1


async def test_edited_record_is_numbered_by_the_log() -> None:
    """The turns it replaces are gone, whatever their numbers."""
    async with gateway(["One.", "Two.", "Three."]) as (served, _):
        first = [CONTENTS[1], {"role": "assistant", "content": "One."}]
        await post(served, {"messages": [CONTENTS[1]], "session_id": "s"})
        await post(served, {"messages": [*first, {**ANSWER, "turn_id": 8}], "session_id": "s"})
        edited = {**ANSWER, "turn_id": 3, "content": "No."}
        done = await post(served, {"messages": [*first, edited], "session_id": "s"})
        assert done["session"]["reconciled"] == "edited"
        found = await history(served)
        assert [one["turn_id"] for one in found] == [2, 2, 3, 3]
        assert found[2] == edited


async def test_messages_api_supports_interruptions() -> None:
    async with gateway([JOKE, "A story."]) as (served, _):
        for more in ({}, {"interrupt": {"chars": 22}}):
            body = {"session_id": "s", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], **more}
            answer = await served.http.post("/v1/messages", json=body)
            assert answer.status_code == 200, answer.text
        assert [one["content"] for one in await history(served)] == ["Hi", JOKE[:22], "Hi", "A story."]
