"""What agents say of each other: references that cannot be followed are mistakes, those to nobody are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agents.team import BELOW, CALLED, wrong_relations
from holdfast.config.convert import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from holdfast.config.agents import Agent
    from holdfast.config.document import Problems


def check_relations(agents: Mapping[str, Agent], lines: Mapping[str, int], problems: Problems) -> None:
    """Note agents that come to themselves by what they name, and agents that stand twice below another.

    Args:
        agents: by name.
        lines: where each key stands.
        problems: takes the mistakes.
    """
    for wrong in wrong_relations(agents):
        path = f"agents.{wrong.agent}.{wrong.key}"
        problems.add(lines.get(path, 0), path, wrong.message)


def unknown_agents(agents: Mapping[str, Agent]) -> Iterator[tuple[str, str]]:
    """Places and messages for names of agents that there are none of. Whoever names one is refused when it is to answer."""
    for name, agent in agents.items():
        for key in (*BELOW, CALLED):
            for other in getattr(agent, key):
                if other not in agents:
                    near = nearest(other, list(agents))
                    meant = f"; did you mean {near!r}?" if near else ""
                    yield f"agents.{name}.{key}", f"no agent {other!r}: turns of {name!r} are refused{meant}"
