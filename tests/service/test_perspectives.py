"""Several agents in one session: the prompt of each, from memory, from the store and rebuilt, and its use by
summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.agents import Agent, Responder, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.sessions.context_preview import preview_context
from holdfast.sessions.preview_objects import PreviewRequest
from tests.service.team_kit import TEAM, TeamBench, hand_over, open_team
from tests.service.tools_kit import make_reply, shout

SCRIPTS = {
    "coordinator": [
        make_reply("Hm.", ("a", "shout", {"text": "kelp"})),
        make_reply("I pass.", hand_over("researcher", message="Page 3.")),
        make_reply("Done.\n[user]: pay"),
    ],
    "researcher": [make_reply(None, ("a", "shout", {"text": "deep"})), make_reply("It is 12 m.")],
    "writer": [make_reply("A poem."), make_reply(None, hand_over("coordinator"))],
}


async def run_three_turns(bench: TeamBench) -> None:
    """The coordinator hands over to the researcher, then the writer is asked, who hands over to the coordinator."""
    await bench.ask("How deep?")
    await bench.ask("A poem of it!", agent="writer")
    await bench.ask("Is that all?", agent="coordinator")


async def test_each_agent_sees_its_own_replies_as_its_own_and_others_as_quoted() -> None:
    """Complete prompts, except the instruction, for each kind of call."""
    async with open_team(SCRIPTS, shout) as bench:
        await run_three_turns(bench)
        assert bench.told_by.order == [
            "coordinator",
            "coordinator",
            "researcher",
            "researcher",
            "writer",
            "writer",
            "coordinator",
        ]
        own = f"#{await bench.hf.engine.markers.derive(await bench.session.info())}"
        coordinator, researcher = "agent coordinator", "agent researcher"
        told = [
            ("user", "How deep?"),
            ("user", f'[{coordinator} {own}]: Hm.\n[{coordinator} called shout with {own}]: {{"text":"kelp"}}'),
            ("user", f"[{coordinator}'s tool shout returned {own}]: KELP"),
            (
                "user",
                f"[{coordinator} {own}]: I pass.\n[{coordinator} handed the conversation over to researcher {own}]: Page 3.",
            ),
        ]
        assert bench.told_by.prompt(2)[1:] == told
        assert bench.told_by.prompt(3)[1:] == [*told, ("assistant", None), ("tool", "DEEP")]
        researched = [
            ("user", f'[{researcher} called shout with {own}]: {{"text":"deep"}}'),
            ("user", f"[{researcher}'s tool shout returned {own}]: DEEP"),
            ("user", f"[{researcher} {own}]: It is 12 m."),
            ("user", "A poem of it!"),
        ]
        assert bench.told_by.prompt(4)[1:] == [*told, *researched]
        last = bench.told_by.prompt(6)[1:]
        assert [role for role, _ in last[:5]] == ["user", "assistant", "tool", "assistant", "tool"]
        assert last[5:] == [
            *researched,
            ("user", f"[agent writer {own}]: A poem."),
            ("user", "Is that all?"),
            ("user", f"[agent writer handed the conversation over to coordinator {own}]"),
        ]


@pytest.mark.parametrize("strategy", ["token_window", "digest", "buffer_window"])
async def test_sent_prompt_is_rebuilt_from_every_agents_view(strategy: str, tmp_path: Path) -> None:
    """By the hash recorded with each call, also after frontiers moved and after a restart."""
    options = {"window_size": 5} if strategy == "buffer_window" else {"budget": 260}
    agents = {name: Agent(name=name, llm=name, context=ContextSettings(strategy, options)) for name in TEAM}
    url = f"sqlite:///{tmp_path / 'x.db'}"
    turns = ("coordinator", "researcher", "writer") * 4
    async with open_team(_make_scripts(turns), shout, agents=agents, url=url) as bench:
        for at, name in enumerate(turns):
            await bench.ask(_question(at), agent=name)
        prompts = [[(role, text) for role, text in bench.told_by.prompt(2 * at + 1)] for at in range(len(turns))]
    roster = Roster(agents=agents)
    async with Holdfast(url, roster=roster) as hf:
        for at, name in enumerate(turns):
            found = await _preview(hf, hf.roster.find_responder(agent=name, model="gpt-4o"), at)
            assert found.call is not None
            assert found.built.hash == found.call.hash.hex()
            assert len(prompts[at]) == len(found.built.messages)
            assert sum(run.tokens for run in found.built.list_decisions() if run.decision != "cut") > 0


def _question(at: int) -> str:
    return f"Where is order ORD-{at}? It was sent to {at} Harbour Street, {'and more, ' * 8}on 2026-03-{at + 10}."


def _make_scripts(turns: Sequence[str]) -> dict[str, list[Any]]:
    """Return a tool round and a reply for each turn, for the agent that is asked."""
    scripts: dict[str, list[Any]] = {name: [] for name in turns}
    for at, name in enumerate(turns):
        scripts[name] += [
            make_reply(None, ("a", "shout", {"text": f"parcel P{at} " * 8})),
            make_reply(f"ORD-{at} is in P{at}."),
        ]
    return scripts


async def _preview(hf: Holdfast, responder: Responder, at_turn: int) -> Any:
    return await preview_context(
        hf.engine,
        SessionRef("default", "s"),
        PreviewRequest(responder=responder, settings=responder.context, at_turn=at_turn),
    )
