"""The page of a digest: which facts of a pool are worth their tokens, and their text, one line per source, as many as fit.

A fact is worth less if another source already says it, or if it is one of many similar ones. The order of facts does not depend on the
length of the text, except that the user's own words keep their share of any beginning of it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from holdfast.context.cut import Count, count_piece
from holdfast.context.digest.texts import Fact, Line
from holdfast.context.digest.weights import POWER, Row, Source, WeighedFacts, compute_people_share
from holdfast.context.escaping import escape_inline
from holdfast.context.values import COLONS, Words, split_words, weigh_words

USER_LEAST, SMALL_TEXT, STEEP = 1.0, 420, 3.0
"""Share of the best fact's score that the user's words need to come before it in a text of `SMALL_TEXT` tokens, and the exponent with which it
falls in a longer one. A small text cannot afford "Sure, my order is K-113" if it contains K-113 anyway; in a larger one, the user's
wishes are worth more than the last of forty rows."""
CROWD_FREE, CROWD = 3, 4
"""Rows of one source, or values of one key in it, with full worth. Each `CROWD` further ones add 1 to the divisor of the worth, so that a
listing of forty rows does not fill the text."""
SAID_FREE = 4
"""Sentences of one message with full worth; as many further ones halve it, so that a long message leaves room for others."""
ELSEWHERE, SAME = 0.4, 0.05
"""Factors for a value that another source already contains, and for one in another line about the same thing."""
FIRM = 0.5
"""Least of these factors for facts that matter for what they say: an error, an outcome, an answer."""
TRIFLE = 0.4
"""Weight below which a sentence of a user has no share of the text: for example a question that has been answered."""
FOLLOWS = 1.5
"""Factor for a sentence of a user that follows a chosen one."""
VISIBLE = 0.3
"""Factor for a value in a message that is still sent."""


class SentContext:
    """The messages that are sent with a digest: words that need no repetition, and the current subject.

    Attributes:
        words: all their words, case-folded.
        said: words of conversation and of arguments, with the place of their last use.
        asked: names of arguments.
        parts: by place, the remaining text of a unit that is sent cut.
        naming: pieces of the user's words, which may name rows of a result.
    """

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.said: dict[str, int] = {}
        self.asked: set[str] = set()
        self.parts: dict[int, str] = {}
        self.naming: set[str] = set()

    def add(self, seq: int, text: str, *, said: bool) -> None:
        """Add one message."""
        words = {word.casefold() for word in split_words(text)}
        self.words |= words
        if said:
            self.said.update(dict.fromkeys(words, seq))


ChosenFact = tuple[Line, Fact]

_Heap = list[tuple[float, int]]


class FactSelector:
    """Chooses facts one by one, each time the one with the best worth for its cost.

    Args:
        lines: the pool.
        asked: names of arguments of calls.
        shown: the messages sent with the text.
        room: tokens of the text.

    Attributes:
        order: the chosen facts, best first.
        costs: the cost of each beginning of `order`.
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
                self._taken[number] = True  # is chosen with the first fact of its bundle
                continue
            self._get_heap(number).append((-score, number))
        heapq.heapify(self._user)
        heapq.heapify(self._rest)

    def select_up_to(self, limit: float) -> None:
        """Choose facts until they cost `limit` tokens, or none are left."""
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
        """Return an upper bound of a fact's score, given which related facts are chosen."""
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
        """Return the share of a fact's content, by weight, that is not in the text yet."""
        marks_by_word, shown, named = self._marks, self._shown, self._named
        if not fact.prose:
            word = fact.value.casefold()
            marks = marks_by_word.get(word)
            if marks is None:
                news = VISIBLE if word in shown else 1.0
            else:
                news = ELSEWHERE if marks.isdisjoint(source.marks) else SAME
            return FIRM if news < FIRM and fact.firm else news
        # Most things that people name are then looked up, so they are in the handle of a call.
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
        """Return the best fact, or the user's best while the user's words have less than their share; -1 if there are none."""
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
        """Return the first fact of `heap` with an up-to-date score; scores fall when other facts with the same values are chosen."""
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
        # Mark it before its related facts: an outcome may be in the row that it leads, and would choose it again.
        self._taken[number] = True
        if not source.opened and source.outcome >= 0 and not self._taken[source.outcome]:
            self._take(source.outcome)
        if lead >= 0 and lead != number and not self._taken[lead]:
            self._take(lead)
        fact = known.facts[number]
        self._spent += 0.0 if source.opened else source.cost
        self._append(source, fact)
        # Without the handle, which consecutive lines of a user share.
        self._users += fact.cost if source.user else 0.0
        if source.line.kind == "call":
            _note_crowding(source, row, fact)
        else:
            source.said += 1
        again: Iterable[int] = row.numbers if lead == number else ()
        for other in known.bundles.get(number, ())[1:]:
            self._append(source, known.facts[other])
        if source.user and number + 1 < source.end and source.said <= SAID_FREE:
            # The next sentence may revoke it.
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
        """Append a fact to the order."""
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
    """Count one more chosen row, or one more chosen value of a key, of a source."""
    if fact.group and row.is_chosen:
        return
    key = "" if fact.group else fact.key
    source.crowd[key] = source.crowd.get(key, 0) + 1
    row.is_chosen = True


def _is_trivial(fact: Fact) -> bool:
    """Return True for a sentence that is worth next to nothing, or has no value and is too short to be more than a "yes, thanks"."""
    return fact.weight < TRIFLE or (fact.weight < 0.8 and len(fact.value) < (20 if fact.value.isascii() else 6))


def _weigh_fact_words(fact: Fact) -> Words:
    return weigh_words(fact.value) if fact.prose else ((fact.value.casefold(), 1.0),)


TRIES, NEARLY = 9, 0.02
"""Most pages that are tried, and the share of the room that may be left unused: single facts fill it."""
SMALLER = 12
"""Facts that are tried after the first one that does not fit."""
_JOINT: Final = "\x1f"
"""Separates Holdfast's own label from quoted text within a fact. No fact contains it otherwise, since it counts as white space."""
ANSWER: Final = f" {_JOINT}→ {{handle}}{_JOINT}: {{text}}"
"""The format of an answer that follows its question within a fact."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """The text around the lines of a page."""

    header: str = ""
    closing: str = ""
    marker: str = ""
    """The session's marker, which no line contains; see `holdfast.context.escaping`."""

    def count_tokens(self, count: Count) -> int:
        """Count the tokens of the frame. The sum is approximate: a tokenizer may join the ends of adjacent pieces."""
        return count.text(self.header) + count.text(self.closing)

    def wrap(self, text: str) -> str:
        """Return the lines inside the frame."""
        return f"{self.header}{text}{self.closing}"


class _Page:
    """Chosen facts as text, with an approximate token count that is summed over lines; each line is counted once."""

    def __init__(self, count: Count, marker: str) -> None:
        self._marker = marker
        self._facts: dict[int, list[Fact]] = {}
        self._lines: dict[int, Line] = {}
        self._count = count
        self._texts: dict[tuple[int, int, int], str] = {}

    def with_facts(self, chosen: Iterable[ChosenFact]) -> _Page:
        """Return a page of these facts that shares the cached lines."""
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
        """Add one fact."""
        self._lines[id(line)] = line
        self._facts.setdefault(id(line), []).append(fact)

    def count_tokens(self) -> int:
        """Count the tokens of the page. The sum is approximate: a tokenizer may join the ends of adjacent lines."""
        return sum(map(self._count_piece, self._iter_pieces()))

    def count_added_tokens(self, line: Line, fact: Fact) -> int:
        """Return an upper bound of the tokens that one more fact takes."""
        facts = self._facts.get(id(line), [])
        before = self._count_piece(f"\n{self._format_line(line, facts)}") if facts else 0
        return self._count_piece(f"\n{self._format_line(line, [*facts, fact])}") - before

    def to_text(self) -> str:
        """Return the whole text."""
        return "".join(self._iter_pieces())

    def _count_piece(self, piece: str) -> int:
        return count_piece(self._count, piece)

    def _iter_pieces(self) -> Iterator[str]:
        """Yield the lines in the order of the log. Consecutive messages of one side share a line."""
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


def write_longest(frame: Frame, choice: FactSelector, tokens: int, count: Count) -> str:
    """Return the text of the most facts, best first, that fits into `tokens` tokens with `frame`; empty if none fits.

    The number of facts is found by correcting the estimate of their cost.
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
    """Return the length of the longest beginning of at most `at` facts that splits no bundle."""
    while 0 < at < len(order) and order[at][1].bundle:
        (line, fact), (before, other) = order[at], order[at - 1]
        if before is not line or other.bundle != fact.bundle:
            break
        at -= 1
    return at


def _fill_up(page: _Page, choice: FactSelector, at: int, room: int) -> list[ChosenFact]:
    """Return the first `at` facts, and those of the next ones that still fit."""
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


def _trim_to_fit(frame: Frame, page: _Page, chosen: list[ChosenFact], tokens: int, count: Count) -> str:
    """Return the text of a page with the facts `chosen`; the last facts are removed while the text is longer than the sum of its lines."""
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
    """Return a line in which everything but its own label is inert."""
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
    """Return the handle with the other arguments in it, because text after the handle is the answer."""
    if not given:
        return line.handle
    # Without names, the handle contains the head of a long argument, which is written in full here.
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
    """Return the chosen sentences, with a mark where something is left out."""
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
    """Return True if a key already says which list it is in, as the number of a flight does in flights."""
    return len(name) > 1 and key.startswith(name[:-1])


def _format_group(facts: list[Fact], labelled: set[str], counts: Mapping[str, int], *, plain: bool) -> str:
    """Return one object's facts. A key is written before its first value, and again if the form of a value says nothing."""
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
