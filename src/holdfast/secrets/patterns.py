"""Patterns of the user's own, and which built-in rules are wanted: checked when a process starts, not when a secret comes by.

A pattern of the user's runs in the `regex` module, which can be stopped: nobody can tell of an expression for how long it may
search. One that is slow on a handful of simple texts is refused at once; one that is slow later on, on some text, is stopped,
and then all of that text counts as a hit, since nothing is known of it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidRequest
from holdfast.limits import PATTERN_CHARS, PATTERN_PROBE_SECONDS, PATTERN_SECONDS, PATTERN_SECONDS_A_MIB
from holdfast.secrets.rules import CREDENTIALS, RULES, Rule, Span

ALL: Final = "all"
_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE: Final = 1_000
"""Characters of a text that a new pattern is tried on: enough for a search that is worse than quadratic to show."""
_PROBES_MOST: Final = 24


class Pattern(msgspec.Struct, frozen=True):
    """A rule of the user's: what matches is a secret; only its group `secret`, where there is one."""

    regex: str
    label: str
    """Letters, digits, `_`, `.`, `-`; at most 64."""


def trouble(pattern: str, label: str) -> list[tuple[str, str]]:
    """What is wrong with a pattern of the user's, as (field, message); empty when nothing is."""
    found = []
    if not _LABEL.fullmatch(label):
        found.append(("label", "must be 1 to 64 letters, digits, '_', '.' or '-'"))
    elif label in RULES:
        found.append(("label", f"{label!r} is a built-in rule; give it another name"))
    reason = _wrong(pattern)
    return [*found, ("regex", reason)] if reason else found


def _wrong(pattern: str) -> str | None:
    import regex

    if len(pattern) > PATTERN_CHARS:
        return f"has {len(pattern)} characters; a pattern may have {PATTERN_CHARS}"
    try:
        compiled = regex.compile(pattern)
    except (regex.error, ValueError, OverflowError, RecursionError) as exc:
        return f"is no regular expression: {exc}"
    for probe in _probes(pattern):
        try:
            if any(match.end() == match.start() for match in compiled.finditer(probe, timeout=PATTERN_PROBE_SECONDS)):
                return "matches nothing at all: what is replaced must have a character"
        except TimeoutError:
            return (
                f"took more than {PATTERN_PROBE_SECONDS:g} s on {len(probe)} characters: write it so that it does not try"
                " a text in every way, with fixed lengths or possessive repeats such as a++"
            )
    return None


def _probes(pattern: str) -> Iterator[str]:
    """Texts that a pattern which backtracks too much is slow on: its own characters, again and again."""
    yield ""
    yield "Word one, two: 3.14 /a-b_c@d.example \n\t \"x\" 'y' {z}"
    own = list(dict.fromkeys(char for char in pattern if char.isprintable()))
    for char in list(dict.fromkeys(["a", "0", " ", "-", *own]))[:_PROBES_MOST]:
        yield char * _PROBE + "\x00"
    words = "".join(own)
    yield (words * _PROBE)[:_PROBE] + "\x00"


def check(patterns: Sequence[Any], key: str = "patterns") -> None:
    """Refuse patterns that cannot be used; the error names the place of the first. Raises `InvalidRequest`."""
    for at, pattern in enumerate(patterns):
        for field, message in trouble(pattern.regex, pattern.label):
            place = f"{key}[{at}].{field}"
            raise InvalidRequest(f"{place}: {message}", param=place)


def own_rule(pattern: Any) -> Rule:
    """The rule that a pattern of the user's is; it was checked before."""
    import regex

    compiled = regex.compile(pattern.regex)
    return Rule(pattern.label, lambda text: find_matches(compiled, text))


def find_matches(compiled: Any, text: str) -> Iterator[Span]:
    """Where it is. A search that takes too long is begun once more: the machine may have been busy."""
    group = "secret" if "secret" in compiled.groupindex else 0
    seconds = PATTERN_SECONDS + PATTERN_SECONDS_A_MIB * len(text) / (1 << 20)
    for _ in range(2):
        try:
            spans = [match.span(group) for match in compiled.finditer(text, timeout=seconds, concurrent=True)]
        except TimeoutError:
            continue
        yield from (span for span in spans if span[0] < span[1])
        return
    yield 0, len(text)


# -- which of the built-in ones ----------------------------------------------------


def unknown(names: Sequence[str]) -> list[tuple[str, str]]:
    """Names that are no built-in rule's, each with what to say of it."""
    return [(name, _meant(name)) for name in names if name not in RULES and name != ALL]


def _meant(name: str) -> str:
    near = difflib.get_close_matches(name.lower().replace("-", "_"), RULES, n=1)
    return f"no rule {name!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(RULES)}")


def chosen(
    rules: Sequence[str] | str, exclude: Sequence[str] = (), *, everything: Sequence[str] = CREDENTIALS
) -> tuple[str, ...]:
    """Ids of the built-in rules that are wanted. Raises `InvalidRequest` for one that there is not.

    Args:
        rules: ids, or `all`.
        exclude: those that are not wanted all the same.
        everything: what `all` stands for.
    """
    wanted = (rules,) if isinstance(rules, str) else tuple(rules)
    for key, names in (("rules", wanted), ("exclude_rules", exclude)):
        for _, message in unknown(names):
            raise InvalidRequest(f"{key}: {message}", param=key)
    named = everything if ALL in wanted else wanted
    return tuple(name for name in RULES if (name in named or name in wanted) and name not in exclude)
