"""Media in sessions of the library: stored once, restored wherever messages are read, deleted when erased."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.domain.history import to_new_entry
from holdfast.domain.session import SessionRef
from holdfast.errors import InvalidMessage
from holdfast.secrets.guard import Guard
from holdfast.secrets.redactor import make_redactor
from holdfast.stores.log import Append
from tests.unit.media_kit import image_url, png

PICTURE, OTHER = png(size=20_000), png(320, 200, size=9_000, seed=3)
SEE = {"role": "user", "content": [{"type": "text", "text": "see"}, image_url(PICTURE, detail="low")]}


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
