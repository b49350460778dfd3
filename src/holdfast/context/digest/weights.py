"""Weighing: the worth of each fact of a pool by itself, independent of which other facts are chosen.

A fact is worth more the more its form promises, the more often it or its object was mentioned, and the later. Every step looks at every
fact of the pool, so its properties are stored in lists: creating an object for each fact would take longer than everything that is done
with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from math import log

from holdfast.context.digest.texts import Fact, Line
from holdfast.context.values import MAX_KEY, QUESTION, SHORT, split_pieces, split_words, weigh_words

USER_SHARE, PEOPLE = 0.2, 0.75
"""Share of the text for messages of people and conclusions, if there are any, when nearly all of the pool is from tools; and what is added to
it when nothing is from tools. Both refer to estimated tokens, which are below the count."""
HALF_LIFE = 24
"""Messages after which the worth of an unused fact halves towards `OLD`."""
OLD = 0.7
MATTER_HALF_LIFE, OLD_MATTER = 60, 0.07
"""The same on a longer scale: a session moves on to other subjects, and facts of the first would crowd out those of the last."""
SAID_FADES = 0.4
"""Exponent of the longer scale for messages of people: an instruction of the first hour still holds."""
LISTING = 3
"""Values of one source that one message may contain and still refer to each of them; with more it is a listing."""
SAID_AGAIN = 0.7
"""Added to the worth factor for each further use of a value, at most four times."""
ASKED = 2.2
"""Factor for a value whose key is the name of an argument of some call."""
MANY = 0.2
"""Exponent of the number of values with the same key that the worth of an unmentioned value is divided by."""
AGAIN = 0.8
"""Factor for a value that an earlier source already contains."""
LISTED, DONE = 2.5, 0.5
"""Factor for an identifier in a list when calls have begun to process the list; and for one that names a call already."""
PROPOSED, OPEN = 3.0, 4.0
"""Factor for the assistant's last message before the user's last answer, because a bare "yes" agrees to it; and the least weight of its end,
where a question is."""
STATEMENT = 2
"""Most sentences of a message whose end is not a polite phrase."""
ROW_NAME = 2.0
"""Least weight of a value that can name its row."""
NAMED, NAMED_ROWS, NEAR = 2.0, 4, 0.6
"""Factor for an identifier of a row that the user just named by its values; most rows that are named at once; and the share of the best row's
match that another row needs."""
NAMING = 2
"""Newest evicted messages of the user in which values name rows."""
CONTAINED, RUN = 0.5, 4
"""A sentence is left out if at least this share of its words is sent of its message, in runs of `RUN` words, and no value is missing."""
POWER = 0.7
"""Exponent of the cost that worth is divided by."""
BASE = {"call": 2.0, "user": 2.5, "assistant": 0.7, "conclusion": 4.0, "other": 1.5}

ROOMY = 640.0
"""Tokens of a text from which a conclusion counts in full: a smaller one is for what the next call needs."""
_ENDING = re.compile(r"(?:[_\s.-]?(?:id|Id|ID)s?|(?<=[^s])s)$")
_USED = tuple(1 + SAID_AGAIN * times for times in range(5))


SAID = ("user", "conclusion")
"""Kinds of sources that belong to the share of people's messages."""


def compute_people_share(lines: list[Line]) -> float:
    """Return the share of a text for people's messages. It follows the conversation: the less tools return, the larger it is."""
    said = sum([fact.cost for line in lines if line.kind != "call" for fact in line.facts])
    called = sum([fact.cost for line in lines if line.kind == "call" for fact in line.facts])
    return USER_SHARE + PEOPLE * (said / max(1.0, said + called)) ** 2


class Source:
    """A line that facts are chosen from."""

    __slots__ = ("cost", "crowd", "end", "line", "marks", "names", "opened", "outcome", "said", "start", "user")

    def __init__(self, line: Line, start: int, end: int) -> None:
        self.line = line
        self.user = line.kind in SAID
        self.cost = line.cost
        self.names = [name.casefold() for name in line.names]
        self.marks: set[str | int] = {start, *self.names}
        self.start = start
        self.end = end
        self.opened = False
        self.said = 0
        self.outcome = -1
        """The fact with the outcome, which is chosen whenever any other fact is: arguments alone read as if the call had succeeded."""
        self.crowd: dict[str, int] = {}


class Row:
    """The facts of one object in a source."""

    __slots__ = ("is_chosen", "last", "lead", "named", "numbers")

    def __init__(self) -> None:
        self.named = False
        self.numbers: list[int] = []
        self.last = -1
        self.lead = -1
        self.is_chosen = False


_NO_ROW = Row()
"""The row of every sentence: sentences belong to no object."""


class WeighedFacts:
    """The numbered facts of a pool with their individual worth.

    Args:
        lines: the pool.
        asked: names of arguments of calls.
        said: words that are in use now, with the place of their last use.
        parts: by place, the text that is sent of a cut unit, which need not be repeated.
        naming: pieces of words in the user's newest messages that are sent.
        room: tokens of the text.
    """

    def __init__(
        self,
        lines: list[Line],
        asked: AbstractSet[str],
        said: Mapping[str, int],
        parts: Mapping[int, str],
        *,
        naming: AbstractSet[str] = frozenset(),
        room: float = ROOMY,
    ) -> None:
        self.facts: list[Fact] = []
        self.worths: list[float] = []
        self.lasts: list[int] = []
        self.listed: list[bool] = []
        self.bundles: dict[int, list[int]] = {}
        self.rows: list[Row] = []
        self.sources: list[Source] = []
        """By number of fact, like all the other lists."""
        self._asking = _AskedFactors(asked)
        self._said = said
        self._now = max([line.seq for line in lines] + list(said.values()), default=0)
        self.named = {name.casefold() for line in lines for name in line.names}
        proposal = _find_proposal(lines)
        self._concluded = min(1.0, room / ROOMY) ** 2
        self._naming = naming | _collect_user_pieces(lines)
        for line in lines:
            facts = _list_untold(line)
            if line.seq in parts:
                facts = _drop_sent(facts, parts[line.seq], said=line.kind != "call")
            if facts:
                self._add_line(line, facts, proposal)

    def _add_line(self, line: Line, facts: list[Fact], proposal: Line | None) -> None:
        start = len(self.facts)
        self.facts += facts
        source = Source(line, start, start + len(facts))
        self.sources += [source] * len(facts)
        if line.kind == "call":
            bundles: dict[int, list[int]] = {}
            for at, fact in enumerate(facts, start):
                if fact.bundle:
                    self.bundles[at] = bundles.setdefault(fact.bundle, [])
                    self.bundles[at].append(at)
            if line.given:
                source.outcome = next((at for at, fact in enumerate(facts, start) if _is_outcome(fact, line.given)), -1)
                source.outcome = self._get_bundle_head(source.outcome)
            self._weigh_call(line, facts, start)
            return
        base = BASE[line.kind] * (PROPOSED if line is proposal else 1.0)
        base *= self._concluded if line.kind == "conclusion" else 1.0
        focus = max(line.last, line.seq)
        self.rows += [_NO_ROW] * len(facts)
        self.lasts += [fact.last for fact in facts]
        self.listed += [False] * len(facts)
        said = line.kind in SAID
        self.worths += [
            fact.weight * base * self._compute_use_factor(fact, fact.last, focus, said=said) for fact in facts
        ]
        if line is proposal and (len(line.facts) <= STATEMENT or line.facts[-1].value.endswith(QUESTION)):
            self.worths[-1] *= max(1.0, OPEN / facts[-1].weight)

    def _get_bundle_head(self, number: int) -> int:
        """Return the first fact of a bundle, which is chosen in place of any of its facts."""
        return self.bundles[number][0] if number in self.bundles else number

    def _weigh_call(self, line: Line, facts: list[Fact], start: int) -> None:
        rows, many = self._enter_rows(facts, start)
        focus = max(line.last, line.seq, *[self._said.get(name.casefold(), -1) for name in line.names])
        for number, fact in enumerate(facts, start):
            last, of_row = self.lasts[number], self.rows[number].last
            if self.listed[number]:
                last = of_row = -1
            base = BASE["call"] * (NAMED if self.rows[number].named and fact.weight >= ROW_NAME else 1.0)
            worth = fact.weight * base * self._compute_use_factor(fact, last, max(of_row, focus))
            if fact.group and not fact.key:
                worth *= self._asking[line.find_list_name(fact.group)]
            if fact.again:
                worth *= AGAIN
            if last < 0 and of_row < 0 and fact.key and many[fact.key] > 1:
                worth /= many[fact.key] ** MANY
            self.worths.append(worth)
        for group, row in rows.items():
            if group and len(row.numbers) > 1:
                row.lead = self._get_bundle_head(self._find_lead(row.numbers))
        if 0 in rows and len(many) < len(facts):
            self._weigh_lists(rows[0].numbers, many)

    def _enter_rows(self, facts: list[Fact], start: int) -> tuple[dict[int, Row], dict[str, int]]:
        """Return the rows of a source, with the place of their last mention, and the number of facts of each key."""
        said = self._said
        rows: dict[int, Row] = {}
        many: dict[str, int] = {}
        for number, fact in enumerate(facts, start):
            row = rows.get(fact.group)
            if row is None:
                row = rows[fact.group] = Row()
            last = fact.last
            if said and not fact.prose and (lately := said.get(fact.value.casefold(), -1)) > last:
                last = lately
            if last > row.last and fact.group and fact.weight >= ROW_NAME:
                row.last = last
            row.numbers.append(number)
            self.rows.append(row)
            self.lasts.append(last)
            many[fact.key] = many.get(fact.key, 0) + 1
        if len(rows) > NAMED_ROWS // 2:
            for row in _find_named_rows(rows, self.facts, self._naming):
                row.named, row.last = True, self._now
        self._note_listings(facts, start)
        return rows, many

    def _note_listings(self, facts: list[Fact], start: int) -> None:
        """Note which facts are only mentioned in a listing: a message with ten rows refers to none of them."""
        said: dict[tuple[str, int], int] = {}
        lasts, rows = self.lasts, self.rows
        places = [
            ("", -1)
            if rows[number].named
            else ("", rows[number].last)
            if fact.group and rows[number].last >= 0
            else (fact.key, lasts[number])
            for number, fact in enumerate(facts, start)
        ]
        counted: set[tuple[str, int, int]] = set()
        for place, fact in zip(places, facts, strict=True):
            if place[1] >= 0:
                once = (*place, fact.group if not place[0] else id(fact))
                if once not in counted:
                    counted.add(once)
                    said[place] = said.get(place, 0) + 1
        self.listed += [said.get(place, 0) > LISTING for place in places]

    def _find_lead(self, numbers: list[int]) -> int:
        """Return the fact that names a row: by its form, or else the first that is no sentence; -1 for the values of one list."""
        facts = self.facts
        if facts[numbers[0]].key == facts[numbers[-1]].key:
            return -1
        lead, best = -1, -2.0
        for number in numbers:
            weight = facts[number].weight
            if weight < ROW_NAME:
                weight = 0.0 if len(facts[number].value) <= MAX_KEY else -1.0
            if weight > best:
                lead, best = number, weight
        return lead

    def _weigh_lists(self, numbers: list[int], many: Mapping[str, int]) -> None:
        """Increase the worth of the next identifiers in a list that calls go through."""
        listed = [number for number in numbers if many[self.facts[number].key] > 1]
        begun = {self.facts[number].key for number in listed if self.lasts[number] >= 0}
        for number in listed:
            fact = self.facts[number]
            if fact.weight >= ROW_NAME:
                self.worths[number] *= LISTED if fact.key in begun else 1.0
                self.worths[number] *= DONE if fact.value.casefold() in self.named else 1.0

    def _compute_use_factor(self, fact: Fact, last: int, focus: int, *, said: bool = False) -> float:
        """Return a factor that is higher for repeated values, for values that calls ask for, and for recent ones."""
        used = fact.used + (last > fact.last)
        return self._asking[fact.key] * _USED[min(4, used)] * _compute_recency(self._now - max(focus, last), said=said)


FAIR = 0.1
"""Share of the pool that one source may take before all others have had theirs."""
_Ranked = tuple[float, int, float, bool, int, Fact]
"""A fact with its worth for its cost, negated so that the best sort first; a number, so that facts are never compared; its cost; whether it is
the user's; and the number of its line."""


def select_likeliest(lines: list[Line], *, limit: float, asked: Mapping[str, int]) -> set[int]:
    """Return the `id` of the facts that are most likely to be used later, in about `limit` tokens.

    Weighed like `WeighedFacts`, without the rarer effects: of most facts it only matters whether they stay.
    """
    now = max([line.seq for line in lines], default=0)
    asking = _AskedFactors(asked.keys())
    ranked: list[_Ranked] = []
    for at, line in enumerate(lines):
        if line.kind == "call":
            _rank_call(line, at, now, asking, ranked)
        else:
            _rank_said(line, at, now, asking, ranked)
    ranked.sort()
    kept: set[int] = set()
    share = compute_people_share(lines)
    spent, room = [0.0, 0.0], (limit * (1 - share), limit * share)
    taken = [0.0] * len(lines)
    waiting: list[_Ranked] = []
    # First each source up to its fair share of its side's room, then the best of all sources.
    for fair in (FAIR * limit, limit):
        for one in ranked:
            _, _, cost, user, at, fact = one
            if taken[at] + cost <= fair and spent[user] + cost <= room[user]:
                spent[user] += cost
                taken[at] += cost
                kept.add(id(fact))
            else:
                waiting.append(one)
        ranked, waiting = waiting, []
    # The other side may use what one side leaves.
    left = limit - sum(spent)
    for _, _, cost, _, _, fact in ranked:
        if cost <= left:
            left -= cost
            kept.add(id(fact))
    return kept


def _rank_said(line: Line, at: int, now: int, asking: _AskedFactors, ranked: list[_Ranked]) -> None:
    user = line.kind in SAID
    base = -BASE[line.kind] * _compute_recency(now - max(line.last, line.seq), said=user)
    handle = line.cost / max(1, len(line.facts))
    for fact in line.facts:
        cost = handle + fact.cost
        worth = base * fact.weight * asking[fact.key] * _USED[min(fact.used, 4)]
        ranked.append((worth / cost**POWER, len(ranked), cost, user, at, fact))


def _rank_call(line: Line, at: int, now: int, asking: _AskedFactors, ranked: list[_Ranked]) -> None:
    facts, base = _list_untold(line), -BASE["call"]
    lately = _compute_recency(now - max(line.last, line.seq))
    many: dict[str, int] = {}
    rows: dict[int, float] = {}
    for fact in facts:
        many[fact.key] = many.get(fact.key, 0) + 1
        if fact.last > line.seq and fact.group and fact.weight >= ROW_NAME:
            rows[fact.group] = max(_compute_recency(now - fact.last), rows.get(fact.group, lately))
    handle = line.cost / max(1, len(facts))
    for fact in facts:
        key = fact.key
        cost = handle + fact.cost
        worth = base * fact.weight * asking[key] * (rows.get(fact.group, lately) if rows else lately)
        if fact.used:
            worth *= _USED[min(fact.used, 4)]
        if fact.again:
            worth *= AGAIN
        if fact.last < 0 and key and many[key] > 1 and fact.group not in rows:
            worth /= many[key] ** MANY
        ranked.append((worth / cost**POWER, len(ranked), cost, False, at, fact))


def _collect_user_pieces(lines: list[Line]) -> set[str]:
    """Return the pieces of words in the user's newest messages in the pool."""
    users = [line for line in lines if line.kind == "user"][-NAMING:]
    return {piece for line in users for fact in line.facts for piece in split_pieces(fact.value)}


def _find_named_rows(rows: Mapping[int, Row], facts: Sequence[Fact], naming: AbstractSet[str]) -> list[Row]:
    """Return the rows of a source that the user named with values that few rows have."""
    if not naming:
        return []
    holders: dict[tuple[str, str], list[int]] = {}
    for group, row in rows.items():
        if group:
            for number in row.numbers:
                fact = facts[number]
                if fact.key and not fact.prose and (pieces := split_pieces(fact.value)) and pieces <= naming:
                    holders.setdefault((fact.key, fact.value), []).append(group)
    matches: dict[int, float] = {}
    many = len(rows)
    for groups in holders.values():
        for group in groups:
            matches[group] = matches.get(group, 0.0) + log(many / len(groups))
    least = NEAR * max(matches.values(), default=0.0)
    found = [rows[group] for group, match in matches.items() if match >= max(least, 0.5)]
    return found if len(found) <= NAMED_ROWS else []


def _drop_sent(facts: list[Fact], sent: str, *, said: bool) -> list[Fact]:
    """Return the facts of a message that the part of it that is sent does not contain."""
    if not said:
        return [fact for fact in facts if fact.bundle or fact.value not in sent]
    return [fact for fact in facts if not _is_sent(fact.value, sent)]


@lru_cache(maxsize=2_048)
def _is_sent(sentence: str, sent: str) -> bool:
    """Return True if the text that is sent contains a sentence, or half of it in runs and all of its values.

    Cached, because most text that is sent with one digest is sent with the next.
    """
    if sentence in sent:
        return True
    words, runs = _index_sent_words(sent)
    own = _list_runs(sentence)
    covered = {at + step for at, run in enumerate(own) if run in runs for step in range(RUN)}
    if len(covered) < CONTAINED * (len(own) + RUN - 1):
        return False
    return {word for word, weight in weigh_words(sentence) if weight >= SHORT} <= words


@lru_cache(maxsize=64)
def _index_sent_words(sent: str) -> tuple[frozenset[str], frozenset[tuple[str, ...]]]:
    """Return the words of the text that is sent, and its runs of words."""
    return frozenset([word.casefold() for word in split_words(sent)]), frozenset(_list_runs(sent))


def _list_runs(text: str) -> tuple[tuple[str, ...], ...]:
    """Return all runs of `RUN` consecutive words, case-folded."""
    words = [word.casefold() for word in split_words(text)]
    return tuple(zip(*(words[start:] for start in range(RUN)), strict=False))


def _is_outcome(fact: Fact, given: int) -> bool:
    return fact.firm and not 0 < fact.group <= given


def _list_untold(line: Line) -> list[Fact]:
    """Return the facts of a line that its handle does not contain."""
    names = line.names
    if not names:
        return line.facts
    return [fact for fact in line.facts if fact.value not in names or fact.was is not None or fact.bundle]


class _AskedFactors(dict[str, float]):
    """By key, the factor for values that calls ask for."""

    def __init__(self, asked: AbstractSet[str]) -> None:
        self._asked = set(map(_stem, asked))
        self[""] = 1.0

    def __missing__(self, key: str) -> float:
        factor = self[key] = ASKED if _stem(key.rpartition(".")[2]) in self._asked else 1.0
        return factor


@lru_cache(maxsize=2_048)
def _stem(key: str) -> str:
    """Return the stem of a key: `orders`, `order_id` and `orderIds` all have `order`."""
    return _ENDING.sub("", key).lower()


@lru_cache(maxsize=4_096)
def _compute_recency(age: int, *, said: bool = False) -> float:
    """Return a factor that is higher for recent mentions. People's messages lose less of it as the session goes on."""
    recent = OLD + (1 - OLD) * 0.5 ** (age / HALF_LIFE)
    matter = OLD_MATTER + (1 - OLD_MATTER) * 0.5 ** (age / MATTER_HALF_LIFE)
    return float(recent * (matter**SAID_FADES if said else matter))


def _find_proposal(lines: list[Line]) -> Line | None:
    """Return the assistant's last message in the pool, unless a later message of the user was evicted too."""
    said = [line for line in lines if line.kind in ("user", "assistant", "conclusion")]
    newest = max(said, key=lambda line: line.seq, default=None)
    return newest if newest is not None and newest.kind != "user" else None
