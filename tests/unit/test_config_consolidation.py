"""The section `consolidation`, also called `dreaming`: settings, defaults and rejected values."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.config.build import build_consolidation_settings
from holdfast.consolidation.sweeps import ConsolidationSettings
from holdfast.memory.ranking import DAY


def load_settings(text: str) -> ConsolidationSettings:
    return build_consolidation_settings(config.load(text, env={}).consolidation)


def test_without_the_key_library_defaults_apply() -> None:
    assert load_settings("") == ConsolidationSettings(enabled=True, interval=DAY) == ConsolidationSettings()


@pytest.mark.parametrize("section", ["consolidation", "dreaming"])
def test_configured_values_are_used(section: str) -> None:
    made = load_settings(f"{section}: {{enabled: false, interval: 6h}}")
    assert made == ConsolidationSettings(enabled=False, interval=DAY // 4)
