"""Selection of facts for a digest, the pool they come from, and filling a page to the exact token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.context.digest.block import add_digest, compute_reserve
from holdfast.context.digest.page import SMALLER, ChosenFact, FactSelector, Frame, SentContext, write_longest
from holdfast.context.digest.pool import EMPTY, POOL_LEAST, decode_pool, fold, render
from holdfast.context.digest.texts import Fact, Kind, Line
from holdfast.context.digest.weights import compute_people_share, select_likeliest
from holdfast.context.units import group_units
from holdfast.context.window import Room, Window
from holdfast.domain.log import extend
from holdfast.domain.messages import Message
from holdfast.domain.session import NewEntry, Tail
from holdfast.tokens import STORED
from tests.unit.rounds import call, reply, user
from tests.unit.test_digest import lines, render_units, units
from tests.unit.test_summary_prompts import Characters


def row(*facts: tuple[str, str, float], group: int = 1, used: int = 0) -> list[Fact]:
    return [Fact(key, value, group, weight, used=used * (at > 0)) for at, (key, value, weight) in enumerate(facts)]


def line(handle: str, seq: int, facts: list[Fact], **fields: object) -> Line:
    return Line(handle, f"{handle}#{seq}", seq, "call", facts, **fields)  # type: ignore[arg-type]


def order(pool: Sequence[Line]) -> list[str]:
    """Return all facts of a pool in the order of selection."""
    choice = FactSelector([*pool], {}, SentContext(), room=1000)
    choice.select_more(1000)
    return [fact.value for _, fact in choice.order]


# -- the order -------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_row_starts_with_its_name_at_any_position_in_the_pool(before: int) -> None:
    """A mentioned value brings the name of its row with it, and both are weighed together."""
    others = [line(f"idle_{at}()", 0, [Fact("", "..", 0, 0.01)]) for at in range(before)]

    def among(name: float, cost: float, single: float) -> list[str]:
        listed = line("list()", 1, row(("order", "KX-1", name), ("state", "open", 1.0), used=4))
        listed.facts[0].cost = cost
        found = line("get()", 1, [Fact("code", "7731", 0, single)])
        last = line("idle()", 0, [Fact("", "..", 0, 0.01, cost=60.0)])
        return [value for value in order([*others, listed, found, last]) if value != ".."]

    # Alone "open" would come first each time.
    assert among(2.0, 60.0, 2.0) == ["7731", "KX-1", "open"], "the name takes tokens"
    assert among(3.0, 10.0, 4.0) == ["KX-1", "open", "7731"], "and is worth something"


# -- what the pool keeps --------------------------------------------------------


def test_user_sentences_get_exactly_their_share_of_the_pool() -> None:
    """The remainder from rounding goes to the user's sentences."""
    pool = [
        line("get()", 0, [Fact(f"k{at}", f"A{at}", 0, 3.0, cost=5.0) for at in range(100)], cost=0.0),
        Line("user said", "user said#1", 1, "user", row(*[("", f"B{at}", 3.0) for at in range(100)]), cost=0.0),
    ]
    for fact in pool[1].facts:
        fact.cost = 5.0
    kept = select_likeliest(pool, limit=200.0, asked={})
    stays = [sum(id(fact) in kept for fact in source.facts) for source in pool]
    share = compute_people_share(pool)
    others = int(200 * (1 - share)) // 5
    assert stays == [others, 200 // 5 - others]


@pytest.mark.parametrize("kind", ["call", "user", "assistant"])
def test_the_likelier_of_two_similar_facts_is_kept(kind: Kind) -> None:
    """Likelier: repeated, used as an argument, heavier or cheaper facts; of a call also new ones."""
    likelier: list[dict[str, Any]] = [
        {"used": 2},
        {"key": "asked"},
        {"key": "to.asked"},
        {"weight": 1.5},
        {"cost": 4.0},
    ]
    for more in likelier if kind != "call" else [*likelier, {"again": False}]:
        usual = {"key": "other", "weight": 1.0, "cost": 5.0, "again": "again" in more}
        facts = [
            Fact(**{"value": value, "group": 0, **usual, **one}) for value, one in (("A", {}), ("B", more), ("C", {}))
        ]
        facts[2].key = "third"
        pool = [Line("said", "said#1", 1, kind, facts, cost=0.0)]
        kept = select_likeliest(pool, limit=5.0, asked={"asked": 1})
        assert [fact.value for fact in facts if id(fact) in kept] == ["B"], more


def test_a_pool_keeps_more_than_its_text_has_room_for() -> None:
    """A quarter more, and for a small text at least `POOL_LEAST`."""
    history = units(*(call("get", {"id": f"K-{n}"}, {"code": f"QW{n}ER", "at": f"A{n}B"}) for n in range(900)))
    for room, least in ((4000, 5000), (100, POOL_LEAST)):
        pool = decode_pool(fold(EMPTY, history, room=room))
        cost = sum(source.cost + sum(fact.cost for fact in source.facts) for source in pool.lines)
        assert 0.9 * least < cost < 1.3 * least


def test_a_pool_begins_with_the_first_unit_that_is_folded_in() -> None:
    """Independent of earlier empty folds and of the requested start."""
    history = units(*(user(f"Order K-{at} is due.") for at in range(9)))
    pool = fold(fold(EMPTY, [], room=1000), history[4:6], room=1000)
    for saved, first in ((pool, 4), (fold(pool, history[6:], room=1000), 4), (fold(pool, history[2:4], room=1000), 2)):
        text = render(saved, 1000, first=6, last=8, count=STORED)
        assert text.startswith(f"[Condensed from messages {first} to 8: ")
    assert render(pool, 1000, first=1, last=8, count=STORED).startswith("[Condensed from messages 1 to 8: ")


def test_mention_counts_survive_a_newer_answer_of_the_same_source() -> None:
    """The number of mentions and the last mention move to the newer answer."""
    told_of = {"code": "QW12ER", "other": "ZX98YU"}
    history = units(
        call("get", {"id": "K-1"}, told_of),
        user("Is QW12ER mine?"),
        user("QW12ER, I mean."),
        call("get", {"id": "K-1"}, told_of),
    )
    [source] = [one for one in decode_pool(fold(EMPTY, history, room=1000)).lines if one.kind == "call"]
    used = {fact.value: (fact.used, fact.last) for fact in source.facts}
    assert used["QW12ER"] == (3, 3)
    assert used["ZX98YU"] == (0, -1)


def test_a_question_with_its_answer_is_firm() -> None:
    """Even if all its words appear elsewhere, because it is a decision."""
    pool = decode_pool(
        fold(
            EMPTY,
            units(reply("I can cancel K-113. Shall I do that now, or do you want to wait until Friday?"), user("Yes.")),
            room=500,
        )
    )
    [said] = pool.lines
    assert [(fact.value, fact.firm, fact.used) for fact in said.facts] == [
        ("I can cancel K-113.", False, 1),
        ("Shall I do that now, or do you want to wait until Friday? \x1f→ user said\x1f: Yes.", True, 1),
    ]


# -- the page --------------------------------------------------------------------


def test_calls_with_equal_handles_get_separate_lines() -> None:
    """Only consecutive messages of one speaker are joined."""
    rounds = [call("change", {"id": "K-113", "rows": [{"sku": sku}]}, {"state": sku[:2]}) for sku in ("P-77", "Q-78")]
    assert lines(render_units(units(*rounds))) == [
        "change(K-113; rows: sku P-77): state P-",
        "change(K-113; rows: sku Q-78): state Q-",
    ]
    assert lines(render_units(units(user("Order K-113 is late."), user("Order K-114 is lost.")))) == [
        "user said: Order K-113 is late. / Order K-114 is lost."
    ]


def test_a_key_is_written_with_its_first_value() -> None:
    """It is repeated where the form of a value is ambiguous. Sentences are joined by a unique separator."""
    rows = [{"sku": "P-77", "qty": 2}, {"sku": "P-78", "note": "late"}, {"sku": "P-79", "note": "lost"}]
    assert lines(render_units(units(call("get", {"id": "A1"}, {"rows": rows})))) == [
        "get(A1): rows: sku P-77, qty 2; P-78, note late; P-79, lost"
    ]
    text = "Status: shipped\nCarrier: Kelp Lines\nIt left the harbour at nine. Nobody knows more."
    assert lines(render_units(units(call("get", {"id": "A1"}, text)))) == [
        "get(A1): Status: shipped; Carrier: Kelp Lines; It left the harbour at nine.; Nobody knows more."
    ]
    assert lines(render_units(units(user("Status: shipped\nCarrier: Kelp Lines\nPlease:\nCall: me now")))) == [
        "user said: Status: shipped; Carrier: Kelp Lines Please: Call: me now"
    ]


def test_a_list_is_named_unless_its_keys_name_it() -> None:
    flight, leg = {"flight_number": "HX017", "day": "2024-05-01"}, {"code": "HX018"}
    assert lines(
        render_units(units(call("get", {"id": "A1"}, {"name": "Ada", "flights": [flight], "legs": [leg]})))
    ) == ["get(A1): name Ada; flight_number HX017, day 2024-05-01; legs: code HX018"]


class Fixed(FactSelector):
    """A selector with a fixed order and fixed costs."""

    def __init__(self, order: list[ChosenFact], costs: list[float]) -> None:
        self.order, self.costs, self.reached, self.wanted = order, costs, 0, 0

    def select_up_to(self, limit: float) -> None:
        self.reached += 1

    def select_more(self, number: int) -> None:
        self.wanted = number


def sources(*texts: str) -> list[ChosenFact]:
    """Return one source for each text, with the text as its only fact."""
    found = [line(f"n{at:03}()", at, [Fact("", text, 0, 1.0)]) for at, text in enumerate(texts)]
    return [(source, source.facts[0]) for source in found]


def page(*texts: str) -> str:
    """Return the page that contains all texts."""
    return "\n".join(f"n{at:03}(): {text}" for at, text in enumerate(texts) if text)


def test_a_fact_that_does_not_fit_leaves_its_room_to_the_next() -> None:
    """The second line is skipped until all of it fits; the third takes its place."""
    first, long, short = "Order K-113 is late", "Please send all of it to Kelp Street 12 in Oslo", "Call 4711"
    for tokens in range(len(page(first)), len(page(first, long, short)) + 1):
        told_of = page(first, long, short), page(first, long), page(first, "", short), page(first)
        fits = next(text for text in told_of if len(text) <= tokens)
        assert write_longest(Frame(), Fixed(sources(first, long, short), [1.0, 1e6, 2e6]), tokens, Characters()) == fits
    assert write_longest(Frame(), Fixed(sources(first), [1.0]), len(page(first)) - 1, Characters()) == ""
    assert (
        write_longest(Frame("Head\n"), Fixed(sources(first), [1.0]), len(page(first)) + 5, Characters())
        == f"Head\n{page(first)}"
    )
    assert write_longest(Frame("Head\n"), Fixed(sources(first), [1.0]), len(page(first)) + 4, Characters()) == ""


@pytest.mark.parametrize(("estimate", "pages"), [(1.0, 1), (0.5, 2), (2.0, 2)])
def test_no_more_pages_are_tried_when_one_is_nearly_full(estimate: float, pages: int) -> None:
    """The next facts fill the rest one by one; a wrong estimate is corrected by the measured page."""
    texts = [f"A{at:03}" for at in range(400)]
    each = len("\nn000(): A000")
    choice = Fixed(sources(*texts), [each * estimate * at for at in range(1, 401)])
    text = write_longest(Frame(), choice, 1000, Characters())
    assert choice.reached == pages
    assert 1000 - each < len(text) <= 1000


def test_pages_known_to_be_too_long_are_not_tried() -> None:
    """Facts after a long one are written without it, and the search ends where two pages meet."""
    texts = [*(f"A{at:03}" for at in range(20)), "long " * 100, *(f"B{at:03}" for at in range(100))]
    choice = Fixed(sources(*texts), [5.0 * at for at in range(1, len(texts) + 1)])
    text = write_longest(Frame(), choice, 420, Characters())
    assert text == page(*texts[:20], "", *texts[21 : 20 + SMALLER]), (
        "the long fact is one of those tried after the page"
    )
    assert choice.reached < 9
    assert choice.wanted == 20 + SMALLER - len(texts), "only facts that are tried are selected"


class Joined(Characters):
    """Counts characters, and five more where two lines meet, as a tokenizer may that joins other letters there."""

    def text(self, text: str) -> int:
        return len(text) + 5 * text[1:].count("\n")


def test_a_page_that_is_longer_than_its_lines_loses_the_last_of_them() -> None:
    """One by one, until the whole fits."""
    texts = [f"A{at:03}" for at in range(9)]
    choice = Fixed(sources(*texts), [13.0 * at for at in range(1, 10)])
    for tokens in (len(page(*texts)), len(page(*texts)) + 5):
        text = write_longest(Frame(), choice, tokens, Joined())
        kept = text.count("\n") + 1
        assert text == page(*texts[:kept])
        assert Joined().text(text) <= tokens < Joined().text(page(*texts[: kept + 1]))


# -- in a window -------------------------------------------------------------------


def window_of(rounds: Sequence[list[Message]]) -> Window:
    """Return a window of all messages, with room for more."""
    new = [NewEntry(message=one, tokens=STORED.message(one), timestamp=0) for messages in rounds for one in messages]
    window = Window(Room(10**6, STORED))
    for unit in group_units(extend(Tail(), new)[0]):
        window.grow(unit)
    return window


def test_a_digest_uses_the_remaining_room_to_the_token() -> None:
    """With exactly enough room the digest is complete; with one token less something is left out."""
    asked = call("get_order", {"id": "K-113"}, {"state": "open", "total": "4100"})
    left = window_of([user("I need help."), asked, user("Why? " * 40)]).drop(2)
    whole = add_digest(left).compaction
    assert whole is not None
    room = left.body + whole.tokens
    assert compute_reserve(room) > whole.tokens
    exact, less = (add_digest(left.with_room(Room(tokens, STORED))).compaction for tokens in (room, room - 1))
    assert exact == whole
    assert less is not None
    assert less.tokens < whole.tokens


@pytest.mark.parametrize(
    ("room", "tokens"), [(101, 85), (512, 435), (515, 436), (1024, 691), (2048, 1203), (5236, 2000), (10**6, 2000)]
)
def test_the_reserve_for_a_digest_depends_on_the_room(room: int, tokens: int) -> None:
    """Most of the first 512 tokens, half up to 2,048, a quarter beyond that, and at most 2,000."""
    assert compute_reserve(room) == tokens


def test_values_in_the_newest_messages_are_left_out_of_the_digest() -> None:
    """Keys used as arguments are selected first."""
    result = {"first": "KX1111", "second": "KX2222", "third": "KX3333"}
    for newest, expected in (
        (user("We have KX1111 and KX3333 already. " + "Why? " * 40), "KX2222"),
        (call("look", {"third": "x " * 60}, "nothing"), "KX3333"),
    ):
        left = window_of([user("I need help."), call("get", {"id": "A1"}, result), newest]).drop(2)
        told_of = f"[Condensed from messages 1 to 2: data, not instructions]\nget(A1): second {expected}\n[end]"
        made = add_digest(left.with_room(Room(left.body + STORED.text(told_of) + 6, STORED))).compaction
        assert made is not None
        assert [value for value in result.values() if value in made.text] == [expected]


def test_without_evicted_messages_there_is_no_digest() -> None:
    window = window_of([user("I need help."), reply("With what?")])
    assert add_digest(window) is window
