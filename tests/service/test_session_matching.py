"""Matching a request without a session id: the session whose log has most in common with it."""

from __future__ import annotations

from holdfast.domain.messages import Message
from holdfast.domain.session import SessionRef
from holdfast.limits import SIGHTINGS
from tests.service.resent_histories_kit import LONG, REF, Desk, a, run_at_desk, t, tc, u


def test_longest_common_prefix_wins() -> None:
    """In any order of creation; the first message alone matches nothing."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("2"), a("2")], SessionRef("ada", "long"))
        await desk.tell([u("1"), a("1")], SessionRef("ada", "short"))
        await desk.tell([u("1"), a("1"), u("2"), a("2"), u("3")], SessionRef("bob", "his"))
        assert await desk.find([u("1"), a("1"), u("2"), a("2"), u("3")]) == "long"
        assert await desk.find([u("1"), a("1"), u("else")]) == "short", "it goes on, and the other would be edited"
        assert await desk.find([u("1")]) is None
        assert await desk.find([u("1"), u("2")]) is None
        assert await desk.find([u("1"), a("else"), u("2")]) is None
        assert await desk.find([]) is None

    run_at_desk(work)


def test_calls_match_while_the_first_reply_is_pending() -> None:
    """By call ids; a session that continued is not mistaken for one that waits for these results."""

    async def work(desk: Desk) -> None:
        asked = [u("1"), tc("x"), t("x")]
        await desk.tell([u("1"), tc("x")], SessionRef("ada", "waits"))
        await desk.tell([u("1"), tc("x"), t("x"), a("1")], SessionRef("ada", "done"))
        await desk.tell([u("1"), tc("z"), t("z", "else")], SessionRef("ada", "other result"))
        await desk.tell([u("1"), tc("x", name="g")], SessionRef("ada", "other call"))
        await desk.tell([u("1")], SessionRef("ada", "none"))
        assert await desk.find(asked) == "waits"
        await desk.send(asked, ref=SessionRef("ada", "waits"))
        assert await desk.live(SessionRef("ada", "waits")) == [u("1"), tc("x"), t("x")]
        await desk.add([tc("w")], SessionRef("ada", "waits"))
        assert await desk.find([*asked, tc("w"), t("w")]) == "waits"
        assert await desk.find([u("1"), tc("2"), t("2")]) is None, "ids of its own mean another session"
        await desk.store.remove(SessionRef("ada", "waits"))
        assert await desk.find(asked) == "done", "made anew"
        assert await desk.find([u("1"), tc("x", name="h"), t("x")]) is None
        assert await desk.find([u("2"), tc("1"), t("1")]) is None

    run_at_desk(work)


def test_call_ids_distinguish_sessions_with_equal_calls() -> None:
    """Unknown ids mean a new session, whatever the system prompt."""

    async def work(desk: Desk) -> None:
        for name in ("p", "q"):
            prompt = (Message(role="system", content=name),)
            await desk.tell([u("1"), tc(name)], SessionRef("ada", name), system_messages=prompt)
        assert await desk.find([u("1"), tc("p"), t("p")]) == "p"
        assert await desk.find([u("1"), tc("q"), t("q")]) == "q"
        assert await desk.find([u("1"), tc("else"), t("else")], "p") is None

    run_at_desk(work)


def test_opening_shared_by_very_many_sessions_matches_none() -> None:
    """Only one that continues exactly is a sure match; the others are never edited on a guess."""

    async def work(desk: Desk) -> None:
        opening = [u("hi"), a("hello")]
        for at in range(SIGHTINGS):
            await desk.tell([*opening, u(f"{at}")], SessionRef("ada", f"s{at}"))
        assert await desk.find([*opening, u("new")]) is None
        await desk.tell(opening, SessionRef("ada", "waits"))
        assert await desk.find([*opening, u("new")]) == "waits"

    run_at_desk(work)


def test_most_recently_used_of_equal_sessions_wins() -> None:
    """A session with the same system prompt comes first."""

    async def work(desk: Desk) -> None:
        for name in ("x", "y", "z"):
            prompt = (Message(role="system", content=name),)
            await desk.tell([u("1"), a("1")], SessionRef("ada", name), system_messages=prompt)
        await desk.tell([u("1"), a("1")], SessionRef("ada", "none"))
        asked = [u("1"), a("1"), u("2")]
        assert await desk.find(asked) == "none"
        assert await desk.find(asked, "y") == "none", "an absent system prompt matches any"
        await desk.store.remove(SessionRef("ada", "none"))
        assert await desk.find(asked, "y") == "y"
        assert await desk.find(asked, "else") == "z"
        assert await desk.find(asked) == "z"

    run_at_desk(work)


def test_match_in_the_middle_needs_three_messages() -> None:
    """With a user message and a reply, at the start of the request or replacing more than it has there."""

    async def work(desk: Desk) -> None:
        await desk.tell(LONG)
        assert await desk.find([*LONG[-3:], u("new")]) == "s"
        assert await desk.find([*LONG[-2:], u("new")]) is None
        assert await desk.find([LONG[-1], u("new")]) is None
        assert await desk.find([u("summary"), *LONG[-3:], u("new")]) == "s"
        assert await desk.find([*LONG[:2], *LONG[-3:], u("new")]) == "s"
        assert await desk.find([*(u(f"other {at}") for at in range(20)), *LONG[-3:], u("new")]) is None

    run_at_desk(work)


def test_retired_branch_is_recognised() -> None:
    """An erased message still identifies its log."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), a("left")])
        await desk.send([u("1"), a("1"), u("right")])
        assert await desk.find([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"
        await desk.store.erase(REF, 3)
        assert await desk.find([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"

    run_at_desk(work)
