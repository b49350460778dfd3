"""A call with a voice agent: the source of each message, an interrupted reply, and messages that the agent says unprompted.

Speech recognition and synthesis are left out: a session stores their text.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import holdfast
from holdfast import SessionHandle

CONFIG = Path(__file__).with_name("holdfast.yaml")


async def hear(session: SessionHandle, text: str) -> str:
    """Append the recognised speech with its source, and return the agent's reply."""
    await session.append({"role": "user", "content": text, "metadata": {"source": "asr", "user": "room 12"}})
    reply = await session.send([])  # no new message: answer the last one in the log
    return str(reply["choices"][0]["message"]["content"])


async def main() -> None:
    """Run a call with a greeting, an interruption and a silence; then a second call that continues from its summary."""
    async with holdfast.from_config(CONFIG) as hf:
        # The session of an agent with a greeting begins with the greeting: say it first.
        session = await hf.session(f"call-{uuid4().hex[:8]}", user_id="room-12", agent="concierge")
        print("agent:", (await session.history())[0]["content"])

        # The guest interrupts after 30 spoken characters. The same call would also stop a reply that the model is still
        # generating.
        reply = await hear(session, "Please book a table for two, on the name of Lovelace.")
        done = await session.interrupt(chars=30)
        assert done.entry is not None
        print(f"agent: {done.entry.message.text}… (interrupted, {len(reply)} characters were generated)")

        # From now on the model sees only the part that the guest heard.
        sent = (await session.context()).messages
        print("in the next prompt:", [message["content"] for message in sent if message["role"] == "assistant"][-1])

        # The guest is silent, so the agent speaks. APPEND waits for a running turn; IGNORE would skip the message.
        silence = await session.speak(source="silence", priority="APPEND")
        assert silence.entry is not None
        print("agent:", silence.entry.message.text)
        await hear(session, "Yes. Make it eight o'clock.")
        await session.close()

        print("\nThe records of the call:")
        for one in await session.history():
            metadata = one["metadata"]
            cut = (
                f", interrupted, {len(metadata['original'])} characters generated"
                if metadata.get("interrupted")
                else ""
            )
            print(f"  turn {one['turn_id']} {one['role']} ({metadata['source']}{cut}): {one['content'][:50]!r}")

        # The next call begins with a summary of this one by the model; without a model, with its words or facts.
        following = await hf.session(user_id="room-12", agent="concierge", carry_over=session.id)
        print("\nThe next call begins with:")
        print((await following.info()).system_messages[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
