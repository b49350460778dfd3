"""Salience: choose the units that are most worth their tokens, by ratings of callers and scorers or else by the text itself.

Without a rating, the importance of a unit is computed from the values in its text (identifiers, dates, numbers, words):

- A value is worth more or less by its form: identifiers most, then dates, numbers and words. Plain words are worth more in the user's messages.
- A value is worth more if later messages used it again, especially if they did so recently.
- A value is worth more if its key is the name of an argument of some tool call.
- A value is worth little if other remaining units contain it too.
- Each further value of the same form in a unit is worth less, and the sum is divided by a power of the unit's size. A listing therefore does
  not displace short messages with specific content.

Only form and position matter, never meaning. The rating works the same for prose and code, logs and JSON, in any script.

Rating all units of a window takes as long as reading them. Afterwards, the importance of a unit only rises, whenever another unit with the
same values is evicted.
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
"""Worth of a value by its form. The keys are the weights of `weigh_value`; a form that is missing here has its weight as worth.

Plain words have less worth than in a digest, because a unit contains many of them and keeps all of them."""
USERS_WORD = 0.3
"""Minimum worth of a word of the user, because instructions and corrections consist mostly of plain words."""
CROWD, USERS_CROWD, CROWDING = 1.5, 10.0, 1.5
"""The worth of each further value of one form in a unit is divided by `(1 + before / CROWD) ** CROWDING`. `before` is the number of values of
this form in the unit that are worth more, without the best one.

A listing of any length is therefore worth about as much as a few of its rows. For users' messages `USERS_CROWD` replaces `CROWD`, because
users repeat what matters to them."""
USE_WEIGHT = 0.7
"""The worth of a value grows by this fraction with each message that uses it again, for at most `MAX_USES` messages."""
MAX_USES = 4
ARGUMENT_FACTOR = 3.0
"""Factor for a value whose key is the name of an argument of some call."""
HALF_LIFE, OLD = 16, 0.5
"""The worth of a value falls with the number of messages since its last use. `HALF_LIFE` is the half-life in messages. `OLD` is the fraction of
the worth that always remains."""
UNIT_HALF_LIFE, OLD_UNIT = 150, 0.35
"""The worth of a unit falls with the number of messages after it in the same way, because work moves on to other subjects."""
SOURCE, ELSEWHERE = 0.25, 0.1
"""Factors for a value that several units contain: `SOURCE` in the unit from which it came, which has its context, `ELSEWHERE` in all
others."""
USERS, FAILED = 1.25, 2.0
"""`USERS` is the factor for the user's messages. `FAILED` is the factor for a call that failed: the agent will retry it in nearly the same
form, or must not retry it."""
ASSISTANTS, PROMISES = 0.7, 1.5
"""`ASSISTANTS` is the factor for the assistant's messages, which repeat much. For a message with a promise it is `PROMISES`."""
_PROMISING = 4_000
"""Number of first characters of a reply in which a promise is searched."""
LEAST = 0.5
"""Added to the worth of every unit, so that a unit without any values has some worth too."""
POWER, HEADING = 0.7, 20
"""The size of a unit is `(HEADING + tokens) ** POWER`. `HEADING` prevents a high rating of very short messages such as "ok"."""
SCALE = 4.0
"""Factor that spreads the importance of most units around 0.5, the middle of the range that callers' ratings have too."""
FAILURE = 400
"""A tool result is treated as the result of a failed call if it mentions an error and has at most this many characters."""
RUN, DENSE_FROM = 6, "\u0e00"
"""In scripts from the code point `DENSE_FROM` (Thai) on, a longer run of letters than `RUN` is not a single word: most have no spaces
between words."""
_FORM = 12
"""Number of first characters of a value that determine its form."""
_KEY = re.compile(r'"[^"\\\d]{1,40}"\s*:')
"""Matches a JSON key. A key with digits is not matched, because it may be a value."""
_PAIR = re.compile(r'([^\W\d][\w.-]{0,39})["\']?\s*[:=：]\s*(?:"([^"\\]{1,80})"|([^\s,;"\'{}\[\]()]{1,80}))')  # noqa: RUF001 - the colon of other scripts
_ERROR = re.compile(
    r"\b(?:error|failed|failure|exception|traceback|denied|forbidden|not found|invalid|unable|timed? ?out|refused)"
    r"|\berreur|\bfehler|ошибк|错误|失[敗败]|エラー|오류|خطأ",
    re.IGNORECASE,
)


class Signals:
    """Computes the importance of the units of a window from their texts. The importance depends on which other units remain.

    Args:
        units: all units of the window in order, including those that cannot be evicted.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = [_UnitSignals(unit) for unit in units]
        self._holders: dict[str, list[int]] = {}
        self._source: dict[str, int] = {}
        """For each value, the index of the newest unit in which a tool returned it, or else of the first unit that contains it."""
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
        """Return the importance of the unit with index `at`, from 0 to 1."""
        unit = self._units[at]
        worth = unit.factor * (LEAST + unit.worth)
        return SCALE * worth / (unit.size + SCALE * worth)

    def remove(self, at: int) -> None:
        """Remove the unit with index `at`. Remaining units with the same values become more important."""
        self._there[at] = False
        for word in self._units[at].values:
            self._count[word] -= 1
            if self._count[word] == 1:
                left = next(holder for holder in self._holders[word] if self._there[holder])
                self._units[left].worth += (1 - self._get_share(word, left)) * self._units[left].worths[word]

    def _get_share(self, word: str, at: int) -> float:
        """Return the factor for the value `word` in the unit with index `at`, if other units contain the value too."""
        return SOURCE if self._source[word] == at else ELSEWHERE

    def _note(self, at: int, unit: _UnitSignals) -> None:
        """Record which values the unit with index `at` contains, and which of them it uses again."""
        for word in unit.values:
            self._holders.setdefault(word, []).append(at)
            if word not in self._source or word not in unit.said:
                self._source[word] = at
        for word in unit.said:
            if self._holders[word][0] != at:
                self._used[word] = self._used.get(word, 0) + 1
            self._last[word] = unit.last

    def _weigh(self, at: int, unit: _UnitSignals, asked: set[str], now: int) -> None:
        """Compute the worth of a unit and of each of its values. Of values with the same form, each one is worth less than the one before.

        Args:
            at: index of the unit.
            unit: the unit.
            asked: names of arguments of calls.
            now: `seq` of the newest entry.
        """
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
        """Yield the worth, the form and the case-folded text of each value of a unit, without regard to its other values.

        Words, names and other values of low weight share one form.

        Args:
            unit: the unit.
            wanted: values whose key is the name of an argument of some call.
            now: `seq` of the newest entry.
        """
        new = _fade(now - unit.last, HALF_LIFE, OLD)
        for word, written in unit.values.items():
            weight = weigh_value(written)
            worth = FORMS.get(weight, weight)
            if unit.users and worth < USERS_WORD:
                worth = USERS_WORD
            if word in wanted:
                worth *= ARGUMENT_FACTOR
            if used := self._used.get(word):
                worth *= 1 + USE_WEIGHT * min(used, MAX_USES)
            last = self._last.get(word, unit.last)
            worth *= new if last <= unit.last else _fade(now - last, HALF_LIFE, OLD)
            yield worth, (_reduce_to_form(written) if weight > NAME else ""), word


class _UnitSignals:
    """The values in a unit, and their worth."""

    __slots__ = ("asked", "factor", "last", "promises", "results", "said", "size", "users", "values", "worth", "worths")

    def __init__(self, unit: Unit) -> None:
        self.last = unit.last
        self.users = unit.asks
        self.values: dict[str, str] = {}
        """All values: the first spelling of each, by its case-folded text."""
        self.said: dict[str, str] = {}
        """The values in messages and arguments of calls, but not in tool results; in the same form."""
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
        """Return the case-folded words of values in tool results whose key is one of `names`."""
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
    """Yield the text of a message and the arguments of its calls. Of long texts only the beginning and the end are yielded."""
    texts = (message.text, *(call.arguments for call in message.tool_calls))
    return (keep_ends(text) for text in texts if text)


def _iter_words(text: str) -> Iterator[str]:
    """Yield the distinct words of a text. In scripts without spaces, a long run of letters is split into pairs of letters."""
    for word in dict.fromkeys(split_words(_KEY.sub(" ", text))):
        if len(word) > RUN and word[0] >= DENSE_FROM and not word.isascii():
            yield from (word[at : at + 2] for at in range(0, len(word), 2))
        else:
            yield word


@lru_cache(maxsize=8_192)
def _reduce_to_form(value: str) -> str:
    """Return the form of a value: each letter is replaced by `a` and each digit by `9`, other characters stay."""
    return "".join("9" if mark.isdigit() else "a" if mark.isalpha() else mark for mark in value[:_FORM])


@lru_cache(maxsize=4_096)
def _fade(age: int, half_life: int, least: float) -> float:
    return float(least + (1 - least) * 0.5 ** (age / half_life))


SMALL, FULL = 2048, 8192
"""Token limits between which the default target falls from `MOST_TARGET` to `LEAST_TARGET`.

With a limit up to `SMALL`, only as much as necessary is evicted, because a stable prefix saves little there: providers do not cache prompts
below a thousand tokens. With a limit from `FULL` on, as much is evicted as by other strategies."""
LEAST_TARGET, MOST_TARGET = 0.33, 1.0
ALIKE = 0.5
"""An evicted unit may be restored only if its importance is at least this fraction of that of the last evicted unit."""


def compute_target(room: int) -> float:
    """Return the default target: the fraction of a token limit of `room` tokens that is still used after an eviction."""
    above = min(1.0, max(0.0, (room - SMALL) / (FULL - SMALL)))
    return MOST_TARGET - (MOST_TARGET - LEAST_TARGET) * above


def choose_units(window: Window, share: float | None) -> frozenset[int]:
    """Choose the units to keep, those most worth their tokens. Return the `Unit.first` of each.

    Args:
        window: a window that exceeds its token limit.
        share: fraction of the token limit that all units together may take; None for the default of `compute_target`.
    """
    room = window.room.tokens
    return choose_within(window, int((compute_target(room) if share is None else share) * room))


def choose_within(window: Window, goal: int) -> frozenset[int]:
    """Choose the units to keep if all together may take `goal` tokens. Return the `Unit.first` of each.

    The least important units are evicted first; if several are equally important, the oldest of them.
    """
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
"""The importance of a unit, and its index."""


class _Queue:
    """Yields the units that may be evicted, the least important first. Each yielded unit is treated as evicted from then on.

    A value in two units matters little until only one of them remains, so evicting a unit can make others more important. The importance of
    a unit is therefore computed again before it is yielded. If it has risen, the unit goes back into the queue.

    Args:
        units: all units of the window.
        free: indexes of the units that may be evicted.
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
    """Yield the indexes of evicted units that may be restored if the last eviction freed more tokens than needed.

    These units are nearly as important as the one evicted last. The most important comes first. Units that callers or scorers rated are not
    restored.

    Args:
        units: all units of the window.
        removed: the evicted units in the order of eviction.
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
