"""Recall on every store: stored text is found and removed text is not, after index loss and with concurrent servers;
users are isolated.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from holdfast.domain.session import SessionRef
from holdfast.holdfast import Holdfast
from holdfast.recall.base import Space
from tests.service.recall_kit import (
    LetterEmbedder,
    Place,
    add_conversations,
    everywhere,
    search_all,
    service,
)

shared = pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
"""Where all servers have one index."""
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"session_id": "a"},
    {"session_id": "nowhere"},
    {"role": "user"},
    {"role": "tool"},
    {"agent": "default"},
    {"since": 0},
    {"until": 1},
    {"session_level": True},
    {"mode": "vector"},
    {"mode": "hybrid"},
)


# -- what is found -----------------------------------------------------------------


@everywhere
async def test_stored_text_is_found_and_retired_erased_or_deleted_text_is_not(place: Place) -> None:
    async with place.server() as hf:
        await add_conversations(hf)
        assert (await hf.search("gate code", "ada")).hits[0].id == "a#0"
        assert (await hf.search("ferry", "ada")).hits[0].snippet == "The ferry leaves at nine."
        assert (await hf.search("order ORD-17", "ada")).hits[0].id == "b#0"
        assert (await hf.search("会議", "ada")).hits[0].id == "b#1"
        for gone in ("walrus", "swordfish", "platypus"):
            assert not (await hf.search(gone, "ada")).hits, gone
        await hf.delete_user("ada")
        assert not any(await search_all(hf))
        assert (await service(hf).index.status()).documents == 0


@everywhere
async def test_users_with_the_same_words_never_see_each_others_text(place: Place) -> None:
    async with place.server(index={"embedder": LetterEmbedder(), "mode": "hybrid"}) as hf:
        await add_conversations(hf, "ada")
        only = await hf.session("z", user_id="bob")
        await only.append({"role": "user", "content": "gate code soup kelp ferry order ORD-17 会議"})
        await service(hf).settled()
        for asked in FILTERS:
            for found in await search_all(hf, "bob", **asked):
                assert {hit.session_id for hit in found} <= {"z"}, asked
            for found in await search_all(hf, "ada", **asked):
                assert {hit.session_id for hit in found} <= {"a", "b"}, asked
            for nobody in (" ", "Ada", "ada ", "ad", "ada%", "*", "ada\x00"):
                assert not any(await search_all(hf, nobody, **asked)), nobody
        async with hf.serve_tenant("other") as other:
            assert not any(await search_all(other, "ada"))


# -- index loss --------------------------------------------------------------------


# -- concurrent servers ----------------------------------------------------------------


@shared
async def test_two_servers_feeding_the_same_sessions_write_each_document_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with place.server() as one, place.server() as two:
        both = (one, two)

        async def write(hf: Holdfast, number: int) -> None:
            for at in range(8):
                session = await hf.session(f"s{at % 3}", user_id="ada")
                await session.append({"role": "user", "content": f"gate code {number} {at}"})
                await service(hf).settled()

        await asyncio.gather(*(write(hf, number) for number, hf in enumerate(both)))
        await asyncio.gather(one.erase(SessionRef("ada", "s0"), 0), two.erase(SessionRef("ada", "s1"), 0))
        await asyncio.gather(*(service(hf).settled() for hf in both), *(service(hf).walk() for hf in both))
        assert await search_all(one) == await search_all(two)
        held = await service(one).index.list_digests(Space("talk", "ada"), "s2")
        assert len(held) == len({seq for seq, _ in held}) == 4
        assert [service(hf).last_error for hf in both] == [None, None]
    await place.check()
    assert not caplog.records


# -- memories ------------------------------------------------------------------------
