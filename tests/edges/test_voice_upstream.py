"""What a voice agent's model receives: records for `vendor: custom`, none of their fields for others; and what the
client hears. Agora's examples that involve a model are here unchanged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Gate, Reply, ScriptedUpstream
from holdfast.tools.functions import make_toolset
from holdfast.tools.tool import ToolLimits
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import UPSTREAM_KEY, Served, gateway, serving
from tests.unit.seed_voice import CONTENTS, PLAIN

SORRY = "I am sorry, I cannot answer right now."
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
"""What every request to an upstream has: the reply is streamed, and its usage told."""


@asynccontextmanager
async def custom(
    script: Sequence[Any], *more: str, vendor: str = "vendor: custom"
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Run a gateway whose model is an upstream of `vendor: custom`."""
    async with ScriptedUpstream(script) as upstream:
        llm = f"llms: {{default: {{{vendor}, model: xxxx, base_url: '{upstream.url}', api_key: {UPSTREAM_KEY}}}}}"
        async with serving("\n".join([llm, *more])) as served:
            yield served, upstream


async def fill_session(served: Served, contents: list[dict[str, Any]] = CONTENTS, session_id: str = "s") -> None:
    """Create a session with these records."""
    await create_session(served, {"id": session_id})
    response = await served.http.post(f"/v1/sessions/{session_id}/messages", json={"messages": contents})
    assert response.status_code == 200, response.text


async def create_session(served: Served, body: dict[str, Any], status: int = 201, **headers: str) -> dict[str, Any]:
    response = await served.http.post("/v1/sessions", json=body, headers=headers)
    assert response.status_code == status, response.text
    told: dict[str, Any] = response.json()
    return told


# -- records ------------------------------------------------------------------------------


async def test_agoras_custom_llm_example() -> None:
    """Its contents in a session, one model call: the upstream receives its JSON, with the fields of a stream."""
    async with custom(["Hello?"]) as (served, upstream):
        await fill_session(served)
        handle = served.hf.handle(await served.hf.store.get(SessionRef("default", "s")))
        before = served.hf.clock()
        await handle.send([])
        body = upstream.requests[0].body
        assert before < body["timestamp"] < served.hf.clock()
        expected = {"messages": CONTENTS, "turn_id": 4, "timestamp": body["timestamp"], "interruptable": True}
        assert body == {**expected, "model": "xxxx", **STREAM}


async def test_agoras_other_vendor_example() -> None:
    """Any other vendor gets role and content."""
    async with custom(["Hello?"], vendor="vendor: openai") as (served, upstream):
        await fill_session(served)
        await served.hf.handle(await served.hf.store.get(SessionRef("default", "s"))).send([])
        body = upstream.requests[0].body
        assert body["messages"] == PLAIN
        assert not {"turn_id", "timestamp", "interruptable"} & body.keys()


async def test_chat_request_continues_in_the_next_turn() -> None:
    """System messages come first without the fields; the new message has its own."""
    async with custom(["Yes."]) as (served, upstream):
        await fill_session(served)
        await served.chat([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "I am."}])
        body = upstream.requests[0].body
        system, *records, said = body["messages"]
        assert system == {"role": "system", "content": "Be kind."}
        assert records == CONTENTS
        assert said == {
            "role": "user",
            "content": "I am.",
            "turn_id": 5,
            "timestamp": said["timestamp"],
            "metadata": {"source": "message"},
        }
        assert body["turn_id"] == 5


@pytest.mark.parametrize("vendor", ["vendor: openai", "vendor: custom"])
async def test_only_custom_models_receive_record_fields(vendor: str) -> None:
    """Other vendors would refuse them; request-level fields are Holdfast's."""
    async with custom(["Yes.", "And?"], vendor=vendor) as (served, upstream):
        said = [{**CONTENTS[1], "x_note": "kept"}]
        told = await served.chat(said, turn_id=99, timestamp=98, interruptable=False)
        assert told["status"] == 200
        await served.http.post("/v1/sessions/s/messages", json={"messages": [CONTENTS[3]]})
        await served.chat("More")
        for request in upstream.requests:
            for message in request.body["messages"]:
                if vendor == "vendor: openai":
                    assert message.keys() <= {"role", "content", "x_note"}
                else:
                    assert message["turn_id"] in {0, 1, 2, 3}
        first = upstream.requests[0].body
        assert first["messages"][0]["x_note"] == "kept"
        if vendor == "vendor: openai":
            assert not {"turn_id", "timestamp", "interruptable"} & first.keys()
        else:
            assert (first["turn_id"], first["interruptable"]) == (2, False)  # of the record, not the request
            assert first["timestamp"] != 98


async def test_uninterruptable_speech_is_reported_to_the_model() -> None:
    """After `/speak` with `interruptable: false` the next request says so."""
    async with custom(["Yes.", "Still."]) as (served, upstream):
        await fill_session(served, CONTENTS[:2])
        response = await served.http.post(
            "/v1/sessions/s/speak", json={"text": "This call is recorded.", "interruptable": False}
        )
        assert response.status_code == 200, response.text
        await served.chat("Fine.")
        await served.chat("And?")
        assert [request.body["interruptable"] for request in upstream.requests] == [False, True]
        spoken = upstream.requests[0].body["messages"][2]
        assert spoken["metadata"] == {"source": "command"}


async def test_invalid_interruptable_is_a_400() -> None:
    """It names the parameter, and nothing is written."""
    async with custom([]) as (served, _):
        told = await served.chat("Hi", interruptable="no")
        assert (told["status"], told["error"]["param"]) == (400, "interruptable")
        assert (await served.http.get("/v1/sessions/s")).status_code == 404


async def test_metadata_chunk_before_the_reply_reaches_the_client() -> None:
    """A custom model's first chunk may not be a completion chunk: the official client gets it and the reply."""
    note: dict[str, Any] = {
        "id": "n",
        "object": "chat.completion.custom_metadata",
        "choices": [],
        "metadata": {"interruptable": False},
    }
    text = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "xxxx"}
    words = {**text, "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hello."}}]}
    end = {**text, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    chunks: list[dict[str, Any]] = [note, words, end]
    async with custom([Reply(chunks=chunks), Reply(chunks=chunks)]) as (served, _):
        stream = await served.client.chat.completions.create(
            model="xxxx", messages=[{"role": "user", "content": "Hi"}], stream=True, extra_body={"session_id": "s"}
        )
        told = [chunk async for chunk in stream]
        assert told[0].object == note["object"]
        assert told[0].model_extra == {"metadata": {"interruptable": False}}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in told if chunk.choices) == "Hello."
        whole = await served.chat("Again")
        assert whole["choices"][0]["message"]["content"] == "Hello."
        assert (whole["object"], whole["metadata"]) == ("chat.completion", {"interruptable": False})
        assert await served.log() == [
            ("user", "Hi"),
            ("assistant", "Hello."),
            ("user", "Again"),
            ("assistant", "Hello."),
        ]


# -- the failure message ---------------------------------------------------------------------

AGENT = json.dumps({"a": {"failure_message": SORRY, "instruction": "Be kind."}})


@pytest.mark.parametrize("streamed", [False, True])
async def test_official_client_receives_the_failure_message(streamed: bool) -> None:
    """A 200 with a finished reply and the reason in `session`; the next turn continues after it, and it is counted."""
    refusal = Reply(status=503, error="all busy")
    async with gateway([refusal, "Here I am."], f"agents: {AGENT}") as (served, upstream):
        ask: dict[str, Any] = {
            "model": "a",
            "messages": [{"role": "user", "content": "Hi"}],
            "extra_body": {"session_id": "s"},
        }
        if streamed:
            async with served.client.chat.completions.stream(**ask, stream_options={"include_usage": True}) as stream:
                events = [event.chunk async for event in stream if event.type == "chunk"]
                completion = await stream.get_final_completion()
            session = events[-1].model_extra["session"]
        else:
            completion = await served.client.chat.completions.create(**ask)
            session = completion.model_extra["session"]
        assert completion.choices[0].message.content == SORRY
        assert completion.choices[0].finish_reason == "stop"
        assert completion.usage.total_tokens == 0
        assert session["failure"]["code"] == "upstream_unavailable"
        assert "503" in session["failure"]["message"]
        assert UPSTREAM_KEY not in str(session)
        again = await served.chat("Hello?", model="a")
        assert again["choices"][0]["message"]["content"] == "Here I am."
        assert "failure" not in again["session"]
        assert [one["content"] for one in upstream.requests[-1].body["messages"]] == ["Be kind.", "Hi", SORRY, "Hello?"]
        history = (await served.http.get("/v1/sessions/s/history")).json()["contents"]
        assert history[1]["metadata"] == {"source": "llm_failure", "error": "upstream_unavailable"}
        metrics = (await served.http.get("/metrics")).text
        assert 'holdfast_failure_messages_total{code="upstream_unavailable"} 1.0' in metrics


async def test_failure_message_comes_after_all_fallbacks() -> None:
    """Each was tried first; `session.upstream` names them."""
    async with ScriptedUpstream([Reply(status=503, error="busy"), Reply(status=500, error="broken")]) as upstream:
        place = f"base_url: '{upstream.url}', api_key: {UPSTREAM_KEY}"
        llms = f"llms: {{default: {{model: one, {place}, fallbacks: [second]}}, second: {{model: two, {place}}}}}"
        async with serving("\n".join([llms, f"agents: {AGENT}"])) as served:
            told = await served.chat("Hi", model="a")
            assert told["choices"][0]["message"]["content"] == SORRY
            assert told["session"]["failure"]["code"] == "upstream_unavailable"
            assert [one["status"] for one in told["session"]["upstream"]["failed"]] == [503, 500]
            assert len(upstream.requests) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_messages_api_receives_the_failure_message(streamed: bool) -> None:
    async with gateway([Reply(status=503, error="busy")], f"agents: {AGENT}") as (served, _):
        body = {"model": "a", "max_tokens": 100, "session_id": "s", "stream": streamed}
        messages = [{"role": "user", "content": "Hi"}]
        response = await served.http.post("/v1/messages", json={**body, "messages": messages})
        assert response.status_code == 200, response.text
        if streamed:
            events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
            text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
            ends = [event for event in events if event["type"] == "message_delta"]
            assert (text, ends[0]["delta"]["stop_reason"], events[-1]["type"]) == (SORRY, "end_turn", "message_stop")
        else:
            told = response.json()
            assert (told["content"], told["stop_reason"]) == ([{"type": "text", "text": SORRY}], "end_turn")
        assert await served.log() == [("user", "Hi"), ("assistant", SORRY)]


async def test_partial_reply_is_followed_by_the_error() -> None:
    """As without a failure message: the log has the marked part."""
    cut = Reply(text="One two three.", cut_after=2)
    async with gateway([cut], f"agents: {AGENT}") as (served, _):
        told = await served.chat("Hi", model="a")
        assert told["status"] == 502
        log = await served.log()
        assert [role for role, _ in log] == ["user", "assistant"]
        assert SORRY not in str(log)


# -- changed system messages -------------------------------------------------------------------


async def patch_system(served: Served, *system: str) -> None:
    response = await served.http.patch("/v1/sessions/s", json={"system_messages": list(system)})
    assert response.status_code == 200, response.text


def prompts(upstream: ScriptedUpstream) -> list[list[str]]:
    return [[one["content"] for one in request.body["messages"]] for request in upstream.requests]


@pytest.mark.parametrize("model", ["gpt-4o", "a"])
async def test_changed_system_messages_apply_to_the_next_call(model: str) -> None:
    """Also in a session cached by this server, and after an agent's instruction."""
    async with gateway(["One.", "Two.", "Three."], f"agents: {AGENT}") as (served, upstream):
        await create_session(served, {"id": "s", "system_messages": ["Old."]})
        for text, system in (("a", None), ("b", ["New.", "Newer."]), ("c", [])):
            if system is not None:
                await patch_system(served, *system)
            await served.chat(text, model=model)
        own = ["Be kind."] if model == "a" else []
        assert prompts(upstream) == [
            [*own, "Old.", "a"],
            [*own, "New.", "Newer.", "a", "One.", "b"],
            [*own, "a", "One.", "b", "Two.", "c"],
        ]


async def test_change_during_a_tool_applies_to_the_turns_next_call() -> None:
    gate = Gate()

    async def look_up(name: str) -> str:
        """Look something up."""
        await gate.wait()
        return f"{name}: found"

    script = [Reply(tool_calls=[("look_up", {"name": "kelp"})]), "It is there."]
    async with gateway(script) as (served, upstream):
        served.hf.roster.tools = make_toolset([look_up], ToolLimits())
        await create_session(served, {"id": "s", "system_messages": ["Old."]})
        body = {"messages": [{"role": "user", "content": "kelp?"}], "session_id": "s", "stream": True}
        async with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if line == ": tool look_up running":
                    break
            await patch_system(served, "New.")
            gate.open()
            assert [line async for line in lines]
        assert [prompt[0] for prompt in prompts(upstream)] == ["Old.", "New."]


# -- carrying a session over -----------------------------------------------------------------


async def test_summary_is_carried_over_in_one_call(tmp_path: Path) -> None:
    """The new session's next prompt begins with it, after its own system message, as in Agora's example."""
    summary = "The user was told a story of a knight after a joke of a scarecrow."
    script, store = [Reply(text=summary), "Once more?"], f"sqlite:///{tmp_path}/chat.db"
    async with gateway(script, store=store) as (served, upstream):
        await fill_session(served)
        assert (await served.http.post("/v1/sessions/s/close")).status_code == 200
        prefix = "Previously, user has talked about their favorite hobbies with some key topics:"
        carry_over = {"session_id": "s", "prefix": prefix}
        told = await create_session(
            served, {"id": "new", "system_messages": ["You are a helpful assistant."], "carry_over": carry_over}
        )
        first, second = told["system_messages"]
        assert first == {"role": "system", "content": "You are a helpful assistant."}
        assert second["role"] == "system"
        assert second["content"].startswith(prefix)
        assert summary in second["content"]
        assert told["metadata"]["carried_from"]["id"] == "s"
        await served.chat("Hello again", "new")
        assert prompts(upstream)[1] == [first["content"], second["content"], "Hello again"]


async def test_content_is_carried_over_without_a_model() -> None:
    """With speakers, newest last."""
    async with gateway([]) as (served, upstream):
        await fill_session(served)
        told = await create_session(served, {"id": "new", "carry_over": {"session_id": "s", "form": "content"}})
        text = told["system_messages"][0]["content"]
        places = [text.index(record["content"].strip()) for record in CONTENTS]
        assert places == sorted(places)
        assert upstream.requests == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"session_id": "nobody"}, 404, None),
        ({"session_id": "s", "user_id": "bob"}, 404, None),
        ({"session_id": "s", "tokens": 1}, 400, "carry_over.tokens"),
        ({"session_id": "s", "form": "all"}, 400, "carry_over.form"),
        ({"form": "content"}, 400, "carry_over.session_id"),
        ([], 400, "carry_over"),
    ],
)
async def test_failed_carry_over_leaves_no_session(body: Any, status: int, param: str | None) -> None:
    """With an error in the usual shape."""
    async with gateway([]) as (served, upstream):
        await fill_session(served)
        told = await create_session(served, {"id": "new", "carry_over": body}, status)
        assert told["error"]["param"] == param
        assert (await served.http.get("/v1/sessions/new")).status_code == 404
        assert upstream.requests == []


async def test_carry_over_checks_both_sessions_before_a_model_call() -> None:
    """A deleted source is a 404, an existing id a 409."""
    async with gateway([]) as (served, upstream):
        await fill_session(served)
        await create_session(served, {"id": "s", "carry_over": "s"}, 409)
        assert (await served.http.delete("/v1/sessions/s")).status_code == 200
        await create_session(served, {"id": "new", "carry_over": "s"}, 404)
        assert upstream.requests == []


async def test_who_may_carry_over_a_session() -> None:
    """One's own; another user's only with an admin key without a user; another tenant's never."""
    async with gateway([], "auth: {required: true}") as (served, _):
        hf = served.hf
        ada, write, admin, of_ada = (
            await create_stored_key(hf, role="write", user_id="ada"),
            await create_stored_key(hf, role="write"),
            await create_stored_key(hf, role="admin"),
            await create_stored_key(hf, role="admin", user_id="ada"),
        )
        elsewhere = await create_stored_key(hf, role="admin", tenant="other")
        for user in ("ada", "bob"):
            session = await hf.session(f"of-{user}", user_id=user)
            await session.append([{"role": "user", "content": f"I am {user}."}])

        async def carry(key: str, source: str, user: str | None, of: str | None) -> int:
            how = {"session_id": source, "form": "content", **({"user_id": of} if of else {})}
            body = {"carry_over": how, **({"user_id": user} if user else {})}
            return (await served.http.post("/v1/sessions", json=body, headers=bearer(key))).status_code

        assert await carry(ada, "of-ada", None, None) == 201
        assert await carry(ada, "of-bob", None, None) == 404
        assert await carry(ada, "of-bob", None, "bob") == 404
        assert await carry(write, "of-ada", "ada", None) == 201
        assert await carry(write, "of-bob", "ada", "bob") == 404
        assert await carry(of_ada, "of-bob", None, "bob") == 404
        assert await carry(admin, "of-bob", "ada", None) == 404
        assert await carry(admin, "of-bob", "ada", "bob") == 201
        assert await carry(elsewhere, "of-ada", "ada", "ada") == 404
