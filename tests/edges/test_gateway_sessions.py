"""Which session a request belongs to, and what its messages do to the log."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.edges.keys import bearer, made
from tests.edges.server import Served, gateway


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def numbered(body: dict[str, Any]) -> str:
    """An upstream that answers the last user message, whatever it is."""
    asked = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return f"re: {asked[-1]}"


async def contents(served: Served, session_id: str = "s") -> list[str]:
    return [content for _, content in await served.log(session_id)]


# -- naming ------------------------------------------------------------------


async def test_without_an_id_each_request_has_a_new_session() -> None:
    """The session made is named in the answer and goes on under that name."""
    async with gateway(numbered) as (served, _):
        first, second = await served.chat("a", None), await served.chat("a", None)
        assert first["session_id"] != second["session_id"]
        assert len(first["session_id"]) >= 32
        again = await served.chat("b", first["session_id"])
        assert again["session_id"] == first["session_id"]
        assert await contents(served, first["session_id"]) == ["a", "re: a", "b", "re: b"]


ODD_IDS = ["support-42", "a/b", "..", "100%", "a%2Fb", "käse 🧀", "x" * 512, "a\nb\x00c", " ", "a b?c#d", "' OR 1=1 --"]


@pytest.mark.parametrize("session_id", ODD_IDS)
async def test_any_id_names_a_session(session_id: str) -> None:
    """An unknown id makes a session of that id; the header it is told in names it again."""
    async with gateway(numbered) as (served, _):
        first = await served.chat("a", session_id)
        assert first["session_id"] == session_id
        told = first["headers"]["x-session-id"]
        second = await served.chat("b", None, headers={"X-Session-Id": told})
        assert second["session_id"] == session_id
        await served.chat("c", session_id, headers={"X-Session-Id": told})
        assert (await contents(served, session_id))[::2] == ["a", "b", "c"]


async def test_an_id_in_the_header_as_utf8() -> None:
    """A header with the bytes of an id names it, too."""
    async with gateway(numbered) as (served, _):
        answer = await served.http.post(
            "/v1/chat/completions", json={"messages": [user("a")]}, headers=[(b"x-session-id", "käse".encode())]
        )
        assert answer.json()["session_id"] == "käse"


async def test_users_have_sessions_of_their_own() -> None:
    """Two users may use one id; each gets the own log, and the model sees no other."""
    async with gateway(numbered) as (served, upstream):
        await served.chat("from ada", user="ada")
        await served.chat("from bob", user="bob")
        assert await served.log("s", "ada") == [("user", "from ada"), ("assistant", "re: from ada")]
        assert upstream.requests[1].body["messages"] == [user("from bob")]


async def test_user_id_names_the_user_as_at_all_other_routes() -> None:
    """Nobody's words come into another one's session of that id for the sake of a name; the model's server is not told of it."""
    async with gateway(numbered) as (served, upstream):
        await served.chat("from ada", user="ada")
        await served.chat("from bob", user_id="bob")
        await served.chat("more of ada", user="ada", user_id="ada")
        assert await served.log("s", "bob") == [("user", "from bob"), ("assistant", "re: from bob")]
        assert [text for _, text in await served.log("s", "ada")][::2] == ["from ada", "more of ada"]
        assert all("user_id" not in request.body for request in upstream.requests)
        answer = await served.chat("whose?", user="ada", user_id="bob")
        assert (answer["status"], answer["error"]["param"]) == (400, "user_id")
        answer = await served.chat("whose?", user_id=7)
        assert (answer["status"], answer["error"]["param"]) == (400, "user_id")


async def test_with_a_users_key_user_id_names_nobody_else() -> None:
    async with gateway(numbered) as (served, _):
        served.http.headers.update(bearer(await made(served.hf, user_id="ada")))
        await served.chat("mine", user_id="ada", user="whatever OpenAI is told")
        answer = await served.chat("not mine", user_id="bob")
        assert (answer["status"], answer["error"]["code"]) == (404, "user_not_found")
        assert [text for _, text in await served.log("s", "ada")] == ["mine", "re: mine"]


async def test_a_session_made_for_a_user_is_found_by_its_id() -> None:
    """Without a `user` an id that only one user has is that one; when several have it, the request is refused."""
    async with gateway(numbered) as (served, _):
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "ada"})
        await served.chat("hi")
        assert [role for role, _ in await served.log("s", "ada")] == ["user", "assistant"]
        await served.http.post("/v1/sessions", json={"id": "s", "user_id": "bob"})
        answer = await served.chat("hi")
        assert (answer["status"], answer["error"]["code"]) == (409, "ambiguous_session")


# -- deltas and transcripts --------------------------------------------------


async def test_a_delta_is_appended_even_where_it_equals_an_old_message() -> None:
    """ "Yes." twice is two messages."""
    async with gateway(numbered) as (served, upstream):
        for _ in range(3):
            await served.chat("yes")
        assert await contents(served) == ["yes", "re: yes"] * 3
        assert len(upstream.requests[2].body["messages"]) == 5


async def test_a_transcript_continues() -> None:
    """A client that resends everything adds only what is new, its system prompt aside."""
    async with gateway(numbered) as (served, upstream):
        await served.chat([system("Be kind."), user("a")])
        history = [system("Be kind."), user("a"), assistant("re: a"), user("b")]
        answer = await served.chat(history)
        assert answer["session"]["reconciled"] == "continued"
        assert await contents(served) == ["a", "re: a", "b", "re: b"]
        assert upstream.requests[1].body["messages"] == history


async def test_a_transcript_without_its_tool_messages_continues() -> None:
    """Chat clients leave tool rounds out: those in the log stay, and the model sees them."""
    script = [Reply(tool_calls=[("look", {})]), "Found it.", "Bye."]
    async with gateway(script) as (served, upstream):
        answer = await served.chat("find")
        call = answer["choices"][0]["message"]["tool_calls"][0]
        await served.chat([{"role": "tool", "tool_call_id": call["id"], "content": "here"}])
        answer = await served.chat([user("find"), assistant("Found it."), user("thanks")])
        assert answer["session"]["reconciled"] == "continued"
        roles = ["user", "assistant", "tool", "assistant", "user"]
        assert [message["role"] for message in upstream.requests[2].body["messages"]] == roles


async def test_a_transcript_with_its_tool_messages_is_aligned() -> None:
    """A client that resends its own tool messages doubles none."""
    script = [Reply(tool_calls=[("look", {})]), "Found it."]
    async with gateway(script) as (served, upstream):
        answer = await served.chat("find")
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "here"}
        answer = await served.chat([user("find"), message, result])
        assert answer["session"]["reconciled"] == "continued"
        assert [role for role, _ in await served.log()] == ["user", "assistant", "tool", "assistant"]
        assert len(upstream.requests[1].body["messages"]) == 3


async def test_a_transcript_edited() -> None:
    """From the first difference on the log is the transcript; what it replaced stays, retired."""
    async with gateway(numbered) as (served, upstream):
        await served.chat("a")
        await served.chat("b")
        answer = await served.chat([user("a"), assistant("re: a"), user("B")])
        assert answer["session"]["reconciled"] == "edited"
        assert await contents(served) == ["a", "re: a", "B", "re: B"]
        whole = await served.hf.store.entries(SessionRef("default", "s"), retired=True)
        assert [entry.message.content for entry in whole if entry.retired_by is not None] == ["b", "re: b"]
        assert [message["content"] for message in upstream.requests[2].body["messages"]] == ["a", "re: a", "B"]
        page = (await served.http.get("/v1/sessions/s/messages?retired=true")).json()
        assert len(page["data"]) == 6


async def test_a_transcript_regenerated() -> None:
    """A transcript that ends before the stored reply asks for another one."""
    async with gateway(["one", "two", "three"]) as (served, _):
        await served.chat("a")
        await served.chat("b")
        answer = await served.chat([user("a"), assistant("one"), user("b")])
        assert answer["session"]["reconciled"] == "regenerated"
        assert await contents(served) == ["a", "one", "b", "three"]


async def test_a_transcript_with_nothing_in_common_replaces_the_log() -> None:
    """It is the live path from now on; the session and its id stay."""
    async with gateway(numbered) as (served, _):
        await served.chat("a")
        answer = await served.chat([user("x"), assistant("y"), user("z")])
        assert answer["session"]["reconciled"] == "replaced"
        assert await contents(served) == ["x", "y", "z", "re: z"]
        assert len(await served.hf.store.entries(SessionRef("default", "s"), retired=True)) == 6


async def test_the_mode_decides() -> None:
    """`transcript` makes one user message the whole history, `delta` makes a transcript an addition."""
    async with gateway(numbered) as (served, _):
        await served.chat("a")
        answer = await served.chat([user("b")], session_mode="transcript")
        assert answer["session"]["reconciled"] == "replaced"
        assert await contents(served) == ["b", "re: b"]
        answer = await served.chat([user("b"), assistant("re: b"), user("c")], session_mode="delta")
        assert answer["session"]["reconciled"] == "delta"
        assert await contents(served) == ["b", "re: b", "b", "re: b", "c", "re: c"]
        answer = await served.chat([user("d")], session_mode="auto")
        assert answer["session"]["reconciled"] == "delta"


async def test_the_log_of_edits_verifies() -> None:
    """After continuing, editing, regenerating and replacing the digest chain holds."""
    async with gateway(numbered) as (served, _):
        await served.chat("a")
        await served.chat([user("a"), assistant("re: a"), user("b")])
        await served.chat([user("a"), assistant("re: a"), user("B")])
        await served.chat([user("a"), assistant("re: a"), user("B")])
        await served.chat([user("x"), assistant("y"), user("z")])
        handle = await served.hf.session("s")
        assert await handle.verify() == 11


# -- retries -----------------------------------------------------------------


async def test_a_retry_of_an_unanswered_message_writes_nothing_twice() -> None:
    """The model was down; the same message again is answered, and stands in the log once."""
    async with gateway([Reply(status=500), "there you are"]) as (served, upstream):
        assert (await served.chat("hello?"))["status"] == 502
        answer = await served.chat("hello?")
        assert answer["session"]["reconciled"] == "replayed"
        assert await served.log() == [("user", "hello?"), ("assistant", "there you are")]
        assert upstream.requests[0].body["messages"] == upstream.requests[1].body["messages"]


async def test_a_retry_of_unanswered_results_writes_nothing_twice() -> None:
    """The same holds for tool results."""
    async with gateway([Reply(tool_calls=[("look", {}), ("look", {})]), Reply(status=500), "ok"]) as (served, _):
        calls = (await served.chat("find"))["choices"][0]["message"]["tool_calls"]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in calls]
        assert (await served.chat(results))["status"] == 502
        assert (await served.chat(results))["status"] == 200
        assert [role for role, _ in await served.log()] == ["user", "assistant", "tool", "tool", "assistant"]


def ids_of(events: str) -> set[str]:
    """The completion ids of a stream."""
    return {json.loads(line[6:])["id"] for line in events.splitlines() if line.startswith("data: {")}


async def test_a_replay_of_a_stream_has_its_completion_id() -> None:
    """Another key and a request without one have ids of their own."""
    async with gateway(["found", "second", "third"]) as (served, upstream):
        body = {"messages": [user("find")], "session_id": "s", "stream": True}
        first, again = [
            (await served.http.post("/v1/chat/completions", json=body, headers={"Idempotency-Key": "k-1"})).text
            for _ in range(2)
        ]
        assert len(upstream.requests) == 1
        assert len(ids_of(first)) == 1
        assert ids_of(again) == ids_of(first)
        other = await served.chat("b", headers={"Idempotency-Key": "k-2"})
        plain = await served.chat("c")
        assert len({*ids_of(first), other["id"], plain["id"]}) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replay_at_the_messages_api_has_its_message_id(stream: bool) -> None:
    """Whichever of the two was streamed."""
    async with gateway(["only once"]) as (served, _):
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
async def test_an_idempotency_key_replays_the_reply(session_id: str | None) -> None:
    """The same key gets the stored reply, whole or streamed, and the model is not called again."""
    async with gateway(["only once"]) as (served, upstream):
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
        assert len(upstream.requests) == 1
        assert await contents(served, first["session_id"]) == ["pay", "only once"]


async def test_an_idempotency_key_for_another_request_is_refused() -> None:
    """The same key with another body is a 422 and changes nothing."""
    async with gateway(numbered) as (served, upstream):
        key = {"Idempotency-Key": "k-1"}
        await served.chat("pay 10", headers=key)
        answer = await served.chat("pay 1000", headers=key)
        assert (answer["status"], answer["error"]["code"]) == (422, "idempotency_conflict")
        assert await contents(served) == ["pay 10", "re: pay 10"]
        assert len(upstream.requests) == 1


async def test_idempotency_keys_belong_to_their_user() -> None:
    """Two users with one key are two requests, with an id and without."""
    async with gateway(numbered) as (served, upstream):
        key = {"Idempotency-Key": "k-1"}
        for session_id in (None, "s"):
            for name in ("ada", "bob"):
                answer = await served.chat(f"for {name}", session_id, headers=key, user=name)
                assert answer["choices"][0]["message"]["content"] == f"re: for {name}"
        assert (await served.chat("for all", None, headers=key))["status"] == 200
        assert len(upstream.requests) == 5


async def test_an_idempotent_retry_after_a_failure_calls_the_model() -> None:
    """The user's message is there once; the reply comes with the second request."""
    async with gateway([Reply(status=500), "done"]) as (served, _):
        key = {"Idempotency-Key": "k-1"}
        assert (await served.chat("pay", headers=key))["status"] == 502
        assert (await served.chat("pay", headers=key))["status"] == 200
        assert await contents(served) == ["pay", "done"]


async def test_an_idempotent_retry_after_a_cut_reply_is_answered_anew() -> None:
    """What arrived the first time makes room for the whole reply."""
    async with gateway([Reply(text="one two three", cut_after=2), "one two three four"]) as (served, upstream):
        key = {"Idempotency-Key": "k-1"}
        assert (await served.chat("count", headers=key))["status"] == 502
        assert await contents(served) == ["count", "one "]
        assert (await served.chat("count", headers=key))["status"] == 200
        assert upstream.requests[1].body["messages"] == [user("count")]
        assert await contents(served) == ["count", "one two three four"]
        again = await served.chat("count", headers=key)
        assert again["choices"][0]["message"]["content"] == "one two three four"
        assert len(upstream.requests) == 2


async def test_duplicates_in_flight_wait_for_one_answer() -> None:
    """Two requests with one key at once: one call, one log, the same reply."""
    gate = Gate()
    async with gateway([Reply(text="once", hold=gate)]) as (served, upstream):
        key = {"Idempotency-Key": "k-1"}
        both = [asyncio.create_task(served.chat("pay", headers=key)) for _ in range(2)]
        await upstream.until(lambda: upstream.requests)
        gate.open()
        answers = await asyncio.gather(*both)
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["once", "once"]
        assert len(upstream.requests) == 1
        assert await contents(served) == ["pay", "once"]


# -- the system prompt -------------------------------------------------------


async def test_the_order_of_system_prompts() -> None:
    """The agent's instruction, then the request's, else the session's; none of them is in the log."""
    agents = 'agents: {support: {llm: default, instruction: "Be kind."}}'
    async with gateway(numbered, agents) as (served, upstream):
        await served.http.post("/v1/sessions", json={"id": "s", "agent": "support", "system_messages": ["Stored."]})
        await served.chat([user("a")])
        await served.chat([system("Given."), {"role": "developer", "content": "Also."}, user("b")])
        await served.chat([user("c")])
        prompts = [
            [message["content"] for message in received.body["messages"] if message["role"] in ("system", "developer")]
            for received in upstream.requests
        ]
        assert prompts == [["Be kind.", "Stored."], ["Be kind.", "Given.", "Also."], ["Be kind.", "Stored."]]
        assert {role for role, _ in await served.log()} == {"user", "assistant"}


async def test_a_new_session_keeps_its_first_system_prompt() -> None:
    """A client that sends deltas says it once."""
    async with gateway(numbered) as (served, upstream):
        await served.chat([system("Be brief."), user("a")])
        await served.chat([user("b")])
        assert upstream.requests[1].body["messages"][0] == system("Be brief.")
        assert (await served.http.get("/v1/sessions/s")).json()["system_messages"] == [system("Be brief.")]


async def test_only_system_messages_make_no_session() -> None:
    """There is nothing to answer, in words that are the same for a session that is there and empty."""
    async with gateway([]) as (served, upstream):
        refused = await served.chat([system("Be brief.")])
        assert (await served.http.get("/v1/sessions/s")).status_code == 404
        await served.http.post("/v1/sessions", json={"id": "s"})
        again = await served.chat([system("Be brief.")])
        assert refused["status"] == again["status"] == 400
        assert refused["error"] == again["error"]
        assert refused["error"]["param"] == "messages"
        assert upstream.requests == []


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 10**6}, {"max_completion_tokens": 10**6}, {"tools": [{"custom": 1}]}]
)
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
async def test_what_no_prompt_can_be_built_for_makes_no_session(fields: dict[str, Any], key: dict[str, str]) -> None:
    """The window is the model's, so that only the turn can tell; mended and sent again, it is a first message."""
    async with gateway(numbered) as (served, upstream):
        refused = await served.chat("a", headers=key, **fields)
        assert (refused["status"], refused["error"]["code"]) == (400, "invalid_request")
        assert (await served.http.get("/v1/sessions/s")).status_code == 404
        assert upstream.requests == []
        assert (await served.chat("a", headers=key))["session"]["version"] == 2


# -- queueing ----------------------------------------------------------------


async def second_waits(upstream: ScriptedUpstream, gate: Gate, served: Served) -> list[Any]:
    first = asyncio.create_task(served.chat("a"))
    await upstream.until(lambda: upstream.requests)
    second = asyncio.create_task(served.chat("b"))
    # Another session is not held up; by then the second request has long arrived.
    await served.chat("elsewhere", "other")
    assert len(upstream.requests) == 2
    gate.open()
    return list(await asyncio.gather(first, second))


async def test_two_requests_on_one_session_queue() -> None:
    """The second sees the first one's reply; other sessions do not wait."""
    gate = Gate()
    script = [Reply(text="first", hold=gate), "other", "second"]
    async with gateway(script) as (served, upstream):
        await second_waits(upstream, gate, served)
        assert await contents(served) == ["a", "first", "b", "second"]
        assert [message["content"] for message in upstream.requests[2].body["messages"]] == ["a", "first", "b"]
        assert served.hf.engine.locks.is_empty


async def test_many_requests_at_once() -> None:
    """Whatever runs beside it, each session's log is its own, whole and in pairs."""
    async with gateway(numbered) as (served, _):
        await asyncio.gather(*(served.chat(f"{name}{at}", name) for at in range(8) for name in ("x", "y", "z")))
        for name in ("x", "y", "z"):
            log = await contents(served, name)
            assert sorted(log[::2]) == [f"{name}{at}" for at in range(8)]
            assert log[1::2] == [f"re: {text}" for text in log[::2]]
