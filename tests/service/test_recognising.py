"""Which session a request goes on with that names none: the one whose log has most of it in common."""

from __future__ import annotations

from holdfast.domain.messages import Message
from holdfast.domain.session import SessionRef
from holdfast.limits import SIGHTINGS
from tests.service.reconciling_kit import LONG, REF, Desk, a, run_at_desk, t, tc, u


def test_the_longest_common_prefix_wins() -> None:
    """Whatever the order in which the sessions were made; an opening alone is nobody's."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("2"), a("2")], SessionRef("ada", "long"))
        await desk.tell([u("1"), a("1")], SessionRef("ada", "short"))
        await desk.tell([u("1"), a("1"), u("2"), a("2"), u("3")], SessionRef("bob", "his"))
        assert await desk.found([u("1"), a("1"), u("2"), a("2"), u("3")]) == "long"
        assert await desk.found([u("1"), a("1"), u("else")]) == "short", "it goes on, and the other would be edited"
        assert await desk.found([u("1")]) is None
        assert await desk.found([u("1"), u("2")]) is None
        assert await desk.found([u("1"), a("else"), u("2")]) is None
        assert await desk.found([]) is None

    run_at_desk(work)


def test_calls_are_in_common_while_the_first_reply_is_under_way() -> None:
    """By the ids of the calls; a session that went on is not taken for one that waits for just these results."""

    async def work(desk: Desk) -> None:
        asked = [u("1"), tc("x"), t("x")]
        await desk.tell([u("1"), tc("x")], SessionRef("ada", "waits"))
        await desk.tell([u("1"), tc("x"), t("x"), a("1")], SessionRef("ada", "done"))
        await desk.tell([u("1"), tc("z"), t("z", "else")], SessionRef("ada", "other result"))
        await desk.tell([u("1"), tc("x", name="g")], SessionRef("ada", "other call"))
        await desk.tell([u("1")], SessionRef("ada", "none"))
        assert await desk.found(asked) == "waits"
        await desk.send(asked, ref=SessionRef("ada", "waits"))
        assert await desk.live(SessionRef("ada", "waits")) == [u("1"), tc("x"), t("x")]
        await desk.add([tc("w")], SessionRef("ada", "waits"))
        assert await desk.found([*asked, tc("w"), t("w")]) == "waits"
        assert await desk.found([u("1"), tc("2"), t("2")]) is None, "ids of its own mean another session"
        await desk.store.remove(SessionRef("ada", "waits"))
        assert await desk.found(asked) == "done", "made anew"
        assert await desk.found([u("1"), tc("x", name="h"), t("x")]) is None
        assert await desk.found([u("2"), tc("1"), t("1")]) is None

    run_at_desk(work)


def test_of_like_calls_the_ids_tell_which_session() -> None:
    """Ids that no session has mean a new one, whatever the system prompt."""

    async def work(desk: Desk) -> None:
        for name in ("p", "q"):
            prompt = (Message(role="system", content=name),)
            await desk.tell([u("1"), tc(name)], SessionRef("ada", name), system_messages=prompt)
        assert await desk.found([u("1"), tc("p"), t("p")]) == "p"
        assert await desk.found([u("1"), tc("q"), t("q")]) == "q"
        assert await desk.found([u("1"), tc("else"), t("else")], "p") is None
        assert await desk.found([u("1"), tc("p"), t("p")], "other", match_system="strict") is None

    run_at_desk(work)


def test_what_very_many_begin_with_is_no_one_sessions() -> None:
    """Only one that goes on from there is meant for sure; none of the others is edited on a guess."""

    async def work(desk: Desk) -> None:
        opening = [u("hi"), a("hello")]
        for at in range(SIGHTINGS):
            await desk.tell([*opening, u(f"{at}")], SessionRef("ada", f"s{at}"))
        assert await desk.found([*opening, u("new")]) is None
        await desk.tell(opening, SessionRef("ada", "waits"))
        assert await desk.found([*opening, u("new")]) == "waits"

    run_at_desk(work)


def test_of_equal_ones_the_last_used_wins() -> None:
    """And before that the one with the same system prompt."""

    async def work(desk: Desk) -> None:
        for name in ("x", "y", "z"):
            prompt = (Message(role="system", content=name),)
            await desk.tell([u("1"), a("1")], SessionRef("ada", name), system_messages=prompt)
        await desk.tell([u("1"), a("1")], SessionRef("ada", "none"))
        asked = [u("1"), a("1"), u("2")]
        assert await desk.found(asked) == "none"
        assert await desk.found(asked, "y") == "none", "an absent system prompt matches any"
        await desk.store.remove(SessionRef("ada", "none"))
        assert await desk.found(asked, "y") == "y"
        assert await desk.found(asked, "else") == "z"
        assert await desk.found(asked, "else", match_system="strict") is None
        assert await desk.found(asked) == "z"

    run_at_desk(work)


def test_a_run_in_the_middle_takes_three_messages() -> None:
    """Of a user and of a reply, at the request's beginning or in place of more than it has there."""

    async def work(desk: Desk) -> None:
        await desk.tell(LONG)
        assert await desk.found([*LONG[-3:], u("new")]) == "s"
        assert await desk.found([*LONG[-2:], u("new")]) is None
        assert await desk.found([LONG[-1], u("new")]) is None
        assert await desk.found([u("summary"), *LONG[-3:], u("new")]) == "s"
        assert await desk.found([*LONG[:2], *LONG[-3:], u("new")]) == "s"
        assert await desk.found([*(u(f"other {at}") for at in range(20)), *LONG[-3:], u("new")]) is None

    run_at_desk(work)


def test_a_retired_branch_is_recognised() -> None:
    """And an erased message still tells whose log it was."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), a("left")])
        await desk.send([u("1"), a("1"), u("right")])
        assert await desk.found([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"
        await desk.store.erase(REF, 3)
        assert await desk.found([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"

    run_at_desk(work)
