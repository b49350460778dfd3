"""`config show`: every effective value with its source, and no secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast import config
from holdfast.config.reference import list_rows
from holdfast.sections import mask_url

SECRET = "sk-not-to-be-seen"
FILE = """\
storage: {sessions: {backend: inmemory}}
gateway: {port: 9001}
databases:
  main: {driver: postgres, host: "${HOST:-db}", database: d, password: "${PASSWORD}", options: {sslmode: require}}
context: {strategy: token_window, budget: 4000}
agents:
  a: {context: {preserve_recent: 3}, output_key: answer, state: {api_key: sk-not-to-be-seen, topic: x}}
llms: {default: {model: m, api_key: "${KEY}", params: {seed: 1, x_token: sk-not-to-be-seen}}}
hooks: {webhooks: [{url: "https://x/?t=sk-not-to-be-seen", secret: sk-not-to-be-seen, headers: {X: sk-not-to-be-seen}}]}
mcp_servers: {m: {command: c, args: [--key, sk-not-to-be-seen], env: {A: sk-not-to-be-seen}}}
"""
SOURCES = {
    "model": "llms.default",
    "store": "own.yaml:1",
    "sessions.ttl": "default",
    "sessions.max_sessions": "HOLDFAST_SESSIONS__MAX_SESSIONS",
    "gateway.port": "own.yaml:2",
    "gateway.host": "HOLDFAST_HOST",
    "gateway.tool_timeout": ".env:2: HOLDFAST_GATEWAY__TOOL_TIMEOUT",
    "gateway.max_body": "default",
    "databases.main.password": "own.yaml:4, PASSWORD from .env:1",
    "databases.main.host": "own.yaml:4",
    "databases.main.options.sslmode": "own.yaml:4",
    "context.budget": "own.yaml:5",
    "agents.a.context.strategy": "own.yaml:5",
    "agents.a.context.budget": "own.yaml:5",
    "agents.a.context.preserve_recent": "own.yaml:7",
    "agents.a.state.topic": "own.yaml:7",
    "llms.default.api_key": "own.yaml:8, KEY from environment",
    "llms.default.params.seed": "own.yaml:8",
    "hooks.webhooks[0].url": "own.yaml:9",
    "hooks.webhooks[0].events": "default",
}
VALUES = {
    "model": "m",
    "store": "sqlite://:memory:",
    "gateway.host": "127.0.0.2",
    "gateway.tool_timeout": "3s",
    "agents.a.output_key": "answer",
    "agents.a.state.api_key": "***",
    "llms.default.params.x_token": "***",
    "mcp_servers.m.args": ["***", "***"],
}


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Write the file and its `.env`; return the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(FILE)
    (tmp_path / ".env").write_text(f"PASSWORD={SECRET}\nHOLDFAST_GATEWAY__TOOL_TIMEOUT=3s\n")
    return {
        "KEY": SECRET,
        "HOLDFAST_CONFIG": "own.yaml",
        "HOLDFAST_HOST": "127.0.0.2",
        "HOLDFAST_SESSIONS__MAX_SESSIONS": "7",
    }


def test_every_value_has_its_source(env: dict[str, str]) -> None:
    """File and line, variable, `.env` or default."""
    text, data = config.show_config(None, env)
    sources = {value["key"]: value["source"] for value in data}
    assert {key: sources[key] for key in SOURCES} == SOURCES
    shown = {value["key"]: value["value"] for value in data}
    assert {key: shown[key] for key in VALUES} == VALUES
    assert SECRET not in text + json.dumps(data)
    assert "gateway.port: 9001" in text
    lines = text.splitlines()
    assert len(lines) == len(data)
    assert all("  # " in line for line in lines)


def test_the_store_is_shown_with_its_source(env: dict[str, str]) -> None:
    """From the file, or from the variable that overrides it."""
    Path("own.yaml").write_text(FILE.replace("storage: {sessions: {backend: inmemory}}", ""))
    _, data = config.show_config(None, env)
    assert data[1] == {
        "key": "store",
        "value": "postgresql://:***@db:5432/d?***",
        "source": "databases, storage.sessions",
    }
    _, data = config.show_config(None, {**env, "HOLDFAST_STORE": "sqlite:///x.db"})
    assert data[1] == {"key": "store", "value": "sqlite:///x.db", "source": "HOLDFAST_STORE"}


def test_every_key_with_a_default_is_shown(env: dict[str, str]) -> None:
    _, data = config.show_config(None, {})
    keys = {value["key"] for value in data}
    has_default = {row.key for row in list_rows() if row.default not in ("", "needed") and "NAME" not in row.key}
    of_context = {row.key for row in list_rows() if row.key.startswith(("context.", "storage.memory", "storage.index"))}
    optional = {key for key in has_default if key.startswith(("auth.jwt.", "hooks.webhooks[]", "hooks.workspace_git"))}
    assert has_default - of_context - optional - {"secret_guard.enabled", "secret_guard.on_secret"} <= keys


@pytest.mark.parametrize("sign", ["/", "#", "?", "/#?"])
def test_a_password_that_breaks_its_url_is_not_shown(sign: str) -> None:
    shown = mask_url(f"postgresql://ada:s3{sign}cret@db:5432/chat")
    assert shown == "postgresql://***"
    assert mask_url("sqlite:////home/ada@home/chat.db") == "sqlite:////home/ada@home/chat.db"
