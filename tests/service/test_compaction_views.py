"""Compactions next to the messages that they replace: facts that are kept and lost."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.errors import InvalidRequest
from holdfast.sessions.compaction_views import iter_facts, view_block, view_stored_compaction
from tests.service.summary_kit import TELLING, desk


def test_facts_are_names_identifiers_numbers_and_dates() -> None:
    text = 'We meet Mila in Oslo on May 20 or 2026-05-21; ticket HAT-204, code 4417, at most 4,600 euros. {"name": "Bryggen"}'
    found = dict(iter_facts(text))
    assert found == {
        "May 20": "date",
        "2026-05-21": "date",
        "HAT-204": "identifier",
        "4417": "number",
        "20": "number",
        "4,600": "number",
        "Mila": "name",
        "Oslo": "name",
        "May": "name",
        "Bryggen": "name",
    }


async def test_a_digest_is_compared_with_its_messages() -> None:
    """Every fact of the range is either kept or lost, and kept facts are in the prompt."""
    roster = holdfast.Roster(context=holdfast.settings.ContextSettings("digest", {"budget": 600}))
    async with holdfast.open("sqlite://:memory:", roster=roster) as hf:
        session = await hf.session("trip")
        for number in range(40):
            async with session.turn(f"In town {number + 100}, is the parking code of Mila K-{number + 4711}?") as turn:
                turn.add(f"Yes, it is; the hotel Havnehjem {number + 300} costs {number + 500} euros.")
        view = await view_block(hf.engine, session.ref, session.responder, "next", "digest", limit=5)
        assert view is not None
        log = {entry.seq: entry for entry in await session.entries()}
        expected = {
            word.casefold()
            for seq, entry in log.items()
            if view.first <= seq <= view.last
            for word, _ in iter_facts(entry.message.text)
        }
        kept, lost = ({fact.text.casefold() for fact in facts} for facts in (view.kept, view.lost))
        assert kept | lost == expected
        assert not kept & lost
        assert (view.kept_count, view.lost_count) == (len(kept), len(lost))
        for fact in (*view.kept, *view.lost):
            assert 1 <= len(fact.seqs) == len({*fact.seqs}) <= 3
            assert all(fact.text.casefold() in log[seq].message.text.casefold() for seq in fact.seqs)
        prompt = "\n".join(str(one["content"]) for one in (await session.context(budget=600)).messages).casefold()
        assert all(word in prompt for word in kept)
        assert lost
        assert [one.seq for one in view.sources] == list(range(view.first, view.first + 5))
        assert view.has_more
        rest = await view_block(hf.engine, session.ref, session.responder, "next", "digest", after=view.last - 1)
        assert rest is not None
        assert ([one.seq for one in rest.sources], rest.has_more) == ([view.last], False)
        assert await view_block(hf.engine, session.ref, session.responder, "next", "summary") is None
        with pytest.raises(InvalidRequest, match="block must be"):
            await view_block(hf.engine, session.ref, session.responder, "next", "poem")


async def test_a_stored_summary_is_compared_with_its_messages() -> None:
    async with desk(lambda _: f"{TELLING} Nothing else.") as at:
        await at.talk(20)
        await (await at.session()).compact(summarizer_llm="pen")
        (live,) = await at.find("live")
        view = await view_stored_compaction(at.hf.engine, (await at.session()).ref, live)
        assert (view.kind, view.first, view.last, view.text) == ("summary", live.first, live.last, live.text)
        assert view.scanned == live.last - live.first + 1
