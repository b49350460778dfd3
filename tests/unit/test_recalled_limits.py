"""Recalled text at its exact token limits, and text that cannot be encoded."""

from __future__ import annotations

import pytest

from holdfast.context.recalled import PromptContent, Recall, RecalledItem, make_block
from tests.unit.test_recalled_block import item, make_block_of
from tests.unit.test_summary_prompts import Characters

NOTHING = PromptContent((), ())


def list_recalled(room: int, *items: RecalledItem, budget: int = 10**6) -> list[str]:
    """What is told of the items, by a counter that counts characters."""
    recall = Recall(items=items, budgets={"conversation": budget, "memory": budget})
    made = make_block(recall, room, Characters(), NOTHING)
    return [] if made is None else [one.text for one in made.items]


def test_an_earlier_block_stays_while_it_fits() -> None:
    """With one token less it shrinks, and it never grows by later hits."""
    first, second = item("Kelp is due on Friday, in Oslo."), item("The boat is at the harbour.", id="s#2")
    earlier = make_block_of(first, second)
    assert earlier is not None
    size = len(earlier.message.text)
    recall = Recall(items=(first, second), block=earlier, budgets={"conversation": 10**6})
    assert make_block(recall, size, Characters(), NOTHING) is earlier
    assert make_block(Recall(block=earlier), size, Characters(), NOTHING) is earlier
    smaller = make_block(recall, size - 1, Characters(), NOTHING)
    assert smaller is not None
    assert smaller.items[0] == first
    assert len(smaller.message.text) < size


def test_a_block_uses_its_room_to_the_last_token() -> None:
    """Each item takes its line; the beginning of an item that is too long is kept."""
    texts = ["Kelp is due on Friday, in Oslo.", "The boat is at the harbour of Malmö."]
    items = [item(text, id=f"s#{at}") for at, text in enumerate(texts)]
    whole = make_block_of(*items)
    assert whole is not None
    size = len(whole.message.text)
    assert list_recalled(size, *items) == texts
    first, cut = list_recalled(size - 1, *items)
    assert first == texts[0]
    assert cut.endswith("…")
    assert texts[1].startswith(cut[:-1])


def test_a_single_item_of_its_kind_has_the_whole_budget() -> None:
    """With several items each has at most a third."""
    long = " ".join(f"word{at}" for at in range(200))
    alone = list_recalled(10**6, item(long), budget=900)[0]
    among = list_recalled(10**6, item(long), item("Kelp is due on Friday.", id="s#2"), budget=900)[0]
    assert len(alone) > 600
    assert len(among) < 300


@pytest.mark.parametrize("text", ["Kelp \ud800 is due on Friday", "\udfff" * 30])
def test_unencodable_text_is_escaped_and_recalled_once(text: str) -> None:
    """Truncated text can contain lone surrogates, which are written as escapes."""
    made = make_block_of(item(text), item(f" {text.upper()} ", id="s#2"))
    assert made is not None
    assert made.ids == ("s#1",)
    assert "\\ud" in made.message.text
    made.message.text.encode()


def test_content_of_the_prompt_is_not_recalled() -> None:
    """Matched by entry or text; texts below 16 characters may be part of another by chance."""
    for text, seq, held, told in (
        ("x" * 16, None, PromptContent((), ["xx" * 16]), False),
        ("x" * 15, None, PromptContent((), ["xx" * 16]), True),
        ("x" * 15, None, PromptContent((), ["x" * 15]), False),
        ("x" * 15, 3, PromptContent((3,), []), False),
        ("x" * 15, 3, PromptContent((4,), []), True),
    ):
        assert (make_block_of(item(text, seq=seq), held=held) is not None) == told
