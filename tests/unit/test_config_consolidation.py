"""The key `dreaming`: settings, defaults and rejected values."""

from __future__ import annotations

import pytest

from holdfast import config
from holdfast.config.build import build_consolidation_settings, build_memory_settings
from holdfast.consolidation.promotion import PromotionSettings, Weights
from holdfast.consolidation.sweeps import ConsolidationSettings
from holdfast.errors import ConfigError
from holdfast.memory.ranking import DAY, HALF_LIVES


def load_settings(text: str) -> ConsolidationSettings:
    found = config.load(text, env={})
    return build_consolidation_settings(found.consolidation, build_memory_settings(found).half_lives)


def test_without_the_key_library_defaults_apply() -> None:
    made = load_settings("")
    plain = ConsolidationSettings()
    assert (made.enabled, made.interval, made.signals_kept, made.inject_budget) == (True, DAY, 180 * DAY, 800)
    assert (made.interval, made.signals_kept) == (plain.interval, plain.signals_kept)
    for name in ("weights", "min_recalls", "min_queries", "min_days", "min_score", "max_promotions"):
        assert getattr(made.decides, name) == getattr(PromotionSettings(), name), name


def test_configured_values_are_used() -> None:
    made = load_settings(
        "dreaming: {enabled: false, interval: 6h, min_days: 2, min_score: 0.5, weights: {relevance: 1}, inject_budget: 0}"
    )
    assert (made.enabled, made.interval, made.inject_budget) == (False, DAY // 4, 0)
    assert (made.decides.min_days, made.decides.min_score) == (2, 0.5)
    assert made.decides.weights == Weights(relevance=1.0)


def test_half_lives_are_those_of_memories() -> None:
    made = load_settings("storage: {memory: {half_life: {project: 7d, user: 0}}}")
    assert made.decides.half_lives["project"] == 7
    assert 0 < made.decides.half_lives["user"] < 1e-3, "only new recalls count"
    assert "episodic" not in made.decides.half_lives or made.decides.half_lives["episodic"] == HALF_LIVES["episodic"]


@pytest.mark.parametrize(
    "text",
    [
        "{interval: 1s}",
        "{signals_kept: 1h}",
        "{weights: {frequency: 2}}",
        "{weights: {frequency: 0, relevance: 0, recency: 0, diversity: 0, consolidation: 0}}",
        "{min_recalls: 0}",
        "{max_promotions: 201}",
        "{min_score: x}",
        "{intervall: 1d}",
        "{weights: {recencey: 0.1}}",
    ],
)
def test_invalid_values_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        load_settings(f"dreaming: {text}")
