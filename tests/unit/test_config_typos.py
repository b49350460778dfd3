"""Configuration written for other systems keeps its meaning, and messages use its spelling."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.config import Config
from holdfast.config.gateway import Jwt
from holdfast.context.settings import ContextSettings
from holdfast.errors import ConfigError
from tests.unit.blocks import ENV, SPELT


def load(text: str) -> Config:
    return config.load(text, env=ENV)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("server: {host: 127.0.0.2, port: 9}", "gateway: {host: 127.0.0.2, port: 9}"),
        ("{server: {port: 9}, gateway: {max_tools: 3}}", "gateway: {port: 9, max_tools: 3}"),
        ("server: {sessions: {backend: inmemory}}", "storage: {sessions: {backend: inmemory}}"),
        ("server: {memory: {backend: keyword}}", "storage: {memory: {backend: keyword}}"),
        ("{server: {index: {type: keyword}}, storage: {sessions: {retention: 1d}}}",
         "storage: {index: {type: keyword}, sessions: {retention: 1d}}"),
        ("databases: {a: {driver: sqlite3, database: x.db}}", "databases: {a: {driver: sqlite, path: x.db}}"),
        ("databases: {a: {driver: sqlite3, path: x.db, max_conns: 3}}", "databases: {a: {driver: sqlite, path: x.db}}"),
        (
            "databases: {a: {driver: postgres, host: h, database: d, username: u, ssl_mode: require, max_conns: 9}}",
            "databases: {a: {driver: postgres, host: h, database: d, user: u, options: {sslmode: require, pool: 9}}}",
        ),
        ("agents: {a: {working_memory: {type: all}}}", "agents: {a: {context: {strategy: none}}}"),
        ("agents: {a: {prompt: hi, greeting_message: ho}}", "agents: {a: {instruction: hi, greeting: ho}}"),
        ("agents: {a: {model: gpt, system_prompt: hi}}", "agents: {a: {llm: gpt, instruction: hi}}"),
        ("agents: {a: {model: gpt, instructions: hi}}", "agents: {a: {llm: gpt, instruction: hi}}"),
        ("redaction: {extra_patterns: [{regex: x, label: y}]}", "redaction: {patterns: [{regex: x, label: y}]}"),
    ],
)  # fmt: skip
def test_keys_of_other_systems_equal_ours(theirs: str, ours: str) -> None:
    assert config.describe(load(theirs)) == config.describe(load(ours))
    assert config.resolve_store_url(load(theirs)) == config.resolve_store_url(load(ours))


def test_working_memory_is_an_alias_of_context() -> None:
    """With its own key names."""
    text = (
        "agents: {a: {working_memory: {type: summary_buffer, max_tokens: 4000, summary_threshold: 0.8, target: 0.5}}}"
    )
    settings = ContextSettings("summary_buffer", {"target": 0.5, "budget": 4000, "threshold": 0.8})
    assert config.resolve_context(load(text), "a") == settings


@pytest.mark.parametrize(
    ("auth", "kind", "jwt"),
    [
        ("{enabled: true, jwks_url: 'https://i/k', issuer: i, audience: a}", "always", True),
        ("{enabled: true, jwks_url: 'https://i/k', issuer: i, audience: a, require_auth: false}", "never", True),
        ("{enabled: false, jwks_url: 'https://i/k', issuer: i, audience: a}", "keys", False),
        ("{enabled: false}", "keys", False),
        ("{required: true, rate: 5}", "always", False),
    ],
)
def test_auth_of_other_systems_maps_to_ours(auth: str, kind: str, *, jwt: bool) -> None:
    """`server.auth`, also with our own keys."""
    found = load(f"server: {{auth: {auth}}}").auth
    assert (found.kind, isinstance(found.jwt, Jwt)) == (kind, jwt)


def test_ignored_keys_are_reported_and_have_no_effect() -> None:
    """Once each, with the line and the reason."""
    text = (
        "name: x\nversion: 2\nrate_limiting: {enabled: true, limits: []}\n"
        "server:\n  tasks: {backend: sql}\n  auth: {enabled: true, jwks_url: 'https://i/k', issuer: i, audience: a, excluded_paths: [/x]}\n"
        "databases: {a: {driver: postgres, host: h, database: d, max_idle: 5}}\n"
        "agents: {a: {streaming: true, visibility: public, reasoning: {max_iterations: 5}}}\n"
    )
    found = load(text)
    told = [(line, path) for line, path, _ in sorted(found.ignored)]
    assert told == [
        *((1, "name"), (2, "version"), (3, "rate_limiting"), (5, "server.tasks"), (6, "server.auth.excluded_paths")),
        (7, "databases.a.max_idle"),
        *((8, "agents.a.reasoning"), (8, "agents.a.streaming"), (8, "agents.a.visibility")),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {prot: 1}", "holdfast.yaml:1: server.prot: unknown key; did you mean 'port'?"),
        ("server: {port: x}", "holdfast.yaml:1: server.port: expected an integer from 0 to 65535, got 'x'"),
        ("server: 5", "holdfast.yaml:1: server: expected a mapping"),
        ("server: {sessions: {backend: file}}", "server.sessions.backend: expected one of"),
        ("{server: {port: 1}, gateway: {port: 2}}", "server.port: the same as 'gateway.port' in line 1"),
        ("databases: {a: {driver: sqlite3, database: 5}}", "databases.a.database: expected a string"),
        ("databases: {a: {driver: postgres, host: h, database: d, username: 5}}", "databases.a.username: expected"),
        (
            "databases: {a: {driver: postgres, host: h, database: d, user: x, username: y}}",
            "username: the same as 'user'",
        ),
        (
            "databases: {a: {driver: postgres, host: h, database: d, ssl_mode: x, options: {sslmode: y}}}",
            "databases.a.options.sslmode: given twice, by two names",
        ),
        (
            "agents: {a: {working_memory: {type: buffer_window, max_messages: x}}}",
            "working_memory.max_messages: expected",
        ),
        ("agents: {a: {working_memory: {type: al}}}", "agents.a.working_memory.type: unknown strategy 'al'"),
        ("server: {auth: {enabled: maybe}}", "server.auth.enabled: expected true or false"),
    ],
)
def test_problems_use_the_spelling_of_the_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert any(message in problem for problem in caught.value.problems), caught.value.problems


@pytest.mark.parametrize("text", SPELT)
def test_blocks_in_foreign_spelling_load(text: str) -> None:
    assert config.resolve_store_url(load(text))
