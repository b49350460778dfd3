"""Fuzzing guided by coverage: inputs that reach new lines are kept, and changed further. Python only, and repeatable by seed."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tests.fuzz.targets import Target

Arc = tuple[str, int, int]
LONGEST = 4096
"""Bytes of an input: what goes wrong does so in little."""


def trace(check: Callable[[bytes], None], data: bytes, modules: tuple[str, ...]) -> set[Arc]:
    """Run `check` on `data`; the steps from line to line in `modules`."""
    arcs: set[Arc] = set()
    last: dict[int, int] = {}

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            key = id(frame)
            arcs.add((frame.f_code.co_filename, last.get(key, 0), frame.f_lineno))
            last[key] = frame.f_lineno
        return local

    def enter(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        return local if any(module in name for module in modules) else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        check(data)
    finally:
        sys.settrace(before)
    return arcs


def mutate(data: bytes, corpus: list[bytes], words: tuple[bytes, ...], chance: random.Random) -> bytes:
    """`data` with a few changes: bytes, words, pieces of other inputs."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at = chance.randrange(len(changed) + 1)
        to = min(len(changed), at + chance.choice((1, 2, 4, 16, 64)))
        match chance.randrange(6):
            case 0 if changed:
                changed[min(at, len(changed) - 1)] = chance.randrange(256)
            case 1:
                changed[at:at] = chance.choice(words)
            case 2:
                changed[at:to] = chance.choice(words)
            case 3:
                del changed[at:to]
            case 4:
                changed[at:at] = changed[at:to] * chance.choice((1, 2, 8))
            case _:
                other = chance.choice(corpus)
                start = chance.randrange(len(other) + 1)
                changed[at:to] = other[start : start + chance.choice((4, 16, 64, 256))]
    return bytes(changed[:LONGEST])


def inputs(target: Target, seed: int) -> Iterator[tuple[bytes, int, int]]:
    """Endless: each input after it passed, how many are kept, and how many steps are known. Raises what a check raises."""
    chance = random.Random(seed)
    known: set[Arc] = set()
    corpus: list[bytes] = []
    waiting = list(target.seeds)
    while True:
        data = waiting.pop() if waiting else mutate(chance.choice(corpus), corpus, target.words, chance)
        try:
            arcs = trace(target.check, data, target.modules)
        except Exception as exc:
            exc.add_note(f"input: {data!r}")
            raise
        if arcs - known or not corpus:
            known |= arcs
            corpus.append(data)
        yield data, len(corpus), len(known)


def fuzz(target: Target, *, seed: int, seconds: float, report: Callable[[str], None]) -> None:
    """Run until the time is over; raises what a check raises, with the input in a note."""
    end, next_report = time.monotonic() + seconds, 0.0
    for count, (_, kept, steps) in enumerate(inputs(target, seed), start=1):
        now = time.monotonic()
        if now >= min(next_report, end):
            report(f"{count:>10} inputs {kept:>6} kept {steps:>6} steps")
            next_report = now + 10
        if now >= end:
            return
