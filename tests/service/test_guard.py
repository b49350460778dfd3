"""The guard around a store: every write is redacted or rejected if it contains secrets."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from holdfast.domain.messages import Message, Part, ToolCall
from holdfast.domain.session import NewCompaction, NewEntry, SessionRef
from holdfast.engine.redacting_store import TEXTLESS, RedactingStore
from holdfast.stores.base import Store
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch
from holdfast.stores.wrapper import StoreWrapper
from holdfast.tokens import STORED
from tests.service.guard_kit import GONE, KEY, REDACTION, assistant, desk, user


def test_every_store_method_is_guarded_or_takes_no_text() -> None:
    methods = dict(inspect.getmembers(Store, inspect.iscoroutinefunction))
    writes = {
        name
        for name, method in methods.items()
        if "rite(" in inspect.getsource(method) or "_execute(" in inspect.getsource(method)
    }
    guarded = {name for name in dir(RedactingStore) if not name.startswith("_") and name not in dir(StoreWrapper)}
    public = {name for name in writes if not name.startswith("_")}
    assert public - guarded == TEXTLESS, "does it write text? guard it, else name it in TEXTLESS"
    assert not guarded & TEXTLESS


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
