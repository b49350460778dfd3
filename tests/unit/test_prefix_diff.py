"""What a prompt has in common with the one before it, and its hash: the same however it was worked out, and at the cost of what is new."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.context import prefix_diff as trails
from holdfast.context.prefix_diff import Prefix, PrefixTracker, hash_messages
from holdfast.domain.messages import Message, encode_without_origin

_PROMPT = st.tuples(st.lists(st.sampled_from(["a", "b", "c"]), max_size=8), st.integers(0, 9), st.booleans())


def make_messages(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role="user", content=text) for text in texts)


@given(st.lists(_PROMPT, max_size=8))
def test_a_hash_is_that_of_the_exact_messages_whatever_came_before(prompts: list[tuple[list[str], int, bool]]) -> None:
    """Grown, cut off, edited, or thought to go on otherwise than it does; asked for or not, and asked for again."""
    trail, before = PrefixTracker(), None
    for texts, stays, asked in prompts:
        prompt = make_messages(*texts)
        found = trail.advance(prompt, stays)
        if before is None:
            assert found == Prefix(0, None)
        else:
            assert prompt[: found.messages] == before[: found.messages]
            assert prompt[found.messages : found.messages + 1] != before[found.messages : found.messages + 1] or (
                found.messages == min(len(prompt), len(before))
            )
            assert found.before == len(before)
            assert found.whole == (prompt[: len(before)] == before)
        if asked:
            assert [trail.hash(prompt), trail.hash(prompt)] == [hash_messages(prompt)] * 2
        assert trail.hash(make_messages("another")) == hash_messages(make_messages("another"))
        before = prompt


def test_another_prompt_has_another_hash() -> None:
    """As 32 hex digits, the same in every release: they are kept with calls, so that a prompt made again can be compared."""
    others = [
        make_messages(),
        make_messages("a"),
        make_messages("b"),
        make_messages("a", "b"),
        make_messages("b", "a"),
        make_messages("a\nb"),
    ]
    assert len({hash_messages(prompt) for prompt in others}) == len(others)
    assert all(len(bytes.fromhex(hash_messages(prompt))) == 16 for prompt in others)
    assert hash_messages(make_messages("a", "b")) == "ac249ee702bff7412a5967a7ce481d01"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of the messages that are hashed from here on."""
    texts: list[str] = []

    def hash_and_record(message: Message) -> bytes:
        texts.append(message.text)
        return encode_without_origin(message)

    monkeypatch.setattr(trails, "encode_without_origin", hash_and_record)
    return texts


def list_hashed(trail: PrefixTracker, written: list[str], prompt: tuple[Message, ...], stays: int = 0) -> list[str]:
    """What of a prompt has to be hashed when it follows."""
    written.clear()
    trail.advance(prompt, stays)
    trail.hash(prompt)
    return [*written]


def test_a_prompt_that_only_grew_is_hashed_in_what_it_grew_by(written: list[str]) -> None:
    trail, whole = PrefixTracker(), make_messages(*"abcdef")
    assert list_hashed(trail, written, whole[:3]) == ["a", "b", "c"]
    assert list_hashed(trail, written, whole[:5]) == ["d", "e"]
    assert list_hashed(trail, written, whole[:5]) == []
    assert list_hashed(trail, written, whole) == ["f"]


def test_the_expected_prefix_is_not_hashed_again(written: list[str]) -> None:
    """Behind it each prompt has something of its own, as what is recalled for one turn; where it does not stay, all is hashed."""
    trail, stays = PrefixTracker(), make_messages(*"abcd")
    assert list_hashed(trail, written, (*stays[:2], *make_messages("x", "q")), 2) == ["a", "b", "x", "q"]
    assert list_hashed(trail, written, (*stays[:3], *make_messages("y", "r")), 3) == ["c", "y", "r"]
    assert list_hashed(trail, written, (*stays, *make_messages("z")), 4) == ["d", "z"]
    assert list_hashed(trail, written, (*stays, *make_messages("v"))) == ["v"]
    assert list_hashed(trail, written, (*stays[:3], *make_messages("w"))) == ["a", "b", "c", "w"]
    assert list_hashed(trail, written, (*stays[:3], *make_messages("w", "u"))) == ["u"]
