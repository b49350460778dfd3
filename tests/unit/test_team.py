"""Teams of agents: allowed transfers, the agent of the next turn, and invalid relations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Agent, Roster
from holdfast.agents.definitions import offline
from holdfast.agents.team import BELOW, CALLED, Team, find_wrong_relations
from holdfast.context.settings import ContextSettings
from holdfast.errors import InvalidRequest
from holdfast.limits import STATE_KEY_BYTES


def make_agents(**fields: dict[str, Any]) -> dict[str, Agent]:
    return {name: Agent(name=name, **own) for name, own in fields.items()}


# -- what a caller gives ----------------------------------------------------------


def test_the_first_llm_is_the_default() -> None:
    """Unless one is named `default`; the built-in model answers if there is none."""
    one, other = offline(), offline()
    assert Roster({"one": one, "other": other}).llms["default"] is one
    assert Roster({"one": one, "default": other}).llms["default"] is other
    assert Roster().llms["default"].name == offline().name


def test_mappings_of_the_caller_are_copied() -> None:
    options, llms, agents = {"budget": 4000}, {"one": offline()}, make_agents(a={})
    settings = ContextSettings("token_window", options)
    roster = Roster(llms, agents, settings)
    for given_ in (options, llms, agents):
        given_.clear()
    assert settings.options == {"budget": 4000}
    assert (sorted(roster.llms), sorted(roster.agents)) == (["default", "one"], ["a"])


# -- invalid relations ----------------------------------------------------------


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
