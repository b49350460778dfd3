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

import holdfast
from holdfast.domain.session import EndReason
from holdfast.errors import HookFailed, StoreUnavailable
from holdfast.hooks import EndedSession
from holdfast.hooks.transcripts import Transcripts, make_earlier_path, make_file_name
from holdfast.stores.sessions import NewSession
from tests.contract.kit import assistant, calls, result, user
from tests.service.transcripts_kit import NOW, REF, describe_file, end, lines, make, open_store_with_transcripts, say

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


async def test_replaced_session_leaves_no_old_lines(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one"), assistant("two"), user("three"))
        await transcripts.wait_until_settled()
        new = NewSession(id="s1", user_id="default", timestamp=NOW + 60_000)
        await store.replace(new, [user("other"), assistant("words")])
        await transcripts.wait_until_settled()
        path = tmp_path / "t" / "s1.jsonl"
        assert describe_file(path) == ["[s1]", "other", "words"]
        assert list(path.parent.iterdir()) == [path]


async def test_different_log_under_the_same_id_is_detected(tmp_path: Path) -> None:
    """It was created at the same moment by a process without transcripts."""
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one", timestamp=1), assistant("two", timestamp=2))
        await transcripts.wait_until_settled()
        inner = store.inner  # type: ignore[attr-defined]
        new = NewSession(id="s1", user_id="default", timestamp=NOW)
        await inner.replace(new, [user("other", timestamp=1), assistant("words", timestamp=3)])
        await say(store, user("more"))
        await transcripts.wait_until_settled()
        assert describe_file(tmp_path / "t" / "s1.jsonl") == ["[s1]", "other", "words", "more"]


# -- ends ----------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["ttl", "cap", "close"])
async def test_ending_a_session_completes_its_file(tmp_path: Path, reason: EndReason) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store.inner, user("one"), calls("c1"), result("c1"))  # type: ignore[attr-defined]
        await transcripts(await end(store, reason))
        path = tmp_path / "t" / "s1.jsonl"
        assert describe_file(path) == ["[s1]", "one", None, "seen"]
        await transcripts(EndedSession(store, await store.get(REF), (await store.endings(due=NOW))[0]))
        assert describe_file(path) == ["[s1]", "one", None, "seen"]


async def test_ending_a_session_updates_changed_fields(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one"), assistant("two"), state_delta={"step": 1})
        await transcripts.wait_until_settled()
        await store.rate(REF, {0: 0.5})
        await say(store, state_delta={"step": 2})
        await transcripts(await end(store, "close"))
        header, first, second = lines(tmp_path / "t" / "s1.jsonl")
        assert (header["state"], first["importance"], second["seq"]) == ({"step": 2}, 0.5, 1)


async def test_empty_session_gets_a_header_when_it_ends(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        assert list((tmp_path / "t").iterdir()) == []
        await transcripts(await end(store, "close"))
        assert describe_file(tmp_path / "t" / "s1.jsonl") == ["[s1]"]


# -- integration -----------------------------------------------------------------


async def test_library_turns_are_written_to_transcripts(tmp_path: Path) -> None:
    path = tmp_path / "t" / "s1.jsonl"
    async with holdfast.open("sqlite://:memory:", hooks=[Transcripts(tmp_path / "t")]) as hf:
        session = await hf.session("s1")
        async with session.turn("Where is my order?") as turn:
            turn.add({"role": "assistant", "content": "On its way."})
        other = await hf.session("s2")
        async with other.turn("my PIN is 4711") as turn:
            turn.add({"role": "assistant", "content": "Noted."})
        await hf.erase(other.ref, 0)
        gone = await hf.session("s3")
        await gone.append([{"role": "user", "content": "forget me"}])
        assert await hf.delete(gone.ref)
    assert describe_file(path) == ["[s1]", "Where is my order?", "On its way."]
    assert describe_file(tmp_path / "t" / "s2.jsonl") == ["[s2]", "[erased]", "Noted."]
    assert sorted(file.name for file in path.parent.iterdir()) == ["s1.jsonl", "s2.jsonl"]


async def test_expired_session_keeps_its_transcript(tmp_path: Path) -> None:
    now, path = NOW, tmp_path / "t" / "s1.jsonl"
    hooks = [Transcripts(tmp_path / "t")]
    async with holdfast.open("sqlite://:memory:", hooks=hooks, clock=lambda: now, session_ttl="1h") as hf:
        await (await hf.session("s1")).append([{"role": "user", "content": "yesterday"}])
        now += 3_600_000
        await hf.sweep()
        await (await hf.session("s1")).append([{"role": "user", "content": "today"}])
    assert describe_file(path) == ["[s1]", "today"]
    assert describe_file(path.with_name(f"s1@{NOW}.jsonl")) == ["[s1]", "yesterday"]


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


async def test_failed_write_is_repeated_when_the_store_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "t" / "s1.jsonl"
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        path.mkdir()
        await say(store, user("one"))
        await transcripts.wait_until_settled()
        path.rmdir()
    assert describe_file(path) == ["[s1]", "one"]


async def test_folder_that_cannot_be_used_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "t").touch()
    with pytest.raises(StoreUnavailable, match=r"transcripts cannot be written to .*File exists"):
        async with open_store_with_transcripts(tmp_path):
            pass


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


@pytest.mark.parametrize("name", ["s1", "sess_0123456789abcdef", "support-42", "a.b_c-d", "0"])
def test_safe_id_is_the_file_name(name: str) -> None:
    assert make_file_name("default", "default", name) == f"{name}.jsonl"
    assert make_file_name("default", "ada", name) != f"{name}.jsonl"
    assert make_file_name("acme", "default", name) != f"{name}.jsonl"
