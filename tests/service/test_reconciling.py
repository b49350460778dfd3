"""What becomes of a log when a client sends its history again: merged, edited, taken up again, recognised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents import Roster
from holdfast.domain.messages import Message, Part, ToolCall, canonical
from holdfast.domain.reconcile import Mode
from holdfast.domain.session import Entry, NewEntry, SessionRef
from holdfast.engine.engine import Engine
from holdfast.limits import SIGHTINGS
from holdfast.recognition.recognising import recognised
from holdfast.stores import open_store
from holdfast.stores.base import Append, NewSession, Store
from holdfast.stores.verify import verify
from holdfast.turns.reconciling import reconcile
from holdfast.turns.turn import Turn, TurnRequest

T = TypeVar("T")
REF = SessionRef("ada", "s")


def u(text: str) -> Message:
    """What a user said."""
    return Message(role="user", content=text)


def a(text: str) -> Message:
    """What the model said."""
    return Message(role="assistant", content=text)


def tc(*ids: str, name: str = "f") -> Message:
    """An assistant message with tool calls of those ids."""
    return Message(role="assistant", content=None, tool_calls=tuple(ToolCall(id_, name, '{"a":1}') for id_ in ids))


def t(id_: str, text: str = "seen") -> Message:
    """What a tool answered to the call `id_`."""
    return Message(role="tool", content=text, tool_call_id=id_)


def picture(text: str, name: str = "cat") -> Message:
    """What a user said, with a picture."""
    url = f"https://example.com/{name}.png"
    return Message(role="user", content=(Part("text", text), Part("image_url", extra={"image_url": {"url": url}})))


class Desk:
    """One store, its engine, and a clock that each write moves on."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.now = 0
        self.engine = Engine(store, self._tick, Roster())

    def _tick(self) -> int:
        self.now += 1
        return self.now

    async def tell(self, messages: Sequence[Message], ref: SessionRef = REF, **fields: Any) -> None:
        """Make the session, with a log of those messages."""
        await self.store.create(NewSession(id=ref.id, user_id=ref.user_id, timestamp=self._tick(), **fields))
        await self.add(messages, ref)

    async def add(self, messages: Sequence[Message], ref: SessionRef = REF, **fields: Any) -> None:
        """Write messages behind the log."""
        entries = [NewEntry(message=message, tokens=1, timestamp=0, **fields) for message in messages]
        await self.store.append(ref, Append(entries=entries, timestamp=self._tick()))

    async def send(self, messages: Sequence[Message], mode: Mode = "auto", ref: SessionRef = REF) -> Turn:
        """What a request opens."""
        turn = Turn(self.engine, TurnRequest(ref=ref, voice=Roster().voice(), incoming=tuple(messages), mode=mode))
        await reconcile(turn)
        return turn

    async def live(self, ref: SessionRef = REF) -> list[Message]:
        """The live path."""
        return [entry.message for entry in await self.store.entries(ref)]

    async def log(self, ref: SessionRef = REF) -> tuple[Entry, ...]:
        """All of it."""
        return await self.store.entries(ref, retired=True)

    async def found(self, messages: Sequence[Message], *system: str, **more: Any) -> str | None:
        """The session that a request without a name goes on with."""
        prompt = [Message(role="system", content=text) for text in system]
        landing = await recognised(self.store, "ada", messages, prompt, **more)
        return None if landing is None else landing.place.ref.id


def at_a_desk(work: Callable[[Desk], Awaitable[T]]) -> T:
    """Do `work` with an empty store."""

    async def run() -> T:
        store = await open_store("sqlite://:memory:", tenant="t")
        desk = Desk(store)
        try:
            return await work(desk)
        finally:
            await desk.engine.close()
            await store.close()

    return asyncio.run(run())


# -- the table ---------------------------------------------------------------

ROUND_1 = [u("1"), tc("x"), t("x")]
ROUND_2 = [*ROUND_1, a("1"), u("2"), tc("y"), t("y")]
LONG = [message for at in range(8) for message in (u(f"q{at}"), a(f"a{at}"))]


class Merge(NamedTuple):
    """A stored log, what a client sent, and the live path afterwards."""

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
def test_merges(name: str) -> None:
    """The table of cases, each as its client means it."""
    case = MERGES[name]

    async def work(desk: Desk) -> None:
        await desk.tell(case.stored)
        turn = await desk.send(case.sent, case.mode)
        assert await desk.live() == case.live
        assert turn.summary()["reconciled"] == case.relation
        assert len(await desk.log()) >= len(case.stored), "nothing is lost"
        await verify(desk.store, REF)

    at_a_desk(work)


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


def seen(messages: Sequence[Message]) -> list[bytes]:
    """What a client sees of them."""
    return [canonical(message) for message in messages if message.visible]


@given(some_log, some_log.filter(bool))
def test_after_a_merge_the_log_reads_as_what_was_sent(stored: list[Message], sent: list[Message]) -> None:
    """Message by message, tool messages aside; to send it again changes nothing."""

    async def work(desk: Desk) -> None:
        await desk.tell(stored)
        await desk.send(sent, "transcript")
        after = await desk.live()
        assert seen(after) == seen(sent)
        await desk.send(sent, "transcript")
        assert await desk.live() == after
        await verify(desk.store, REF)

    at_a_desk(work)


@given(some_log.filter(lambda log: bool(seen(log))), some_log)
def test_the_clients_tool_messages_are_not_doubled(stored: list[Message], rest: list[Message]) -> None:
    """A client that resends the whole log, tools and all, and goes on gets just that."""

    async def work(desk: Desk) -> None:
        await desk.tell(stored)
        await desk.send([*stored, *rest], "transcript")
        assert [canonical(one) for one in await desk.live()] == [canonical(one) for one in [*stored, *rest]]

    at_a_desk(work)


# -- branches ------------------------------------------------------------------


def test_two_branches_are_gone_on_with_in_turns() -> None:
    """Each time the branch that is meant is live again, with its tool messages; the other is kept."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), tc("x"), t("x"), a("left")])
        left, right = [u("1"), a("1"), u("left"), a("left")], [u("1"), a("1"), u("right")]
        turn = await desk.send(right)
        assert turn.summary()["reconciled"] == "edited"
        await desk.add([a("right")])
        right.append(a("right"))
        for step in range(3):
            turn = await desk.send([*left, u(f"l{step}")])
            assert turn.summary()["reconciled"] == "continued"
            await desk.add([tc("y"), t("y"), a(f"l{step}")])
            left += [u(f"l{step}"), a(f"l{step}")]
            assert seen(await desk.live()) == seen(left)
            assert (await desk.live())[3:5] == [tc("x"), t("x")]
            await desk.send([*right, u(f"r{step}")])
            await desk.add([a(f"r{step}")])
            right += [u(f"r{step}"), a(f"r{step}")]
            assert await desk.live() == right
            await verify(desk.store, REF)

    at_a_desk(work)


def test_a_branch_with_something_erased_comes_back_as_the_client_has_it() -> None:
    """What was erased is not put up again from the log."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), a("left")])
        await desk.send([u("1"), a("1"), u("right")])
        await desk.store.erase(REF, 2)
        await desk.send([u("1"), a("1"), u("left"), a("left"), u("on")])
        assert await desk.live() == [u("1"), a("1"), u("left"), a("left"), u("on")]
        assert (await desk.log())[2].erased
        await verify(desk.store, REF)

    at_a_desk(work)


# -- replies that were cut, and texts beside calls ----------------------------------


def test_of_a_cut_reply_any_beginning_will_do() -> None:
    """Nobody knows how much of it the client saw; another text is an edit."""

    async def work(desk: Desk) -> None:
        cut = {"interrupted": True, "original": "one two three four"}
        await desk.tell([u("1")])
        await desk.add([a("one two three")], metadata=cut)
        await desk.add([u("2"), a("2")])
        for seen_of_it in ("one", "one two", "one two three", "one two three four"):
            turn = await desk.send([u("1"), a(seen_of_it), u("2"), a("2"), u("3")])
            assert turn.summary()["reconciled"] in {"continued", "replayed"}, seen_of_it
            assert await desk.found([u("1"), a(seen_of_it), u("2"), a("2"), u("3")]) == "s"
        turn = await desk.send([u("1"), a("two"), u("2")])
        assert turn.summary()["reconciled"] == "edited"

    at_a_desk(work)


def test_a_text_before_a_call_belongs_to_the_reply() -> None:
    """A client that does not see the call has one text of both."""

    async def work(desk: Desk) -> None:
        calls = tc("x").evolve(content="Let me look. ")
        await desk.tell([u("1"), calls, t("x")])
        await desk.add([a("It is 5.")], metadata={"preface": "Let me look. "})
        turn = await desk.send([u("1"), a("Let me look. It is 5."), u("2")])
        assert turn.summary()["reconciled"] == "continued"
        await verify(desk.store, REF)
        assert await desk.found([u("1"), a("Let me look. It is 5."), u("2")]) == "s"

    at_a_desk(work)


def test_a_short_history_behind_a_cut_reply_is_no_new_beginning() -> None:
    """Whether it is the last reply or another message came after it."""

    async def work(desk: Desk) -> None:
        cut = {"interrupted": True}
        await desk.tell(LONG)
        await desk.add([u("cut")])
        await desk.add([a("one two")], metadata=cut)
        turn = await desk.send([a("one"), u("2")])
        assert turn.summary()["reconciled"] == "continued"
        turn = await desk.send([a("one"), u("2"), u("3")])
        assert turn.summary()["reconciled"] == "continued"
        assert (await desk.live())[-3:] == [a("one two"), u("2"), u("3")]

    at_a_desk(work)


# -- recognised by what is said -------------------------------------------------------


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

    at_a_desk(work)


def test_calls_are_in_common_while_the_first_reply_is_under_way() -> None:
    """Whatever ids the client gives them; a session that went on is not taken for one that waits for just these results."""

    async def work(desk: Desk) -> None:
        asked = [u("1"), tc("1"), t("1")]
        await desk.tell([u("1"), tc("x")], SessionRef("ada", "waits"))
        await desk.tell([u("1"), tc("y"), t("y"), a("1")], SessionRef("ada", "done"))
        await desk.tell([u("1"), tc("z"), t("z", "else")], SessionRef("ada", "other result"))
        await desk.tell([u("1"), tc("x", name="g")], SessionRef("ada", "other call"))
        await desk.tell([u("1")], SessionRef("ada", "none"))
        assert await desk.found(asked) == "waits"
        await desk.send(asked, ref=SessionRef("ada", "waits"))
        assert await desk.live(SessionRef("ada", "waits")) == [u("1"), tc("x"), t("x")]
        await desk.add([tc("w")], SessionRef("ada", "waits"))
        assert await desk.found([*asked, tc("2"), t("2")]) == "waits"
        await desk.store.delete(SessionRef("ada", "waits"))
        assert await desk.found(asked) == "done", "made anew"
        assert await desk.found([u("1"), tc("1", name="h"), t("1")]) is None
        assert await desk.found([u("2"), tc("1"), t("1")]) is None

    at_a_desk(work)


def test_of_like_calls_the_ids_tell_which_session() -> None:
    """And the system prompt, where there is one."""

    async def work(desk: Desk) -> None:
        for name in ("p", "q"):
            prompt = (Message(role="system", content=name),)
            await desk.tell([u("1"), tc(name)], SessionRef("ada", name), system_messages=prompt)
        assert await desk.found([u("1"), tc("p"), t("p")]) == "p"
        assert await desk.found([u("1"), tc("q"), t("q")]) == "q"
        assert await desk.found([u("1"), tc("else"), t("else")], "p") == "p"
        assert await desk.found([u("1"), tc("else"), t("else")], "other", match_system="strict") is None

    at_a_desk(work)


def test_replies_that_are_alike_do_not_hide_an_edit() -> None:
    """Whichever message is edited, the log is then what was sent."""

    async def work(desk: Desk) -> None:
        log = [message for at in range(6) for message in (u(f"q{at}"), a("Done." if at % 2 else "OK"))]
        await desk.tell(log)
        for at in range(0, len(log), 2):
            sent = [*log[:at], u(f"else {at}"), *log[at + 1 :], u("new")]
            await desk.send(sent)
            assert seen(await desk.live()) == seen(sent)

    at_a_desk(work)


def test_pictures_left_out_of_a_long_history() -> None:
    """Each costs a look-up of its own, and the words behind it are not gone over again and again."""

    async def work(desk: Desk) -> None:
        log = [message for at in range(150) for message in (picture(f"q{at}"), a(f"a{at}"))]
        await desk.tell(log)
        sent = [u(one.text) if one.role == "user" else one for one in log]
        turn = await desk.send([*sent, u("new")])
        assert turn.summary()["reconciled"] == "continued"
        assert await desk.live() == [*log, u("new")]

    at_a_desk(work)


def test_what_very_many_begin_with_is_no_one_sessions() -> None:
    """Only one that goes on from there is meant for sure; none of the others is edited on a guess."""

    async def work(desk: Desk) -> None:
        opening = [u("hi"), a("hello")]
        for at in range(SIGHTINGS):
            await desk.tell([*opening, u(f"{at}")], SessionRef("ada", f"s{at}"))
        assert await desk.found([*opening, u("new")]) is None
        await desk.tell(opening, SessionRef("ada", "waits"))
        assert await desk.found([*opening, u("new")]) == "waits"

    at_a_desk(work)


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
        await desk.store.delete(SessionRef("ada", "none"))
        assert await desk.found(asked, "y") == "y"
        assert await desk.found(asked, "else") == "z"
        assert await desk.found(asked, "else", match_system="strict") is None
        assert await desk.found(asked) == "z"

    at_a_desk(work)


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

    at_a_desk(work)


def test_a_retired_branch_is_recognised() -> None:
    """And an erased message still tells whose log it was."""

    async def work(desk: Desk) -> None:
        await desk.tell([u("1"), a("1"), u("left"), a("left")])
        await desk.send([u("1"), a("1"), u("right")])
        assert await desk.found([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"
        await desk.store.erase(REF, 3)
        assert await desk.found([u("1"), a("1"), u("left"), a("left"), u("on")]) == "s"

    at_a_desk(work)
