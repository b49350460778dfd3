"""`config show`: every effective value with its source, and no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

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


@pytest.mark.parametrize("sign", ["/", "#", "?", "/#?"])
def test_a_password_that_breaks_its_url_is_not_shown(sign: str) -> None:
    shown = mask_url(f"postgresql://ada:s3{sign}cret@db:5432/chat")
    assert shown == "postgresql://***"
    assert mask_url("sqlite:////home/ada@home/chat.db") == "sqlite:////home/ada@home/chat.db"
