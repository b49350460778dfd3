"""Scorers after turns: their input, their answers, their failures, and their scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.overlays.scorers import BATCH
from holdfast.overlays.scoring import PAUSE, TRIES
from tests.service.scoring_kit import REF, RecordingScorer, by_length, open_rig, user

# -- input and results -------------------------------------------------------------


async def test_importance_given_during_scoring_is_kept() -> None:
    async with open_rig(None) as rig:
        await rig.say(user("one"), user("two"))

        async def scorer(messages: Sequence[dict[str, Any]]) -> list[float]:
            await rig.store.annotate(REF, 0, importance=0.05)
            return [0.9] * len(messages)

        rig.scorer = scorer
        assert await rig.score() == 1
        assert await rig.importances() == [0.05, 0.9]


# -- failures ----------------------------------------------------------------------


async def test_failing_batch_shrinks_and_is_finally_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One message that a scorer cannot handle must not block later ones."""
    poison = "the one it cannot take"

    def answer(messages: list[dict[str, Any]]) -> Any:
        return ValueError("no") if any(message["content"] == poison for message in messages) else by_length(messages)

    scorer = RecordingScorer(answer)
    async with open_rig(scorer) as rig:
        await rig.say(user(poison), *(user(f"message {number}") for number in range(2 * BATCH)))
        for _ in range(TRIES + 2):
            await rig.score()
            rig.clock.now += 100 * PAUSE
        found = await rig.importances()
        assert rig.scoring.counts.failed == TRIES
        assert rig.scoring.counts.given_up == 1
    assert found[0] is None
    assert None not in found[BATCH:]
    assert [len(batch) for batch in scorer.batches[:TRIES]] == [BATCH, BATCH // 2, BATCH // 4]
    assert "giving up on" in caplog.text
    assert poison not in caplog.text


# -- in the background -------------------------------------------------------------
