"""The page: chosen facts as text, a line a source, as many as fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, cast

import msgspec

from holdfast.context.cut import Count
from holdfast.context.digest.choosing import Choice, Chosen
from holdfast.context.digest.lines import Fact, Line
from holdfast.context.escaping import escape_inline
from holdfast.context.values import COLONS

TRIES, NEARLY = 9, 0.02
"""Pages that are tried, and the part of the room that may be left when no more are: single facts fill that, too."""
SMALLER = 12
"""Facts that are tried behind the first one that does not fit."""
_JOINT: Final = "\x1f"
"""Parts a label of our own from what was said, within a fact: no fact holds it otherwise, since it counts as white space."""
ANSWER: Final = f" {_JOINT}→ {{handle}}{_JOINT}: {{text}}"
"""How an answer follows its question within a fact."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """What stands around the lines of a page."""

    header: str = ""
    closing: str = ""
    marker: str = ""
    """The session's, which no line holds; see `holdfast.context.escaping`."""

    def size(self, count: Count) -> int:
        """Tokens, nearly: where lines meet, a tokenizer may join what is counted apart."""
        return count.text(self.header) + count.text(self.closing)

    def around(self, text: str) -> str:
        """Put it around the lines."""
        return f"{self.header}{text}{self.closing}"


def _count(count: Count, piece: str) -> int:
    return count.text(piece)


count_piece = cast("Callable[[Count, str], int]", lru_cache(maxsize=4_096)(_count))
"""Return the tokens of a line or a statement: most of those of one step come again in the next."""


class _Page:
    """Chosen facts as text, and about how many tokens it takes: counted line by line, each text once."""

    def __init__(self, count: Count, marker: str) -> None:
        self._marker = marker
        self._facts: dict[int, list[Fact]] = {}
        self._lines: dict[int, Line] = {}
        self._count = count
        self._texts: dict[tuple[int, int, int], str] = {}

    def holding(self, chosen: Iterable[Chosen]) -> _Page:
        """A page of these facts that knows what has been counted."""
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
        """Choose one more."""
        self._lines[id(line)] = line
        self._facts.setdefault(id(line), []).append(fact)

    def size(self) -> int:
        """Tokens, nearly: where lines meet, a tokenizer may join what is counted apart here."""
        return sum(map(self._size, self._pieces()))

    def more(self, line: Line, fact: Fact) -> int:
        """At most how many tokens one more fact takes."""
        facts = self._facts.get(id(line), [])
        before = self._size(f"\n{self._line(line, facts)}") if facts else 0
        return self._size(f"\n{self._line(line, [*facts, fact])}") - before

    def text(self) -> str:
        """All of it."""
        return "".join(self._pieces())

    def _size(self, piece: str) -> int:
        return count_piece(self._count, piece)

    def _pieces(self) -> Iterator[str]:
        """The lines in order of the log; what one side said in a row on one line."""
        before = ""
        for line in sorted(self._lines.values(), key=lambda line: (line.seq, line.kind == "other")):
            text = self._line(line, self._facts[id(line)])
            if line.kind != "call" and line.handle == before:
                yield f" / {text.removeprefix(f'{line.handle}: ')}"
            else:
                yield f"\n{text}" if before else text
            before = line.handle

    def _line(self, line: Line, facts: list[Fact]) -> str:
        # Facts are chosen in one order, so their number and the last of them say which of a line's they are.
        key = (id(line), len(facts), id(facts[-1]))
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = _line_text(line, {id(fact) for fact in facts}, self._marker)
        return text


def longest(frame: Frame, choice: Choice, tokens: int, count: Count) -> str:
    """The text of the most facts, best first, that fits in `tokens` tokens with `frame`; empty where none does.

    How many that are is found by correcting the estimate of what they cost.
    """
    room = tokens - frame.size(count)
    low, high, ratio, best = 0, 0, 1.0, _Page(count, frame.marker)
    for _ in range(TRIES):
        choice.reach(room / ratio)
        at = max(bisect_right(choice.costs, room / ratio), low + 1)
        at = _whole(choice.order, min(at, high - 1 if high else len(choice.order)))
        if at <= low:
            break
        page = best.holding(choice.order[:at])
        size = page.size()
        ratio = max(0.2, size / choice.costs[at - 1])
        if size > room:
            high = at
            continue
        low, best = at, page
        if room - size <= room * NEARLY:
            break
    choice.take(low + SMALLER - len(choice.order))
    return _fitting(frame, best, _filled(best, choice, low, room), tokens, count)


def _whole(order: list[Chosen], at: int) -> int:
    """Return the length of the longest beginning of at most `at` facts that ends with no part of a bundle."""
    while 0 < at < len(order) and order[at][1].bundle:
        (line, fact), (before, other) = order[at], order[at - 1]
        if before is not line or other.bundle != fact.bundle:
            break
        at -= 1
    return at


def _filled(page: _Page, choice: Choice, at: int, room: int) -> list[Chosen]:
    """The first `at` facts, and of the next ones those that still fit."""
    told, free = choice.order[:at], room - page.size()
    headless, without_outcome = set[tuple[int, int]](), set[int]()
    for line, fact in choice.order[at : at + SMALLER]:
        row = (id(line), fact.group)
        if row in headless or id(line) in without_outcome or fact.bundle:
            continue
        if (more := page.more(line, fact)) <= free:
            free -= more
            page.add(line, fact)
            told.append((line, fact))
        elif fact.firm and line.kind == "call":
            # Arguments without the error of their call would read as if it had been done.
            without_outcome.add(id(line))
        elif fact.group:
            # What names a row comes first: without it the rest of the row says nothing.
            headless.add(row)
    return told


def _fitting(frame: Frame, page: _Page, told: list[Chosen], tokens: int, count: Count) -> str:
    """The text of a page that holds `told`, without the last of it while the whole is longer than its lines were."""
    while told:
        text = frame.around(page.text())
        if count.text(text) <= tokens:
            return text
        (line, last), told = told[-1], told[:-1]
        if last.bundle:
            told = [one for one in told if one[0] is not line or one[1].bundle != last.bundle]
        page = page.holding(told)
    return ""


def _line_text(line: Line, chosen: set[int], marker: str) -> str:
    """A line with everything in it inert but its own label."""
    if line.kind != "call":
        label, *parts = _sentences(line, chosen).split(_JOINT)
        told = [escape_inline(part, marker) if at % 2 else part for at, part in enumerate(parts)]
        return f"{line.handle}: {escape_inline(label, marker)}{''.join(told)}"
    return escape_inline(_call_text(line, chosen), marker)


def _call_text(line: Line, chosen: set[int]) -> str:
    groups: dict[int, list[Fact]] = {}
    for fact in line.facts:
        if id(fact) in chosen:
            groups.setdefault(fact.group, []).append(fact)
    if not line.given:
        return f"{line.handle}: {_groups_text(line, groups)}"
    given = {group: facts for group, facts in groups.items() if 0 < group <= line.given}
    told = {group: facts for group, facts in groups.items() if group not in given}
    return _asked_text(line, given) + (f": {_groups_text(line, told)}" if told else "")


def _asked_text(line: Line, given: dict[int, list[Fact]]) -> str:
    """The handle with what else was asked with in it: what stands behind the handle is the answer."""
    if not given:
        return line.handle
    # Without names the handle has the head of a long argument, which is told in full now.
    head = f"{line.handle[:-1]}; " if line.names else f"{line.handle.partition('(')[0]}("
    return f"{head}{_groups_text(line, given)})"


def _groups_text(line: Line, groups: dict[int, list[Fact]]) -> str:
    labelled: set[str] = set()
    before: list[str] = []
    within = ""
    objects = []
    for group, facts in groups.items():
        keys = [fact.key for fact in facts]
        text = _group_text(facts, labelled, line.counts if not group else {}, plain=keys == before)
        name = line.list_of(group) if line.lists else ""
        if name and name != within and (within or not any(_says(key, name) for key in keys)):
            text = f"{name}: {text}"
            within = name
        objects.append(text)
        before = keys
    return "; ".join(objects)


def _sentences(line: Line, chosen: set[int]) -> str:
    """What was said, with a mark where something is left out."""
    text, gap, heading = "", False, ""
    for fact in line.facts:
        if id(fact) not in chosen:
            gap = bool(text)
            continue
        between = " … " if gap else "; " if fact.key and not text.endswith(COLONS) else " "
        told = f"{fact.key}: {fact.value}" if fact.key and fact.key != heading else fact.value
        text += (between if text else "") + told
        heading = fact.key if "|" in fact.key else ""
        gap = False
    return text


def _says(key: str, name: str) -> bool:
    """Whether a key says what list it stands in, as the number of a flight does in flights."""
    return len(name) > 1 and key.startswith(name[:-1])


def _group_text(facts: list[Fact], labelled: set[str], counts: Mapping[str, int], *, plain: bool) -> str:
    """One object's facts. A key stands where its value first does, and again where the value's form says nothing."""
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
