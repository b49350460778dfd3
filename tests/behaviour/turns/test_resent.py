"""What a request with a whole history, a part of it, or an edited one makes of the log. Nothing is ever lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.behaviour.kit import World, assistant, calls, refused, result, texts, through, user

DOORS = ("library", "connect", "rest")


def u(text: str) -> dict[str, Any]:
    return user(text)


def a(text: str) -> dict[str, Any]:
    return assistant(text)


def c(*ids: str, name: str = "f") -> dict[str, Any]:
    return calls(*((id_, name, {"a": 1}) for id_ in ids))


def t(id_: str, text: str = "seen") -> dict[str, Any]:
    return result(id_, text)


def picture(text: str, name: str = "cat") -> dict[str, Any]:
    image = {"type": "image_url", "image_url": {"url": f"https://example.com/{name}.png"}}
    return user([{"type": "text", "text": text}, image])


class Case(NamedTuple):
    """A log, what is sent, and the live path after it."""

    stored: list[Any]
    sent: list[Any]
    live: list[Any]
    mode: str = "auto"


ROUND = [u("1"), c("x"), t("x"), a("1")]
TWO = [*ROUND, u("2"), c("y"), t("y"), a("2")]
LONG = [message for at in range(8) for message in (u(f"q{at}"), a(f"a{at}"))]
CASES: dict[str, Case] = {
    "a new message": Case(TWO, [u("3")], [*TWO, u("3")]),
    "the whole history without tools": Case(TWO, [u("1"), a("1"), u("2"), a("2"), u("3")], [*TWO, u("3")]),
    "the whole history with tools": Case(TWO, [*TWO, u("3")], [*TWO, u("3")]),
    "the last message edited": Case(TWO, [u("1"), a("1"), u("else")], [*ROUND, u("else")]),
    "the first message edited": Case(TWO, [u("else"), a("1"), u("2")], [u("else"), a("1"), u("2")]),
    "the last reply again": Case(TWO, [u("1"), a("1"), u("2")], TWO[:-1]),
    "nothing stored": Case([], [u("1"), a("1"), u("2")], [u("1"), a("1"), u("2")]),
    "the next round of tools": Case(ROUND, [*ROUND, c("z"), t("z")], [*ROUND, c("z"), t("z")]),
    "trailing white space": Case([u("1"), a("1")], [u("1 "), a("1\n"), u("2")], [u("1"), a("1"), u("2")]),
    "other calls": Case(ROUND, [u("1"), c("x", name="g"), t("x")], [u("1"), c("x", name="g"), t("x")]),
    "calls by other ids": Case(
        [*ROUND[:3], c("p", "q"), t("p")],
        [u("1"), c("1"), t("1"), c("2", "3"), t("2"), t("3", "new")],
        [*ROUND[:3], c("p", "q"), t("p"), t("q", "new")],
    ),
    "results of the current turn only": Case(
        [*ROUND, u("2"), c("p")], [u("2"), c("p"), t("p")], [*ROUND, u("2"), c("p"), t("p")]
    ),
    "results in another order": Case(
        [u("1"), c("p", "q"), t("p", "P"), t("q", "Q")],
        [u("1"), c("p", "q"), t("q", "Q"), t("p", "P"), a("1"), u("2")],
        [u("1"), c("p", "q"), t("p", "P"), t("q", "Q"), a("1"), u("2")],
    ),
    "the last few": Case(LONG, [*LONG[-4:], u("new")], [*LONG, u("new")]),
    "the last reply alone": Case(LONG, [LONG[-1], u("new")], [*LONG, u("new")]),
    "a beginning and an end": Case(LONG, [*LONG[:2], *LONG[-4:], u("new")], [*LONG, u("new")]),
    "the past as a summary": Case(LONG, [u("before: …"), *LONG[-4:], u("new")], [*LONG, u("new")]),
    "the last few, the last reply again": Case(LONG, LONG[-4:-1], LONG[:-1]),
    "the last few, edited": Case(LONG, [*LONG[-5:-2], u("else")], [*LONG[:-2], u("else")]),
    "a message in the middle edited": Case(
        LONG,
        [*LONG[:2], u("else"), *LONG[3:], u("new")],
        [*LONG[:2], u("else"), *LONG[3:], u("new")],
    ),
    "replies that are alike": Case(
        [u("q0"), a("Hello."), u("q1"), a("Done."), u("q2"), a("Done.")],
        [u("q0"), a("Hello."), u("else"), a("Done."), u("q2"), a("Done."), u("new")],
        [u("q0"), a("Hello."), u("else"), a("Done."), u("q2"), a("Done."), u("new")],
    ),
    "nothing in common": Case(TWO, [u("else"), a("else"), u("new")], [*TWO, u("new")]),
    "a picture left out": Case([picture("1"), a("1")], [u("1"), a("1"), u("2")], [picture("1"), a("1"), u("2")]),
    "another picture": Case(
        [picture("1"), a("1")], [picture("1", "dog"), a("1"), u("2")], [picture("1", "dog"), a("1"), u("2")]
    ),
    "a picture left out while tools run": Case(
        [picture("1"), c("x")], [u("1"), c("x"), t("x")], [picture("1"), c("x"), t("x")]
    ),
    "the last reply again, without the picture": Case(
        [u("0"), a("0"), picture("1"), a("1")], [u("0"), a("0"), u("1")], [u("0"), a("0"), picture("1")]
    ),
    "the last few are everything": Case(LONG, [*LONG[-4:], u("new")], [*LONG[-4:], u("new")], "transcript"),
    "one message is everything": Case(LONG, [u("new")], [u("new")], "transcript"),
    "only new messages": Case(LONG, [LONG[-1], u("new")], [*LONG, LONG[-1], u("new")], "delta"),
}


def shown(messages: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(one["role"], one["content"], one.get("tool_calls"), one.get("tool_call_id")) for one in messages]


@pytest.mark.parametrize("name", CASES)
@through(*DOORS)
async def test_the_log_becomes_what_the_client_means(world: World, name: str) -> None:
    case = CASES[name]
    async with world.open() as hf:
        session = await hf.given("s", *case.stored)
        turn = await session.turn(*case.sent, mode=case.mode)
        live = await session.messages()
        assert shown(live) == shown(case.live)
        assert shown(turn["messages"]) == shown(case.live)
        assert len(await session.messages(retired=True)) >= len(case.stored)
        if world.driver == "library":
            await (await session.native()).verify()
        if case.mode != "delta":
            await session.turn(*case.sent, mode=case.mode)
            assert shown(await session.messages()) == shown(case.live)


@through(*DOORS)
async def test_two_branches_are_continued_alternately(world: World) -> None:
    """The branch that is meant becomes live again, with its tools; the other one is kept."""
    async with world.open() as hf:
        session = await hf.given("s", u("1"), a("1"), u("left"), c("x"), t("x"), a("left"))
        left, right = [u("1"), a("1"), u("left"), a("left")], [u("1"), a("1"), u("right")]
        await session.turn(*right, reply="right")
        right.append(a("right"))
        for step in range(3):
            left.append(u(f"l{step}"))
            await session.turn(*left, reply=f"l{step}")
            left.append(a(f"l{step}"))
            live = await session.messages()
            assert [one["role"] for one in live[3:5]] == ["assistant", "tool"]
            assert texts([*live[:3], *live[5:]]) == texts(left)
            right.append(u(f"r{step}"))
            await session.turn(*right, reply=f"r{step}")
            right.append(a(f"r{step}"))
            assert texts(await session.messages()) == texts(right)


@through(*DOORS)
async def test_a_branch_with_an_erased_message_is_resumed_with_the_clients_text(world: World) -> None:
    """Erased text is not restored from the log."""
    async with world.open() as hf:
        session = await hf.given("s", u("1"), a("1"), u("left"), a("left"))
        await session.turn(u("1"), a("1"), u("right"))
        await session.erase(2)
        await session.turn(u("1"), a("1"), u("left"), a("left"), u("on"))
        assert texts(await session.messages()) == ["1", "1", "left", "left", "on"]
        assert (await session.messages(retired=True))[2]["erased"] is True


@through(*DOORS)
async def test_a_result_without_its_call_is_refused(world: World) -> None:
    async with world.open() as hf:
        session = await hf.given("s", u("1"))
        with refused("invalid_message", "the result of call 'zz' has no matching call"):
            await session.turn(t("zz"))
        assert texts(await session.messages()) == ["1"]


@through("rest")
@pytest.mark.parametrize(
    ("stored", "sent", "reconciled", "edited_at"),
    [
        ([], [u("1")], "new", None),
        (LONG, [u("new")], "delta", None),
        (LONG, [*LONG, u("new")], "continued", None),
        (LONG, [*LONG[:-2], u("else")], "edited", 14),
        (LONG, LONG[:-1], "regenerated", 15),
        (LONG, [u("else"), a("else"), u("new")], "delta", None),
        (LONG, [], "replayed", None),
    ],
)
async def test_the_answer_says_what_the_request_did(
    world: World, stored: Any, sent: Any, reconciled: str, edited_at: int | None
) -> None:
    async with world.open(script=["Hm."]) as hf:
        session = await hf.given("s", *stored) if stored else hf.session("s")
        told = (await session.send(*sent))["session"]
        assert (told["reconciled"], told.get("edited_at")) == (reconciled, edited_at)
