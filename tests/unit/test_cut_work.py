"""Cutting counts about as much text as it keeps, even for very long messages."""

from __future__ import annotations

import pytest

from holdfast.context.cut import cut, make_stub
from holdfast.context.summaries import cut_to_fit
from holdfast.domain.messages import Message

MIB = 1 << 20


class Counted:
    """Counts four characters as a token, and notes how many characters it was given."""

    def __init__(self) -> None:
        self.chars = 0

    def text(self, text: str) -> int:
        self.chars += len(text)
        return len(text) // 4

    def message(self, message: Message) -> int:
        return self.text(message.text) + 4


@pytest.mark.parametrize("cutting", [cut, make_stub])
@pytest.mark.parametrize("tokens", [128, 2_000, 16_000])
def test_cutting_a_long_message_counts_it_once(cutting: object, tokens: int) -> None:
    """Regression: eight messages of 1 MB of `a` took 60 s, mostly to count halves and quarters of them."""
    count, message = Counted(), Message(role="tool", content="a" * 8 * MIB, tool_call_id="c")
    shorter = cutting(message, tokens, seq=1, count=count)  # type: ignore[operator]
    assert 0.9 * tokens <= count.message(shorter) <= tokens
    assert count.chars <= 8 * MIB + 60 * 4 * tokens


def test_fitting_a_long_text_counts_it_once() -> None:
    count = Counted()
    text = cut_to_fit("a" * 8 * MIB, 2_000, count.text)
    assert count.text(text) == 2_000
    assert count.chars <= 8 * MIB + 30 * 4 * 2_000
