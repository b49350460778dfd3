"""Lines: what a digest keeps of one source, as plain values that are saved with the view."""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter
from typing import Literal

import msgspec

from holdfast.context.values import cost_of

Kind = Literal["call", "user", "assistant", "conclusion", "other"]
"""What a source is. A conclusion is what the assistant said when its calls were done."""


class Fact(msgspec.Struct, array_like=True, gc=False):
    """One value with the key it came with."""

    key: str
    value: str
    group: int
    """Facts of one object share a group: they are told together. 0 is the source itself, others are rows in it."""
    weight: float
    """How likely an agent comes back for a value of this form."""
    used: int = 0
    """How often other messages said the value."""
    last: int = -1
    """Where it was said last."""
    was: str | None = None
    """The value it had before, when the same source told another one."""
    prose: bool = False
    """A sentence: worth what the values in it are worth."""
    firm: bool = False
    """Told for what it says, whatever of it is told elsewhere: an error, the outcome of an action, an answer."""
    again: bool = False
    """Told by an earlier source already, which is where it is looked for first."""
    cost: float = 4.0
    """About how many tokens it takes; see `priced`."""
    bundle: int = 0
    """Number of the parallel lists in its line that it belongs to: they are shown whole or not at all. 0: to none."""


class Line(msgspec.Struct, array_like=True, gc=False):
    """One source and what is kept of it."""

    handle: str
    key: str
    """Equal for the same question asked again; unique for what was said."""
    seq: int
    """The source's place in the log; the newest one, when the same source was asked again."""
    kind: Kind
    facts: list[Fact]
    names: list[str] = []
    """The arguments in the handle: what the facts belong to."""
    asked: list[str] = []
    """Names of all arguments of a call, nested ones too."""
    last: int = -1
    """Where one of the names was said last."""
    cost: float = 6.0
    """About how many tokens the handle takes."""
    given: int = 0
    """The last group of arguments: those behind it, and group 0, are of the result."""
    lists: list[tuple[int, str]] = []
    """What rows are of, `(first group, name)`, in order: passengers are not the owner."""
    counts: dict[str, int] = {}
    """By key, how many values a list of the source has: of some of them a reader should see that there are more."""

    def list_of(self, group: int) -> str:
        """The name of the list that a group stands in; empty where it has none."""
        lists = self.lists
        if not group or not lists or group < lists[0][0]:
            return ""
        return lists[bisect_right(lists, group, key=itemgetter(0)) - 1][1]


def priced(fact: Fact) -> None:
    """Work out what a fact costs to tell: once, for it is asked at every step."""
    key = cost_of(fact.key) if fact.key and not fact.group else 0.0
    fact.cost = round(1.5 + cost_of(fact.value) + key, 1)
