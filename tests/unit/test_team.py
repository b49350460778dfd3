"""Teams of agents: allowed transfers, the agent of the next turn, and invalid relations."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Agent, Roster
from holdfast.agents.team import BELOW, CALLED, Team, find_wrong_relations, make_transfer_tool
from holdfast.domain.session import TRANSFER
from holdfast.errors import InvalidRequest
from holdfast.limits import STATE_KEY_BYTES
from holdfast.tools.context import Call, State, ToolContext
from holdfast.tools.tool import ToolLimits, Toolset


def make_agents(**fields: dict[str, Any]) -> dict[str, Agent]:
    return {name: Agent(name=name, **own) for name, own in fields.items()}


FIRM = make_agents(
    boss={"sub_agents": ("desk", "lab", "line")},
    desk={"sub_agents": ("clerk",)},
    clerk={},
    lab={},
    line={"sequence": ("draft", "check")},
    draft={"sub_agents": ("typist",)},
    typist={},
    check={},
)


def list_reachable_names(team: Team[Agent], name: str) -> list[str]:
    return [one.name for one in team.list_reachable(name)]


# -- reachable agents ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("boss", ["desk", "lab", "line"]),
        ("desk", ["clerk", "boss", "lab", "line"]),
        ("clerk", ["desk"]),
        ("lab", ["boss", "desk", "line"]),
        ("line", []),
        ("draft", []),
        ("typist", []),
        ("check", []),
    ],
)
def test_an_agent_reaches_its_sub_agents_its_parent_and_its_peers(name: str, to: list[str]) -> None:
    assert list_reachable_names(Team("boss", FIRM), name) == to


def test_a_team_contains_only_agents_below_its_root() -> None:
    team = Team("desk", FIRM)
    assert ("clerk" in team, "boss" in team, len(team)) == (True, False, 2)
    assert list_reachable_names(team, "desk") == ["clerk"]
    with pytest.raises(KeyError):
        team["boss"]


def test_unknown_agent_names_are_ignored() -> None:
    team = Team("a", make_agents(a={"sub_agents": ("nobody", "b")}, b={}))
    assert (list_reachable_names(team, "a"), list_reachable_names(team, "b")) == (["b"], ["a"])


# -- the agent of the next turn ---------------------------------------------


@pytest.mark.parametrize(
    ("spoke", "answers"),
    [
        ("boss", "boss"),
        ("desk", "desk"),
        ("clerk", "clerk"),
        ("line", "boss"),
        ("check", "boss"),
        ("typist", "boss"),
        ("x", "boss"),
    ],
)
def test_last_agent_answers_next_unless_it_is_a_workflow_step(spoke: str, answers: str) -> None:
    assert Team("boss", FIRM).resolve_next(spoke) == answers


def test_a_step_of_a_workflow_accepts_no_handover() -> None:
    team = Team("boss", FIRM)
    assert (team.resolve_handover("lab"), team.resolve_handover("line"), team.resolve_handover("draft")) == (
        "lab",
        "line",
        "boss",
    )


@pytest.mark.parametrize(
    ("spoke", "answers"),
    [("boss", "boss"), ("clerk", "clerk"), ("lab", "lab"), ("line", "line"), ("typist", "line"), ("x", "boss")],
)
def test_an_unfinished_turn_stays_with_its_agent(spoke: str, answers: str) -> None:
    """The turn of a step belongs to its workflow."""
    assert Team("boss", FIRM).resolve_interrupted(spoke) == answers


def test_a_named_agent_limits_the_conversation_to_its_sub_agents() -> None:
    team = Team("boss", FIRM, named="desk")
    assert [team.resolve_next(name) for name in ("clerk", "desk", "lab", "boss")] == ["clerk", "desk", "desk", "desk"]
    assert team.resolve_handover("lab") == "desk"
    assert list_reachable_names(team, "desk") == ["clerk", "boss", "lab", "line"]


# -- invalid relations ----------------------------------------------------------


@pytest.mark.parametrize("key", [*BELOW, CALLED])
def test_an_agent_below_itself_is_reported(key: str) -> None:
    (wrong,) = find_wrong_relations(make_agents(a={key: ("a",)}))
    assert (wrong.agent, wrong.key) == ("a", key)
    assert "a -> a" in wrong.message


def test_a_cycle_over_several_keys_is_reported_once() -> None:
    found = find_wrong_relations(
        make_agents(
            a={"sub_agents": ("b",)}, b={"agent_tools": ("c",)}, c={"parallel": ("a",)}, d={"sub_agents": ("a",)}
        )
    )
    assert [(one.agent, one.key) for one in found] == [("c", "parallel")]
    assert "a -> b -> c -> a" in found[0].message


def test_every_cycle_is_reported() -> None:
    found = find_wrong_relations(
        make_agents(a={"sub_agents": ("b", "a")}, b={"sub_agents": ("a",)}, c={"sequence": ("c",)})
    )
    assert [(one.agent, one.key) for one in found] == [("b", "sub_agents"), ("a", "sub_agents"), ("c", "sequence")]


def test_an_agent_twice_below_a_root_is_reported() -> None:
    found = find_wrong_relations(
        make_agents(a={"sub_agents": ("b", "c")}, b={"sub_agents": ("d",)}, c={"sub_agents": ("d",)}, d={})
    )
    assert [(one.agent, one.key) for one in found] == [("c", "sub_agents")]
    assert "under 'b'" in found[0].message
    assert find_wrong_relations(make_agents(a={"sequence": ("b", "b")}, b={}))[0].agent == "a"


def test_two_roots_may_share_an_agent_and_call_the_same_tool_agent() -> None:
    shared = make_agents(
        a={"sub_agents": ("x",)}, b={"sub_agents": ("x",), "agent_tools": ("y",)}, x={"agent_tools": ("y",)}, y={}
    )
    assert find_wrong_relations(shared) == []


NAMES = [f"n{at}" for at in range(7)]
REFERENCES = st.fixed_dictionaries(
    {key: st.lists(st.sampled_from([*NAMES, "nobody"]), max_size=2).map(tuple) for key in (*BELOW, CALLED)}
)


@given(st.fixed_dictionaries(dict.fromkeys(NAMES, REFERENCES)))
def test_accepted_relations_form_trees(fields: dict[str, dict[str, Any]]) -> None:
    """Each agent has one path to its root unless a cycle or a duplicate is reported."""
    made = make_agents(**fields)
    ways = {name: _list_descendants(made, name, (), BELOW) for name in made}
    called = {name: _list_descendants(made, name, (), (*BELOW, CALLED)) for name in made}
    endless = any(found is None for found in called.values())
    doubled = any(found is not None and len(found) != len(set(found)) for found in ways.values())
    assert bool(find_wrong_relations(made)) == (endless or doubled)
    if not find_wrong_relations(made):
        for name in made:
            team = Team(name, made)
            assert len(team) == len(ways[name] or ()) + 1
            for one in ways[name] or ():
                assert all(other.name in team for other in team.list_reachable(one))
                assert team.resolve_next(one) in {one, name}


def _list_descendants(
    made: dict[str, Agent], name: str, path: tuple[str, ...], keys: tuple[str, ...]
) -> list[str] | None:
    """List all agents below an agent with repetitions, or None if there is a cycle."""
    if name in path:
        return None
    found: list[str] = []
    for other in [one for key in keys for one in getattr(made[name], key) if one in made]:
        below = _list_descendants(made, other, (*path, name), keys)
        if below is None:
            return None
        found += [other, *below]
    return found


# -- in a roster ---------------------------------------------------------------------


def test_a_roster_rejects_invalid_agents() -> None:
    with pytest.raises(InvalidRequest, match="agent 'a': sub_agents: 'a' refers back to itself"):
        Roster(agents=make_agents(a={"sub_agents": ("a",)}))
    with pytest.raises(InvalidRequest, match="belongs to a single turn"):
        Roster(agents=make_agents(a={"state": {"temp:x": 1}}))
    with pytest.raises(InvalidRequest, match="256"):
        Roster(agents=make_agents(a={"output_key": "k" * (STATE_KEY_BYTES + 1)}))


def test_a_responder_knows_its_position_in_the_team() -> None:
    roster = Roster(agents=FIRM)
    alone, placed = roster.find_responder(agent="desk"), roster.find_responder(agent="desk", root="boss")
    assert roster.find_responder(agent="clerk").team is None
    assert placed.tools.tools[TRANSFER].parameters["properties"]["agent_name"]["enum"] == [
        "clerk",
        "boss",
        "lab",
        "line",
    ]
    assert alone.tools.tools[TRANSFER].parameters["properties"]["agent_name"]["enum"] == ["clerk"]
    assert roster.find_responder(agent="desk", root="lab").team is not None
    assert roster.find_responder(agent="boss", root="gone").team is not None


def test_an_agent_without_reachable_agents_has_no_transfer_tool() -> None:
    roster = Roster(agents=FIRM)
    for name in ("clerk", "line"):
        assert TRANSFER not in roster.find_responder(agent=name).tools.tools
    roster.tools = Toolset(limits=ToolLimits(rounds=0))
    assert not roster.find_responder(agent="boss").tools


# -- the tool ------------------------------------------------------------------------


def make_context(called: list[str]) -> ToolContext:
    async def transfer(name: str) -> None:
        called.append(name)

    state: State = None  # type: ignore[assignment]  # unused by the tool
    return ToolContext(
        session_id="s",
        user_id="u",
        agent="a",
        state=state,
        artifacts=None,  # type: ignore[arg-type]  # unused as well
        call=Call(transfer=transfer),
    )


def test_the_transfer_tool_describes_the_reachable_agents() -> None:
    tool = make_transfer_tool([Agent(name="b", description="Knows\n  the   sea."), Agent(name="c")])
    assert tool.description.endswith("\n- b: Knows the sea.\n- c")
    long = make_transfer_tool([Agent(name="b", description="x" * 5000)])
    assert len(long.description) < 1500


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "there is no agent None"),
        ({"agent_name": "x"}, "there is no agent 'x' to transfer to; possible agents: b, c"),
        ({"agent_name": ["b"]}, "there is no agent"),
        ({"agent_name": "b", "message": 1}, "message must be a text"),
    ],
)
def test_invalid_arguments_are_rejected_with_the_possible_values(arguments: dict[str, Any], why: str) -> None:
    called: list[str] = []
    tool = make_transfer_tool([Agent(name="b"), Agent(name="c")])
    with pytest.raises(InvalidRequest, match=why):
        asyncio.run(_run(tool.call(make_context(called), arguments)))
    assert called == []


def test_a_transfer_is_recorded() -> None:
    called: list[str] = []
    given_to = make_context(called)
    assert (
        asyncio.run(_run(make_transfer_tool([Agent(name="b")]).call(given_to, {"agent_name": "b", "message": "hurry"})))
        == "b takes over"
    )
    assert (called, given_to.noted) == (["b"], {"transfer": "b"})


async def _run(work: Any) -> Any:
    return await work
