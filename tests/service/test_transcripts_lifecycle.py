"""Transcripts over the lifecycle of sessions: edits, ends, failures and names."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HookFailed, StoreUnavailable
from holdfast.hooks.transcripts import make_earlier_path, make_file_name
from tests.contract.kit import assistant, user
from tests.service.transcripts_kit import REF, describe_file, end, make, open_store_with_transcripts, say

# -- changes ---------------------------------------------------------------------


async def test_erased_text_is_in_no_file_after_a_crash(tmp_path: Path) -> None:
    """The file is deleted before the text is erased, and is written again by the next write."""
    url = f"sqlite:///{tmp_path}/chat.db"
    path = tmp_path / "t" / "s1.jsonl"
    async with open_store_with_transcripts(tmp_path, url=url) as (store, transcripts):
        await make(store)
        await say(store, user("my PIN is 4711"), assistant("noted"))
        await transcripts.wait_until_settled()
        inner: Any = store.inner  # type: ignore[attr-defined]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inner, "erase", partial(erase_and_fail, inner.erase))
            patch.setattr(transcripts, "note", lambda *_, **__: None)  # the process ends
            with pytest.raises(StoreUnavailable):
                await store.erase(REF, 0)
        assert list(path.parent.iterdir()) == []
    async with open_store_with_transcripts(tmp_path, url=url) as (store, transcripts):
        await say(store, user("more"))
        await transcripts.wait_until_settled()
    assert describe_file(path) == ["[s1]", "[erased]", "noted", "more"]


async def erase_and_fail(erase: Any, *args: Any, **options: Any) -> None:
    await erase(*args, **options)
    raise StoreUnavailable("the process ends")


async def test_text_that_is_erased_during_an_update_is_in_no_file(tmp_path: Path) -> None:
    """An update that has read the text before does not write it afterwards."""
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        inner: Any = store.inner  # type: ignore[attr-defined]
        read, erased = inner.entries, asyncio.Event()

        async def entries(*args: Any, **options: Any) -> Any:
            found = await read(*args, **options)
            erased.set()
            await asyncio.sleep(0)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inner, "entries", entries)
            patch.setattr(inner, "for_tenant", lambda _: inner)
            await say(store, user("my PIN is 4711"), assistant("noted"))
            await erased.wait()
            await store.erase(REF, 0)
            await transcripts.wait_until_settled()
        assert describe_file(tmp_path / "t" / "s1.jsonl") == ["[s1]", "[erased]", "noted"]


# -- failures ------------------------------------------------------------------


async def test_failure_is_logged_without_content_and_repaired(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="holdfast.transcripts")
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await transcripts.wait_until_settled()
        path = tmp_path / "t" / "s1.jsonl"
        path.mkdir()
        await say(store, user("my PIN is 4711"))
        await transcripts.wait_until_settled()
        (record,) = caplog.records
        assert record.fields == {"session_id": "s1", "error": "Is a directory"}  # type: ignore[attr-defined]
        with pytest.raises(HookFailed, match="could not be written: Is a directory"):
            await transcripts(await end(store, "close"))
        path.rmdir()
        await say(store, user("two"))
        await transcripts.wait_until_settled()
        assert describe_file(path) == ["[s1]", "my PIN is 4711", "two"]
    assert "4711" not in caplog.text


# -- names ---------------------------------------------------------------------


IDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300),
    st.text("aAbB.-_~@/\\ \0:", min_size=1, max_size=6),
    st.sampled_from(["con", "NUL", "aux.txt", "com1", "..", ".", "a.", "a", "A", "ä", "a\u0308", "x" * 500, "s1@5"]),
)
OWNERS = st.one_of(st.just("default"), st.sampled_from(["ada", "Ada", "default/s1"]), IDS)


@given(st.lists(st.tuples(OWNERS, OWNERS, IDS), unique=True, min_size=2, max_size=20))
def test_no_two_sessions_share_a_file(sessions: list[tuple[str, str, str]]) -> None:
    names = [make_file_name(*session) for session in sessions]
    folded = {name.casefold() for name in names} | {make_earlier_path(Path(name), 5).name.casefold() for name in names}
    assert len(folded) == 2 * len(sessions)
    for name in names:
        assert name.isascii()
        assert name.isprintable()
        assert len(name) <= 160
        assert not set(name) & set('/\\:*?"<>| ')
        assert not name.startswith(".")
        assert name.split(".")[0] not in {"con", "prn", "aux", "nul", "com1", "lpt1"}
