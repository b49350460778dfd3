"""Find secrets in a text, and replace each with the marker `[REDACTED:label]`.

Every character that any rule finds is removed. Overlapping and adjacent hits become one hit. Its label is the label of the hit that starts
first. If several hits start there, the longest one decides. Existing markers are never part of a hit. A text is searched again until nothing
is found. So redacting a text twice has the same result as redacting it once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from holdfast.secrets.rules import (
    ALL,
    RULES,
    Pattern,
    Rule,
    check_patterns,
    choose_rules,
    load_builtin_rules,
    make_rule,
)

_ROUNDS: Final = 16
"""Maximum number of searches of one text. It is searched again after each replacement."""
_MIN_CHARS: Final = 7
"""Minimum number of characters of a text in which a built-in rule can match."""
_NAMED_CHARS: Final = 4
"""Minimum number of characters of a value that may be a secret because of its key, such as `password`. `on` and `12` are too short."""
_NUMBER_CHARS: Final = 8
"""Minimum number of characters of a number that may be a secret."""
_SECRET_NAMES: Final = re.compile(r"key|pwd|pw|pass|token|secret", re.IGNORECASE)
"""Matches the parts of a key by which built-in rules recognize that the key's value is a secret."""
_TOKEN: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"|-?[0-9][0-9.eE+-]{7,}+', re.DOTALL)
"""Pattern of a JSON string, or of a JSON number with at least eight characters."""
_COLON: Final = re.compile(r"\s*+:")
_DATA_URL: Final = re.compile(r"(?i:data:[^,\s]{0,200}?;base64,)[A-Za-z0-9+/=]*+")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/=\r\n]{256,}+")
"""Pattern of media in base64. Media are not searched, because no one reads them as text."""
_MEDIA_NAMES: Final = frozenset({"data", "file_data", "b64_json"})
"""Fields of message parts whose value is media in base64, without a data URL."""


class Hit(NamedTuple):
    """The position of a secret in a text, and the rule that found it."""

    rule: str
    start: int
    end: int


class RedactionSettings(Protocol):
    """Settings in the configuration section `redaction`; see docs/secrets.md."""

    @property
    def enabled(self) -> bool:
        """False: redaction is off."""

    @property
    def patterns(self) -> Sequence[Any]:
        """The user's own patterns, each with `regex` and `label`."""

    @property
    def rules(self) -> Sequence[str]:
        """Ids of built-in rules, or `all`."""

    @property
    def exclude_rules(self) -> Sequence[str]:
        """Ids of built-in rules that are not used."""


class Redactor:
    """Finds and replaces secrets by rules.

    Attributes:
        hits: number of replacements so far, by label.

    Args:
        rules: rules that find secrets.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.hits: Counter[str] = Counter()
        self._rules = tuple(rules)
        # Only known labels: otherwise a secret could be hidden in such brackets.
        labels = "|".join(re.escape(name) for name in sorted({*RULES, *(rule.id for rule in rules)}))
        self._marker = re.compile(rf"\[REDACTED:(?:{labels})\]")
        self._has_unknown_rule = any(not rule.signs and not rule.word for rule in rules)
        """True if a rule has neither signs nor a minimum word length, so that every text must be searched."""
        self._min_chars = 1 if self._has_unknown_rule else _MIN_CHARS

    def find(self, text: str) -> list[Hit]:
        """Return the secrets in a text, in order and without overlaps. Existing markers are not part of them."""
        merged = _merge(self._find_all(text))
        if not merged:
            return []
        if "[REDACTED:" in text:
            merged = _exclude_markers(merged, [match.span() for match in self._marker.finditer(text)])
        return merged

    def redacted(self, text: str, found: Counter[str] | None = None) -> str:
        """Replace every secret in a text with `[REDACTED:label]`.

        Args:
            text: any text. If it is a base64 data URL, its data remain unchanged.
            found: a counter to which the replacements are added, by label. They are also added to `hits`.
        """
        if is_media(text):
            head, comma, data = text.partition(",")
            redacted = self.redacted(head, found)
            return text if redacted == head else redacted + comma + data
        for _ in range(_ROUNDS):
            hits = self.find(text)
            if not hits:
                break
            self._count(hits, found)
            pieces, at = [], 0
            for hit in hits:
                pieces += [text[at : hit.start], make_marker(hit.rule)]
                at = hit.end
            text = "".join([*pieces, text[at:]])
        return text

    def redacted_json(self, text: str, found: Counter[str] | None = None) -> str:
        """Replace the secrets in a JSON text. The result is valid JSON, and all other bytes are unchanged.

        Each string and each number is searched alone, and again together with its key. Text that is not valid JSON is redacted as plain text.
        """
        try:
            msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self.redacted(text, found)
        taken: set[str] = set()
        name = ""

        def redact_token(token: re.Match[str]) -> str:
            nonlocal name
            original = json.loads(token[0]) if token[0][0] == '"' else token[0]
            if _COLON.match(text, token.end()):
                name = original
                kept = _make_unique(self.redacted(original, found), original, taken)
            else:
                kept = self._redact_named(original, name, found)
            return token[0] if kept == original else _encode_string(kept)

        whole = _TOKEN.sub(redact_token, text)
        return text if whole == text else whole

    def redacted_value(
        self, value: Any, found: Counter[str] | None = None, *, name: str = "", media: bool = False
    ) -> Any:
        """Replace the secrets in a JSON value, including the keys of its objects. Return the same object if there are none.

        If keys become equal, they are numbered, so that no value is lost.

        Args:
            value: a JSON value. Its depth is limited by Python's stack. Values of other types remain unchanged.
            found: a counter to which the replacements are added, by label.
            name: the key of the value in its object; empty if it has none. A key such as `password` shows that the value is a secret.
            media: True if the value may contain base64 media, as message parts do. Media are not searched.
        """
        if isinstance(value, str):
            if media and name in _MEDIA_NAMES and _BASE64.fullmatch(value):
                return value
            return self._redact_named(value, name, found)
        if isinstance(value, int | float) and not isinstance(value, bool):
            original = repr(value)
            redacted = self._redact_named(original, name, found) if len(original) >= _NUMBER_CHARS else original
            return value if redacted == original else redacted
        if isinstance(value, Mapping):
            return self._redact_mapping(value, found, media=media)
        if isinstance(value, list | tuple):
            items = [self.redacted_value(item, found, name=name, media=media) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        return value

    # -- internals ---------------------------------------------------------

    def _redact_mapping(self, value: Mapping[Any, Any], found: Counter[str] | None, *, media: bool) -> Any:
        taken: set[Any] = set(value)
        redacted = {}
        for key, item in value.items():
            kept = _make_unique(self.redacted(key, found), key, taken) if isinstance(key, str) else key
            name = key if isinstance(key, str) else ""
            redacted[kept] = self.redacted_value(item, found, name=name, media=media)
        same = all(new is old and redacted[new] is value[old] for new, old in zip(redacted, value, strict=True))
        return value if same else redacted

    def _redact_named(self, text: str, name: str, found: Counter[str] | None) -> str:
        """Redact a string or number of a JSON value, of which `name` is the key. If a rule matches only `name: "text"`, replace all of `text`.

        `name` is empty if the value has no key.
        """
        redacted = self.redacted(text, found)
        if redacted != text or not name or len(text) < _NAMED_CHARS or is_media(text):
            return redacted
        if not self._has_unknown_rule and not _SECRET_NAMES.search(name):
            return redacted
        begin = len(name) + 3
        end = begin + len(text)
        hits = [hit for hit in self.find(f'{name}: "{text}"') if hit.start < end and hit.end > begin]
        if not hits:
            return text
        self._count(hits[:1], found)
        return make_marker(hits[0].rule)

    def _find_all(self, text: str) -> list[Hit]:
        """Return the hits of all rules in a text. The hits may overlap, and are not in order."""
        if len(text) < self._min_chars:
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
    """Return True if a text is exactly one base64 data URL."""
    return _DATA_URL.fullmatch(text) is not None


def make_marker(label: str) -> str:
    """Return the marker that replaces a secret."""
    return f"[REDACTED:{label}]"


def _merge(found: Iterable[Hit]) -> list[Hit]:
    """Return hits in order. Merge hits that overlap or are adjacent."""
    merged: list[Hit] = []
    for hit in sorted(found, key=lambda hit: (hit.start, -hit.end)):
        if merged and hit.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(hit.end, merged[-1].end))
        else:
            merged.append(hit)
    return merged


def _exclude_markers(hits: Sequence[Hit], markers: Sequence[tuple[int, int]]) -> list[Hit]:
    """Return the parts of hits that are outside of markers. Both arguments must be in order."""
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


def _make_unique(key: str, original: str, taken: set[str]) -> str:
    """Return the key of an object after redaction. If the key was changed and is already taken, add a number to it.

    Args:
        key: the key after redaction.
        original: the key before redaction.
        taken: keys that are taken. A changed key is added.
    """
    if key == original:
        return key
    unique, number = key, 1
    while unique in taken:
        number += 1
        unique = f"{key} ({number})"
    taken.add(unique)
    return unique


def _encode_string(text: str) -> str:
    """Encode a string as JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only contain as an escape
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)


# -- creating --------------------------------------------------------------------


def make_redactor(
    *,
    patterns: Sequence[Pattern] = (),
    rules: Sequence[str] | str = ALL,
    exclude_rules: Sequence[str] = (),
    everything: Sequence[str] = RULES,
) -> Redactor:
    """Create a redactor from built-in rules and the user's own patterns.

    Args:
        patterns: the user's own patterns. All of them are used.
        rules: ids of built-in rules, or `all`; an empty list: no built-in rules.
        exclude_rules: ids of built-in rules that are not used.
        everything: the ids that `all` stands for.

    Raises:
        InvalidRequest: an id is unknown, or a pattern is not valid. The message says which.
        MissingExtra: built-in rules need the extra `secrets`.
    """
    check_patterns(patterns)
    wanted = choose_rules(rules, exclude_rules, everything=everything)
    return Redactor([*load_builtin_rules(wanted), *map(make_rule, patterns)])


def make_redactor_for(settings: RedactionSettings) -> Redactor | None:
    """Create the redactor for the configuration section `redaction`. Return None if it is off. It raises as `make_redactor` does."""
    if not settings.enabled:
        return None
    return make_redactor(patterns=settings.patterns, rules=settings.rules, exclude_rules=settings.exclude_rules)
