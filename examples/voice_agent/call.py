"""A voice agent's call: how each message came, what of a reply was heard, and what the agent says by itself.

Speech recognition and speech synthesis are not in it: what they hear and say is text, and text is what a session keeps.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import holdfast
from holdfast import SessionHandle

CONFIG = Path(__file__).with_name("holdfast.yaml")


async def hear(session: SessionHandle, text: str) -> str:
    """What speech recognition understood becomes a message with its source; the agent's reply to it."""
    await session.append({"role": "user", "content": text, "metadata": {"source": "asr", "user": "room 12"}})
    reply = await session.send([])  # nothing to add: answer what stands in the log
    return str(reply["choices"][0]["message"]["content"])


async def main() -> None:
    """One call with a greeting, an interruption and a silence; then the next call, which knows of it."""
    async with holdfast.from_config(CONFIG) as hf:
        # A session of an agent with a greeting begins with it: that is what to say first.
        session = await hf.session(f"call-{uuid4().hex[:8]}", user_id="room-12", agent="concierge")
        print("agent:", (await session.history())[0]["content"])

        # The reply is being spoken, and after 30 characters the guest speaks. A reply that is still being made would be
        # stopped by the same call.
        reply = await hear(session, "Please book a table for two, on the name of Lovelace.")
        done = await session.interrupt(chars=30)
        assert done.entry is not None
        print(f"agent: {done.entry.message.text}… (interrupted, {len(reply)} characters were made)")

        # From now on the model sees what was heard, and does not believe to have said the rest.
        sent = (await session.context()).messages
        print("in the next prompt:", [message["content"] for message in sent if message["role"] == "assistant"][-1])

        # Nobody says anything: the agent does. APPEND waits for a turn that runs, IGNORE would say nothing then.
        silence = await session.speak(source="silence", priority="APPEND")
        assert silence.entry is not None
        print("agent:", silence.entry.message.text)
        await hear(session, "Yes. Make it eight o'clock.")
        await session.close()

        print("\nThe records of the call:")
        for one in await session.history():
            metadata = one["metadata"]
            cut = f", interrupted, {len(metadata['original'])} characters made" if metadata.get("interrupted") else ""
            print(f"  turn {one['turn_id']} {one['role']} ({metadata['source']}{cut}): {one['content'][:50]!r}")

        # The next call begins with what this one was about: a summary by the model; without one, the words or the facts.
        following = await hf.session(user_id="room-12", agent="concierge", carry_over=session.id)
        print("\nThe next call is told:")
        print((await following.info()).system_messages[-1].text)


if __name__ == "__main__":
    asyncio.run(main())
