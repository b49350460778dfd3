"""What a log becomes when a client resends its history: merged, edited, resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import Message, encode_canonical
from holdfast.domain.reconcile import Mode
from holdfast.stores.verify import verify
from tests.service.resent_histories_kit import LONG, REF, Desk, a, list_visible, picture, run_at_desk, t, tc, u

# -- the table ---------------------------------------------------------------

ROUND_1 = [u("1"), tc("x"), t("x")]
ROUND_2 = [*ROUND_1, a("1"), u("2"), tc("y"), t("y")]


class Merge(NamedTuple):
    """A stored log, what a client sent, and the expected live path."""

    stored: list[Message]
    sent: list[Message]
    live: list[Message]
    relation: str
    mode: Mode = "transcript"


MERGES = {
    "1": Merge(ROUND_1, [u("1"), a("1"), u("2")], [*ROUND_1, a("1"), u("2")], "continued"),
    "2": Merge(ROUND_2, [u("1"), a("1"), u("2"), a("2"), u("3")], [*ROUND_2, a("2"), u("3")], "continued"),
    "3, the second message edited": Merge(ROUND_2, [u("1"), a("1"), u("2!")], [*ROUND_1, a("1"), u("2!")], "edited"),
    "4, the first message edited": Merge(ROUND_2, [u("1!")], [u("1!")], "replaced"),
    "5, a reply edited": Merge(ROUND_2, [u("1"), a("1!"), u("2")], [*ROUND_1, a("1!"), u("2")], "edited"),
    "5, by itself": Merge(ROUND_2, [u("1"), a("1!"), u("2")], [*ROUND_1, a("1!"), u("2")], "edited", "auto"),
    "6, the first one regenerated": Merge(ROUND_2, [u("1")], ROUND_1, "regenerated"),
    "7, the second one regenerated": Merge(ROUND_2, [u("1"), a("1"), u("2")], ROUND_2, "replayed"),
    "8, what is new alone": Merge(ROUND_2, [u("3")], [*ROUND_2, u("3")], "delta", "auto"),
    "9, the client has its own tool messages": Merge(
        ROUND_1, [*ROUND_1, a("1"), u("2")], [*ROUND_1, a("1"), u("2")], "continued"
    ),
    "11, the client dropped a reply": Merge(ROUND_1, [u("1"), u("2")], [*ROUND_1, u("2")], "continued"),
    "12, nothing stored": Merge([], [u("1"), a("1"), u("2")], [u("1"), a("1"), u("2")], "new"),
    "nothing sent": Merge(ROUND_1, [], ROUND_1, "replayed"),
    "all of it, tools too": Merge(ROUND_2, ROUND_2, ROUND_2, "replayed"),
    "a tool result edited": Merge(ROUND_1, [*ROUND_1[:2], t("x", "other")], [*ROUND_1[:2], t("x", "other")], "edited"),
    "the next tool round": Merge(ROUND_1, [*ROUND_1, tc("z"), t("z")], [*ROUND_1, tc("z"), t("z")], "continued"),
    "trailing space": Merge([u("1"), a("1")], [u("1 "), a("1\n"), u("2")], [u("1"), a("1"), u("2")], "continued"),
    "calls by other ids": Merge(
        [*ROUND_1, tc("p", "q"), t("p")],
        [u("1"), tc("1"), t("1"), tc("2", "3"), t("2"), t("3", "new")],
        [*ROUND_1, tc("p", "q"), t("p"), t("q", "new")],
        "continued",
    ),
    "results in another order": Merge(
        [u("1"), tc("p", "q"), t("p", "P"), t("q", "Q")],
        [u("1"), tc("p", "q"), t("q", "Q"), t("p", "P"), a("1"), u("2")],
        [u("1"), tc("p", "q"), t("p", "P"), t("q", "Q"), a("1"), u("2")],
        "continued",
    ),
    "other calls": Merge(ROUND_1, [u("1"), tc("x", name="g"), t("x")], [u("1"), tc("x", name="g"), t("x")], "edited"),
    "the last few": Merge(LONG, [*LONG[-4:], u("new")], [*LONG, u("new")], "continued", "auto"),
    "the last reply alone": Merge(LONG, [LONG[-1], u("new")], [*LONG, u("new")], "continued", "auto"),
    "head and tail": Merge(LONG, [*LONG[:2], *LONG[-4:], u("new")], [*LONG, u("new")], "continued", "auto"),
    "the older part as a summary": Merge(
        LONG, [u("what was before: …"), *LONG[-4:], u("new")], [*LONG, u("new")], "continued", "auto"
    ),
    "the last few, the last reply again": Merge(LONG, LONG[-4:-1], LONG[:-1], "regenerated", "auto"),
    "the last few, edited": Merge(LONG, [*LONG[-5:-2], u("else")], [*LONG[:-2], u("else")], "edited", "auto"),
    "the last few are the whole truth": Merge(
        LONG, [*LONG[-4:], u("new")], [*LONG[-4:], u("new")], "replaced", "transcript"
    ),
    "edited in place": Merge(
        LONG,
        [LONG[0], LONG[1], u("else"), *LONG[3:], u("new")],
        [*LONG[:2], u("else"), *LONG[3:], u("new")],
        "edited",
        "auto",
    ),
    "a picture left out while tools run": Merge(
        [picture("1"), tc("x")], [u("1"), tc("x"), t("x")], [picture("1"), tc("x"), t("x")], "continued"
    ),
    "edited in place, between replies that are alike": Merge(
        [u("q0"), a("Hello."), u("q1"), a("Done."), u("q2"), a("Done.")],
        [u("q0"), a("Hello."), u("else"), a("Done."), u("q2"), a("Done."), u("new")],
        [u("q0"), a("Hello."), u("else"), a("Done."), u("q2"), a("Done."), u("new")],
        "edited",
        "auto",
    ),
    "nothing in common": Merge(
        ROUND_2, [u("else"), a("else"), u("new")], [u("else"), a("else"), u("new")], "replaced", "auto"
    ),
    "a picture left out": Merge(
        [picture("1"), a("1")], [u("1"), a("1"), u("2")], [picture("1"), a("1"), u("2")], "continued"
    ),
    "another picture": Merge(
        [picture("1"), a("1")], [picture("1", "dog"), a("1"), u("2")], [picture("1", "dog"), a("1"), u("2")], "replaced"
    ),
    "the last reply again, without the picture": Merge(
        [u("0"), a("0"), picture("1"), a("1")], [u("0"), a("0"), u("1")], [u("0"), a("0"), picture("1")], "regenerated"
    ),
}


@pytest.mark.parametrize("name", MERGES)
def test_resent_history_gives_the_log_the_client_means(name: str) -> None:
    case = MERGES[name]

    async def work(desk: Desk) -> None:
        await desk.tell(case.stored)
        turn = await desk.send(case.sent, case.mode)
        assert await desk.live() == case.live
        assert turn.summarize()["reconciled"] == case.relation
        assert len(await desk.log()) >= len(case.stored), "nothing is lost"
        await verify(desk.store, REF)

    run_at_desk(work)


_ids = st.sampled_from(["x", "y"])
_words = st.sampled_from(["1", "2", "ok"])
some_message = st.one_of(
    st.builds(u, _words),
    st.builds(a, _words),
    st.builds(tc, _ids),
    st.builds(tc, _ids, _ids),
    st.builds(t, _ids, _words),
)
some_log = st.lists(some_message, max_size=8)


@given(some_log, some_log.filter(bool))
def test_merged_log_equals_the_sent_messages(stored: list[Message], sent: list[Message]) -> None:
    """Except tool messages; resending it changes nothing."""

    async def work(desk: Desk) -> None:
        await desk.tell(stored)
        await desk.send(sent, "transcript")
        after = await desk.live()
        assert list_visible(after) == list_visible(sent)
        await desk.send(sent, "transcript")
        assert await desk.live() == after
        await verify(desk.store, REF)

    run_at_desk(work)


@given(some_log.filter(lambda log: bool(list_visible(log))), some_log)
def test_tool_messages_of_the_client_are_not_duplicated(stored: list[Message], rest: list[Message]) -> None:
    """A client may resend the whole log with tools and continue."""

    async def work(desk: Desk) -> None:
        await desk.tell(stored)
        await desk.send([*stored, *rest], "transcript")
        assert [encode_canonical(one) for one in await desk.live()] == [
            encode_canonical(one) for one in [*stored, *rest]
        ]

    run_at_desk(work)


# -- branches ------------------------------------------------------------------


def test_two_branches_can_be_continued_alternately() -> None:
    """The branch that is meant becomes live again, with its tool messages; the other is kept."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), tc("x"), t("x"), a("left")])
        left, right = [u("1"), a("1"), u("left"), a("left")], [u("1"), a("1"), u("right")]
        turn = await desk.send(right)
        assert turn.summarize()["reconciled"] == "edited"
        await desk.add([a("right")])
        right.append(a("right"))
        for step in range(3):
            turn = await desk.send([*left, u(f"l{step}")])
            assert turn.summarize()["reconciled"] == "continued"
            await desk.add([tc("y"), t("y"), a(f"l{step}")])
            left += [u(f"l{step}"), a(f"l{step}")]
            assert list_visible(await desk.live()) == list_visible(left)
            assert (await desk.live())[3:5] == [tc("x"), t("x")]
            await desk.send([*right, u(f"r{step}")])
            await desk.add([a(f"r{step}")])
            right += [u(f"r{step}"), a(f"r{step}")]
            assert await desk.live() == right
            await verify(desk.store, REF)

    run_at_desk(work)


def test_branch_with_an_erased_message_is_resumed_with_the_clients_text() -> None:
    """Erased text is not restored from the log."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), a("left")])
        await desk.send([u("1"), a("1"), u("right")])
        await desk.store.erase(REF, 2)
        await desk.send([u("1"), a("1"), u("left"), a("left"), u("on")])
        assert await desk.live() == [u("1"), a("1"), u("left"), a("left"), u("on")]
        assert (await desk.log())[2].erased
        await verify(desk.store, REF)

    run_at_desk(work)


# -- interrupted replies, and texts next to calls --------------------------------------


def test_interrupted_reply_matches_any_prefix() -> None:
    """It is unknown how much the client saw; a different text is an edit."""

    async def work(desk: Desk) -> None:
        cut = {"interrupted": True, "original": "one two three four"}
        await desk.tell([u("1")])
        await desk.add([a("one two three")], metadata=cut)
        await desk.add([u("2"), a("2")])
        for seen_of_it in ("one", "one two", "one two three", "one two three four"):
            turn = await desk.send([u("1"), a(seen_of_it), u("2"), a("2"), u("3")])
            assert turn.summarize()["reconciled"] in {"continued", "replayed"}, seen_of_it
            assert await desk.find([u("1"), a(seen_of_it), u("2"), a("2"), u("3")]) == "s"
        turn = await desk.send([u("1"), a("two"), u("2")])
        assert turn.summarize()["reconciled"] == "edited"

    run_at_desk(work)


def test_text_before_a_call_belongs_to_the_reply() -> None:
    """A client that does not see the call has both texts as one."""

    async def work(desk: Desk) -> None:
        calls = tc("x").evolve(content="Let me look. ")
        await desk.tell([u("1"), calls, t("x")])
        await desk.add([a("It is 5.")], metadata={"preface": "Let me look. "})
        turn = await desk.send([u("1"), a("Let me look. It is 5."), u("2")])
        assert turn.summarize()["reconciled"] == "continued"
        await verify(desk.store, REF)
        assert await desk.find([u("1"), a("Let me look. It is 5."), u("2")]) == "s"

    run_at_desk(work)


def test_short_history_after_an_interrupted_reply_is_not_a_new_start() -> None:
    """Whether it is the last reply or another message follows."""

    async def work(desk: Desk) -> None:
        cut = {"interrupted": True}
        await desk.tell(LONG)
        await desk.add([u("cut")])
        await desk.add([a("one two")], metadata=cut)
        turn = await desk.send([a("one"), u("2")])
        assert turn.summarize()["reconciled"] == "continued"
        turn = await desk.send([a("one"), u("2"), u("3")])
        assert turn.summarize()["reconciled"] == "continued"
        assert (await desk.live())[-3:] == [a("one two"), u("2"), u("3")]

    run_at_desk(work)


# -- equal messages and omissions ---------------------------------------------------------


def test_equal_replies_do_not_hide_an_edit() -> None:
    """Whichever message is edited, the log then equals what was sent."""

    async def work(desk: Desk) -> None:
        log = [message for at in range(6) for message in (u(f"q{at}"), a("Done." if at % 2 else "OK"))]
        await desk.tell(log)
        for at in range(0, len(log), 2):
            sent = [*log[:at], u(f"else {at}"), *log[at + 1 :], u("new")]
            await desk.send(sent)
            assert list_visible(await desk.live()) == list_visible(sent)

    run_at_desk(work)


def test_omitted_pictures_in_a_long_history_cost_two_look_ups_each() -> None:
    """The words after them are not scanned repeatedly, which would be 22,500 look-ups."""

    async def work(desk: Desk) -> None:
        pictures = 150
        log = [message for at in range(pictures) for message in (picture(f"q{at}"), a(f"a{at}"))]
        await desk.tell(log)
        sightings, asked = desk.store.sightings, list[int]()

        async def record_marks(user_id: str, marks: Sequence[bytes], **more: Any) -> Any:
            asked.append(len(marks))
            return await sightings(user_id, marks, **more)

        desk.store.sightings = record_marks  # type: ignore[method-assign]  # to be told what is looked up
        sent = [u(one.text) if one.role == "user" else one for one in log]
        turn = await desk.send([*sent, u("new")])
        assert turn.summarize()["reconciled"] == "continued"
        assert await desk.live() == [*log, u("new")]
        assert len(asked) <= 2 * pictures + 1
        assert sum(asked) < 40 * pictures

    run_at_desk(work)
