"""Effective configuration: models, store and address, the output of `config check`, and masked secrets."""

from __future__ import annotations

import pytest

from holdfast.config import loader
from holdfast.config.model import Config
from holdfast.config.resolve import resolve_llm
from holdfast.errors import ConfigError

SECRET = "sk-not-to-be-seen"


def load(text: str, **env: str) -> Config:
    return loader.load(text, env=env)


# -- defaults --------------------------------------------------------------------


def test_anthropic_entries_use_only_anthropic_variables() -> None:
    """A key is sent neither to the other provider nor to a configured `base_url`."""
    text = (
        "llms: {c: {provider: anthropic}, d: {provider: anthropic, base_url: 'https://r.example'}, o: {model: gpt-4o}}"
    )
    env = {"OPENAI_API_KEY": "sk-o", "ANTHROPIC_API_KEY": "sk-ant", "ANTHROPIC_BASE_URL": "https://a.example"}
    places = [resolve_llm(load(text, **env), name) for name in "cdo"]
    assert [(place.base_url, place.api_key) for place in places] == [
        ("https://a.example", "sk-ant"),
        ("https://r.example", None),
        ("https://api.openai.com/v1", "sk-o"),
    ]
    assert places[0].model == "c"
    assert resolve_llm(load("llms: {default: {provider: anthropic}}")).model == "claude-haiku-4-5"


def test_invalid_environment_variables_are_rejected() -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load("", env={"OPENAI_BASE_URL": "localhost:1234", "OPENAI_API_KEY": "a\nb"}, source="defaults")
    first, second = caught.value.problems
    assert first.startswith("defaults: environment variable OPENAI_BASE_URL: expected a URL")
    assert second.startswith("defaults: environment variable OPENAI_API_KEY: must be printable")


# -- models ----------------------------------------------------------------------------


def test_the_environment_key_is_not_sent_to_a_configured_url() -> None:
    found = load("llms: {a: {base_url: 'https://elsewhere.example/v1'}}", OPENAI_API_KEY=SECRET)
    assert resolve_llm(found, "a").api_key is None
