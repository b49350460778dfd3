"""How a request is assigned to a session, and how its messages change the log."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from holdfast.testing import Gate, Reply
from tests.behaviour.kit import Served, assistant, bearer, gateway, system, user


def reply_to_last(body: dict[str, Any]) -> str:
    """Return the upstream's reply to the last user message."""
    asked = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return f"re: {asked[-1]}"


async def contents(served: Served, session_id: str = "s") -> list[str]:
    return [content for _, content in await served.log(session_id)]


# -- session ids -------------------------------------------------------------


async def test_each_request_without_an_id_gets_a_new_session() -> None:
    """The answer names the created session, which continues under that id."""
    async with gateway(reply_to_last) as served:
        first, second = await served.chat("a", None), await served.chat("a", None)
        assert first["session_id"] != second["session_id"]
        assert len(first["session_id"]) >= 32
        again = await served.chat("b", first["session_id"])
        assert again["session_id"] == first["session_id"]
        assert await contents(served, first["session_id"]) == ["a", "re: a", "b", "re: b"]


ODD_IDS = [
    "support-42",
    "a/b",
    "../a",
    "100%",
    "a%2Fb",
    "käse 🧀",
    "x" * 512,
    "a\nb\x00c",
    " ",
    "a b?c#d",
    "' OR 1=1 --",
]


@pytest.mark.parametrize("session_id", ODD_IDS)
async def test_any_id_names_a_session(session_id: str) -> None:
    """An unknown id creates a session with that id; the response header can be sent back as it is."""
    async with gateway(reply_to_last) as served:
        first = await served.chat("a", session_id)
        assert first["session_id"] == session_id
        told = first["headers"]["x-session-id"]
        second = await served.chat("b", None, headers={"X-Session-Id": told})
        assert second["session_id"] == session_id
        await served.chat("c", session_id, headers={"X-Session-Id": told})
        assert (await contents(served, session_id))[::2] == ["a", "b", "c"]


async def test_header_id_may_be_utf8() -> None:
    async with gateway(reply_to_last) as served:
        answer = await served.http.post(
            "/v1/chat/completions", json={"messages": [user("a")]}, headers=[(b"x-session-id", "käse".encode())]
        )
        assert answer.json()["session_id"] == "käse"


async def test_users_have_separate_sessions_of_one_id() -> None:
    """Each user has their own log, and the model sees no other."""
    async with gateway(reply_to_last) as served:
        await served.chat("from ada", user="ada")
        await served.chat("from bob", user="bob")
        assert await served.log("s", "ada") == [("user", "from ada"), ("assistant", "re: from ada")]
        assert served.upstream.requests[1].body["messages"] == [user("from bob")]


async def test_user_id_field_names_the_user() -> None:
    """As on all other routes; messages never reach another user's session of the same id, and the field is not sent
    served.upstream.
    """
    async with gateway(reply_to_last) as served:
        await served.chat("from ada", user="ada")
        await served.chat("from bob", user_id="bob")
        await served.chat("more of ada", user="ada", user_id="ada")
        assert await served.log("s", "bob") == [("user", "from bob"), ("assistant", "re: from bob")]
        assert [text for _, text in await served.log("s", "ada")][::2] == ["from ada", "more of ada"]
        assert all("user_id" not in request.body for request in served.upstream.requests)
        answer = await served.chat("whose?", user="ada", user_id="bob")
        assert (answer["status"], answer["error"]["param"]) == (400, "user_id")
        answer = await served.chat("whose?", user_id=7)
        assert (answer["status"], answer["error"]["param"]) == (400, "user_id")


async def test_user_id_must_match_the_users_key() -> None:
    async with gateway(reply_to_last) as served:
        served.http.headers.update(bearer(await served.create_key(user_id="ada")))
        await served.chat("mine", user_id="ada", user="whatever OpenAI is told")
        answer = await served.chat("not mine", user_id="bob")
        assert (answer["status"], answer["error"]["code"]) == (404, "user_not_found")
        assert [text for _, text in await served.log("s", "ada")] == ["mine", "re: mine"]


async def test_session_created_for_a_user_is_found_by_its_id() -> None:
    """Without a `user` an id that only one user has is enough; an id of several users is refused."""
    async with gateway(reply_to_last) as served:
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "ada"})
        await served.chat("hi")
        assert [role for role, _ in await served.log("s", "ada")] == ["user", "assistant"]
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "bob"})
        answer = await served.chat("hi")
        assert (answer["status"], answer["error"]["code"]) == (409, "ambiguous_session")


# -- deltas and transcripts --------------------------------------------------


async def test_log_with_edits_verifies() -> None:
    """After continuing, editing, regenerating and an unrelated history, the digest chain is valid."""
    async with gateway(reply_to_last) as served:
        await served.chat("a")
        await served.chat([user("a"), assistant("re: a"), user("b")])
        await served.chat([user("a"), assistant("re: a"), user("B")])
        await served.chat([user("a"), assistant("re: a"), user("B")])
        await served.chat([user("x"), assistant("y"), user("z")])
        assert await (await served.native.session("s")).verify() == 9


# -- retries -----------------------------------------------------------------


async def test_retry_of_an_unanswered_message_is_not_duplicated() -> None:
    """After an served.upstream failure the same message is answered and appears in the log once."""
    async with gateway([Reply(status=500), "there you are"]) as served:
        assert (await served.chat("hello?"))["status"] == 502
        answer = await served.chat("hello?")
        assert answer["session"]["reconciled"] == "replayed"
        assert await served.log() == [("user", "hello?"), ("assistant", "there you are")]
        assert served.upstream.requests[0].body["messages"] == served.upstream.requests[1].body["messages"]


async def test_retry_of_unanswered_tool_results_is_not_duplicated() -> None:
    async with gateway([Reply(tool_calls=[("look", {}), ("look", {})]), Reply(status=500), "ok"]) as served:
        calls = (await served.chat("find"))["choices"][0]["message"]["tool_calls"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in calls]
        assert (await served.chat(results))["status"] == 502
        assert (await served.chat(results))["status"] == 200
        assert [role for role, _ in await served.log()] == ["user", "assistant", "tool", "tool", "assistant"]


def ids_of(events: str) -> set[str]:
    """Return the completion ids of a stream."""
    return {json.loads(line[6:])["id"] for line in events.splitlines() if line.startswith("data: {")}


async def test_replayed_stream_has_its_completion_id() -> None:
    """Another key and a request without one get other ids."""
    async with gateway(["found", "second", "third"]) as served:
        body = {"messages": [user("find")], "session_id": "s", "stream": True}
        first, again = [
            (await served.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k-1"})).text
            for _ in range(2)
        ]
        assert len(served.upstream.requests) == 1
        assert len(ids_of(first)) == 1
        assert ids_of(again) == ids_of(first)
        other = await served.chat("b", headers={"Idempotency-Key": "k-2"})
        plain = await served.chat("c")
        assert len({*ids_of(first), other["id"], plain["id"]}) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_messages_api_replay_has_its_message_id(stream: bool) -> None:
    """Whether the first or the second was streamed."""
    async with gateway(["only once"]) as served:
        body = {"messages": [user("pay")], "session_id": "s", "max_tokens": 100, "model": "default"}
        found = set()
        for streamed in (stream, not stream):
            answer = await served.http.post(
                "/v1/messages", json={**body, "stream": streamed}, headers={"Idempotency-Key": "k"}
            )
            assert answer.status_code == 200, answer.text
            found |= set(re.findall(r'"id":\s*"(msg_[^"]+)"', answer.text))
        assert len(found) == 1


@pytest.mark.parametrize("session_id", ["s", None])
async def test_idempotency_key_replays_the_reply(session_id: str | None) -> None:
    """Whole or streamed, and the model is not called again."""
    async with gateway(["only once"]) as served:
        key = {"Idempotency-Key": "k-1"}
        first = await served.chat("pay", session_id, headers=key)
        again = await served.chat("pay", session_id, headers=key)
        assert again["session_id"] == first["session_id"]
        assert again["id"] == first["id"]
        assert again["choices"][0]["message"]["content"] == "only once"
        assert again["session"]["reconciled"] == "replayed"
        body = {"messages": [user("pay")], "stream": True, **({"session_id": session_id} if session_id else {})}
        streamed = await served.http.post("/v1/chat/completions", json=body, headers=key)
        assert "only once" in streamed.text
        assert ids_of(streamed.text) == {first["id"]}
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert len(served.upstream.requests) == 1
        assert await contents(served, first["session_id"]) == ["pay", "only once"]


async def test_idempotency_keys_belong_to_their_user() -> None:
    """Two users with one key are two requests, with and without a session id. One user's are one, so another place is refused."""
    async with gateway(reply_to_last) as served:
        for session_id in (None, "s"):
            key = {"Idempotency-Key": f"key of {session_id}"}
            for name in ("ada", "bob"):
                answer = await served.chat(f"for {name}", session_id, headers=key, user=name)
                assert answer["choices"][0]["message"]["content"] == f"re: for {name}"
        assert (await served.chat("for all", None, headers=key))["status"] == 200
        assert (await served.chat("for ada", "t", headers=key, user="ada"))["status"] == 422
        assert len(served.upstream.requests) == 5


async def test_idempotent_retry_after_a_failure_calls_the_model() -> None:
    """The user's message is stored once; the second request gets the reply."""
    async with gateway([Reply(status=500), "done"]) as served:
        key = {"Idempotency-Key": "k-1"}
        assert (await served.chat("pay", headers=key))["status"] == 502
        assert (await served.chat("pay", headers=key))["status"] == 200
        assert await contents(served) == ["pay", "done"]


async def test_idempotent_retry_replaces_an_interrupted_reply() -> None:
    """The whole reply replaces the partial one."""
    async with gateway([Reply(text="one two three", cut_after=2), "one two three four"]) as served:
        key = {"Idempotency-Key": "k-1"}
        assert (await served.chat("count", headers=key))["status"] == 502
        assert await contents(served) == ["count", "one "]
        assert (await served.chat("count", headers=key))["status"] == 200
        assert served.upstream.requests[1].body["messages"] == [user("count")]
        assert await contents(served) == ["count", "one two three four"]
        again = await served.chat("count", headers=key)
        assert again["choices"][0]["message"]["content"] == "one two three four"
        assert len(served.upstream.requests) == 2


async def test_concurrent_duplicates_get_one_answer() -> None:
    """Two requests with one key at once: one call, one log, the same reply."""
    gate = Gate()
    async with gateway([Reply(text="once", hold=gate)]) as served:
        key = {"Idempotency-Key": "k-1"}
        both = [asyncio.create_task(served.chat("pay", headers=key)) for _ in range(2)]
        await served.upstream.until(lambda: served.upstream.requests)
        gate.open()
        answers = await asyncio.gather(*both)
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["once", "once"]
        assert len(served.upstream.requests) == 1
        assert await contents(served) == ["pay", "once"]


# -- the system prompt -------------------------------------------------------


async def test_order_of_system_prompts() -> None:
    """The agent's instruction, then the request's system messages, or else the session's; none of them is in the log."""
    agents = 'agents: {support: {llm: default, instruction: "Be kind."}}'
    async with gateway(reply_to_last, agents) as served:
        await served.http.post("/v1/sessions", json={"id": "s", "agent": "support", "system_messages": ["Stored."]})
        await served.chat([user("a")])
        await served.chat([system("Given."), {"role": "developer", "content": "Also."}, user("b")])
        await served.chat([user("c")])
        prompts = [
            [message["content"] for message in received.body["messages"] if message["role"] in ("system", "developer")]
            for received in served.upstream.requests
        ]
        assert prompts == [["Be kind.", "Stored."], ["Be kind.", "Given.", "Also."], ["Be kind.", "Stored."]]
        assert {role for role, _ in await served.log()} == {"user", "assistant"}


async def test_only_system_messages_are_refused() -> None:
    """The error is the same for a missing and an empty session, and no session is created."""
    async with gateway([]) as served:
        refused = await served.chat([system("Be brief.")])
        assert (await served.http.get("/v1/sessions/s")).status_code == 404
        await served.http.post("/v1/sessions", json={"id": "s"})
        again = await served.chat([system("Be brief.")])
        assert refused["status"] == again["status"] == 400
        assert refused["error"] == again["error"]
        assert refused["error"]["param"] == "messages"
        assert served.upstream.requests == []


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 10**6}, {"max_completion_tokens": 10**6}, {"tools": [{"custom": 1}]}]
)
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
async def test_unbuildable_prompt_creates_no_session(fields: dict[str, Any], key: dict[str, str]) -> None:
    """Only the turn knows the model's window; the corrected request is the session's first message."""
    async with gateway(reply_to_last) as served:
        refused = await served.chat("a", headers=key, **fields)
        assert (refused["status"], refused["error"]["code"]) == (400, "invalid_request")
        assert (await served.http.get("/v1/sessions/s")).status_code == 404
        assert served.upstream.requests == []
        assert (await served.chat("a", headers=key))["session"]["version"] == 2


async def test_chat_never_moves_a_session() -> None:
    """A request that names another agent or user uses that agent, or that user's own session."""
    async with gateway(reply_to_last, "agents: {writer: {}}") as served:
        await served.chat("hi", "s", user="ada", agent="writer")
        for fields in ({"user": "bob"}, {"user": "ada", "model": "gpt-4o"}):
            await served.chat("hi", "s", **fields)
        assert {(row["user_id"], row["id"]) for row in await served.rest.sessions()} == {("ada", "s"), ("bob", "s")}
        assert (await served.rest.session("s", "ada").info())["agent"] == "writer"
