"""Cutting one message exactly, with a counter that counts characters."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from holdfast.context.cut import USERS_LEAST, cut, make_stub
from holdfast.domain.messages import Message, Part, ToolCall
from tests.unit.test_summary_prompts import Characters

LONG = " ".join(f"{at:03}" for at in range(500))
"""A text in which every position is unique."""
IMAGE = Part("image_url", extra={"image_url": {"url": "https://kelp.example/a.png"}})
MARK = re.compile(r"\n\[… (\d+) of (\d+) characters cut, (.+?) …\]\n")


class Letters(Characters):
    """Counts characters of texts, arguments and other fields; an image counts as 100."""

    def message(self, message: Message) -> int:
        said = len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
        return said + 100 * len(message.media) + sum(len(str(value)) for value in message.extra.values())


def cut_message(message: Message, tokens: int, **options: Any) -> Message:
    return cut(message, tokens, seq=7, count=Letters(), **options)


def reply(content: Any, **fields: Any) -> Message:
    return Message(role="assistant", content=content, **fields)


def calling(arguments: Any) -> Message:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message(role="assistant", tool_calls=(ToolCall("c", "save", text),))


def is_cut_of(text: str, whole: str, where: str = "message 7 of the session") -> bool:
    """Check that `text` is a head (two thirds), a correct mark and a tail of `whole`."""
    mark = MARK.search(text)
    assert mark is not None
    head, tail = text[: mark.start()], text[mark.end() :]
    kept = len(head) + len(tail)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) == kept * 2 // 3
    return (int(mark[1]), int(mark[2]), mark[3]) == (len(whole) - kept, len(whole), where)


@pytest.mark.parametrize("tokens", [100, 300, 1000, 1900])
def test_a_cut_text_keeps_head_and_tail_and_counts_the_cut(tokens: int) -> None:
    """It uses nearly all allowed tokens."""
    text = cut_message(reply(LONG), tokens).text
    assert is_cut_of(text, LONG)
    assert 0.97 * tokens <= len(text) <= tokens


def test_messages_that_fit_are_unchanged() -> None:
    """To the token. A message that a mark would lengthen is also unchanged."""
    message = reply(LONG)
    assert cut_message(message, len(LONG)) is message
    assert cut_message(message, len(LONG) - 1) != message
    mark = len("\n[… 60 of 60 characters cut, message 7 of the session …]\n")
    for size, stays in ((mark, True), (mark + 1, False)):
        short = reply("x" * size)
        assert (cut_message(short, 5) == short) == stays
        assert cut_message(short, 5).text == (
            short.text if stays else f"\n[… {size} of {size} characters cut, message 7 of the session …]\n"
        )


def test_user_messages_are_not_cut_below_their_floor() -> None:
    """At least 48 tokens are kept; other roles can be cut further."""

    class Words(Characters):
        def message(self, message: Message) -> int:
            return len(message.text.split())

    lengths = {
        role: [
            Words().message(cut(Message(role=role, content=LONG), tokens, seq=7, count=Words()))
            for tokens in (12, 48, 49)
        ]
        for role in ("user", "assistant")
    }
    assert lengths["user"][0] == lengths["user"][1] <= USERS_LEAST == 48
    assert lengths["user"][0] > 46
    assert lengths["assistant"][0] <= 12
    short = Message(role="user", content="x " * 48)
    assert cut(short, 12, seq=7, count=Words()) is short


def test_a_cut_result_names_the_call_that_loads_it() -> None:
    """Only if loading is available; replies cannot be loaded."""
    tool = Message(role="tool", content=LONG, tool_call_id="c")
    assert is_cut_of(cut_message(tool, 300).text, LONG)
    loaded = cut_message(tool, 300, loads=True).text
    assert is_cut_of(loaded, LONG, 'load_artifact("result-7")')
    assert is_cut_of(cut_message(reply(LONG), 300, loads=True).text, LONG)


def test_long_strings_in_arguments_are_cut() -> None:
    """Strings of more than 200 characters; the arguments stay compact JSON."""
    arguments = {"short": "s" * 200, "long": "l" * 201, "text": LONG, "list": [LONG, 1], "n": 12}
    whole = calling(arguments)
    [call] = cut_message(whole, 1200).tool_calls
    found = json.loads(call.arguments)
    assert {key: found[key] for key in ("short", "n")} == {"short": "s" * 200, "n": 12}
    assert found["list"][1] == 1
    for text, of in ((found["long"], "l" * 201), (found["text"], LONG), (found["list"][0], LONG)):
        assert is_cut_of(text, of)
    assert '": ' not in call.arguments
    assert next(iter(found)) == "[cut, see message 7 of the session]"  # a call that was made has no such key
    assert (call.id, call.name) == ("c", "save")


def test_arguments_that_are_not_json_become_an_object_with_their_text() -> None:
    """Also arguments without long strings, if nothing else is enough, so arguments are always JSON."""
    for arguments in (LONG, json.dumps({f"k{at}": at for at in range(400)})):
        [call] = cut_message(calling(arguments), 400).tool_calls
        found = json.loads(call.arguments)
        assert list(found) == ["[cut, see message 7 of the session]"]
        [text] = found.values()
        assert is_cut_of(text, arguments)
        assert len(call.arguments) <= 400


@pytest.mark.parametrize(("opening", "closing"), [('{"a": ', "}"), ("[", "]")])
def test_deeply_nested_arguments_are_cut_as_text(opening: str, closing: str) -> None:
    """Arguments are texts of a model, so no limit of a request applies to them. Too deep a value raised RecursionError."""
    arguments = opening * 600 + json.dumps(LONG) + closing * 600
    text = cut_message(calling(arguments), 400).tool_calls[0].arguments
    ((key, value),) = json.loads(text).items()
    assert key == "[cut, see message 7 of the session]"
    assert is_cut_of(value, arguments)


def test_media_are_removed_only_if_cutting_text_is_not_enough() -> None:
    """A note names their type and message."""
    whole = reply((Part("text", LONG), IMAGE))
    kept = cut_message(whole, 300)
    assert kept.media == (IMAGE,)
    assert is_cut_of(kept.text, LONG)
    lean = cut_message(whole, 150)
    assert not lean.media
    assert isinstance(lean.content, tuple)
    first, second = lean.content
    assert is_cut_of(first.text or "", LONG)
    assert second == Part("text", "[a part of type image_url is left out here; it is in message 7 of the session]")


# -- a task --------------------------------------------------------------------------


def test_a_stub_is_marked_and_still_identifies_the_task() -> None:
    """It keeps at least 66 characters."""
    task = Message(role="user", content=LONG)
    found = {tokens: make_stub(task, tokens, seq=0, count=Letters()).text for tokens in (10, 100, 400)}
    for text in found.values():
        assert text.startswith("[original task: 000 ")
        assert text.endswith("]")
        assert is_cut_of(text.removeprefix("[original task: ").removesuffix("]"), LONG, "message 0 of the session")
    assert found[10] == found[100]
    kept = len(found[10]) - len("[original task: ]") - len(MARK.search(found[10])[0])  # type: ignore[index]
    assert kept == 66
    assert 0.97 * 400 <= len(found[400]) <= 400
    assert make_stub(task, len(LONG), seq=0, count=Letters()) is task
    assert make_stub(task, len(LONG) - 1, seq=0, count=Letters()) != task


def test_a_stub_keeps_media_while_they_fit() -> None:
    task = Message(role="user", content=(Part("text", LONG), IMAGE))
    for tokens, media in ((400, (IMAGE,)), (230, ())):
        told = make_stub(task, tokens, seq=0, count=Letters())
        assert told.media == media
        assert told.text.startswith("[original task: 000 ")
        assert ("image_url is left out here; it is in message 0 of the session" in told.text) == (not media)
    alone = make_stub(Message(role="user", content=(IMAGE,)), 20, seq=0, count=Letters())
    assert alone.text.startswith("[original task: ]")
