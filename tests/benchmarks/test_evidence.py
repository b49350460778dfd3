"""Which evidence of questions is in the default prompt."""

from __future__ import annotations

from benchmarks.evaluation.dataset import Dataset, Query, Sample, Turn
from benchmarks.evaluation.prompt_contents import measure_prompts

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


# -- what counts as evidence -------------------------------------------------------
