"""Transcripts over the lifecycle of sessions: edits, moves, ends, failures, names, and files of other programs."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.domain.messages import Message
from holdfast.domain.session import EndReason
from holdfast.durations import LATEST_TIME
from holdfast.errors import HookFailed, InvalidRequest, SessionExists, StoreUnavailable
from holdfast.hooks import EndedSession
from holdfast.hooks.transcript_files import make_earlier_name, make_file_name, parse_timestamp, parse_transcript
from holdfast.hooks.transcripts import Transcripts, hold_file
from holdfast.stores import open_store
from holdfast.stores.sessions import NewSession
from tests.contract.kit import assistant, calls, result, user
from tests.service.transcripts_kit import NOW, REF, describe_file, end, lines, make, open_store_with_transcripts, say
from tests.waits import until
from tests.words import says

# -- changes ---------------------------------------------------------------------


async def test_erased_text_is_in_no_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("my PIN is 4711", metadata={"user": "4711"}), assistant("noted"))
        await transcripts.wait_until_settled()
        await store.erase(REF, 0)
        await transcripts.wait_until_settled()
        path = tmp_path / "t" / "s1.jsonl"
        assert describe_file(path) == ["[s1]", "[erased]", "noted"]
        assert not any(says(one.read_text("utf-8"), "4711") for one in path.parent.iterdir())
        assert list(path.parent.iterdir()) == [path]


async def test_erasure_is_completed_after_a_crash(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with open_store_with_transcripts(tmp_path, url=url) as (store, transcripts):
        await make(store)
        await say(store, user("my PIN is 4711"), assistant("noted"))
        await transcripts.wait_until_settled()
        transcripts.before_change("default", REF, "erased")  # and nothing after it: the process ends
        assert len(list((tmp_path / "t").iterdir())) == 2
    (tmp_path / "t" / "s1.jsonl.part").write_text("4711")
    store = await open_store(url, tenant="default")
    await store.erase(REF, 0)
    await store.close()
    path = tmp_path / "t" / "s1.jsonl"
    assert b"4711" in path.read_bytes()
    async with open_store_with_transcripts(tmp_path, url=url) as (_, transcripts):
        await transcripts.wait_until_settled()
    assert describe_file(path) == ["[s1]", "[erased]", "noted"]
    assert list(path.parent.iterdir()) == [path]


async def test_pins_are_in_the_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one"), assistant("two"))
        await store.annotate(REF, 0, pinned=True)
        await transcripts.wait_until_settled()
        assert [line.get("pinned") for line in lines(tmp_path / "t" / "s1.jsonl")] == [None, True, None]


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


@pytest.mark.parametrize("reason", ["ttl", "cap", "close", "shutdown"])
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


async def test_deleted_session_has_no_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one"))
        await transcripts.wait_until_settled()
        await transcripts(await end(store, "delete", withdrawn=True))
        assert list((tmp_path / "t").iterdir()) == []
        # A session that is removed without an event.
        await make(store)
        await say(store, user("two"))
        await transcripts.wait_until_settled()
        assert await store.remove(REF)
        await transcripts.wait_until_settled()
        assert list((tmp_path / "t").iterdir()) == []


async def test_session_deleted_during_a_write_leaves_no_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store, system_messages=(Message(role="system", content="Help."),))
        path = tmp_path / "t" / "s1.jsonl"
        async with hold_file(path):
            await say(store, user("one"))
            deleted = asyncio.ensure_future(transcripts(await end(store, "delete", withdrawn=True)))
        await deleted
        await transcripts.wait_until_settled()
        assert list(path.parent.iterdir()) == []


async def test_later_session_with_the_same_id_has_its_own_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        await say(store, user("one"))
        await transcripts.wait_until_settled()
        late = await end(store, "ttl", withdrawn=True)
        await make(store, timestamp=NOW + 1)
        await say(store, user("another"))
        await transcripts.wait_until_settled()
        path = tmp_path / "t" / "s1.jsonl"
        first = path.with_name(f"s1@{NOW}.jsonl")
        assert (describe_file(first), describe_file(path)) == (["[s1]", "one"], ["[s1]", "another"])
        await transcripts(late)
        assert (describe_file(first), describe_file(path)) == (["[s1]", "one"], ["[s1]", "another"])
        # Deleting one of them leaves the other.
        await transcripts(await end(store, "delete", withdrawn=True))
        assert list(path.parent.iterdir()) == [first]


async def test_forget_returns_the_number_of_deleted_files(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        for at in range(2):
            await make(store, timestamp=NOW + at)
            await say(store, user("one"))
            await transcripts.wait_until_settled()
            await end(store, "ttl" if at else "cap", withdrawn=True)
        assert await transcripts.forget("default", "default", "s1") == 2
        assert await transcripts.forget("default", "default", "s1") == 0


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
    async with open_store_with_transcripts(tmp_path, pause=3600.0) as (store, transcripts):
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


async def test_failed_write_is_retried_by_itself_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "t" / "s1.jsonl"
    async with open_store_with_transcripts(tmp_path, pause=0.001) as (store, transcripts):
        await make(store)
        path.mkdir()
        await say(store, user("one"))
        await transcripts.wait_until_settled()
        path.rmdir()
        await until(path.exists)
        await transcripts.wait_until_settled()
        assert describe_file(path) == ["[s1]", "one"]
    async with open_store_with_transcripts(tmp_path / "b", pause=3600.0) as (store, transcripts):
        await make(store)
        path = tmp_path / "b" / "t" / "s1.jsonl"
        path.mkdir()
        await say(store, user("one"))
        await transcripts.wait_until_settled()
        path.rmdir()
    assert describe_file(path) == ["[s1]", "one"]


async def test_store_write_does_not_wait_for_a_locked_file(tmp_path: Path) -> None:
    async with open_store_with_transcripts(tmp_path) as (store, transcripts):
        await make(store)
        path = tmp_path / "t" / "s1.jsonl"
        async with hold_file(path) as file:
            await say(store, user("one"))
            assert file.size == 0
        await transcripts.wait_until_settled()
        assert describe_file(path) == ["[s1]", "one"]
        async with hold_file(path):
            with pytest.raises(HookFailed, match="locked by another writer"):
                async with hold_file(path, patience=0.01):
                    pass


async def test_invalid_settings_are_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="fsync must be one of never, end, always, not 'often'"):
        Transcripts(tmp_path, fsync="often")  # type: ignore[arg-type]
    (tmp_path / "t").touch()
    with pytest.raises(StoreUnavailable, match=r"transcripts cannot be written to .*File exists"):
        async with open_store_with_transcripts(tmp_path):
            pass


async def test_fsync_is_called_as_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for fsync, expected in (("never", (False, False)), ("end", (False, True)), ("always", (True, True))):
        async with open_store_with_transcripts(tmp_path / fsync, fsync=fsync) as (store, transcripts):
            synced.clear()
            await make(store)
            await say(store, user("one"))
            await transcripts.wait_until_settled()
            at_once = bool(synced)
            synced.clear()
            await transcripts(await end(store, "close"))
            assert (at_once, bool(synced)) == expected


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
    folded = {name.casefold() for name in names} | {make_earlier_name(name, 5).casefold() for name in names}
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


# -- files of other programs ------------------------------------------------------


FOREIGN = """\
{"type":"session","version":1,"id":"7d4e","timestamp":"2026-05-01T10:00:00Z","agent_id":"ana","source_plugin":"whatsapp"}
{"type":"entry","timestamp":"2026-05-01T10:00:01.5Z","role":"user","content":"Hola","message_id":"m1","sender_id":"+34"}

not JSON, with a secret in it
{"type":"entry","timestamp":"2026-05-01T12:00:02+02:00","role":"assistant","content":"¿Qué tal?","source_plugin":"whatsapp"}
{"type":"compact_boundary","uuid":"x","token_count":1,"turn_index":1}
{"type":"entry","timestamp":"2026-05-01T10:00:03Z","role":"narrator","content":"?"}
{"type":"entry","timestamp":"2026-05-01T10:00:04Z","role":"tool","content":"done"}
[1]
{"type":"entry","timestamp":1777629605,"role":"user","content":"Bien"}
"""


def test_transcript_with_only_the_basic_fields_is_read() -> None:
    read = parse_transcript(FOREIGN.encode().splitlines(keepends=True), "unnamed")
    session = read.session
    assert (session.id, session.agent, session.user_id, read.unreadable, read.blank) == ("7d4e", "ana", None, 4, 1)
    assert [(message.role, message.text) for message in session.messages] == [
        ("user", "Hola"),
        ("assistant", "¿Qué tal?"),
        ("tool", "done"),
        ("user", "Bien"),
    ]
    assert session.fields[0] == {"timestamp": 1777629601500, "metadata": {"message_id": "m1", "user": "+34"}}
    assert [fields["timestamp"] for fields in session.fields][1:] == [1777629602000, 1777629604000, 1777629605000]
    assert read.last == 1777629605000


def test_transcript_without_a_header_is_named_after_its_file() -> None:
    read = parse_transcript([b'{"type":"entry","timestamp":1,"role":"user","content":"Hi"}\n'], "unnamed")
    assert (read.session.id, len(read.session.messages)) == ("unnamed", 1)


async def test_times_that_are_no_date_are_written_as_the_closest_one(tmp_path: Path) -> None:
    """The transcript is continued after a restart, and read again. Numbers of earlier releases count as missing."""
    far = 2**53 - 1
    for _ in range(2):
        async with open_store_with_transcripts(tmp_path, url=f"sqlite:///{tmp_path}/s.db") as (store, transcripts):
            with suppress(SessionExists):
                await make(store, timestamp=far)
            await say(store, user("Hi", timestamp=far))
            await transcripts.wait_until_settled()
    file = tmp_path / "t" / "s1.jsonl"
    header, *entries = lines(file)
    assert {line["timestamp"] for line in (header, *entries)} == {"9999-12-31T23:59:59.999Z"}
    read = parse_transcript(file.read_bytes().splitlines(keepends=True), "unnamed")
    assert (len(entries), read.last) == (2, LATEST_TIME)
    assert read.session.past is not None
    assert read.session.past.created_at == LATEST_TIME
    assert parse_timestamp(far) is None
