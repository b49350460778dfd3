"""Calibration from provider counts, and sessions against providers that count differently."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Llm
from holdfast.context.build import Request, build
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.domain.calibration import (
    HIGHEST,
    MOST,
    NEWEST,
    Calibration,
    Learned,
    MeasuredCount,
    Pair,
)
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, Tail
from holdfast.models import OfflineModel
from holdfast.tokens import STORED

AT = 1_700_000_000_000


def calibrate(*pairs: tuple[int, int]) -> Calibration:
    calibration = Calibration()
    for at, (counted, reported) in enumerate(pairs):
        calibration = calibration.add_pair(Pair(AT + at, counted, reported))
    return calibration


def llm(model: str = "claude-sonnet-4-5", *, window: int | None = None) -> Llm:
    return Llm(name="m", model=model, client=OfflineModel(), context_window=window)


# -- the ratio --------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1_000, 300_000), st.floats(0.5, 1.01)), max_size=40))
def test_an_exact_count_that_agrees_keeps_a_ratio_of_one(pairs: list[tuple[int, float]]) -> None:
    measure = calibrate(*((counted, int(counted * ratio)) for counted, ratio in pairs)).measure(exact=True)
    assert (measure.ratio, measure.margin, measure.scale) == (1.0, 0.0, 1.0)


pairs = st.builds(
    Pair,
    at=st.integers(AT, AT + 10**9),
    counted=st.integers(1_000, 200_000),
    reported=st.integers(1_000, 200_000),
    refused=st.booleans(),
)
calibrations = st.lists(pairs, max_size=60).map(
    lambda found: Calibration().merge(Calibration(tuple(found))) if found else Calibration()
)


@given(calibrations, calibrations)
def test_merging_is_commutative_and_idempotent(one: Calibration, other: Calibration) -> None:
    both = one.merge(other) if other.pairs else one
    assert both == (other.merge(one) if one.pairs else other)
    assert both.merge(both) == both
    assert both.merge(one) == both
    assert len(both.pairs) <= NEWEST + HIGHEST


@given(calibrations)
def test_a_scale_is_coarse_and_never_below_ratio_and_margin(calibration: Calibration) -> None:
    for exact in (True, False):
        measure = calibration.measure(exact=exact)
        whole = measure.ratio * (1 + measure.margin)
        assert whole - 1e-6 <= measure.scale <= whole + 0.02 + 1e-6


# -- reported counts -------------------------------------------------------------------


def describe_count(model: Llm, tokens: int, learned: Learned, provider: int | None = None) -> MeasuredCount:
    return model.measure(learned).describe(tokens, margin=model.counter.margin, provider=provider)


def test_a_count_reports_its_method_and_margin() -> None:
    none, some = Learned(), Learned(calibration=calibrate((50_000, 40_000)))
    assert describe_count(llm("gpt-4o"), 1_000, none) == MeasuredCount(1_000, "exact", 0.0)
    assert describe_count(llm("gpt-4o"), 1_000, some) == MeasuredCount(1_000, "exact", 0.0)
    assert describe_count(llm(), 1_250, none) == MeasuredCount(1_000, "estimate", 0.25)
    assert describe_count(llm(), 1_250, some) == MeasuredCount(1_000, "calibrated", 0.05)
    assert describe_count(llm(), 1_250, some, provider=1_017).to_wire() == {
        "tokens": 1_017,
        "how": "provider",
        "margin": 0.0,
    }


# -- windows --------------------------------------------------------------------------


@given(st.integers(1, 400_000), st.none() | st.integers(256, 400_000), st.none() | st.integers(1, 400_000))
def test_a_refused_prompt_is_never_built_again_unchanged(
    counted: int, limit: int | None, requested: int | None
) -> None:
    model = llm()
    budget = model.compute_budget()
    counted = min(counted, budget.counted)
    learned = Learned().record_refusal(counted, budget, limit=limit, requested=requested, at=AT)
    after = model.compute_budget(learned=learned)
    known = limit or budget.context_window
    said = requested if requested and 0.5 <= requested / counted <= MOST and counted >= 1_000 else counted
    if said + budget.max_reply_tokens <= known:
        assert after.counted <= max(1, counted * 90 // 100)
    elif limit is None and said == requested:
        assert after.counted * requested / counted <= known


# -- sessions against providers that count differently --------------------------------------


class Provider(NamedTuple):
    """Counts `ratio` times our count, plus or minus `noise`, and refuses prompts larger than its window."""

    ratio: float
    window: int
    noise: float
    names: bool
    """Whether its errors name numbers."""
    random: random.Random

    def tokens(self, counted: int) -> int:
        return round(counted * self.ratio * self.random.uniform(1 - self.noise, 1 + self.noise))


class PlayResult(NamedTuple):
    """The result of one session."""

    refusals: list[int]
    """Refusals of each turn that had any."""
    learned: Learned
    lost: int
    """Turns that were never answered."""


def play(provider: Provider, learned: Learned, *, live: int, turns: int, tools: bool) -> PlayResult:
    """Play a session that starts with `live` tokens and is compacted to a third, except pins, when full."""
    model = llm(window=provider.window)
    pinned, reply, refusals, lost = provider.window // 40, 4_096, list[int](), 0
    live = max(live, pinned)
    for turn in range(turns):
        live += provider.random.randint(100, provider.window // 60)
        refused = 0
        for _ in range(4):
            budget = model.compute_budget(reply, tools=tools, learned=learned)
            if live > budget.counted:
                live = budget.counted if turn == 0 else max(pinned, budget.counted // 3)
            assert pinned <= live <= budget.counted
            real = provider.tokens(live)
            if real + reply <= provider.window:
                learned = learned.record_usage(live, real, at=AT + turn)
                break
            refused += 1
            said = {"limit": provider.window, "requested": real} if provider.names else {}
            learned = learned.record_refusal(live, budget, at=AT + turn, **said)
        else:
            lost += 1
        refusals += [refused] if refused else []
    return PlayResult(refusals, learned, lost)


RATIOS = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3]


@pytest.mark.parametrize("tools", [True, False])
@pytest.mark.parametrize("full", [False, True], ids=["growing", "imported"])
@pytest.mark.parametrize("window", [16_384, 200_000, 1_000_000])
@pytest.mark.parametrize("ratio", RATIOS)
def test_a_provider_causes_at_most_one_overflow(ratio: float, window: int, full: bool, tools: bool) -> None:
    for seed in range(6):
        provider = Provider(ratio, window, 0.02, names=True, random=random.Random(seed))
        learned = Learned()
        first = play(provider, learned, live=10 * window if full else 0, turns=150, tools=tools)
        assert first.refusals in ([], [1])
        assert first.refusals == [] or full
        assert first.lost == 0
        later = play(provider, first.learned, live=10 * window, turns=60, tools=tools)
        assert (later.refusals, later.lost) == ([], 0)


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_provider_without_numbers_in_errors_is_learned_in_one_turn(ratio: float) -> None:
    for seed in range(6):
        provider = Provider(ratio, 200_000, 0.02, names=False, random=random.Random(seed))
        first = play(provider, Learned(), live=10**7, turns=150, tools=True)
        assert len(first.refusals) <= 1
        assert first.lost == 0
        later = play(provider, first.learned, live=10**7, turns=60, tools=True)
        assert (later.refusals, later.lost) == ([], 0)


@pytest.mark.slow
@pytest.mark.parametrize("names", [True, False], ids=["names", "silent"])
@pytest.mark.parametrize("ratio", [2.6, 4.7, 9.0])
def test_a_provider_that_counts_far_more_is_learned(ratio: float, names: bool) -> None:
    for seed in range(6):
        provider = Provider(ratio, 200_000, 0.02, names=names, random=random.Random(seed))
        first = play(provider, Learned(), live=0, turns=300, tools=True)
        assert (first.refusals, first.lost) == ([], 0), "the first replies teach it before the window is full"
        later = play(provider, first.learned, live=10**7, turns=100, tools=True)
        assert (later.refusals, later.lost) == ([], 0)


def test_an_imported_session_is_refused_once_by_a_provider_that_counts_far_more() -> None:
    provider = Provider(4.7, 200_000, 0.02, names=True, random=random.Random(1))
    played = play(provider, Learned(), live=10**7, turns=100, tools=True)
    assert (played.refusals, played.lost) == ([1], 0)


@pytest.mark.parametrize("ratio", RATIOS)
def test_room_is_not_wasted_once_the_count_is_known(ratio: float) -> None:
    provider = Provider(ratio, 200_000, 0.01, names=True, random=random.Random(1))
    learned = play(provider, Learned(), live=0, turns=200, tools=True).learned
    used = llm(window=200_000).compute_budget(4_096, learned=learned).counted * ratio
    assert 0.9 * 185_664 <= used <= 185_664 * 1.005


# -- with real working sets ------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("named", [True, False])
def test_working_sets_keep_pins_for_any_provider_ratio(ratio: float, named: bool) -> None:
    model, learned, refusals, window = llm(window=16_384), Learned(), list[int](), 16_384
    rng = random.Random(7)
    texts = [" ".join(rng.choices(["ship", "order", "A-17", "Straße", "42", "{}"], k=300)) for _ in range(120)]
    new = [
        NewEntry(message=message, tokens=STORED.message(message), timestamp=0, pinned=at == 4)
        for at, text in enumerate(texts)
        for message in [Message(role="user" if at % 2 == 0 else "assistant", content=text)]
    ]
    entries = extend(Tail(), new)[0]
    for end in range(61, len(entries), 6):  # imported full, then growing
        refused = 0
        for _ in range(4):
            budget = model.compute_budget(2_000, tools=False, learned=learned)
            made = Request(strategy=make_strategy(ContextSettings()), count=model.counter, input_budget=budget.counted)
            built = build(made, None, [], entries[:end])
            said = [message.content for message in built.messages]
            assert {texts[0], texts[4], texts[end - 1]} <= set(said)
            real = round(built.total_tokens * ratio * rng.uniform(0.99, 1.01))
            if real + 2_000 <= window:
                learned = learned.record_usage(built.total_tokens, real, at=AT + end)
                break
            refused += 1
            limit, requested = (window, real) if named else (None, None)
            learned = learned.record_refusal(built.total_tokens, budget, limit=limit, requested=requested, at=AT + end)
        else:
            raise AssertionError("never answered")
        refusals += [refused] if refused else []
    assert len(refusals) <= 1
    assert not named or refusals in ([], [1])
