"""One session through both APIs: what either client resends matches the log."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import CLAUDE, Served, apis

THOUGHT = {"type": "thinking", "thinking": "Oslo is in Norway.", "signature": "c2lnbmVk"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"town": {"type": "string"}}}
OURS = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
THEIRS = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}}
THINK: dict[str, Any] = {"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 1024}}


class Histories:
    """The conversation as each kind of client keeps it."""

    def __init__(self) -> None:
        self.openai: list[Any] = []
        self.anthropic: list[Any] = []

    def says(self, text: str) -> None:
        """Add a user message."""
        self.openai.append({"role": "user", "content": text})
        self.anthropic.append({"role": "user", "content": [{"type": "text", "text": text}]})

    def add_reply(self, text: str, *, blocks: Any = None) -> None:
        """Add the model's reply; the Messages API may have more than text."""
        self.openai.append({"role": "assistant", "content": text})
        self.anthropic.append({"role": "assistant", "content": blocks or [{"type": "text", "text": text}]})


def options(model: str, stream: bool, named: bool) -> dict[str, Any]:
    return {"model": model, "tools": [OURS], "stream": stream, **({"session_id": "s"} if named else {}), **THINK}


@pytest.mark.parametrize("named", [True, False], ids=["named", "recognised"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_session_alternates_between_both_apis(named: bool, stream: bool) -> None:
    """OpenAI's client, then Anthropic's, with tools and reasoning, and back: one log without edits."""
    script = [
        Reply(text="Let me see.", tool_calls=[("weather", {"town": "Oslo"})], message={"thinking_blocks": [THOUGHT]}),
        Reply(text="Rain.", message={"thinking_blocks": [{**THOUGHT, "thinking": "wet"}]}),
        Reply(text="Certain.", message={"thinking_blocks": [THOUGHT]}),
    ]
    gpt = ["Hello.", "Bring a coat.", Reply(tool_calls=[("weather", {"town": "Rome"})]), "Sun."]
    async with apis(gpt, script) as both:
        kept = Histories()
        kept.says("Hi")
        first = await both.openai.chat.completions.create(
            model="gpt-4o", messages=kept.openai, extra_body={"session_id": "s"} if named else {}
        )
        session = first.session_id
        kept.add_reply(first.choices[0].message.content)

        kept.says("Is it raining?")
        asked = await both.ask(kept.anthropic, **options(CLAUDE, stream, named))
        result = {"type": "tool_result", "tool_use_id": asked.content[-1].id, "content": "rain"}
        rounds = [
            *kept.anthropic,
            {"role": "assistant", "content": asked.content},
            {"role": "user", "content": [result]},
        ]
        answer = await both.ask(rounds, **options(CLAUDE, stream, named))
        kept.add_reply("Rain.", blocks=answer.content)
        assert [block.type for block in answer.content] == ["thinking", "text"]

        kept.says("What do I need?")
        third = await both.openai.chat.completions.create(
            model="gpt-4o", messages=kept.openai, extra_body={"session_id": "s"} if named else {}
        )
        assert (third.session_id, third.session["reconciled"]) == (session, "continued")
        kept.add_reply("Bring a coat.")

        kept.says("Sure?")
        fourth = await both.ask(kept.anthropic, **options(CLAUDE, False, named))
        assert (fourth.session_id, fourth.session["reconciled"]) == (session, "continued")
        kept.add_reply("Certain.", blocks=fourth.content)

        kept.says("And in Rome?")
        called = await both.openai.chat.completions.create(
            model="gpt-4o", messages=kept.openai, tools=[THEIRS], extra_body={"session_id": "s"} if named else {}
        )
        # The result of a call that one client received arrives through the other API.
        (call,) = called.choices[0].message.tool_calls
        use = {"type": "tool_use", "id": call.id, "name": "weather", "input": {"town": "Rome"}}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sun"}]}
        rounds = [*kept.anthropic, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        last = await both.ask(rounds, **{**options("gpt-4o", stream, named), "thinking": {"type": "disabled"}})
        assert last.content[-1].text == "Sun."

        await check_log(both, session)


async def check_log(both: Served, session: str) -> None:
    """Check that the log has everything once, in order, with a valid chain, and that no prompt was refused or
    duplicated.
    """
    entries = await both.entries(session, retired=True)
    assert all(entry.get("retired_by") is None for entry in entries)
    roles = [entry["role"] for entry in entries]
    turn = ["user", "assistant"]
    tools = ["user", "assistant", "tool", "assistant"]
    assert roles == [*turn, *tools, *turn, *turn, *tools]
    assert await (await both.native.session(session)).verify() == len(entries)
    assert both.claude.violations == []
    for request in both.claude.requests:
        blocks = [block for message in request.body["messages"] for block in message["content"]]
        thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
        assert len(thoughts) <= 2
        assert len(thoughts) == len(set(thoughts))
    for request in both.upstream.requests:
        for message in request.body["messages"]:
            assert set(message) <= {"role", "content", "tool_calls", "tool_call_id"}
            parts = message["content"] if isinstance(message["content"], list) else []
            assert all(set(part) == {"type", "text"} for part in parts)


async def test_tool_results_with_client_made_ids_are_aligned() -> None:
    """They are not duplicated, and new results get the log's ids."""
    async with apis([Reply(tool_calls=[("weather", {"town": "Oslo"})]), "Rain."]) as both:
        history: list[Any] = [{"role": "user", "content": "Is it raining?"}]
        asked = await both.ask(history, tools=[OURS], session_id="s")
        use = {"type": "tool_use", "id": "toolu_mine", "name": "weather", "input": {"town": "Oslo"}}
        history += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_mine", "content": "rain"}]},
        ]
        await both.ask(history, tools=[OURS], session_id="s")
        entries = await both.entries("s")
        assert [entry["role"] for entry in entries] == ["user", "assistant", "tool", "assistant"]
        assert entries[2]["tool_call_id"] == asked.content[0].id


async def test_split_or_trimmed_text_matches_the_log() -> None:
    """Text blocks are joined, and trailing white space is ignored."""
    async with apis(["One two. ", "Three."]) as both:
        await both.ask("Hi")
        blocks = [{"type": "text", "text": "One "}, {"type": "text", "text": "two."}]
        history = [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": blocks},
        ]
        again = await both.ask([*history, {"role": "user", "content": "Go on"}])
        assert again.session["reconciled"] == "continued"
