"""Replay: reading recordings, finding values, and results checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.context.build import PRIMING
from holdfast.domain.activity import CACHE_LEAST
from holdfast.domain.messages import Message, ToolCall
from holdfast.replay.player import PlayResult, Tally, compare, play
from holdfast.replay.prompt_checks import list_values
from holdfast.replay.recordings import read
from holdfast.replay.specs import Spec
from holdfast.tokens import STORED
from holdfast.wire.transcripts import Recording


def asking(*arguments: str, ids: str = "abcdef") -> Message:
    """Make an assistant message with calls of these arguments."""
    calls = tuple(ToolCall(call_id, "look_up", text) for call_id, text in zip(ids, arguments, strict=False))
    return Message(role="assistant", tool_calls=calls)


def answer(call_id: str, text: str = "done") -> Message:
    """A tool result."""
    return Message(role="tool", tool_call_id=call_id, content=text)


def user(text: str) -> Message:
    """A user message."""
    return Message(role="user", content=text)


def rounds(number: int, words: int = 40) -> Recording:
    """A session of so many questions, each looked up and answered; no two messages are alike."""
    messages: list[Message] = [Message(role="system", content="Help."), user("Please tell me about all my bookings.")]
    for at in range(number):
        messages += [
            asking(json.dumps({"booking": f"QX{at:04d}", "reason": "asked " * 5})),
            answer("a", f"QX{at:04d} is of P-{7000 + at}: " + f"seat{at} " * words),
            Message(role="assistant", content=f"Booking {at} is fine."),
            user(f"And booking QX{at + 1:04d}, the one of {at} May?"),
        ]
    return Recording("rounds", tuple(messages))


# -- finding values ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ('{"name": "Anna", "to": "JFK"}', ["Anna"]),
        ('{"amount": 1234, "few": 123}', ["1234"]),
        ('{"price": 123.4, "low": -12.5, "big": -1234}', ["123.4", "-1234"]),
        ('{"ok": true, "no": null, "list": ["abcd", {"deep": ["efgh", 5678]}]}', ["abcd", "efgh", "5678"]),
        ('{"twice": "abcd", "again": "abcd", "number": 1234, "text": "1234"}', ["abcd", "1234"]),
        ('"just a text"', ["just a text"]),
        ("{no json", []),
        ("", []),
        ("[" * 100_000, []),
    ],
)
def test_argument_values(arguments: str, values: list[str]) -> None:
    """Strings of four characters and numbers of four digits, also nested, each once; nothing from invalid JSON."""
    assert list_values(asking(arguments)) == values


# -- reading -------------------------------------------------------------------------

ONE = {"id": "s1", "messages": [{"role": "user", "content": "one"}]}


def write_jsonl(folder: Path, *lines: Any, name: str = "sessions.jsonl") -> Path:
    """Write a JSONL file; strings are written unchanged."""
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def read_texts(path: Path) -> list[tuple[str, list[str]]]:
    """Return ids and texts of a file's recordings."""
    found = read([path], skip_bad=False, on_bad=lambda bad: pytest.fail(str(bad)))
    return [(item.id, [message.text for message in item.messages]) for item in found]


def test_file_formats(tmp_path: Path) -> None:
    """Objects with messages, bare lists, and one message per line with its session."""
    path = write_jsonl(
        tmp_path,
        ONE,
        "",
        [{"role": "user", "content": "bare"}],
        {"session_id": "b", "role": "user", "content": "b1"},
        {"session_id": 7, "role": "user", "content": "c1"},
        {"session_id": "b", "role": "assistant", "content": "b2"},
        {"session_id": "named", "messages": []},
    )
    assert read_texts(path) == [
        ("s1", ["one"]),
        (f"{path}:3", ["bare"]),
        ("named", []),
        ("b", ["b1", "b2"]),
        ("7", ["c1"]),
    ]


# -- results checked by hand ---------------------------------------------------------------------

RECORDED = Recording(
    "by hand",
    (
        Message(role="system", content="The code word is sesame."),
        user("My booking is QX7781, my name is Anna Weiss."),
        asking('{"booking": "QX7781", "code": "sesame"}'),  # QX7781 was said; sesame only in the system prompt
        answer("a", '{"passenger": "P-4471", "seat": "12A"}'),
        asking('{"passenger": "P-4471", "again": "QX7781"}', ids="b"),
        answer("b", "ok " * 40),
        user("And what about tomorrow?"),
        asking('{"passenger": "P-4471", "guess": "never said"}', ids="c"),
    ),
)


def test_sending_everything_has_full_recall() -> None:
    """Three calls use four earlier values, which are all sent; the cost follows from the tokens."""
    result = play([RECORDED], Spec("none"), 10_000).result
    assert (result.calls, result.refused, result.recall) == (3, 0, 1.0)
    assert (result.orphans, result.tasks_lost) == (0.0, 0.0)
    counts = [STORED.message(message) for message in RECORDED.messages]
    sent = [PRIMING + sum(counts[:until]) for until in (2, 4, 7)]
    assert max(sent) < CACHE_LEAST, "nothing is cached in a recording this short"
    assert result.tokens_per_call == round(sum(sent) / 3, 1)
    assert (result.cached, result.cost_per_call) == (0.0, round(1.25 * sum(sent) / 3, 1))


def test_recall_counts_evicted_values() -> None:
    """With 24 messages of small talk before the last call, the last 20 messages do not contain its values.

    The first two calls have their three values. The calls are made over 1, 3, 5, 7, … 27 and 30 messages; from 21 on
    the task, which is the first, is evicted: five of fifteen.
    """
    small_talk = [Message(role="assistant", content="Well."), user("Hm.")] * 12
    longer = Recording("longer", (*RECORDED.messages[:6], *small_talk, *RECORDED.messages[6:]))
    result = play([longer], Spec("buffer_window"), 10_000).result
    assert (result.calls, result.refused) == (15, 0)
    assert (result.recall, result.tasks_lost) == (0.75, round(5 / 15, 4))


def test_rejected_calls_are_counted_and_their_values_are_missing() -> None:
    """`none` under a small budget rejects the later calls, so their values count as missing."""
    counts = [STORED.message(message) for message in RECORDED.messages]
    result = play([RECORDED], Spec("none"), sum(counts[1:4])).result
    assert (result.calls, result.refused) == (3, 1)
    assert result.recall == 0.75


def test_the_cached_share_is_the_common_prefix() -> None:
    """The second call reads the long first message from the cache at a tenth of the price."""
    long = user("kelp " * 1500)
    recorded = Recording("long", (long, Message(role="assistant", content="ok"), user("go on"), asking("{}")))
    result = play([recorded], Spec("none"), 100_000).result
    counts = [STORED.message(message) for message in recorded.messages]
    first, second = PRIMING + counts[0], PRIMING + sum(counts[:3])
    assert result.cached == round(counts[0] / (first + second), 4)
    cost = 1.25 * first + 0.1 * counts[0] + 1.25 * (second - counts[0])
    assert result.cost_per_call == round(cost / 2, 1)


# -- sources of values ----------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "developer"])
def test_values_only_in_system_messages_do_not_count(role: Any) -> None:
    """At any position in the conversation."""
    told = (user("Hello."), Message(role=role, content="Use code QX7781."), asking('{"code": "QX7781"}'))
    assert play([Recording("r", told)], Spec("none"), 10_000).result.recall is None
    said = (*told[:2], user("It is QX7781."), told[2])
    assert play([Recording("r", said)], Spec("none"), 10_000).result.recall == 1.0


def test_a_value_is_bound_if_its_call_is_in_the_prompt() -> None:
    """A value from a tool result needs the argument of its call; a value from the conversation needs nothing."""
    messages = (
        user("Look."),
        asking('{"booking": "QX7781"}'),
        answer("a", '{"passenger": "P-4471"}'),
        asking('{"passenger": "P-4471"}', ids="b"),
    )
    result = play([Recording("r", messages)], Spec("none"), 10_000).result
    assert (result.recall, result.bound) == (1.0, 1.0)


# -- sessions, and comparing --------------------------------------------------------------


def make_tally(*, found: int, cost: float, used: int = 4, calls: int = 2, refused: int = 0) -> Tally:
    """Make the sums of one session."""
    made = Tally()
    made.calls, made.refused, made.used, made.found, made.bound, made.cost = calls, refused, used, found, found, cost
    return made


def make_result(*tallies: Tally) -> PlayResult:
    """Make the result of a strategy in these sessions."""
    return PlayResult(
        Tally.sum_up(tallies).make_result("s", 1), tuple((str(at), one) for at, one in enumerate(tallies))
    )


def test_strategies_are_compared_session_by_session() -> None:
    """One better, one worse, one equal, one without values, and one that a strategy rejected completely."""
    a = make_result(
        make_tally(found=1, cost=100),
        make_tally(found=4, cost=100),
        make_tally(found=2, cost=100),
        make_tally(found=0, used=0, cost=100),
        make_tally(found=2, cost=50),
    )
    b = make_result(
        make_tally(found=3, cost=200),
        make_tally(found=3, cost=80),
        make_tally(found=2, cost=100),
        make_tally(found=0, used=0, cost=60),
        make_tally(found=0, cost=0, refused=2),
    )
    told = compare(a, b)
    recall, cost = told.paired["recall"], told.paired["cost"]
    assert (recall.wins, recall.losses, recall.ties) == (1, 2, 1)
    assert recall.mean_difference == (0.5 - 0.25 + 0 - 0.5) / 4
    assert (cost.wins, cost.losses, cost.ties) == (2, 1, 1), "less is better"
    assert cost.mean_difference == (50 - 10 + 0 - 20) / 4
    assert told.difference["recall"] == round(8 / 16 - 9 / 16, 4)
    assert told.paired["bound"] == recall
