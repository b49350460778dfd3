"""Eviction by importance: callers' numbers apply strictly, otherwise the text decides, in any language and format."""

# ruff: noqa: RUF001 (punctuation of other scripts)

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.context import salience, truncation
from holdfast.context.build import Request, WorkingSet, build
from holdfast.context.salience import Signals
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import Unit, group_units
from holdfast.context.window import Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.replay import Spec, play
from holdfast.tokens import STORED
from tests.unit.agent_sessions import sessions
from tests.unit.rounds import call, reply, user
from tests.unit.strategies import Event, events, log_of, tame_events


@pytest.mark.parametrize(
    ("room", "share"), [(0, 1.0), (2048, 1.0), (3584, 0.8325), (5120, 0.665), (8192, 0.33), (200_000, 0.33)]
)
def test_a_large_room_is_emptied_further_than_a_small_one(room: int, share: float) -> None:
    """A prompt that is too small to be cached gains nothing by staying unchanged."""
    assert salience.compute_target(room) == pytest.approx(share)


def entries_of(*rounds: list[Message]) -> list[Entry]:
    new = [NewEntry(message=said, tokens=STORED.message(said), timestamp=0) for messages in rounds for said in messages]
    return list(extend(Tail(), new)[0])


def window_of(entries: Sequence[Entry], room: int = 10**9) -> Window:
    window = Window(Room(room, STORED))
    for unit in group_units(entries):
        window.grow(unit)
    return window


def rate_rounds(*rounds: list[Message]) -> list[float]:
    """Return the importance of each round, with one unit per round."""
    units = group_units(entries_of(*rounds))
    assert len(units) == len(rounds)
    return [*map(salience.Signals(units).compute_importance, range(len(units)))]


def choose_evicted(window: Window, goal: int) -> list[Unit]:
    kept = salience.choose_within(window, goal)
    free = [unit for unit in (*window.head, *window.units[:-1]) if not window.is_protected(unit)]
    return [unit for unit in free if unit.first not in kept]


ROWS = [{"code": f"ZQ{number:03}", "price": 100 + number, "seats": number % 9} for number in range(60)]
LOG = "\n".join(f"2026-03-02T04:{n % 60:02}:11Z INFO GET /cart/{n} 200 {n}ms" for n in range(80))
CODE = "\n".join(f"def step_{n}(state: State, value: int) -> State:\n    return state + value * {n}" for n in range(40))
PROSE = " ".join(f"The {n}th kelp forest off the coast grows in cold water, and nobody minds." for n in range(60))
NOW = user("And now?")


# -- importance set by callers ---------------------------------------------------------------


def test_the_least_important_are_evicted_first_and_ties_oldest_first() -> None:
    entries = entries_of(*(user(f"message {number}") for number in range(8)))
    numbers = [None, 0.5, 0.1, 0.9, 0.1, 0.5, 0.1, None]
    entries = [replace(entry, importance=number) for entry, number in zip(entries, numbers, strict=True)]
    window = window_of(entries)
    size = window.measure_unit(window.units[1])
    for gone, expected in enumerate(([], [2], [2, 4], [2, 4, 6], [1, 2, 4, 6], [1, 2, 4, 5, 6])):
        assert [unit.first for unit in choose_evicted(window, window.tokens - gone * size)] == expected


def test_a_unit_is_evicted_for_one_token_over_the_goal() -> None:
    """None is evicted if everything fits exactly."""
    window = window_of(entries_of(*(user(f"message {number}") for number in range(4))))
    assert choose_evicted(window, window.tokens) == []
    assert [unit.first for unit in choose_evicted(window, window.tokens - 1)] == [1]


@given(tame_events | events, st.integers(0, 3000), st.randoms(use_true_random=False))
def test_caller_importance_is_applied_strictly(history: list[Event], goal: int, chance: Random) -> None:
    """No rated unit is evicted before a less important one of any size, or before an older equal one."""
    numbers = [None, 0.0, 0.1, 0.4, 0.9, 1.0]
    entries = [replace(entry, importance=chance.choice(numbers)) for entry in log_of(history).entries]
    if not entries:
        return
    window = window_of(entries)
    gone = {unit.first for unit in choose_evicted(window, goal)}
    free = [unit for unit in window.units[:-1] if not window.is_protected(unit)]
    given_numbers = {
        unit.first: max((e.importance for e in unit.entries if e.importance is not None), default=None) for unit in free
    }
    ranks = [((number, first), first in gone) for first, number in given_numbers.items() if number is not None]
    stay = [rank for rank, left in ranks if not left]
    leave = [rank for rank, left in ranks if left]
    assert not stay or not leave or max(leave) < min(stay)


@given(tame_events | events, st.integers(0, 3000))
def test_no_more_units_are_evicted_than_necessary(history: list[Event], goal: int) -> None:
    """The rest fits unless nothing else can be evicted, and no evicted unit would still fit."""
    entries = log_of(history).entries
    if not entries:
        return
    window = window_of(entries)
    gone = choose_evicted(window, goal)
    free = [unit for unit in window.units[:-1] if not window.is_protected(unit)]
    over = window.tokens - goal - sum(map(window.measure_unit, gone))
    assert over <= 0 or len(gone) == len(free)
    assert not gone or over + max(map(window.measure_unit, gone)) > 0


# -- importance from the text -------------------------------------------------------------


@given(events)
def test_signals_are_numbers_from_0_to_1_and_only_rise(history: list[Event]) -> None:
    units = group_units(log_of(history).entries)
    if not units:
        return
    signals = Signals(units)
    before = [signals.compute_importance(at) for at in range(len(units))]
    assert all(0 <= number < 1 for number in before)
    for gone in range(len(units) - 1):
        signals.remove(gone)
        now = [signals.compute_importance(at) for at in range(len(units))]
        assert all(new >= old - 1e-12 for new, old in zip(now[gone + 1 :], before[gone + 1 :], strict=True))
        before = now


@pytest.mark.parametrize(
    "wish",
    [
        "Never restart pods in shop-prod without asking me first, whatever the alerts say.",
        "Bitte liefern Sie auf keinen Fall am Mittwoch, und rufen Sie vorher an.",
        "Никогда не бронируйте ничего раньше девяти утра, сколько бы это ни стоило.",
        "请务必不要在九点之前预订任何东西，也不要打电话，发短信就好。",
        "朝九時より前の予約はしないでください。電話ではなくメールでお願いします。",
        "لا تحجز أي شيء قبل التاسعة صباحا مهما كان السعر، ولا تتصل بي.",
    ],
)
@pytest.mark.parametrize("bulk", [ROWS, LOG, CODE, PROSE], ids=["rows", "log", "code", "prose"])
def test_user_wishes_rank_above_bulk_results(wish: str, bulk: Any) -> None:
    _, wanted, listed, _ = rate_rounds(
        user("Hi, I need some help."), user(wish), call("list", {"page": "p1"}, bulk), NOW
    )
    assert wanted > listed


@pytest.mark.parametrize("thanks", ["You're welcome! Is there anything else?", "很高兴为您服务！", "Gern geschehen!"])
def test_user_wishes_rank_above_courtesies(thanks: str) -> None:
    _, wish, polite, _ = rate_rounds(
        user("Hi."), user("Send it to 4 Harbour Lane, not to the office."), reply(thanks), NOW
    )
    assert wish > polite


def test_reused_values_outlive_unused_ones() -> None:
    """The reply that repeats the value is evicted first, since it has the lowest importance."""
    found = [call("find", {"name": name}, {"id": f"{name}_71{at}", "tier": "gold"}) for at, name in enumerate("abcd")]
    entries = entries_of(user("Compare them."), *found, reply("Customer b_711 looks right, I think."), NOW)
    entries[-2] = replace(entries[-2], importance=0.0)
    window = window_of(entries)
    gone = choose_evicted(window, window.tokens - 3 * window.measure_unit(window.units[1]))
    assert [unit.first for unit in gone] == [1, 5, 7, 9]


def test_values_whose_keys_are_call_arguments_rank_higher() -> None:
    order = call("get_order", {"order_id": "K-113"}, {"payment_id": "pay_8812x", "shipper_ref": "Z"})
    other = call("get_order", {"order_id": "K-114"}, {"warehouse_id": "wh_8812x", "shipper_ref": "Y"})
    pay = call("pay", {"payment_id": "pay_0000y"}, "ok")
    _, asked_for, not_asked_for, _, _ = rate_rounds(user("Go."), order, other, pay, NOW)
    assert asked_for > not_asked_for


def test_failed_calls_rank_above_successful_ones() -> None:
    arguments = {"id": "A1B2", "amount": "255"}
    _, failed, fine, _ = rate_rounds(
        user("Go."),
        call("book", arguments, "Error: the payment does not add up to 305"),
        call("book", {"id": "C3D4", "amount": "305"}, "Done: the payment adds up to the 305"),
        NOW,
    )
    assert failed > fine


def test_unique_values_rank_above_repeated_ones() -> None:
    once = call("get", {"id": "K-113"}, {"code": "AB1234", "when": "2024-05-17"})
    twice = call("get", {"id": "K-114"}, {"code": "CD5678", "when": "2024-05-18"})
    again = reply("K-114 is CD5678, and that is on 2024-05-18.")
    _, alone, said_again, _, _ = rate_rounds(user("Go."), once, twice, again, NOW)
    assert alone > said_again


def test_one_of_two_units_with_the_same_values_stays() -> None:
    """Repeated values matter little; once the older unit is evicted, the other one matters more."""
    same = {"code": "AB1234", "when": "2024-05-17", "seat": "14C", "fare": "QX7788"}
    rounds = [user("Go."), call("get", {"id": "K"}, same), call("get", {"id": "K"}, same)]
    window = window_of(entries_of(*rounds, *[reply("It is a nice day, and nobody minds.")] * 12, NOW))
    gone = {unit.first for unit in choose_evicted(window, 150)}
    assert 1 in gone
    assert 3 not in gone


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3), (1, 3, 2)])
def test_the_last_unit_with_a_value_becomes_more_important(order: tuple[int, int, int]) -> None:
    """In any order of eviction; nothing changes while two of them are left."""
    same = {"code": "AB1234", "when": "2024-05-17", "seat": "14C", "fare": "QX7788"}
    rounds = [user("Go."), *[call("get", {"id": f"K-{at}"}, same) for at in range(3)], NOW]
    signals = Signals(group_units(entries_of(*rounds)))
    first, second, last = order
    before = [signals.compute_importance(at) for at in range(5)]
    signals.remove(first)
    assert [signals.compute_importance(at) for at in range(5)] == before
    signals.remove(second)
    assert signals.compute_importance(last) > before[last]
    assert [signals.compute_importance(at) for at in (0, first, second, 4)] == [
        before[at] for at in (0, first, second, 4)
    ]


def test_newer_units_rank_above_older_similar_ones() -> None:
    found = [call("find", {"name": f"n{at}"}, {"id": f"K-71{at}", "tier": "gold"}) for at in range(12)]
    _, *units, _ = rate_rounds(user("Go."), *found, NOW)
    assert units == sorted(units)


@pytest.mark.parametrize("bulk", [ROWS, LOG, CODE, PROSE], ids=["rows", "log", "code", "prose"])
def test_one_huge_unit_does_not_crowd_out_many_small_ones(bulk: Any) -> None:
    small = [call("get", {"id": f"K-11{at}"}, {"state": "open", "owner": f"u_{at}{at}77"}) for at in range(8)]
    window = window_of(entries_of(user("Go."), *small[:4], call("list", {}, bulk), *small[4:], NOW))
    (gone,) = choose_evicted(window, window.tokens - 100)
    assert gone.entries[1].tokens > 500


def test_a_short_acknowledgement_ranks_low() -> None:
    _, okay, record, _ = rate_rounds(user("Go."), reply("ok"), call("get", {"id": "K-1"}, {"code": "AB1234"}), NOW)
    assert okay < record


@pytest.mark.slow
def test_importance_does_not_depend_on_the_hash_seed() -> None:
    script = "from tests.unit.agent_sessions import sessions\nfrom tests.unit.test_salience import importances_of\n"
    script += "print([importances_of(session.messages) for session in sessions()])"
    told = set()
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        told.add(ran.stdout)
    assert len(told) == 1


def importances_of(messages: Sequence[Message]) -> list[float]:
    units = group_units(entries_of(list(messages)))
    return [*map(salience.Signals(units).compute_importance, range(len(units)))]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "x" * 500_000,
        "\x00" * 50_000,
        "a:b=c " * 30_000,
        json.dumps(["\ud800"]),
        "。" * 50_000,
        "a" * 40_000 + "=",
    ],
)
def test_hostile_text_is_rated_like_any_other(text: str) -> None:
    numbers = rate_rounds(
        user(text), call("get", {text[:30]: text}, text), call("get", {"id": "K-1"}, {"code": "AB1234"}), NOW
    )
    assert all(0 <= number < 1 for number in numbers)


# -- in a working set ------------------------------------------------------------------


def build_working_set(budget: int, *rounds: list[Message]) -> WorkingSet:
    rule = make_strategy(ContextSettings("salience", {"budget": budget}))
    return build(Request(strategy=rule, count=STORED, input_budget=10**9), None, [], entries_of(*rounds))


def test_small_rooms_stay_full_and_large_ones_are_emptied_by_two_thirds() -> None:
    rooms = (256, 1024, 2048, 4096, 8192, 16_384, 10**6)
    targets = [salience.compute_target(room) for room in rooms]
    assert targets == sorted(targets, reverse=True)
    assert targets[0] == 1.0
    assert targets[-1] == pytest.approx(0.33)


def test_important_messages_from_before_the_frontier_are_sent() -> None:
    rounds = [call("list", {"page": f"p{page}"}, ROWS[page : page + 20]) for page in range(20)]
    made = build_working_set(2000, user("Go."), user("Remember: the ticket is KELP-4417."), *rounds, NOW)
    assert any("KELP-4417" in message.text for message in made.messages)
    assert made.messages[0].text == "Go."


def test_a_long_result_leaves_room_for_important_messages() -> None:
    """A protected message that does not fit is cut to a part of the room, not to all of it."""
    entries = entries_of(user("Go."), *[call("get", {"id": f"K-11{at}"}, {"owner": f"u_{at}77"}) for at in range(9)])
    entries = entries_of(*[[entry.message] for entry in entries], call("list", {"page": "p1"}, ROWS))
    window = window_of(entries, 512)
    shorter = truncation.with_room_to_choose(window, window.drop(len(window.units)), 128)
    assert shorter.measure_unit(shorter.units[-1]) <= truncation.MUST * 512
    assert [unit.entries for unit in shorter.units] == [unit.entries for unit in window.units]
    assert len(salience.choose_within(shorter, 512)) > 4


def test_recall_is_high_for_other_kinds_of_agents() -> None:
    """Nothing was tuned for these sessions: nothing is rejected, orphaned or lost, and most values are found."""
    for budget, recall in ((512, 0.68), (1024, 0.78), (2048, 0.95)):
        result = play(sessions(), Spec("salience"), budget).result
        assert (result.refused, result.orphans, result.tasks_lost) == (0, 0.0, 0.0)
        assert result.recall is not None
        assert result.recall >= recall, f"{budget}: {result}"


def test_units_that_come_back_fit_the_free_room() -> None:
    """If the last evicted unit was long, earlier ones come back while there is room for them."""
    said = [reply(f"The {at}th boat is at the harbour. " * (9 if at % 4 == 0 else 1 + at % 3)) for at in range(1, 13)]
    window = window_of(entries_of(user("Hello."), *said, NOW))
    sizes = {unit.first: window.measure_unit(unit) for unit in window.units}
    for goal in range(20, sum(sizes.values()), 5):
        out = {unit.first for unit in choose_evicted(window, goal)}
        rest = sum(size for first, size in sizes.items() if first not in out)
        assert rest <= goal or len(out) == len(said)
