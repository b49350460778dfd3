"""A search must not slow down others: its work is bounded per hit and per request, and the heavy part runs off the
event loop.
"""

from __future__ import annotations

import random

import pytest

from holdfast.limits import SNIPPET_CHARS, SNIPPET_WORDS
from holdfast.recall.questions import Question, parse_question
from holdfast.recall.snippets import make_snippet
from tests.loop_guard import watch
from tests.service.search_kit import open_talks

MIB = 1 << 20


def distinct_words(chars: int, seed: int = 0) -> str:
    """Return distinct words with about this many characters."""
    rnd = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = (f"{''.join(rnd.choices(letters, k=7))}" for _ in range(chars // 8))
    return " ".join(words)


def question(text: str) -> Question:
    return parse_question(text, now=0)


async def test_snippets_of_large_messages_are_made_off_the_loop_with_bounded_work() -> None:
    """Regression: a search of eight 1 MB messages stemmed each on the event loop, for 10 to 42 s."""
    async with open_talks() as at:
        await at.add_messages("s", *(f"harbour {distinct_words(MIB, seed)}" for seed in range(3)))
        with watch() as guard:
            page = await at.hf.search("harbour kelp", "ada")
        assert len(page.hits) == 3
        assert all("harbour" in hit.snippet for hit in page.hits)
        guard.check("snippet", "stem")
        assert guard.largest["snippet"] <= 2 * SNIPPET_CHARS
        assert guard.off_loop["stem"] <= 80 * 3 * SNIPPET_WORDS


async def test_turn_that_recalls_large_messages_works_off_the_loop() -> None:
    """Ordinary chats with recall do the same work."""
    async with open_talks() as at:
        # Other words than above, since analysed words are cached.
        await at.add_messages("s", *(f"harbour {distinct_words(MIB, seed)}" for seed in range(100, 102)))
        session = await at.hf.session("now", user_id="ada", agent="finder")
        with watch() as guard:
            async with session.turn("Which harbour was it?") as turn:
                assert turn.messages
                turn.add("The one with the kelp.")
            await at.settled()
        guard.check("snippet", "stem", "count", "terms")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("refunds", "Refunded"),
        ("buy", "bought"),
        ("cry", "cries"),
        ("dying", "die"),
        ("ORD-17345", "ord-17345"),
        ("17345", "ORD-17345"),
        ("café", "CAFE"),
        ("eclair", "Éclairs"),
        ("übungen", "Übung"),
        ("заказы", "заказ"),
        ("会議室", "次の会議室です"),
        ("الكتاب", "كتاب"),
        ("camel", "myCamelCase"),
    ],
)
def test_words_in_a_long_text_are_highlighted_as_in_a_short_one(asked: str, said: str) -> None:
    """Only words that begin like a word of the question are stemmed."""
    short = make_snippet(f"before {said} after", question(asked))
    assert short.highlights, "found in a short text"
    for seed, filler in (
        (1, distinct_words(60_000, 1)),
        (2, "the weather was nice and we went out for a walk. " * 1500),
    ):
        text = f"{filler} {said} {distinct_words(20_000, seed + 5)}"
        snippet = make_snippet(text, question(asked))
        marked = {snippet.text[start:stop] for start, stop in snippet.highlights}
        assert {short.text[start:stop] for start, stop in short.highlights} <= marked, (asked, said, marked)


def test_end_of_a_very_long_text_is_searched() -> None:
    """As much of the head and the tail as is indexed."""
    text = f"{distinct_words(MIB)} harbour"
    assert "harbour" in make_snippet(text, question("harbour")).text
