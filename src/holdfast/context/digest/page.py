"""Choose the facts of a pool that are most worth their tokens, and write as many of them as fit, one line per source.

A fact is worth less if another chosen fact says the same, or if it is one of many similar facts. Facts are chosen in one order, best first,
and the text has as many of them as fit. Among the first facts of this order, the user's own words always have a minimum share.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.context.cut import count_piece
from holdfast.context.digest.texts import Fact, Line
from holdfast.context.digest.weights import POWER, Row, Source, WeighedFacts, compute_people_share
from holdfast.context.escaping import escape_inline
from holdfast.context.values import COLONS, Words, split_words, weigh_words
from holdfast.domain.counting import TokenCounter

USER_LEAST, SMALL_TEXT, STEEP = 1.0, 420, 3.0
"""Minimum score of a user's sentence that is chosen before a better fact, while the user's words have less than their share of the text.

It is a fraction of the better fact's score: `USER_LEAST` in a text of at most `SMALL_TEXT` tokens, and less in a longer one, with the
exponent `STEEP`. A small text cannot afford "Sure, my order is K-113" if it contains K-113 anyway. In a larger one, the user's wishes are
worth more than the last of forty rows."""
CROWD_FREE, CROWD = 3, 4
"""The first `CROWD_FREE` rows of a source, or values with the same key, have full worth. For each later one the worth is divided by a
number that grows by 1 with every `CROWD` of them, so that a listing of forty rows does not fill the text."""
SAID_FREE = 4
"""Number of sentences of a message that have full worth. Later ones have less (half after twice as many), so that a long message does not
fill the text."""
ELSEWHERE, SAME = 0.4, 0.05
"""Factors for a value that is already in the text: `SAME` if the line that contains it is about the same thing, otherwise `ELSEWHERE`."""
FIRM = 0.5
"""Minimum of the factors `ELSEWHERE`, `SAME` and `VISIBLE` for an error, an outcome or an answer, which matter even if their values are
known."""
TRIFLE = 0.4
"""A sentence of a user with a lower weight does not count for the user's share of the text. An example is a question that was answered."""
FOLLOWS = 1.5
"""Factor for a sentence of a user that comes directly after a chosen sentence."""
VISIBLE = 0.3
"""Factor for a value that a message sent with the digest contains."""


class SentContext:
    """The words of the messages that are sent with a digest. They need no repetition, and show the current subject.

    Attributes:
        words: all words, case-folded.
        said: words of messages and of arguments of calls, each with the `seq` of the unit that used it last. Words of tool results are not
            included.
        asked: names of arguments of calls.
        parts: by `seq` of a unit, text that the prompt contains anyway: the remaining text of a cut unit, and the user's standing facts.
        naming: words of the user, in lower case and without punctuation, which may name rows of a result.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.said: dict[str, int] = {}
        self.asked: set[str] = set()
        self.parts: dict[int, str] = {}
        self.naming: set[str] = set()

    def add(self, seq: int, text: str, *, said: bool) -> None:
        """Add the words of a message.

        Args:
            seq: `seq` of the message's unit.
            text: text and arguments of the message.
            said: False for a tool result.
        """
        words = {word.casefold() for word in split_words(text)}
        self.words |= words
        if said:
            self.said.update(dict.fromkeys(words, seq))


ChosenFact = tuple[Line, Fact]

_Heap = list[tuple[float, int]]


class FactSelector:
    """Chooses facts one by one, always the one with the highest worth in relation to its tokens.

    Args:
        lines: the lines of the pool.
        asked: names of arguments of calls.
        shown: the messages that are sent with the text.
        room: maximum tokens of the text.

    Attributes:
        order: the chosen facts, best first.
        costs: for each item of `order`, the estimated tokens of all chosen facts up to and including it.
    """

    def __init__(self, lines: list[Line], asked: Mapping[str, int], shown: SentContext, *, room: float) -> None:
        self.order: list[ChosenFact] = []
        self.costs: list[float] = []
        self._known = WeighedFacts(
            lines, asked.keys() | shown.asked, shown.said, shown.parts, naming=shown.naming, room=room
        )
        self._shown = shown.words
        self._named = self._known.named
        self._least = USER_LEAST * min(1.0, SMALL_TEXT / max(1.0, room)) ** STEEP
        self._share = compute_people_share(lines)
        self._marks: dict[str, set[str | int]] = {}
        self._taken = [False] * len(self._known.facts)
        self._spent = self._users = 0.0
        self._scores: list[float] = []
        self._user: _Heap = []
        self._rest: _Heap = []
        for number in range(len(self._known.facts)):
            score = self._compute_upper_score(number)
            self._scores.append(score)
            if self._known.bundles.get(number, (number,))[0] != number:
                self._taken[number] = True  # it will be chosen together with the first fact of its bundle
                continue
            self._get_heap(number).append((-score, number))
        heapq.heapify(self._user)
        heapq.heapify(self._rest)

    def select_up_to(self, limit: float) -> None:
        """Choose facts until all chosen facts take about `limit` tokens, or none are left."""
        while self._spent < limit and (best := self._find_next()) >= 0:
            self._take(best)

    def select_more(self, number: int) -> None:
        """Choose up to `number` further facts."""
        for _ in range(number):
            if (best := self._find_next()) >= 0:
                self._take(best)

    # -- scoring ------------------------------------------------------------

    def _get_heap(self, number: int) -> _Heap:
        known = self._known
        return self._user if known.sources[number].user and not _is_trivial(known.facts[number]) else self._rest

    def _compute_upper_score(self, number: int) -> float:
        """Return an upper bound of a fact's score. The exact score may be lower, because chosen facts may say the same."""
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

    def _compute_score(self, number: int) -> float:
        known = self._known
        fact, source, row = known.facts[number], known.sources[number], known.rows[number]
        worth, cost = known.worths[number] * self._compute_novelty(fact, source), fact.cost
        if not source.opened:
            cost += source.cost
            if source.outcome >= 0 and source.outcome != number:
                worth += known.worths[source.outcome] * self._compute_novelty(known.facts[source.outcome], source)
                cost += known.facts[source.outcome].cost
        lead = row.lead
        if lead >= 0 and lead != number and not self._taken[lead]:
            worth += known.worths[lead] * self._compute_novelty(known.facts[lead], source)
            cost += known.facts[lead].cost
        unsaid = known.listed[number] or (known.lasts[number] < 0 and row.last < 0)
        if source.crowd and unsaid and not (fact.group and row.is_chosen):
            before = source.crowd.get("" if fact.group else fact.key, 0)
            if before > CROWD_FREE:
                worth /= 1 + (before - CROWD_FREE) / CROWD
        elif source.said > SAID_FREE:
            worth /= 1 + (source.said - SAID_FREE) / SAID_FREE
        return float(worth / cost**POWER)

    def _compute_novelty(self, fact: Fact, source: Source) -> float:
        """Return a factor from 0 to 1 that is lower the more of a fact's values are already in the text or in messages sent with it."""
        marks_by_word, shown, named = self._marks, self._shown, self._named
        if not fact.prose:
            word = fact.value.casefold()
            marks = marks_by_word.get(word)
            if marks is None:
                news = VISIBLE if word in shown else 1.0
            else:
                news = ELSEWHERE if marks.isdisjoint(source.marks) else SAME
            return FIRM if news < FIRM and fact.firm else news
        # Agents look up most things that people name, so these names are also in the handle of a call.
        said = source.line.kind != "call"
        total = whole = 0.0
        for word, weight in _weigh_fact_words(fact):
            whole += weight
            marks = marks_by_word.get(word)
            if marks is None:
                elsewhere = VISIBLE if word in shown else ELSEWHERE if said and word in named else 1.0
                total += weight * elsewhere
            else:
                total += weight * (ELSEWHERE if marks.isdisjoint(source.marks) else SAME)
        news = total / whole if whole else 1.0
        return FIRM if news < FIRM and fact.firm else news

    def _find_next(self) -> int:
        """Return the number of the next fact to choose; -1 if there are none left.

        This is the fact with the best score. While the user's words have less than their share, it is the best of the user's facts, unless
        its score is too low.
        """
        best = self._find_settled(self._rest)
        if best < 0:
            return self._find_settled(self._user)
        least = self._scores[best] * (self._least if self._users <= self._share * self._spent else 1.0)
        # Scores only fall, so a score that is too low already need not be recomputed.
        if self._user and -self._user[0][0] >= least:
            user = self._find_settled(self._user)
            return user if user >= 0 and self._scores[user] >= least else best
        return best

    def _find_settled(self, heap: _Heap) -> int:
        """Return the number of the best fact in `heap`, -1 if the heap is empty. Recompute outdated scores.

        Scores only fall, when other facts with the same values are chosen.
        """
        scores, taken = self._scores, self._taken
        while heap:
            score, number = heap[0]
            if taken[number] or -score != scores[number]:
                heapq.heappop(heap)
                continue
            now = self._compute_score(number)
            if now >= -score - 1e-9:
                return number
            scores[number] = now
            heapq.heapreplace(heap, (-now, number))
        return -1

    # -- choosing -----------------------------------------------------------

    def _take(self, number: int) -> None:
        known = self._known
        row, source = known.rows[number], known.sources[number]
        lead = row.lead
        # Mark the fact before its related facts are chosen. Otherwise an outcome in the row that it leads would choose it again.
        self._taken[number] = True
        if not source.opened and source.outcome >= 0 and not self._taken[source.outcome]:
            self._take(source.outcome)
        if lead >= 0 and lead != number and not self._taken[lead]:
            self._take(lead)
        fact = known.facts[number]
        self._spent += 0.0 if source.opened else source.cost
        self._append(source, fact)
        # The handle does not count, because consecutive lines of a user share it.
        self._users += fact.cost if source.user else 0.0
        if source.line.kind == "call":
            _note_crowding(source, row, fact)
        else:
            source.said += 1
        again: Iterable[int] = row.numbers if lead == number else ()
        for other in known.bundles.get(number, ())[1:]:
            self._append(source, known.facts[other])
        if source.user and number + 1 < source.end and source.said <= SAID_FREE:
            # The next sentence may revoke this one.
            known.worths[number + 1] *= FOLLOWS
            again = (number + 1,)
        if not source.opened:
            self._note_words(source.names, source.marks)
            source.opened = True
            again = range(source.start, source.end)
        for other in again:
            if not self._taken[other]:
                self._scores[other] = self._compute_upper_score(other)
                heapq.heappush(self._get_heap(other), (-self._scores[other], other))

    def _append(self, source: Source, fact: Fact) -> None:
        """Append a fact to `order`, and record its words as being in the text."""
        self._spent += fact.cost
        self.order.append((source.line, fact))
        self.costs.append(self._spent)
        self._note_words([word for word, _ in _weigh_fact_words(fact)], source.marks)

    def _note_words(self, words: Iterable[str], marks: set[str | int]) -> None:
        marks_by_word = self._marks
        for word in words:
            known = marks_by_word.get(word)
            marks_by_word[word] = marks if known is None else known | marks


def _note_crowding(source: Source, row: Row, fact: Fact) -> None:
    """TokenCounter a chosen row of a source or, if the fact is not in a row, a chosen value of its key."""
    if fact.group and row.is_chosen:
        return
    key = "" if fact.group else fact.key
    source.crowd[key] = source.crowd.get(key, 0) + 1
    row.is_chosen = True


def _is_trivial(fact: Fact) -> bool:
    """Return True if a sentence has a very low weight, or a low weight and the length of a "yes, thanks"."""
    return fact.weight < TRIFLE or (fact.weight < 0.8 and len(fact.value) < (20 if fact.value.isascii() else 6))


def _weigh_fact_words(fact: Fact) -> Words:
    return weigh_words(fact.value) if fact.prose else ((fact.value.casefold(), 1.0),)


TRIES, NEARLY = 9, 0.02
"""`TRIES` is the most texts that are tried to find the one that fits best. The search ends earlier if at most the fraction `NEARLY` of the
tokens is unused."""
SMALLER = 12
"""Number of next facts that are tried one by one to fill the unused tokens."""
_JOINT: Final = "\x1f"
"""Separates Holdfast's own label from quoted text within a fact. Quoted text cannot contain it, because it counts as white space."""
ANSWER: Final = f" {_JOINT}→ {{handle}}{_JOINT}: {{text}}"
"""The format of an answer that follows its question within a fact."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The first and the last line of a digest."""

    header: str = ""
    closing: str = ""
    marker: str = ""
    """The session's marker, which no line contains; see `holdfast.context.escaping`."""

    def count_tokens(self, count: TokenCounter) -> int:
        """Return the approximate tokens of both lines. It is not exact because a tokenizer may join adjacent texts."""
        return count.text(self.header) + count.text(self.closing)

    def wrap(self, text: str) -> str:
        """Return `text` between the first and the last line."""
        return f"{self.header}{text}{self.closing}"


class _Page:
    """The text of chosen facts. Pages made from each other share formatted lines, and each line's tokens are counted only once."""

    def __init__(self, count: TokenCounter, marker: str) -> None:
        self._marker = marker
        self._facts: dict[int, list[Fact]] = {}
        self._lines: dict[int, Line] = {}
        self._count = count
        self._texts: dict[tuple[int, int, int], str] = {}

    def with_facts(self, chosen: Iterable[ChosenFact]) -> _Page:
        """Return a page with the facts `chosen` that shares the formatted lines of this one."""
        page = _Page(self._count, self._marker)
        page._texts = self._texts
        facts, lines = page._facts, page._lines
        for line, fact in chosen:
            place = id(line)
            if place in facts:
                facts[place].append(fact)
            else:
                facts[place], lines[place] = [fact], line
        return page

    def add(self, line: Line, fact: Fact) -> None:
        """Add a fact of `line`."""
        self._lines[id(line)] = line
        self._facts.setdefault(id(line), []).append(fact)

    def count_tokens(self) -> int:
        """Return the approximate tokens of the page. It is not exact because a tokenizer may join adjacent lines."""
        return sum(map(self._count_piece, self._iter_pieces()))

    def count_added_tokens(self, line: Line, fact: Fact) -> int:
        """Return an upper bound of the tokens that adding a fact of `line` would take."""
        facts = self._facts.get(id(line), [])
        before = self._count_piece(f"\n{self._format_line(line, facts)}") if facts else 0
        return self._count_piece(f"\n{self._format_line(line, [*facts, fact])}") - before

    def to_text(self) -> str:
        """Return the text of the page."""
        return "".join(self._iter_pieces())

    def _count_piece(self, piece: str) -> int:
        return count_piece(self._count, piece)

    def _iter_pieces(self) -> Iterator[str]:
        """Yield the lines in the order of the log. Consecutive messages with the same author share a line."""
        before = ""
        for line in sorted(self._lines.values(), key=lambda line: (line.seq, line.kind == "other")):
            text = self._format_line(line, self._facts[id(line)])
            if line.kind != "call" and line.handle == before:
                yield f" / {text.removeprefix(f'{line.handle}: ')}"
            else:
                yield f"\n{text}" if before else text
            before = line.handle

    def _format_line(self, line: Line, facts: list[Fact]) -> str:
        # Facts are always chosen in the same order, so their number and the last one identify them.
        key = (id(line), len(facts), id(facts[-1]))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _format_line(line, {id(fact) for fact in facts}, self._marker)
        return text


def write_longest(frame: Frame, choice: FactSelector, tokens: int, count: TokenCounter) -> str:
    """Return a text with as many of the best facts as fit into `tokens` tokens, `frame` included; empty if none fits.

    The number of facts is found by repeated attempts. Each corrects the estimated tokens of the facts by those of the last attempt.
    """
    room = tokens - frame.count_tokens(count)
    low, high, ratio, best = 0, 0, 1.0, _Page(count, frame.marker)
    for _ in range(TRIES):
        choice.select_up_to(room / ratio)
        at = max(bisect_right(choice.costs, room / ratio), low + 1)
        at = _avoid_split_bundle(choice.order, min(at, high - 1 if high else len(choice.order)))
        if at <= low:
            break
        page = best.with_facts(choice.order[:at])
        size = page.count_tokens()
        ratio = max(0.2, size / choice.costs[at - 1])
        if size > room:
            high = at
            continue
        low, best = at, page
        if room - size <= room * NEARLY:
            break
    choice.select_more(low + SMALLER - len(choice.order))
    return _trim_to_fit(frame, best, _fill_up(best, choice, low, room), tokens, count)


def _avoid_split_bundle(order: list[ChosenFact], at: int) -> int:
    """Return the largest number of first facts in `order`, but at most `at`, that splits no bundle of parallel lists."""
    while 0 < at < len(order) and order[at][1].bundle:
        (line, fact), (before, other) = order[at], order[at - 1]
        if before is not line or other.bundle != fact.bundle:
            break
        at -= 1
    return at


def _fill_up(page: _Page, choice: FactSelector, at: int, room: int) -> list[ChosenFact]:
    """Return the first `at` facts that were chosen, and those of the next `SMALLER` facts that still fit into `room` tokens."""
    chosen, free = choice.order[:at], room - page.count_tokens()
    headless, without_outcome = set[tuple[int, int]](), set[int]()
    for line, fact in choice.order[at : at + SMALLER]:
        row = (id(line), fact.group)
        if row in headless or id(line) in without_outcome or fact.bundle:
            continue
        if (more := page.count_added_tokens(line, fact)) <= free:
            free -= more
            page.add(line, fact)
            chosen.append((line, fact))
        elif fact.firm and line.kind == "call":
            # Arguments without the error of their call would read as if the call had succeeded.
            without_outcome.add(id(line))
        elif fact.group:
            # The name of a row comes first: without it the rest of the row says nothing.
            headless.add(row)
    return chosen


def _trim_to_fit(frame: Frame, page: _Page, chosen: list[ChosenFact], tokens: int, count: TokenCounter) -> str:
    """Return the text of a page in its frame. Remove the last facts until an exact count shows that the text fits into `tokens` tokens.

    Args:
        frame: the first and the last line.
        page: the page.
        chosen: the facts of the page, best first.
        tokens: maximum tokens of the text.
        count: the token counter.
    """
    while chosen:
        text = frame.wrap(page.to_text())
        if count.text(text) <= tokens:
            return text
        (line, last), chosen = chosen[-1], chosen[:-1]
        if last.bundle:
            chosen = [one for one in chosen if one[0] is not line or one[1].bundle != last.bundle]
        page = page.with_facts(chosen)
    return ""


def _format_line(line: Line, chosen: set[int], marker: str) -> str:
    """Return the text of a line, in which everything is escaped except Holdfast's own labels.

    Args:
        line: the line.
        chosen: `id` of each fact to show.
        marker: the session's marker.
    """
    if line.kind != "call":
        label, *parts = _format_sentences(line, chosen).split(_JOINT)
        escaped = [escape_inline(part, marker) if at % 2 else part for at, part in enumerate(parts)]
        return f"{line.handle}: {escape_inline(label, marker)}{''.join(escaped)}"
    return escape_inline(_format_call(line, chosen), marker)


def _format_call(line: Line, chosen: set[int]) -> str:
    groups: dict[int, list[Fact]] = {}
    for fact in line.facts:
        if id(fact) in chosen:
            groups.setdefault(fact.group, []).append(fact)
    if not line.given:
        return f"{line.handle}: {_format_groups(line, groups)}"
    given = {group: facts for group, facts in groups.items() if 0 < group <= line.given}
    answer = {group: facts for group, facts in groups.items() if group not in given}
    return _format_arguments(line, given) + (f": {_format_groups(line, answer)}" if answer else "")


def _format_arguments(line: Line, given: dict[int, list[Fact]]) -> str:
    """Return the handle of a call with further chosen arguments inside its brackets, because text after the brackets is the result."""
    if not given:
        return line.handle
    # If `line.names` is empty, the handle has the beginning of a long argument. It is replaced, because the argument's facts are written here.
    head = f"{line.handle[:-1]}; " if line.names else f"{line.handle.partition('(')[0]}("
    return f"{head}{_format_groups(line, given)})"


def _format_groups(line: Line, groups: dict[int, list[Fact]]) -> str:
    labelled: set[str] = set()
    before: list[str] = []
    within = ""
    objects = []
    for group, facts in groups.items():
        keys = [fact.key for fact in facts]
        text = _format_group(facts, labelled, line.counts if not group else {}, plain=keys == before)
        name = line.find_list_name(group) if line.lists else ""
        if name and name != within and (within or not any(_is_named_after(key, name) for key in keys)):
            text = f"{name}: {text}"
            within = name
        objects.append(text)
        before = keys
    return "; ".join(objects)


def _format_sentences(line: Line, chosen: set[int]) -> str:
    """Return the chosen sentences of a message, with `…` where sentences between them are left out."""
    text, gap, heading = "", False, ""
    for fact in line.facts:
        if id(fact) not in chosen:
            gap = bool(text)
            continue
        between = " … " if gap else "; " if fact.key and not text.endswith(COLONS) else " "
        written = f"{fact.key}: {fact.value}" if fact.key and fact.key != heading else fact.value
        text += (between if text else "") + written
        heading = fact.key if "|" in fact.key else ""
        gap = False
    return text


def _is_named_after(key: str, name: str) -> bool:
    """Return True if a key already contains the name of its list, such as `flight_number` in `flights`."""
    return len(name) > 1 and key.startswith(name[:-1])


def _format_group(facts: list[Fact], labelled: set[str], counts: Mapping[str, int], *, plain: bool) -> str:
    """Return the facts of one object as text.

    A key is written before its first value in the line. It is written again before a value that could be anything, such as a plain word.

    Args:
        facts: the chosen facts of the object.
        labelled: keys that were already written in the line. Updated.
        counts: by key, the number of values in the source, to show how many are left out.
        plain: True to write no keys, because the object before has the same ones.
    """
    words: list[str] = []
    last, prose = "", False
    for fact in facts:
        known = plain or fact.key == last or (fact.key in labelled and fact.weight >= 2.0)
        label = f"{fact.key}{':' if fact.prose else ''} " if fact.key and not known else ""
        labelled.add(fact.key)
        last = fact.key
        # Sentences have commas of their own.
        between = "; " if fact.prose and prose else ", " if words else ""
        words.append(between + label + fact.value + (f" (was {fact.was})" if fact.was else ""))
        prose = fact.prose
    for key, count in counts.items():
        places = [place for place, fact in enumerate(facts) if fact.key == key]
        if places and count > len(places):
            words[places[-1]] += f" +{count - len(places)} more"
    return "".join(words)
