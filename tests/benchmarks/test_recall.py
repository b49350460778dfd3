"""Evaluation sets: LoCoMo's format with its errors, the plain format, and the measures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.evaluation.dataset import Query, Sample, Turn
from benchmarks.evaluation.direct import Direct
from benchmarks.evaluation.evaluator import Evaluator
from benchmarks.evaluation.library import Library
from benchmarks.evaluation.measures import Outcome, compute_figures
from benchmarks.evaluation.readers import read

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
