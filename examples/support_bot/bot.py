"""A support bot that knows its customers: what one conversation was told, the next one recalls.

Three things outlive a conversation, each with its own line in holdfast.yaml:

- facts in the state (`user:name`, `user:plan`) stand in the instruction of every session of the customer;
- memories: what is worth keeping, remembered and recalled by the tool `memory`;
- what was said: found again by the words of the question (`search`).

What was recalled comes into the prompt as a block of data, just before the question. The offline model tells what was in it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import holdfast

CONFIG = Path(__file__).with_name("holdfast.yaml")
REAL = "OPENAI_API_KEY" in os.environ
"""Whether a real model answers: it decides by itself what to remember. The offline one calls what it is told to call."""


async def conversation(customer: str, *said: str) -> None:
    """A conversation of a customer, in an opening of its own, as after a restart of the program."""
    async with holdfast.from_config(CONFIG) as hf:
        session = await hf.session(user_id=customer, agent="support")  # a new one each time
        for text in said:
            reply = await session.send(text)
            print(f"{customer}: {text}\nbot: {reply['choices'][0]['message']['content']}\n")


async def main() -> None:
    """Monday, Tuesday, and somebody else."""
    async with holdfast.from_config(CONFIG) as hf:
        # What the program knows by itself, from a login or an order.
        facts = hf.user_state("ada")
        await facts.set("user:name", "Ada")
        await facts.set("user:plan", "premium")

    print("== Monday, Ada")
    said = ["My parcel 7461 arrived with a broken lid.", "Please remember that I am allergic to peanuts."]
    if not REAL:
        # Her own words stand above: what is only quoted, as in this call, would be held for a review.
        said.append('call memory {"action": "remember", "content": "The user is allergic to peanuts", "type": "user"}')
    await conversation("ada", *said)

    print("== What is remembered of Ada")
    async with holdfast.from_config(CONFIG) as hf:
        for one in (await hf.memories.recall("allergic", user_id="ada", signal=False)).found:
            # Where it comes from is kept with it: words of a tool or a web page would wait for a review.
            print(f"{one.memory.content} (origin {one.memory.origin}, trust {one.memory.trust})\n")

    questions = ("Are there biscuits without peanuts? I am allergic.", "Is my parcel with the broken lid replaced?")
    print("== Tuesday, Ada: a new session, which was told nothing")
    await conversation("ada", *questions)

    print("== Tuesday, Bob, with the same questions: nothing of Ada's is his")
    await conversation("bob", *questions)


if __name__ == "__main__":
    asyncio.run(main())
