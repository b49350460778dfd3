"""Search: hits, times and arguments; whatever the index returns is checked against the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.session import Session, SessionRef
from holdfast.indexes.indexed_store import IndexedStore
from holdfast.search.conversations import search_conversations
from holdfast.search.queries import SearchOptions, SearchResults
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession
from tests.service.search_kit import DAY, open_talks

# -- hits ----------------------------------------------------------------------


async def test_results_can_be_encoded_as_json() -> None:
    """And decoded again."""
    async with open_talks() as at:
        await at.add_messages("s", "Soup, please.", "With kelp?", "No.")
        results = await at.hf.search("kelp", "ada", neighbours=1, limit=1)
        assert results.hits
        assert msgspec.json.decode(msgspec.json.encode(results), type=SearchResults) == results


# -- times ---------------------------------------------------------------------


async def test_question_about_a_day_finds_messages_from_it_or_about_it() -> None:
    """Much else was said since, and it is newer."""
    async with open_talks() as at:
        at.clock.now += 3 * DAY  # a Friday
        await at.add_messages("then", "The ferry broke down.", "I see.")
        at.clock.now += 2 * DAY
        await at.add_messages("about", "On Friday we waited for two hours.", "How dull.")
        at.clock.now += 2 * DAY
        await at.add_messages("later", "Soup is ready.", "Enjoy it.")
        found = await at.find("What happened last Friday?")
        assert [hit.split("#")[0] for hit in found[:3]] == ["about", "then", "then"]
        assert "later#0" in found


async def test_filter_that_does_not_apply_is_noted() -> None:
    async with open_talks() as at:
        await at.add_messages("s", "kelp soup")
        assert (await at.hf.search("kelp", "ada", time="filter")).notes == (
            "not filtered by time: the query does not ask for messages from some time",
        )


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


async def test_neighbouring_hits_are_read_together(tmp_path: Path) -> None:
    """A session, and each run of its messages, is read once for any number of hits."""
    async with open_talks(url=f"sqlite:///{tmp_path}/chat.db") as at:
        await at.add_messages("s", *[f"kelp soup, day {number}" for number in range(8)])
        store, reads = at.hf.engine.store, list[str]()
        for name in ("get", "entries"):
            method = getattr(store, name)

            async def record_read(*args: Any, method: Any = method, name: str = name, **more: Any) -> Any:
                reads.append(name)
                return await method(*args, **more)

            setattr(store, name, record_read)
        assert len(await at.find("kelp soup", limit=8)) == 8
        assert sorted(reads) == ["entries", "get"]


async def test_search_for_a_prompt_reads_only_what_it_uses(tmp_path: Path) -> None:
    """There is no next page."""
    async with open_talks(url=f"sqlite:///{tmp_path}/chat.db") as at:
        for number in range(6):
            await at.add_messages(f"s{number}", "kelp soup")
        read: list[str] = []
        store = at.hf.engine.store
        get = store.get

        async def record_read(ref: SessionRef) -> Session:
            read.append(ref.id)
            return await get(ref)

        store.get = record_read  # type: ignore[method-assign]  # to be told what is read
        results = await search_conversations(at.hf.engine, "ada", "kelp soup", SearchOptions(limit=3, bare=True))
        assert [hit.session_id for hit in results.hits] == read
        assert (results.cursor, results.has_more, [hit.highlights for hit in results.hits]) == (None, False, [()] * 3)
