"""`holdfast.serve` with strategies of the application: the configuration, requests and the description know their names."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast.config import ServerSettings
from holdfast.context.settings import STRATEGIES
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.server.app import ROUTES
from holdfast.server.openapi import describe_api
from tests.edges.server import Process

CONFIG = "agents: {a: {context: {strategy: keep_even, budget: 200, threshold: 0.5}}}\n"
PROGRAM = """
import holdfast


def keep_even(units, budget):
    return [unit.seq for unit in units if unit.seq % 2 == 0]


holdfast.serve(strategies={"keep_even": keep_even})
"""


def keep_all(units: Any, budget: int) -> list[int]:
    return [unit.seq for unit in units]


def test_configuration_names_the_strategy_and_is_read_again(tmp_path: Path) -> None:
    """In a real server: for an agent, in a request, in the OpenAPI document, and after SIGHUP."""
    config = tmp_path / "h.yaml"
    config.write_text(CONFIG)
    url = f"sqlite:///{tmp_path}/s.db"
    with Process(url, config=config, program=("-c", PROGRAM)) as server, httpx2.Client(trust_env=False) as client:
        said = [{"role": "user", "content": f"Question {at}: where is order A-{at}?"} for at in range(30)]
        imported = client.put(f"{server.url}/v1/sessions/s", json={"agent": "a", "messages": said})
        assert imported.status_code == 200, imported.text
        for body in ({"explain": True}, {"strategy": "keep_even", "budget": 150, "explain": True}):
            context = client.post(f"{server.url}/v1/sessions/s/context", json=body).json()
            reasons = {run["reason"] for run in context["decisions"]}
            assert "over the budget, and not chosen by the strategy keep_even" in reasons
        document = client.get(f"{server.url}/openapi.json").json()
        field = document["components"]["schemas"]["ContextRequest"]["properties"]["strategy"]
        assert field["enum"] == [*STRATEGIES, "keep_even", None]
        assert "`keep_even`: a strategy of the application" in field["description"]
        config.write_text(CONFIG.replace("0.5", "0.9"))
        server.process.send_signal(signal.SIGHUP)
        server.until("reloaded the configuration")
        assert server.stop(signal.SIGTERM) == 0


def test_name_is_known_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before or afterwards, also if the configuration is wrong."""
    (tmp_path / "h.yaml").write_text(CONFIG.replace("keep_even", "keep_all"))
    seen: list[ServerSettings] = []

    def serve(settings: ServerSettings, **_: Any) -> int:
        seen.append(settings)
        assert "keep_all" in STRATEGIES
        assert '"keep_all"' in json.dumps(describe_api(ROUTES)["components"])
        return 0

    monkeypatch.setattr("holdfast.server.run.serve", serve)
    monkeypatch.chdir(tmp_path)
    assert holdfast.serve("h.yaml", env={}, strategies={"keep_all": keep_all}) == 0
    assert seen[0].config.agents["a"].context is not None
    assert seen[0].config.agents["a"].context.options == {"budget": 200, "threshold": 0.5}
    assert '"keep_all"' not in json.dumps(describe_api(ROUTES)["components"])
    with pytest.raises(ConfigError, match="unknown strategy 'keep_all'"):
        holdfast.serve("h.yaml", env={})
    (tmp_path / "h.yaml").write_text("gatway: {}")
    with pytest.raises(ConfigError):
        holdfast.serve("h.yaml", env={}, strategies={"keep_all": keep_all})
    assert "keep_all" not in STRATEGIES


@pytest.mark.parametrize("strategies", [{"digest": keep_all}, {"mine": 3}, [keep_all]])
def test_invalid_strategies_are_refused(strategies: Any) -> None:
    with pytest.raises(InvalidRequest, match="strategies"):
        holdfast.serve(env={}, strategies=strategies)
