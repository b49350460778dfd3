"""Choosing: which facts of a pool are worth their tokens, in the order in which they would be told.

A fact is worth more the more its form promises, the more often it or what it belongs to was talked about, and the later;
and less when it stands elsewhere already. The order does not depend on how much is told, but for the user's own words,
which keep their share of any beginning of it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from holdfast.context.facts import Fact, Line, weight_of, words_of

USER_SHARE = 0.26
"""Part of the text that is the user's own words, while there are some. By estimate, which is short of the count: what
comes out is about a fifth."""
HALF_LIFE = 24
"""Messages after which a fact that nobody used again counts half, down to `OLD`."""
OLD = 0.7
SAID_AGAIN = 0.7
"""What each time that a value was said adds to its worth."""
ASKED = 2.2
"""What a value is worth more whose key is the name of an argument that some call had."""
MANY = 0.15
"""How strongly it counts against a value that many like it stand beside it and nobody talked about it."""
ROW_NAME = 2.0
"""Weight from which a value can name its row."""
ELSEWHERE, SAME = 0.4, 0.05
"""What a value is worth that another source, or another line about the same thing, tells already."""
VISIBLE = 0.12
"""What a value is worth that stands in a message which is still sent."""
POWER = 0.8
"""How strongly cost counts against worth."""
BASE = {"call": 2.0, "user": 2.5, "assistant": 0.7, "other": 1.5}


class Shown:
    """What is sent beside a digest: words that need no telling, and what is talked about now.

    Attributes:
        words: words of all of it, folded to one case.
        said: words of conversation and of arguments, with the place where they stand last.
        asked: names of arguments.
        parts: by place, the text of a unit that is sent cut: what is left of it.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.said: dict[str, int] = {}
        self.asked: set[str] = set()
        self.parts: dict[int, str] = {}

    def add(self, seq: int, text: str, *, said: bool) -> None:
        """Take one message in."""
        words = {word.casefold() for word in words_of(text)}
        self.words |= words
        if said:
            self.said.update(dict.fromkeys(words, seq))


def cost_of(text: str) -> float:
    """Tokens of `text`, roughly: identifiers take one for 2.5 characters, words one for 4, dense scripts one each."""
    if not text.isascii():
        return len(text) / 1.8
    return len(text) / (2.4 if any(map(str.isdigit, text)) and " " not in text else 4.0)


def ordered(
    lines: list[Line], *, limit: float, asked: Mapping[str, int] = {}, shown: Shown | None = None
) -> tuple[list[Fact], list[float]]:
    """The facts of `lines`, best first, until they cost about `limit` tokens; and what each beginning of it costs."""
    choice = _Choice(lines, asked, shown or Shown())
    return choice.run(limit)


def likeliest(lines: list[Line], *, limit: float, asked: Mapping[str, int]) -> set[int]:
    """The `id` of the facts that are most likely to be told some day, in about `limit` tokens."""
    return _Choice(lines, asked, Shown()).best(limit)


class _Item:
    """A fact that may be told."""

    __slots__ = ("cost", "fact", "last", "line", "row", "score", "taken", "words", "worth")

    def __init__(self, line: _Source, row: _Row, fact: Fact, worth: float) -> None:
        self.line = line
        self.row = row
        self.fact = fact
        self.worth = worth
        self.cost = 1.5 + cost_of(fact.value) + (0.0 if fact.group else cost_of(fact.key))
        self.words: tuple[tuple[str, float], ...] = ()
        self.score = 0.0
        self.last = -1
        self.taken = False


class _Row:
    """Facts of one object."""

    __slots__ = ("items", "last", "lead")

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.lead: _Item | None = None
        self.last = -1


class _Source:
    """A line on its way into the text."""

    __slots__ = ("cost", "items", "line", "marks", "names", "opened", "rank")

    def __init__(self, line: Line, rank: int) -> None:
        self.line = line
        self.rank = rank
        self.cost = 2.0 + cost_of(line.handle)
        self.names = {name.casefold() for name in line.names}
        self.marks = {*self.names, f"#{rank}"}
        self.items: list[_Item] = []
        self.opened = False


class _Choice:
    """One run: facts are taken one by one, each where it then promises most for its cost."""

    def __init__(self, lines: list[Line], asked: Mapping[str, int], shown: Shown) -> None:
        self.shown = shown
        self.asked = asked
        self.now = max((line.seq for line in lines), default=0)
        self.now = max(self.now, max(shown.said.values(), default=0))
        self.told: dict[str, set[str]] = {}
        self.user: list[tuple[float, int, int, _Item]] = []
        self.rest: list[tuple[float, int, int, _Item]] = []
        self.pushed = 0
        self.order: list[Fact] = []
        self.costs: list[float] = []
        self.sources: list[_Source] = []
        self.spent = self.users = 0.0
        for rank, line in enumerate(lines):
            self._admit(_Source(line, rank))

    def run(self, limit: float) -> tuple[list[Fact], list[float]]:
        """The facts in order, and what each beginning costs."""
        for source in self.sources:
            for item in source.items:
                self._push(item)
        while self.spent < limit and (best := self._next()) is not None:
            self._take(best)
        return self.order, self.costs

    def best(self, limit: float) -> set[int]:
        """The identities of the facts worth most by themselves, in about `limit` tokens: no order, but fast."""
        items = [item for source in self.sources for item in source.items]
        items.sort(key=lambda item: item.worth / item.cost**POWER, reverse=True)
        kept: set[int] = set()
        users = spent = 0.0
        for item in items:
            user = item.line.line.kind == "user"
            users += item.cost if user else 0.0
            spent += 0.0 if user else item.cost
            if (users <= limit * USER_SHARE) if user else (spent <= limit * (1 - USER_SHARE)):
                kept.add(id(item.fact))
        return kept

    # -- what a fact is worth ----------------------------------------------

    def _admit(self, source: _Source) -> None:
        line = source.line
        left = self.shown.parts.get(line.seq)
        rows: dict[int, _Row] = {}
        for fact in line.facts:
            if (left is not None and fact.value in left) or (fact.was is None and fact.value in line.names):
                continue
            row = rows.setdefault(fact.group, _Row())
            item = _Item(source, row, fact, fact.weight)
            row.items.append(item)
            source.items.append(item)
        self._weigh(source, rows, BASE[line.kind])
        self.sources.append(source)

    def _weigh(self, source: _Source, rows: dict[int, _Row], base: float) -> None:
        line = source.line
        focus = max(line.last, line.seq, self._said(line.names))
        for group, row in rows.items():
            for item in row.items:
                item.last = item.fact.last if item.fact.prose else max(item.fact.last, self._said((item.fact.value,)))
            if group:
                row.last = max((item.last for item in row.items if item.fact.weight >= ROW_NAME), default=-1)
        many = Counter(item.fact.key for item in source.items)
        for group, row in rows.items():
            for item in row.items:
                item.worth *= base * self._use(item, max(focus, row.last))
                if item.fact.key and item.last < 0 and row.last < 0:
                    item.worth /= many[item.fact.key] ** MANY
                item.words = _words(item.fact)
            if group and len(row.items) > 1 and not row.items[0].fact.prose:
                row.lead = max(row.items, key=lambda item: item.fact.weight)

    def _use(self, item: _Item, focus: int) -> float:
        """More for what was said again, for what calls ask for, and for what was talked about lately."""
        used = item.fact.used + (item.last > item.fact.last)
        age = self.now - max(focus, item.last)
        asked = ASKED if self._asked(item.fact) else 1.0
        return float(asked * (1 + SAID_AGAIN * min(used, 4)) * (OLD + (1 - OLD) * 0.5 ** (age / HALF_LIFE)))

    def _asked(self, fact: Fact) -> bool:
        name = fact.key.rpartition(".")[2]
        return name in self.asked or name in self.shown.asked

    def _said(self, values: Iterable[str]) -> int:
        said = self.shown.said
        return max((said.get(value.casefold(), -1) for value in values), default=-1)

    def _score(self, item: _Item) -> float:
        worth, cost = item.worth * self._news(item), item.cost
        if not item.line.opened:
            cost += item.line.cost
        lead = item.row.lead
        if lead is not None and not lead.taken and lead is not item:
            worth += lead.worth * self._news(lead)
            cost += lead.cost
        return float(worth / cost**POWER)

    def _news(self, item: _Item) -> float:
        """How much of what a fact says is not told yet, by weight."""
        total = 0.0
        whole = 0.0
        for word, weight in item.words:
            whole += weight
            total += weight * self._novelty(word, item.line)
        return total / whole if whole else 1.0

    def _novelty(self, word: str, source: _Source) -> float:
        tellers = self.told.get(word)
        if tellers is not None:
            return ELSEWHERE if tellers.isdisjoint(source.marks) else SAME
        return VISIBLE if word in self.shown.words else 1.0

    # -- taking -------------------------------------------------------------

    def _push(self, item: _Item) -> None:
        item.score = self._score(item)
        self.pushed += 1
        heap = self.user if item.line.line.kind == "user" and not _trivial(item.fact) else self.rest
        heapq.heappush(heap, (-item.score, item.line.rank, self.pushed, item))

    def _next(self) -> _Item | None:
        """The best fact, or the user's best while the user's words have less than their share."""
        best, user = self._top(self.rest), self._top(self.user)
        if user is None or best is None:
            return user or best
        if self.users <= USER_SHARE * self.spent or user.score >= best.score:
            return user
        return best

    def _top(self, heap: list[tuple[float, int, int, _Item]]) -> _Item | None:
        """The first of `heap` whose score still holds: scores fall when values are told elsewhere."""
        while heap:
            score, _, _, item = heap[0]
            if item.taken or -score != item.score:
                heapq.heappop(heap)
                continue
            now = self._score(item)
            if now >= item.score - 1e-9:
                return item
            heapq.heappop(heap)
            self._push(item)
        return None

    def _take(self, item: _Item) -> None:
        lead = item.row.lead
        if lead is not None and not lead.taken and lead is not item:
            self._take(lead)
        source = item.line
        item.taken = True
        cost = item.cost + (0.0 if source.opened else source.cost)
        self.spent += cost
        # Without the handle: lines of a user that follow each other share one.
        self.users += item.cost if source.line.kind == "user" else 0.0
        self.order.append(item.fact)
        self.costs.append(self.spent)
        for word, _ in item.words:
            self.told.setdefault(word, set()).update(source.marks)
        if not source.opened:
            for name in source.names:
                self.told.setdefault(name, set()).update(source.marks)
        again = source.items if not source.opened else item.row.items if lead is item else []
        source.opened = True
        for other in again:
            if not other.taken:
                self._push(other)


def _trivial(fact: Fact) -> bool:
    """A sentence without a value in it, and too short to be more than a "yes, thanks"."""
    return fact.weight < 0.8 and len(fact.value) < (20 if fact.value.isascii() else 6)


def _words(fact: Fact) -> tuple[tuple[str, float], ...]:
    return _prose_words(fact.value) if fact.prose else ((fact.value.casefold(), 1.0),)


@lru_cache(maxsize=8192)
def _prose_words(text: str) -> tuple[tuple[str, float], ...]:
    """Kept, because the same facts are weighed at every step as long as they are in the pool."""
    return tuple((word.casefold(), weight_of(word)) for word in words_of(text))
