"""What a summarizer is asked to the character: names, records that are too long, and where an answer is cut."""

from __future__ import annotations

import pytest

from holdfast.context.summary_prompts import CUT, chunks, fitted, records, shortened
from holdfast.context.units import units_of
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, ToolCall
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED


def test_who_wrote_a_message_is_told_beside_its_role() -> None:
    """The agent, else the name in the message; of a result, of which only the tool is told, nobody."""
    call = ToolCall("c", "look", "{}")
    new = [
        NewEntry(message=message, tokens=1, timestamp=0, agent=agent)
        for message, agent in (
            (Message(role="user", content="hi", name="ada"), None),
            (Message(role="assistant", content="let me see", tool_calls=(call, ToolCall("d", "ask", "{}"))), "support"),
            (Message(role="tool", content="ok", tool_call_id="c"), "support"),
            (Message(role="assistant", content="done", name="bot"), "billing"),
        )
    ]
    heads = [text.splitlines()[0] for text in records(units_of(extend(Tail(), new)[0]))]
    assert heads == [
        "[0] user (ada):",
        "[1] assistant (support):",
        "[2] result of look:",
        "[-] result of ask:",
        "[3] assistant (billing):",
    ]


@pytest.mark.parametrize("tokens", [60, 200, 1000])
def test_a_record_that_is_too_long_keeps_most_of_what_has_room(tokens: int) -> None:
    """And only such a one is shortened; by its share of tokens, so that a dense text loses no more than a thin one."""
    for text in ("word " * 4000, "QX-7731/ab " * 1500, "订单号已发货" * 900):
        [made] = chunks([text], tokens, STORED)
        assert tokens * 0.6 < STORED.text(made) <= tokens
    exact = "word " * 40
    assert chunks([exact], STORED.text(exact) + 1, STORED) == [exact]
    assert "left out" in chunks([exact * 20], STORED.text(exact), STORED)[0]


class Characters:
    """Counts characters."""

    def text(self, text: str) -> int:
        return len(text)

    def message(self, message: Message) -> int:
        return len(message.text)


def test_a_shortened_record_leaves_a_fifth_of_the_room_for_its_mark() -> None:
    """And keeps 40 characters, however little room there is."""
    text = "x" * 999
    assert chunks([text], 100, Characters()) == [shortened(text, 79)]
    assert chunks([text], 300, Characters()) == [shortened(text, 239)]
    assert chunks([text], 1, Characters()) == [shortened(text, 40)]


def test_records_are_joined_while_they_have_room_to_the_token() -> None:
    size = STORED.text("one two") + 1
    assert chunks(["one two"] * 3, 3 * size, STORED) == ["one two\none two\none two"]
    assert chunks(["one two"] * 3, 3 * size - 1, STORED) == ["one two\none two", "one two"]


def test_of_a_shortened_text_two_thirds_are_its_head() -> None:
    text = "a" * 60 + "-" * 30 + "z" * 30
    assert shortened(text, 90) == "a" * 60 + "\n[… 30 characters left out …]\n" + "z" * 30
    assert shortened(text, 120) == text
    assert "1 characters left out" in shortened(text, 119)


def test_a_summary_that_is_too_long_keeps_all_that_has_room() -> None:
    """To the last token; up to an end of a sentence where that is in its second half."""
    assert fitted("x" * 500, 500, len) == "x" * 500
    assert fitted("x" * 501, 500, len) == "x" * (500 - len(CUT)) + CUT
    room = 100 + len(CUT)
    late, early = (f"{'a' * at}. {'b' * 200}" for at in (60, 40))
    assert fitted(late, room, len) == f"{'a' * 60}.{CUT}"
    assert fitted(early, room, len) == early[:100] + CUT
    assert fitted(f"one. two. {'a' * 60}\n{'b' * 200}", room, len) == f"one. two. {'a' * 60}{CUT}"
