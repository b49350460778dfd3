"""`holdfast eval recall`: input, output and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "conversations"
ONE = CONVERSATIONS / "dev" / "dev-1.json"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["eval", "recall", *map(str, arguments)])


def test_table_compares_plain_bm25_with_the_mode(tmp_path: Path) -> None:
    result = run(ask_every(4, ONE, tmp_path), "--per-type", "--budget", "256,1024")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines() if line.startswith(("bm25 ", "keyword "))] == [
        "bm25",
        "keyword",
    ] * 2
    assert "adversarial" in result.output
    assert "1,024" in result.output
    assert "about 1 conversation" in result.output


def test_json_has_every_figure() -> None:
    result = run(ONE, "--json", "--k", "10, 5,10", "--budget", "512")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["samples"] == 1
    assert told["questions"] > 50
    assert told["without_evidence"] == told["unknown_evidence"] == 0
    plain, full_text, keyword = told["modes"]
    assert [plain["mode"], full_text["mode"], keyword["mode"]] == ["bm25", "fts5", "keyword"]
    assert list(keyword["turns"]) == ["5", "10"]
    assert keyword["turns"]["10"] > plain["turns"]["10"]
    assert set(keyword["types"]) == {"adversarial", "multi-hop", "open-domain", "single-hop", "temporal"}
    assert set(keyword["tokens"]) == {"512"}
    assert keyword["without_adversarial"]


def write_two_conversations(folder: Path) -> Path:
    """Write a set of two conversations that share a word."""
    path = folder / "two.jsonl"
    talks = {"ann": ["I paint quiet lakes", "Which ones?"], "bob": ["I ride quiet trains", "How far?"]}
    questions = {"ann": ["Who paints lakes?", "Who paints what is quiet?"], "bob": ["Who rides trains?"]}
    lines = [
        {
            "sessions": [{"id": name, "messages": [{"role": "user", "content": text} for text in said]}],
            "questions": [{"question": text, "evidence": [f"{name}:0"]} for text in questions[name]],
        }
        for name, said in talks.items()
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_unrelated_questions_are_counted_on_request(tmp_path: Path) -> None:
    result = run(write_two_conversations(tmp_path), "--unrelated")
    assert result.exit_code == 0, result.output
    _, _, table = result.output.partition("results by kind of question")
    kinds = ("answered here", "about the wrong person", "answered elsewhere")
    found = [kind for line in table.splitlines() for kind in kinds if line.startswith(f"keyword  {kind} ")]
    assert found == ["answered here", "answered elsewhere"]
    assert "results by kind of question" not in run(write_two_conversations(tmp_path)).output


def test_json_has_results_by_kind_of_question(tmp_path: Path) -> None:
    told = json.loads(run(write_two_conversations(tmp_path), "--unrelated", "--json").output)
    here, elsewhere = told["unrelated"]
    assert [one["kind"] for one in (here, elsewhere)] == ["here", "elsewhere"]
    assert here["questions"] == elsewhere["questions"] == told["questions"] == 3
    assert (here["nothing"], here["untold"], here["found"]) == (0, 0, 1)
    assert elsewhere["nothing"] == elsewhere["untold"] == pytest.approx(2 / 3, abs=1e-4)
    assert elsewhere["found"] is None
    assert json.loads(run(write_two_conversations(tmp_path), "--json").output)["unrelated"] == []


def test_captions_can_be_left_out(tmp_path: Path) -> None:
    captioned = ask_every(6, ONE, tmp_path)
    with_them, without = (
        json.loads(run(captioned, "--json", option).output) for option in ("--captions", "--no-captions")
    )
    assert with_them["questions"] == without["questions"] == 12
    assert with_them["modes"] != without["modes"]


def ask_every(step: int, file: Path, folder: Path) -> Path:
    """Write a conversation with only every `step`-th of its questions."""
    conversation = json.loads(file.read_text(encoding="utf-8"))
    path = folder / file.name
    path.write_text(json.dumps({**conversation, "qa": conversation["qa"][::step]}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.json"], "does not exist"),
        ([ONE, "--k", "0"], "is not a number from 1"),
        ([ONE, "--k", "ten"], "is not a number from 1"),
        ([ONE, "--k", ","], "the list is empty"),
        ([ONE, "--mode", "magic"], "'magic' is not one of"),
        ([ONE, "--unrelated"], "only one conversation"),
        ([ONE, "--mode", "hybrid", "--path", "nowhere"], "nowhere"),
        ([], "Missing argument"),
    ],
)
def test_wrong_calls_explain_the_mistake(arguments: list[str | Path], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code in {1, 2}
    assert says in result.output
    assert "Traceback" not in result.output


def test_documented_example_is_found(tmp_path: Path) -> None:
    """Asked a day later; the answering message has no timestamp, so it takes that of the previous one."""
    page = (CONVERSATIONS.parents[1] / "docs" / "evaluation-data.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(.+?)```", page, re.DOTALL)
    path = tmp_path / "mine.json"
    path.write_text(example, encoding="utf-8")
    told = json.loads(run(path, "--json").output)
    assert (told["questions"], told["unknown_evidence"], told["modes"][2]["turns"]["5"]) == (1, 0, 1.0)


def test_invalid_data_set_fails_and_names_the_place(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('[{"conversation": {"session_1": [{"speaker": "A"}]}, "qa": []}]')
    result = run(path)
    assert result.exit_code == 1
    assert "bad.json[0]: session_1[0] is not a turn" in result.output


# -- samples, comparisons, prompts, unanswerable questions -------------------------


RECALL = CONVERSATIONS.parent / "recall"


def write_kinds(folder: Path) -> Path:
    """Write a set of two kinds in a folder; one has a question without an answer."""
    for kind, text in {"garden": "The pond holds carp", "office": "The printer prints in colour"}.items():
        noun = text.split()[1]
        sample = {
            "id": f"{kind}-1",
            "kind": kind,
            "sessions": [{"id": "s", "messages": [{"role": "user", "content": text, "id": "m"}]}],
            "questions": [
                {
                    "question": f"What about the {noun}?",
                    "evidence": ["m"],
                    "type": "fact",
                    "values": [text.split()[-1]],
                },
                {"question": f"Is the {noun} blue?", "evidence": [], "type": "unanswerable"},
            ],
        }
        (folder / f"{kind}.json").write_text(json.dumps(sample))
    return folder


def test_samples_are_shown_separately_on_request(tmp_path: Path) -> None:
    result = run(write_kinds(tmp_path), "--per-sample")
    assert result.exit_code == 0, result.output
    _, _, table = result.output.partition("by sample")
    rows = [line.split()[:4] for line in table.splitlines() if "-1 " in line]
    assert rows == [
        [mode, f"{kind}-1", kind, "1"] for mode in ("bm25", "fts5", "keyword") for kind in ("garden", "office")
    ]
    assert "2 unanswerable questions" in result.output
    assert "by sample" not in run(tmp_path).output


def test_folder_means_all_its_files(tmp_path: Path) -> None:
    told = json.loads(run(write_kinds(tmp_path), "--json").output)
    assert told["samples"] == 2


def test_two_modes_are_compared_with_intervals(tmp_path: Path) -> None:
    result = run(write_kinds(tmp_path), "--compare", "fts5, keyword", "--k", "1")
    assert result.exit_code == 0, result.output
    _, _, table = result.output.partition("keyword minus fts5")
    assert [line.split()[0] for line in table.splitlines() if "(" in line] == ["all", "garden-1", "office-1"]
    told = json.loads(run(tmp_path, "--compare", "fts5,keyword", "--k", "1", "--json").output)
    everything = told["comparisons"][0]
    assert (everything["first"], everything["second"], everything["sample"]) == ("fts5", "keyword", None)
    assert everything["turns"] == {"1": {"mean": 0.0, "low": 0.0, "high": 0.0}}


def test_evidence_in_prompts_by_kind_and_type(tmp_path: Path) -> None:
    result = run(write_kinds(tmp_path), "--prompt", "200,4096")
    assert result.exit_code == 0, result.output
    for budget in ("200", "4,096"):
        assert f"evidence in the prompt at {budget} tokens, index by keyword" in result.output
    assert "kind  garden" in result.output
    assert "type  fact" in result.output
    told = json.loads(run(tmp_path, "--prompt", "4096", "--json").output)
    (figures,) = told["prompts"]
    assert (figures["mode"], figures["budget"], figures["refused"], figures["late"]) == ("keyword", 4096, 0, 0)
    assert figures["all"] == {
        "questions": 2,
        "evidence": 1.0,
        "other": None,
        "parts": {"messages": 1.0, "facts": 0.0, "digest": 0.0, "recalled": 0.0},
    }
    assert set(figures["kinds"]) == {"garden", "office"}
    assert [one["question"] for one in figures["findings"]] == ["What about the pond?", "What about the printer?"]


def test_unanswerable_questions_of_one_conversation(tmp_path: Path) -> None:
    told = json.loads(run(write_kinds(tmp_path) / "garden.json", "--unrelated", "--json").output)
    assert [(one["kind"], one["questions"]) for one in told["unrelated"]] == [("here", 1), ("unanswerable", 1)]
    assert "keyword  unanswerable " in run(tmp_path / "garden.json", "--unrelated").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--compare", "keyword"], "is not two different modes"),
        (["--compare", "keyword,keyword"], "is not two different modes"),
        (["--compare", "keyword,magic"], "is not two different modes"),
        (["--prompt", "many"], "is not a number from 1"),
        (["--prompt", "0"], "is not a number from 1"),
    ],
)
def test_wrong_options_explain_the_mistake(arguments: list[str], says: str) -> None:
    result = run(ONE, *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_set_without_evidence_has_no_prompt_figures(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_text('{"sessions": [{"messages": [{"role": "user", "content": "Hello"}]}], "questions": []}')
    result = run(path, "--prompt", "100")
    assert result.exit_code == 2
    assert "no question in the data set has evidence" in result.output
    assert run(path).exit_code == 0
