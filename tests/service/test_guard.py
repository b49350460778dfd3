"""The guard around a store: every write is redacted or rejected if it contains secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.memory import DiaryEntry, MemoryDelta
from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import NewCompaction, NewEntry, SessionRef
from holdfast.domain.state import Extend, Increment
from holdfast.engine.redacting_store import TEXTLESS, RedactingStore
from holdfast.errors import SecretBlocked, StaleState
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.wrapper import StoreWrapper
from holdfast.tokens import STORED
from tests.contract.memory_kit import ANN, memory, put, signal
from tests.service.guard_kit import GONE, GUARD, KEY, REDACTION, assistant, desk, user


def test_every_store_method_is_guarded_or_takes_no_text() -> None:
    methods = {name for name in dir(Store) if not name.startswith("_") and callable(getattr(Store, name))}
    guarded = {name for name in dir(RedactingStore) if not name.startswith("_") and name not in dir(StoreWrapper)}
    assert methods - guarded - TEXTLESS == {"for_tenant"}, "does it write text? guard it, else name it in TEXTLESS"
    assert not guarded & TEXTLESS


async def test_memories_are_redacted(tmp_path: Path) -> None:
    """Content, tags, metadata and diary are masked before anything is stored."""
    note = DiaryEntry(id="d", at=1, report={"why": KEY})
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: redact}") as d:
        new = memory(f"my {KEY} x", tags=(KEY,), metadata={KEY: [KEY]})
        delta = MemoryDelta(put=(new,), diary=(note,), signals=(signal(new),))
        (kept,) = (await d.hf.store.change_memories(ANN, delta, timestamp=2)).memories
        assert kept.content.startswith("my ")
        assert kept.content.endswith(" x")
        d.check()
        (kept,) = await put(d.hf.store, replace(kept, content=f"again {KEY}"))
        assert (kept.number, kept.content.startswith("again ")) == (1, True)
        assert len(await d.hf.store.signals(ANN)) == 1
        d.check()


async def test_blocking_rejects_user_memories_and_masks_others(tmp_path: Path) -> None:
    """Memories of an agent or a tool, and changed memories, are masked."""
    async with desk(tmp_path, "secret_guard: {enabled: true, on_secret: block}") as d:
        with pytest.raises(SecretBlocked):
            await put(d.hf.store, memory("fine"), memory(f"my {KEY}"))
        assert await d.hf.store.memory_owners() == ()
        for made in (memory(KEY, agent="a"), memory(KEY, origin="tool")):
            (kept,) = await put(d.hf.store, made)
            assert KEY not in kept.content
        await put(d.hf.store, replace(kept, content=KEY, origin="user"))
        d.check()


async def test_all_writes_are_redacted(tmp_path: Path) -> None:
    call = ToolCall("c1", "find", json.dumps({"key": KEY}))
    messages = [
        Message(role="user", content=(Part("text", f"my {KEY}"),), name=KEY),
        Message(role="assistant", content=None, tool_calls=(call,), extra={"reasoning": KEY}),
        Message(role="tool", content=f'{{"found": "{KEY}"}}', tool_call_id="c1"),
    ]
    system = (Message(role="system", content=f"you are {KEY}"),)
    new = NewSession(
        id="t", user_id="default", timestamp=1, system_messages=system, state={KEY: 1}, metadata={"m": KEY}
    )
    entries = [NewEntry(message=one, tokens=1, timestamp=1, metadata={"original": KEY}) for one in messages]
    async with desk(tmp_path, REDACTION) as at:
        store = at.hf.store
        made = await store.create(new)
        assert (made.state, made.metadata, made.system_messages[0].text) == ({GONE: 1}, {"m": GONE}, f"you are {GONE}")
        write = Append(timestamp=2, entries=entries, state_delta={"k": [KEY]}, compactions=[_compaction()])
        written = await store.append(made.ref, write)
        patch = SessionPatch(system_messages=(*system, *system), state={"x": KEY}, metadata={KEY: KEY})
        changed = await store.update(made.ref, patch, timestamp=3)
        assert changed.state == {GONE: 1, "k": [GONE], "x": GONE}
        await store.replace(replace(new, id="u"), entries)
        stored = written.entries
        assert [entry.tokens for entry in stored] == [STORED.message(entry.message) for entry in stored]
        assert json.loads(stored[1].message.tool_calls[0].arguments) == {"key": GONE}
        assert stored[2].message.text == f'{{"found": "{GONE}"}}'
        [laid] = await store.compactions(made.ref)
        assert (laid.text, laid.report) == (f"said {GONE}", {"lost": [GONE]})
        for session_id in ("t", "u"):
            assert await (await at.hf.session(session_id)).verify() == 3
        at.check()
        assert at.guard.counts == {("anthropic_key", "redact"): 30}


def _compaction() -> NewCompaction:
    fields: dict[str, Any] = {"tokens": 1, "source_tokens": 1, "total": 1, "created_at": 1, "through": 0}
    return NewCompaction(
        view="v", first=0, last=0, kind="summary", text=f"said {KEY}", report={"lost": [KEY]}, **fields
    )


SHARED_DELTA: dict[str, Any] = {"user:k": [KEY], "app:l": Extend((KEY, 1)), KEY: KEY, "n": Increment(), "gone": None}


@pytest.mark.parametrize("settings", [REDACTION, GUARD % "redact"])
async def test_state_of_all_scopes_is_redacted(tmp_path: Path, settings: str) -> None:
    """Expected values are compared as they were stored, and these comparisons are not counted."""
    async with desk(tmp_path, settings) as at:
        store = at.hf.store
        made = await store.create(NewSession(id="t", user_id="default", timestamp=1, state=SHARED_DELTA))
        assert made.state == {GONE: GONE, "n": 1}
        await store.append(made.ref, Append(timestamp=2, state_delta=SHARED_DELTA, state_expect={KEY: KEY}))
        changed = await store.update(made.ref, SessionPatch(state=SHARED_DELTA), timestamp=3)
        assert changed.state == {GONE: GONE, "n": 3}
        assert (await store.state("default")).values == {"k": [GONE]}
        assert (await store.state(None)).values == {"l": [GONE, 1] * 3}
        counted = at.guard.counts.copy()
        delta = {"k": Extend((KEY,)), "n": Increment(), "gone": None}
        told = await store.change_state("default", delta, timestamp=4, values={"k": [KEY], KEY: None})
        assert told.values == {"k": [GONE, GONE], "n": 1}
        told = await store.change_state("default", {GONE: 1, KEY: 2}, timestamp=5)
        assert told.values == {GONE: 1, f"{GONE} (2)": 2}
        with pytest.raises(StaleState):
            await store.change_state("default", delta, timestamp=4, values={"k": [KEY]})
        assert at.guard.counts.total() == counted.total() + 2
        at.check()


async def test_blocking_rejects_state_with_a_secret(tmp_path: Path) -> None:
    """State that tools set along with a result is redacted instead."""
    async with desk(tmp_path, GUARD % "block") as at:
        store = at.hf.store
        for delta in ({"k": KEY}, {"k": Extend((KEY,))}, {KEY: 1}):
            with pytest.raises(SecretBlocked):
                await store.change_state("default", delta, timestamp=1)
            state = {f"user:{key}": value for key, value in delta.items()}
            with pytest.raises(SecretBlocked):
                await store.create(NewSession(id="t", user_id="default", timestamp=1, state=state))
        assert (await store.state("default")).version == 0
        made = await store.create(NewSession(id="t", user_id="default", timestamp=1))
        write = Append(timestamp=2, state_delta={"user:k": Extend((KEY,))})
        with pytest.raises(SecretBlocked):
            await store.append(made.ref, write)
        result = NewEntry(message=Message(role="assistant", content="done"), timestamp=2, tokens=1)
        await store.append(made.ref, replace(write, entries=[result]))
        assert (await store.state("default")).values == {"k": [GONE]}


async def test_store_of_another_tenant_is_guarded(tmp_path: Path) -> None:
    async with desk(tmp_path, REDACTION) as at:
        other = at.hf.store.for_tenant("acme")
        made = await other.create(NewSession(id="t", user_id="u", timestamp=1, metadata={"m": KEY}))
        assert (made.tenant, made.metadata) == ("acme", {"m": GONE})


IMPORTED: dict[str, Any] = {
    "messages": [{**user(f"take {KEY}"), "metadata": {"note": KEY}}, assistant(KEY)],
    "system_messages": [f"be {KEY}"],
    "state": {"k": KEY},
    "metadata": {"k": KEY},
}


async def test_repeated_import_with_secrets_is_unchanged(tmp_path: Path) -> None:
    """It is compared in its redacted form. Forks are redacted, too."""
    async with desk(tmp_path, REDACTION) as at:
        arrivals = [await at.hf.import_(IMPORTED, session_id="t") for _ in range(2)]
        assert [arrival.changed for arrival in arrivals] == [True, False]
        assert at.guard.counts == {("anthropic_key", "redact"): 6}
        fork = await at.hf.fork(SessionRef("default", "t"))
        assert [entry.message.text for entry in await fork.entries()] == [f"take {GONE}", GONE]
        at.check()


async def test_blocking_rejects_an_import_with_a_secret(tmp_path: Path) -> None:
    async with desk(tmp_path, GUARD % "block") as at:
        with pytest.raises(SecretBlocked):
            await at.hf.import_(IMPORTED, session_id="t")
        assert [one.id for one in (await at.hf.sessions()).sessions] == ["s"]
        at.check()
