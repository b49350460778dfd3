"""Which recalled memories are promoted, when, and what of them sessions are told: the key `dreaming`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from holdfast.config.kinds import Duration, Mistake, Settings
from holdfast.consolidation.promotion import DreamSettings, Weights
from holdfast.consolidation.sweeps import LEAST_INTERVAL, DreamingSettings
from holdfast.limits import MEMORIES_AT_ONCE
from holdfast.memory.ranking import DAY

_Share = Annotated[float, Meta(ge=0, le=1)]
_Least = Annotated[int, Meta(ge=1, le=200)]
_LEAST_HALF_LIFE: Final = 1e-6
"""Days that stand for a half-life of 0."""


class DreamWeights(Settings, frozen=True, kw_only=True):
    """How much each figure of a memory's recalls counts."""

    frequency: _Share = 0.24
    """How often it was recalled: by the logarithm, six times are enough."""
    relevance: _Share = 0.30
    """How well it answered."""
    recency: _Share = 0.15
    """How long ago the last recall was, by the half-life of its type."""
    diversity: _Share = 0.15
    """By how many different questions: five are enough."""
    consolidation: _Share = 0.10
    """On how many days: five are enough."""

    def mistakes(self) -> list[Mistake]:
        return (
            [] if any(msgspec.structs.astuple(self)) else [("frequency", "all weights are 0; one has to be above it")]
        )


class Dreaming(Settings, frozen=True, kw_only=True):
    """Dreams: sweeps that promote the memories that were recalled often, well and differently."""

    enabled: bool = True
    """Whether they happen by themselves; somebody may ask for one in any case."""
    interval: Duration = 86_400.0
    """Between two dreams of an owner; at least a minute."""
    weights: DreamWeights = DreamWeights()
    min_recalls: _Least = 3
    """Recalls that a memory needs; those of one session and day count once."""
    min_queries: _Least = 2
    """Really different questions."""
    min_days: _Least = 1
    """Different days (UTC)."""
    min_score: _Share = 0.35
    """Score that is enough."""
    max_promotions: Annotated[int, Meta(ge=0, le=MEMORIES_AT_ONCE)] = 20
    """Most promotions in one sweep, the best first."""
    signals_kept: Duration = 15_552_000.0
    """How long recalls count; at least a day."""
    inject_budget: Annotated[int, Meta(ge=0, le=32_000)] = 800
    """Tokens of promoted memories that a session of an agent with memory is told when it begins; 0: none are."""
    model: Annotated[str, Meta(min_length=1)] | None = None
    """An llm, or a model's name, that is asked which promoted memories say the same, and proposes merges for review; null: none is."""

    def mistakes(self) -> list[Mistake]:
        short = self.interval * 1000 < LEAST_INTERVAL
        found: list[Mistake] = [("interval", "expected at least 1m: dreams go over all that was recalled")] * short
        return found + [("signals_kept", "expected at least 1d")] * (self.signals_kept * 1000 < DAY)


def dreaming_of(dreaming: Dreaming | None, half_lives: Mapping[str, float]) -> DreamingSettings:
    """Dreams, as configured.

    Args:
        dreaming: the key; None: as it is where nobody says.
        half_lives: days by type of memory, as `storage.memory.half_life` has them.
    """
    given = dreaming or Dreaming()
    names = ("min_recalls", "min_queries", "min_days", "min_score", "max_promotions")
    decides = DreamSettings(
        weights=Weights(**msgspec.structs.asdict(given.weights)),
        half_lives={kind: max(days, _LEAST_HALF_LIFE) for kind, days in half_lives.items()},
        **{name: getattr(given, name) for name in names},
    )
    return DreamingSettings(
        enabled=given.enabled,
        interval=round(given.interval * 1000),
        decides=decides,
        signals_kept=round(given.signals_kept * 1000),
        inject_budget=given.inject_budget,
        model=given.model,
    )
