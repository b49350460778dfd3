"""A message that the provider refuses does not block its session: it is left out, reported, and can be restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.testing import Reply, ScriptedUpstream
from tests.behaviour.kit import Served, World, answer_of, assistant, calls, result, through, user

pytestmark = through("library", "rest")
BROKEN = {"type": "image_url", "image_url": {"url": "https://example.com/broken.png"}}
GOOD = {"type": "image_url", "image_url": {"url": "https://example.com/good.png"}}


def seen(text: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return user([{"type": "text", "text": text}, *parts])


PAST = (seen("Look.", GOOD), assistant("A harbour."), seen("And this?", BROKEN))


def refusing(named: str = "", *, says: str = "Invalid image.", status: int = 400, shift: int = 0) -> Any:
    """A provider that refuses prompts with the broken image; `named` is the form in which its error names the message."""

    def say(body: dict[str, Any]) -> Any:
        for at, message in enumerate(body["messages"]):
            if "broken.png" in str(message):
                content = message["content"]
                part = content.index(BROKEN) if isinstance(content, list) and BROKEN in content else 0
                error = {"message": says.format(at=at - shift), "code": "invalid_image"}
                return Reply(status=status, error={"error": {**error, "param": named.format(at=at, part=part) or None}})
        return "fine"

    return say


async def ask(served: Served, text: str = "Hello?") -> str:
    answer = await served.chat(text)
    assert answer["status"] == 200, answer
    return str(answer_of(answer))


async def refusals(served: Served) -> dict[int, Any]:
    """Return what the log says of refused messages, by their places."""
    rows = [(row["seq"], (row.get("metadata") or {}).get("refused_by")) for row in await served.entries()]
    return {seq: refused for seq, refused in rows if refused}


@pytest.mark.parametrize(
    "named",
    [
        "messages[{at}].content[1].image_url",
        "messages.[{at}].content.[1]",
        "messages.{at}.content.1.image",
        "$.messages[{at}].content[1]",
        "['body', 'messages', {at}, 'user', 'content', 'list[union]', 1, 'image_url']",
        '["body","messages",{at},"content",1]',
    ],
)
async def test_a_part_that_the_error_names_is_left_out_and_the_rest_of_its_message_stays(
    world: World, named: str
) -> None:
    async with world.gateway(refusing(named)) as served:
        session = await served.rest.given("s", *PAST)
        assert await ask(served) == "fine"
        kept, gone = served.sent["messages"][2]["content"]
        assert kept["text"] == "And this?"
        assert "[image: a link is left out here" in gone["text"]
        assert served.sent["messages"][0]["content"][1] == GOOD
        assert await refusals(served) == {2: {"default": {"reason": "400 invalid_image", "parts": [1]}}}
        assert "broken.png" in str(await served.entries())
        await ask(served, "Still there?")
        assert len(served.upstream.requests) == 3
        await session.annotate(2, refused_by=[])
        await ask(served, "Again?")
        assert served.upstream.requests[3].body["messages"][2]["content"][1] == BROKEN


async def test_all_parts_of_a_message_that_errors_name_are_left_out(world: World) -> None:
    async with world.gateway(refusing("messages[{at}].content[{part}]")) as served:
        await served.rest.given("s", seen("Look.", BROKEN, GOOD, BROKEN), assistant("A harbour."))
        assert await ask(served) == "fine"
        assert served.sent["messages"][0]["content"][2] == GOOD
        assert BROKEN not in served.sent["messages"][0]["content"]
        assert await refusals(served) == {0: {"default": {"reason": "400 invalid_image", "parts": [1, 3]}}}
        await ask(served, "Still there?")
        assert len(served.upstream.requests) == 4


async def test_the_current_message_is_sent_although_it_was_refused(world: World) -> None:
    async with world.gateway(["fine"]) as served:
        session = await served.rest.given("s", *PAST)
        await session.annotate(2, refused_by=["default"])
        assert (await session.context())["messages"][2]["content"][1] == BROKEN


async def test_more_parts_than_one_turn_leaves_out_are_left_out_in_the_next(world: World) -> None:
    async with world.gateway(refusing("messages[{at}].content[1]")) as served:
        await served.rest.given("s", *PAST * 10)
        assert (await served.chat("Hello?"))["status"] == 400
        assert (len(served.upstream.requests), len(await refusals(served))) == (9, 8)
        assert await ask(served, "And now?") == "fine"
        assert len(served.upstream.requests) == 12


async def test_messages_that_the_errors_name_are_left_out(world: World) -> None:
    async with world.gateway(refusing("messages[{at}]")) as served:
        session = await served.rest.given("s", *PAST, assistant("?"), user([BROKEN]))
        assert await ask(served) == "fine"
        assert "message 2 of the session" in served.sent["messages"][2]["content"]
        assert served.sent["messages"][0]["content"][1] == GOOD
        assert await refusals(served) == {seq: {"default": "400 invalid_image"} for seq in (2, 4)}
        await ask(served, "Still there?")
        assert len(served.upstream.requests) == 4
        runs = [(run["decision"], run["reason"]) for run in (await session.context())["decisions"]]
        assert ("refused", "400 invalid_image") in runs


@pytest.mark.parametrize(
    ("named", "status"),
    [
        ("", 400),
        ("messages[{at}]", 401),
        ("messages[{at}]", 429),
        ("messages[99]", 400),
        ("tools[{at}].function.parameters", 400),
    ],
)
async def test_an_error_that_names_no_message_goes_to_the_client(world: World, named: str, status: int) -> None:
    """It is not guessed which message was meant, and the log does not change."""
    async with world.gateway(refusing(named, status=status)) as served:
        await served.rest.given("s", *PAST)
        assert "Invalid image" in (await served.chat("Hello?"))["error"]["message"]
        assert (len(served.upstream.requests), await refusals(served)) == (1, {})


@pytest.mark.parametrize("broken", ["call", "result"])
async def test_a_refused_call_or_result_is_replaced_by_a_legal_note(world: World, broken: str) -> None:
    call = calls(("c", "look", {}), text="see broken.png" if broken == "call" else "ok")
    async with world.gateway(refusing("messages[{at}]")) as served:
        await served.rest.given("s", user("Look."), call, result("c", "ok" if broken == "call" else "broken.png"))
        assert await ask(served, "Well?") == "fine"
        sent = served.sent["messages"]
        roles = ["user", "assistant", "user" if broken == "call" else "tool", "user"]
        assert [message["role"] for message in sent] == roles
        assert "tool_calls" not in sent[1] or broken == "result"


async def test_a_message_is_not_recorded_if_a_fallback_answers(world: World) -> None:
    """It is not known then whether the model would have answered without it."""
    refuse: Callable[[Any], Any] = refusing("messages[{at}]")

    def fail(body: dict[str, Any]) -> Any:
        return refuse(body) if "broken.png" in str(body["messages"]) else Reply(status=503)

    other = ScriptedUpstream(["fine"])
    async with world.gateway(fail, models={"other": (other, {})}, llm={"fallbacks": ["other"]}) as served:
        await served.rest.given("s", *PAST)
        assert await ask(served) == "fine"
        assert other.requests[-1].body["messages"][2]["content"][1] == BROKEN
        assert await refusals(served) == {}


@pytest.mark.parametrize(("shift", "called"), [(1, 1), (-1, 2)])
async def test_a_wrong_number_of_a_message_leaves_the_log_unchanged(world: World, shift: int, called: int) -> None:
    """A router may number messages differently. Leaving out the one that is named does not help then, and is not recorded."""
    says = "AnthropicException: messages.{at}.content.1.image.source.url: Could not download the image"
    async with world.gateway(refusing(says=says, shift=shift)) as served:
        await served.rest.given(
            "s", seen("Look.", BROKEN), assistant("A harbour."), user("And?"), system_messages=["."]
        )
        assert (await served.chat("Hello?"))["status"] == 400
        assert (len(served.upstream.requests), await refusals(served)) == (called, {})
