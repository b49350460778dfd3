"""The digest as another agent reads it who takes over: nothing in it may mislead, and what the user wants is told."""

from __future__ import annotations

import pytest

from holdfast.context.digest.pool import EMPTY, fold, render
from holdfast.context.escaping import END
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user
from tests.unit.test_digest import ROOM, lines, told, units


def test_rows_say_what_list_they_stand_in() -> None:
    """Else the passenger would be taken for the owner; where a key says it, it is not said twice."""
    owner = {"name": "Ada Weiss", "guests": [{"name": "Bo Lund", "born": "1990-12-07"}]}
    assert lines(told(units(call("get_user", {"id": "u_77"}, owner)))) == [
        "get_user(u_77): name Ada Weiss; guests: name Bo Lund, born 1990-12-07"
    ]
    trip = {"state": "open", "flights": [{"flight_number": "HX017", "day": "2024-05-01"}]}
    assert lines(told(units(call("get_trip", {"id": "T-77"}, trip)))) == [
        "get_trip(T-77): state open; flight_number HX017, day 2024-05-01"
    ]


def test_what_was_asked_with_stands_apart_from_the_answer() -> None:
    """Arguments in the handle, what came of it behind it."""
    arguments = {"id": "K-113", "method": {"card": "card_3481935"}, "rows": [{"sku": "P-77"}]}
    assert lines(told(units(call("change", arguments, {"state": "open", "card": "card_9525117"})))) == [
        "change(K-113; method: card card_3481935; rows: sku P-77): state open, card card_9525117"
    ]
    query = "select region_code, sum(net_amount_eur) from mart_sales.fact_orders where not is_test group by region_code"
    assert lines(told(units(call("run_sql", {"sql": query}, "ok")))) == [f"run_sql(sql: {query}): ok"]


def test_nothing_of_a_failed_call_is_told_without_its_error() -> None:
    """Arguments without the error would read as if it had been done, in however little room."""
    rows = [{"sku": f"P-{number}", "when": f"2024-05-{number:02}"} for number in range(10, 40)]
    error = "Error: payment amount does not add up, total price is 305, but paid 255"
    history = units(call("book", {"id": "A1", "rows": rows}, error), user("I need P-15 and P-16, please, P-15 first."))
    seen = 0
    for room in range(30, 300, 3):
        text = told(history, room)
        seen += "book(" in text
        assert ("book(" in text) == (error in text)
    assert seen > 20


def test_a_list_that_is_not_told_in_full_says_so() -> None:
    codes = [f"KX{number:04}" for number in range(40)]
    history = units(call("get_user", {"id": "u_77"}, {"orders": codes}))
    text = told(history, 100)
    assert text.endswith(f" +{40 - text.count('KX')} more\n{END}")
    assert "more" not in told(history, 2000)


def test_another_object_is_no_change_of_the_first() -> None:
    """What was made in two calls about one customer is two things."""
    order = {"state": "open", "total": 4100, "owner": "Ada Weiss"}
    history = units(
        call("book", {"user": "u_77", "to": "OSL"}, {"order_id": "K-113", **order}),
        call("book", {"user": "u_77", "to": "HAM"}, {"order_id": "K-114", **order}),
    )
    assert "was" not in told(history)
    assert "order_id K-113" in told(history)


def test_what_a_list_says_of_an_object_is_past_when_the_object_is_told_anew() -> None:
    """The line was resumed: that it is suspended must not be told without it, however little room there is."""
    table = [{"line_id": f"L10{number}", "plan": f"P{number}", "status": "Suspended"} for number in range(10, 14)]
    table[0]["status"] = "Active"
    history = units(
        call("get_lines", {"customer": "C1047"}, table),
        call("resume", {"customer": "C1047", "line": "L1012"}, {"line_id": "L1012", "status": "Active"}),
        call("get_bill", {"id": "B77"}, {"bill_id": "B77", "owner": "C1047", "status": "Late"}),
    )
    text = told(history)
    assert "status Active (was Suspended)" in text
    assert "L1012, P12, status" not in text.replace("plan ", "")
    assert "status Late" in text
    assert "was Late" not in text
    assert "(was Active)" not in text


def test_what_a_user_takes_back_is_told_with_what_takes_it_back() -> None:
    """The sentence behind one that is told comes next, for it may be the correction; alone the first is wrong."""
    history = units(
        user("AR-5521 is missing, and AR-5535 has a broken edge. Oh no, 5535 is fine, the broken one is the other."),
        *[call("get_order", {"id": f"K-{n}"}, {"state": "open", "total": f"{n * 37}.50"}) for n in range(100, 112)],
        *[user(f"Order K-{n} is late, look at it.") for n in range(100, 112)],
    )
    for room in range(300, 460, 20):
        text = told(history, room)
        assert ("broken edge" in text) <= ("Oh no, 5535 is fine" in text)


@pytest.mark.parametrize(
    ("wish", "phrase"),
    [
        (
            "I need to downgrade all of them without changing the flights or the passengers of any.",
            "Yes, it looks good.",
        ),
        ("できれば高い階で、禁煙の和室がいいです。", "That is fine with me, go on."),
    ],
)
def test_a_wish_is_told_before_a_phrase(wish: str, phrase: str) -> None:
    """Though it is longer; and in a script without spaces, too, it is more than a word."""
    history = units(user(phrase), user(wish))
    size = STORED.text(told(history).splitlines()[0]) + STORED.text(f"user said: {wish}") + 3
    assert lines(told(history, size)) == [f"user said: {wish}"]


def test_an_answer_finds_its_question_whatever_left_before_it() -> None:
    """What the user said last stays, so the question leaves first, and calls with it."""
    history = units(
        reply("I could restart the pod or fail over. Which one?"),
        user("Fail over. Never restart a pod in shop-prod without asking me."),
        call("fail_over", {"host": "db-3"}, {"job": "fo-17", "state": "running"}),
    )
    saved = EMPTY
    for place in (0, 2, 1):
        saved = fold(saved, history[place : place + 1], room=ROOM)
    text = render(saved, ROOM, first=0, last=3, count=STORED)
    answer = "Fail over. Never restart a pod in shop-prod without asking me."
    assert f"assistant said: I could restart the pod or fail over. Which one? → user said: {answer}" in text
