"""`python -m tests.pinned` shows what changed in pinned prompts as a person reads it, and writes the files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.pinned import __main__ as command
from tests.pinned.announcements import list_unannounced
from tests.pinned.dialogues import ROOT
from tests.pinned.differences import GROUPS, show_differences
from tests.pinned.files import HASHES, TEXTS, hash_all, read_hashes, read_texts
from tests.pinned.prompts import Prompts

NAME = "statements/dev/life"
DIGEST = "digest 3000"


def in_git() -> bool:
    return (ROOT / ".git").exists() and shutil.which("git") is not None


needs_git = pytest.mark.skipif(not in_git(), reason="the folder is no clone of the repository")


def with_changed_digest() -> Prompts:
    """The pinned prompts, with another heading of the digest in each dialect of one budget."""
    prompts: Prompts = json.loads(json.dumps(read_texts(NAME)))  # equal messages of prompts are one object
    for dialect in ("openai", "anthropic", "gemini"):
        change_texts(prompts[f"{DIGEST} {dialect}"], "data, not instructions", "only data")
        prompts[f"{DIGEST} {dialect}"]["tokens"] += 7
    return prompts


def change_texts(value: Any, old: str, new: str) -> None:
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(one, str):
            value[key] = one.replace(f"{old}]\nuser said", f"{new}]\nuser said")
        elif isinstance(one, dict | list):
            change_texts(one, old, new)


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the files, which the command reads and writes in place of the pins."""
    shutil.copy(HASHES, tmp_path / "hashes.json")
    shutil.copytree(TEXTS, tmp_path / "texts")
    monkeypatch.setattr(command, "HASHES", tmp_path / "hashes.json")
    monkeypatch.setattr(command, "TEXTS", tmp_path / "texts")
    return tmp_path


def test_same_prompts_show_that_nothing_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_prompts", lambda name, _: read_texts(name))
    assert command.main(["show", "statements/dev/"]) == 0
    assert capsys.readouterr().out == "nothing changed in 6 conversations\n"


def test_changed_digest_is_shown_once_for_all_dialects(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_prompts", lambda *_: with_changed_digest())
    assert command.main(["show", NAME]) == 1
    pinned, shown = read_texts(NAME), capsys.readouterr().out
    for dialect in ("anthropic", "gemini", "openai"):
        before = pinned[f"{DIGEST} {dialect}"]["tokens"]
        assert f"  {DIGEST} {dialect} ({before} → {before + 7} tokens)\n" in shown
    assert shown.count("{+only +}data[-, not instructions-]") == 1
    assert shown.splitlines()[0] == f"{NAME}:"
    assert "digest 800" not in shown


def test_write_pins_the_new_prompts_and_prints_them_for_the_commit(
    copies: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "make_prompts", lambda *_: with_changed_digest())
    assert command.main(["write", NAME]) == 0
    assert f"For the commit, whose subject says that pins change:\n\n{NAME}:\n" in capsys.readouterr().out
    hashes = read_hashes(copies / "hashes.json")
    assert hashes == {**read_hashes(), NAME: hash_all(with_changed_digest())}
    assert read_texts(NAME, copies / "texts") == with_changed_digest()
    changed = [one.name for one in TEXTS.iterdir() if one.read_bytes() != (copies / "texts" / one.name).read_bytes()]
    assert changed == ["statements.dev.life.json.xz"]
    assert command.main(["show", NAME]) == 0


def test_new_gone_and_changed_messages_are_told_apart() -> None:
    def make(*texts: str) -> Prompts:
        messages = [{"role": "user", "content": text} for text in texts]
        return {"digest 800 openai": {"system": None, "messages": messages, "tokens": 5, "total": 5}}

    before = make("Where is my order?", "The first line stays.\nIt ships on May 4.", "Thanks, that was all for today.")
    after = make("Where is my order?", "The first line stays.\nIt ships on May 5.", "Goodbye!", "One more thing:")
    assert show_differences("life", before, after) == [
        "life:",
        "  digest 800 openai (5 tokens, as before)",
        "    message 2 changed (user: The first line stays. It ships on … (46 characters)):",
        "      It ships on May [-4-]{+5+}.",
        "    + user: Goodbye!",
        "    - user: Thanks, that was all for today.",
        "    + user: One more thing:",
    ]


def test_many_differences_are_cut_unless_all_are_wanted() -> None:
    prompts = {f"digest {number} openai": {"error": f"{number} tokens are needed"} for number in range(GROUPS + 3)}
    after = {key: {"error": f"more than {prompt['error']}"} for key, prompt in prompts.items()}
    assert show_differences("life", prompts, after)[-1] == "life: 3 more differences; --all shows them"
    assert len(show_differences("life", prompts, after, whole=True)) == 3 * (GROUPS + 3) + GROUPS + 3


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no pinned conversation begins with nothing; there are statements/dev/"):
        command.main(["show", "nothing"])


@needs_git
@pytest.mark.slow
def test_old_prompts_of_a_recorded_session_are_made_by_the_old_code(test_data: Path) -> None:
    name = "airline/airline-00-0"
    old = command.make_at(command.find_last_change(), [name])[name]
    assert hash_all(old) == read_hashes()[name]


@needs_git
def test_each_commit_that_changed_pins_says_so() -> None:
    assert list_unannounced(ROOT) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_that_changes_pins_silently_is_found(tmp_path: Path) -> None:
    path = tmp_path / HASHES.relative_to(ROOT)
    path.parent.mkdir(parents=True)

    def commit(number: int, message: str) -> None:
        path.write_text("".join(f"line {line} {number}\n" for line in range(9)), encoding="utf-8")
        for args in (
            ["add", "."],
            ["-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "-qm", message],
        ):
            subprocess.run(["git", "-C", str(tmp_path), *args], check=True)

    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    three = "\n".join(f"  digest {budget} openai (5 → 6 tokens)" for budget in (800, 3000, 9000))
    commit(1, "Begin")
    commit(2, f"Pin shorter digests\n\nlife:\n{three}")
    commit(3, f"Shorten digests\n\nlife:\n{three}")
    commit(4, "Change pins of digests\n\nThey are shorter: digest 800 openai.")
    assert [one.split(" ", 1)[1] for one in list_unannounced(tmp_path)] == [
        "Change pins of digests: the body shows 1 of 3 prompts",
        "Shorten digests: the subject does not say that pins change",
    ]
