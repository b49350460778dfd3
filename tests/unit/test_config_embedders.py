"""`embedders`: entries, where API keys are sent, and rejected values."""

from __future__ import annotations

import pytest

from holdfast.config.loader import load
from holdfast.config.resolve import resolve_embedder
from holdfast.embedders import EmbedderSettings


def load_embedder(text: str, name: str = "e", **env: str) -> EmbedderSettings:
    return resolve_embedder(load(text, env=env), name)


@pytest.mark.parametrize(
    "entry",
    [
        "{base_url: 'http://elsewhere/v1', model: m}",
        "{provider: ollama, model: m}",
        "{provider: vllm, model: m, base_url: 'http://elsewhere/v1'}",
        "{provider: local}",
    ],
)
def test_the_environment_key_is_used_only_for_openai(entry: str) -> None:
    found = load_embedder(f"embedders: {{e: {entry}}}", OPENAI_API_KEY="k", OPENAI_BASE_URL="http://proxy/v1")
    assert found.api_key is None
    assert "proxy" not in found.base_url
