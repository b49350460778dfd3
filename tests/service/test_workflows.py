"""Workflows of agents, sequential and parallel: their log, and what the client sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent, Llm, Roster
from holdfast.domain.session import HAND_OVER, TRANSFER
from holdfast.errors import InvalidRequest, ModelUnavailable
from holdfast.holdfast import Holdfast
from holdfast.models import Collector
from holdfast.turns.reply_assembler import Progress
from holdfast.turns.respond import respond
from holdfast.turns.workflow import HANDED_OVER
from tests.service.scripted_model import REF
from tests.service.tools_kit import THEIRS, content, make_reply, short, shout
from tests.service.turns_kit import SHARED
from tests.service.workflow_kit import (
    DOWN,
    PANEL,
    PIPELINE,
    agents,
    check_units,
    describe_entries,
    get_agent,
    get_prompt,
    open_workflow_bench,
)
from tests.stores.servers import place

# -- sequential ----------------------------------------------------------------------


async def test_sequence_returns_the_reply_of_its_last_agent() -> None:
    """One turn; the other texts are stored as a call and a result that no client sees, and each agent sees the texts
    before it.
    """
    lines = {"draft": make_reply("A draft."), "check": make_reply("A check."), "polish": make_reply("Polished.")}
    async with open_workflow_bench(lines, PIPELINE) as desk:
        completion = await desk.ask("Write!", agent="pipeline")
        assert content(completion) == "Polished."
        assert completion["usage"]["prompt_tokens"] == 30
        assert describe_entries(await desk.log()) == [
            "None user: Write!",
            f"draft assistant {HAND_OVER}(hand_over_draft): A draft. step=draft returned=[]",
            f"draft tool hand_over_draft: {HANDED_OVER} step=draft",
            f"check assistant {HAND_OVER}(hand_over_check): A check. step=check returned=[]",
            f"check tool hand_over_check: {HANDED_OVER} step=check",
            "polish assistant: Polished.",
        ]
        assert {entry.turn_id for entry in await desk.log()} == {0}
        assert get_prompt(desk, "polish") == [
            "user: Write!",
            "user: [agent draft]: A draft.",
            "user: [agent check]: A check.",
        ]
        assert await desk.session.verify() == 6
        assert len(await desk.hf.store.calls(REF)) == 3
        assert (await desk.hf.store.get(REF)).claim is None


async def test_next_turn_runs_the_whole_sequence_again() -> None:
    """Each agent sees its own text of the turn before as its own, and the others' as quotes."""
    lines = {
        "draft": [make_reply("D1."), make_reply("D2.")],
        "check": [make_reply("C1."), make_reply("C2.")],
        "polish": [make_reply("P1."), make_reply("P2.")],
    }
    async with open_workflow_bench(lines, PIPELINE) as desk:
        await desk.ask("one", agent="pipeline")
        assert content(await desk.ask("two", agent="pipeline")) == "P2."
        assert get_prompt(desk, "check") == [
            "user: one",
            "user: [agent draft]: D1.",
            "assistant: C1.",
            "user: [agent polish]: P1.",
            "user: two",
            "user: [agent draft]: D2.",
        ]
        assert [entry.turn_id for entry in await desk.log()] == [0] * 6 + [1] * 6


async def test_output_key_passes_values_to_later_agents() -> None:
    """The output is inserted into later instructions; `temp:` keys last for the turn only."""
    roster = agents(
        Agent(name="pipeline", sequence=("draft", "check", "polish")),
        Agent(name="draft", instruction="I am draft", output_key="text"),
        Agent(name="check", instruction="I am check of <{text}>", output_key="temp:verdict"),
        Agent(name="polish", instruction="I am polish of <{text}> with <{temp:verdict}>"),
    )
    async with open_workflow_bench(
        {"draft": make_reply("D."), "check": make_reply("C."), "polish": make_reply("P.")}, roster
    ) as desk:
        await desk.ask("go", agent="pipeline")
        told_first = [prompt[0]["content"] for prompt in desk.model.prompts]
        assert told_first == ["I am draft", "I am check of <D.>", "I am polish of <D.> with <C.>"]
        assert (await desk.session.info()).state == {"text": "D."}


async def test_each_agent_has_its_own_tool_rounds() -> None:
    """The client sees only those of the last agent; texts next to other agents' calls are not part of the reply."""
    lines = {
        "draft": [make_reply("Let me see.", ("d", "shout", {"text": "x"})), make_reply("A draft.")],
        "check": make_reply("Fine."),
        "polish": [make_reply("One moment.", ("p", "shout", {"text": "y"})), make_reply("Polished.")],
    }
    async with open_workflow_bench(lines, PIPELINE, shout) as desk:
        assert content(await desk.ask("go", agent="pipeline")) == "One moment.\n\nPolished."
        log = await desk.log()
        assert [short(entry) for entry in log[1:5]] == [
            "assistant shout(d): Let me see.",
            "tool d: X",
            f"assistant {HAND_OVER}(hand_over_draft): A draft.",
            f"tool hand_over_draft: {HANDED_OVER}",
        ]
        assert {(entry.metadata or {}).get("step") for entry in log[1:5]} == {"draft"}
        assert log[-1].metadata == {"preface": "One moment.\n\n"}
        cut = await desk.session.interrupt("One mom")
        assert cut.entry is not None
        assert cut.entry.message.content == "One mom"
        assert [short(entry) for entry in (await desk.log())[:-1]] == [short(entry) for entry in log[:7]]


async def test_progress_names_the_speaking_agent_on_request() -> None:
    """It contains nothing of what the agents say."""
    lines = {
        "draft": make_reply("Secret draft."),
        "check": make_reply("Secret check."),
        "polish": make_reply("Polished."),
    }
    async with open_workflow_bench(lines, PIPELINE) as desk:
        turn = desk.turn("go", agent="pipeline")
        turn.progress = True
        chunks = [chunk async for chunk in respond(turn)]
        assert [chunk.comment for chunk in chunks if isinstance(chunk, Progress)] == [
            "agent draft running",
            "agent draft done",
            "agent check running",
            "agent check done",
        ]
        assert "Secret" not in str(chunks)
        assert turn.summarize()["agent"] == "polish"
        plain = desk.turn("go", agent="pipeline")
        assert not any([isinstance(chunk, Progress) async for chunk in respond(plain)])


async def test_client_tool_in_the_middle_is_returned_and_resumed() -> None:
    """The turn ends with the call; with its result the same agent continues, and earlier agents are not asked again."""
    lines = {
        "draft": make_reply("A draft."),
        "check": [make_reply("I look.", ("k", "open_door", {})), make_reply("It is open.")],
        "polish": make_reply("Polished."),
    }
    async with open_workflow_bench(lines, PIPELINE) as desk:
        completion = await desk.ask("go", agent="pipeline", body={"tools": THEIRS})
        message = completion["choices"][0]["message"]
        assert completion["choices"][0]["finish_reason"] == "tool_calls"
        assert [call["function"]["name"] for call in message["tool_calls"]] == ["open_door"]
        assert not message.get("content")
        assert completion["usage"]["prompt_tokens"] == 20
        result = {"role": "tool", "tool_call_id": "k", "content": "opened"}
        assert content(await desk.ask(result, agent="pipeline", body={"tools": THEIRS})) == "Polished."
        assert [get_agent({"messages": prompt}) for prompt in desk.model.prompts] == [
            "draft",
            "check",
            "check",
            "polish",
        ]
        assert await desk.session.verify() == 8


async def test_keyed_retry_returns_the_same_call_without_hidden_text() -> None:
    """The text next to the call is only for the other agents."""
    lines = {
        "draft": make_reply("A draft."),
        "check": make_reply("I look.", ("k", "open_door", {})),
        "polish": make_reply("Polished."),
    }
    async with open_workflow_bench(lines, PIPELINE) as desk:
        how: Any = {"agent": "pipeline", "body": {"tools": THEIRS}, "idempotency_key": "k", "fingerprint": b"f"}
        first, again = await desk.ask("go", **how), await desk.ask("go", **how)
        for completion in (first, again):
            message = completion["choices"][0]["message"]
            assert (message.get("content"), message["tool_calls"][0]["id"]) == (None, "k")
        assert len(desk.model.prompts) == 2


async def test_call_after_a_handover_belongs_to_the_same_reply() -> None:
    """All chunks of a reply have one header and one role, whichever agent calls the client's tool."""
    roster = agents(Agent(name="chief", instruction="I am chief", sub_agents=("pipeline",)), *PIPELINE.values())
    over = ("t", TRANSFER, {"agent_name": "pipeline"})
    lines = {"chief": make_reply("Over.", over), "draft": make_reply("D.", ("k", "open_door", {}))}
    async with open_workflow_bench(lines, roster) as desk:
        chunks = [chunk async for chunk in respond(desk.turn("go", agent="chief", body={"tools": THEIRS}))]
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert sum("role" in delta for delta in deltas) == 1
        assert "".join(delta.get("content") or "" for delta in deltas) == "Over."
        assert [call["id"] for delta in deltas for call in delta.get("tool_calls") or ()] == ["k"]


# -- parallel ------------------------------------------------------------------------


async def test_parallel_agents_do_not_see_each_other_and_the_reply_joins_them() -> None:
    """Each has its own branch; the reply has both, in the order of the configuration."""
    lines = {"hope": make_reply("All is well."), "doubt": make_reply("All is lost.")}
    async with open_workflow_bench(lines, PANEL) as desk:
        completion = await desk.ask("How is it?", agent="panel")
        assert content(completion) == "**hope**\n\nAll is well.\n\n**doubt**\n\nAll is lost."
        assert completion["usage"]["prompt_tokens"] == 20
        rows = describe_entries(await desk.log())
        assert rows[0] == "None user: How is it?"
        assert sorted(rows[1:5]) == sorted(
            [
                f"hope assistant {HAND_OVER}(hand_over_hope): All is well. step=hope branch=panel.hope joined=True returned=[]",
                f"hope tool hand_over_hope: {HANDED_OVER} step=hope branch=panel.hope joined=True",
                f"doubt assistant {HAND_OVER}(hand_over_doubt): All is lost. step=doubt branch=panel.doubt joined=True returned=[]",
                f"doubt tool hand_over_doubt: {HANDED_OVER} step=doubt branch=panel.doubt joined=True",
            ]
        )
        assert rows[5] == "panel assistant: **hope**\n\nAll is well.\n\n**doubt**\n\nAll is lost."
        assert get_prompt(desk, "hope") == get_prompt(desk, "doubt") == ["user: How is it?"]
        assert (await desk.session.info()).claim is None
        assert await desk.session.verify() == 6


async def test_parallel_models_are_called_at_the_same_time() -> None:
    """Each answers only after the others were called too."""
    names = tuple(f"b{at}" for at in range(12))
    roster = agents(
        Agent(name="many", parallel=names), *(Agent(name=name, instruction=f"I am {name}") for name in names)
    )
    met = asyncio.Barrier(len(names))

    class Meeting:
        name = "meeting"

        async def stream(self, request: dict[str, Any], *, headers: Any = None) -> AsyncIterator[dict[str, Any]]:
            await met.wait()
            for chunk in make_reply(f"{get_agent(request)} was here."):
                yield chunk

        async def close(self) -> None:
            """Nothing."""

    made = Roster({"default": Llm(name="default", model="gpt-4o", client=Meeting())}, roster)
    async with Holdfast("sqlite://:memory:", roster=made) as hf:
        session = await hf.session("s", agent="many")
        completion = await session.send("go")
        assert all(f"**{name}**\n\n{name} was here." in content(completion) for name in names)
        assert await session.verify() == 2 + 2 * len(names)


async def test_results_follow_their_calls_in_parallel_branches() -> None:
    """With slow and fast tools in many branches, every unit of the log is complete."""
    names = tuple(f"b{at}" for at in range(8))
    roster = agents(
        Agent(name="many", parallel=names), *(Agent(name=name, instruction=f"I am {name}") for name in names)
    )

    async def slow(turns: int) -> str:
        """Take a while."""
        for _ in range(turns):
            await asyncio.sleep(0)
        return "ok"

    lines: dict[str, Any] = {
        name: [
            make_reply("First.", (f"{name}-1", "slow", {"turns": 7 * at}), (f"{name}-2", "slow", {"turns": 3})),
            make_reply("Second.", (f"{name}-3", "slow", {"turns": 50 - 5 * at})),
            make_reply(f"{name} is done."),
        ]
        for at, name in enumerate(names)
    }
    async with open_workflow_bench(lines, roster, slow) as desk:
        completion = await desk.ask("go", agent="many")
        assert all(f"{name} is done." in content(completion) for name in names)
        log = await desk.log()
        check_units(log)
        assert len(log) == 1 + 8 * (3 + 2 + 2) + 1
        assert desk.hf.engine.locks.is_empty
        for name in names:
            mine = [entry.agent for entry in log if (entry.metadata or {}).get("branch") == f"many.{name}"]
            assert mine == [name] * 7


async def test_failed_agent_is_named_and_the_others_continue() -> None:
    """The reply and the following agents see a note in its place."""
    async with open_workflow_bench({"hope": make_reply("All is well."), "doubt": DOWN}, PANEL) as desk:
        completion = await desk.ask("go", agent="panel")
        gone = "[agent doubt did not answer: upstream_unavailable]"
        assert content(completion) == f"**hope**\n\nAll is well.\n\n**doubt**\n\n{gone}"
        assert gone in [entry.message.text for entry in await desk.log() if entry.agent == "doubt"]
        assert desk.hf.engine.locks.is_empty


async def test_turn_fails_with_the_first_error_if_all_agents_fail() -> None:
    """First by the order of the configuration; the log has only the user's message."""
    other = ModelUnavailable("http://model answered 500: other", status=500)
    async with open_workflow_bench({"hope": DOWN, "doubt": other}, PANEL) as desk:
        with pytest.raises(ModelUnavailable, match="503"):
            await desk.ask("go", agent="panel")
        assert await desk.describe_log() == ["user: go"]
        assert (await desk.session.info()).claim is None


@pytest.mark.parametrize(("whose", "said_by"), [("panel", "panel"), ("hope", "hope"), ("doubt", None)])
async def test_failure_message_replaces_the_reply(whose: str, said_by: str | None) -> None:
    """It is the workflow's own, or else that of the first agent that failed."""
    roster = {
        name: Agent(**{**_fields(one), **({"failure_message": "Sorry!"} if name == whose else {})})
        for name, one in PANEL.items()
    }
    async with open_workflow_bench({"hope": DOWN, "doubt": DOWN}, roster) as desk:
        turn, collector = desk.turn("go", agent="panel"), Collector()
        if said_by is None:
            with pytest.raises(ModelUnavailable):
                _ = [chunk async for chunk in respond(turn)]
            return
        async for chunk in respond(turn):
            collector.add(chunk)
        assert content(collector.build_completion()) == "Sorry!"
        last = (await desk.log())[-1]
        assert (last.agent, (last.metadata or {})["source"]) == (said_by, "llm_failure")
        assert "step" not in (last.metadata or {})
        assert turn.summarize()["failure"]["code"] == "upstream_unavailable"
        assert turn.closed


def _fields(agent: Agent) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in agent.__struct_fields__}


# -- nested --------------------------------------------------------------------------

NESTED = agents(
    Agent(name="whole", sequence=("plan", "panel", "verdict")),
    Agent(name="plan", instruction="I am plan"),
    Agent(name="panel", parallel=("hope", "grounds")),
    Agent(name="hope", instruction="I am hope"),
    Agent(name="grounds", sequence=("facts", "inner")),
    Agent(name="facts", instruction="I am facts"),
    Agent(name="inner", parallel=("left", "right")),
    Agent(name="left", instruction="I am left"),
    Agent(name="right", instruction="I am right"),
    Agent(name="verdict", instruction="I am verdict"),
)
SAYING = {name: make_reply(f"{name}!") for name in ("plan", "hope", "facts", "left", "right", "verdict")}


async def test_nested_sequences_and_parallels() -> None:
    """Each branch name includes the path to its agent; each agent sees what it should."""
    async with open_workflow_bench(SAYING, NESTED) as desk:
        assert content(await desk.ask("go", agent="whole")) == "verdict!"
        branches = {entry.agent: (entry.metadata or {}).get("branch") for entry in (await desk.log())[1:]}
        assert branches == {
            "plan": None,
            "hope": "panel.hope",
            "facts": "panel.grounds",
            "left": "panel.grounds.inner.left",
            "right": "panel.grounds.inner.right",
            "verdict": None,
        }
        assert get_prompt(desk, "hope") == ["user: go", "user: [agent plan]: plan!"]
        assert get_prompt(desk, "left") == ["user: go", "user: [agent plan]: plan!", "user: [agent facts]: facts!"]
        assert sorted(get_prompt(desk, "verdict")[2:]) == [
            f"user: [agent {name}]: {name}!" for name in ("facts", "hope", "left", "right")
        ]
        assert await desk.session.verify() == 12


async def test_parallel_at_the_end_of_a_sequence_is_the_reply() -> None:
    """A branch that is a workflow contributes the text of its last agents; the next turn sees only the reply."""
    roster = {**NESTED, "whole": Agent(name="whole", sequence=("plan", "panel"))}
    async with open_workflow_bench(SAYING, roster) as desk:
        completion = await desk.ask("go", agent="whole")
        inner = "**left**\n\nleft!\n\n**right**\n\nright!"
        assert content(completion) == f"**hope**\n\nhope!\n\n**grounds**\n\n{inner}"
        await desk.ask("again", agent="whole")
        assert get_prompt(desk, "plan")[:3] == [
            "user: go",
            "assistant: plan!",
            "user: [agent panel]: **hope**\n\n  hope!\n\n  **grounds**\n\n  **left**\n\n  left!\n\n  **right**\n\n  right!",
        ]


@SHARED
async def test_nested_workflow_with_tools_works_on_every_store(kind: str, tmp_path: Path) -> None:
    """Concurrent branches write complete units and one reply, and the next turn continues from it."""

    def lines(name: str) -> list[Any]:
        return [
            make_reply("I look.", (f"{name}-1", "shout", {"text": name})),
            make_reply(f"{name}!"),
            make_reply(f"{name} again!"),
        ]

    saying = {**SAYING, **{name: lines(name) for name in ("hope", "left", "right")}}
    with place(kind, tmp_path) as url:
        async with open_workflow_bench(saying, NESTED, shout, url=url) as desk:
            assert content(await desk.ask("go", agent="whole")) == "verdict!"
            check_units(await desk.log())
            assert await desk.session.verify() == 18
            assert content(await desk.ask("and now?", agent="whole")) == "verdict!"
            assert "user: [agent left]: left again!" in get_prompt(desk, "verdict")
            assert (await desk.session.info()).claim is None


# -- invalid requests ----------------------------------------------------------------


async def test_session_turn_is_rejected_for_workflows() -> None:
    """In `session.turn` the caller calls one model, and a workflow has several."""
    async with open_workflow_bench({}, PIPELINE) as desk:
        handle = desk.hf.handle(await desk.session.info(), agent="pipeline")
        with pytest.raises(InvalidRequest, match=r"use session\.send\(\)"):
            async with handle.turn("go"):
                pass
        assert await desk.log() == []


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ({"n": 2}, "n must be 1"),
        ({"tools": [{"type": "function", "function": {"name": "shout"}}]}, r"tools\[0\] has the name 'shout'"),
    ],
)
async def test_request_that_one_agent_cannot_serve_is_rejected_before_writing(body: dict[str, Any], match: str) -> None:
    async with open_workflow_bench({}, PIPELINE, shout) as desk:
        with pytest.raises(InvalidRequest, match=match):
            await desk.ask("go", agent="pipeline", body=body)
        assert await desk.log() == []


async def test_unknown_step_is_rejected_by_name() -> None:
    async with open_workflow_bench(
        {}, agents(Agent(name="pipeline", sequence=("draft", "nobody")), Agent(name="draft"))
    ) as desk:
        with pytest.raises(InvalidRequest, match="nobody"):
            await desk.ask("go", agent="pipeline")
        assert await desk.log() == []
