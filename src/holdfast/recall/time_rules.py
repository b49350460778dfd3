"""Rules of time expressions: a pattern, what it means, and which words a text must have for it to match. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

Span = tuple[datetime, datetime]
"""From a moment until before another, in local time without a zone."""


class Named(NamedTuple):
    """A time that a text names."""

    start: int
    stop: int
    """Where in the text it is named."""
    span: Span
    relative: bool
    """Whether it is named as seen from now: "yesterday" is, "in May 2023" is not."""


WORDS: Final = re.compile(r"[^\W\d_]+|\d")
Read = Callable[[re.Match[str], datetime], "Span | None"]
Needs = tuple[AbstractSet[str], ...]
DIGIT: Final = frozenset({"#digit"})
YEAR: Final = frozenset({"#year"})
DENSE: Final = frozenset({"#dense"})
"""What a text may need that is no word: a digit, four digits of a year, a character of Chinese, Japanese or Korean."""
_A_DIGIT: Final = re.compile(r"\d")
_A_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_A_DENSE: Final = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


class Rule:
    """A way to name a time.

    Args:
        text: the pattern of it.
        flags: of the pattern.
        read: what it means.
        relative: whether that is as seen from now.
        needs: sets of words, folded. The pattern only matches a text that has a word of each; this is a hundred times
            quicker to see than whether the pattern matches.
    """

    def __init__(self, text: str, flags: re.RegexFlag, read: Read, *, relative: bool, needs: Needs) -> None:
        self.text, self._flags = text, flags
        self.read = read
        self.relative = relative
        self.needs = needs

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Made when it is first asked for: all of them together would be a tenth of a server's start."""
        return re.compile(self.text, self._flags)


def fold(text: str) -> str:
    """Return a text folded so far that whatever a pattern finds in it that ignores case is there letter by letter."""
    folded = text.casefold()
    return folded if folded.isascii() else folded.replace("i\u0307", "i").replace("\u0131", "i")


def possible_rules(rules: Iterable[Rule], text: str) -> list[Rule]:
    """Return the rules that may match in a text, by what they need."""
    words = set(WORDS.findall(fold(text)))
    if _A_DIGIT.search(text):
        words |= DIGIT
        if _A_YEAR.search(text):
            words |= YEAR
    if not text.isascii() and _A_DENSE.search(text):
        words |= DENSE
    found = []
    for rule in rules:
        for need in rule.needs:
            if need.isdisjoint(words):
                break
        else:
            found.append(rule)
    return found


def match_rule(rule: Rule, text: str, now: datetime) -> Iterator[Named]:
    """Yield the times that a rule finds in a text; dates that do not exist are left out."""
    for match in rule.pattern.finditer(text):
        try:
            span = rule.read(match, now)
        except (ValueError, OverflowError):  # the 31st of June, the year 0
            continue
        except KeyError:  # no word of ours: a Turkish i without a dot, which a pattern that ignores case takes for one
            continue
        if span is not None:
            yield Named(match.start(), match.end(), span, rule.relative)


_TALKS: Final = r"(?:chats?|conversations?|discussions?|messages?|questions?|sessions?|talks?|topics?)\b(?![.-]\w)"
"""What a day may have of which somebody asks: "yesterday's questions"; what else is its own ("yesterday's log") is not of that day."""


def inflect_german(words: str) -> str:
    """Return German adjectives with all their endings."""
    return " ".join(word + end for word in words.split() for end in ("", "n", "r", "s"))


def word_rule(pattern: str, read: Read, *needs: str | Iterable[str], relative: bool = True) -> Rule:
    """Return a rule for scripts that put spaces between words; of `needs`, a text is the words in it."""
    sets = tuple(frozenset(need.split() if isinstance(need, str) else need) for need in needs)
    text = rf"(?<![\w-])(?:{pattern})(?![\w-]|'s\b(?! {_TALKS}))"
    return Rule(text, re.IGNORECASE, read, relative=relative, needs=sets)


def dense_rule(pattern: str, read: Read, *, relative: bool = True) -> Rule:
    """Return a rule for scripts that show no bounds of words."""
    return Rule(pattern, re.NOFLAG, read, relative=relative, needs=(DENSE,))
