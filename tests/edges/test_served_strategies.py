"""`holdfast.serve` with strategies of the application: the configuration, requests and the description know their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.config.model import Config
from holdfast.context.settings import STRATEGIES
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.server.app import ROUTES
from holdfast.server.openapi import describe_api

CONFIG = "agents: {a: {context: {strategy: keep_even, budget: 200, threshold: 0.5}}}\n"


def keep_all(units: Any, budget: int) -> list[int]:
    return [unit.seq for unit in units]


def test_name_is_known_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not before or afterwards, also if the configuration is wrong."""
    (tmp_path / "h.yaml").write_text(CONFIG.replace("keep_even", "keep_all"))
    seen: list[Config] = []

    def serve(config: Config, **_: Any) -> int:
        seen.append(config)
        assert "keep_all" in STRATEGIES
        assert '"keep_all"' in json.dumps(describe_api(ROUTES)["components"])
        return 0

    monkeypatch.setattr("holdfast.server.run.serve", serve)
    monkeypatch.chdir(tmp_path)
    assert holdfast.serve("h.yaml", env={}, strategies={"keep_all": keep_all}) == 0
    assert seen[0].agents["a"].context is not None
    assert seen[0].agents["a"].context.options == {"budget": 200, "threshold": 0.5}
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
