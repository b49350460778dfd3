"""The configured index: blocks of other systems unchanged, and the two sections that configure it."""

from __future__ import annotations

from holdfast.config.build import build_index_settings
from holdfast.config.loader import load
from holdfast.indexes.settings import IndexSettings

KEY = {"OPENAI_API_KEY": "sk-test"}


def load_index(text: str, env: dict[str, str] = KEY) -> IndexSettings:
    """Return the index settings of a configuration."""
    found = build_index_settings(load(text, env=env))
    assert found is not None
    return found


def test_without_a_key_in_the_environment_the_default_embedder_is_the_local_one() -> None:
    assert load_index("storage: {index: {type: hybrid, embedder: default}}", {}).embedder.provider == "local"


def test_the_environment_key_is_not_sent_to_a_reranker() -> None:
    assert load_index("storage: {index: {rerank: {base_url: 'http://x/v1', model: m}}}").rerank.api_key is None
