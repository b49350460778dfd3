"""The prompts of conversations, under each strategy, budget and dialect, are those that were pinned, byte for byte.

A prompt that changes makes every provider's cache of it worthless, and sent prompts are rebuilt from the log. `docs/testing.md` says what
to do if a change is meant.
"""

from __future__ import annotations

import difflib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.pinned.dialogues import DIALOGUES, RECORDED
from tests.pinned.files import hash_all, read_hashes, read_texts, write_hashes, write_texts
from tests.pinned.prompts import BUDGETS, DIALECTS, STRATEGIES, Prompts, make_prompts

NAMES = (*DIALOGUES, *RECORDED)


SHOWN = 60
"""Lines of differences that a failing test prints."""


def check(name: str, recordings: Path | None = None) -> None:
    """Fail if prompts of a conversation are not the pinned ones. `HOLDFAST_TEST_PIN=1` pins them."""
    hashes, made = read_hashes(), make_prompts(name, recordings)
    pinned, now = hashes.get(name, {}), hash_all(made)
    changed = sorted(key for key in pinned.keys() | now.keys() if pinned.get(key) != now.get(key))
    if not changed:
        return
    lines = list(list_differences(read_texts(name), made, changed)) if name in DIALOGUES else []
    if os.environ.get("HOLDFAST_TEST_PIN"):
        write_hashes({**{one: hashes[one] for one in hashes if one in NAMES}, name: now})
        if name in DIALOGUES:
            write_texts(name, made)
        print(*lines, sep="\n")
        return
    pytest.fail("\n".join([f"{len(changed)} of {len(now)} prompts of {name} changed:", *lines[:SHOWN]]), pytrace=False)


def list_differences(old: Prompts, new: Prompts, changed: Iterable[str]) -> Iterator[str]:
    """Yield the changed prompts, and the lines in which they differ."""
    for key in changed:
        before, after = (json.dumps(one.get(key), ensure_ascii=False, indent=1).splitlines() for one in (old, new))
        yield from difflib.unified_diff(before, after, f"pinned: {key}", f"now: {key}", n=1, lineterm="")


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
