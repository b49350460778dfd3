"""Second spellings of keys mean the same as the keys, and messages use the spelling of the file."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.config import Config
from holdfast.errors import ConfigError


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
    ("text", "message"),
    [
        ("short_term: {session_ttl: x}", "holdfast.yaml:1: short_term.session_ttl: expected a duration"),
        ("short_term: {ttl: 1s, session_ttl: 2s}", "short_term.session_ttl: the same as 'sessions.ttl' in line 1"),
        ("sessions: {ttl: 1s}\nshort_term: {session_ttl: 2s}", "holdfast.yaml:2: short_term: the same as 'sessions' in line 1"),
        ("{dreaming: {}, consolidation: {}}", "dreaming: the same as 'consolidation' in line 1"),
        ("llm: {vendor: other}", "holdfast.yaml:1: llm.vendor: expected one of"),
        ("llm: gpt", "holdfast.yaml:1: llm: expected a mapping, which is the entry `default` of `llms`"),
        ("{llm: {}, llms: {default: {}}}", "llm: the same as 'llms.default' in line 1"),
        ("{llm: {}, llms: 5}", "llms: expected a mapping"),
        ("llms: {a: {vendor: openai, provider: openai}}", "llms.a.vendor: the same as 'llms.a.provider' in line 1"),
    ],
)  # fmt: skip
def test_messages_use_the_spelling_of_the_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize(
    "text",
    [
        "server: {port: 9}",
        "databases: {a: {driver: sqlite3, path: x.db}}",
        "databases: {a: {driver: postgres, host: h, database: d, username: u}}",
        "agents: {a: {working_memory: {type: all}}}",
        "agents: {a: {prompt: hi}}",
        "agents: {a: {streaming: true}}",
        "preset: mistralrs",
        "rate_limiting: {enabled: false}",
        "embedders: {a: {dimensions: 3}}",
    ],
)
def test_keys_of_other_systems_are_mistakes(text: str) -> None:
    with pytest.raises(ConfigError):
        load(text)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memory: sever", "memory: expected one of client, server, got 'sever'"),
        ("hooks: {workspace_git: yes}", "hooks.workspace_git: expected true or false"),
        ("llms: {a: {timeout: soon}}", "llms.a.timeout: expected a duration"),
    ],
)
def test_a_wrong_plain_value_is_reported_where_it_is(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(text)
