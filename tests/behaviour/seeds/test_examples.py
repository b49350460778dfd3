"""The configuration that the documents write out is accepted as written, and each of their keys sets its value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.behaviour.kit.examples import BLOCKS, ENVIRONMENT, check_accepted
from tests.behaviour.kit.seams import run_command

POSTGRES: Final = (
    "databases: {main: {driver: %s, host: '${DB_HOST}', port: 5432, database: chat,"
    " user: '${DB_USER}', password: '${DB_PASSWORD}'}}"
)
CHROMEM: Final = "storage: {memory: {vector_provider: {type: chromem, chromem: {persist_path: .v, compress: true}}}}"
KEYS: Final[dict[str, dict[str, Any]]] = {
    # a short-term buffer
    "short_term:\n  max_history_turns: 50\n": {"sessions.max_messages": 50},
    "short_term:\n  max_sessions: 10000\n": {"sessions.max_sessions": 10_000},
    "short_term: {max_sessions: 0}": {"sessions.max_sessions": 0},
    "short_term:\n  session_ttl: 24h\n": {"sessions.ttl": "1d"},
    "sessions: {ttl: 30m, max_sessions: 128, max_messages: 50}": {
        "sessions.ttl": "30m",
        "sessions.max_sessions": 128,
        "sessions.max_messages": 50,
    },
    "storage: {sessions: {retention: 7d}}": {"storage.sessions.retention": "7d"},
    "hooks: {workspace_git: true}": {"hooks.workspace_git.enabled": True},
    "hooks: {transcripts_dir: transcripts}": {"hooks.transcripts_dir": "transcripts"},
    "dreaming: {enabled: false}": {"consolidation.enabled": False},
    "consolidation: {enabled: false}": {"consolidation.enabled": False},
    # working sets
    "llms: {a: {context_window: 200000, max_tokens: 4096, count: provider}}": {
        "llms.a.context_window": 200_000,
        "llms.a.max_tokens": 4096,
        "llms.a.count": "provider",
    },
    "context: {strategy: head_tail}": {"context.strategy": "head_tail"},
    "context: {strategy: salience}": {"context.strategy": "salience"},
    "context: {strategy: clear_tool_results, trigger: 30000, keep: 3, clear_at_least: 5000, exclude_tools: [plan]}": {
        "context.trigger": 30_000,
        "context.keep": 3,
        "context.clear_at_least": 5000,
        "context.exclude_tools": ["plan"],
    },
    "context: {strategy: buffer_window, window_size: 20}": {"context.window_size": 20},
    "context: {strategy: token_window, budget: 8000, preserve_recent: 5}": {
        "context.budget": 8000,
        "context.preserve_recent": 5,
    },
    "context: {strategy: summary_buffer, threshold: 0.85, target: 0.7, summarizer_llm: fast}": {
        "context.threshold": 0.85,
        "context.target": 0.7,
        "context.summarizer_llm": "fast",
    },
    "agents: {a: {context: {strategy: none}}}": {"agents.a.context.strategy": "none"},
    "agents: {a: {context: {strategy: summary_buffer}}}": {"agents.a.context.strategy": "summary_buffer"},
    # storage
    "storage: {sessions: {backend: inmemory}}": {"store": "sqlite://:memory:"},
    "databases: {main: {driver: sqlite, path: .c/c.db}}\nstorage: {sessions: {backend: sql, database: main}}": {
        "store": "sqlite:///.c/c.db",
        "storage.sessions.backend": "sql",
        "storage.sessions.database": "main",
    },
    **{
        POSTGRES % driver + "\nstorage: {sessions: {backend: sql, database: main}}": {
            "store": f"{scheme}://ada:***@127.0.0.1:5432/chat",
            "databases.main.driver": driver,
            "databases.main.port": 5432,
            "databases.main.user": "ada",
            "databases.main.password": "***",
        }
        for driver, scheme in (("postgres", "postgresql"), ("mysql", "mysql"))
    },
    "storage: {memory: {backend: keyword}}": {"storage.memory.backend": "keyword"},
    "storage: {memory: {backend: vector, embedder: default}}": {
        "storage.memory.backend": "vector",
        "storage.memory.embedder": "default",
    },
    CHROMEM: {
        "storage.memory.vector_provider.type": "chromem",
        "storage.memory.vector_provider.chromem.persist_path": ".v",
        "storage.memory.vector_provider.chromem.compress": True,
    },
    "storage: {index: {type: vector, embedder: default}}": {
        "storage.index.type": "vector",
        "storage.index.embedder": "default",
    },
    "embedders: {default: {provider: openai, model: text-embedding-3-small, api_key: '${OPENAI_API_KEY}'}}": {
        "embedders.default.provider": "openai",
        "embedders.default.model": "text-embedding-3-small",
        "embedders.default.api_key": "***",
    },
    # agents
    "agents: {a: {instruction: 'Speak {user:language}.'}}": {"agents.a.instruction": "Speak {user:language}."},
    "agents: {a: {state: {'app:version': 2.0.0}}}": {"agents.a.state.app:version": "2.0.0"},
    "agents: {a: {llm: gpt-4o, search: {enabled: true, max_results: 5}}}": {
        "agents.a.llm": "gpt-4o",
        "agents.a.search.enabled": True,
        "agents.a.search.max_results": 5,
    },
    "agents: {a: {sub_agents: [b], tools: [search]}, b: {tools: [text_editor]}}": {
        "agents.a.sub_agents": ["b"],
        "agents.a.tools": ["search"],
        "agents.b.tools": ["text_editor"],
    },
    "agents: {a: {greeting: Hello., failure_message: Sorry., silence_message: Are you there.}}": {
        "agents.a.greeting": "Hello.",
        "agents.a.failure_message": "Sorry.",
        "agents.a.silence_message": "Are you there.",
    },
    "memory: {enabled: true}": {"memory.enabled": True},
    # voice
    "llm: {vendor: custom, base_url: 'http://127.0.0.1:9/v1', system_messages: [{role: system, content: Brief.}]}": {
        "llms.default.provider": "custom",
        "llms.default.system_messages": [{"role": "system", "content": "Brief."}],
    },
    "llm: {vendor: openai}": {"llms.default.provider": "openai"},
    "hooks: {webhooks: [{url: 'https://x/', secret: s}]}": {
        "hooks.webhooks[0].url": "https://x/",
        "hooks.webhooks[0].secret": "***",
    },
    # the gateway
    "gateway: {port: 8080, match: 'off', session_mode: transcript}": {
        "gateway.port": 8080,
        "gateway.match": "off",
        "gateway.session_mode": "transcript",
    },
    "python: {enabled: true}": {"python.enabled": True},
}
"""What a document writes, and the effective values of `holdfast config show`."""

WARNINGS: Final = {
    "cap": "set storage.sessions.retention to limit disk usage",
    "summary_buffer": "no llm 'fast': used as a model's name",
}
"""Examples that are accepted with a warning."""


@pytest.mark.parametrize("name", BLOCKS)
async def test_an_example_is_accepted_as_written(tmp_path: Path, name: str) -> None:
    await check_accepted(tmp_path, BLOCKS[name], WARNINGS.get(name, ""))


@pytest.mark.parametrize("text", KEYS, ids=lambda text: text[:60])
async def test_a_literal_key_sets_its_value(tmp_path: Path, text: str) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    shown = await run_command(["config", "show", str(file), "--json"], env=ENVIRONMENT)
    assert shown.code == 0, shown.err
    values = {row["key"]: row["value"] for row in json.loads(shown.out)}
    assert {key: values.get(key) for key in KEYS[text]} == KEYS[text]


@pytest.mark.parametrize(
    "text", ["{short_term: {session_ttl: 1h}, sessions: {ttl: 1h}}", "{dreaming: {}, consolidation: {}}"]
)
async def test_two_spellings_in_one_file_are_a_mistake(tmp_path: Path, text: str) -> None:
    file = tmp_path / "holdfast.yaml"
    file.write_text(text)
    checked = await run_command(["config", "check", str(file)])
    assert checked.code != 0
    assert "the same as" in checked.out
