"""Which evidence of questions is in the default prompt."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.evaluation import prompt_contents
from benchmarks.evaluation.dataset import Dataset, Query, Sample, Turn
from benchmarks.evaluation.library import make_messages
from benchmarks.evaluation.prompt_contents import measure_prompts
from benchmarks.evaluation.prompt_sessions import MARKER, Run, open_session
from holdfast.context.settings import ContextSettings
from holdfast.holdfast import Holdfast
from holdfast.lifecycle.settings import LifeSettings
from holdfast.wire.sendable import get_own_fields, to_messages

MINUTE = 60_000
DAY = 1_440 * MINUTE
FILLER = "The walk by the river was pleasant and the weather stayed dry until the evening came over the hills. "


def make_sample(*queries: Query, turns: int = 40) -> Sample:
    """A conversation in which two turns say something, and the others do not."""
    said = [f"{FILLER}Stop number {at} had a bench. " * 3 for at in range(turns)]
    said[4] = "My locker at the pool has the code 4711, and the towel is in it."
    said[turns - 1] = "The dentist moved my appointment to Thursday."
    made = tuple(
        Turn(f"t{at}", at // 10, ("user", "assistant")[at % 2], None, text, DAY + at * MINUTE)
        for at, text in enumerate(said)
    )
    return Sample("walks", tuple(map(str, range(turns // 10))), made, queries, kind="chat")


LOCKER = Query("What is the combination of my locker at the pool?", (4,), "fact", 90 * DAY, values=("4711",))
DENTIST = Query("When do I see the dentist?", (39,), "date", 91 * DAY, values=("Thursday",))


async def test_evidence_is_counted_in_each_part_of_the_prompt() -> None:
    seen: list[int] = []
    (figures,) = await measure_prompts(
        Dataset((make_sample(LOCKER, DENTIST),)), [1_500], on_prompt=lambda: seen.append(1)
    )
    assert (figures.mode, figures.budget, figures.refused, len(seen)) == ("keyword", 1_500, 0, 2)
    locker, dentist = figures.findings
    assert locker.evidence == dentist.evidence == figures.all.evidence == 1.0
    assert locker.parts["messages"] == 0.0, "it was said long before"
    assert max(locker.parts[part] for part in ("facts", "digest", "recalled")) == 1.0
    assert dentist.parts["messages"] == 1.0
    assert figures.kinds == {"chat": figures.all}
    assert {name: shares.questions for name, shares in figures.types.items()} == {"date": 1, "fact": 1}
    assert figures.prompt_tokens <= 1_500


async def test_the_question_itself_does_not_count() -> None:
    query = msgspec.structs.replace(LOCKER, text="Is the locker's code at the pool 4711?", evidence=(4,))
    small, large = await measure_prompts(Dataset((make_sample(query),)), [60, 20_000])
    assert small.all.evidence == 0.0
    assert large.all.evidence == large.all.parts["messages"] == 1.0
    assert large.all.other is None, "there is no other question"


async def test_no_question_changes_the_next_ones_prompt() -> None:
    queries = [LOCKER, DENTIST, *(Query(f"What was at stop number {at}?", (at,), "fact") for at in range(3, 9))]
    there, back = [
        (await measure_prompts(Dataset((make_sample(*some),)), [700]))[0].findings for some in (queries, queries[::-1])
    ]
    assert [msgspec.structs.replace(one, other=None) for one in there] == [
        msgspec.structs.replace(one, other=None) for one in reversed(back)
    ]


@pytest.mark.parametrize("query", [LOCKER, DENTIST], ids=["locker", "dentist"])
async def test_a_preview_is_the_prompt_of_a_real_turn(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.turns.recall.SESSION_RECALL_SECONDS", 20.0)
    monkeypatch.setattr("holdfast.engine.engine.derive_marker", lambda secret, identity: MARKER)
    sample = make_sample(query)
    ((preview,),) = await prompt_contents.ask_all(sample, [make_run(700)], None, lambda: None)
    clock = [sample.turns[-1].at + MINUTE]
    async with Holdfast("sqlite://:memory:", life=LifeSettings(session_ttl=0), clock=lambda: clock[0]) as hf:
        session = await hf.session("walks")
        await session.append(make_messages(sample, range(len(sample.turns)))[0])
        async with session.turn(budget=700):  # a session that goes on has analysed what left it
            pass
        clock[0] = query.asked or 0
        async with session.turn(query.text, budget=700) as turn:
            real = prompt_contents.read_contents(turn.working_set)
    assert preview is not None
    assert preview.value == real


def make_run(budget: int) -> Run:
    return Run("digest", budget, ContextSettings("digest", {"budget": budget}))


async def test_previews_write_nothing() -> None:
    sample = make_sample()
    texts = make_messages(sample, range(len(sample.turns)))[0]
    async with open_session([make_run(700)], prompt_contents.read_contents, clock=lambda: 90 * DAY) as session:
        await session.append(to_messages(texts), get_own_fields(texts))
        await session.save_views()
        before = await session.hf.store.get(session.ref)
        await session.build_previews("What is the combination of my locker?")
        after = await session.hf.store.get(session.ref)
    assert (before.version, before.messages) == (after.version, after.messages)


# -- what counts as evidence -------------------------------------------------------
