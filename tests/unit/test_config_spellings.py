"""Second spellings of keys mean the same as the keys, and messages use the spelling of the file."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.config import Config


def load(text: str) -> Config:
    return config.load(text, env={})


@pytest.mark.parametrize(
    ("second", "ours"),
    [
        (
            "short_term: {session_ttl: 1h, max_sessions: 3, max_history_turns: 5}",
            "sessions: {ttl: 1h, max_sessions: 3, max_messages: 5}",
        ),
        ("dreaming: {enabled: false}", "consolidation: {enabled: false}"),
        ("llm: {vendor: custom, base_url: 'http://h/v1'}", "llms: {default: {provider: custom, base_url: 'http://h/v1'}}"),
        ("{llm: {model: m}, llms: {fast: {vendor: anthropic}}}", "llms: {fast: {provider: anthropic}, default: {model: m}}"),
        ("{llm: {model: m}, llms: }", "llms: {default: {model: m}}"),
        ("{short_term: {session_ttl: 1h}, sessions: }", "sessions: {ttl: 1h}"),
        ("{short_term: , sessions: {ttl: 1h}}", "sessions: {ttl: 1h}"),
    ],
)  # fmt: skip
def test_second_spellings_equal_the_keys(second: str, ours: str) -> None:
    assert config.describe(load(second)) == config.describe(load(ours))


@pytest.mark.parametrize(
    ("short", "ours"),
    [
        ("memory: server", "memory: {files: server}"),
        ("agents: {a: {memory: server}}", "agents: {a: {memory: {files: server}}}"),
        ("hooks: {workspace_git: true}", "hooks: {workspace_git: {enabled: true}}"),
    ],
)
def test_a_plain_value_sets_the_main_key_of_a_section(short: str, ours: str) -> None:
    assert config.describe(load(short)) == config.describe(load(ours))
