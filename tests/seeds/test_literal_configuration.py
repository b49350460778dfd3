"""The configuration keys that the product's founding documents write out: each is loaded and has its meaning."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast import config
from holdfast.config import Config
from holdfast.config.build import (
    build_consolidation_settings,
    build_hooks,
    build_index_settings,
    build_life_settings,
    build_python_settings,
    build_roster,
    build_workspace_settings,
)
from holdfast.context.settings import ContextSettings
from holdfast.errors import ConfigError
from holdfast.hooks.transcripts import Transcripts
from holdfast.hooks.webhook import Webhook
from tests.unit.blocks import BLOCKS

ENV = {"DB_HOST": "db.example", "DB_USER": "ada", "DB_PASSWORD": "a@/#b", "OPENAI_API_KEY": "sk-test"}


class LiteralKey(NamedTuple):
    """A key as a document writes it, and the value that it sets."""

    text: str
    """The file."""
    path: str
    """Path of the value in `Config`, or in the options of a strategy."""
    value: Any


KEYS = [
    # a short-term buffer
    LiteralKey("short_term:\n  max_history_turns: 50\n", "sessions.max_messages", 50),
    LiteralKey("short_term:\n  max_sessions: 10000\n", "sessions.max_sessions", 10_000),
    LiteralKey("short_term: {max_sessions: 0}", "sessions.max_sessions", 0),
    LiteralKey("short_term:\n  session_ttl: 24h\n", "sessions.ttl", 86_400.0),
    LiteralKey("sessions: {ttl: 30m}", "sessions.ttl", 1800.0),
    LiteralKey("sessions: {max_sessions: 128}", "sessions.max_sessions", 128),
    LiteralKey("sessions: {max_messages: 50}", "sessions.max_messages", 50),
    LiteralKey("storage: {sessions: {retention: 7d}}", "storage.sessions.retention", 7 * 86_400.0),
    LiteralKey("hooks: {workspace_git: true}", "hooks.workspace_git.enabled", True),
    LiteralKey("hooks: {transcripts_dir: transcripts}", "hooks.transcripts_dir", "transcripts"),
    LiteralKey("dreaming: {enabled: false}", "consolidation.enabled", False),
    LiteralKey("consolidation: {enabled: false}", "consolidation.enabled", False),
    # eviction policies
    LiteralKey("llms: {a: {context_window: 200000}}", "llms.a.context_window", 200_000),
    LiteralKey("llms: {a: {max_tokens: 4096}}", "llms.a.max_tokens", 4096),
    LiteralKey("llms: {a: {count: provider}}", "llms.a.count", "provider"),
    LiteralKey("context: {strategy: head_tail}", "context.strategy", "head_tail"),
    LiteralKey("context: {strategy: salience}", "context.strategy", "salience"),
    LiteralKey("context: {strategy: clear_tool_results, trigger: 30000}", "context.trigger", 30_000),
    LiteralKey("context: {strategy: clear_tool_results, keep: 3}", "context.keep", 3),
    LiteralKey("context: {strategy: clear_tool_results, clear_at_least: 5000}", "context.clear_at_least", 5000),
    LiteralKey("context: {strategy: clear_tool_results, exclude_tools: [plan]}", "context.exclude_tools", ["plan"]),
    # sessions, state, index and working memory
    LiteralKey("storage: {sessions: {backend: inmemory}}", "storage.sessions.backend", "inmemory"),
    LiteralKey("storage: {sessions: {backend: sql, database: main}}", "storage.sessions.backend", "sql"),
    LiteralKey("storage: {sessions: {backend: sql, database: main}}", "storage.sessions.database", "main"),
    LiteralKey("databases: {main: {driver: sqlite, path: .chat/chat.db}}", "databases.main.path", ".chat/chat.db"),
    *(
        LiteralKey(
            f"databases: {{main: {{driver: {driver}, host: '${{DB_HOST}}', port: 5432, database: chat,"
            " user: '${DB_USER}', password: '${DB_PASSWORD}'}}",
            f"databases.main.{key}",
            value,
        )
        for driver in ("postgres", "mysql")
        for key, value in (
            ("driver", driver),
            ("host", "db.example"),
            ("port", 5432),
            ("database", "chat"),
            ("user", "ada"),
            ("password", "a@/#b"),
        )
    ),
    LiteralKey(
        "agents: {a: {instruction: 'Speak {user:language}.'}}", "agents.a.instruction", "Speak {user:language}."
    ),
    LiteralKey("agents: {a: {state: {'app:version': 2.0.0}}}", "agents.a.state", {"app:version": "2.0.0"}),
    LiteralKey("agents: {a: {context: {strategy: none}}}", "agents.a.context.strategy", "none"),
    LiteralKey("agents: {a: {context: {strategy: buffer_window}}}", "agents.a.context.strategy", "buffer_window"),
    LiteralKey("agents: {a: {context: {strategy: token_window}}}", "agents.a.context.strategy", "token_window"),
    LiteralKey("agents: {a: {context: {strategy: summary_buffer}}}", "agents.a.context.strategy", "summary_buffer"),
    LiteralKey("context: {strategy: buffer_window, window_size: 20}", "context.window_size", 20),
    LiteralKey("context: {strategy: token_window, budget: 8000}", "context.budget", 8000),
    LiteralKey("context: {strategy: token_window, preserve_recent: 5}", "context.preserve_recent", 5),
    LiteralKey("context: {strategy: summary_buffer, threshold: 0.85}", "context.threshold", 0.85),
    LiteralKey("context: {strategy: summary_buffer, target: 0.7}", "context.target", 0.7),
    LiteralKey("context: {strategy: summary_buffer, summarizer_llm: fast}", "context.summarizer_llm", "fast"),
    LiteralKey("storage: {memory: {backend: keyword}}", "storage.memory.backend", "keyword"),
    LiteralKey("storage: {memory: {backend: vector, embedder: default}}", "storage.memory.backend", "vector"),
    LiteralKey("storage: {memory: {backend: vector, embedder: default}}", "storage.memory.embedder", "default"),
    LiteralKey(
        "storage: {memory: {vector_provider: {type: chromem}}}", "storage.memory.vector_provider.type", "chromem"
    ),
    LiteralKey(
        "storage: {memory: {vector_provider: {type: chromem, chromem: {persist_path: .chat/vectors}}}}",
        "storage.memory.vector_provider.chromem.persist_path",
        ".chat/vectors",
    ),
    LiteralKey(
        "storage: {memory: {vector_provider: {type: chromem, chromem: {compress: true}}}}",
        "storage.memory.vector_provider.chromem.compress",
        True,
    ),
    LiteralKey("storage: {index: {type: vector, embedder: default}}", "storage.index.type", "vector"),
    LiteralKey("storage: {index: {type: vector, embedder: default}}", "storage.index.embedder", "default"),
    LiteralKey("embedders: {default: {provider: openai}}", "embedders.default.provider", "openai"),
    LiteralKey(
        "embedders: {default: {model: text-embedding-3-small}}", "embedders.default.model", "text-embedding-3-small"
    ),
    LiteralKey("embedders: {default: {api_key: '${OPENAI_API_KEY}'}}", "embedders.default.api_key", "sk-test"),
    LiteralKey("gateway: {port: 8080}", "gateway.port", 8080),
    LiteralKey("agents: {a: {llm: gpt-4o}}", "agents.a.llm", "gpt-4o"),
    LiteralKey("agents: {a: {llm: default}}", "agents.a.llm", "default"),
    LiteralKey("agents: {a: {search: {enabled: true}}}", "agents.a.search.enabled", True),
    LiteralKey("agents: {a: {search: {max_results: 5}}}", "agents.a.search.max_results", 5),
    LiteralKey("agents: {a: {sub_agents: [b]}, b: {}}", "agents.a.sub_agents", ("b",)),
    LiteralKey("agents: {a: {tools: [search]}}", "agents.a.tools", ("search",)),
    LiteralKey("agents: {a: {tools: [text_editor]}}", "agents.a.tools", ("text_editor",)),
    LiteralKey("memory: {enabled: true}", "memory.enabled", True),
    # short-term memory of voice agents
    LiteralKey("llm: {vendor: custom}", "llms.default.provider", "custom"),
    LiteralKey("llm: {vendor: openai}", "llms.default.provider", "openai"),
    LiteralKey("llms: {a: {vendor: custom}}", "llms.a.provider", "custom"),
    LiteralKey("llms: {a: {provider: custom}}", "llms.a.provider", "custom"),
    LiteralKey(
        "llm: {system_messages: [{role: system, content: You are brief.}, {role: system, content: The summary.}]}",
        "llms.default.system_messages",
        ({"role": "system", "content": "You are brief."}, {"role": "system", "content": "The summary."}),
    ),
    LiteralKey("agents: {a: {greeting: Hello.}}", "agents.a.greeting", "Hello."),
    LiteralKey("agents: {a: {failure_message: Sorry.}}", "agents.a.failure_message", "Sorry."),
    LiteralKey("agents: {a: {silence_message: Are you there.}}", "agents.a.silence_message", "Are you there."),
    LiteralKey("hooks: {webhooks: [{url: 'https://x/', secret: s}]}", "hooks.webhooks.0.url", "https://x/"),
    LiteralKey("hooks: {webhooks: [{url: 'https://x/', secret: s}]}", "hooks.webhooks.0.secret", "s"),
    # a session store behind a gateway
    LiteralKey("python: {enabled: true}", "python.enabled", True),
    LiteralKey("gateway: {match: 'off'}", "gateway.match", "off"),
    LiteralKey("gateway: {session_mode: transcript}", "gateway.session_mode", "transcript"),
]
"""All keys. The blocks of the documents as a whole are `tests.unit.blocks.BLOCKS`."""


def load(text: str) -> Config:
    return config.load(text, env=ENV)


def read(value: Any, path: str) -> Any:
    """Return the value at a path, through sections, mappings, lists, and options of strategies."""
    for key in path.split("."):
        if isinstance(value, dict):
            value = value[key]
        elif isinstance(value, tuple):
            value = value[int(key)]
        elif isinstance(value, ContextSettings) and key != "strategy":
            value = value.options[key]
        else:
            assert isinstance(value, msgspec.Struct | ContextSettings), path
            value = getattr(value, key)
    return value


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.text[:60]} {key.path}")
def test_a_literal_key_sets_its_value(key: LiteralKey) -> None:
    assert read(load(key.text), key.path) == key.value


@pytest.mark.parametrize("text", BLOCKS)
def test_a_literal_block_can_be_served(text: str) -> None:
    loaded = load(text)
    assert config.resolve_store_url(loaded)
    assert build_roster(loaded).find_responder() is not None


@pytest.mark.parametrize(
    "text", ["{short_term: {session_ttl: 1h}, sessions: {ttl: 1h}}", "{dreaming: {}, consolidation: {}}"]
)
def test_two_spellings_in_one_file_are_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError, match="the same as"):
        load(text)


# -- what the keys do --------------------------------------------------------------------


def test_limits_of_sessions_have_effect() -> None:
    life = build_life_settings(load("short_term: {max_history_turns: 50, max_sessions: 3, session_ttl: 24h}"))
    assert (life.max_history_turns, life.max_sessions, life.session_ttl) == (50, 3, 86_400_000)


def test_few_sessions_in_memory_are_three_keys() -> None:
    loaded = load("sessions: {max_sessions: 128, ttl: 30m}\nstorage: {sessions: {backend: inmemory}}")
    life = build_life_settings(loaded)
    assert (life.max_sessions, life.session_ttl) == (128, 1_800_000)
    assert config.resolve_store_url(loaded) == "sqlite://:memory:"


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ("driver: sqlite, path: .chat/chat.db", "sqlite:///.chat/chat.db"),
        (
            "driver: postgres, host: h, port: 5432, database: chat, user: '${DB_USER}', password: '${DB_PASSWORD}'",
            "postgresql://ada:a%40%2F%23b@h:5432/chat",
        ),
        ("driver: mysql, host: h, database: chat, user: u, password: p", "mysql://u:p@h:3306/chat"),
    ],
)
def test_sessions_are_stored_in_the_named_database(database: str, url: str) -> None:
    sessions = "storage: {sessions: {backend: sql, database: main}}"
    assert config.resolve_store_url(load(f"databases: {{main: {{{database}}}}}\n{sessions}")) == url


def test_the_vector_provider_of_memories_serves_the_index_too() -> None:
    provider = "{type: chromem, chromem: {persist_path: .chat/vectors, compress: true}}"
    memory = f"memory: {{backend: vector, embedder: default, vector_provider: {provider}}}"
    for index in ("", ", index: {type: vector, embedder: default}"):
        found = build_index_settings(load(f"storage: {{{memory}{index}}}"))
        assert found is not None
        assert (found.folder, found.compress, found.mode) == (".chat/vectors", True, "vector")
        assert found.embedder.model == "text-embedding-3-small"


def test_a_custom_vendor_gets_records_and_system_messages_come_first() -> None:
    text = "llm: {vendor: custom, base_url: 'http://127.0.0.1:9/v1', system_messages: [Be brief.]}"
    llm = build_roster(load(text)).find_responder().llm
    assert llm.records
    assert [message.content for message in llm.system_messages] == ["Be brief."]
    assert not build_roster(load(text.replace("custom", "openai"))).find_responder().llm.records


def test_hooks_are_built() -> None:
    hooks = "hooks: {transcripts_dir: t, workspace_git: true, webhooks: [{url: 'https://x/', secret: s}]}"
    loaded = load(hooks)
    assert [type(one) for one in build_hooks(loaded.hooks, loaded.redaction)] == [Transcripts, Webhook]
    assert build_workspace_settings(loaded.hooks.workspace_git) is not None


def test_tools_of_the_server_are_enabled() -> None:
    assert build_python_settings(load("python: {enabled: true}")) is not None
    assert not build_consolidation_settings(load("dreaming: {enabled: false}").consolidation).enabled
