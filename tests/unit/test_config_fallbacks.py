"""Fallback models in the configuration: warnings of `holdfast config check` and the resulting clients."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config.build import build_roster
from holdfast.config.loader import load
from holdfast.durations import parse_duration
from holdfast.models.limited import LimitedModel

PLACE = "base_url: 'http://127.0.0.1:9/v1', model: gpt-4o"


def test_all_names_of_an_entry_share_one_client_and_one_limit() -> None:
    """`default`, the entry's name and a model name at its URL are one upstream."""
    text = f"llms: {{a: {{{PLACE}, max_requests: 2}}}}\nagents: {{x: {{llm: gpt-4.1}}, y: {{llm: a}}}}"
    roster = build_roster(load(text, env={}))
    clients = {id(llm.client) for llm in roster.llms.values()}
    assert len(clients) == 1
    assert isinstance(roster.find_llm("a").client, LimitedModel)
    assert roster.find_llm("gpt-4.1").client is roster.find_llm("anything").client is roster.find_llm(None).client
    assert [upstream.name for _, upstream in roster.upstreams] == ["a"]


@pytest.mark.parametrize(("timeout", "total"), [("1m", 1800.0), ("2h", 7200.0)])
def test_long_timeout_extends_the_whole_call(timeout: str, total: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("holdfast.config.build.OpenAIModel", lambda *_, **options: given.update(options))
    build_roster(load(f"llms: {{a: {{{PLACE}, timeout: {timeout}}}}}", env={}))
    assert (given["read_timeout"], given["total_timeout"]) == (parse_duration(timeout), total)
