"""Digests of conversations: no courtesies, conclusions before questions, promises, a fair share for every message."""

# ruff: noqa: RUF001 (sentences of other scripts)

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context.digest.facts import name_call, read_unit
from holdfast.context.digest.page import SentContext
from holdfast.context.digest.pool import EMPTY, fold, render
from holdfast.context.digest.speech import is_acknowledgement, is_courtesy, is_promise
from holdfast.context.digest.texts import parse_listing
from holdfast.context.salience import Signals
from holdfast.context.settings import ContextSettings
from holdfast.context.strategies import make_strategy
from holdfast.context.units import Unit, group_units
from holdfast.domain.budget import Budget
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED


def units(*messages: Message) -> list[Unit]:
    entries, _ = extend(Tail(), [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for one in messages])
    return group_units(entries)


def make_message(role: str, text: str) -> Message:
    return Message(role=role, content=text)


_calls = iter(range(10**6))


def call(name: str, arguments: Any, result: Any) -> list[Message]:
    call_id = f"c{next(_calls)}"
    text = result if isinstance(result, str) else json.dumps(result)
    return [
        Message(role="assistant", tool_calls=(ToolCall(call_id, name, json.dumps(arguments)),)),
        Message(role="tool", content=text, tool_call_id=call_id),
    ]


def digest(messages: list[Message], tokens: int = 400, shown: SentContext | None = None) -> str:
    history = units(*messages)
    return render(fold(EMPTY, history, room=2000), tokens, first=0, last=99, count=STORED, shown=shown)


# -- wording ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "sentence",
    [
        "Yay!",
        "Thanks, Mel!",
        "That's great to hear!",
        "Vielen Dank!",
        "Merci beaucoup !",
        "谢谢你！",
        "ありがとうございます。",
        "Is there anything else I can help with?",
        "Muchas gracias.",
    ],
)
def test_courtesies_are_never_facts(sentence: str) -> None:
    assert is_courtesy(sentence)
    assert sentence not in digest([make_message("user", f"{sentence} My order is K-4711.")])


@pytest.mark.parametrize(
    "sentence",
    [
        "Never touch it!",
        "No nuts!",
        "Yes!",
        "Great, Berlin!",
        "Perfect, cancel the order please",
        "Thanks, 3 of them.",
        "Always answer in French!",
        "Metric only, thanks.",
        "不要",
        "Bitte nur auf Deutsch!",
    ],
)
def test_requests_and_answers_are_not_courtesies(sentence: str) -> None:
    assert not is_courtesy(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Noted.",
        "Got it!",
        "Okay, understood.",
        "I see.",
        "Makes sense, thanks.",
        "You’re welcome!",
        "Verstanden.",
        "Noté.",
        "Entendido.",
        "明白了。",
        "了解しました。",
    ],
)
def test_acknowledgements_are_no_facts_on_either_side(sentence: str) -> None:
    pages = [
        digest(
            [
                make_message("user", "My order is K-4711."),
                make_message("assistant", sentence),
                make_message("user", "It weighs 12 kg."),
            ]
        ),
        digest(
            [
                make_message("user", "My order is K-4711."),
                make_message("assistant", "It leaves Oslo on May 3."),
                make_message("user", sentence),
            ]
        ),
    ]
    for page in pages:
        assert "K-4711" in page
        assert sentence.rstrip(".!。") not in page
        assert "→" not in page


@pytest.mark.parametrize("word", ["Next.", "Next question, please.", "Go on.", "Weiter.", "下一个"])
def test_a_request_to_go_on_is_kept_only_as_an_answer(word: str) -> None:
    order = make_message("user", "My order is K-4711.")
    for reply in ("Noted.", "It leaves Oslo on May 3."):
        page = digest(
            [order, make_message("assistant", reply), make_message("user", word), make_message("assistant", "Good.")]
        )
        assert (word in page, "→" in page, "K-4711" in page) == (False, False, True)
    asked = make_message("assistant", "It leaves Oslo on May 3. Shall I repeat it, or go on?")
    assert f"→ user said: {word}" in digest(
        [order, asked, make_message("user", word), make_message("assistant", "Good.")]
    )


@pytest.mark.parametrize(
    "sentence",
    [
        "Noted: seat 12A.",
        "Next week I fly to Oslo.",
        "Understood, so 12 kg.",
        "I see two of them.",
        "Go on the 3rd of May.",
        "Understood Monday.",
    ],
)
def test_sentences_that_only_begin_like_acknowledgements_are_facts(sentence: str) -> None:
    assert not is_acknowledgement(sentence)


def test_an_answer_yes_after_a_statement_is_kept() -> None:
    page = digest(
        [
            make_message("assistant", "The cheapest is SK4700."),
            make_message("user", "Yes."),
            make_message("assistant", "Good."),
        ]
    )
    assert "SK4700. → user said: Yes." in page


def test_a_form_field_is_no_acknowledgement() -> None:
    assert "Understood" in digest([make_message("user", "Order: K-4711\nStatus: Understood")])


@given(st.text(max_size=40))
def test_courtesies_and_promises_are_decided_for_any_text(text: str) -> None:
    assert is_courtesy(text) in (True, False)
    assert is_promise(text) in (True, False)


@pytest.mark.parametrize(
    "promise", ["I'll send you the list on Friday.", "Ich werde das am Montag prüfen.", "我会发给你清单"]
)
def test_a_promise_of_the_assistant_is_kept_with_its_label(promise: str) -> None:
    assert is_promise(promise)
    talk = [make_message("assistant", f"{promise} Anything else?")]
    for number in range(8):
        talk += [
            make_message("user", f"And what about the plan of day {number}?"),
            make_message("assistant", "It is as it was before."),
        ]
    assert promise in digest(talk, 220).partition("assistant said: ")[2]


def test_a_question_is_not_attached_as_an_answer() -> None:
    text = digest([make_message("assistant", "The list has 12 names."), make_message("user", "Which test is bad?")])
    assert "→ user said: Which" not in text


# -- conclusions -----------------------------------------------------------------


def test_conclusions_come_before_the_questions_that_led_to_them() -> None:
    talk: list[Message] = []
    for number in range(12):
        talk += [
            make_message("user", f"Would you please find out for me why the service number {number} is so slow today?")
        ]
        talk += call("logs", {"service": f"svc-{number}"}, "\n".join(f"row {at} took {at}7 ms" for at in range(20)))
        talk += [make_message("assistant", f"Service {number} waits for lock L{number}X of the billing database.")]
    text = digest(talk, 700)
    assert sum(f"lock L{number}X" in text for number in range(12)) >= 10


def test_one_long_message_leaves_room_for_the_others() -> None:
    long = " ".join(f"Item {at} has the code QX{at:05} and stands in hall {at % 9}." for at in range(9_000))
    others = [make_message("user", f"My contract number {at} is KT-{at}99.") for at in range(20)]
    text = digest([*others[:10], make_message("user", long), *others[10:]], 600)
    assert sum(f"KT-{at}99" in text for at in range(20)) >= 15


# -- names of calls, and files -----------------------------


@pytest.mark.parametrize("path", ["src/app/payments/webhooks.py", "/repo/" + "deep/" * 12 + "module.py"])
def test_a_call_is_named_by_its_file_in_any_argument_order(path: str) -> None:
    for arguments in ({"command": "view", "path": path}, {"path": path, "command": "view"}):
        names, _ = name_call(arguments)
        assert names[0] == path
        assert "view" in names


def test_a_long_sentence_does_not_displace_the_identifier() -> None:
    names, rest = name_call({"reason": "the customer no longer needs any of it at all", "order_id": "#W2378156"})
    assert names == ["#W2378156"]
    assert list(rest) == ["reason"]


CODE = "import os\n\n\nclass Loop:\n    def run(self):\n        while True:\n            if (self.done):\n                return 56\n"


@pytest.mark.parametrize("numbered", [False, True])
def test_a_file_view_is_reduced_to_line_range_and_definitions(numbered: bool) -> None:
    text = "\n".join(f"{at:6}\t{row}" for at, row in enumerate(CODE.splitlines(), 40)) if numbered else CODE
    found = digest(call("read_file", {"path": "src/loop.py"}, text))
    assert "read_file(src/loop.py)" in found
    assert "Loop" in found
    assert ("40-47" in found) == numbered
    assert "return 56" not in found
    assert "if (" not in found


def test_search_matches_are_reduced_to_file_and_line() -> None:
    text = "\n".join(f"src/a{at}.py:{at}1:    total = compute(x)" for at in range(5))
    assert parse_listing(text) is not None
    assert "compute" not in digest(call("grep", {"pattern": "total"}, text))


def test_reports_are_not_listings() -> None:
    for text in (
        "Name: Ada\nCity: Paris\nOrder: K-1\nState: open",
        "All went well.\nTwo were late.\nOne is gone.\nBye.",
    ):
        assert parse_listing(text) is None


# -- rows and lists ----------------------------------------------------------------


def test_the_row_that_the_user_named_comes_first() -> None:
    cards = {f"card_{at}55{at}1": {"brand": "visa", "ends": f"{at}{at}8{at}"} for at in range(1, 10)}
    cards["card_7715"] = {"brand": "visa", "ends": "8484"}
    shown = SentContext()
    shown.naming = {"the", "card", "ending", "in", "8484"}
    assert "card_7715" in digest(call("cards", {"user": "ada_1"}, cards), 60, shown)


@given(st.integers(40, 400), st.integers(2, 9))
def test_parallel_lists_are_complete_or_omitted(tokens: int, many: int) -> None:
    old, new = ([f"{kind}{at}K{at}77" for at in range(many)] for kind in ("A", "B"))
    text = digest(call("swap", {"order": "K-1", "item_ids": old, "new_item_ids": new}, "swapped, all done"), tokens)
    assert sum(value in text for value in (*old, *new)) in (0, 2 * many)


# -- the window that a default budget uses -------------------------------------------


@pytest.mark.parametrize("strategy", ["digest", "salience", "clear_tool_results"])
def test_a_default_budget_uses_200000_tokens_of_a_larger_window(strategy: str) -> None:
    million = Budget(1_000_000)
    assert make_strategy(ContextSettings(strategy)).cap(million).input == 185_664
    assert make_strategy(ContextSettings(strategy, {"max_window": 500_000})).cap(million).input == 485_664
    assert make_strategy(ContextSettings(strategy, {"budget": 300_000})).cap(million) is million
    small = Budget(128_000)
    assert make_strategy(ContextSettings(strategy)).cap(small) is small


def test_messages_of_courtesies_alone_give_no_lines() -> None:
    assert [line for unit in units(make_message("user", "Thank you so much!")) for line in read_unit(unit).lines] == []


# -- errors --------------------------------------------------------------------------


def test_an_error_notes_that_the_same_call_succeeded_later() -> None:
    failed = call("move", {"id": "KX-1", "to": {"bay": "B7"}}, "Error: bay is taken")
    done = call("move", {"id": "KX-1", "to": {"bay": "B9"}}, "moved")
    other = call("move", {"id": "KX-2", "to": {"bay": "B9"}}, "moved")
    assert "bay is taken (a later call succeeded)" in digest([*failed, *done])
    assert "later call" not in digest([*failed, *other])
    assert "later call" not in digest([*done, *failed])


def test_salience_counts_a_promise_above_other_replies() -> None:
    replies = [
        make_message("assistant", "It is all as it was on that day."),
        make_message("assistant", "I will send it to you on that day."),
    ]
    usual, promise = map(Signals(units(*replies)).compute_importance, range(2))
    assert promise > usual
