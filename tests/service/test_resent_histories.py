"""What a log becomes when a client resends its history: merged, edited, resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.messages import Message, encode_canonical
from holdfast.stores.verify import verify
from tests.service.resent_histories_kit import LONG, REF, Desk, a, list_visible, picture, run_at_desk, t, tc, u

# -- the table ---------------------------------------------------------------

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
