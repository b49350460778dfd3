"""Where secrets are in a text, and what stands there instead: `[REDACTED:label]`.

All that any rule finds goes, to the last character: hits that overlap or touch become one, under the name of the one that
begins first (the longest of these). What stands there already is no part of a hit, and texts are looked at again until nothing
is found, so that redacting twice is redacting once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.secrets.rules import ALL, RULES, Pattern, Rule, builtin_rules, check, chosen, own_rule

_ROUNDS: Final = 16
"""Times that a text is looked at again because something was replaced in it."""
_LEAST: Final = 7
"""Characters that a text with a hit of a built-in rule has at least."""
_NAMED_CHARS: Final = 4
"""Characters from which a value may be a secret by its name: not `on` and `12`."""
_NUMBER_CHARS: Final = 8
"""Characters from which a number may be a secret."""
_TELLING: Final = re.compile(r"key|pwd|pw|pass|token|secret", re.IGNORECASE)
"""What stands in the names by which built-in rules know a secret."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]{7,}+', re.DOTALL)
"""In JSON: a string, or a number of at least eight characters."""
_COLON: Final = re.compile(r"\s*+:")
_DATA_URL: Final = re.compile(r"(?i:data:[^,\s]{0,200}?;base64,)[A-Za-z0-9+/=]*+")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\r\n]{256,}+")
"""Media, which are not looked at: nobody reads them as text."""
_MEDIA_NAMES: Final = frozenset({"data", "file_data", "b64_json"})
"""Fields of parts in which media stand without a URL around them."""


class Hit(NamedTuple):
    """A secret in a text."""

    rule: str
    start: int
    end: int


class Settings(Protocol):
    """What the configuration says of redaction; see docs/secrets.md."""

    @property
    def enabled(self) -> bool:
        """False: nothing is looked for."""

    @property
    def use_builtins(self) -> bool:
        """Whether the built-in rules hold too."""

    @property
    def patterns(self) -> Sequence[Any]:
        """The user's own, each with `regex` and `label`."""

    @property
    def rules(self) -> Sequence[str]:
        """Built-in rules, or `all`."""

    @property
    def exclude_rules(self) -> Sequence[str]:
        """Built-in rules that do not hold."""


class Redactor:
    """Finds and replaces what some rules look for.

    Attributes:
        hits: what was replaced so far, by label.

    Args:
        rules: what is looked for.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.hits: Counter[str] = Counter()
        self._rules = tuple(rules)
        # Not any word in such brackets: else a secret could be hidden there.
        labels = "|".join(re.escape(name) for name in sorted({*RULES, *(rule.id for rule in rules)}))
        self._marker = re.compile(rf"\[REDACTED:(?:{labels})\]")
        self._blind = any(not rule.signs and not rule.word for rule in rules)
        """Whether there is a rule of which nothing is known."""
        self._least = 1 if self._blind else _LEAST

    def find(self, text: str) -> list[Hit]:
        """The secrets in a text, in order, none overlapping; what was replaced before is none."""
        merged = _merged(self._found(text))
        if not merged:
            return []
        if "[REDACTED:" in text:
            merged = _without(merged, [match.span() for match in self._marker.finditer(text)])
        return merged

    def redacted(self, text: str, found: Counter[str] | None = None) -> str:
        """The text with `[REDACTED:label]` in place of every secret.

        Args:
            text: any; what is a data URL in base64 stays as it is.
            found: counts what was replaced, by label; `hits` does in any case.
        """
        if is_media(text):
            head, comma, data = text.partition(",")
            told = self.redacted(head, found)
            return text if told == head else told + comma + data
        for _ in range(_ROUNDS):
            hits = self.find(text)
            if not hits:
                break
            self._count(hits, found)
            text = _replaced(text, hits)
        return text

    def redacted_json(self, text: str, found: Counter[str] | None = None) -> str:
        """A JSON text with its secrets replaced, still JSON and otherwise byte for byte as it was; other text as text.

        Each string and number is looked at by itself, and together with the name that it stands under.
        """
        try:
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self.redacted(text, found)
        taken: set[str] = set()
        name = ""

        def told(token: re.Match[str]) -> str:
            nonlocal name
            said = json.loads(token[0]) if token[0][0] == '"' else token[0]
            if _COLON.match(text, token.end()):
                name = said
                kept = _apart(self.redacted(said, found), said, taken)
            else:
                kept = self._named(said, name, found)
            return token[0] if kept == said else _quoted(kept)

        whole = _TOKEN.sub(told, text)
        return text if whole == text else whole

    def redacted_value(
        self, value: Any, found: Counter[str] | None = None, *, name: str = "", media: bool = False
    ) -> Any:
        """A JSON value with its secrets replaced, in keys too; the same object when there is none.

        Keys that become equal are numbered, so that none of their values is lost.

        Args:
            value: what JSON can say, at most as deep as Python's stack; anything else stays as it is.
            found: see `redacted`.
            name: what it stands under, which may give it away.
            media: whether it may hold media in base64, as the parts of a message do; those are not looked at.
        """
        if isinstance(value, str):
            if media and name in _MEDIA_NAMES and _BASE64.fullmatch(value):
                return value
            return self._named(value, name, found)
        if isinstance(value, int | float) and not isinstance(value, bool):
            said = repr(value)
            told = self._named(said, name, found) if len(said) >= _NUMBER_CHARS else said
            return value if told == said else told
        if isinstance(value, Mapping):
            return self._mapping(value, found, media=media)
        if isinstance(value, list | tuple):
            items = [self.redacted_value(item, found, name=name, media=media) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    # -- inside ------------------------------------------------------------

    def _mapping(self, value: Mapping[Any, Any], found: Counter[str] | None, *, media: bool) -> Any:
        taken: set[Any] = set(value)
        told = {}
        for key, item in value.items():
            kept = _apart(self.redacted(key, found), key, taken) if isinstance(key, str) else key
            name = key if isinstance(key, str) else ""
            told[kept] = self.redacted_value(item, found, name=name, media=media)
        same = all(new is old and told[new] is value[old] for new, old in zip(told, value, strict=True))
        return value if same else told

    def _named(self, text: str, name: str, found: Counter[str] | None) -> str:
        """A text that stands under a name: where the two together give a secret away, all of the text goes."""
        told = self.redacted(text, found)
        if told != text or not name or len(text) < _NAMED_CHARS or is_media(text):
            return told
        if not self._blind and not _TELLING.search(name):
            return told
        begin = len(name) + 3
        end = begin + len(text)
        hits = [hit for hit in self.find(f'{name}: "{text}"') if hit.start < end and hit.end > begin]
        if not hits:
            return text
        self._count(hits[:1], found)
        return marker(hits[0].rule)

    def _found(self, text: str) -> list[Hit]:
        """What the rules find, each for itself."""
        if len(text) < self._least:
            return []
        folded = text.lower()
        longest = max(map(len, folded.split()), default=0)
        found: list[Hit] = []
        for rule in self._rules:
            if rule.word <= longest and (not rule.signs or any(sign in folded for sign in rule.signs)):
                found += [Hit(rule.id, start, end) for start, end in rule.spans(text)]
        return found

    def _count(self, hits: Sequence[Hit], found: Counter[str] | None) -> None:
        counted = Counter(hit.rule for hit in hits)
        self.hits.update(counted)
        if found is not None:
            found.update(counted)


def is_media(text: str) -> bool:
    """Whether a text is a data URL in base64 and nothing else."""
    return _DATA_URL.fullmatch(text) is not None


def marker(label: str) -> str:
    """What stands in place of a secret."""
    return f"[REDACTED:{label}]"


def _merged(found: Iterable[Hit]) -> list[Hit]:
    """Hits in order, those that overlap or touch as one."""
    merged: list[Hit] = []
    for hit in sorted(found, key=lambda hit: (hit.start, -hit.end)):
        if merged and hit.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(hit.end, merged[-1].end))
        else:
            merged.append(hit)
    return merged


def _without(hits: Sequence[Hit], markers: Sequence[tuple[int, int]]) -> list[Hit]:
    """What of the hits lies outside of markers; both are in order."""
    left: list[Hit] = []
    at = 0
    for hit in hits:
        start = hit.start
        while at < len(markers) and markers[at][1] <= start:
            at += 1
        for begin, end in markers[at:]:
            if begin >= hit.end:
                break
            if begin > start:
                left.append(Hit(hit.rule, start, begin))
            start = max(start, end)
        if start < hit.end:
            left.append(Hit(hit.rule, start, hit.end))
    return left


def _replaced(text: str, hits: Sequence[Hit]) -> str:
    pieces, at = [], 0
    for hit in hits:
        pieces += [text[at : hit.start], marker(hit.rule)]
        at = hit.end
    return "".join([*pieces, text[at:]])


def _apart(key: str, was: str, taken: set[str]) -> str:
    """A key that holds a marker now, numbered where another one reads the same."""
    if key == was:
        return key
    told, number = key, 1
    while told in taken:
        number += 1
        told = f"{key} ({number})"
    taken.add(told)
    return told


def _quoted(text: str) -> str:
    """A string as JSON writes it."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which stands in JSON as an escape only
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


# -- made ----------------------------------------------------------------------


def make_redactor(
    *,
    patterns: Sequence[Pattern] = (),
    rules: Sequence[str] | str = ALL,
    exclude_rules: Sequence[str] = (),
    everything: Sequence[str] = RULES,
) -> Redactor:
    """A redactor of some built-in rules and the user's own.

    Args:
        patterns: the user's own; they hold whatever `rules` says.
        rules: ids of built-in rules, or `all`; an empty list: none.
        exclude_rules: ids of those that do not hold.
        everything: what `all` stands for.

    Raises:
        InvalidRequest: an unknown id, or a pattern that cannot be used; says which.
        MissingExtra: built-in rules need the extra `secrets`.
    """
    check(patterns)
    wanted = chosen(rules, exclude_rules, everything=everything)
    return Redactor([*builtin_rules(wanted), *map(own_rule, patterns)])


def redactor_of(settings: Settings | None) -> Redactor | None:
    """The redactor that the configuration's `redaction` asks for; None where that is off. Raises as `make_redactor` does."""
    if settings is None or not settings.enabled:
        return None
    rules = settings.rules if settings.use_builtins else ()
    return make_redactor(patterns=settings.patterns, rules=rules, exclude_rules=settings.exclude_rules)
