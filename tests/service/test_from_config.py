"""`holdfast.from_config`: the library gets the same settings as `serve`."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

from holdfast.config.build import BUILDERS
from holdfast.holdfast import Holdfast


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_holdfast_setting_is_configurable_or_listed_as_code_only() -> None:
    """A new setting must be added to one of the two. A configuration brings its roster and life settings as a whole."""
    own = {"url", "tenant", "clock", "new_id", "tools", "summarizers", "scorers", "indexer"}
    own |= {
        "strategies",
        "strategy",
        "budget",
        "session_ttl",
        "retention",
        "max_sessions",
        "max_history_turns",
    }
    assert own.isdisjoint(BUILDERS)
    assert own | BUILDERS.keys() == signature(Holdfast).parameters.keys()
