"""A model for several agents, each of which says in its instruction who it is: `I am writer`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tests.behaviour.kit.messages import texts

MARKER: Final = re.compile(r" #[a-z]{8}(?=\])")
"""What users cannot know, in headings of quotes: `[agent writer #qwertzui]`."""


class Speakers:
    """A script for `gateway`: what each agent says, by its name. A list is said one after the other; anything else again and again.

    Attributes:
        called: the agents of the calls, in order.
        bodies: the requests of the calls, in order.
    """

    def __init__(self, lines: Mapping[str, Any]) -> None:
        self.lines = {name: [*said] if isinstance(said, list) else said for name, said in lines.items()}
        self.called: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any]) -> Any:
        name = str(body["messages"][0]["content"]).removeprefix("I am ").split()[0]
        self.called.append(name)
        self.bodies.append(body)
        said = self.lines[name]
        return said.pop(0) if isinstance(said, list) else said

    def prompt(self, name: str) -> list[str]:
        """Return the texts of the newest prompt of an agent, without its instruction and the session's marker."""
        at = len(self.called) - 1 - self.called[::-1].index(name)
        return [MARKER.sub("", str(text)) for text in texts(self.bodies[at]["messages"])[1:]]

    def tools(self, at: int = -1) -> list[str]:
        """Return the names of the tools of a call."""
        return [tool["function"]["name"] for tool in self.bodies[at].get("tools") or ()]
