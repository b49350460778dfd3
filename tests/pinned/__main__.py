"""Show how the prompts of now differ from the pinned ones, or pin those of now.

    python -m tests.pinned show [NAME…]     what differs, as a person reads it; without a name, all conversations
    python -m tests.pinned write [NAME…]    pin the prompts of now, show what differs, and print a body for the commit

A name is one of `hashes.json`, or the beginning of some, such as `recall/`. For recorded sessions, only hashes are stored: the commit that
last changed them, or `--base COMMIT`, makes their old prompts again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.pinned.dialogues import DIALOGUES, RECORDED, ROOT
from tests.pinned.differences import show_differences
from tests.pinned.files import HASHES, TEXTS, Hashes, hash_all, read_hashes, read_texts, write_hashes, write_texts
from tests.pinned.prompts import Prompts, make_prompts

NAMES: Final = (*DIALOGUES, *RECORDED)
_SHOWN_IN_COMMIT: Final = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. The exit code is 1 if `show` found a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.pinned", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("show", "write", "make"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--base", metavar="COMMIT", help="compare with the prompts that the code of this commit makes")
    parser.add_argument("--all", action="store_true", help="show every difference to its end")
    given = parser.parse_args(argv)
    recordings = find_recordings()
    names = choose_names(given.names, recordings)
    if given.command == "make":
        json.dump({name: make_prompts(name, recordings) for name in names}, sys.stdout)
        return 0
    made = {name: make_prompts(name, recordings) for name in names}
    lines, bodies = compare(made, given.base, whole=given.all)
    print("\n".join(lines) if lines else f"nothing changed in {len(names)} conversations")
    if given.command == "write":
        write(made)
        if bodies:
            print("\nFor the commit, whose subject says that pins change:\n")
            print("\n\n".join(bodies[:_SHOWN_IN_COMMIT]))
        return 0
    return 1 if lines else 0


def find_recordings() -> Path | None:
    """Return the folder of the recorded sessions, or None if there is none."""
    folder = Path(os.environ.get("HOLDFAST_TEST_DATA") or ROOT.parent / "shared" / "data")
    return folder if folder.is_dir() else None


def choose_names(wanted: Sequence[str], recordings: Path | None) -> list[str]:
    """Return the conversations whose names begin with one of the wanted texts; without texts, all that can be read."""
    if wanted:
        found = [name for name in NAMES if name.startswith(tuple(wanted))]
        if not found:
            raise SystemExit(f"no pinned conversation begins with {', '.join(wanted)}; there are {', '.join(NAMES)}")
        return found
    if recordings is None:
        print("recorded sessions are left out: HOLDFAST_TEST_DATA names no folder", file=sys.stderr)
        return list(DIALOGUES)
    return list(NAMES)


def compare(made: dict[str, Prompts], base: str | None, *, whole: bool = False) -> tuple[list[str], list[str]]:
    """Return lines that show what differs from the pins, and the first difference of each conversation for a commit."""
    pinned = read_hashes(HASHES)
    changed = [name for name in made if base or pinned.get(name) != hash_all(made[name])]
    before = {name: read_texts(name, TEXTS) for name in changed if name in DIALOGUES and base is None}
    if others := [name for name in changed if name not in before and (base or name in pinned)]:
        before |= make_at(base or find_last_change(), others)
    lines, bodies = [], []
    for name in changed:
        old = before.get(name, {})
        shown = show_differences(name, old, made[name], whole=whole)
        if base is None and hash_all(old) != pinned.get(name, {}):
            shown.insert(0, f"{name}: the old prompts below are not the pinned ones; name their commit with --base")
        lines += shown
        bodies += ["\n".join(show_differences(name, old, made[name])[:16])] if old else []
    return lines, bodies


def write(made: dict[str, Prompts]) -> None:
    """Pin prompts. Pins of conversations that are no longer named are removed."""
    hashes: Hashes = {name: line for name, line in read_hashes(HASHES).items() if name in NAMES}
    write_hashes({**hashes, **{name: hash_all(prompts) for name, prompts in made.items()}}, HASHES)
    for name, prompts in made.items():
        if name in DIALOGUES:
            write_texts(name, prompts, TEXTS)


def find_last_change() -> str:
    """Return the commit that last changed the hashes."""
    return _run_git("log", "-1", "--format=%H", "--", str(HASHES.relative_to(ROOT)))


def make_at(commit: str, names: Iterable[str]) -> dict[str, Prompts]:
    """Return the prompts that the code of another commit makes."""
    with _check_out(commit) as tree:
        recordings = find_recordings()
        paths = os.pathsep.join((str(tree / "src"), str(tree)))
        env = {**os.environ, "PYTHONPATH": paths}
        env |= {"HOLDFAST_TEST_DATA": str(recordings.resolve())} if recordings else {}
        run = subprocess.run(
            [sys.executable, "-m", "tests.pinned", "make", *names],
            cwd=tree,
            env=env,
            stdout=subprocess.PIPE,
            check=True,
        )
    made: dict[str, Prompts] = json.loads(run.stdout)
    return made


@contextmanager
def _check_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "base"
        _run_git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _run_git("worktree", "remove", "--force", str(tree))


def _run_git(*args: str) -> str:
    run = subprocess.run(["git", "-C", str(ROOT), *args], stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
