"""Importance by a scorer of the program: what is kept, and who is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.behaviour.kit import World, texts, through, user

pytestmark = through("library", "rest")
RATED = "context: {strategy: salience, budget: 900, scorer: mine, facts: false, recall: off}"
VITAL = "The vault opens with word 17 of the almanac."


def rate_vault(messages: Sequence[dict[str, Any]]) -> list[float]:
    return [0.9 if "vault" in str(message.get("content")) else 0.1 for message in messages]


async def rate_later(messages: Sequence[dict[str, Any]]) -> list[float | None]:
    return [*rate_vault(messages)]


def answer_with(*answers: Any) -> Any:
    """Return a scorer that gives these answers, one after the other."""
    return lambda messages, left=[*answers]: left.pop(0) if len(left) > 1 else left[0]


def broken(messages: Sequence[dict[str, Any]]) -> list[float]:
    raise ValueError("no idea")


async def run(hf: Any, turns: int) -> list[Any]:
    for number in range(turns):
        words = f"Small talk number {number}: " + f"kelp and weather {number} " * 12
        await hf.session().send(user(VITAL if number == 2 else words))
        await hf.settle()
    return texts(hf.upstream.requests[-1].body["messages"])


@pytest.mark.parametrize("scorer", [rate_vault, rate_later])
async def test_messages_that_a_scorer_rates_high_stay(world: World, scorer: Any) -> None:
    async with world.open(RATED, script=lambda _: "aye " * 20, scorers={"mine": scorer}) as hf:
        assert VITAL in await run(hf, 30)
        log = await hf.session().messages()
        assert [one.get("importance") for one in log[:6]] == [0.1, 0.1, 0.1, 0.1, 0.9, 0.1]


@pytest.mark.parametrize("scorer", [broken, answer_with("high", 5, [], [2, 2], [True, "x"], [None, [0]])])
async def test_a_failing_scorer_fails_no_turn(world: World, scorer: Any) -> None:
    """Nor does one whose answers are no numbers from 0 to 1, one for each message."""
    async with world.open(RATED, script=lambda _: "aye " * 20, scorers={"mine": scorer}) as hf:
        for _ in range(3):
            assert len(await run(hf, 4)) > 3
            world.clock.now += 3_600_000
        assert {one.get("importance") for one in await hf.session().messages()} == {None}


async def test_the_callers_importance_is_not_rated_again(world: World) -> None:
    async with world.open(RATED, script=lambda _: "aye", scorers={"mine": rate_vault}) as hf:
        await hf.given("s", user("Of no use: the vault is blue.", importance=0.0), user("Pinned.", pinned=True))
        await run(hf, 4)
        assert [row.get("importance") for row in (await hf.session().messages())[:3]] == [0.0, None, 0.1]


async def test_importance_that_is_given_during_the_rating_is_kept(world: World) -> None:
    opened: list[Any] = []

    async def rate(messages: Sequence[dict[str, Any]]) -> list[float]:
        await opened[0].session().annotate(0, importance=0.05)
        return [0.9] * len(messages)

    async with world.open(RATED, script=lambda _: "aye", scorers={"mine": rate}) as hf:
        opened.append(hf)
        await run(hf, 6)
        assert [row.get("importance") for row in (await hf.session().messages())[:2]] == [0.05, 0.9]


async def test_a_scorer_that_cannot_be_reached_is_asked_after_pauses_that_grow_until_it_answers(world: World) -> None:
    asked: list[Any] = []

    def moody(messages: Sequence[dict[str, Any]]) -> list[float]:
        asked.append(messages)
        if len(asked) in {1, 2, 4}:
            raise TimeoutError
        return [0.5] * len(messages)

    async with world.open(RATED, script=lambda _: "aye", scorers={"mine": moody}) as hf:
        for pause, number in ((0, 1), (2_000, 2), (2_000, 2), (2_000, 3), (0, 4), (2_000, 5)):
            world.clock.now += pause
            await run(hf, 1)
            assert len(asked) == number
