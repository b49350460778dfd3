"""`embedders`: entries, where API keys are sent, and rejected values."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import config
from holdfast.config import resolve_embedder
from holdfast.embedders import EmbedderSettings, embedder_of
from holdfast.errors import ConfigError

OPENAI = "https://api.openai.com/v1"


def load_embedder(text: str, name: str = "e", **env: str) -> EmbedderSettings:
    return resolve_embedder(config.load(text, env=env), name)


def test_openai_url_and_key_come_from_the_environment() -> None:
    found = load_embedder("embedders: {e: {}}", OPENAI_API_KEY="k", OPENAI_BASE_URL="http://proxy/v1/")
    assert (found.base_url, found.api_key, found.name) == ("http://proxy/v1", "k", "openai/text-embedding-3-small")
    assert load_embedder("embedders: {e: {}}").base_url == OPENAI


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


def test_every_key_is_applied() -> None:
    text = """
embedders:
  e:
    provider: vllm
    model: BAAI/bge-m3
    base_url: http://10.0.0.2:8000/v1/
    api_key: secret
    headers: {x-team: a}
    dimension: 1024
    min_similarity: 0.4
    query_prefix: "query: "
    passage_prefix: "passage: "
"""
    found = load_embedder(text)
    assert found == EmbedderSettings(
        provider="vllm",
        model="BAAI/bge-m3",
        base_url="http://10.0.0.2:8000/v1",
        api_key="secret",
        headers={"x-team": "a"},
        dimension=1024,
        min_similarity=0.4,
        query_prefix="query: ",
        passage_prefix="passage: ",
    )
    assert found.name == "vllm/BAAI/bge-m3+prefix-f8a2e22f", "the dimension of another server is checked, not requested"
    assert "secret" not in repr(found)
    assert load_embedder("embedders: {e: {provider: ollama, model: m}}").base_url == "http://127.0.0.1:11434/v1"


@pytest.mark.parametrize(
    ("env", "name"), [({}, "local/all-MiniLM-L6-v2"), ({"OPENAI_API_KEY": "k"}, "openai/text-embedding-3-small")]
)
@pytest.mark.parametrize("embedder", ["default", "main"])
def test_default_and_main_need_no_entry(embedder: str, env: dict[str, str], name: str) -> None:
    found = load_embedder("{}", embedder, **env)
    assert (found.name, found.api_key) == (name, env.get("OPENAI_API_KEY"))
    assert load_embedder(f"embedders: {{{embedder}: {{model: mine}}}}", embedder).model == "mine"


def test_an_unknown_name_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no embedder 'x'; known: e, default, main"):
        load_embedder("embedders: {e: {}}", "x")


@pytest.mark.parametrize(
    ("entry", "floor"),
    [
        ("{provider: local}", 0.3),
        ("{provider: local, min_similarity: 0}", 0.0),
        ("{provider: local, min_similarity: 0.45}", 0.45),
        ("{}", 0.0),
        ("{model: all-MiniLM-L6-v2, min_similarity: 0.25}", 0.25),
    ],
)
def test_only_local_models_have_a_default_similarity_floor(entry: str, floor: float) -> None:
    assert embedder_of(load_embedder(f"embedders: {{e: {entry}}}")).min_similarity == floor


@pytest.mark.parametrize(
    "entry", ["{provider: local}", "{provider: local, model: all-MiniLM-L6-v2, dimension: 384, path: w}"]
)
def test_the_local_provider_has_no_url_and_no_key(entry: str) -> None:
    found: dict[str, Any] = {"base_url": "", "api_key": None, "model": "all-MiniLM-L6-v2"}
    given = load_embedder(f"embedders: {{e: {entry}}}", OPENAI_API_KEY="k")
    assert {key: getattr(given, key) for key in found} == found
