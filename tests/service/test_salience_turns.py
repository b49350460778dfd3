"""Importance in whole turns: a custom scorer, its scores, and what is kept then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.agents import Roster
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast

VITAL = "The vault opens with word 17 of the almanac."


def score_vault(messages: Sequence[dict[str, Any]]) -> list[float]:
    return [0.9 if "vault" in str(message.get("content")) else 0.1 for message in messages]


async def run_turns(hf: Holdfast, turns: int) -> list[dict[str, Any]]:
    """Run turns with a vital message early and return the messages of the last call."""
    session = await hf.session("s")
    for n in range(turns):
        said = VITAL if n == 2 else f"Small talk number {n}: " + f"kelp and weather {n} " * 12
        async with session.turn(said) as turn:
            sent = turn.messages
            turn.add(f"Reply {n}: " + "aye " * 20)
        await hf.engine.scoring.wait_until_idle()
    return sent


def roster() -> Roster:
    return Roster(context=ContextSettings("salience", {"budget": 900, "scorer": "mine"}))


async def test_custom_scorer_keeps_important_messages() -> None:
    """Rated after the turn, stored with the entry, and used by the cached view at its next step."""
    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": score_vault}) as hf:
        sent = await run_turns(hf, 40)
        entries = await (await hf.session("s")).entries()
        assert VITAL in [message["content"] for message in sent]
        assert [entry.importance for entry in entries if entry.message.text == VITAL] == [0.9]
        assert sum(entry.importance is None for entry in entries) <= 2


async def test_failing_scorer_fails_no_turn() -> None:
    def broken(messages: Sequence[dict[str, Any]]) -> list[float]:
        raise ValueError("no idea")

    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": broken}) as hf:
        assert len(await run_turns(hf, 20)) > 3
        assert all(entry.importance is None for entry in await (await hf.session("s")).entries())


async def test_importance_from_the_caller_overrides_the_scorer() -> None:
    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": score_vault}) as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Of no use: the vault is blue.", "importance": 0.0})
        await run_turns(hf, 5)
        assert (await session.entries())[0].importance == 0.0
