"""The session cache of a process changes what a turn reads and nothing else."""

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
from holdfast.limits import CACHE_BYTES
from holdfast.models.collect import to_chunks
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
