"""Fifty short runs; `make simulate` makes longer ones, with fresh seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.log import align
from holdfast.turns import place
from tests.simulation.run import report, shorten, simulate
from tests.stores import servers

SEEDS = range(50)
STEPS = 4


@pytest.mark.parametrize("tens", range(0, len(SEEDS), 10))
def test_nothing_is_lost_doubled_or_mixed_up(tens: int) -> None:
    for seed in SEEDS[tens : tens + 10]:
        if simulate(seed, steps=STEPS).violation:
            pytest.fail(report(seed, steps=STEPS))


@pytest.mark.parametrize("store", ["sqlite", "postgres", "mysql"])
def test_the_same_holds_on_a_database(store: str, tmp_path: Path) -> None:
    """Without an exact repetition: what is found must be found again by its trace."""
    with servers.place(store, tmp_path) as url:
        for seed in range(1, 4):
            outcome = simulate(seed, steps=3, url=url)
            assert outcome.turns
            assert outcome.violation is None, "\n".join(outcome.trace[-60:])


@pytest.mark.parametrize("seed", [5, 6])
def test_seed_replays_exactly(seed: int) -> None:
    first, again = [simulate(seed, steps=4) for _ in range(2)]
    assert first.turns > 10
    assert again == first


def test_failure_is_found_and_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip of placing: each history is taken for the whole conversation."""

    async def find_less(*args: object, **_: object) -> None:
        return None

    monkeypatch.setattr(place, "find_landing", find_less)
    monkeypatch.setattr(align, "is_seen_prefix", lambda *_: False)
    seed = next(seed for seed in range(100, 140) if simulate(seed).violation)
    clients, steps, outcome = shorten(seed)
    assert outcome.violation
    assert len(clients) <= 3
    assert simulate(seed, steps=steps, only=clients) == outcome
