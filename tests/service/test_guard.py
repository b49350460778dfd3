"""The guard around a store: every write is redacted or rejected if it contains secrets."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.engine.redacting_store import TEXTLESS, RedactingStore
from holdfast.stores.base import Store
from holdfast.stores.sessions import NewSession
from holdfast.stores.wrapper import StoreWrapper
from tests.service.guard_kit import GONE, KEY, REDACTION, assistant, desk, user


def test_every_store_method_is_guarded_or_takes_no_text() -> None:
    methods = dict(inspect.getmembers(Store, inspect.iscoroutinefunction))
    writes = {
        name
        for name, method in methods.items()
        if any(sign in inspect.getsource(method) for sign in ("rite(", "@writes", "_execute("))
    }
    guarded = {name for name in dir(RedactingStore) if not name.startswith("_") and name not in dir(StoreWrapper)}
    public = {name for name in writes if not name.startswith("_")}
    assert public - guarded == TEXTLESS, "does it write text? guard it, else name it in TEXTLESS"
    assert not guarded & TEXTLESS


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
