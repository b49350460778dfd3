"""Evaluation sets: LoCoMo's format with its errors, the plain format, and the measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluation.dataset import Dataset, Query, Sample, Turn
from benchmarks.evaluation.direct import Direct
from benchmarks.evaluation.evaluator import MODES, Evaluator
from benchmarks.evaluation.library import Library
from benchmarks.evaluation.measures import Outcome, compute_figures, compute_session_share, fit_budget, list_sessions
from benchmarks.evaluation.readers import read
from benchmarks.evaluation.unrelated import can_ask, count_unrelated, measure_unrelated
from holdfast.errors import InvalidRequest

CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "conversations"


def turn(session: int, number: int, speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"speaker": speaker, "dia_id": f"D{session}:{number}", "text": text, **more}


def locomo(**changes: Any) -> dict[str, Any]:
    conversation = {
        "speaker_a": "Nora",
        "speaker_b": "Piet",
        "session_10": [turn(10, 1, "Nora", "The boat is sold.")],
        "session_10_date_time": "9:05 am on 1 June, 2023",
        "session_2": [
            turn(2, 1, "Piet", "Did you buy anything?"),
            turn(2, 2, "Nora", "Look at this!", blip_caption="a photo of a wooden boat", query="boat"),
        ],
        "session_2_date_time": "1:56 pm on 8 May, 2023",
        "session_3_date_time": "1:00 pm on 9 May, 2023",
        "session_4_date_time": "1:00 pm on 10 May, 2023",
        "session_4": [],
    }
    qa = [
        {"question": "What did Nora buy?", "answer": "a boat", "evidence": ["D2:2"], "category": 4},
        {"question": "And then?", "answer": 2023, "evidence": ["D10:1; D2:1"], "category": "1"},
        {"question": "Zeros?", "evidence": ["D2:02 ", "D:10:1"], "category": 2},
        {"question": "Who?", "evidence": ["D2:1 D2:2"], "adversarial_answer": "Piet", "category": 5},
        {"question": "Unknown?", "evidence": ["D9:9", "D2:1"], "category": 3},
        {"question": "Nothing?", "evidence": [], "category": 3},
        {"question": "Nonsense?", "evidence": ["D"], "category": 3},
    ]
    return {
        "sample_id": "conv-1",
        "conversation": conversation,
        "qa": qa,
        "event_summary": {},
        "observation": {},
        **changes,
    }


def write_set(folder: Path, value: Any, name: str = "set.json") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


# -- LoCoMo's format ---------------------------------------------------------------


def test_the_published_format_with_its_errors_is_read(tmp_path: Path) -> None:
    dataset = read([write_set(tmp_path, [locomo()])])
    (sample,) = dataset.samples
    assert sample.sessions == ("session_2", "session_10"), "sorted by number, without empty sessions"
    assert [one.id for one in sample.turns] == ["D2:1", "D2:2", "D10:1"]
    assert [one.role for one in sample.turns] == ["assistant", "user", "user"]
    assert [query.evidence for query in sample.queries] == [(1,), (2, 0), (1, 2), (0, 1), (0,)]
    assert [query.type for query in sample.queries] == [
        "single-hop",
        "multi-hop",
        "temporal",
        "adversarial",
        "open-domain",
    ]
    assert (dataset.without_evidence, dataset.unknown) == (2, 1)


# -- the plain format --------------------------------------------------------------


def test_the_plain_format_has_one_sample_per_line(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Where is my order?", "timestamp": "2024-01-02T03:04:05Z"},
        {"role": "assistant", "content": "At the depot.", "id": "reply", "name": "Bot", "timestamp": 1_704_164_646_000},
    ]
    questions = [
        {
            "question": "Where was it?",
            "evidence": ["reply", "s:0", "none"],
            "type": "place",
            "asked": 1_704_164_700_000,
        },
        {"question": "Nothing?", "evidence": []},
    ]
    one = {"sessions": [{"id": "s", "messages": messages}], "questions": questions}
    dataset = read([write_set(tmp_path, f"{json.dumps(one)}\n\n{json.dumps({**one, 'id': 'b'})}\n", "set.jsonl")])
    assert len(dataset.samples) == 2
    sample = dataset.samples[1]
    assert sample.id == "b"
    assert [(said.id, said.name, said.at) for said in sample.turns] == [
        ("s:0", None, 1_704_164_645_000),
        ("reply", "Bot", 1_704_164_646_000),
    ]
    assert sample.queries == (Query("Where was it?", (1, 0), "place", 1_704_164_700_000),)
    assert (dataset.without_evidence, dataset.unknown) == (2, 2)


# -- measures --------------------------------------------------------------------


def sample_of(*sessions: int) -> Sample:
    turns = tuple(Turn(str(at), session, "user", None, "dog", at) for at, session in enumerate(sessions))
    names = tuple(str(session) for session in range(max(sessions) + 1))
    return Sample("s", names, turns, (Query("q", (0, 3), "a"), Query("q", (1,), "b")))


def test_recall_is_the_share_of_the_evidence_averaged_over_questions() -> None:
    sample = sample_of(0, 0, 1, 2)
    outcomes = [Outcome(0, 0, (2, 0, 3, 1)), Outcome(0, 1, (0, 1))]
    figures = compute_figures(
        "keyword", [sample], outcomes, ks=[1, 2, 3], budgets=[2], tokens=lambda one, at: 1, adversarial=["b"]
    )
    assert figures.turns == {"1": 0.0, "2": 0.75, "3": 1.0}
    assert figures.tokens == {"2": 0.75}
    assert figures.types["a"] == {"questions": 1, "1": 0.0, "2": 0.5, "3": 1.0}
    assert figures.without_adversarial == {"1": 0.0, "2": 0.5, "3": 1.0}


def test_sessions_count_once_each() -> None:
    sample = sample_of(0, 0, 1, 2)
    found = list_sessions(sample, (1, 0, 2, 3))
    assert found == [0, 1, 2]
    assert [compute_session_share(sample, sample.queries[0], found[:k]) for k in (1, 2, 3)] == [0.5, 0.5, 1.0]


def test_a_budget_ends_at_the_first_turn_that_does_not_fit() -> None:
    sizes = {0: 5, 1: 4, 2: 1}
    assert fit_budget((0, 1, 2), 8, sizes.__getitem__) == [0]
    assert fit_budget((0, 1, 2), 9, sizes.__getitem__) == [0, 1]
    assert fit_budget((0, 1, 2), 0, sizes.__getitem__) == []


# -- running ---------------------------------------------------------------------


async def test_ranking_beats_plain_bm25_on_the_tuning_conversations() -> None:
    """The documented quality holds: well above plain BM25."""
    dataset = read([CONVERSATIONS / "dev"])
    evaluator = Evaluator(dataset, Direct(dataset))
    plain, keyword = [await evaluator.run(mode) for mode in ("bm25", "keyword")]
    assert plain.questions == keyword.questions == dataset.queries > 250
    assert keyword.turns["10"] > 1.6 * plain.turns["10"]
    assert keyword.turns["50"] > 1.3 * plain.turns["50"]
    assert keyword.sessions["10"] > 0.92


class Letters:
    """An embedder for tests: a vector of letter counts.

    Args:
        floor: its `min_similarity`.
    """

    name = "letters"
    dimension = 32

    def __init__(self, floor: float = 0.0) -> None:
        self.min_similarity = floor

    async def embed(self, texts: Any) -> list[bytes]:
        from holdfast.recall.vectors import to_vector

        return [
            to_vector([float(text.casefold().count(chr(97 + at))) for at in range(26)] + [0.1] * 6) for text in texts
        ]

    async def close(self) -> None:
        pass


async def test_all_modes_side_by_side(tmp_path: Path) -> None:
    dataset = read([write_set(tmp_path, locomo())])
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    evaluator = Evaluator(dataset, Direct(dataset, embedder=Letters()))
    for mode in ("bm25", "keyword", "vector", "hybrid"):
        figures = await evaluator.run(mode, ks=[3], budgets=[100_000], on_question=count)
        assert figures.mode == mode
        assert figures.tokens["100000"] >= figures.turns["3"] > 0
    assert asked == 4 * dataset.queries


async def test_relative_dates_refer_to_the_time_of_the_question() -> None:
    day = 86_400_000
    turns = tuple(Turn(str(at), at, "user", None, "about the dog", at * day) for at in range(9))
    sample = Sample(
        "s", tuple(map(str, range(9))), turns, (Query("What did I say about the dog yesterday?", (4,), "t", 5 * day),)
    )
    dataset = Dataset((sample,))
    assert (await Evaluator(dataset, Direct(dataset)).run("keyword", ks=[1])).turns == {"1": 1.0}
    async with Library(dataset) as library:
        assert (await Evaluator(dataset, library).run("keyword", ks=[1])).turns == {"1": 1.0}


async def test_the_library_finds_the_same_turns_as_the_ranking_alone() -> None:
    """Import, index, lookup and paging lose nothing: every turn has the same rank in every mode."""
    dataset, found = read([CONVERSATIONS / "dev" / "dev-2.json"]), {0.0: 0, 0.93: 0}
    for floor in found:
        direct = Direct(dataset, embedder=Letters(floor))
        async with Library(dataset, embedder=Letters(floor)) as library:
            for mode in ("keyword", "vector", "hybrid"):
                for query in dataset.samples[0].queries[:20]:
                    own, through = [
                        await finder.find(mode, 0, query, lambda turns: len(turns) >= 50)
                        for finder in (direct, library)
                    ]
                    found[floor] += len(own.turns[:50])
                    assert list(through.turns[:50]) == list(own.turns[:50])
                    assert list(through.sessions[:5]) == list(own.sessions[:5])
    assert found[0.93] < found[0.0], "the similarity floor is applied"


async def test_questions_about_tool_results_use_keywords_in_every_mode() -> None:
    """Tool results have no vectors, so only keyword search finds them."""
    turns = (
        Turn("a", 0, "user", None, "Where is parcel QX-4417?", 0),
        Turn("b", 0, "assistant", None, "Let me see.", 1),
        Turn("c", 0, "tool", None, "QX-4417: depot Tarrowby", 2),
        Turn("d", 0, "assistant", None, "It is on its way.", 3),
    )
    query = Query("Which depot had QX-4417?", (2,), "fact", role="tool")
    dataset = Dataset((Sample("one", ("s",), turns, (query,)),))
    async with Library(dataset, embedder=Letters(0.0)) as library:
        for mode in MODES:
            figures = await Evaluator(dataset, library).run(mode, ks=[1])
            assert figures.turns == {"1": 1.0}, mode


async def test_unrelated_conversations_give_fewer_hits() -> None:
    """Each conversation's questions are asked in the next one; evidence in the prompt is counted."""
    talks = {
        "ann": ["I paint lakes", "Which ones?", "The quiet lakes"],
        "bob": ["I ride trains", "How far?", "To Lyon"],
    }
    questions = {
        "ann": [Query("Who can paint lakes?", (0, 2), "single-hop"), Query("Who painted Lyon?", (0,), "adversarial")],
        "bob": [Query("Who rides trains?", (0,), "single-hop")],
    }
    dataset = Dataset(
        tuple(
            Sample(
                name,
                ("s",),
                tuple(Turn(str(at), 0, ("user", "assistant")[at % 2], None, text, at) for at, text in enumerate(said)),
                tuple(questions[name]),
            )
            for name, said in talks.items()
        ),
        adversarial=("adversarial",),
    )
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    async with Library(dataset) as library:
        here, wrong, elsewhere = await measure_unrelated(dataset, library, "keyword", on_question=count)
    assert asked == 2 * dataset.queries
    assert [(one.kind, one.questions) for one in (here, wrong, elsewhere)] == [
        ("here", 2),
        ("wrong", 1),
        ("elsewhere", 3),
    ]
    assert (here.nothing, here.untold, here.found) == (0, 0, 1)
    assert 0 < elsewhere.hits < here.hits
    assert elsewhere.nothing == elsewhere.untold == pytest.approx(2 / 3, abs=1e-4), "only Lyon is known to both"
    assert elsewhere.found is None
    with pytest.raises(InvalidRequest, match="one conversation and no unanswerable question"):
        await measure_unrelated(Dataset(dataset.samples[:1]), library, "keyword")


async def test_unanswerable_questions_need_no_other_conversation() -> None:
    turns = (Turn("0", 0, "user", None, "I paint lakes", 0),)
    painted = (Query("Who paints lakes?", (0,), "fact"),)
    sample = Sample("s", ("s",), turns, painted, (Query("Which lakes dry out?", (), "unanswerable"),))
    dataset = Dataset((sample,))
    assert can_ask(dataset)
    asked = 0

    def count() -> None:
        nonlocal asked
        asked += 1

    async with Library(dataset) as library:
        here, unanswerable = await measure_unrelated(dataset, library, "keyword", on_question=count)
    assert asked == count_unrelated(dataset) == 2
    assert (here.kind, unanswerable.kind, unanswerable.questions) == ("here", "unanswerable", 1)
    assert unanswerable.hits == 1.0, "a word in common is enough for a search"
    assert unanswerable.found is None


async def test_questions_asked_months_later_find_the_evidence() -> None:
    """Sessions do not expire during an evaluation."""
    turns = (Turn("0", 0, "user", None, "I paint lakes", 86_400_000),)
    dataset = Dataset((Sample("s", ("s",), turns, (Query("Who paints lakes?", (0,), "fact", 90 * 86_400_000),)),))
    async with Library(dataset) as library:
        assert (await Evaluator(dataset, library).run("keyword", ks=[1])).turns == {"1": 1.0}


async def test_figures_of_each_sample() -> None:
    turns = (Turn("0", 0, "user", None, "I paint lakes", 0), Turn("1", 0, "user", None, "and trains", 0))
    samples = [
        Sample(name, ("s",), turns, tuple(Query(text, (0,), "fact") for text in texts), kind="talk")
        for name, texts in {"a": ["lakes?", "trains?"], "none": [], "b": ["lakes?"]}.items()
    ]
    dataset = Dataset(tuple(samples))
    evaluator = Evaluator(dataset, Direct(dataset))
    figures = await evaluator.run("bm25", ks=[1])
    assert [(one.sample, one.kind, one.questions, one.turns) for one in figures.samples] == [
        ("a", "talk", 2, {"1": 0.5}),
        ("b", "talk", 1, {"1": 1.0}),
    ]
    assert len(evaluator.outcomes["bm25"]) == 3


# -- peers -----------------------------------------------------------------------
