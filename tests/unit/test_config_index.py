"""The configured index: blocks of other systems unchanged, and the two sections that configure it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import config
from holdfast.config.build import build_index_settings
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.indexes.settings import IndexSettings, parse_index_settings

KEY = {"OPENAI_API_KEY": "sk-test"}


def load_index(text: str, env: dict[str, str] = KEY) -> IndexSettings:
    """Return the index settings of a configuration."""
    found = build_index_settings(config.load(text, env=env))
    assert found is not None
    return found


def test_the_default_is_a_keyword_index() -> None:
    assert load_index("") == IndexSettings()
    assert load_index("storage: {memory: {backend: keyword}}") == IndexSettings()


def test_the_index_can_be_disabled() -> None:
    assert build_index_settings(config.load("storage: {index: {enabled: false}}", env={})) is None


@pytest.mark.parametrize(
    "section", ["memory: {backend: vector, embedder: default}", "index: {type: vector, embedder: default}"]
)
@pytest.mark.parametrize("embedders", ["", "embedders: {default: {provider: openai, model: text-embedding-3-small}}"])
def test_a_missing_default_embedder_comes_from_the_environment(section: str, embedders: str) -> None:
    found = load_index(f"storage: {{{section}}}\n{embedders}")
    assert (found.mode, found.embedder.model) == ("vector", "text-embedding-3-small")
    assert found.embedder.api_key == "sk-test"


def test_without_a_key_in_the_environment_the_default_embedder_is_the_local_one() -> None:
    assert load_index("storage: {index: {type: hybrid, embedder: default}}", {}).embedder.provider == "local"


def test_vectors_are_stored_at_the_configured_chromem_path() -> None:
    found = load_index(
        """
        storage:
          memory:
            backend: vector
            embedder: default
            vector_provider:
              type: chromem           # Embedded vector store
              chromem:
                persist_path: .hector/memory_vectors
                compress: true        # Gzip compression
        """
    )
    assert (found.folder, found.compress, found.url) == (".hector/memory_vectors", True, None)


def test_index_settings_override_those_of_memory() -> None:
    memory = "memory: {backend: vector, embedder: mine}"
    embedders = "embedders: {mine: {model: m1}, yours: {model: m2}}"
    found = load_index(f"storage: {{{memory}, index: {{type: keyword}}}}\n{embedders}")
    assert (found.mode, found.embedder.model) == ("keyword", "m1")
    found = load_index(f"storage: {{{memory}, index: {{type: hybrid, embedder: yours}}}}\n{embedders}")
    assert (found.mode, found.embedder.model) == ("hybrid", "m2")
    found = load_index(f"storage: {{{memory}, index: {{enabled: true}}}}\n{embedders}")
    assert (found.mode, found.embedder.model) == ("vector", "m1")


def test_an_unknown_embedder_is_an_error_when_it_is_used() -> None:
    text = "storage: {index: {type: vector, embedder: nobody}}"
    loaded = config.load(text, env={})
    with pytest.raises(ConfigError, match="no embedder 'nobody'"):
        build_index_settings(loaded)


@pytest.mark.parametrize("given", [3, True, object(), ""])
def test_the_index_argument_must_be_settings_a_url_or_none(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        parse_index_settings(given)


@pytest.mark.parametrize("given", [{"mode": "magic"}, {"mode": "vector"}, {"url": "sqlite:///a.db", "folder": "b"}])
def test_invalid_settings_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        IndexSettings(**given)


def test_a_reranker_is_configured_in_the_index_section() -> None:
    assert load_index("storage: {index: {type: keyword}}").rerank is None
    found = load_index(
        """
        storage:
          index:
            rerank:
              base_url: https://api.example.com/v2/
              model: rerank-v4.0
              api_key: ${RERANK_KEY}
        """,
        {"RERANK_KEY": "sk-rerank", **KEY},
    ).rerank
    assert (found.base_url, found.model, found.api_key) == ("https://api.example.com/v2", "rerank-v4.0", "sk-rerank")
    assert found.form == "cohere"
    assert "sk-rerank" not in repr(found)
    local = load_index("storage: {index: {rerank: {path: models/reranker}}}").rerank
    assert local.path == "models/reranker"


def test_the_environment_key_is_not_sent_to_a_reranker() -> None:
    assert load_index("storage: {index: {rerank: {base_url: 'http://x/v1', model: m}}}").rerank.api_key is None


def test_text_embeddings_inference_needs_no_model() -> None:
    assert load_index("storage: {index: {rerank: {base_url: 'http://x', form: tei}}}").rerank.form == "tei"
