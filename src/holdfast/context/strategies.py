"""Strategies of an application: functions that choose which messages stay in a working set.

A function chooses; that the working set is legal, complete and within its budget is Holdfast's part. See docs/policies.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.context.policies import Chooser, Policy, set_chooser
from holdfast.context.settings import BUILT_IN, add_strategy, remove_strategy
from holdfast.context.units import spoken
from holdfast.context.window import Window
from holdfast.domain.messages import Message
from holdfast.errors import InvalidRequest


class StrategyUnit(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What stays or leaves together: a message, or a reply with tool calls and all their results."""

    seq: int
    """Place of its first message in the log: what the function returns."""
    last: int
    """Place of its last message."""
    messages: tuple[Message, ...]
    """As they would be sent, uncut."""
    tokens: int
    """That it takes in the prompt, cuts included."""
    importance: float | None
    """The highest that a caller or a scorer gave one of its messages, 0 to 1; None: nobody gave one."""
    must_stay: bool
    """True for the task, pinned messages, system messages in force, the current user message and the newest unit."""


StrategyFunction = Callable[[Sequence[StrategyUnit], int], Iterable[int]]
"""Chooses which units stay in a prompt that would be over its budget, and returns their `seq`.

It is given every unit that is still in the prompt, oldest first, and the tokens that all which stay may take together. It has to be
deterministic, and is called only when the prompt is over its budget: between two calls, prompts only grow.
"""


_uses: Counter[str] = Counter()
"""How often each name is registered and not forgotten yet."""


def register_strategies(functions: Mapping[Any, Any]) -> None:
    """Make functions known as strategies in this process; one of the same name takes the place of an earlier one.

    `holdfast.open(strategies=…)` does it until the store is closed.

    Raises:
        InvalidRequest: a name that is built in or no identifier, or what is no function.
    """
    for name, function in functions.items():
        if name in BUILT_IN or not (isinstance(name, str) and name.isidentifier()):
            why = "is a built-in strategy" if name in BUILT_IN else "must be letters, digits and underscores"
            raise InvalidRequest(f"strategies: {name!r} {why}; choose another name", param="strategies")
        if not callable(function):
            message = f"strategies[{name!r}] must be a function, not {type(function).__name__}"
            raise InvalidRequest(message, param="strategies")
    for name, function in functions.items():
        _uses[name] += 1
        add_strategy(name)
        set_chooser(name, _chooser(name, function))


def forget_strategies(names: Iterable[str]) -> None:
    """Take back one registration of each name; a name without one is unknown again."""
    for name in names:
        _uses[name] -= 1
        if _uses[name] <= 0:
            del _uses[name]
            remove_strategy(name)
            set_chooser(name, None)


def _chooser(name: str, function: StrategyFunction) -> Chooser:
    def choose(window: Window, own: Policy) -> Container[int]:
        newest = window.units[-1]
        units = [*window.head, *window.units]
        shown = [
            StrategyUnit(
                seq=unit.first,
                last=unit.last,
                messages=tuple(message for _, message in spoken(unit, window.room.marker)),
                tokens=window.size(unit),
                importance=max((one.importance for one in unit.entries if one.importance is not None), default=None),
                must_stay=unit is newest or window.protected(unit),
            )
            for unit in units
        ]
        chosen: Any = function(shown, window.room.tokens)
        try:
            return frozenset(chosen)
        except TypeError as exc:
            message = f"strategy {name!r} must return the seq of each unit that stays, not {type(chosen).__name__}"
            raise InvalidRequest(message, param="strategy") from exc

    return choose
