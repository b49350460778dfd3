"""The prompts of conversations, under each strategy, budget and dialect, are those that were pinned, byte for byte.

A prompt that changes makes every provider's cache of it worthless, and sent prompts are rebuilt from the log. `docs/testing.md` says what
to do if a change is meant.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from tests.pinned.dialogues import DIALOGUES, RECORDED
from tests.pinned.files import hash_all, read_hashes, read_texts
from tests.pinned.prompts import BUDGETS, DIALECTS, STRATEGIES, make_prompts


def check(name: str, recordings: Path | None = None) -> None:
    pinned, made = read_hashes()[name], hash_all(make_prompts(name, recordings))
    changed = sorted(key for key in pinned.keys() | made.keys() if pinned.get(key) != made.get(key))
    if changed:
        some = ", ".join(changed[:4])
        pytest.fail(
            f"{len(changed)} of {len(made)} prompts of {name} changed ({some}, …): python -m tests.pinned show {name}",
            pytrace=False,
        )


@pytest.mark.parametrize("name", DIALOGUES)
def test_prompts_of_a_dialogue_are_the_pinned_ones(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", RECORDED)
def test_prompts_of_a_recorded_session_are_the_pinned_ones(name: str, test_data: Path) -> None:
    check(name, test_data)


def test_each_strategy_budget_and_dialect_is_pinned() -> None:
    hashes = read_hashes()
    assert set(hashes) == {*DIALOGUES, *RECORDED}
    settings = {f"{one} {size}" for one in STRATEGIES if one != "none" for size in BUDGETS} | {"none"}
    for name in DIALOGUES:
        refused = {key for key, prompt in read_texts(name).items() if "error" in prompt}
        wanted = {f"{one} {kind}" for one in settings for kind in (*DIALECTS, "decisions")}
        assert set(hashes[name]) == wanted - {f"{key.removesuffix('openai')}decisions" for key in refused}


@pytest.mark.parametrize("name", DIALOGUES)
def test_stored_texts_are_those_that_were_hashed(name: str) -> None:
    assert hash_all(read_texts(name)) == read_hashes()[name]


def test_pinned_prompts_show_what_strategies_write() -> None:
    every: dict[str, str] = defaultdict(str)
    for name in DIALOGUES:
        for key, prompt in read_texts(name).items():
            every[key] += str(prompt)
    for dialect in DIALECTS:
        assert "[Condensed from messages" in every[f"digest 3000 {dialect}"]
        assert "[Summary of messages" in every[f"summary_buffer 3000 {dialect}"]
        assert "cleared" in every[f"clear_tool_results 3000 {dialect}"]
        assert "[recalled from earlier" in every[f"digest 3000 {dialect}"]
        assert len(every[f"none {dialect}"]) > 2 * len(every[f"token_window 3000 {dialect}"])
