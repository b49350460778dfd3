"""What a voice agent's model receives: records for `vendor: custom`, none of their fields for others; and what the
client hears. Agora's examples that involve a model are here unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit.voice import CONTENTS, PLAIN
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import UPSTREAM_KEY, Served, gateway, serving

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
"""What every request to an upstream has: the reply is streamed, and its usage told."""


@asynccontextmanager
async def custom(
    script: Sequence[Any], *more: str, vendor: str = "vendor: custom"
) -> AsyncIterator[tuple[Served, ScriptedUpstream]]:
    """Run a gateway whose model is an upstream of `vendor: custom`."""
    async with ScriptedUpstream(script) as upstream:
        vendor = vendor if vendor == "vendor: custom" else f"{vendor}, profile: openai"
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


# -- changed system messages -------------------------------------------------------------------


# -- carrying a session over -----------------------------------------------------------------


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
