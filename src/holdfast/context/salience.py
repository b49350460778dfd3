"""Salience: rates which units are worth their tokens, by the ratings of callers and scorers, or else by signals of the text itself.

A unit's worth is what no other remaining unit says. Its values are weighed by their form (identifiers before dates before numbers before
words). They count more if they were used again, if their key is the name of an argument of some call, and the later that was. Of many
values of one form in a unit, each further one adds less, and worth is set against size, so that a listing does not crowd out what is short
and definite. The user's messages count by their words, whatever they are. Only form and place decide, never meaning: it works the same for
prose and code, logs and JSON, in any script.

Rating all units of a window costs as much as reading them. After that, a unit's importance only rises, when other units that say the
same are evicted.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from holdfast.context.digest.facts import list_argument_names
from holdfast.context.digest.speech import has_promise
from holdfast.context.digest.texts import keep_ends
from holdfast.context.units import Unit
from holdfast.context.values import DATE, DIGITS, IDENTIFIER, NAME, NUMBERED, SHORT, WORD, split_words, weigh_value
from holdfast.context.window import Window
from holdfast.domain.messages import Message

FORMS = {IDENTIFIER: 2.0, NUMBERED: 2.0, DATE: 2.0, DIGITS: 1.3, NAME: 0.65, SHORT: 0.5, WORD: 0.12}
"""Worth of a value by its form, given as the form's weight in a digest; other forms count as in a digest. A whole unit contains many plain words, and
all of them stay with it, so they count for less here."""
USERS_WORD = 0.3
"""Least worth of a word of the user: instructions and corrections are mostly plain words."""
CROWD, USERS_CROWD, CROWDING = 1.5, 10.0, 1.5
"""How fast a further value of one form adds less: `1 / (1 + before / CROWD) ** CROWDING`. A listing of any length is so worth a few of its
rows. Users get a higher limit, because they repeat what matters to them."""
USED = 0.7
"""What each further message with the value adds to its worth, for at most `MOST_USED` messages."""
MOST_USED = 4
ASKED = 3.0
"""Factor for a value whose key is the name of an argument of some call."""
HALF_LIFE, OLD = 16, 0.5
"""Messages after which the part of a value's worth that depends on its newest use is halved; `OLD` is the share that stays."""
UNIT_HALF_LIFE, OLD_UNIT = 150, 0.35
"""The same for a unit, by its position, because work moves on to other subjects."""
SOURCE, ELSEWHERE = 0.25, 0.1
"""Factor for a value that other units hold too: in the unit that it came from, which has its context; and in all others."""
USERS, FAILED = 1.25, 2.0
"""Factors for the user's messages, and for a call that failed: it is retried in nearly the same form, or must not be."""
ASSISTANTS, PROMISES = 0.7, 1.5
"""Factors for the assistant's messages, which repeat much, and for its promises, which nothing else repeats."""
_PROMISING = 4_000
"""Characters of a reply that are searched for a promise."""
LEAST = 0.5
"""Worth of a unit that says nothing."""
POWER, HEADING = 0.7, 20
"""Exponent of the size that worth is divided by; tokens that are added to the size, so that an "ok" is not rated as dense."""
SCALE = 4.0
"""Scales importance so that units of a usual window are spread around the middle of 0 to 1, the range of callers' ratings."""
FAILURE = 400
"""Longest result, in characters, that may be nothing but an error."""
RUN, DENSE_FROM = 6, "\u0e00"
"""Longest run of letters that is one word, in scripts from Thai on: most of them put no spaces between words."""
_FORM = 12
"""Characters of a value that make its form."""
_KEY = re.compile(r'"[^"\\\d]{1,40}"\s*:')
"""A JSON key, unless it contains digits: then it may be a value."""
_PAIR = re.compile(r'([^\W\d][\w.-]{0,39})["\']?\s*[:=：]\s*(?:"([^"\\]{1,80})"|([^\s,;"\'{}\[\]()]{1,80}))')  # noqa: RUF001 - the colon of other scripts
_ERROR = re.compile(
    r"\b(?:error|failed|failure|exception|traceback|denied|forbidden|not found|invalid|unable|timed? ?out|refused)"
    r"|\berreur|\bfehler|ошибк|错误|失[敗败]|エラー|오류|خطأ",
    re.IGNORECASE,
)


class Signals:
    """The values in the units of a window, and the importance of each unit while the others stay.

    Args:
        units: all units of the window, in order, also those that cannot be evicted.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = [_UnitSignals(unit) for unit in units]
        self._holders: dict[str, list[int]] = {}
        self._source: dict[str, int] = {}
        """By value: the newest unit in which a tool returned it, or else the first unit that holds it."""
        self._used: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._there = [True] * len(units)
        for at, signals in enumerate(self._units):
            self._note(at, signals)
        self._count = {word: len(holders) for word, holders in self._holders.items()}
        asked = {name for signals in self._units for name in signals.asked}
        now = units[-1].last if units else 0
        for at, signals in enumerate(self._units):
            self._weigh(at, signals, asked, now)

    def compute_importance(self, at: int) -> float:
        """Return the importance of the unit at that index, from 0 to 1."""
        unit = self._units[at]
        worth = unit.factor * (LEAST + unit.worth)
        return SCALE * worth / (unit.size + SCALE * worth)

    def remove(self, at: int) -> None:
        """Remove the unit at that index: units that say the same become more important."""
        self._there[at] = False
        for word in self._units[at].values:
            self._count[word] -= 1
            if self._count[word] == 1:
                left = next(holder for holder in self._holders[word] if self._there[holder])
                self._units[left].worth += (1 - self._get_share(word, left)) * self._units[left].worths[word]

    def _get_share(self, word: str, at: int) -> float:
        """Return the factor for a value in a unit while other units hold it too."""
        return SOURCE if self._source[word] == at else ELSEWHERE

    def _note(self, at: int, unit: _UnitSignals) -> None:
        """Note which values a unit holds, and which it uses again."""
        for word in unit.values:
            self._holders.setdefault(word, []).append(at)
            if word not in self._source or word not in unit.said:
                self._source[word] = at
        for word in unit.said:
            if self._holders[word][0] != at:
                self._used[word] = self._used.get(word, 0) + 1
            self._last[word] = unit.last

    def _weigh(self, at: int, unit: _UnitSignals, asked: set[str], now: int) -> None:
        """Compute the worth of each value of a unit. Within a form the best value comes first, and each further one counts a little less."""
        forms: dict[str, list[tuple[float, str]]] = {}
        for worth, form, word in self._iter_worths(unit, unit.find_values_under(asked), now):
            forms.setdefault(form, []).append((-worth, word))
        crowd = USERS_CROWD if unit.users else CROWD
        for values in forms.values():
            values.sort()
            for before, (worth, word) in enumerate(values):
                counted = -worth / (1 + max(0, before - 1) / crowd) ** CROWDING
                unit.worths[word] = counted
                unit.worth += counted if self._count[word] == 1 else counted * self._get_share(word, at)
        unit.factor *= _fade(now - unit.last, UNIT_HALF_LIFE, OLD_UNIT)

    def _iter_worths(self, unit: _UnitSignals, wanted: set[str], now: int) -> Iterator[tuple[float, str, str]]:
        """Yield the values of a unit without regard to others: worth, form and value. Plain words share one form."""
        new = _fade(now - unit.last, HALF_LIFE, OLD)
        for word, written in unit.values.items():
            weight = weigh_value(written)
            worth = FORMS.get(weight, weight)
            if unit.users and worth < USERS_WORD:
                worth = USERS_WORD
            if word in wanted:
                worth *= ASKED
            if used := self._used.get(word):
                worth *= 1 + USED * min(used, MOST_USED)
            last = self._last.get(word, unit.last)
            worth *= new if last <= unit.last else _fade(now - last, HALF_LIFE, OLD)
            yield worth, (_reduce_to_form(written) if weight > NAME else ""), word


class _UnitSignals:
    """The values in one unit."""

    __slots__ = ("asked", "factor", "last", "promises", "results", "said", "size", "users", "values", "worth", "worths")

    def __init__(self, unit: Unit) -> None:
        self.last = unit.last
        self.users = unit.asks
        self.values: dict[str, str] = {}
        """By folded form, the first spelling of each value."""
        self.said: dict[str, str] = {}
        """The values in messages and in calls, but not in tool results."""
        self.asked: list[str] = []
        self.results: list[str] = []
        self.promises = False
        self.worths: dict[str, float] = {}
        self.worth = 0.0
        self.size = math.pow(HEADING + sum(entry.tokens for entry in unit.entries), POWER)
        for entry in unit.entries:
            self._read(entry.message)
        self.factor = self._compute_factor()

    def find_values_under(self, names: set[str]) -> set[str]:
        """Return the values in tool results whose key is one of `names`."""
        if not names:
            return set()
        found = (pair for text in self.results for pair in _PAIR.findall(text))
        values = [quoted or bare for name, quoted, bare in found if name in names]
        return {word.casefold() for value in values for word in split_words(value)}

    def _read(self, message: Message) -> None:
        result = message.role == "tool"
        into = [self.values] if result else [self.values, self.said]
        for text in _iter_texts(message):
            for word in _iter_words(text):
                for values in into:
                    values.setdefault(word.casefold(), word)
            if result:
                self.results.append(text)
        for call in message.tool_calls:
            self.asked += list_argument_names(call.arguments)
        if message.role == "assistant" and not message.tool_calls:
            self.promises = has_promise(message.text[:_PROMISING])

    def _compute_factor(self) -> float:
        if self.users:
            return USERS
        if self.asked or self.results:
            return FAILED if any(len(text) <= FAILURE and _ERROR.search(text) for text in self.results) else 1.0
        return PROMISES if self.promises else ASSISTANTS


def _iter_texts(message: Message) -> Iterator[str]:
    """Yield a message's text and the arguments of its calls, long ones shortened."""
    texts = (message.text, *(call.arguments for call in message.tool_calls))
    return (keep_ends(text) for text in texts if text)


def _iter_words(text: str) -> Iterator[str]:
    """Yield the words of a text, each once. In scripts without spaces, a long run is split: it is not one word, but many."""
    for word in dict.fromkeys(split_words(_KEY.sub(" ", text))):
        if len(word) > RUN and word[0] >= DENSE_FROM and not word.isascii():
            yield from (word[at : at + 2] for at in range(0, len(word), 2))
        else:
            yield word


@lru_cache(maxsize=8_192)
def _reduce_to_form(value: str) -> str:
    """Return the form of a value: letters and digits are replaced by one each, other characters stay."""
    return "".join("9" if mark.isdigit() else "a" if mark.isalpha() else mark for mark in value[:_FORM])


@lru_cache(maxsize=4_096)
def _fade(age: int, half_life: int, least: float) -> float:
    return float(least + (1 - least) * 0.5 ** (age / half_life))


SMALL, FULL = 2048, 8192
"""Rooms up to the first size are emptied no further than necessary, rooms from the second size on as far as with other strategies. Providers
cache no prompt below a thousand tokens, so a stable prefix saves little in a small room, and what is evicted is not sent again."""
LEAST_TARGET, MOST_TARGET = 0.33, 1.0
ALIKE = 0.5
"""Units with at least this share of another unit's importance are in the same class, if both were rated by their signals only."""


def compute_target(room: int) -> float:
    """Return the share of the room that is used after a step."""
    above = min(1.0, max(0.0, (room - SMALL) / (FULL - SMALL)))
    return MOST_TARGET - (MOST_TARGET - LEAST_TARGET) * above


def rate_units(units: Sequence[Unit]) -> list[float]:
    """Return the importance of each of `units` while all stay, from 0 to 1, in the order of the log.

    The rating of a caller or a scorer of any message of a unit decides; without one, the unit's own signals do.
    """
    signals = Signals(units)
    return [
        signals.compute_importance(at) if (said := _get_given_importance(unit)) is None else said
        for at, unit in enumerate(units)
    ]


def choose_units(window: Window, share: float | None) -> frozenset[int]:
    """Return the places of the units to keep, those most worth their tokens.

    Args:
        window: a window that exceeds its room.
        share: share of the room that all units may take; None for `compute_target` of it.
    """
    room = window.room.tokens
    return choose_within(window, int((compute_target(room) if share is None else share) * room))


def choose_within(window: Window, goal: int) -> frozenset[int]:
    """Return the places of the units that stay if all may take `goal` tokens. The least important are evicted first; of equal ones, the oldest."""
    units = [*window.head, *window.units]
    free = [at for at, unit in enumerate(units[:-1]) if not window.is_protected(unit)]
    sizes = {at: window.measure_unit(units[at]) for at in free}
    over = sum(map(window.measure_unit, units)) + (window.summary.tokens if window.summary else 0) - goal
    removed: list[_Ranked] = []
    for least in _Queue(units, free) if over > 0 else ():
        over -= sizes[least[1]]
        removed.append(least)
        if over <= 0:
            break
    out = {at for _, at in removed}
    for at in _iter_restorable(units, removed):
        if sizes[at] <= -over:
            over += sizes[at]
            out.discard(at)
    return frozenset(units[at].first for at in free if at not in out)


_Ranked = tuple[float, int]
"""An importance, and the index of its unit."""


class _Queue:
    """Units that may be evicted, the least important first.

    A value that two units hold matters little until only one of them is left, so importance is recomputed after each eviction. It can
    only have risen; therefore a unit that is still the least important when its turn comes is evicted next.
    """

    def __init__(self, units: Sequence[Unit], free: Sequence[int]) -> None:
        self._signals = Signals(units)
        self._given = {at: _get_given_importance(units[at]) for at in free}
        self._heap = [self._rank(at) for at in free]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[_Ranked]:
        while self._heap:
            least = heapq.heappop(self._heap)
            now = self._rank(least[1])
            if now > least:
                heapq.heappush(self._heap, now)
                continue
            self._signals.remove(least[1])
            yield least

    def _rank(self, at: int) -> _Ranked:
        given = self._given[at]
        return self._signals.compute_importance(at) if given is None else given, at


def _iter_restorable(units: Sequence[Unit], removed: Sequence[_Ranked]) -> Iterator[int]:
    """Yield evicted units that may be restored if evicting the last one freed more tokens than needed.

    These units are nearly as important as the last one; the most important come first. Ratings of callers are never overridden in this way.
    """
    for importance, at in reversed(removed[:-1]):
        last, place = removed[-1]
        if (
            importance < ALIKE * last
            or _get_given_importance(units[at]) is not None
            or _get_given_importance(units[place]) is not None
        ):
            return
        yield at


def _get_given_importance(unit: Unit) -> float | None:
    return max((entry.importance for entry in unit.entries if entry.importance is not None), default=None)
