"""Search: hits, times and arguments; whatever the index returns is checked against the log."""

from __future__ import annotations

from holdfast.indexes.indexed_store import IndexedStore
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.service.search_kit import open_talks

# -- hits ----------------------------------------------------------------------


# -- times ---------------------------------------------------------------------


# -- verification against the log ------------------------------------------------


async def test_hits_missing_from_the_log_are_replaced_by_further_ones() -> None:
    """Erased, retired or deleted without the index knowing, or in another session of the same id."""
    async with open_talks() as at:
        for name in "abcdefgh":
            await at.add_messages(name, f"kelp {name}", "fine")
        followed = at.hf.engine.life.store
        assert isinstance(followed, IndexedStore)
        behind, now = followed.inner, at.clock.now
        await behind.erase(at.ref("a"), 0)
        await behind.append(at.ref("b"), Append(timestamp=now, retire_from=0))
        for name in "cd":
            await behind.remove(at.ref(name))
        await behind.create(NewSession(id="d", user_id="ada", timestamp=now))
        assert at.hf.engine.index is not None
        assert (await at.hf.engine.index.index.status()).documents == 16, "nobody has told the index"
        assert set(await at.find("kelp", limit=4, role="user")) == {"e#0", "f#0", "g#0", "h#0"}
