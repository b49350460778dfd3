"""What a process remembers of a session changes what a turn reads, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import SessionRef
from holdfast.errors import BudgetTooSmall
from holdfast.holdfast import Holdfast
from holdfast.models import as_chunks
from holdfast.overlays.warm import LAST, MOST
from holdfast.stores.log import Append
from tests.amounts import examples

REF = SessionRef("ada", "s")
SETTINGS = {
    "digest": ContextSettings("digest", {"budget": 700}),
    "token_window": ContextSettings("token_window", {"budget": 400}),
    "buffer_window": ContextSettings("buffer_window", {"window_size": 6}),
}


class Parrot:
    """Answers with a call when it is told to, else with what it heard; remembers its prompts."""

    name = "parrot"

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, Any]]] = []

    async def stream(
        self, request: dict[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """See `Model.stream`."""
        self.prompts.append(request["messages"])
        heard = str(request["messages"][-1].get("content"))
        message: dict[str, Any] = {"role": "assistant", "content": f"You said: {heard[:300]}"}
        if heard.startswith("call"):
            call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        for chunk in as_chunks({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}):
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


class Side:
    """One Holdfast under test, which may forget before each turn."""

    def __init__(self, context: ContextSettings, *, forgets: bool) -> None:
        self.model = Parrot()
        self.forgets = forgets
        roster = Roster({"default": Llm(name="default", model="gpt-4o", client=self.model)}, context=context)
        self.hf = Holdfast("sqlite://:memory:", roster=roster, clock=lambda: 1)

    async def turn(self, messages: list[dict[str, Any]]) -> None:
        if self.forgets:
            self.hf.engine.warm.forget(REF)
        session = await self.hf.session(REF.id, user_id=REF.user_id)
        # Pins can fill the room: then both sides refuse, and the message is in both logs.
        with suppress(BudgetTooSmall):
            await session.send(messages)

    async def do(self, step: tuple[str, int, str]) -> None:
        """One step of a session's life; those behind the engine's back included."""
        what, number, text = step
        if what == "say":
            await self.turn([{"role": "user", "content": text}])
        elif what == "call":
            await self.turn([{"role": "user", "content": f"call {text}"}])
            await self.turn([{"role": "tool", "tool_call_id": "c", "content": text}])
        elif what == "edit":
            await self.turn([{"role": "user", "content": text}, {"role": "assistant", "content": "no"}, _user(text)])
        elif what == "recreate":
            await self.hf.store.remove(REF)
        else:
            await self._behind(what, number, text)

    async def _behind(self, what: str, number: int, text: str) -> None:
        """What another process might do: straight to the store."""
        session = await self.hf.session(REF.id, user_id=REF.user_id)
        entries = await session.entries()
        if what == "append":
            await self.hf.store.append(REF, Append(timestamp=1, state_delta={"k": text}))
            await session.append(_user(text))
        elif entries:
            seq = entries[number % len(entries)].seq
            if what == "pin":
                await self.hf.store.annotate(REF, seq, pinned=True)
            else:
                await self.hf.store.erase(REF, seq)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


words = st.text(st.sampled_from("abc XY019-_"), min_size=1, max_size=12).map(lambda text: f"{text} " * 20)
steps = st.lists(
    st.tuples(
        st.sampled_from(["say"] * 6 + ["call"] * 3 + ["append", "pin", "erase", "edit", "recreate"]),
        st.integers(0, 30),
        words,
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=examples(40))
@given(life=steps)
async def test_a_prompt_is_the_same_remembered_or_read(name: str, life: list[tuple[str, int, str]]) -> None:
    """Whatever happens to a session, also in another process."""
    warm, cold = Side(SETTINGS[name], forgets=False), Side(SETTINGS[name], forgets=True)
    async with AsyncExitStack() as stack:
        # Two stores derive two markers, which may also differ in tokens.
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("holdfast.engine.markers.marker_of", lambda secret, identity: "qwertyui")
        await stack.enter_async_context(warm.hf)
        await stack.enter_async_context(cold.hf)
        for step in life:
            await warm.do(step)
            await cold.do(step)
            assert warm.model.prompts == cold.model.prompts
        session = await warm.hf.session(REF.id, user_id=REF.user_id)
        await session.verify()


async def test_a_warm_turn_reads_nothing() -> None:
    """Two writes are all that the store is asked for."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("hello")
        asked: list[str] = []
        store = side.hf.store
        for name in ("get", "entries", "window", "sightings", "append"):
            _noted(store, name, asked)
        await session.send("hello again")
        assert asked == ["append", "append"]


def _noted(store: Any, name: str, asked: list[str]) -> None:
    real = getattr(store, name)

    async def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return await real(*args, **kwargs)

    setattr(store, name, noted)


async def test_a_retry_is_recognised_from_memory() -> None:
    """The same unanswered message again is not written again, whether it is remembered or not."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("hello")
        async with session.turn("are you there?"):
            pass
        async with session.turn("are you there?"):
            pass
        assert [message["content"] for message in await session.messages()][2:] == ["are you there?"]


async def test_memory_is_bounded() -> None:
    """The sessions idle longest are forgotten; a turn on one of them reads again."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        for number in range(MOST + 5):
            session = await side.hf.session(f"s{number}")
            await session.send("hello")
        kept = [number for number in range(MOST + 5) if side.hf.engine.warm.get(SessionRef("default", f"s{number}"))]
        assert kept == list(range(5, MOST + 5))


async def test_a_session_in_use_is_not_the_one_idle_longest() -> None:
    """However many others come after it."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        first = await side.hf.session("first")
        await first.send("hello")
        warm = side.hf.engine.warm.get(first.ref)
        for number in range(MOST + 5):
            await first.send(f"and number {number}?")
            await (await side.hf.session(f"s{number}")).send("hello")
        assert warm is not None
        assert side.hf.engine.warm.get(first.ref) is warm
        assert side.hf.engine.warm.get(SessionRef("default", "s0")) is None


async def test_memory_is_bounded_by_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its tokens, those too that sessions have grown by since, and without those that were forgotten."""
    monkeypatch.setattr("holdfast.overlays.warm.MOST_TOKENS", 400)
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:

        def kept() -> str:
            return "".join(one for one in "abcde" if side.hf.engine.warm.get(SessionRef("default", one)))

        for name in "abc":
            await (await side.hf.session(name)).send("hello")
        await side.hf.delete(SessionRef("default", "b"))
        assert kept() == "ac"
        for word in ("one ", "two "):
            await (await side.hf.session("c")).send(word * 200)
        await (await side.hf.session("a")).send("are you there?")
        for name in "de":
            await (await side.hf.session(name)).send("hello")
        assert kept() == "ade"


async def test_a_request_longer_than_the_memory_reads() -> None:
    """A delta of more messages than are remembered is still recognised as a retry."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("hello")
        many = [_user(f"and {number}") for number in range(LAST + 1)]
        for _ in range(2):
            async with session.turn(many):
                pass
        assert len(await session.messages()) == 2 + len(many)


async def test_deleting_and_erasing_leave_nothing_in_memory() -> None:
    """What is gone from the store is gone from the process."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("secret")
        await side.hf.erase(REF, 0)
        assert side.hf.engine.warm.get(REF) is None
        await session.send("hello")
        await session.delete()
        assert side.hf.engine.warm.get(REF) is None


async def test_a_view_of_which_nothing_fits_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been folded for another room: only what does not fit when it is read anew is refused."""
    refused: list[Any] = []

    def refuses(request: Any, view: Any, *, reduced: bool) -> Any:
        assert not reduced
        refused.append(view)
        raise BudgetTooSmall(budget=1, needed=2, what="this view")

    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf as hf:
        await side.turn([_user("one")])
        monkeypatch.setattr("holdfast.turns.prompt.draft_on", refuses)
        await side.turn([_user("two")])
        warm = hf.engine.warm.get(REF)
        assert [one["content"] for one in side.model.prompts[-1]] == ["one", "You said: one", "two"]
    assert len(refused) == 1
    assert warm is not None
    assert warm.view is not refused[0], "the one that was read is carried on"
