"""Media in results of tools, for Chat Completions, which take text alone there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import Message, Part
from holdfast.wire.openai import FROM_RESULT, SHOWN_AFTER, move_media_after_results

IMAGE = Part("image_url", None, {"image_url": {"url": "data:image/png;base64,AA=="}})
PARTS = st.lists(st.sampled_from([Part("text", "a"), Part("text", "b"), IMAGE]), max_size=4).map(tuple)
ROUND = st.lists(PARTS, min_size=1, max_size=3)


def conversation(rounds: list[list[tuple[Part, ...]]]) -> list[Message]:
    told = [Message(role="user", content="go")]
    for results in rounds:
        told.append(Message(role="assistant", content="calls"))
        told += [Message(role="tool", content=parts, tool_call_id=f"c{at}") for at, parts in enumerate(results)]
    return told


@given(st.lists(ROUND, max_size=3))
def test_no_result_has_media_and_none_is_lost(rounds: list[list[tuple[Part, ...]]]) -> None:
    """All of them stand behind their round, in order; results stay together, and more messages change none before."""
    messages = conversation(rounds)
    told = move_media_after_results(messages)
    assert not [one for one in told if one.role == "tool" and one.media]
    assert [part for one in told for part in one.media] == [part for one in messages for part in one.media]
    assert [one.tool_call_id for one in told if one.role == "tool"] == [
        one.tool_call_id for one in messages if one.role == "tool"
    ]
    for at, one in enumerate(told):
        if one.role == "tool":
            assert told[at - 1].role in ("assistant", "tool")
    if messages[-1].role != "tool":
        return
    longer: Any = move_media_after_results([*messages, Message(role="assistant", content="done")])
    assert longer[:-1] == told


def test_results_describe_their_moved_media() -> None:
    """Where they are, and whose they were; what has none stays the same object."""
    plain = conversation([[(Part("text", "a"),)]])
    assert all(one is other for one, other in zip(move_media_after_results(plain), plain, strict=True))
    *_, result, shown = move_media_after_results(conversation([[(Part("text", "a"), IMAGE)]]))
    assert result.content == (Part("text", "a"), Part("text", SHOWN_AFTER))
    assert shown == Message(role="user", content=(Part("text", FROM_RESULT.format(id="c0")), IMAGE))
