"""What a process remembers of a session changes what a turn reads, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.agents import Llm, Roster
from holdfast.context.settings import ContextSettings
from holdfast.domain.session import SessionRef
from holdfast.errors import BudgetTooSmall, InvalidRequest
from holdfast.holdfast import MEMORY_URL, Holdfast
from holdfast.limits import CACHE_BYTES
from holdfast.models import to_chunks
from holdfast.overlays.session_cache import LAST
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
        for chunk in to_chunks({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}):
            yield chunk

    async def close(self) -> None:
        """See `Model.close`."""


class Side:
    """One Holdfast under test, which may forget before each turn."""

    def __init__(
        self, context: ContextSettings, *, forgets: bool, cache_bytes: int = CACHE_BYTES, url: str = MEMORY_URL
    ) -> None:
        self.model = Parrot()
        self.forgets = forgets
        roster = Roster({"default": Llm(name="default", model="gpt-4o", client=self.model)}, context=context)
        self.hf = Holdfast(url, roster=roster, clock=lambda: 1, cache_bytes=cache_bytes)

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
        patch.setattr("holdfast.engine.engine.derive_marker", lambda secret, identity: "qwertyui")
        await stack.enter_async_context(warm.hf)
        await stack.enter_async_context(cold.hf)
        for step in life:
            await warm.do(step)
            await cold.do(step)
            assert warm.model.prompts == cold.model.prompts
        session = await warm.hf.session(REF.id, user_id=REF.user_id)
        await session.verify()
        warm.hf.engine.forget(REF)
        assert warm.hf.engine.warm.size == 0, "what was counted when it came is not counted when it has left"


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


@pytest.mark.parametrize("state", ["new", "forgotten"])
async def test_a_turn_reads_a_session_at_once(tmp_path: Path, state: str) -> None:
    """One read and two writes are all that the store is asked for, also for a log whose beginning has left the prompt."""
    side = Side(SETTINGS["token_window"], forgets=False, url=f"sqlite:///{tmp_path}/turns.db")
    async with side.hf as hf:
        await (await hf.session("other")).send("hello")
        session = await hf.session(REF.id, user_id=REF.user_id)
        if state == "forgotten":
            for number in range(8):
                await session.send(f"{number} {'word ' * 60}")
            hf.engine.warm.forget(REF)
        asked: list[str] = []
        for name in ("get", "entries", "window", "sightings", "append"):
            _noted(hf.store, name, asked)
        await session.send("hello again")
        assert asked == ["window", "append", "append"]
        await session.send("and again")
        assert asked == ["window", *["append"] * 4]


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


def remembered(hf: Holdfast, names: Iterable[str]) -> list[str]:
    """Those of these sessions that are remembered."""
    return [name for name in names if hf.engine.warm.get(SessionRef("default", name)) is not None]


async def test_sessions_used_longest_ago_are_forgotten_first() -> None:
    """By the bytes of all of them; a turn on one of them reads again."""
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=400_000)
    names = [f"s{number}" for number in range(20)]
    async with side.hf as hf:
        first = await hf.session("first")
        await first.send("hello")
        for name in names:
            await (await hf.session(name)).send(f"{name}: {'hello ' * 1_000}")
            await first.send(f"and now {name}?")
        kept = remembered(hf, names)
        assert 2 < len(kept) < len(names)
        assert kept == names[-len(kept) :]
        assert remembered(hf, ["first"]), "it was used all the time"
        await (await hf.session("s0")).send("are you there?")
        assert len(side.model.prompts[-1]) == 3


async def test_a_session_that_has_grown_takes_more() -> None:
    """Others make room for it, and those that were deleted do not count."""
    side = Side(SETTINGS["token_window"], forgets=False, cache_bytes=60_000)
    async with side.hf as hf:
        for name in "abc":
            await (await hf.session(name)).send("hello")
        await hf.delete(SessionRef("default", "b"))
        assert remembered(hf, "abc") == ["a", "c"]
        session = await hf.session("c")
        for number in range(12):
            await session.send(f"{number}: {'one two ' * 200}")
        assert remembered(hf, "abc") == ["c"]


async def test_a_session_too_large_for_the_cache_leaves_the_others() -> None:
    """It is read for each turn."""
    side = Side(ContextSettings("none"), forgets=False, cache_bytes=60_000)
    async with side.hf as hf:
        await (await hf.session("a")).send("hello")
        large = await hf.session("large")
        for _ in range(2):
            await large.send("hello " * 6_000)
        assert remembered(hf, ["a", "large"]) == ["a"]
        assert len(side.model.prompts[-1]) == 3


async def test_nothing_is_remembered_without_a_cache() -> None:
    """And everything works all the same."""
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=0)
    async with side.hf as hf:
        session = await hf.session("s")
        await session.send("hello")
        await session.send("hello again")
        assert remembered(hf, "s") == []
        assert [one["content"] for one in side.model.prompts[-1]] == ["hello", "You said: hello", "hello again"]


@pytest.mark.parametrize("cache_bytes", [-1, "1 MB", None])
def test_the_size_of_the_cache_is_a_number(cache_bytes: Any) -> None:
    """Of bytes, 0 or more."""
    with pytest.raises(InvalidRequest, match="cache_bytes must be"):
        holdfast.open("sqlite://:memory:", cache_bytes=cache_bytes)


async def test_a_tenant_that_uses_little_keeps_its_sessions() -> None:
    """However busy another one is: that has at most half, and its own sessions make room for its own."""
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=200_000)
    async with side.hf as hf, hf.serve_tenant("quiet") as quiet, hf.serve_tenant("busy") as busy:
        await (await quiet.session("s")).send("hello")
        for number in range(30):
            await (await busy.session(f"s{number}")).send(f"{number}: {'hello ' * 1_000}")
        assert remembered(quiet, "s") == ["s"]
        assert busy.engine.warm.size <= 100_000
        assert remembered(busy, ["s29"])


async def test_two_views_of_a_session_are_both_carried_on() -> None:
    """Turns that use them in turn read nothing."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf as hf:
        session = await hf.session(REF.id, user_id=REF.user_id)
        asked: list[str] = []
        for number in range(3):
            for strategy in ("token_window", "head_tail"):
                async with session.turn(f"question {number}", strategy=strategy) as turn:
                    turn.add("answer")
            if number == 0:
                for method in ("get", "entries", "window"):
                    _noted(hf.store, method, asked)
        assert asked == []
        assert len(turn.messages) == 11


async def test_what_forks_share_is_counted_once() -> None:
    """A fork takes little until it goes another way, and the parent may leave before it."""
    side = Side(ContextSettings("none"), forgets=False)
    async with side.hf as hf:
        parent = await hf.session("parent")
        for number in range(4):
            await parent.send(f"{number} {'word ' * 2_000}")
        alone = hf.engine.warm.size
        fork = await hf.fork(parent.ref, id="fork")
        await fork.send("and now?")
        assert hf.engine.warm.size < 1.5 * alone
        parent_held, fork_held = (hf.engine.warm.get(SessionRef("default", name)) for name in ("parent", "fork"))
        assert parent_held is not None
        assert fork_held is not None
        pairs = list(zip(parent_held.held, fork_held.held, strict=False))
        assert len(pairs) > 5
        assert all(one.message is other.message for one, other in pairs)
        await hf.delete(parent.ref)
        await hf.delete(fork.ref)
        assert hf.engine.warm.size == 0


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
        monkeypatch.setattr("holdfast.turns.prompt.draft_from_view", refuses)
        await side.turn([_user("two")])
        cached = hf.engine.warm.get(REF)
        assert [one["content"] for one in side.model.prompts[-1]] == ["one", "You said: one", "two"]
    assert len(refused) == 1
    assert cached is not None
    assert refused[0] not in [one.view for one in cached.views.values()], "the one that was read is carried on"
