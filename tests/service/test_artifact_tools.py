"""Built-in artifact tools: saving and loading by the model, which agents have them, and loading tool results from the log."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.agents import Agent
from holdfast.context.settings import parse
from holdfast.errors import InvalidRequest, ModelUnavailable
from holdfast.holdfast import Holdfast
from holdfast.limits import LISTED_ARTIFACTS, LOADED_IMAGE_BYTES
from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import make_redactor
from holdfast.tools.artifacts import ArtifactTools
from holdfast.tools.context import State, ToolContext, TurnState
from holdfast.tools.tool import ToolLimits
from holdfast.turns.respond import collect_reply
from tests.amounts import examples
from tests.fake_secrets import KEY
from tests.markers import strip_markers
from tests.service.scripted_model import REF
from tests.service.tools_kit import Bench, bench, make_reply
from tests.service.workflow_kit import agents, open_workflow_bench

ALL = ("save_artifact", "load_artifact", "list_artifacts")
AGENTS = {"a": Agent(name="a", tools=ALL), "b": Agent(name="b"), "c": Agent(name="c", tools=("load_artifact",))}
PNG = b"\x89PNG\r\n\x1a\n" + bytes(40)


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


async def test_own_tool_replaces_a_built_in_artifact_tool() -> None:
    def load_artifact(name: str) -> str:
        """Load it from elsewhere."""
        return f"own {name}"

    async with bench(make_script(("load_artifact", {"name": "x"})), load_artifact, agents=AGENTS) as made:
        assert await run_calls(made, ("load_artifact", {})) == ["own x"]
    with pytest.raises(InvalidRequest, match="two tools are named 'load_artifact'"):
        Holdfast(tools=[load_artifact], artifact_tools=True)


# -- saving and loading ----------------------------------------------------------------


async def test_too_large_image_is_described() -> None:
    async with bench(make_script(("load_artifact", {"name": "p.png"})), agents=AGENTS) as made:
        await made.session.artifacts.save("p.png", PNG + bytes(LOADED_IMAGE_BYTES))
        (told,) = await run_calls(made, ("", 0))
        assert "4,194,304 bytes" in json.loads(told)["note"]


async def test_text_in_another_charset_is_only_read_as_a_whole() -> None:
    calls = [("load_artifact", {"name": "a.txt"}), ("load_artifact", {"name": "b.txt"})]
    async with bench(make_script(*calls), agents=AGENTS, limits=ToolLimits(result=1024)) as made:
        kind = "text/plain; charset=utf-16"
        await made.session.artifacts.save("a.txt", "Olá".encode("utf-16"), mime_type=kind)
        await made.session.artifacts.save("b.txt", ("Olá" * 900).encode("utf-16"), mime_type=kind)
        short, long = await run_calls(made, *calls)
        assert short == "Olá"
        assert "save it in UTF-8" in json.loads(long)["note"]


# -- long texts ------------------------------------------------------------------------


@settings(max_examples=examples(25), deadline=None)
@given(st.text(min_size=1, max_size=200), st.integers(min_value=16, max_value=64))
@example("000\x80\x80\x80\x80\x80\U00010000", 16)
async def test_parts_of_a_text_add_up_to_the_whole(text: str, limit: int) -> None:
    """No character is lost or split, and the returned offset continues correctly."""
    text = text.encode("utf-8", "replace").decode()
    async with Holdfast("sqlite://:memory:", clock=lambda: 1) as hf:
        session = await hf.session("s")
        await session.artifacts.save("t.txt", text)
        state = State(TurnState({}, {}))
        context = ToolContext(session_id="s", user_id="default", agent=None, state=state, artifacts=session.artifacts)
        parts, offset = "", 0
        while True:
            told = await ArtifactTools(None, 4096).load(context, "t.txt", offset=offset, limit=limit)
            assert isinstance(told, str)
            part, marker, about = told.rpartition("\n[bytes ")
            parts += part if marker else about
            if "offset=" not in about:
                break
            offset = int(about.partition("offset=")[2].removesuffix("]"))
        assert parts == text


# -- errors ----------------------------------------------------------------------------


async def test_artifact_list_is_truncated() -> None:
    async with bench(make_script(("list_artifacts", {}), ("list_artifacts", {"prefix": "b"})), agents=AGENTS) as made:
        for at in range(LISTED_ARTIFACTS + 5):
            await made.session.artifacts.save(f"a{at:04}", "x")
        await made.session.artifacts.save("b", "x")
        every, some = (json.loads(one) for one in await run_calls(made, *[("", 0)] * 2))
        assert (len(every["artifacts"]), every["more"]) == (LISTED_ARTIFACTS, 6)
        assert [one["name"] for one in some["artifacts"]] == ["b"]


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


async def test_results_of_a_branch_can_only_be_loaded_in_it() -> None:
    """Parallel agents do not see each other's messages, so they cannot load them either."""
    names = ("hope", "doubt")
    roster = agents(
        Agent(name="panel", parallel=names),
        *(Agent(name=name, instruction=f"I am {name}", tools=("many", "load_artifact")) for name in names),
    )
    load = make_reply(None, ("l", "load_artifact", {"name": "result-2"}))
    lines = {
        "hope": [LOOKS[0], make_reply("a"), load, make_reply("b")],
        "doubt": [make_reply("c"), load, make_reply("d")],
    }
    async with open_workflow_bench(lines, roster, many) as made:
        await made.ask("Hi", agent="panel")
        await made.ask("Again", agent="panel")
        told = {one.agent: one.message.text for one in await made.log() if one.message.tool_call_id == "l"}
        assert told["hope"] == "word0 " * 200
        assert "is not a tool result" in told["doubt"]


async def test_loading_a_multipart_and_an_erased_result() -> None:
    calls = [make_reply(None, ("l", "load_artifact", {"name": "result-2"})), "ok"] * 2
    async with bench(calls, agents=AGENTS) as made:
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(PNG).decode()}"}}
        await made.session.append(
            [
                {"role": "user", "content": "Look"},
                {"role": "assistant", "tool_calls": [_call()]},
                {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a map"}, picture]},
                {"role": "assistant", "content": "Seen."},
            ]
        )
        await made.ask("And?", agent="a")
        assert (await made.log())[-2].message.text == "a map\n[and 1 that are not text: images, recordings or files]"
        await made.hf.store.erase(REF, 2)
        await made.ask("Again?", agent="a")
        assert "is not a tool result" in (await made.log())[-2].message.text


def _call() -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


# -- artifacts of a reply --------------------------------------------------------------------


async def ask(made: Bench, text: str = "Hi", **fields: Any) -> tuple[dict[str, Any], Any]:
    """Run a turn; return its summary and the metadata of the reply's entry."""
    turn = made.turn(text, agent="a", **fields)
    await collect_reply(turn)
    return turn.summarize(), (await made.log())[-1].metadata


async def test_failure_message_lists_artifacts_saved_before() -> None:
    agents = {"a": Agent(name="a", tools=ALL, failure_message="Sorry.")}
    calls = [make_reply(None, ("c", "save_artifact", {"name": "a.md", "content": "1"})), [ModelUnavailable("down")]]
    async with bench(calls, agents=agents) as made:
        told, metadata = await ask(made)
        assert told["artifacts"] == metadata["artifacts"] == [{"name": "a.md", "version": 0}]
        assert metadata["source"] == "llm_failure"
