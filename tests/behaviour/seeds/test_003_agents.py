"""Document 003: the memory of a voice agent. What models get, and what is read, sent and carried on."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from typing import Any, Final

import pytest

from holdfast.testing import Gate, Reply, ScriptedUpstream
from tests.behaviour.kit import World, assistant, gateway, refused, system, texts, through, user
from tests.behaviour.kit.receivers import receiver
from tests.behaviour.kit.rest import ask
from tests.behaviour.kit.voice import CONTENTS, JOKE, PLAIN

DOORS: Final = ("library", "connect", "rest")
AGENT: Final = """agents:
  bot: {greeting: "How can I help you today?"}"""
NOW_MS: Final = range(10**12, 10**13)
"""Times with 13 digits."""


# -- models -----------------------------------------------------------------------------


def custom(address: str, vendor: str = "custom") -> str:
    llm = {"vendor": vendor, "model": "xxxx", "base_url": address, "api_key": "sk-upstream"}
    llm |= {"profile": "openai"} if vendor == "openai" else {}
    return f"llms: {json.dumps({'default': llm})}"


async def ask_model(vendor: str, contents: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the request that a model of this vendor gets for the last of these records."""
    async with ScriptedUpstream(["Hm."]) as upstream, gateway(None, custom(upstream.url, vendor)) as served:
        await served.rest.given("s", *contents)
        body = {"session_id": "s", "messages": [], **fields}
        await ask(served.http, "POST", "/v1/chat/completions", body)
        return upstream.requests[0].body


async def test_003_36_the_speaker_is_kept_and_sent() -> None:
    body = await ask_model("custom", CONTENTS[:2])
    assert body["messages"][1]["metadata"] == {"source": "asr", "user": "user123"}


async def test_003_37_the_history_can_be_read_while_the_agent_answers() -> None:
    gate = Gate()
    async with gateway(["Hm.", Reply(text="Slow.", hold=gate)]) as served:
        await served.chat("a")
        running = asyncio.create_task(served.chat("b"))
        await served.upstream.until(lambda: len(served.upstream.requests) == 2)
        assert texts(await served.rest.session().history()) == ["a", "Hm.", "b"]
        gate.open()
        await running
        assert texts(await served.rest.session().history()) == ["a", "Hm.", "b", "Slow."]


async def test_003_38_the_history_has_everything_since_the_session_began() -> None:
    async with gateway(lambda _: "Hm.", AGENT) as served:
        await served.rest.create("s", agent="bot")
        for number in range(60):
            await served.chat(f"{number}")
        history = await served.rest.session().history()
        assert len(history) == 121
        assert texts(history)[:3] == ["How can I help you today?", "0", "Hm."]
        assert [one["turn_id"] for one in history][-1] == 60


HOOK: Final = """hooks:
  webhooks:
    - {{url: '{url}', secret: a secret}}"""


async def stop_agent() -> tuple[list[dict[str, Any]], Any]:
    """Close a session; return its history, and what the customer's server got."""
    async with receiver() as customer:
        async with gateway((), HOOK.format(url=customer.url), store="file") as served:
            session = await served.rest.given("s", *CONTENTS)
            history = await session.history()
            await session.close()
            await served.native.sweep()
        return history, customer


async def test_003_39_the_history_is_sent_when_the_agent_stops() -> None:
    history, customer = await stop_agent()
    (body,) = map(json.loads, customer.bodies)
    assert body["eventType"] == 103
    assert body["payload"]["contents"] == history == CONTENTS


async def test_003_40_the_notification_can_be_checked() -> None:
    _, customer = await stop_agent()
    (body,), (headers,) = customer.bodies, customer.headers
    expected = hmac.new(b"a secret", body, hashlib.sha256).hexdigest()
    assert headers["agora-signature-v2"] == expected
    assert {"webhook-id", "webhook-timestamp", "webhook-signature"} <= headers.keys()
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = base64.b64encode(hmac.new(b"a secret", signed, hashlib.sha256).digest()).decode()
    assert f"v1,{digest}" in headers["webhook-signature"].split()


async def test_003_41_the_vendor_decides_what_a_model_gets() -> None:
    plain, full = await ask_model("openai", CONTENTS[:2]), await ask_model("custom", CONTENTS[:2])
    assert plain["messages"] == PLAIN[:2]
    assert full["messages"] == CONTENTS[:2]


async def test_003_42_other_vendors_get_role_and_content() -> None:
    body = await ask_model("openai", CONTENTS)
    assert body["messages"] == PLAIN
    assert not {"turn_id", "timestamp", "interruptable"} & body.keys()


@through(*DOORS)
async def test_003_43_role_and_content_alone_can_be_read(world: World) -> None:
    async with world.open() as hf:
        assert await (await hf.given("s", *CONTENTS)).history("plain") == PLAIN


async def test_003_44_custom_models_get_all_fields() -> None:
    assert (await ask_model("custom", CONTENTS))["messages"] == CONTENTS


async def test_003_45_custom_models_get_turn_time_and_model() -> None:
    body = await ask_model("custom", CONTENTS)
    assert (body["turn_id"], body["interruptable"], body["model"]) == (4, True, "xxxx")
    assert body["timestamp"] in NOW_MS


async def test_003_46_interruptable_can_be_false() -> None:
    assert (await ask_model("custom", CONTENTS, interruptable=False))["interruptable"] is False
    spoken = [*CONTENTS[:4], assistant("This call is recorded.", metadata={"interruptable": False})]
    assert (await ask_model("custom", spoken))["interruptable"] is False
    assert (await ask_model("custom", spoken, interruptable=True))["interruptable"] is True


async def test_003_47_a_custom_server_can_add_times_users_and_the_original() -> None:
    """Its three uses, with what arrives."""
    body = await ask_model("custom", CONTENTS)
    times = [f"[{one['timestamp']}] {one['content']}" for one in body["messages"]]
    assert times[0] == "[1678901234] How can I help you today?"
    assert [one["metadata"]["user"] for one in body["messages"] if one["role"] == "user"] == ["user123"] * 2
    assert [one["metadata"].get("original", one["content"]) for one in body["messages"]][2] == JOKE


async def test_003_48_a_request_in_the_custom_format_can_be_sent_to_holdfast() -> None:
    request = {"messages": CONTENTS[:4], "turn_id": 3, "timestamp": 1678905236, "interruptable": True, "model": "xxxx"}
    async with gateway(["Once upon a time."]) as served:
        answer = await served.http.post("/v1/chat/completions", json={**request, "session_id": "s"})
        assert answer.status_code == 200
        assert (await served.rest.session().history())[:4] == CONTENTS[:4]
        sent = served.upstream.requests[0].body
        assert sent["messages"] == PLAIN[:4]
        assert not {"turn_id", "timestamp", "interruptable"} & sent.keys()


async def test_003_49_leading_system_messages_of_a_custom_model_are_plain() -> None:
    """One within the log is a message of the log, with its turn and time, and without a source."""
    async with ScriptedUpstream(["Hm."]) as upstream, gateway(None, custom(upstream.url)) as served:
        session = await served.rest.given("s", user("a"), system("Now be brief."), system_messages=["Be kind."])
        await session.send(user("b"))
        leading, _, inside, _ = upstream.requests[0].body["messages"]
        assert leading == {"role": "system", "content": "Be kind."}
        assert (inside["content"], inside["metadata"]) == ("Now be brief.", {})


# -- after the agent -----------------------------------------------------------------------


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_003_50_memory_ends_with_the_agent(store: str) -> None:
    """On disk it is kept on purpose."""
    async with gateway((), store=store) as served:
        session = await served.rest.given("s", *CONTENTS)
        await session.close()
        if store == "memory":
            with refused("session_not_found"):
                await session.history()
        else:
            assert await session.history() == CONTENTS


@through(*DOORS)
async def test_003_51_the_memory_can_be_saved_and_put_back(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", *CONTENTS)
        saved = await session.export()
        await session.close()
        await hf.import_session({**saved, "id": "again"})
        assert await hf.session("again").history() == CONTENTS


@through(*DOORS)
async def test_003_52_a_new_session_can_start_with_the_content(world: World) -> None:
    async with world.open() as hf:
        await hf.given("s", *CONTENTS)
        new = await hf.create("new", carry_over={"session_id": "s", "form": "content"})
        (message,) = (await new.info())["system_messages"]
        assert message["role"] == "system"
        for one in PLAIN:
            assert one["content"].strip() in message["content"]


@through(*DOORS)
async def test_003_53_a_new_session_can_start_with_a_summary(world: World) -> None:
    summary = "The user asked for a joke, interrupted it, and got a story about a brave knight and dragons."
    async with world.open(script=[summary]) as hf:
        more = [user("Which knight was it in the story about dragons and princesses?"), assistant("A brave knight.")]
        await hf.given("s", *CONTENTS, *more)
        new = await hf.create("new", carry_over={"session_id": "s", "form": "summary"})
        assert summary in (await new.info())["system_messages"][0]["content"]


SYSTEM: Final = [
    {"role": "system", "content": "You are a helpful assistant. xxx"},
    {"role": "system", "content": "Previously, user has talked about their favorite hobbies with some key topics: xxx"},
]


@through(*DOORS)
async def test_003_54_two_system_messages_are_accepted(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", user("a"), system_messages=SYSTEM)
        assert (await session.export())["system_messages"] == SYSTEM
        assert (await session.context())["messages"][:2] == SYSTEM


async def test_003_55_system_messages_are_accepted_in_the_configuration_of_the_model() -> None:
    async with ScriptedUpstream(["Hm.", "Hm."]) as upstream:
        llm = {"model": "xxxx", "base_url": upstream.url, "api_key": "sk-upstream", "system_messages": SYSTEM}
        llm["profile"] = "openai"
        async with gateway(None, f"llm: {json.dumps(llm)}") as served:
            for text in "ab":
                await served.chat(text)
        assert [request.body["messages"][:2] for request in upstream.requests] == [SYSTEM] * 2


async def test_003_56_system_messages_can_be_changed_while_the_agent_runs() -> None:
    gate = Gate()
    async with gateway([Reply(text="Slow.", hold=gate), "Hm."]) as served:
        session = await served.rest.create("s", system_messages=["Be old."])
        running = asyncio.create_task(served.chat("a"))
        await served.upstream.until(lambda: served.upstream.requests)
        await session.update(system_messages=SYSTEM)
        gate.open()
        await running
        await served.chat("b")
        assert served.upstream.requests[1].body["messages"][:2] == SYSTEM


@pytest.mark.xfail(strict=True, reason="issue 49: `llm.system_messages` in a REST body")
async def test_003_57_llm_system_messages_replace_what_was_configured() -> None:
    async with ScriptedUpstream(["Hm."]) as upstream:
        configured = [{"role": "system", "content": "Be old."}]
        llm = {"model": "xxxx", "base_url": upstream.url, "api_key": "sk-upstream", "system_messages": configured}
        async with gateway(None, f"llm: {json.dumps(llm)}") as served:
            session = await served.rest.create("s")
            await session.update(llm={"system_messages": SYSTEM})
            await served.chat("a")
        assert upstream.requests[0].body["messages"] == [*SYSTEM, user("a")]
