"""Templates in agents' instructions and messages: `{key}` is replaced by the value of that key in the session's state.

    {topic}                   a key of the session itself; it must exist
    {topic?}                  the same key, but empty text if the key is missing
    {user:language}           a key that all sessions of the user share
    {app:version}             a key that all sessions share
    {temp:x}                  a key of the current turn
    {artifact.plan.md}        the text of an artifact
    {artifact.user:plan.md?}  the text of an artifact that all sessions of the user share; empty if it is missing
    {{topic}}                 the literal text `{topic}`

A name consists of letters, digits and `_`, and does not begin with a digit. Braces around anything else, especially
JSON, stay unchanged. Values are data: placeholders in them are never replaced. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, Final

import msgspec

from holdfast.domain.artifact import check_name
from holdfast.domain.state import encode_value
from holdfast.errors import InvalidRequest, MissingState

ARTIFACT: Final = "artifact."
"""Prefix of a placeholder for the text of an artifact."""
_PLACE: Final = re.compile(r"\{((?:user:|app:|temp:)?[^\W\d]\w*|artifact\.[^{}?\n]+)(\??)\}")
_BRACE: Final = re.compile(r"[{}]")
_SINGLE: Final = "{"
_DOUBLE: Final = "{{"


class Placeholder(msgspec.Struct, frozen=True):
    """A placeholder in a template, for a value."""

    name: str
    """The key of the state with the prefix of its scope, or `ARTIFACT` followed by the name of an artifact."""
    optional: bool = False
    """True if the value may be missing."""


class Template:
    """A text that was parsed into literal texts and placeholders.

    Attributes:
        parts: the literal texts and placeholders, in order.
    """

    def __init__(self, parts: Sequence[str | Placeholder]) -> None:
        self.parts = tuple(parts)

    @cached_property
    def places(self) -> tuple[Placeholder, ...]:
        """The placeholders in order."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """State keys for which the template contains placeholders, with the prefix of their scope and without duplicates."""
        return tuple(dict.fromkeys(one.name for one in self.places if not one.name.startswith(ARTIFACT)))

    @cached_property
    def artifacts(self) -> tuple[str, ...]:
        """Names of the artifacts that the template contains, without duplicates."""
        named = (one.name.removeprefix(ARTIFACT) for one in self.places if one.name.startswith(ARTIFACT))
        return tuple(dict.fromkeys(named))

    def render(self, values: Mapping[str, Any], *, agent: str, strict: bool = True) -> str:
        """Return the text with values in place of placeholders: strings unchanged, other values as JSON.

        Placeholders in values are not replaced.

        Args:
            values: the values, by `Placeholder.name`. A value of None is the same as a missing one.
            agent: the agent that the template belongs to, for the error.
            strict: False if any value may be missing.

        Raises:
            MissingState: the value of a placeholder that is not optional is missing.
        """
        return "".join(self._render_part(part, values, agent, strict=strict) for part in self.parts)

    def _render_part(self, part: str | Placeholder, values: Mapping[str, Any], agent: str, *, strict: bool) -> str:
        if isinstance(part, str):
            return part
        value = values.get(part.name)
        if value is None:
            if strict and not part.optional:
                raise MissingState(part.name, agent=agent)
            return ""
        return value if isinstance(value, str) else encode_value(part.name, value).decode()


@lru_cache(maxsize=1024)
def parse_template(text: str) -> Template:
    """Parse a text as a template. Every text is valid. The results for recent texts are cached."""
    return Template(list(_join_texts(_split_parts(text))))


def _split_parts(text: str) -> Iterator[str | Placeholder]:
    """Yield the literal texts and placeholders of a template in order.

    A stack of open braces distinguishes an escaped `}}` from two closing braces: `{"a": {"b": 1}}` stays unchanged.
    """
    opened: list[str] = []
    at = 0
    while found := _BRACE.search(text, at):
        start = found.start()
        yield text[at:start]
        place = None
        if text.startswith(_DOUBLE, start):
            opened.append(_DOUBLE)
            literal, at = "{", start + 2
        elif text[start] == "{":
            place = _parse_place(text, start)
            if place is None:
                opened.append(_SINGLE)
            literal, at = "{", start + 1
        else:
            literal, at = "}", start + _measure_closing(text, start, opened)
        if place is None:
            yield literal
        else:
            yield place[0]
            at = place[1]
    yield text[at:]


def _measure_closing(text: str, start: int, opened: list[str]) -> int:
    """Return how many characters the closing brace at `start` has: two if it is escaped, else one."""
    pair = text.startswith("}}", start)
    if opened and opened[-1] == _SINGLE:
        opened.pop()
        return 1
    if pair and opened:
        opened.pop()
    return 2 if pair else 1


def _parse_place(text: str, start: int) -> tuple[Placeholder, int] | None:
    """Return the placeholder that begins at `start`, and the offset of its end; None if no placeholder begins there."""
    found = _PLACE.match(text, start)
    if found is None:
        return None
    name = found[1]
    if name.startswith(ARTIFACT):
        try:
            name = ARTIFACT + check_name(name.removeprefix(ARTIFACT))
        except InvalidRequest:
            return None
    return Placeholder(name, bool(found[2])), found.end()


def _join_texts(parts: Iterator[str | Placeholder]) -> Iterator[str | Placeholder]:
    """Join consecutive literal texts."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
