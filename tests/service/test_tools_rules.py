"""For any model replies and tool outcomes, the log has no orphans and every prompt is legal in every dialect."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.domain.session import Entry
from holdfast.errors import ModelUnavailable
from holdfast.tools.context import ToolContext
from holdfast.tools.tool import ToolLimits
from tests.amounts import examples
from tests.service.scripted_model import REF
from tests.service.tools_kit import THEIRS, Bench, bench, make_reply, stop_at
from tests.unit.dialect_rules import anthropic, gemini, openai

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["works", "breaks", "hangs", "writes", "open_door", "nowhere"]),
        st.sampled_from([{}, "{half", "", {"much": 1}]),
    ),
    max_size=3,
)
REPLIES = st.lists(st.tuples(st.sampled_from([None, "Well.", "So: "]), CALLS, st.booleans()), min_size=1, max_size=6)
LEAVES = st.one_of(st.none(), st.none(), st.integers(0, 12))
TURNS = st.lists(st.tuples(REPLIES, LEAVES, st.sampled_from(["new", "again", "results"])), min_size=1, max_size=4)


async def works() -> str:
    return "worked"


async def breaks() -> None:
    raise ValueError("broke")


async def hangs() -> None:
    await asyncio.Event().wait()


def writes(context: ToolContext) -> int:
    context.state["n"] = context.state.get("n", 0) + 1
    return int(context.state["n"])


class Script:
    """The model's replies in the current turn; when they run out, it fails."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def __call__(self, body: dict[str, Any]) -> Any:
        if not self.replies:
            return [ModelUnavailable("gone")]
        text, calls, breaks_off = self.replies.pop(0)
        text = text or (None if calls else "Done.")  # neither words nor calls are no answer
        chunks = make_reply(text, *calls)
        return [*chunks[:-2], ModelUnavailable("gone")] if breaks_off else chunks


async def run_turn(desk: Bench, incoming: list[Any], leaves: int | None) -> None:
    """Run one turn of a client that disconnects after a number of chunks."""
    await stop_at(desk.turn(*incoming, body={"tools": THEIRS}), leaves)
    async with desk.hf.engine.locks.make_exclusive_lock(REF):
        return


async def choose_incoming(desk: Bench, how: str, before: list[Any], at: int) -> list[Any]:
    """Return a new message, the last request again, or results of the open calls."""
    tail = (await desk.hf.store.get(REF)).tail
    if how == "results" and tail.open_calls:
        return [{"role": "tool", "tool_call_id": call, "content": "open"} for call in tail.open_calls]
    # Results that were answered already are orphans if they are sent again: that is the client's mistake, and it is reported.
    unanswered = tail.last_kind != "assistant" and not tail.open_calls
    if how == "again" and before and (unanswered or isinstance(before[0], str)):
        return before
    return [f"question {at}"]


def check_units(log: list[Entry]) -> None:
    """Check that each result is in the unit of its call and that no call has two."""
    calls: dict[int, list[str]] = {}
    for entry in log:
        if entry.kind == "calls":
            calls[entry.seq] = [call.id for call in entry.message.tool_calls]
            assert len(set(calls[entry.seq])) == len(calls[entry.seq])
        elif entry.kind == "result":
            assert entry.unit in calls, "a result without its call"
            calls[entry.unit].remove(str(entry.message.tool_call_id))


async def play_turns(turns: list[Any]) -> None:
    script = Script()
    async with bench(script, works, breaks, hangs, writes, limits=ToolLimits(rounds=3, timeout=0.01)) as desk:
        before: list[Any] = []
        for at, (replies, leaves, how) in enumerate(turns):
            script.replies = list(replies)
            before = await choose_incoming(desk, how, before, at)
            await run_turn(desk, before, leaves)
            log = await desk.log()
            check_units(log)
            assert await desk.session.verify() == len(await desk.hf.store.entries(REF, retired=True))
            names = {call.id: call.name for entry in log for call in entry.message.tool_calls}
            assert all(names[call] == "open_door" for call in (await desk.hf.store.get(REF)).tail.open_calls)
            if log:
                await check_prompts(desk)


async def check_prompts(desk: Bench) -> None:
    """Check the prompt that would be sent now, in each dialect."""
    assert openai((await desk.session.context()).messages) == []
    built = await desk.session.context(dialect="anthropic")
    assert anthropic({"messages": built.messages}) == []
    built = await desk.session.context(dialect="gemini")
    assert gemini({"contents": built.messages}) == []


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TURNS)
def test_log_has_no_orphans_and_prompts_are_legal(turns: list[Any]) -> None:
    """With random replies, outcomes, disconnects, retries and results in between."""
    asyncio.run(play_turns(turns))
