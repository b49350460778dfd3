"""Which agent answers the next turn: the one that spoke last, read from the end of the live log, after any change to
it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.agents import Agent
from holdfast.domain.session import SessionRef
from holdfast.engine.entries import make_entries
from holdfast.errors import InvalidRequest, ModelUnavailable
from holdfast.limits import SPEAKER_BEHIND
from holdfast.models import Collector
from holdfast.turns.respond import respond
from holdfast.wire.openai import parse_message
from tests.service.scripted_model import REF
from tests.service.team_kit import TEAM, TeamBench, hand_over, open_team
from tests.service.tools_kit import THEIRS, content, make_reply
from tests.service.turns_kit import SHARED
from tests.service.workflow_kit import DOWN
from tests.stores.servers import place

FOUND = {"coordinator": [make_reply(None, hand_over("researcher"))], "researcher": [make_reply("Found.")]}
"""A first turn that ends with the researcher."""


def scripts_then(*more: Any, **others: Any) -> dict[str, Any]:
    """Return the scripts of such a turn and of later replies."""
    return {
        "coordinator": [*FOUND["coordinator"], *others.pop("coordinator", [])],
        "researcher": [*FOUND["researcher"], *more],
        **others,
    }


async def test_agent_that_spoke_last_answers_next() -> None:
    async with open_team(scripts_then(make_reply("More."))) as bench:
        await bench.ask("find")
        turn = bench.turn("and?")
        async for _ in respond(turn):
            pass
        assert bench.told_by.order == ["coordinator", "researcher", "researcher"]
        assert (turn.agent, turn.summarize()["agent"]) == ("researcher", "researcher")
        assert bench.told_by.prompt()[0] == ("system", "You research.")


async def test_agent_requested_by_name_answers() -> None:
    """It keeps its place in the team and can hand over. The root's name stands for the whole team."""
    async with open_team(scripts_then(make_reply("More."), writer=[make_reply("A poem.")])) as bench:
        await bench.ask("find")
        handle = bench.hf.handle(await bench.hf.store.get(REF), agent="writer")
        await handle.send("a poem")
        assert bench.told_by.order[-1] == "writer"
        assert bench.told_by.asked[-1][1]["tools"][0]["function"]["parameters"]["properties"]["agent_name"]["enum"] == [
            "coordinator",
            "researcher",
        ]
        await bench.hf.handle(await bench.hf.store.get(REF), model="researcher").send("more")
        assert bench.told_by.order[-1] == "researcher"


async def test_agent_below_the_named_one_continues() -> None:
    deep = {
        "root": Agent(name="root", llm="root", sub_agents=("middle",)),
        "middle": Agent(name="middle", llm="middle", sub_agents=("leaf",)),
        "leaf": Agent(name="leaf", llm="leaf"),
    }
    scripts = {
        "root": [make_reply("I.")],
        "middle": [make_reply(None, hand_over("leaf")), make_reply("Me.")],
        "leaf": [make_reply("1"), make_reply("2"), make_reply(None, hand_over("middle"))],
    }
    async with open_team(scripts, agents=deep) as bench:
        handle = bench.hf.handle(await bench.hf.store.get(REF), agent="middle")
        await handle.send("a")
        await handle.send("b")
        await bench.session.send("c")
        assert bench.told_by.order == ["middle", "leaf", "leaf", "leaf", "middle"]


async def test_conversation_of_a_removed_agent_returns_to_the_root() -> None:
    async with open_team(scripts_then(coordinator=[make_reply("I am back.")])) as bench:
        await bench.ask("find")
        bench.hf.roster.agents["coordinator"] = msgspec.structs.replace(TEAM["coordinator"], sub_agents=("writer",))
        assert content(await bench.ask("thanks")) == "I am back."


async def test_speech_from_outside_does_not_change_the_agent() -> None:
    """A reminder has the name of the session's agent; the current agent keeps the conversation."""
    async with open_team(scripts_then(make_reply("More."))) as bench:
        await bench.ask("find")
        await bench.session.speak("Are you still there?")
        await bench.session.append([{"role": "assistant", "content": "Of nobody in particular."}])
        assert content(await bench.ask("yes")) == "More."


# -- changed logs ----------------------------------------------------------------------


async def test_rewinding_restores_the_earlier_agent() -> None:
    async with open_team(
        {
            "coordinator": [make_reply("Hello."), *FOUND["coordinator"], make_reply("Again me.")],
            "researcher": FOUND["researcher"],
        }
    ) as bench:
        await bench.ask("hi")
        await bench.ask("find")
        await bench.session.rewind(0)
        assert content(await bench.ask("still you?")) == "Again me."


async def test_fork_continues_with_the_agent_at_its_fork_point() -> None:
    scripts = {
        "coordinator": [make_reply("Hello."), *FOUND["coordinator"], make_reply("Fork.")],
        "researcher": [*FOUND["researcher"], make_reply("Late fork.")],
    }
    async with open_team(scripts) as bench:
        await bench.ask("hi")
        await bench.ask("find")
        early, late = await bench.session.fork(0, id="early"), await bench.session.fork(id="late")
        assert (content(await early.send("?")), content(await late.send("?"))) == ("Fork.", "Late fork.")


async def test_edited_message_is_answered_by_the_agent_of_that_point() -> None:
    """Decided by what stays live before the turn's messages; a resumed branch has its own agent again."""
    scripts = {
        "coordinator": [make_reply("Hello."), *FOUND["coordinator"], make_reply("Edited.")],
        "researcher": [*FOUND["researcher"], make_reply("Revived.")],
    }
    async with open_team(scripts) as bench:
        await bench.ask("hi")
        await bench.ask("find")
        begin = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello."}]
        found = [*begin, {"role": "user", "content": "find"}, {"role": "assistant", "content": "Found."}]
        assert content(await bench.ask(*begin, {"role": "user", "content": "no, wait"})) == "Edited."
        assert content(await bench.ask(*found, {"role": "user", "content": "as we were"})) == "Revived."


async def test_regenerated_reply_comes_from_the_same_agent() -> None:
    """The client knows only the text; the handover before it stays live and decides the agent."""
    async with open_team(scripts_then(make_reply("Found, otherwise."))) as bench:
        await bench.ask("find")
        assert content(await bench.ask({"role": "user", "content": "find"}, mode="transcript")) == "Found, otherwise."
        assert bench.told_by.order == ["coordinator", "researcher", "researcher"]


@SHARED
async def test_handover_survives_a_restart_and_a_kill_in_the_middle(kind: str, tmp_path: Any) -> None:
    """Nothing was written after the handover's result: on another server the same message reaches the next agent."""
    with place(kind, tmp_path) as url:
        async with open_team(FOUND, url=url) as bench:
            await bench.session.append([{"role": "user", "content": "find"}])
            turn = bench.turn("find")
            chunks = respond(turn)
            bench.told_by.clients["researcher"].gate = gate = asyncio.Event()
            task = asyncio.create_task(_collect(chunks))
            await bench.told_by.clients["researcher"].asked.wait()
            entries = await bench.log()
            assert (entries[-1].metadata or {})["transfer"] == "researcher"
            task.cancel()  # nothing of the reply has arrived, so nothing is written: the log is as after a kill
            gate.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with open_team(
            {"coordinator": [], "researcher": [make_reply("Found after all."), make_reply("More.")]}, url=url
        ) as bench:
            assert content(await bench.ask("find")) == "Found after all."
            assert content(await bench.ask("and?")) == "More."
            assert bench.told_by.order == ["researcher", "researcher"]


@SHARED
async def test_servers_see_each_others_handovers(kind: str, tmp_path: Any) -> None:
    """A cached agent is not used if another server continued the session."""
    with place(kind, tmp_path) as url:
        scripts = {
            "coordinator": [make_reply("Hello."), make_reply(None, hand_over("writer"))],
            "researcher": [],
            "writer": [make_reply("A poem.")],
        }
        async with open_team(scripts, url=url) as one:
            await one.ask("hi")
            async with open_team(
                {"coordinator": [make_reply(None, hand_over("researcher"))], "researcher": [make_reply("Found.")]},
                url=url,
            ) as two:
                assert content(await two.ask("find")) == "Found."
                one.told_by.scripts["researcher"] = iter([make_reply(None, hand_over("coordinator"))])
                assert content(await one.ask("write")) == "A poem."
                assert one.told_by.order == ["coordinator", "researcher", "coordinator", "writer"]
                two.told_by.scripts["writer"] = iter([make_reply("Another.")])
                assert content(await two.ask("more")) == "Another."


async def _collect(chunks: Any) -> dict[str, Any]:
    collector = Collector()
    async for chunk in chunks:
        collector.add(chunk)
    return collector.build_completion()


async def test_handover_completes_after_a_crash() -> None:
    async with open_team({"researcher": [make_reply("Found."), make_reply("Thanks.")]}) as bench:
        await bench.session.append([{"role": "user", "content": "find"}])
        call = {
            "id": "t",
            "type": "function",
            "function": {"name": "transfer_to_agent", "arguments": '{"agent_name":"researcher"}'},
        }
        result = {"role": "tool", "tool_call_id": "t", "content": "ok", "metadata": {"transfer": "researcher"}}
        await bench.session.append([{"role": "assistant", "content": None, "tool_calls": [call]}, result])
        assert content(await bench.ask("find")) == "Found."
        assert content(await bench.ask("thanks")) == "Thanks."


async def test_client_result_goes_to_the_agent_that_made_the_call() -> None:
    scripts = {
        "coordinator": [make_reply(None, hand_over("researcher"))],
        "researcher": [make_reply(None, ("k", "open_door", {})), make_reply("It was open."), make_reply("Thanks.")],
    }
    async with open_team(scripts) as bench:
        body = {"tools": THEIRS}
        await bench.ask("find", body=body)
        result = {"role": "tool", "tool_call_id": "k", "content": "opened"}
        assert content(await bench.ask(result, body=body)) == "It was open."
        assert content(await bench.ask("thanks", body=body)) == "Thanks."


WITH_A_LINE = {
    "coordinator": msgspec.structs.replace(TEAM["coordinator"], sub_agents=("line",)),
    "line": Agent(name="line", sequence=("draft", "check")),
    "draft": Agent(name="draft", llm="draft"),
    "check": Agent(name="check", llm="check"),
}


@pytest.mark.parametrize("asks", ["draft", "check"])
async def test_client_result_goes_to_the_workflow_that_made_the_call(asks: str) -> None:
    """Earlier agents are not asked again, nor the one that handed over; the next turn belongs to the named agent."""
    calls = make_reply(None, ("k", "open_door", {}))
    spoken = {"draft": [make_reply("A draft.")], "check": [make_reply("Checked.")]}
    scripts = {
        "coordinator": [make_reply(None, hand_over("line")), make_reply("Thanks.")],
        **spoken,
        asks: [calls, *spoken[asks]],
    }
    async with open_team(scripts, agents=WITH_A_LINE) as bench:
        body = {"tools": THEIRS}
        await bench.ask("write", body=body)
        result = {"role": "tool", "tool_call_id": "k", "content": "opened"}
        assert content(await bench.ask(result, body=body)) == "Checked."
        expected = [name for name in ("draft", "check") for _ in range(1 + (name == asks))]
        assert bench.told_by.order == ["coordinator", *expected]
        assert content(await bench.ask("thanks", body=body)) == "Thanks."


async def test_workflow_that_failed_after_a_handover_is_resumed() -> None:
    """By the same message; another message goes to the named agent."""
    scripts: dict[str, Any] = {
        "coordinator": [make_reply(None, hand_over("line")), make_reply("Else.")],
        "draft": [make_reply("A draft.")],
        "check": [[DOWN], make_reply("Checked.")],
    }
    for text, told in (("write", "Checked."), ("something else", "Else.")):
        async with open_team(scripts, agents=WITH_A_LINE) as bench:
            with pytest.raises(ModelUnavailable):
                await bench.ask("write")
            assert content(await bench.ask(text)) == told
            assert bench.told_by.order[:3] == ["coordinator", "draft", "check"]
            assert len(bench.told_by.order) == 4


async def test_keyed_retry_returns_the_same_reply_and_agent() -> None:
    async with open_team(FOUND) as bench:
        first = await bench.ask("find", idempotency_key="k")
        turn = bench.turn("find", idempotency_key="k")
        assert content(await _collect(respond(turn))) == content(first) == "Found."
        assert turn.summarize()["agent"] == "researcher"
        assert len(await bench.log()) == 4


async def test_request_the_resumed_agent_cannot_serve_is_rejected_before_writing() -> None:
    async with open_team(
        scripts_then(make_reply("More.")),
        agents={**TEAM, "researcher": msgspec.structs.replace(TEAM["researcher"], tools=("late",))},
    ) as bench:
        with pytest.raises(InvalidRequest, match="late"):
            await _research(bench)
        assert len(await bench.log()) == 1


async def _research(bench: TeamBench) -> None:
    reply = {"role": "assistant", "content": "Found."}
    made = await make_entries([parse_message(reply)], [{}], timestamp=bench.hf.clock())
    await bench.session.write([msgspec.structs.replace(made[0], agent="researcher")])
    await bench.ask("and?")


# -- cost ------------------------------------------------------------------------------


class Reads:
    """A store that counts the log entries that are read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.entries_read: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def entries(self, ref: SessionRef, **how: Any) -> Any:
        found = await self.inner.entries(ref, **how)
        self.entries_read.append(len(found))
        return found


async def test_finding_the_agent_is_free_when_cached_and_bounded_for_long_sessions() -> None:
    async with open_team(scripts_then(*[make_reply("More.")] * 3)) as bench:
        await bench.ask("find")
        await bench.ask("a")
        reads = bench.hf.engine.store = Reads(bench.hf.engine.store)
        await bench.ask("b")
        assert reads.entries_read == []
        bench.hf.engine.store = reads.inner
        await bench.session.append([{"role": "user", "content": f"{at}"} for at in range(SPEAKER_BEHIND + 100)])
        bench.hf.engine.warm.forget(REF)
        bench.hf.engine.store = reads
        bench.told_by.scripts["coordinator"] = iter([make_reply("Who was it?")])
        assert content(await bench.ask("c")) == "Who was it?"
        assert sum(reads.entries_read) <= SPEAKER_BEHIND + 16 + 1


async def test_sessions_without_a_team_read_nothing_to_find_the_agent() -> None:
    alone = {"a": Agent(name="a", llm="a")}
    async with open_team({"a": [make_reply("1"), make_reply("2")]}, agents=alone) as bench:
        await bench.ask("x", agent="a")
        bench.hf.engine.warm.forget(REF)
        reads = bench.hf.engine.store = Reads(bench.hf.engine.store)
        await bench.ask("y", agent="a")
        assert reads.entries_read == []
        bench.hf.engine.store = reads.inner


# -- the library -------------------------------------------------------------------------


async def test_library_turn_belongs_to_the_resumed_agent() -> None:
    """The caller of the model sees which agent answers, and its tools."""
    async with open_team(FOUND) as bench:
        await bench.ask("find")
        async with bench.session.turn("and?") as turn:
            assert turn.agent == "researcher"
            assert turn.messages[0] == {"role": "system", "content": "You research."}
            turn.add("More.")
        assert (await bench.log())[-1].agent == "researcher"
        async with bench.hf.handle(await bench.hf.store.get(REF), agent="writer").turn("write") as turn:
            assert turn.agent == "writer"
            turn.add("A poem.")
        async with bench.session.turn("go on") as turn:
            assert turn.agent == "writer"


async def test_library_turn_names_a_single_agent_too() -> None:
    async with open_team({"a": []}, agents={"a": Agent(name="a", llm="a")}) as bench, bench.session.turn("x") as turn:
        assert turn.agent == "a"
