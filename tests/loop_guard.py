"""Detect CPU-heavy work on the event loop, by counting work and not by measuring time.

`watch` replaces functions everywhere in Holdfast by ones that note, on each call, how many characters they were given and whether
they ran on a thread with a running event loop. One callback of the loop (one step of a task) may do `MOST` characters of work.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Final

from holdfast import tokens
from holdfast.recall import details, snippets, terms

MOST: Final = 70_000
"""Characters that one callback may count or analyse: about 20 ms."""


class LoopGuard:
    """What watched functions were given.

    Attributes:
        on_loop: the most characters that one callback of the loop gave to each function.
        off_loop: all characters that each function was given on other threads.
        largest: the longest single input of each function, on any thread.
    """

    def __init__(self) -> None:
        self.on_loop: Counter[str] = Counter()
        self.off_loop: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self._callback: Counter[str] = Counter()

    def note(self, name: str, chars: int) -> None:
        """Note a call of the function `name`."""
        self.largest[name] = max(self.largest[name], chars)
        if not _on_loop():
            self.off_loop[name] += chars
            return
        self._callback[name] += chars
        self.on_loop[name] = max(self.on_loop[name], self._callback[name])

    def begin_callback(self) -> None:
        """Begin to count anew: the loop runs its next callback."""
        self._callback.clear()

    def check(self, *names: str, most: int = MOST) -> None:
        """Fail if a callback did too much, or if one of `names` was never called: then nothing was watched."""
        missed = [name for name in names if not self.largest[name]]
        assert not missed, f"never called: {missed}"
        heavy = {name: chars for name, chars in self.on_loop.items() if chars > most}
        assert not heavy, f"characters in one callback of the event loop: {heavy}; {most} are allowed"


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _first(*args: Any, **_: Any) -> int:
    return len(args[0])


WATCHED: Final[Mapping[str, tuple[Any, str, Callable[..., int]]]] = {
    "count": (tokens.Vocabulary, "count", lambda self, text: len(text)),
    "terms": (terms, "extract_terms", _first),
    "analysis": (details, "analyse", _first),
    "snippet": (snippets, "make_snippet", _first),
    "stem": (terms, "_stem_cached", lambda *args: 80),
}
"""By name: where a function is, what it is called there, and how many characters a call of it costs (a stem as many as it takes time)."""


@contextmanager
def watch(**more: tuple[Any, str, Callable[..., int]]) -> Iterator[LoopGuard]:
    """Watch the functions of `WATCHED` and `more`; see `LoopGuard.check`."""
    guard = LoopGuard()
    undo: list[Callable[[], None]] = []
    for name, (owner, attribute, cost) in {**WATCHED, **more}.items():
        function = getattr(owner, attribute)
        for place in _places(owner, attribute, function):
            setattr(place, attribute, _noting(guard, name, function, cost))
            undo.append(lambda place=place, attribute=attribute, function=function: setattr(place, attribute, function))  # type: ignore[misc]
    run = asyncio.events.Handle._run

    def run_noted(handle: asyncio.Handle) -> None:
        guard.begin_callback()
        run(handle)

    asyncio.events.Handle._run = run_noted  # type: ignore[method-assign, assignment]
    try:
        yield guard
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        for step in undo:
            step()


def _places(owner: Any, attribute: str, function: Any) -> list[Any]:
    """Where a function has its name: its owner, and modules of Holdfast that imported it."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("holdfast")]
    return [owner, *(one for one in modules if one is not owner and vars(one).get(attribute) is function)]


def _noting(guard: LoopGuard, name: str, function: Any, cost: Callable[..., int]) -> Any:
    @wraps(function)
    def note_cost(*args: Any, **kwargs: Any) -> Any:
        guard.note(name, cost(*args, **kwargs))
        return function(*args, **kwargs)

    return note_cost
