"""A message that the provider refuses does not block its session: it is left out, reported, and can be restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.context.summaries import iter_records
from holdfast.context.units import group_units
from holdfast.domain.session import SessionRef
from holdfast.errors import ModelRejected, ModelUnavailable
from holdfast.holdfast import Holdfast
from tests.markers import strip_markers
from tests.service.failover_kit import NamedModel, ask, open_holdfast
from tests.service.scripted_model import REF

BROKEN = {"type": "image_url", "image_url": {"url": "https://example.com/broken.png"}}
GOOD = {"type": "image_url", "image_url": {"url": "https://example.com/good.png"}}
NOTE = "[message 2 of the session is left out here: the model's provider refused it]"


def refusing(named: str = "", *, says: str = "Invalid image.", status: int = 400) -> Callable[[dict[str, Any]], Any]:
    """A provider that refuses prompts with the broken image; `named` is the form in which its error names the
    message.
    """

    def say(request: dict[str, Any]) -> Any:
        for at, message in enumerate(request["messages"]):
            if "broken.png" in str(message):
                body = {"message": says, "code": "invalid_image", "param": named.format(at=at) or None}
                return ModelRejected(f"the model answered {status}: {says}", status=status, body=body)
        return "fine"

    return say


async def with_history(hf: Holdfast, *more: dict[str, Any]) -> None:
    session = await hf.session("s")
    await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, GOOD]})
    await session.append({"role": "assistant", "content": "A harbour."})
    await session.append({"role": "user", "content": [{"type": "text", "text": "And this?"}, BROKEN]})
    await session.append(list(more))


PARTS = [
    "messages[{at}].content[1].image_url",
    "messages.[{at}].content.[1]",
    "messages.{at}.content.1.image",
    "$.messages[{at}].content[1]",
    "['body', 'messages', {at}, 'user', 'content', 'list[union]', 1, 'image_url']",
    '["body","messages",{at},"content",1]',
]
PART_NOTE = "[image: a link is left out here: the model's provider refused it]"


@pytest.mark.parametrize("named", PARTS)
async def test_part_named_by_the_error_is_left_out_and_the_rest_of_its_message_stays(named: str) -> None:
    model = NamedModel("main", refusing(named))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        said, turn = await ask(hf, "Never mind. Hello?")
        assert said == "fine"
        kept, gone = model.prompts[-1][2]["content"]
        assert (kept["text"], strip_markers(gone["text"])) == ("And this?", PART_NOTE)
        assert model.prompts[-1][0]["content"][1] == GOOD
        (warning,) = turn.summarize()["warnings"]
        assert "a part of message 2 is left out of prompts for main" in warning["message"]
        (entry,) = await hf.store.entries(REF, start=2, stop=3)
        assert entry.metadata == {"refused_by": {"main": {"reason": "400 invalid_image", "parts": [1]}}}
        assert "broken.png" in str(entry.message), "the log keeps it"
        await ask(hf, "Still there?")
        assert len(model.prompts) == 3, "the next turn is not refused"
        entry = await (await hf.session("s")).annotate(2, refused_by=[])
        assert entry.metadata is None
        await ask(hf, "Again?")
        assert model.prompts[3][2]["content"][1] == BROKEN, "it is sent again"


async def test_more_parts_than_one_turn_leaves_out_are_left_out_in_the_next() -> None:
    model = NamedModel("main", refusing("messages[{at}].content[1]"))
    async with open_holdfast(model) as (hf, _):
        for _ in range(5):
            await with_history(hf)
            await with_history(hf)
        with pytest.raises(ModelRejected):
            await ask(hf, "Hello?")
        assert len(model.prompts) == 9
        assert sum(entry.metadata is not None for entry in await hf.store.entries(REF)) == 8
        said, _ = await ask(hf, "And now?")
        assert (said, len(model.prompts)) == ("fine", 12)


async def test_named_message_is_left_out_and_the_turn_continues() -> None:
    model = NamedModel("main", refusing("messages[{at}]"))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        said, turn = await ask(hf, "Never mind. Hello?")
        assert said == "fine"
        assert strip_markers(model.prompts[-1][2]["content"]) == NOTE
        assert model.prompts[-1][0]["content"][1] == GOOD
        (warning,) = turn.summarize()["warnings"]
        assert warning["code"] == "message_left_out"
        assert "message 2 is left out of prompts for main" in warning["message"]
        (entry,) = await hf.store.entries(REF, start=2, stop=3)
        assert entry.metadata == {"refused_by": {"main": "400 invalid_image"}}
        assert "broken.png" in str(entry.message), "the log keeps it"
        await ask(hf, "Still there?")
        assert len(model.prompts) == 3, "the next turn is not refused"
        session = await hf.session("s")
        runs = [(run.first, run.decision, run.reason) for run in (await session.context()).decisions]
        assert (2, "refused", "400 invalid_image") in runs


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
async def test_error_that_names_no_message_goes_to_the_client(named: str, status: int) -> None:
    """It is not guessed which message was meant, and the log does not change."""
    model = NamedModel("main", refusing(named, status=status))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        with pytest.raises(ModelRejected, match="Invalid image"):
            await ask(hf, "Hello?")
        assert len(model.prompts) == 1
        assert [entry.metadata for entry in await hf.store.entries(REF)] == [None] * 4


async def test_refused_tool_result_and_call_are_replaced_by_legal_notes() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    for broken in ("call", "result"):
        model = NamedModel("main", refusing("messages[{at}]"))
        async with open_holdfast(model) as (hf, _):
            session = await hf.session("s")
            says = {"call": "see broken.png", "result": "ok"}[broken]
            told = {"call": "ok", "result": "broken.png"}[broken]
            await session.append({"role": "user", "content": "Look it up."})
            await session.append({"role": "assistant", "content": says, "tool_calls": calls})
            await session.append({"role": "tool", "tool_call_id": "c", "content": told})
            said, _ = await ask(hf, "Well?")
            assert said == "fine"
            roles = [message["role"] for message in model.prompts[-1]]
            assert roles == ["user", "assistant", "user" if broken == "call" else "tool", "user"]
            assert "tool_calls" not in model.prompts[-1][1] or broken == "result"


async def test_two_named_messages_are_both_left_out() -> None:
    model = NamedModel("main", refusing("messages[{at}]"))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf, {"role": "assistant", "content": "?"}, {"role": "user", "content": [BROKEN]})
        said, turn = await ask(hf, "Hello?")
        assert (said, len(model.prompts)) == ("fine", 3)
        assert [entry.seq for entry in await hf.store.entries(SessionRef("default", "s")) if entry.metadata] == [2, 4]
        assert len(turn.summarize()["warnings"]) == 2


async def test_message_is_not_recorded_if_a_fallback_answers() -> None:
    """It is not known then whether the model would have answered without it."""
    refuse = refusing("messages[{at}]")

    def fail(request: dict[str, Any]) -> Any:
        return refuse(request) if "broken.png" in str(request["messages"]) else ModelUnavailable("down", status=503)

    model, other = NamedModel("main", fail), NamedModel("other", "fine")
    async with open_holdfast(model, other) as (hf, _):
        await with_history(hf)
        said, _ = await ask(hf, "Hello?")
        assert said == "fine"
        assert other.prompts[-1][2]["content"][1] == BROKEN
        assert not any(entry.metadata for entry in await hf.store.entries(REF))


def refuse_with_shifted_number(shift: int) -> Callable[[dict[str, Any]], Any]:
    """A provider behind a router, whose error counts other messages: without the system message, or with merged ones."""

    def say(request: dict[str, Any]) -> Any:
        for at, message in enumerate(request["messages"]):
            if "broken.png" in str(message):
                says = f"AnthropicException: messages.{at - shift}.content.1.image.source.url: Could not download the image"
                return ModelRejected(f"the model answered 400: {says}", status=400, body={"message": says})
        return "fine"

    return say


@pytest.mark.parametrize(("shift", "calls"), [(1, 1), (-1, 2)])
async def test_wrong_message_number_leaves_the_log_as_it_is(shift: int, calls: int) -> None:
    """A router may number messages differently. Leaving out the one that is named does not help then, and is not recorded."""
    model = NamedModel("main", refuse_with_shifted_number(shift))
    async with open_holdfast(model) as (hf, _):
        session = await hf.session("s", system="Be brief.")
        await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, BROKEN]})
        await session.append({"role": "assistant", "content": "A harbour."})
        await session.append({"role": "user", "content": "And?"})
        with pytest.raises(ModelRejected):
            await ask(hf, "Never mind. Hello?")
        assert len(model.prompts) == calls
        assert not any(entry.metadata for entry in await hf.store.entries(REF))


async def test_summary_does_not_repeat_a_refused_message() -> None:
    async with open_holdfast(NamedModel("main", "fine")) as (hf, _):
        session = await hf.session("s")
        await session.append(
            [{"role": "user", "content": "The code is 4711."}, {"role": "assistant", "content": "Aye."}]
        )
        await session.append(
            [{"role": "user", "content": "The kraken sleeps."}, {"role": "assistant", "content": "Aye."}]
        )
        await session.annotate(2, refused_by=["main"])
        read = "\n".join(iter_records(group_units(await hf.store.entries(REF))))
        assert "4711" in read
        assert "kraken" not in read
