"""`llm.system_messages` in the configuration: the messages at the beginning of every request to that model, as Agora
defines them.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import load
from holdfast.config.build import build_roster
from holdfast.errors import ConfigError
from holdfast.testing import ScriptedUpstream
from tests.edges.server import UPSTREAM_KEY, serving

MEMORY = "Previously, user has talked about {hobbies} with some key topics: xxx"
"""Braces are no template: this is text, which may be what somebody once said."""
GIVEN: list[Any] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "system", "content": MEMORY},
]


@pytest.mark.parametrize("place", ["llm: {more}", "llms: {{default: {more}}}", "llms: {{fast: {more}}}"])
async def test_configured_system_messages_come_first_and_are_not_stored(place: str) -> None:
    """Before the agent's instruction and the session's own, in every turn."""
    async with ScriptedUpstream(["Hello.", "Yes."]) as upstream:
        fields = f"{{vendor: custom, model: xxxx, base_url: '{upstream.url}', api_key: {UPSTREAM_KEY}, system_messages: {GIVEN}}}"
        name = "fast" if "fast" in place else "default"
        config = "\n".join([place.format(more=fields), f"agents: {{bot: {{llm: {name}, instruction: Be kind.}}}}"])
        async with serving(config) as served:
            await served.http.post("/v1/sessions", json={"id": "s", "agent": "bot", "system_messages": ["It is May."]})
            for text in ("Hi", "More"):
                assert (await served.chat(text))["status"] == 200
            for request in upstream.requests:
                told = [one["content"] for one in request.body["messages"] if one["role"] == "system"]
                assert told == ["You are a helpful assistant.", MEMORY, "Be kind.", "It is May."]
            assert [role for role, _ in await served.log()] == ["user", "assistant", "user", "assistant"]


def test_system_messages_can_be_plain_texts() -> None:
    found = load(
        "llms: {default: {provider: offline, system_messages: [Be brief., {role: developer, content: Hm.}]}}", env={}
    )
    (first, second) = build_roster(found).llms["default"].system_messages
    assert (first.role, first.text, second.role, second.text) == ("system", "Be brief.", "developer", "Hm.")
    assert (
        load("llms: {default: {provider: offline, system_messages: Be brief.}}", env={}).llms["default"].system_messages
    )


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("llms: {default: {system_messages: [{role: user, content: Hi}]}}", "llms.default.system_messages"),
        ("llms: {default: {system_messages: [{role: system}]}}", "llms.default.system_messages"),
        ("llm: {system_messages: [5]}", "llm.system_messages"),
        ("llm: {model: a}\nllms: {default: {model: b}}", "llm"),
        ("llm: fast", "llm"),
    ],
)
def test_mistake_names_its_place(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text, env={})
    assert any(f": {place}" in problem for problem in refused.value.problems), refused.value.problems
