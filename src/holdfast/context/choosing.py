"""Choosing: which facts of a pool are worth their tokens, in the order in which they would be told.

A fact is worth more the more its form promises, the more often it or what it belongs to was talked about, and the later;
and less when it stands elsewhere already, or is one of many like it. The order does not depend on how much is told, but
for the user's own words, which keep their share of any beginning of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from functools import lru_cache

from holdfast.context.facts import QUESTION, Fact, Line, weight_of, words_of

USER_SHARE = 0.26
"""Part of the text that is the user's own words, while there are some. By estimate, which is short of the count: what
comes out is about a fifth."""
USER_LEAST, SMALL_TEXT = 0.6, 400
"""Part of the score of the best fact that the user's words must have to come before it in a text of so many tokens, and
the less in a longer one: a small text has no room for "Sure, my order is K-113" where K-113 is told anyway."""
HALF_LIFE = 24
"""Messages after which a fact that nobody used again counts half, down to `OLD`."""
OLD = 0.7
SAID_AGAIN = 0.7
"""What each time that a value was said adds to its worth."""
ASKED = 2.2
"""What a value is worth more whose key is the name of an argument that some call had."""
MANY = 0.15
"""How strongly it counts against a value that many like it stand beside it and nobody talked about it."""
CROWD_FREE, CROWD = 3, 4
"""Rows of one source, or values of one key in it, that are told at full worth; each `CROWD` further ones take away what
the first is worth again. So a listing of forty rows does not fill the text."""
LISTED, DONE = 2.0, 0.5
"""What an identifier in a list is worth when calls have begun to go through the list; and what one is worth of it that
names a call already."""
PROPOSED, OPEN = 3.0, 4.0
"""What the last thing said before the user's last answer is worth more, for that is what a bare "yes" agrees to; and the
least weight of its end, where a question stands."""
STATEMENT = 2
"""Sentences up to which the end of it is no phrase of politeness."""
ROW_NAME = 2.0
"""Weight from which a value can name its row."""
ELSEWHERE, SAME = 0.4, 0.05
"""What a value is worth that another source, or another line about the same thing, tells already."""
FIRM = 0.5
"""The least of that for what is told for what it says: an error, an outcome, an answer."""
VISIBLE = 0.3
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


@lru_cache(maxsize=16_384)
def cost_of(text: str) -> float:
    """Tokens of `text`, roughly: identifiers take one for 2.5 characters, words one for 4, dense scripts one each.

    Kept, because the same facts are weighed at every step as long as they are in the pool.
    """
    if not text.isascii():
        return len(text) / 1.8
    return len(text) / (2.4 if " " not in text and any(map(str.isdigit, text)) else 4.0)


Chosen = tuple[Line, Fact]


def ordered(
    lines: list[Line], *, limit: float, asked: Mapping[str, int] = {}, shown: Shown | None = None
) -> tuple[list[Chosen], list[float]]:
    """The facts of `lines`, best first, until they cost about `limit` tokens; and what each beginning of it costs."""
    choice = _Choice(lines, asked, shown or Shown())
    return choice.run(limit)


def likeliest(lines: list[Line], *, limit: float, asked: Mapping[str, int]) -> set[int]:
    """The `id` of the facts that are most likely to be told some day, in about `limit` tokens."""
    return _Choice(lines, asked, Shown()).best(limit)


class _Row:
    """Facts of one object."""

    __slots__ = ("items", "last", "lead", "told")

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.lead: _Item | None = None
        self.last = -1
        self.told = False


class _Item:
    """A fact that may be told."""

    __slots__ = ("cost", "fact", "last", "line", "row", "score", "taken", "words", "worth")

    def __init__(self, line: _Source, row: _Row, fact: Fact) -> None:
        self.line = line
        self.row = row
        self.fact = fact
        self.worth = fact.weight
        self.cost = 1.5 + cost_of(fact.value) + (0.0 if fact.group or not fact.key else cost_of(fact.key))
        self.words: tuple[tuple[str, float], ...] | None = None
        self.score = 0.0
        self.last = fact.last
        self.taken = False


class _Source:
    """A line on its way into the text."""

    __slots__ = ("cost", "crowd", "items", "line", "marks", "names", "opened", "rank")

    def __init__(self, line: Line, rank: int) -> None:
        self.line = line
        self.rank = rank
        self.cost = 2.0 + cost_of(line.handle)
        self.names = {name.casefold() for name in line.names}
        self.marks = {*self.names, f"#{rank}"}
        self.items: list[_Item] = []
        self.opened = False
        self.crowd: dict[str, int] = {}


_Heap = list[tuple[float, int, int, _Item]]


class _Choice:
    """One run: facts are taken one by one, each where it then promises most for its cost."""

    def __init__(self, lines: list[Line], asked: Mapping[str, int], shown: Shown) -> None:
        self.shown = shown
        self.asked = asked.keys() | shown.asked
        self.now = max([line.seq for line in lines] + list(shown.said.values()), default=0)
        self.proposal = _proposal(lines)
        self.named = {name.casefold() for line in lines for name in line.names}
        self.told: dict[str, set[str]] = {}
        self.user: _Heap = []
        self.rest: _Heap = []
        self.pushed = 0
        self.order: list[Chosen] = []
        self.costs: list[float] = []
        self.spent = self.users = self.least = 0.0
        self.sources = [_Source(line, rank) for rank, line in enumerate(lines)]
        for source in self.sources:
            self._admit(source)

    def run(self, limit: float) -> tuple[list[Chosen], list[float]]:
        """The facts in order, and what each beginning costs."""
        self.least = USER_LEAST * min(1.0, SMALL_TEXT / max(1.0, limit))
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
        facts = line.facts
        if left is not None:
            facts = [fact for fact in facts if fact.value not in left]
        if line.kind == "call":
            self._admit_call(source, [fact for fact in facts if fact.was is not None or fact.value not in line.names])
        else:
            self._admit_said(source, facts)

    def _admit_said(self, source: _Source, facts: Iterable[Fact]) -> None:
        line = source.line
        base = BASE[line.kind] * (PROPOSED if line is self.proposal else 1.0)
        focus = max(line.last, line.seq)
        source.items = [_Item(source, _NO_ROW, fact) for fact in facts]
        if (
            line is self.proposal
            and source.items
            and (len(line.facts) <= STATEMENT or line.facts[-1].value.endswith(QUESTION))
        ):
            source.items[-1].worth = max(source.items[-1].worth, OPEN)
        for item in source.items:
            item.worth *= base * self._use(item, focus)

    def _admit_call(self, source: _Source, facts: Iterable[Fact]) -> None:
        line = source.line
        rows: dict[int, _Row] = {}
        many: dict[str, int] = {}
        for fact in facts:
            row = rows.setdefault(fact.group, _Row())
            item = _Item(source, row, fact)
            if not fact.prose:
                item.last = max(item.last, self._said((fact.value,)))
            row.items.append(item)
            source.items.append(item)
            many[fact.key] = many.get(fact.key, 0) + 1
        focus = max(line.last, line.seq, self._said(line.names))
        base = BASE[line.kind]
        for group, row in rows.items():
            if group:
                row.last = max((item.last for item in row.items if item.fact.weight >= ROW_NAME), default=-1)
            for item in row.items:
                item.worth *= base * self._use(item, max(focus, row.last))
                if item.fact.key and item.last < 0 and row.last < 0:
                    item.worth /= many[item.fact.key] ** MANY
            if group and len(row.items) > 1 and not row.items[0].fact.prose:
                row.lead = max(row.items, key=lambda item: item.fact.weight)
        if 0 in rows:
            self._weigh_lists(rows[0], many)

    def _weigh_lists(self, row: _Row, many: Mapping[str, int]) -> None:
        """More for what is next in a list of identifiers that calls go through."""
        begun = {item.fact.key for item in row.items if item.last >= 0 and many[item.fact.key] > 1}
        for item in row.items:
            if many[item.fact.key] > 1 and item.fact.weight >= ROW_NAME:
                item.worth *= LISTED if item.fact.key in begun else 1.0
                item.worth *= DONE if item.fact.value.casefold() in self.named else 1.0

    def _use(self, item: _Item, focus: int) -> float:
        """More for what was said again, for what calls ask for, and for what was talked about lately."""
        fact = item.fact
        used = fact.used + (item.last > fact.last)
        age = self.now - max(focus, item.last)
        asked = ASKED if fact.key and fact.key.rpartition(".")[2] in self.asked else 1.0
        return float(asked * (1 + SAID_AGAIN * min(used, 4)) * (OLD + (1 - OLD) * 0.5 ** (age / HALF_LIFE)))

    def _said(self, values: Iterable[str]) -> int:
        said = self.shown.said
        return max((said.get(value.casefold(), -1) for value in values), default=-1) if said else -1

    def _score(self, item: _Item) -> float:
        worth, cost = item.worth * self._news(item), item.cost
        source, row = item.line, item.row
        if not source.opened:
            cost += source.cost
        lead = row.lead
        if lead is not None and not lead.taken and lead is not item:
            worth += lead.worth * self._news(lead)
            cost += lead.cost
        if source.crowd and item.last < 0 and row.last < 0 and not (item.fact.group and row.told):
            before = source.crowd.get("" if item.fact.group else item.fact.key, 0)
            worth /= 1 + max(0, before - CROWD_FREE) / CROWD
        return float(worth / cost**POWER)

    def _news(self, item: _Item) -> float:
        """How much of what a fact says is not told yet, by weight."""
        if item.words is None:
            item.words = _words(item.fact)
        total = whole = 0.0
        told, shown, marks = self.told, self.shown.words, item.line.marks
        for word, weight in item.words:
            whole += weight
            tellers = told.get(word)
            if tellers is None:
                total += weight * VISIBLE if word in shown else weight
            else:
                total += weight * (ELSEWHERE if tellers.isdisjoint(marks) else SAME)
        news = total / whole if whole else 1.0
        return max(news, FIRM) if item.fact.firm else news

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
        if self.users <= USER_SHARE * self.spent and user.score >= self.least * best.score:
            return user
        return user if user.score >= best.score else best

    def _top(self, heap: _Heap) -> _Item | None:
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
        self.spent += item.cost + (0.0 if source.opened else source.cost)
        # Without the handle: lines of a user that follow each other share one.
        self.users += item.cost if source.line.kind == "user" else 0.0
        self.order.append((source.line, item.fact))
        self.costs.append(self.spent)
        if source.line.kind == "call":
            _crowd(source, item)
        for word, _ in item.words or _words(item.fact):
            self.told.setdefault(word, set()).update(source.marks)
        if not source.opened:
            for name in source.names:
                self.told.setdefault(name, set()).update(source.marks)
        again = source.items if not source.opened else item.row.items if lead is item else []
        source.opened = True
        for other in again:
            if not other.taken:
                self._push(other)


_NO_ROW = _Row()
"""Of sentences: each is an object of its own, with nothing to know about it."""


def _crowd(source: _Source, item: _Item) -> None:
    """Note that one more row, or one more value of a key, of a source is told."""
    if item.fact.group and item.row.told:
        return
    key = "" if item.fact.group else item.fact.key
    source.crowd[key] = source.crowd.get(key, 0) + 1
    item.row.told = True


def _proposal(lines: list[Line]) -> Line | None:
    """What the assistant said last, unless the user has said something since that left, too."""
    said = [line for line in lines if line.kind in ("user", "assistant")]
    newest = max(said, key=lambda line: line.seq, default=None)
    return newest if newest is not None and newest.kind == "assistant" else None


def _trivial(fact: Fact) -> bool:
    """A sentence without a value in it, and too short to be more than a "yes, thanks"."""
    return fact.weight < 0.8 and len(fact.value) < (20 if fact.value.isascii() else 6)


def _words(fact: Fact) -> tuple[tuple[str, float], ...]:
    return _prose_words(fact.value) if fact.prose else ((fact.value.casefold(), 1.0),)


@lru_cache(maxsize=8192)
def _prose_words(text: str) -> tuple[tuple[str, float], ...]:
    """Kept, because the same facts are weighed at every step as long as they are in the pool."""
    return tuple((word.casefold(), weight_of(word)) for word in words_of(text))
