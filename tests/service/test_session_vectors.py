"""Session expiry, import, export and forks: the tables of what mistral.rs does and promises, as tests of the gateway.
Rows follow the promised behaviour; where docs/reconcile.md differs, it takes precedence, and the test says so.
Words are those of the tables; `r` is the model's answer to the request of the row.
"""

from __future__ import annotations

import pytest

from holdfast.domain.session import SessionRef
from tests.service.simulator.gateway import open_gateway
from tests.service.simulator.notation import messages, words
from tests.service.simulator.vectors import (
    URLS,
    good,
    live,
    make_image_message,
    pictures,
    whole,
    with_picture,
)

# -- round trip -------------------------------------------------------------------


async def test_export_can_be_imported_under_a_new_id() -> None:
    """Messages and images are equal; fields of a call or a process are not exported."""
    async with open_gateway() as gateway:
        await with_picture(gateway, "tc1 t1 a1")
        good(
            await gateway.chat(
                messages("u2"),
                session_id="s",
                temperature=0.5,
                tools=[{"type": "function", "function": {"name": "find"}}],
            )
        )
        exported = good(await gateway("GET", "/v1/sessions/s")).json
        assert not {"temperature", "tools", "interpreter"} & set(exported)
        assert (await gateway("PUT", "/v1/sessions/t", exported)).status in (200, 201)
        again = good(await gateway("GET", "/v1/sessions/t")).json
        plain = [{name: one.get(name) for name in ("role", "content", "tool_calls")} for one in exported["messages"]]
        assert plain == [
            {name: one.get(name) for name in ("role", "content", "tool_calls")} for one in again["messages"]
        ]
        assert exported["images"] == again["images"]
        assert len(exported["images"]) == 1
        good(await gateway.chat(messages("u3"), session_id="t"))
        assert pictures(gateway.speaker.prompts[-1]) == URLS[:1]


async def test_import_requires_messages_and_ignores_unknown_keys() -> None:
    """The list of messages may be empty."""
    async with open_gateway() as gateway:
        assert 400 <= (await gateway("PUT", "/v1/sessions/s", {})).status < 500
        assert (await gateway("GET", "/v1/sessions/s")).status == 404
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": [], "files": [], "x_unknown": 1})).status == 200
        assert await live(gateway) == ""
        shape = {"messages": [make_image_message("u1", {"type": "image"})], "images": ["!no base64!"]}
        refused = await gateway("PUT", "/v1/sessions/t", shape)
        assert refused.status == 400
        assert "base64" in refused.json["error"]["message"]


# -- HTTP -------------------------------------------------------------------------


async def test_session_routes_get_put_and_delete() -> None:
    async with open_gateway() as gateway:
        assert (await gateway("GET", "/v1/sessions/s")).status == 404
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": messages("u1 a1")})).status == 200
        assert (await gateway("PUT", "/v1/sessions/s", {"messages": messages("u2 a2")})).status == 200
        exported = good(await gateway("GET", "/v1/sessions/s")).json["messages"]
        assert words([{"role": one["role"], "content": one["content"]} for one in exported]) == "u2 a2"
        assert await whole(gateway) == "u2 a2"
        assert (await gateway("DELETE", "/v1/sessions/s")).status == 200
        assert (await gateway("GET", "/v1/sessions/s")).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_answer_contains_the_session_id(stream: bool) -> None:
    """In the body, and in a stream only in the final chunk; a generated id can be used again."""
    async with open_gateway() as gateway:
        answer = good(await gateway.chat(messages("u1"), stream=stream))
        named = answer.last["session_id"]
        if stream:
            assert ["session_id" in event for event in answer.events] == [False] * (len(answer.events) - 1) + [True]
        assert (await gateway.hf.store.get(SessionRef("default", named))).messages == 2
        again = good(await gateway.chat(messages("u2"), session_id=named))
        assert again.session_id == named
        assert await live(gateway, named) == "u1 r u2 r"


# -- fork ---------------------------------------------------------------------------


# -- store --------------------------------------------------------------------------

CAP, TTL = 128, 1_800_000
