"""The digest as read by an agent that takes over: it must not mislead and must state what the user wants."""

from __future__ import annotations

import pytest

from holdfast.context.digest.pool import EMPTY, fold, render
from holdfast.context.escaping import END
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user
from tests.unit.test_digest import ROOM, lines, render_units, units


def test_rows_are_labelled_with_their_list() -> None:
    """Otherwise a passenger looks like the owner. A key that already names the list is not repeated."""
    owner = {"name": "Ada Weiss", "guests": [{"name": "Bo Lund", "born": "1990-12-07"}]}
    assert lines(render_units(units(call("get_user", {"id": "u_77"}, owner)))) == [
        "get_user(u_77): name Ada Weiss; guests: name Bo Lund, born 1990-12-07"
    ]
    trip = {"state": "open", "flights": [{"flight_number": "HX017", "day": "2024-05-01"}]}
    assert lines(render_units(units(call("get_trip", {"id": "T-77"}, trip)))) == [
        "get_trip(T-77): state open; flight_number HX017, day 2024-05-01"
    ]


def test_arguments_are_separated_from_the_answer() -> None:
    """Arguments are in the handle, the outcome follows it."""
    arguments = {"id": "K-113", "method": {"card": "card_3481935"}, "rows": [{"sku": "P-77"}]}
    assert lines(render_units(units(call("change", arguments, {"state": "open", "card": "card_9525117"})))) == [
        "change(K-113; method: card card_3481935; rows: sku P-77): state open, card card_9525117"
    ]
    query = "select region_code, sum(net_amount_eur) from mart_sales.fact_orders where not is_test group by region_code"
    assert lines(render_units(units(call("run_sql", {"sql": query}, "ok")))) == [f"run_sql(sql: {query}): ok"]


def test_a_failed_call_is_never_shown_without_its_error() -> None:
    """Arguments without the error would read as if the call had succeeded."""
    rows = [{"sku": f"P-{number}", "when": f"2024-05-{number:02}"} for number in range(10, 40)]
    error = "Error: payment amount does not add up, total price is 305, but paid 255"
    history = units(call("book", {"id": "A1", "rows": rows}, error), user("I need P-15 and P-16, please, P-15 first."))
    seen = 0
    for room in range(30, 300, 3):
        text = render_units(history, room)
        seen += "book(" in text
        assert ("book(" in text) == (error in text)
    assert seen > 20


def test_a_truncated_list_says_how_many_items_are_missing() -> None:
    codes = [f"KX{number:04}" for number in range(40)]
    history = units(call("get_user", {"id": "u_77"}, {"orders": codes}))
    text = render_units(history, 100)
    assert text.endswith(f" +{40 - text.count('KX')} more\n{END}")
    assert "more" not in render_units(history, 2000)


def test_a_different_object_is_not_a_change_of_the_first() -> None:
    """Two calls for one customer create two objects."""
    order = {"state": "open", "total": 4100, "owner": "Ada Weiss"}
    history = units(
        call("book", {"user": "u_77", "to": "OSL"}, {"order_id": "K-113", **order}),
        call("book", {"user": "u_77", "to": "HAM"}, {"order_id": "K-114", **order}),
    )
    assert "was" not in render_units(history)
    assert "order_id K-113" in render_units(history)


def test_a_newer_object_replaces_its_old_row_in_a_list() -> None:
    """The line was resumed, so its suspension must not be shown alone."""
    table = [{"line_id": f"L10{number}", "plan": f"P{number}", "status": "Suspended"} for number in range(10, 14)]
    table[0]["status"] = "Active"
    history = units(
        call("get_lines", {"customer": "C1047"}, table),
        call("resume", {"customer": "C1047", "line": "L1012"}, {"line_id": "L1012", "status": "Active"}),
        call("get_bill", {"id": "B77"}, {"bill_id": "B77", "owner": "C1047", "status": "Late"}),
    )
    text = render_units(history)
    assert "status Active (was Suspended)" in text
    assert "L1012, P12, status" not in text.replace("plan ", "")
    assert "status Late" in text
    assert "was Late" not in text
    assert "(was Active)" not in text


def test_a_retracted_statement_is_shown_with_its_correction() -> None:
    """The following sentence is selected next, because it may be the correction."""
    history = units(
        user("AR-5521 is missing, and AR-5535 has a broken edge. Oh no, 5535 is fine, the broken one is the other."),
        *[call("get_order", {"id": f"K-{n}"}, {"state": "open", "total": f"{n * 37}.50"}) for n in range(100, 112)],
        *[user(f"Order K-{n} is late, look at it.") for n in range(100, 112)],
    )
    for room in range(300, 460, 20):
        text = render_units(history, room)
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
def test_a_request_is_selected_before_a_phrase(wish: str, phrase: str) -> None:
    """Even if it is longer, and in scripts without spaces too."""
    history = units(user(phrase), user(wish))
    size = STORED.text(render_units(history).splitlines()[0]) + STORED.text(f"user said: {wish}") + 3
    assert lines(render_units(history, size)) == [f"user said: {wish}"]


def test_an_answer_finds_its_question_in_any_eviction_order() -> None:
    """The user's last message is kept, so the question is evicted first, together with calls."""
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
