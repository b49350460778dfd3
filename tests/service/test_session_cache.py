"""The session cache of a process changes what a turn reads and nothing else."""

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
from holdfast.holdfast import Holdfast
from holdfast.limits import CACHE_BYTES
from holdfast.models import to_chunks
from holdfast.stores.log import Append
from tests.amounts import examples

REF = SessionRef("ada", "s")
SETTINGS = {
    "digest": ContextSettings("digest", {"budget": 700}),
    "token_window": ContextSettings("token_window", {"budget": 400}),
    "buffer_window": ContextSettings("buffer_window", {"window_size": 6}),
}


class Parrot:
    """Answers with a call on request, else with the text it received; records its prompts."""

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
    """One Holdfast under test, which may clear its cache before each turn."""

    def __init__(
        self, context: ContextSettings, *, forgets: bool, cache_bytes: int = CACHE_BYTES, url: str = "sqlite://:memory:"
    ) -> None:
        self.model = Parrot()
        self.forgets = forgets
        roster = Roster({"default": Llm(name="default", model="gpt-4o", client=self.model)}, context=context)
        self.hf = Holdfast(url, roster=roster, clock=lambda: 1, cache_bytes=cache_bytes)

    async def turn(self, messages: list[dict[str, Any]]) -> None:
        if self.forgets:
            self.hf.engine.warm.forget(REF)
        session = await self.hf.session(REF.id, user_id=REF.user_id)
        # Pins can fill the budget: then both sides raise, and the message is in both logs.
        with suppress(BudgetTooSmall):
            await session.send(messages)

    async def do(self, step: tuple[str, int, str]) -> None:
        """Run one step, including writes by another process."""
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
        """Write directly to the store, as another process might."""
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
async def test_prompt_is_the_same_with_and_without_the_cache(name: str, life: list[tuple[str, int, str]]) -> None:
    """After any change to the session, also by another process."""
    warm, cold = Side(SETTINGS[name], forgets=False), Side(SETTINGS[name], forgets=True)
    async with AsyncExitStack() as stack:
        # Two stores derive two markers, which may differ in their number of tokens.
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


async def test_cached_turn_reads_nothing() -> None:
    """The store gets two writes and no other call."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("hello")
        asked: list[str] = []
        store = side.hf.store
        for name in ("get", "entries", "window", "sightings", "append"):
            _record_calls(store, name, asked)
        await session.send("hello again")
        assert asked == ["append", "append"]


@pytest.mark.parametrize("state", ["new", "forgotten"])
async def test_uncached_turn_reads_its_session_in_one_call(tmp_path: Path, state: str) -> None:
    """One read and two writes, even if the beginning of the log has left the prompt."""
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
            _record_calls(hf.store, name, asked)
        await session.send("hello again")
        assert asked == ["window", "append", "append"]
        await session.send("and again")
        assert asked == ["window", *["append"] * 4]


def _record_calls(store: Any, name: str, asked: list[str]) -> None:
    real = getattr(store, name)

    async def record_call(*args: Any, **kwargs: Any) -> Any:
        asked.append(name)
        return await real(*args, **kwargs)

    setattr(store, name, record_call)


async def test_retry_is_recognised_with_the_cache() -> None:
    """The same unanswered message is not written again."""
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("hello")
        async with session.turn("are you there?"):
            pass
        async with session.turn("are you there?"):
            pass
        assert [message["content"] for message in await session.messages()][2:] == ["are you there?"]


def list_cached(hf: Holdfast, names: Iterable[str]) -> list[str]:
    """Return those of the sessions that are cached."""
    return [name for name in names if hf.engine.warm.get(SessionRef("default", name)) is not None]


async def test_cache_can_be_disabled() -> None:
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=0)
    async with side.hf as hf:
        session = await hf.session("s")
        await session.send("hello")
        await session.send("hello again")
        assert list_cached(hf, "s") == []
        assert [one["content"] for one in side.model.prompts[-1]] == ["hello", "You said: hello", "hello again"]


@pytest.mark.parametrize("cache_bytes", [-1, "1 MB", None])
def test_invalid_cache_size_is_rejected(cache_bytes: Any) -> None:
    """It is a number of bytes, 0 or more."""
    with pytest.raises(InvalidRequest, match="cache_bytes must be"):
        holdfast.open("sqlite://:memory:", cache_bytes=cache_bytes)


async def test_busy_tenant_does_not_evict_the_sessions_of_a_quiet_one() -> None:
    """It gets at most half and evicts its own sessions."""
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=200_000)
    async with side.hf as hf, hf.serve_tenant("quiet") as quiet, hf.serve_tenant("busy") as busy:
        await (await quiet.session("s")).send("hello")
        for number in range(30):
            await (await busy.session(f"s{number}")).send(f"{number}: {'hello ' * 1_000}")
        assert list_cached(quiet, "s") == ["s"]
        assert busy.engine.warm.size <= 100_000
        assert list_cached(busy, ["s29"])


async def test_deleting_and_erasing_clear_the_cache() -> None:
    side = Side(SETTINGS["digest"], forgets=False)
    async with side.hf:
        session = await side.hf.session(REF.id, user_id=REF.user_id)
        await session.send("secret")
        await side.hf.erase(REF, 0)
        assert side.hf.engine.warm.get(REF) is None
        await session.send("hello")
        await session.delete()
        assert side.hf.engine.warm.get(REF) is None


async def test_least_recently_used_sessions_are_evicted_first() -> None:
    """By total bytes; a turn of an evicted session reads again."""
    side = Side(SETTINGS["digest"], forgets=False, cache_bytes=400_000)
    names = [f"s{number}" for number in range(20)]
    async with side.hf as hf:
        first = await hf.session("first")
        await first.send("hello")
        for name in names:
            await (await hf.session(name)).send(f"{name}: {'hello ' * 1_000}")
            await first.send(f"and now {name}?")
        kept = list_cached(hf, names)
        assert 2 < len(kept) < len(names)
        assert kept == names[-len(kept) :]
        assert list_cached(hf, ["first"]), "it was used all the time"
        await (await hf.session("s0")).send("are you there?")
        assert len(side.model.prompts[-1]) == 3
