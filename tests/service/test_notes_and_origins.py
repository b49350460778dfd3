"""Notes and origins in sessions of the library: kept and shown, never sent; carried, redacted and erased with the log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import InvalidMessage, TooLarge
from holdfast.hooks.transcripts import Transcripts
from holdfast.limits import MESSAGE_BYTES

MEMORY = "sqlite://:memory:"
HANDOFF = {"event": "handoff", "to": "billing"}


def read_only_file(folder: Path) -> list[bytes]:
    """Return the lines of the only transcript in a folder."""
    (file,) = folder.rglob("*.jsonl")
    return file.read_bytes().splitlines()


# -- notes -----------------------------------------------------------------------


async def test_transcripts_show_notes_and_origins(tmp_path: Path) -> None:
    """In the order of the log, with what an edit retired."""
    async with Holdfast(f"sqlite:///{tmp_path}/chat.db", hooks=[Transcripts(tmp_path)]) as hf:
        session = await hf.session(user_id="ada", session_id="s")
        await session.append({"role": "user", "content": "hi", "origin": {"raw": True}}, note=HANDOFF)
        await session.append("again", retire_from=1)
        await session.append(note={"n": 2})
        await session.close()
        entries = await session.entries(retired=True)
    head, *lines = [json.loads(line) for line in read_only_file(tmp_path)]
    assert (head["type"], head["id"]) == ("session", "s")
    assert [(line["seq"], line["role"], line.get("origin")) for line in lines] == [
        (entry.seq, entry.message.role, entry.message.origin) for entry in entries
    ]
    assert [line.get("retired_by") for line in lines] == [None, 2, None, None]


# -- origins ---------------------------------------------------------------------


async def test_an_origin_counts_toward_the_size_of_its_message() -> None:
    async with holdfast.open(MEMORY) as hf:
        session = await hf.session(user_id="ada")
        text = {"x": "y " * (MESSAGE_BYTES // 4)}
        await session.append({"role": "user", "content": "hi", "origin": text})
        with pytest.raises(TooLarge):
            await session.append({"role": "user", "content": "hi", "origin": [text, text]})
        with pytest.raises(TooLarge):
            await session.append(note=[text, text])
        with pytest.raises(InvalidMessage, match="origin"):
            await session.append(note={"x": object()})
