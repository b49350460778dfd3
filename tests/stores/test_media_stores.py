"""Media on every store: stored once, returned unchanged, and deleted with the last reference."""

from __future__ import annotations

from typing import Any

from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.stores.base import Store
from tests.given_store import HoldfastOn
from tests.unit.media_kit import anthropic, b64, image_url, png

PICTURE, OTHER = png(size=50_000), png(320, 200, size=9_000, seed=3)
LINES = "\r\n".join(b64(OTHER)[at : at + 60] for at in range(0, len(b64(OTHER)), 60))
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(PICTURE), anthropic(PICTURE)]},
    {"role": "assistant", "content": "A picture."},
    {
        "role": "user",
        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": LINES}}],
    },
]


async def test_stored_media_are_returned_unchanged(store: Store) -> None:
    """Also to another client, in exports and in forks; erasing one message keeps the others."""
    async with HoldfastOn(store) as hf:
        session = await hf.session("s")
        await session.append(SAID)
        async with session.turn(SAID[0]) as turn:
            assert turn.messages[-1]["content"][1:] == [image_url(PICTURE), image_url(PICTURE)]
            turn.add("ok")
        fork = await session.fork(0)
    async with HoldfastOn(store) as hf:
        session = await hf.session("s")
        assert (await session.messages())[:3] == SAID
        assert await (await hf.session(fork.id)).messages() == SAID[:2]
        exported = await hf.export(session.ref)
        arrival = await hf.import_(exported, session_id="t")
        assert (await hf.export(arrival.session.ref))["messages"] == exported["messages"]
        await hf.erase(session.ref, 2)
        assert (await session.messages())[3] == SAID[0]
        assert (await session.verify(), await fork_of(hf, fork.id)) == (5, 2)


async def fork_of(hf: Holdfast, name: str) -> int:
    return await (await hf.session(name)).verify()


async def test_media_are_stored_once(store: Store) -> None:
    """By what the store has of a session, whatever was retired; and nothing of it when all that names it is gone."""
    async with HoldfastOn(store) as hf:
        session = await hf.session("s")
        for _ in range(5):
            await session.append(SAID[:1])
        ref = SessionRef("default", "s")
        entries = await hf.store.entries(ref)
        hashes = {one.hash for entry in entries for part in entry.message.media for one in part.held}
        assert len(hashes) == 1
        for entry in entries:
            await hf.erase(ref, entry.seq)
        assert await hf.store.media(ref, hashes) == {}
