"""A message that the provider refuses does not block its session: it is left out, reported, and can be restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Llm, Roster
from holdfast.context.summaries import iter_records
from holdfast.context.units import group_units
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidMessage, ModelRejected
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


NAMES = ["messages[{at}].content[1].image_url", "messages.[{at}].content.[1]", "messages.{at}.content.1.image", ""]


@pytest.mark.parametrize("named", NAMES[:3])
async def test_message_named_by_the_error_is_left_out_and_the_turn_continues(named: str) -> None:
    model = NamedModel("main", refusing(named))
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


async def test_one_probe_without_the_oldest_new_media_message_finds_it() -> None:
    model = NamedModel("main", refusing())
    async with open_holdfast(model) as (hf, _):
        session = await hf.session("s")
        await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, GOOD]})
        await ask(hf, "What is on it?")
        before = len(model.prompts)
        await session.append({"role": "user", "content": [{"type": "text", "text": "And this?"}, BROKEN]})
        said, _ = await ask(hf, "Hello?")
        assert (said, len(model.prompts) - before) == ("fine", 2)
        refused = [entry.seq for entry in await hf.store.entries(REF) if entry.metadata]
        assert refused == [3]


async def test_refused_current_message_is_an_error_and_later_turns_work() -> None:
    model = NamedModel("main", refusing())
    async with open_holdfast(model) as (hf, _):
        await ask(hf, "Hi.")
        with pytest.raises(ModelRejected, match="Invalid image"):
            await ask(hf, "see broken.png")
        assert len(model.prompts) == 2, "nothing else is new, so there is no probe"
        said, turn = await ask(hf, "Without it, then.")
        assert said == "fine"
        assert turn.summarize()["warnings"][0]["code"] == "message_left_out"


async def test_named_current_message_is_an_error() -> None:
    model = NamedModel("main", refusing("messages[{at}].content"))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        await (await hf.session("s")).annotate(2, refused_by=["main"])
        with pytest.raises(ModelRejected):
            await ask(hf, "see broken.png")
        assert len(model.prompts) == 1


@pytest.mark.parametrize(
    ("says", "status"),
    [
        ("Incorrect API key provided.", 401),
        ("You exceeded your current quota.", 429),
        ("tools.0.function.parameters: invalid schema", 400),
        ("temperature must be at most 1 for this message", 400),
        ("Unsupported parameter: 'frequency_penalty'.", 400),
        ("Not found", 404),
    ],
)
async def test_errors_that_are_not_about_messages_cause_no_probe(says: str, status: int) -> None:
    model = NamedModel("main", refusing(says=says, status=status))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        with pytest.raises(ModelRejected):
            await ask(hf, "Hello?")
        assert len(model.prompts) == 1


async def test_unsuccessful_probe_is_the_only_one_and_changes_nothing() -> None:
    model = NamedModel("main", ModelRejected("400: Invalid image.", status=400, body={"message": "Invalid image."}))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf)
        with pytest.raises(ModelRejected, match="Invalid image"):
            await ask(hf, "Hello?")
        assert len(model.prompts) == 2
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


async def test_other_upstreams_get_the_message_and_it_can_be_restored(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"

    def open_with(*models: NamedModel) -> Holdfast:
        llms = {model.name: Llm(name=model.name, model="gpt-4o", client=model) for model in models}
        return Holdfast(url, roster=Roster(llms, {}))

    async with open_with(NamedModel("main", refusing("messages[{at}]"))) as hf:
        await with_history(hf)
        await ask(hf, "Hello?", model="main")
    main, other = NamedModel("main", "fine"), NamedModel("other", "fine")
    async with open_with(main, other) as hf:
        await ask(hf, "Again?", model="main")
        assert strip_markers(main.prompts[-1][2]["content"]) == NOTE, "it survives a restart"
        await ask(hf, "And you?", model="other")
        assert other.prompts[-1][2]["content"][1] == BROKEN
        session = await hf.session("s")
        with pytest.raises(InvalidMessage, match="refused_by"):
            await session.annotate(2, refused_by="main")
        entry = await session.annotate(2, refused_by=[])
        assert entry.metadata is None
        await ask(hf, "Now?", model="main")
        assert main.prompts[-1][2]["content"][1] == BROKEN


async def test_two_named_messages_are_both_left_out() -> None:
    model = NamedModel("main", refusing("messages[{at}]"))
    async with open_holdfast(model) as (hf, _):
        await with_history(hf, {"role": "assistant", "content": "?"}, {"role": "user", "content": [BROKEN]})
        said, turn = await ask(hf, "Hello?")
        assert (said, len(model.prompts)) == ("fine", 3)
        assert [entry.seq for entry in await hf.store.entries(SessionRef("default", "s")) if entry.metadata] == [2, 4]
        assert len(turn.summarize()["warnings"]) == 2


def refuse_with_shifted_number(shift: int) -> Callable[[dict[str, Any]], Any]:
    """A provider behind a router, whose error counts other messages: without the system message, or with merged ones."""

    def say(request: dict[str, Any]) -> Any:
        for at, message in enumerate(request["messages"]):
            if "broken.png" in str(message):
                says = f"AnthropicException: messages.{at - shift}.content.1.image.source.url: Could not download the image"
                return ModelRejected(f"the model answered 400: {says}", status=400, body={"message": says})
        return "fine"

    return say


@pytest.mark.parametrize(("shift", "calls"), [(1, 2), (-1, 3)])
async def test_wrong_message_number_is_followed_by_a_probe(shift: int, calls: int) -> None:
    model = NamedModel("main", refuse_with_shifted_number(shift))
    async with open_holdfast(model) as (hf, _):
        session = await hf.session("s", system="Be brief.")
        await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, BROKEN]})
        await session.append({"role": "assistant", "content": "A harbour."})
        await session.append({"role": "user", "content": "And?"})
        said, turn = await ask(hf, "Never mind. Hello?")
        assert (said, len(model.prompts)) == ("fine", calls)
        assert [entry.seq for entry in await hf.store.entries(REF) if entry.metadata] == [0], "not the named one"
        assert len(turn.summarize()["warnings"]) == 1


async def test_each_turn_probes_another_message_until_one_succeeds() -> None:
    """For an imported session with several pictures, the provider does not say which one it refuses."""
    model = NamedModel("main", refusing())
    async with open_holdfast(model) as (hf, _):
        session = await hf.session("s")
        for part in (GOOD, BROKEN, GOOD):
            await session.append({"role": "user", "content": [{"type": "text", "text": "Look."}, part]})
            await session.append({"role": "assistant", "content": "A harbour."})
        with pytest.raises(ModelRejected, match="Invalid image"):
            await ask(hf, "Hello?")
        said, _ = await ask(hf, "Hello again?")
        assert (said, len(model.prompts)) == ("fine", 4)
        assert [entry.seq for entry in await hf.store.entries(REF) if entry.metadata] == [2]


async def test_prompt_refused_by_a_content_filter_is_probed() -> None:
    """Azure names the parameter `prompt`, whichever message its filter found."""
    body = {
        "message": "The prompt triggered the content management policy.",
        "param": "prompt",
        "code": "content_filter",
    }

    def reply_unless_filtered(request: dict[str, Any]) -> Any:
        if any("kraken" in str(message["content"]) for message in request["messages"]):
            return ModelRejected("the model answered 400", status=400, body=body)
        return "fine"

    model = NamedModel("main", reply_unless_filtered)
    async with open_holdfast(model) as (hf, _):
        await ask(hf, "Hi.")
        with pytest.raises(ModelRejected):
            await ask(hf, "Tell me of the kraken.")
        said, _ = await ask(hf, "Something else, then.")
        assert said == "fine"
        (entry,) = [entry for entry in await hf.store.entries(REF) if entry.metadata]
        assert entry.metadata == {"refused_by": {"main": "400 content_filter"}}


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
