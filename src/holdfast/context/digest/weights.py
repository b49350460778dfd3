"""Compute the worth of each fact of a pool by itself, independent of which other facts are chosen.

A fact is worth more if its form looks like an identifier, date or number, and if the fact or its object was mentioned often or recently.
Every digest examines every fact of the pool. Properties of facts are therefore stored in lists: creating an object for each fact would take
longer than all the rest of the work.
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
"""Share of a digest that is for users' messages and the assistant's conclusions.

It is `USER_SHARE` if nearly all of the pool is from tools, and `PEOPLE` is added if nothing is. Both refer to estimated tokens, which are
fewer than the counted ones."""
HALF_LIFE = 24
"""Number of messages after which the worth of an unused fact has fallen half of the way to the fraction `OLD`."""
OLD = 0.7
"""Fraction of its worth that a fact keeps however old it is, before `OLD_MATTER` is applied."""
MATTER_HALF_LIFE, OLD_MATTER = 60, 0.07
"""Half-life in messages, and remaining fraction, of a second, slower decay. A session moves on to other subjects, and facts of the first
subject would leave no space for those of the last."""
SAID_FADES = 0.4
"""Exponent that weakens the slower decay for users' messages and conclusions, because an early instruction may still hold."""
LISTING = 3
"""A message that mentions more values of one source than this is a listing, and does not count as a mention of each value."""
SAID_AGAIN = 0.7
"""The worth of a value grows by this fraction with each further use, for at most four uses."""
ARGUMENT_FACTOR = 2.2
"""Factor for a value whose key is the name of an argument of some call."""
MANY = 0.2
"""The worth of a value that was not mentioned is divided by the number of values with the same key, raised to this power."""
AGAIN = 0.8
"""Factor for a value that an earlier source already contains."""
LISTED, DONE = 2.5, 0.5
"""Factors for an identifier in a list that calls process one by one. `LISTED` applies as soon as one identifier of the list was mentioned,
`DONE` applies in addition if the identifier already is an argument of a call."""
PROPOSED, OPEN = 3.0, 4.0
"""`PROPOSED` is the factor for the assistant's newest message in the pool if no later user message is there: a short "yes" that is still
sent may agree to it. `OPEN` is the minimum weight of the last sentence of that message, which may be a question."""
STATEMENT = 2
"""In a message with at most this many sentences, the last sentence is content, and not a polite phrase."""
ROW_NAME = 2.0
"""Minimum weight of a value that can identify its row."""
NAMED, NAMED_ROWS, NEAR = 2.0, 4, 0.6
"""Parameters for rows of a result that the user named by their values.

- `NAMED`: factor for the identifiers of such a row.
- `NAMED_ROWS`: if the user's words match more rows than this, none counts as named.
- `NEAR`: a row counts as named only if its match is at least this fraction of the best row's match.
"""
NAMING = 2
"""Number of the user's newest evicted messages whose words may name rows."""
CONTAINED, RUN = 0.5, 4
"""A sentence of a cut message is left out if the sent text has all of its values, and at least the fraction `CONTAINED` of its words in
sequences of `RUN` words."""
POWER = 0.7
"""Facts are ranked by their worth divided by their tokens raised to this power."""
BASE = {"call": 2.0, "user": 2.5, "assistant": 0.7, "conclusion": 4.0, "other": 1.5}

ROOMY = 640.0
"""Size of a digest, in tokens, from which conclusions have full worth. In a smaller one, values for the next tool call are more
important."""
_ENDING = re.compile(r"(?:[_\s.-]?(?:id|Id|ID)s?|(?<=[^s])s)$")
_USED = tuple(1 + SAID_AGAIN * times for times in range(5))


SAID = ("user", "conclusion")
"""Kinds of sources to which `USER_SHARE` and `PEOPLE` apply."""


def compute_people_share(lines: list[Line]) -> float:
    """Return the share of a digest that is for users' messages and conclusions. It is larger the less of the pool is from tools."""
    said = sum([fact.cost for line in lines if line.kind != "call" for fact in line.facts])
    called = sum([fact.cost for line in lines if line.kind == "call" for fact in line.facts])
    return USER_SHARE + PEOPLE * (said / max(1.0, said + called)) ** 2


class Source:
    """A line of the pool, with the state that the selection of its facts needs."""

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
        """Number of the fact with the call's outcome; -1 if there is none. It is chosen together with any other fact of the line, because
        arguments without it read as if the call had succeeded."""
        self.crowd: dict[str, int] = {}


class Row:
    """The facts of one object in a source, for example of one row of a list."""

    __slots__ = ("is_chosen", "last", "lead", "named", "numbers")

    def __init__(self) -> None:
        self.named = False
        self.numbers: list[int] = []
        self.last = -1
        self.lead = -1
        self.is_chosen = False


_NO_ROW = Row()
"""The row of all sentences, which belong to no object."""


class WeighedFacts:
    """The facts of a pool, numbered, with the worth of each.

    Args:
        lines: the lines of the pool.
        asked: names of arguments of calls.
        said: words of the messages that are sent, each with the `seq` of its last use.
        parts: by `seq` of a unit, text that is sent anyway and need not be repeated.
        naming: words of the user's messages that are sent, in lower case and without punctuation.
        room: maximum tokens of the text.
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
        """The source of each fact. The index is the number of the fact, as in all lists above."""
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
        """Return the number of the first fact in the same bundle of parallel lists. A fact without a bundle keeps its own number."""
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
        """Add the rows of a source. Return them by group, and the number of facts with each key."""
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
        """Record which facts were only mentioned by a listing. A message that mentions ten rows does not refer to any of them."""
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
        """Return the number of the fact that identifies a row; -1 if all facts have the same key, as in a list of values.

        This is the fact with the highest weight or, without a high weight, the first short one.
        """
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
        """Increase the worth of identifiers in a list that calls process one by one, and lower that of those already processed."""
        listed = [number for number in numbers if many[self.facts[number].key] > 1]
        begun = {self.facts[number].key for number in listed if self.lasts[number] >= 0}
        for number in listed:
            fact = self.facts[number]
            if fact.weight >= ROW_NAME:
                self.worths[number] *= LISTED if fact.key in begun else 1.0
                self.worths[number] *= DONE if fact.value.casefold() in self.named else 1.0

    def _compute_use_factor(self, fact: Fact, last: int, focus: int, *, said: bool = False) -> float:
        """Return a factor that is higher for repeated values, for values that are arguments of calls, and for recent values.

        Args:
            fact: the fact.
            last: `seq` of the fact's last mention; -1 if it was not mentioned.
            focus: `seq` of the last mention of the fact's object or source.
            said: True for users' messages and conclusions, which lose less worth with age.
        """
        used = fact.used + (last > fact.last)
        return self._asking[fact.key] * _USED[min(4, used)] * _compute_recency(self._now - max(focus, last), said=said)


FAIR = 0.1
"""Fraction of the pool that one source may take before facts of all other sources were considered."""
_Ranked = tuple[float, int, float, bool, int, Fact]
"""A ranked fact. The items are:

1. the negated rank, so that the best fact sorts first;
2. a number that makes the tuples distinct, so that facts are never compared;
3. the tokens of the fact;
4. True for users' messages and conclusions;
5. the number of the line;
6. the fact.
"""


def select_likeliest(lines: list[Line], *, limit: float, asked: Mapping[str, int]) -> set[int]:
    """Return the `id` of the facts that are most likely to be needed later. Together they take at most `limit` tokens.

    Their worth is computed as in `WeighedFacts`, but without effects that are rare. This is exact enough to trim the pool.

    Args:
        lines: the lines of the pool.
        limit: maximum tokens of the facts.
        asked: names of arguments of calls.
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
    # First each source up to its fair share, then the best facts of all sources. Tools and people have separate limits.
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
    # Tokens that tools or people do not use are free for both.
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
    """Return the words of the user's newest messages in the pool, in lower case and without punctuation."""
    users = [line for line in lines if line.kind == "user"][-NAMING:]
    return {piece for line in users for fact in line.facts for piece in split_pieces(fact.value)}


def _find_named_rows(rows: Mapping[int, Row], facts: Sequence[Fact], naming: AbstractSet[str]) -> list[Row]:
    """Return the rows of a source that the user named by values that few rows have.

    Args:
        rows: the rows by group.
        facts: all facts, by number.
        naming: words of the user, in lower case and without punctuation.
    """
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
    """Return the facts of a cut unit that its sent text does not contain.

    Args:
        facts: the facts.
        sent: the sent text.
        said: True if the facts are sentences of a message, False if they are from a tool call.
    """
    if not said:
        return [fact for fact in facts if fact.bundle or fact.value not in sent]
    return [fact for fact in facts if not _is_sent(fact.value, sent)]


@lru_cache(maxsize=2_048)
def _is_sent(sentence: str, sent: str) -> bool:
    """Return True if a text contains a sentence, or nearly all that the sentence says.

    The second is assumed if the text contains all values of the sentence, and at least half of the words of the sentence
    (`CONTAINED`) are in sequences of `RUN` words that the text also contains.
    Cached, because consecutive prompts have most texts in common.

    Args:
        sentence: the sentence.
        sent: the text.
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
    """Return the words of a text, and all of its sequences of `RUN` words."""
    return frozenset([word.casefold() for word in split_words(sent)]), frozenset(_list_runs(sent))


def _list_runs(text: str) -> tuple[tuple[str, ...], ...]:
    """Return all sequences of `RUN` consecutive words in a text, case-folded."""
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
    """For each key of a value, `ARGUMENT_FACTOR` if it is the name of an argument of some call, otherwise 1.0."""

    def __init__(self, asked: AbstractSet[str]) -> None:
        self._asked = set(map(_stem, asked))
        self[""] = 1.0

    def __missing__(self, key: str) -> float:
        factor = self[key] = ARGUMENT_FACTOR if _stem(key.rpartition(".")[2]) in self._asked else 1.0
        return factor


@lru_cache(maxsize=2_048)
def _stem(key: str) -> str:
    """Return the stem of a key. The stem of `orders`, `order_id` and `orderIds` is `order`."""
    return _ENDING.sub("", key).lower()


@lru_cache(maxsize=4_096)
def _compute_recency(age: int, *, said: bool = False) -> float:
    """Return a factor that falls with age.

    Args:
        age: number of messages since the last mention.
        said: True for users' messages and conclusions, for which the factor falls more slowly.
    """
    recent = OLD + (1 - OLD) * 0.5 ** (age / HALF_LIFE)
    matter = OLD_MATTER + (1 - OLD_MATTER) * 0.5 ** (age / MATTER_HALF_LIFE)
    return float(recent * (matter**SAID_FADES if said else matter))


def _find_proposal(lines: list[Line]) -> Line | None:
    """Return the newest message in the pool if the assistant wrote it; None if it is the user's or there is none."""
    said = [line for line in lines if line.kind in ("user", "assistant", "conclusion")]
    newest = max(said, key=lambda line: line.seq, default=None)
    return newest if newest is not None and newest.kind != "user" else None
