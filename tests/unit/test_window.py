"""Operations of a window: positions of units, messages that are sent, and token counts."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.context.cut import MIN_CUT
from holdfast.context.digest.pool import EMPTY
from holdfast.context.truncation import with_stub
from holdfast.context.units import MessageOverride, group_units
from holdfast.context.window import Block, Compaction, Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message, Part
from holdfast.domain.session import Entry, NewEntry, Tail
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user
from tests.unit.test_summary_prompts import Characters

ROUNDS = [user("task"), reply("a"), user("next"), call("get", {"id": "A1"}, "ok"), reply("b"), user("now"), reply("c")]
"""Units at 0, 1, 2, 3 (two messages), 5, 6 and 7: the task, and a current message at 6."""
SUMMARY = Compaction(0, 1, "They spoke.", 9, "summary")
DIGEST = Compaction(2, 4, "get(A1): ok", 7)


def window_of(rounds: Sequence[list[Message]] = ROUNDS, pinned: Sequence[int] = (), room: int = 10**6) -> Window:
    said = [message for messages in rounds for message in messages]
    new = [
        NewEntry(message=message, tokens=STORED.message(message), timestamp=0, pinned=at in pinned)
        for at, message in enumerate(said)
    ]
    window = Window(Room(room, STORED))
    for unit in group_units(extend(Tail(), new)[0]):
        window.grow(unit)
    return window


def get_positions(window: Window) -> tuple[list[int], list[int], list[int]]:
    """Return the first `seq` of each unit in the head, the rest and the evicted units."""
    head, rest, left = ([unit.first for unit in units] for units in (window.head, window.units, window.left))
    return head, rest, left


def seqs(entries: Sequence[Entry | None]) -> list[int | None]:
    return [entry.seq if entry else None for entry in entries]


def is_consistent(window: Window) -> bool:
    """Return True if the token count equals the sum over the messages."""
    return window.tokens == sum(map(STORED.message, window.list_messages()))


def test_dropped_protected_units_move_to_the_head() -> None:
    """The newest unit always stays; unprotected units in the head are evicted."""
    window = window_of(pinned=[4])
    assert get_positions(window.drop(0)) == ([], [0, 1, 2, 3, 5, 6, 7], [])
    assert get_positions(window.drop(-1)) == get_positions(window.drop(0))
    assert get_positions(window.drop(4)) == ([0, 3], [5, 6, 7], [1, 2])
    assert get_positions(window.drop(6)) == get_positions(window.drop(99)) == ([0, 3, 6], [7], [1, 2, 5])
    assert get_positions(window.drop(4, keeping={2})) == ([0, 2, 3], [5, 6, 7], [1])
    assert get_positions(window.drop(4, keeping={2}).drop(1)) == ([0, 3], [6, 7], [1, 2, 5])
    assert get_positions(window.drop(4, keeping={2}).drop(1, keeping={2})) == ([0, 2, 3], [6, 7], [1, 5])
    assert get_positions(window.drop(2).drop(2)) == get_positions(window.drop(4))
    for number in range(8):
        assert is_consistent(window.drop(number))


def test_an_unanchored_task_is_an_ordinary_unit() -> None:
    window = window_of()
    window.anchored = False
    assert get_positions(window.drop(6)) == ([6], [7], [0, 1, 2, 3, 5])


def test_compactions_come_between_task_and_current_message() -> None:
    """The summary comes first, because it covers older messages; every message has its entry."""
    window = window_of().drop(6).with_digest(Block(DIGEST, EMPTY, most=9, last=9))
    window.summary = SUMMARY
    said = ["task", SUMMARY.text, DIGEST.text, "now", "c"]
    assert [message.text for message in window.list_messages()] == said
    assert seqs(window.list_sources()) == [0, None, None, 6, 7]
    assert window.find_current() == 3
    assert window.tokens - window.body == DIGEST.tokens
    assert window.body - window.head_tokens - window.tail_tokens == SUMMARY.tokens
    assert [message.text for message in window.without_summary().list_messages()] == [said[0], *said[2:]]
    assert window.without_summary().find_current() == 2


def test_find_current_in_every_position() -> None:
    """In the rest, in the head before or after compactions, as the task, or missing."""
    assert window_of().find_current() == 6
    assert window_of().drop(5).find_current() == 1
    assert window_of(pinned=[1, 3]).drop(6).find_current() == 4, "calls with their results are several messages"
    alone = window_of([user("task"), reply("a"), call("get", {}, "ok"), reply("b")])
    assert alone.find_current() == 0
    laid = alone.drop(3).with_digest(Block(DIGEST, EMPTY, most=9, last=9))
    assert [message.text for message in laid.list_messages()] == ["task", DIGEST.text, "b"]
    assert laid.find_current() == 0
    assert window_of([reply("a"), reply("b")]).find_current() is None
    assert Window(Room(9, STORED)).find_current() is None


def test_a_summary_replaces_all_units_it_covers() -> None:
    """Partly covered units stay; the digest and an earlier summary are removed."""
    window = window_of().drop(1).with_digest(Block(DIGEST, b"pool", most=9, last=9))
    window.summary = Compaction(0, 0, "Nothing yet.", 5, "summary")
    for last, rest in ((1, [2, 3, 5, 6, 7]), (3, [3, 5, 6, 7]), (4, [5, 6, 7]), (99, [7])):
        summary = Compaction(0, last, "They spoke.", 9, "summary")
        laid = window.drop_through(last).with_summary(summary)
        assert [unit.first for unit in laid.units] == rest
        assert (laid.summary, laid.compaction, laid.pool, laid.left) == (summary, None, EMPTY, ())
    assert window.summary.last == 0, "moves return a new window"


def test_cuts_are_counted_as_sent_and_forgotten_on_eviction() -> None:
    long = window_of([user("task"), reply("well " * 300), call("get", {"id": "A1"}, "row " * 300), reply("b")])
    assert long.list_whole_seqs() == {0, 1, 2, 3, 4}
    cut = long.cut({1: 150, 3: 150})
    assert set(cut.cuts) == {1, 3}
    assert cut.list_whole_seqs() == {0, 2, 4}
    assert is_consistent(cut)
    assert cut.tokens < long.tokens
    assert set(cut.drop(2).cuts) == {3}
    assert cut.drop(2).left[0].entries[0].message.text == "well " * 300
    assert not long.cut({0: 150}).cuts, "what is short already is not cut"
    cleared = long.clear({3: Message(role="tool", content="gone", tool_call_id="c")})
    assert cleared.cuts[3].cleared
    assert cleared.list_whole_seqs() == {0, 1, 2, 4}
    assert is_consistent(cleared)


def test_messages_longer_than_a_floor_can_be_cut() -> None:
    """Oldest first; a message of exactly that size is short enough."""
    window = window_of([user("task"), reply("well " * 300), call("get", {"id": "A1"}, "row " * 200), reply("b")])
    sized = window.list_cuttable(window.units, 0)
    assert [seq for seq, _ in sized] == [0, 1, 2, 3, 4]
    sizes = dict(sized)
    assert window.list_cuttable(window.units, sizes[3]) == [(1, sizes[1])]
    assert window.list_cuttable(window.units, sizes[3] - 1) == [(1, sizes[1]), (3, sizes[3])]
    assert window.list_cuttable(window.units[2:]) == [(3, sizes[3])]
    least = window.shrink_to_minimum()
    assert get_positions(least)[:2] == ([0], [4])
    least = window_of([user("task " * 300), reply("well " * 300)]).shrink_to_minimum()
    assert least.tokens <= 2 * MIN_CUT
    assert set(least.cuts) == {0, 1}


def test_a_copy_grows_independently() -> None:
    """Also after the messages of the original have been read."""
    window = window_of()
    before, said = window.tokens, window.list_messages()
    grown = window.copy()
    unit = window_of([*ROUNDS, user("more")]).units[-1]
    grown.grow(unit)
    assert (window.tokens, window.list_messages()) == (before, said)
    assert grown.tokens == before + STORED.message(unit.entries[0].message)
    assert grown.current == unit.first != window.current
    window.grow(unit)
    assert window.list_messages() == grown.list_messages() == [*said, unit.entries[0].message]
    assert is_consistent(window)
    assert window.find_current() == grown.find_current() == len(said)


def test_only_the_task_is_shortened_to_a_stub() -> None:
    """To a quarter of the room; pinned messages and unanchored tasks stay whole."""
    long = [reply("well " * 300), user("task " * 300), reply("a"), reply("b")]
    window = window_of(long, pinned=[0], room=600).drop(2)
    assert get_positions(window)[0] == [0, 1]
    stubbed = with_stub(window, MIN_CUT)
    assert set(stubbed.cuts) == {1}
    assert stubbed.cuts[1].tokens <= 150
    assert not with_stub(window_of(long, pinned=[0], room=10**4).drop(2), MIN_CUT).cuts, "it takes no more than that"
    window.anchored = False
    assert not with_stub(window, MIN_CUT).cuts


def test_overrides_are_counted_by_stored_tokens_times_the_factor() -> None:
    """Like messages of the log; media use the model's own count."""
    [unit] = window_of([reply("a")]).units
    text, picture = (
        Part("text", "x" * 70),
        Part("image_url", extra={"image_url": {"url": "https://kelp.example/a.png"}}),
    )
    for content, size in (("x" * 70, 15), ((text,), 15), ((text, picture), 70)):
        told = MessageOverride(0, Message(role="user", content=content), tokens=10)
        window = Window(Room(1000, Characters(), factor=1.5))
        window.grow(replace(unit, overrides=(told,)))
        assert window.tokens == size
