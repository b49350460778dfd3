"""Choosing: which facts of a pool are worth their tokens, in the order in which they would be told.

A fact is worth less when it stands elsewhere already, or is one of many like it. The order does not depend on how much
is told, but for the user's own words, which keep their share of any beginning of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from holdfast.context.digest.lines import Fact, Line
from holdfast.context.digest.weighing import POWER, Row, Source, Weighed, share_of
from holdfast.context.values import Words, weighed_words, words_of

USER_LEAST, SMALL_TEXT, STEEP = 1.0, 420, 3.0
"""Part of the score of the best fact that the user's words must have to come before it in a text of so many tokens, and the
power by which it is less in a longer one: a small text has no room for "Sure, my order is K-113" where K-113 is told anyway,
and in a larger one what the user wants is worth more than the last of forty rows."""
CROWD_FREE, CROWD = 3, 4
"""Rows of one source, or values of one key in it, that are told at full worth; each `CROWD` further ones take away what
the first is worth again. So a listing of forty rows does not fill the text."""
SAID_FREE = 4
"""Sentences of one message that are told at full worth; as many more halve it: a long message leaves room for the others."""
ELSEWHERE, SAME = 0.4, 0.05
"""What a value is worth that another source, or another line about the same thing, tells already."""
FIRM = 0.5
"""The least of that for what is told for what it says: an error, an outcome, an answer."""
TRIFLE = 0.4
"""Weight below which a sentence of a user has no share of the text: a question that has been answered."""
FOLLOWS = 1.5
"""What a sentence of a user is worth more when the one before it is told."""
VISIBLE = 0.3
"""What a value is worth that stands in a message which is still sent."""


class Shown:
    """What is sent beside a digest: words that need no telling, and what is talked about now.

    Attributes:
        words: words of all of it, folded to one case.
        said: words of conversation and of arguments, with the place where they stand last.
        asked: names of arguments.
        parts: by place, the text of a unit that is sent cut: what is left of it.
        naming: pieces of the user's words, which may name rows of a result.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.said: dict[str, int] = {}
        self.asked: set[str] = set()
        self.parts: dict[int, str] = {}
        self.naming: set[str] = set()

    def add(self, seq: int, text: str, *, said: bool) -> None:
        """Take one message in."""
        words = {word.casefold() for word in words_of(text)}
        self.words |= words
        if said:
            self.said.update(dict.fromkeys(words, seq))


Chosen = tuple[Line, Fact]

_Heap = list[tuple[float, int]]


class Choice:
    """One run: facts are taken one by one, each where it then promises most for its cost.

    Args:
        lines: the pool.
        asked: names of arguments that calls had.
        shown: what is sent beside the text.
        room: tokens of the text.

    Attributes:
        order: what was taken, best first.
        costs: what each beginning of it costs.
    """

    def __init__(self, lines: list[Line], asked: Mapping[str, int], shown: Shown, *, room: float) -> None:
        self.order: list[Chosen] = []
        self.costs: list[float] = []
        self._known = Weighed(
            lines, asked.keys() | shown.asked, shown.said, shown.parts, naming=shown.naming, room=room
        )
        self._shown = shown.words
        self._named = self._known.named
        self._least = USER_LEAST * min(1.0, SMALL_TEXT / max(1.0, room)) ** STEEP
        self._share = share_of(lines)
        self._told: dict[str, set[str | int]] = {}
        self._taken = [False] * len(self._known.facts)
        self._spent = self._users = 0.0
        self._scores: list[float] = []
        self._user: _Heap = []
        self._rest: _Heap = []
        for number in range(len(self._known.facts)):
            score = self._most(number)
            self._scores.append(score)
            if self._known.bundles.get(number, (number,))[0] != number:
                self._taken[number] = True  # comes with the first of its bundle
                continue
            self._heap(number).append((-score, number))
        heapq.heapify(self._user)
        heapq.heapify(self._rest)

    def reach(self, limit: float) -> None:
        """Take facts until they cost `limit` tokens, or there are no more."""
        while self._spent < limit and (best := self._next()) >= 0:
            self._take(best)

    def take(self, number: int) -> None:
        """Take so many more, if there are."""
        for _ in range(number):
            if (best := self._next()) >= 0:
                self._take(best)

    # -- what comes next ----------------------------------------------------

    def _heap(self, number: int) -> _Heap:
        known = self._known
        return self._user if known.sources[number].user and not _trivial(known.facts[number]) else self._rest

    def _most(self, number: int) -> float:
        """The most that the score of a fact can be, now that what it stands with is told or not."""
        known = self._known
        source, lead = known.sources[number], known.rows[number].lead
        worth, cost = known.worths[number], known.facts[number].cost
        if not source.opened:
            cost += source.cost
            if source.outcome >= 0 and source.outcome != number:
                worth += known.worths[source.outcome]
                cost += known.facts[source.outcome].cost
        if lead >= 0 and lead != number and not self._taken[lead]:
            worth += known.worths[lead]
            cost += known.facts[lead].cost
        return float(worth / cost**POWER)

    def _score(self, number: int) -> float:
        known = self._known
        fact, source, row = known.facts[number], known.sources[number], known.rows[number]
        worth, cost = known.worths[number] * self._news(fact, source), fact.cost
        if not source.opened:
            cost += source.cost
            if source.outcome >= 0 and source.outcome != number:
                worth += known.worths[source.outcome] * self._news(known.facts[source.outcome], source)
                cost += known.facts[source.outcome].cost
        lead = row.lead
        if lead >= 0 and lead != number and not self._taken[lead]:
            worth += known.worths[lead] * self._news(known.facts[lead], source)
            cost += known.facts[lead].cost
        unsaid = known.listed[number] or (known.lasts[number] < 0 and row.last < 0)
        if source.crowd and unsaid and not (fact.group and row.told):
            before = source.crowd.get("" if fact.group else fact.key, 0)
            if before > CROWD_FREE:
                worth /= 1 + (before - CROWD_FREE) / CROWD
        elif source.said > SAID_FREE:
            worth /= 1 + (source.said - SAID_FREE) / SAID_FREE
        return float(worth / cost**POWER)

    def _news(self, fact: Fact, source: Source) -> float:
        """How much of what a fact says is not told yet, by weight."""
        told, shown, named = self._told, self._shown, self._named
        if not fact.prose:
            word = fact.value.casefold()
            tellers = told.get(word)
            if tellers is None:
                news = VISIBLE if word in shown else 1.0
            else:
                news = ELSEWHERE if tellers.isdisjoint(source.marks) else SAME
            return FIRM if news < FIRM and fact.firm else news
        # Most that people name is looked up, and names the call that did.
        said = source.line.kind != "call"
        total = whole = 0.0
        for word, weight in _words(fact):
            whole += weight
            tellers = told.get(word)
            if tellers is None:
                elsewhere = VISIBLE if word in shown else ELSEWHERE if said and word in named else 1.0
                total += weight * elsewhere
            else:
                total += weight * (ELSEWHERE if tellers.isdisjoint(source.marks) else SAME)
        news = total / whole if whole else 1.0
        return FIRM if news < FIRM and fact.firm else news

    def _next(self) -> int:
        """The best fact, or the user's best while the user's words have less than their share; -1: there is no more."""
        best = self._settled(self._rest)
        if best < 0:
            return self._settled(self._user)
        least = self._scores[best] * (self._least if self._users <= self._share * self._spent else 1.0)
        # Scores only fall: one that is too low before it is worked out anew need not be.
        if self._user and -self._user[0][0] >= least:
            user = self._settled(self._user)
            return user if user >= 0 and self._scores[user] >= least else best
        return best

    def _settled(self, heap: _Heap) -> int:
        """The first of `heap` whose score still holds: scores fall when values are told elsewhere."""
        scores, taken = self._scores, self._taken
        while heap:
            score, number = heap[0]
            if taken[number] or -score != scores[number]:
                heapq.heappop(heap)
                continue
            now = self._score(number)
            if now >= -score - 1e-9:
                return number
            scores[number] = now
            heapq.heapreplace(heap, (-now, number))
        return -1

    # -- taking -------------------------------------------------------------

    def _take(self, number: int) -> None:
        known = self._known
        row, source = known.rows[number], known.sources[number]
        lead = row.lead
        # Before what it stands with: an outcome may be in the row that it leads, and would have it taken again.
        self._taken[number] = True
        if not source.opened and source.outcome >= 0 and not self._taken[source.outcome]:
            self._take(source.outcome)
        if lead >= 0 and lead != number and not self._taken[lead]:
            self._take(lead)
        fact = known.facts[number]
        self._spent += 0.0 if source.opened else source.cost
        self._append(source, fact)
        # Without the handle: lines of a user that follow each other share one.
        self._users += fact.cost if source.user else 0.0
        if source.line.kind == "call":
            _crowd(source, row, fact)
        else:
            source.said += 1
        again: Iterable[int] = row.numbers if lead == number else ()
        for other in known.bundles.get(number, ())[1:]:
            self._append(source, known.facts[other])
        if source.user and number + 1 < source.end and source.said <= SAID_FREE:
            # What is said next may take it back.
            known.worths[number + 1] *= FOLLOWS
            again = (number + 1,)
        if not source.opened:
            self._tell(source.names, source.marks)
            source.opened = True
            again = range(source.start, source.end)
        for other in again:
            if not self._taken[other]:
                self._scores[other] = self._most(other)
                heapq.heappush(self._heap(other), (-self._scores[other], other))

    def _append(self, source: Source, fact: Fact) -> None:
        """Put a fact into the order."""
        self._spent += fact.cost
        self.order.append((source.line, fact))
        self.costs.append(self._spent)
        self._tell([word for word, _ in _words(fact)], source.marks)

    def _tell(self, words: Iterable[str], marks: set[str | int]) -> None:
        told = self._told
        for word in words:
            tellers = told.get(word)
            told[word] = marks if tellers is None else tellers | marks


def _crowd(source: Source, row: Row, fact: Fact) -> None:
    """Note that one more row, or one more value of a key, of a source is told."""
    if fact.group and row.told:
        return
    key = "" if fact.group else fact.key
    source.crowd[key] = source.crowd.get(key, 0) + 1
    row.told = True


def _trivial(fact: Fact) -> bool:
    """A sentence that is worth next to nothing, or has no value in it and is too short to be more than a "yes, thanks"."""
    return fact.weight < TRIFLE or (fact.weight < 0.8 and len(fact.value) < (20 if fact.value.isascii() else 6))


def _words(fact: Fact) -> Words:
    return weighed_words(fact.value) if fact.prose else ((fact.value.casefold(), 1.0),)
