"""Built-in artifact tools: saving and loading by the model, which agents have them, and loading tool results from the log."""

from __future__ import annotations

import base64
import json
from typing import Any

from holdfast.agents import Agent
from holdfast.context.settings import parse
from holdfast.secrets import Guard, make_redactor
from holdfast.turns.respond import respond
from tests.fake_secrets import KEY
from tests.markers import strip_markers
from tests.service.tools_kit import Bench, bench, make_reply

ALL = ("save_artifact", "load_artifact", "list_artifacts")
AGENTS = {"a": Agent(name="a", tools=ALL), "b": Agent(name="b"), "c": Agent(name="c", tools=("load_artifact",))}


async def run_calls(made: Bench, *calls: tuple[str, Any], agent: str = "a", text: str = "Hi") -> list[str]:
    """Send a message to a bench whose script makes these calls, and return the tool results."""
    await made.ask(text, agent=agent)
    return [entry.message.text for entry in (await made.log()) if entry.message.role == "tool"][-len(calls) :]


def make_script(*calls: tuple[str, Any]) -> list[Any]:
    """Return replies that make each of these calls in a message of its own, then end."""
    return [*(make_reply(None, (f"c{at}", name, given)) for at, (name, given) in enumerate(calls)), make_reply("done")]


async def run_in_new_session(*calls: tuple[str, Any], **how: Any) -> list[str]:
    """Run the calls in a new session and return the tool results."""
    async with bench(make_script(*calls), agents=AGENTS, **how) as made:
        return await run_calls(made, *calls)


# -- availability --------------------------------------------------------------------


# -- saving and loading ----------------------------------------------------------------


# -- long texts ------------------------------------------------------------------------


# -- errors ----------------------------------------------------------------------------


async def test_secrets_are_redacted_before_saving() -> None:
    told, binary = await run_in_new_session(
        ("save_artifact", {"name": "a.txt", "content": f"the key is {KEY}"}),
        ("save_artifact", {"name": "b.txt", "content": base64.b64encode(KEY.encode()).decode(), "encoding": "base64"}),
        guard=(guard := Guard(make_redactor(), None)),
    )
    assert "secrets were removed" in json.loads(told)["note"]
    assert "secrets were removed" in json.loads(binary)["note"]
    calls = [("save_artifact", {"name": "a.txt", "content": f"{KEY} é"}), ("load_artifact", {"name": "b.txt"})]
    async with bench(make_script(*calls), agents=AGENTS, guard=guard) as made:
        await made.session.artifacts.save("b.txt", f"saved by somebody: {KEY}")
        _, loaded = await run_calls(made, *calls)
        assert KEY.encode() not in (await made.session.artifacts.load("a.txt")).data
        assert "saved by somebody" in loaded
        assert KEY not in loaded
        assert all(KEY not in str(prompt) for prompt in made.model.prompts)


# -- results cut from the prompt ------------------------------------------------------------


def make_clearing_agents(tools: tuple[str, ...]) -> dict[str, Agent]:
    context = parse({"strategy": "clear_tool_results", "trigger": 200, "keep": 1, "clear_at_least": 50}, where="")
    return {"a": Agent(name="a", tools=tools, context=context)}


def many(text: str) -> str:
    """Say it many times."""
    return f"{text} " * 200


LOOKS = [make_reply(None, (f"c{at}", "many", {"text": f"word{at}"})) for at in range(3)]


async def test_cleared_result_can_be_loaded_by_the_name_in_its_marker() -> None:
    load = make_reply(None, ("l", "load_artifact", {"name": "result-2"}))
    async with bench(
        [*LOOKS, load, make_reply("done")], many, agents=make_clearing_agents(("many", "load_artifact"))
    ) as made:
        await made.ask("Hi", agent="a")
        marker = next(strip_markers(one["content"]) for one in made.model.prompts[-2] if one["role"] == "tool")
        assert marker.startswith("[result of many cleared: ")
        assert marker.endswith('; load_artifact("result-2") gives it back]')
        assert (await made.log())[-2].message.text == (await made.log())[2].message.text == "word0 " * 200


async def test_cut_result_says_how_to_load_it() -> None:
    context = parse({"strategy": "token_window", "budget": 400}, where="")
    load = make_reply(None, ("l", "load_artifact", {"name": "result-2", "limit": 100}))
    for tools, told in (
        (("many", "load_artifact"), 'load_artifact("result-2")'),
        (("many",), "message 2 of the session"),
    ):
        replies = [LOOKS[0], load, make_reply("done")] if "load_artifact" in tools else [LOOKS[0], make_reply("done")]
        async with bench(replies, many, agents={"a": Agent(name="a", tools=tools, context=context)}) as made:
            await made.ask("Hi", agent="a")
            result = next(strip_markers(one["content"]) for one in made.model.prompts[1] if one["role"] == "tool")
            assert f"characters cut, {told} …]" in result
            if "load_artifact" in tools:
                assert (
                    "[bytes 0 to 100 of 1200 of result-2; continue with offset=100]"
                    in (await made.log())[-2].message.text
                )


async def test_only_live_results_of_this_session_can_be_loaded() -> None:
    async with bench(
        [LOOKS[0], "done", make_reply(None, ("l", "load_artifact", {"name": "result-2"})), "ok"], many
    ) as made:
        made.hf.roster.agents["a"] = AGENTS["c"]
        await made.ask("Hi")
        other = await made.hf.session("t", agent="a")
        await other.send("Hello")
        assert "is not a tool result" in next(one["content"] for one in await other.messages() if one["role"] == "tool")
    calls = ["first", LOOKS[0], "done", make_reply(None, ("l", "load_artifact", {"name": "result-4"})), "ok"]
    async with bench(calls, many, agents={"a": Agent(name="a", tools=("many", "load_artifact"))}) as made:
        await made.ask("First", agent="a")
        await made.ask("Hi", agent="a")
        assert (await made.log())[4].message.text.startswith("word0")
        await made.session.rewind(0)
        await made.ask("Anew", agent="a")
        assert "is not a tool result" in (await made.log())[-2].message.text, "it is retired"


# -- artifacts of a reply --------------------------------------------------------------------


async def ask(made: Bench, text: str = "Hi", **fields: Any) -> tuple[dict[str, Any], Any]:
    """Run a turn; return its summary and the metadata of the reply's entry."""
    turn = made.turn(text, agent="a", **fields)
    async for _ in respond(turn):
        pass
    return turn.summarize(), (await made.log())[-1].metadata
