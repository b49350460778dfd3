"""Reading and writing a session's log outside of turns: ranges, pop, clear, conditions, state, and contexts that continue."""

from __future__ import annotations

from typing import Any

import holdfast

MEMORY = "sqlite://:memory:"


def make_round(number: int) -> list[dict[str, Any]]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    result = f"Order {number} costs {number * 17} euros and arrives on a Tuesday. " * 3
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


async def test_saved_contexts_continue_each_other() -> None:
    """They equal the prompts of a turn with the same messages, and most begin with the whole previous one."""
    async with holdfast.open(MEMORY, strategy="digest", budget=600) as hf:
        outside, inside = await hf.session("outside"), await hf.session("inside")
        await outside.append("Find all orders.")
        kept = kept_in_turn = 0
        before = expected_before = (await outside.context(save=True)).messages
        async with inside.turn("Find all orders.") as turn:
            for number in range(40):
                await outside.append(make_round(number))
                for message in make_round(number):
                    turn.add(message)
                context = await outside.context(save=True)
                expected = await turn.next()
                assert [len(str(m["content"])) for m in context.messages] == [len(str(m["content"])) for m in expected]
                kept += context.messages[: len(before)] == before
                kept_in_turn += expected[: len(expected_before)] == expected_before
                before, expected_before = context.messages, expected
        assert kept == kept_in_turn > 5
        assert (await outside.context()).messages == before


async def test_a_saved_context_reads_only_what_is_new() -> None:
    async with holdfast.open(MEMORY, strategy="digest", budget=600) as hf:
        session = await hf.session()
        await session.append("Find all orders.")
        for number in range(100):
            await session.append(make_round(number))
        await session.context(save=True)
        read: list[int] = []
        store = hf.engine.store
        window = store.window

        async def watch(*args: Any) -> Any:
            rows = await window(*args)
            read.append(len(rows.entries))
            return rows

        store.window = watch  # type: ignore[method-assign, assignment]  # counts the reads
        await session.append(make_round(100))
        await session.context(save=True)
        assert read == []
