"""`holdfast eval recall`: what it reads, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import commands

CONVERSATIONS = Path(__file__).parents[2] / "benchmarks" / "conversations"
ONE = CONVERSATIONS / "dev" / "dev-1.json"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["eval", "recall", *map(str, arguments)])


def test_a_table_of_plain_bm25_and_the_mode() -> None:
    result = run(ONE, "--per-type", "--budget", "256,1024")
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.splitlines() if line.startswith(("bm25 ", "keyword "))] == [
        "bm25",
        "keyword",
    ] * 2
    assert "adversarial" in result.output
    assert "1,024" in result.output
    assert "about 1 conversation" in result.output


def test_json_holds_every_figure() -> None:
    result = run(ONE, "--json", "--k", "10, 5,10", "--budget", "512")
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["samples"] == 1
    assert told["questions"] > 50
    assert told["without_evidence"] == told["unknown_evidence"] == 0
    plain, keyword = told["modes"]
    assert [plain["mode"], keyword["mode"]] == ["bm25", "keyword"]
    assert list(keyword["turns"]) == ["5", "10"]
    assert keyword["turns"]["10"] > plain["turns"]["10"]
    assert set(keyword["types"]) == {"adversarial", "multi-hop", "open-domain", "single-hop", "temporal"}
    assert set(keyword["tokens"]) == {"512"}
    assert keyword["without_adversarial"]


def test_a_folder_is_all_its_files() -> None:
    told = json.loads(run(CONVERSATIONS / "dev", "--json").output)
    assert told["samples"] == 4


def test_captions_can_be_left_out() -> None:
    with_them, without = (json.loads(run(ONE, "--json", option).output) for option in ("--captions", "--no-captions"))
    assert with_them["modes"] != without["modes"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.json"], "does not exist"),
        ([ONE, "--k", "0"], "is no number from 1"),
        ([ONE, "--k", "ten"], "is no number from 1"),
        ([ONE, "--k", ","], "nothing is named"),
        ([ONE, "--mode", "magic"], "'magic' is not one of"),
        ([ONE, "--mode", "hybrid", "--path", "nowhere"], "nowhere"),
        ([], "Missing argument"),
    ],
)
def test_wrong_calls_say_what_is_wrong(arguments: list[str | Path], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code in {1, 2}
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_no_set_fails_and_says_where(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('[{"conversation": {"session_1": [{"speaker": "A"}]}, "qa": []}]')
    result = run(path)
    assert result.exit_code == 1
    assert "bad.json[0]: session_1[0] is no turn" in result.output
