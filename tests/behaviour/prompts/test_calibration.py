"""What a provider reports corrects the counts for its model: how much, when, and when not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.testing import Reply
from tests.behaviour.kit import World, through, user

pytestmark = through("library", "rest")
LONG = "Box of the captain with letters of many years. " * 500
"""About 5,000 tokens."""


class Provider:
    """A model that reports a multiple of the tokens that are counted here."""

    def __init__(self) -> None:
        self.reported = 0

    def __call__(self, body: dict[str, Any]) -> Reply:
        return Reply(text="Yes.", usage={"prompt_tokens": self.reported, "completion_tokens": 1})


async def report(world: World, hf: Any, provider: Provider, ratio: float, times: int, text: str = LONG) -> None:
    """Send prompts of one size, each in a session of its own, and at a time of its own."""
    for _ in range(times):
        world.clock.now += 1_000
        session = await hf.given(f"s{world.clock.now}", user(text))
        counted = (await session.context(strategy="none"))["total_tokens"] + 5  # with "Go."
        provider.reported = round(ratio * counted)
        await session.send(user("Go."))


async def count(hf: Any, text: str = LONG) -> dict[str, Any]:
    session = await hf.given(f"count-{len(await hf.sessions(user='default', limit=100))}", user(text), user("Go."))
    context = await session.context(strategy="none")
    return {**context["provider_count"], "here": context["total_tokens"]}


@pytest.mark.parametrize(("times", "margin"), [(1, 0.05), (4, 0.025)])
async def test_the_ratio_of_reports_corrects_an_estimate(world: World, times: int, margin: float) -> None:
    """The margin is 5 % divided by the root of their number."""
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model"}) as hf:
        before = await count(hf)
        assert (before["how"], before["margin"]) == ("estimate", 0.25)
        await report(world, hf, provider, 1.12, times)
        found = await count(hf)
        assert found["how"] == "calibrated"
        assert found["tokens"] / found["here"] == pytest.approx(1.12, rel=0.005)
        assert found["margin"] == pytest.approx(margin, abs=0.002)


async def test_a_ratio_rises_at_once_and_falls_slowly(world: World) -> None:
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model"}) as hf:
        await report(world, hf, provider, 0.8, 3)
        low = await count(hf)
        assert low["tokens"] / low["here"] == pytest.approx(0.8, rel=0.01)
        await report(world, hf, provider, 1.3, 1)
        await report(world, hf, provider, 0.8, 2)
        high = await count(hf)
        assert high["tokens"] / high["here"] > 1.0


@pytest.mark.parametrize(
    ("ratio", "times", "how"),
    [(3.0, 1, "estimate"), (3.0, 2, "estimate"), (3.0, 3, "calibrated"), (17.0, 4, "estimate"), (0.4, 4, "estimate")],
)
async def test_a_report_that_may_be_an_exception_needs_others(world: World, ratio: float, times: int, how: str) -> None:
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model"}) as hf:
        await report(world, hf, provider, ratio, times)
        assert (await count(hf))["how"] == how


async def test_short_prompts_teach_nothing(world: World) -> None:
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model"}) as hf:
        await report(world, hf, provider, 1.5, 4, text="Box of letters. " * 100)
        assert (await count(hf))["how"] == "estimate"


@pytest.mark.parametrize(("ratio", "how"), [(0.8, "exact"), (1.0, "exact"), (1.05, "exact"), (1.2, "calibrated")])
async def test_an_exact_count_is_corrected_only_upwards(world: World, ratio: float, how: str) -> None:
    """A sixteenth more is what providers add themselves."""
    provider = Provider()
    async with world.open(script=provider, llm={"model": "gpt-4o"}) as hf:
        await report(world, hf, provider, ratio, 2)
        found = await count(hf)
        assert found["how"] == how
        assert found["tokens"] / found["here"] == pytest.approx(1.0 if how == "exact" else ratio, rel=0.01)


async def test_the_budget_shrinks_by_ratio_and_margin(world: World) -> None:
    """Rounded up to steps of 2 %: 1.12 x 1.05 becomes 1.18."""
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model", "context_window": 100_000}) as hf:
        await report(world, hf, provider, 1.12, 1)
        session = await hf.given("s", user("Hello."))
        context = await session.context(strategy="digest")
        assert context["budget"] == pytest.approx((100_000 - 4_096 - 2_048) / 1.18, rel=0.002)


async def test_calibration_is_for_one_model(world: World) -> None:
    provider = Provider()
    async with world.open(script=provider, llm={"model": "my-own-model"}) as hf:
        await report(world, hf, provider, 1.4, 2)
        session = await hf.given("s", user(LONG))
        other = await session.context(strategy="none", model="another-model")
        assert other["provider_count"]["how"] == "estimate"


async def test_a_limit_that_a_refusal_taught_is_forgotten_after_a_week(world: World) -> None:
    script = [Reply(status=400, error="The prompt is too long."), *["Yes."] * 9]
    async with world.open(script=script, llm={"model": "my-own-model", "context_window": 20_000}) as hf:
        session = await hf.given("s")
        budgets = []
        for days in (0, 6, 2):
            world.clock.now += days * 86_400_000
            await session.send(user("Where is my order? " * 500))
            budgets.append((await session.context(strategy="digest"))["budget"])
        assert budgets[0] == budgets[1] < budgets[2]
