"""A support bot that knows its customers: a new conversation recalls the earlier ones.

Three things outlive a conversation, each with its own line in holdfast.yaml:

- state (`user:name`, `user:plan`) is part of the instruction of every session of the customer;
- memories are saved and recalled with the tool `memory`;
- earlier messages are found by the words of the question (`search`).

Recalled text is added to the prompt as a block of data, just before the question. The offline model repeats what was in it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import holdfast

CONFIG = Path(__file__).with_name("holdfast.yaml")
REAL = "OPENAI_API_KEY" in os.environ
"""True if a real model answers, which decides by itself what to remember. The offline model makes the call that a message names."""


async def conversation(customer: str, *said: str) -> None:
    """Have a conversation with a customer, in a new Holdfast object, as after a restart of the program."""
    async with holdfast.from_config(CONFIG) as hf:
        session = await hf.session(user_id=customer, agent="support")  # a new session each time
        for text in said:
            reply = await session.send(text)
            print(f"{customer}: {text}\nbot: {reply['choices'][0]['message']['content']}\n")


async def main() -> None:
    """Have conversations with Ada on Monday and Tuesday, and one with Bob."""
    async with holdfast.from_config(CONFIG) as hf:
        # Data that the program has, for example from a login or an order.
        facts = hf.user_state("ada")
        await facts.set("user:name", "Ada")
        await facts.set("user:plan", "premium")

    print("== Monday, Ada")
    said = ["My parcel 7461 arrived with a broken lid.", "Please remember that I am allergic to peanuts."]
    if not REAL:
        # Her own message is above. A memory whose words the user did not say would be held for review.
        said.append('call memory {"action": "remember", "content": "The user is allergic to peanuts", "type": "user"}')
    await conversation("ada", *said)

    print("== Memories of Ada")
    async with holdfast.from_config(CONFIG) as hf:
        for one in (await hf.memories.recall("allergic", user_id="ada", signal=False)).found:
            # Each memory has its origin: words from a tool or a web page would be held for review.
            print(f"{one.memory.content} (origin {one.memory.origin}, trust {one.memory.trust})\n")

    questions = ("Are there biscuits without peanuts? I am allergic.", "Is my parcel with the broken lid replaced?")
    print("== Tuesday, Ada: a new session without history")
    await conversation("ada", *questions)

    print("== Tuesday, Bob, with the same questions: he sees none of Ada's data")
    await conversation("bob", *questions)


if __name__ == "__main__":
    asyncio.run(main())
