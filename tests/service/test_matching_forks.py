"""Forks caused by requests: what they copy from the matched session, and when they expire."""

from __future__ import annotations

from holdfast.domain.messages import Message
from holdfast.domain.session import NewCompaction, SessionRef
from holdfast.sessions.forks import fork_for_request
from holdfast.stores.log import Append
from tests.clocks import Clock
from tests.service.expiry_kit import MEMORY, RecordingHook, life
from tests.service.expiry_kit import state as status

CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
LOG = [
    {"role": "user", "content": "my balance?", "pinned": True},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "five"},
    {"role": "assistant", "content": "It is five."},
    {"role": "user", "content": "my card is kelp-4711"},
    {"role": "assistant", "content": "Noted."},
]


async def test_matching_fork_copies_only_messages_and_the_system_prompt() -> None:
    """No state, metadata, artifacts, compactions, views, usage or pins are copied."""
    async with life(MEMORY, Clock()) as hf:
        prompt = (Message(role="system", content="You are a bank."),)
        card = {"card": "4711"}
        await hf.create("s", system_messages=prompt, state=card, metadata={"title": "card 4711"}, ttl=10**9)
        session = await hf.session("s")
        await session.append(LOG)
        await session.artifacts.save("card.txt", b"4711")
        laid = NewCompaction(
            view="v",
            first=0,
            last=1,
            kind="summary",
            text="The card is 4711.",
            tokens=3,
            source_tokens=9,
            total=9,
            created_at=hf.clock(),
            through=1,
        )
        await hf.store.append(session.ref, Append(timestamp=hf.clock(), compactions=[laid]))
        before = await hf.export(session.ref, retired=True)
        fork = await fork_for_request(hf.engine, await hf.store.get(session.ref), 4, new_id="fork")
        found = await hf.session("fork")
        assert [entry.message.text for entry in await found.entries()] == ["my balance?", "", "five", "It is five."]
        assert not any(entry.pinned for entry in await found.entries())
        assert [one.text for one in fork.system_messages] == ["You are a bank."]
        assert fork.metadata == {"forked_from": {"id": "s", "turn": 0, "seq": 3}}
        assert (fork.state, fork.ttl, fork.usage.calls) == ({}, 10**9, 0)
        assert "4711" not in str(await hf.export(fork.ref, retired=True))
        assert (await hf.store.artifacts(fork.ref)).artifacts == ()
        assert await hf.store.compactions(fork.ref) == ()
        assert await hf.export(session.ref, retired=True) == before


async def test_matching_fork_expires_on_its_own_and_counts_toward_the_cap() -> None:
    """Its idle time starts at the fork, and hooks for the end of the parent do not run for it."""
    clock = Clock()
    async with life(MEMORY, clock, max_sessions=2, session_ttl=3_600_000) as hf:
        ear = RecordingHook()
        hf.add_hook(ear)
        for name in ("other", "parent"):
            await (await hf.session(name)).append(LOG)
            clock.now += 1
        await fork_for_request(hf.engine, await hf.store.get(SessionRef("default", "parent")), 4, new_id="fork")
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert ear.heard == [("cap", "other")]
        clock.now += 1_800_000
        await (await hf.session("fork")).append("still there")
        clock.now += 1_800_000
        await hf.sweep()
        await hf.engine.hook_dispatcher.wait_until_idle()
        assert ear.heard == [("cap", "other"), ("ttl", "parent")]
        assert await status(hf, "fork") == "active"
