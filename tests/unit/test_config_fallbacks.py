"""Fallback models in the configuration: warnings of `holdfast config check` and the resulting clients."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import config
from holdfast.config import list_warnings
from holdfast.config.build import Clients, build_roster
from holdfast.durations import parse_duration
from holdfast.errors import ConfigError
from holdfast.limits import FALLBACKS, UPSTREAM_CALL_SECONDS
from holdfast.models import LimitedModel, OpenAIModel

PLACE = "base_url: 'http://127.0.0.1:9/v1', model: gpt-4o"


def list_fallback_warnings(text: str) -> list[str]:
    return [line.partition(": ")[2] for line in list_warnings(config.load(text, env={})) if "fallbacks" in line]


def test_known_names_give_no_warning() -> None:
    """Two may name each other; a well-known model needs no entry."""
    text = f"llms: {{a: {{{PLACE}, fallbacks: [b, gpt-4o-mini, offline]}}, b: {{{PLACE}, fallbacks: a}}, default: {{{PLACE}}}}}"
    assert list_fallback_warnings(text) == []


@pytest.mark.parametrize(
    ("fallbacks", "said"),
    [
        ("[fsat]", "no llm 'fsat': used as a model's name; did you mean 'fast'?"),
        ("[a]", "'a' is the same model: it is called once"),
        ("[default]", "'default' is the same model: it is called once"),
        ("[fast, fast]", "'fast' is listed before: it is called once"),
    ],
)
def test_fallbacks_that_will_not_be_called_give_a_warning(fallbacks: str, said: str) -> None:
    more = "" if "default" in fallbacks else f", default: {{{PLACE}}}"
    text = f"llms: {{a: {{{PLACE}, fallbacks: {fallbacks}}}, fast: {{{PLACE}}}{more}}}"
    if not more:
        text = f"llms: {{a: {{{PLACE}, fallbacks: {fallbacks}}}}}"
    assert list_fallback_warnings(text) == [f"llms.a.fallbacks: {said}"]


def test_passthrough_warns_about_fallbacks_at_another_url() -> None:
    """The client's key is not forwarded there, but it is to another model at the same URL."""
    elsewhere = "base_url: 'http://127.0.0.1:8/v1', model: gpt-4o"
    text = f"llms: {{a: {{{PLACE}, fallbacks: [b, c]}}, b: {{{PLACE}}}, c: {{{elsewhere}}}, default: {{{PLACE}}}}}"
    assert list_fallback_warnings(text) == []
    (warning,) = list_fallback_warnings(f"{text}\ngateway: {{upstream_auth: passthrough}}")
    assert warning.startswith("llms.a.fallbacks: 'c' has another address")


def test_too_many_fallbacks_are_rejected() -> None:
    names = ", ".join(f"m{n}" for n in range(FALLBACKS + 1))
    with pytest.raises(ConfigError, match=f"fallbacks: at most {FALLBACKS}, got {FALLBACKS + 1}"):
        config.load(f"llms: {{a: {{{PLACE}, fallbacks: [{names}]}}}}", env={})


def test_all_names_of_an_entry_share_one_client_and_one_limit() -> None:
    """`default`, the entry's name and a model name at its URL are one upstream."""
    text = f"llms: {{a: {{{PLACE}, max_requests: 2}}}}\nagents: {{x: {{llm: gpt-4.1}}, y: {{llm: a}}}}"
    roster = build_roster(config.load(text, env={}))
    clients = {id(llm.client) for llm in roster.llms.values()}
    assert len(clients) == 1
    assert isinstance(roster.find_llm("a").client, LimitedModel)
    assert roster.find_llm("gpt-4.1").client is roster.find_llm("anything").client is roster.find_llm(None).client
    assert [upstream.name for _, upstream in roster.upstreams] == ["a"]


def test_calls_wait_for_a_busy_model_as_long_as_for_a_busy_session() -> None:
    """A reload changes the time for the client that is kept."""
    text, clients = f"llms: {{a: {{{PLACE}, max_requests: 2}}}}\n", Clients()
    before = build_roster(config.load(text, env={}), clients).find_llm("a").client
    assert isinstance(before, LimitedModel)
    assert before.patience == 300.0
    after = build_roster(config.load(f"{text}gateway: {{queue_timeout: 20m}}", env={}), clients).find_llm("a").client
    assert after is before
    assert before.patience == 1200.0


@pytest.mark.parametrize(("timeout", "total"), [("1m", 1800.0), ("2h", 7200.0)])
def test_long_timeout_extends_the_whole_call(timeout: str, total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("holdfast.config.build.OpenAIModel", lambda *_, **options: given.update(options))
    build_roster(config.load(f"llms: {{a: {{{PLACE}, timeout: {timeout}}}}}", env={}))
    assert (given["read_timeout"], given["total_timeout"]) == (parse_duration(timeout), total)


def test_an_upstream_is_named_after_its_entry() -> None:
    text = f"llms: {{default: {{{PLACE}, fallbacks: [qwen3, b]}}, b: {{{PLACE}}}}}"
    assert [upstream.name for _, upstream in build_roster(config.load(text, env={})).upstreams] == ["default", "b"]


def test_without_a_limit_the_client_is_not_wrapped() -> None:
    roster = build_roster(config.load(f"llms: {{a: {{{PLACE}, timeout: 7s}}}}", env={}))
    client = roster.find_llm("a").client
    assert isinstance(client, OpenAIModel)
    assert (client._read_timeout, client._total_timeout) == (7, UPSTREAM_CALL_SECONDS)
