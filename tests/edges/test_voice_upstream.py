"""What a voice agent's model receives: records for `vendor: custom`, none of their fields for others; and what the
client hears. Agora's examples that involve a model are here unchanged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit.voice import CONTENTS
from tests.edges.keys import bearer, create_stored_key
from tests.edges.server import UPSTREAM_KEY, Served, gateway, serving


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


# -- records ------------------------------------------------------------------------------


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


# -- carrying a session over -----------------------------------------------------------------


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
