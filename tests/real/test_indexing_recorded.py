"""The recorded sessions in an index: dropped and made anew it answers the same."""

from __future__ import annotations

from typing import Any

from holdfast.holdfast import Holdfast
from holdfast.recall.base import Lookup, Space
from holdfast.recall.terms import extract_terms
from tests.contract.index_kit import clear

QUESTIONS = ("cancel my flight", "reservation for two passengers", "refund to gift card", "SFO to JFK", "checked bags")


async def _answers(hf: Holdfast) -> list[Any]:
    service, found = hf.engine.index, []
    assert service is not None
    for question in QUESTIONS:
        for channel in ("talk", "tool"):
            lookup = Lookup(space=Space("talk", "ada"), terms=tuple(extract_terms(question).counts), channel=channel)
            given = await service.index.lookup(lookup)
            hits = sorted((one.session, one.seq, one.place, tuple(one.counts.items())) for one in given.found)
            found.append((given.documents, given.length, given.frequencies, hits))
    return found


async def test_an_index_of_the_recorded_sessions_is_the_same_when_it_is_made_anew(
    recordings: list[dict[str, Any]],
) -> None:
    async with Holdfast("sqlite://:memory:") as hf:
        for recorded in recordings[:60]:
            session = await hf.session(recorded["id"], user_id="ada")
            await session.append(recorded["messages"])
        service = hf.engine.index
        assert service is not None
        await service.settled()
        before = await _answers(hf)
        assert all(hits for _, _, _, hits in before[::2])
        await clear(service.index)
        assert (await service.status()).documents == 0
        rebuilt = await service.rebuild()
        assert rebuilt.sessions == 60
        assert await _answers(hf) == before
        await service.rebuild()
        assert await _answers(hf) == before
