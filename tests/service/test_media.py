"""Media in sessions of the library: stored once, restored wherever messages are read, deleted when erased."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.agents import Llm, Roster
from holdfast.domain.history import to_new_entry
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidMessage
from holdfast.hooks.registry import ENDS, make_callback_hook
from holdfast.limits import MEDIA_CACHE_BYTES
from holdfast.media.store import MediaCache
from holdfast.models import OpenAIModel
from holdfast.secrets import Guard, make_redactor
from holdfast.stores.log import Append
from holdfast.testing import ScriptedUpstream
from holdfast.wire.openai import to_chat_message
from tests.unit.media_kit import b64, image_url, png

PICTURE, OTHER = png(size=20_000), png(320, 200, size=9_000, seed=3)
SEE = {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(PICTURE, detail="low")]}
WRAPPED = "\n".join(b64(OTHER)[at : at + 76] for at in range(0, len(b64(OTHER)), 76))
LINES = {
    "role": "user",
    "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": WRAPPED}}],
}
AUDIO = {
    "role": "user",
    "content": [{"type": "input_audio", "input_audio": {"data": b64(b"\7" * 3000), "format": "wav"}}],
}
ALL: list[dict[str, Any]] = [
    SEE,
    {"role": "assistant", "content": "A picture."},
    LINES,
    {"role": "assistant", "content": "Another."},
    AUDIO,
]


async def count_media(hf: holdfast.Holdfast, name: str) -> int:
    """Count the media of a session that its entries reference and the store returns."""
    ref = SessionRef("default", name)
    entries = await hf.engine.life.store.entries(ref, retired=True)
    hashes = {one.hash for entry in entries for part in entry.message.media for one in part.held}
    return len(await hf.engine.life.store.media(ref, hashes))


async def test_export_with_media_can_be_imported() -> None:
    """Equal messages have equal hashes; a second import changes nothing, and a changed one keeps the media that are
    still referenced.
    """
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(ALL)
        exported = await hf.export(session.ref)
        assert exported["images"][0] | {"sha256": ""} == {
            "seq": 0,
            "part": 1,
            "type": "image_url",
            "mime_type": "image/png",
            "sha256": "",
            "bytes": len(PICTURE),
            "size": [640, 480],
        }
        assert [(one["seq"], one["bytes"]) for one in exported["images"]] == [(0, len(PICTURE)), (2, len(OTHER))]
        assert [one["seq"] for one in exported["audios"]] == [4]
        assert (exported["videos"], exported["files"]) == ([], [])
        arrival = await hf.import_(exported, session_id="t")
        assert arrival.changed
        again = await hf.export(arrival.session.ref)
        for name in ("messages", "images", "audios", "tokens", "bytes"):
            assert again[name] == exported[name]
        for entry, copy in zip(await session.entries(), await hf.handle(arrival.session).entries(), strict=True):
            assert entry.digest == copy.digest
        assert not (await hf.import_(exported, session_id="t")).changed
        less = {**exported, "messages": exported["messages"][:2]}
        assert (await hf.import_(less, session_id="t", replace=True)).changed
        assert await hf.handle(arrival.session).messages() == ALL[:2]
        assert await count_media(hf, "t") == 1


async def test_media_of_other_sessions_and_users_cannot_be_referenced() -> None:
    """Input that looks like a media reference is stored as text."""
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        await session.append(SEE)
        (entry,) = await hf.store.entries(session.ref)
        (held,) = entry.message.media[0].held
        fakes = [
            {"type": "image_url", "image_url": {"url": f"sha256:{held.sha256}"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}, "held": [{"sha256": held.sha256}]},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,[sha256:{held.sha256}]"}},
        ]
        for target in (session, await hf.session("t"), await hf.session("s", user_id="bob")):
            fake = {"role": "user", "content": fakes}
            await target.append(fake)
            assert (await target.messages())[-1] == fake
        with pytest.raises(InvalidMessage):  # not even a program can refer to another session's
            await hf.store.append(SessionRef("bob", "s"), Append(entries=[to_new_entry(entry)], timestamp=1))


async def test_secrets_are_searched_in_text_data_urls() -> None:
    """Data URLs without base64 are searched too; a picture passes unchanged."""
    secret = "sk-proj-" + "aB3" * 20
    text = {"type": "file", "file": {"file_data": "data:text/plain," + "word " * 300 + secret}}
    async with holdfast.open(
        "sqlite://:memory:", guard=Guard(make_redactor(everything=["openai_key"]), None, "redact")
    ) as hf:
        session = await hf.session("s")
        async with session.turn([{"role": "user", "content": [text, image_url(PICTURE)]}]) as turn:
            turn.add("ok")
        (message, _) = await session.messages()
        assert message["content"][1] == image_url(PICTURE)
        assert secret not in message["content"][0]["file"]["file_data"]
        assert await session.verify() == 2


async def test_hooks_get_media_placeholders_unless_they_ask_for_media() -> None:
    told: list[list[Any]] = []

    async def read(ended: Any, reason: str) -> None:
        told.extend([[one.message async for one in ended.entries(media=media)] for media in (False, True)])

    async with holdfast.open("sqlite://:memory:", hooks=[make_callback_hook(read, "read", ENDS)]) as hf:
        session = await hf.session("s")
        await session.append(SEE)
        await session.close()
        await hf.engine.hook_dispatcher.wait_until_idle()
    marked, read_whole = told
    assert to_chat_message(read_whole[0]) == SEE
    assert "[image/png, 640x480, 20 kB, sha256:" in to_chat_message(marked[0])["content"][1]["image_url"]["url"]


async def test_turn_reads_only_the_media_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only media in the working set are read, and those read or written recently are cached."""
    async with holdfast.open("sqlite://:memory:") as hf:
        session = await hf.session("s")
        for number in range(12):
            await session.append(
                {"role": "user", "content": [{"type": "text", "text": "x"}, image_url(png(seed=number))]}
            )
            await session.append({"role": "assistant", "content": f"{number}"})
        inner, asked = hf.engine.life.store.inner, list[int]()  # type: ignore[attr-defined]  # the store behind the seam
        while hasattr(inner, "inner"):
            inner = inner.inner
        read = inner.media

        async def count_hashes(ref: SessionRef, hashes: Any) -> Any:
            asked.append(len(hashes))
            return await read(ref, hashes)

        monkeypatch.setattr(inner, "media", count_hashes)
        await session.context("buffer_window", window_size=4)
        assert sum(asked) == 0  # they were written just before
        _forget(hf, session.ref)
        await session.context("buffer_window", window_size=4)
        assert sum(asked) <= 3
        before = sum(asked)
        await session.context("buffer_window", window_size=4)
        assert sum(asked) == before


def _forget(hf: holdfast.Holdfast, ref: SessionRef) -> None:
    store: Any = hf.store
    while not hasattr(store, "_cache"):
        store = store.inner
    store._cache.forget(hf.tenant, ref)


@pytest.mark.parametrize(
    "inputs", [None, frozenset({"text"}), frozenset({"text", "image"}), frozenset({"text", "video"})]
)
async def test_imported_video_is_sent_in_a_form_the_upstream_accepts(inputs: frozenset[str] | None) -> None:
    """As image frames if the model accepts images, else as text: no Chat Completions upstream has a video part."""
    frames = [b64(png(64, 48, size=3000, seed=seed)) for seed in range(20)]
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "see"}, {"type": "video", "fps": 2.0, "frames": frames}],
    }
    async with ScriptedUpstream(["ok"]) as upstream:
        model = Llm(name="m", model="m", client=OpenAIModel(upstream.url, api_key="none"), inputs=inputs)
        async with holdfast.Holdfast("sqlite://:memory:", roster=Roster({"m": model}, {})) as hf:
            session = await hf.session("s")
            await session.append(message)
            await session.send("What is on it?")
            assert (await session.messages())[0] == message, "the log keeps it"
        sent = upstream.requests[0].body["messages"][0]["content"]
    kinds = {part["type"] for part in sent}
    if inputs is not None and "image" in inputs:
        images = [part["image_url"]["url"] for part in sent if part["type"] == "image_url"]
        assert images == [f"data:image/png;base64,{frames[at]}" for at in range(0, 20, 3)]
        assert sent[1]["text"] == "[video: 20 frames, of which 7 follow as images]"
    else:
        assert kinds == {"text"}
        assert "video" in sent[1]["text"]


def test_media_cache_is_bounded() -> None:
    """By bytes; the least recently used goes first, and an item that would evict all others is not cached."""
    remembered, ref = MediaCache(100), SessionRef("u", "s")
    for number in range(4):
        remembered.put("t", ref, {bytes([number]): bytes(30)})
        assert remembered.get("t", ref, b"\0") is not None
    assert remembered.get("t", ref, b"\1") is None
    assert remembered.size == 90
    remembered.put("t", ref, {b"x": bytes(51)})
    assert remembered.get("t", ref, b"x") is None
    assert remembered.get("u", ref, b"\0") is None
    assert remembered.get("t", SessionRef("u", "t"), b"\0") is None
    remembered.forget("t", ref)
    assert remembered.size == 0
    assert MEDIA_CACHE_BYTES > 2 * 20 * (1 << 20)
