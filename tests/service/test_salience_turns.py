"""Importance through whole turns: a scorer of the user's own, what it says, and what then stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.agents import Roster
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast

VITAL = "The vault opens with word 17 of the almanac."


def mine(messages: Sequence[dict[str, Any]]) -> list[float]:
    return [0.9 if "vault" in str(message.get("content")) else 0.1 for message in messages]


async def talked(hf: Holdfast, turns: int) -> list[dict[str, Any]]:
    """Turns with a vital message early; what the last call saw."""
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


async def test_a_scorer_of_ones_own_keeps_what_it_says_matters() -> None:
    """Rated behind the turn, stored with the entry, and known to the view in memory at its next step."""
    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": mine}) as hf:
        sent = await talked(hf, 40)
        entries = await (await hf.session("s")).entries()
        assert VITAL in [message["content"] for message in sent]
        assert [entry.importance for entry in entries if entry.message.text == VITAL] == [0.9]
        assert sum(entry.importance is None for entry in entries) <= 2


async def test_a_scorer_that_fails_costs_no_turn() -> None:
    def broken(messages: Sequence[dict[str, Any]]) -> list[float]:
        raise ValueError("no idea")

    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": broken}) as hf:
        assert len(await talked(hf, 20)) > 3
        assert all(entry.importance is None for entry in await (await hf.session("s")).entries())


async def test_what_the_caller_says_stands_before_any_scorer() -> None:
    async with Holdfast("sqlite://:memory:", roster=roster(), scorers={"mine": mine}) as hf:
        session = await hf.session("s")
        await session.append({"role": "user", "content": "Of no use: the vault is blue.", "importance": 0.0})
        await talked(hf, 5)
        assert (await session.entries())[0].importance == 0.0
