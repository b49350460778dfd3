"""The published forms of REALTALK and BEAM, on small files written for these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evaluation.dataset import Query, Sample
from benchmarks.evaluation.readers import read

MARCH_15 = 1_710_460_800_000
DAY = 86_400_000


def write(folder: Path, value: Any, name: str = "set.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


# -- REALTALK --------------------------------------------------------------------


def make_realtalk(**changes: Any) -> dict[str, Any]:
    return {
        "name": {"speaker_1": "Ida", "speaker_2": "Joss"},
        "session_1": [
            {"speaker": "Ida", "clean_text": "I keep bees.", "text": "I keep beees", "dia_id": "D1:1", "date_time": "29.12.2023, 22:10:30"},
            {"speaker": "Joss", "clean_text": "How many hives?", "dia_id": "D1:2"},
        ],
        "session_1_date_time": "29.12.2023, 22:10",
        "session_2": [{"speaker": "Ida", "clean_text": "Four now.", "dia_id": "D2:1", "blip_caption": "a hive"}],
        "session_2_date_time": "30.12.2023",
        "qa": [
            {"question": "Which animals does Ida keep?", "answer": "bees", "evidence": ["D1:1"], "category": 1},
            {"question": "Where is Lyon?", "evidence": [], "category": 3},
        ],
        **changes,
    }  # fmt: skip


def test_realtalk_samples_contain_their_sessions(tmp_path: Path) -> None:
    dataset = read([write(tmp_path, make_realtalk())])
    (sample,) = dataset.samples
    assert sample.sessions == ("session_1", "session_2")
    assert [(turn.role, turn.name, turn.text) for turn in sample.turns] == [
        ("user", "Ida", "I keep bees."),
        ("assistant", "Joss", "How many hives?"),
        ("user", "Ida", "Four now.\n[shared a photo: a hive]"),
    ]
    assert [turn.at for turn in sample.turns] == [1_703_887_830_000, 1_703_887_860_000, 1_703_894_400_000]
    assert sample.queries == (Query("Which animals does Ida keep?", (0,), "multi-hop"),)
    assert dataset.without_evidence == 1


# -- BEAM ------------------------------------------------------------------------


def say(id_: int, role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": id_, "role": role, "content": text, **more}


LISTS = [
    [
        [say(1, "user", "My flat has mice. ->-> 1,2", time_anchor="March-15-2024"), say(2, "assistant", "Seal the gaps.")],
        [say(3, "user", "I bought four traps. ->-> 1,3")],
    ],
    [[say(4, "user", "The mice are gone ->-> 2", time_anchor="March-20-2024"), say(5, "assistant", "Good.")]],
]  # fmt: skip
OBJECTS = {
    "batch-1": {"batch_number": 1, "time_anchor": "March-15-2024", "turns": LISTS[0]},
    "batch-2": {"batch_number": 2, "time_anchor": "March-20-2024", "turns": LISTS[1]},
}
QUESTIONS = {
    "information_extraction": [{"question": "How many traps?", "source_chat_ids": [3], "rubric": ["four"]}],
    "knowledge_update": [
        {"question": "Are there mice?", "source_chat_ids": {"original": [1], "updated": [4, 99]}, "difficulty": "easy"}
    ],
    "abstention": [{"question": "Which cat?", "source_chat_ids": []}, {"question": "Which dog?"}],
    "summarization": [{"question": "Sum it up.", "source_chat_ids": []}],
}


def make_beam(**changes: Any) -> dict[str, Any]:
    return {"conversation_id": "7", "chat": LISTS, "probing_questions": QUESTIONS, **changes}


def check_beam(sample: Sample) -> None:
    assert sample.sessions == ("batch_1", "batch_2")
    assert [(turn.id, turn.session, turn.role, turn.text) for turn in sample.turns] == [
        ("1", 0, "user", "My flat has mice."),
        ("2", 0, "assistant", "Seal the gaps."),
        ("3", 0, "user", "I bought four traps."),
        ("4", 1, "user", "The mice are gone"),
        ("5", 1, "assistant", "Good."),
    ]
    assert [turn.at // DAY for turn in sample.turns] == [MARCH_15 // DAY] * 3 + [MARCH_15 // DAY + 5] * 2
    assert sorted(turn.at for turn in sample.turns) == [turn.at for turn in sample.turns]
    assert sample.queries == (
        Query("How many traps?", (2,), "information_extraction"),
        Query("Are there mice?", (0, 3), "knowledge_update"),
    )
    assert [query.text for query in sample.unanswerable] == ["Which cat?", "Which dog?"]


@pytest.mark.parametrize(
    "row",
    [
        make_beam(),
        make_beam(chat=OBJECTS),
        make_beam(chat=list(OBJECTS.values())),
        make_beam(probing_questions=json.dumps(QUESTIONS)),
        make_beam(probing_questions=repr(QUESTIONS)),
    ],
    ids=["nested lists", "an object of batches", "a list of batches", "questions as JSON", "questions as Python"],
)
def test_all_forms_of_beam_rows_give_the_same_sample(tmp_path: Path, row: dict[str, Any]) -> None:
    dataset = read([write(tmp_path, row)])
    check_beam(dataset.samples[0])
    assert dataset.samples[0].id == "7"
    assert (dataset.without_evidence, dataset.unknown) == (1, 1)


# -- unanswerable questions of the plain form --------------------------------------
