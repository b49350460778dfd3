"""Scorers after turns: their input, their answers, their failures, and their scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.service.scoring_kit import REF, open_rig, user

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
