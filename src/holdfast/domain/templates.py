"""Templates in what an agent is told, and in what it says itself: `{key}` is what the session's state has under that key.

    {topic}            the session's own; it has to be there
    {topic?}           it may be missing: then nothing stands there
    {user:language}    shared by the user's sessions; so are `{app:version}` by all, and `{temp:x}` is of this turn
    {artifact.plan.md} the text of an artifact; `{artifact.user:plan.md?}` of one that the user's sessions share
    {{topic}}          is `{topic}`, which stands for itself

A name has letters, digits and `_`, and does not begin with a digit. Braces around anything else are left as they are, JSON's
above all. Values are data: what they hold is never looked at again. Pure: nothing here reads or writes anything.
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
"""What the name of a placeholder begins with that stands for the text of an artifact."""
_PLACE: Final = re.compile(r"\{((?:user:|app:|temp:)?[^\W\d]\w*|artifact\.[^{}?\n]+)(\??)\}")
_BRACE: Final = re.compile(r"[{}]")
_SINGLE: Final = "{"
_DOUBLE: Final = "{{"


class Placeholder(msgspec.Struct, frozen=True):
    """A place in a template that something else comes to stand in."""

    name: str
    """The key of the state with the prefix of its scope, or `ARTIFACT` and the name of an artifact."""
    optional: bool = False
    """Whether it may be missing."""


class Template:
    """A text as it was read: what stands for itself, and places.

    Attributes:
        parts: both, in order.
    """

    def __init__(self, parts: Sequence[str | Placeholder]) -> None:
        self.parts = tuple(parts)

    @cached_property
    def places(self) -> tuple[Placeholder, ...]:
        """Those in it, in order."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Keys of the state that it names, with the prefix of their scope, each once."""
        return tuple(dict.fromkeys(one.name for one in self.places if not one.name.startswith(ARTIFACT)))

    @cached_property
    def artifacts(self) -> tuple[str, ...]:
        """Names of the artifacts that it names, each once."""
        named = (one.name.removeprefix(ARTIFACT) for one in self.places if one.name.startswith(ARTIFACT))
        return tuple(dict.fromkeys(named))

    def render(self, values: Mapping[str, Any], *, agent: str, what: str = "instruction", strict: bool = True) -> str:
        """The text with what stands under each name, in one pass: a text as it is, anything else as JSON.

        Args:
            values: by name, as `Placeholder` has it; None is missing.
            agent: whose template it is, for the error.
            what: which of the agent's texts it is, for the error.
            strict: False where everything may be missing.

        Raises:
            MissingState: there is nothing under a name that is not optional.
        """
        return "".join(self._render_part(part, values, agent, what, strict=strict) for part in self.parts)

    def _render_part(
        self, part: str | Placeholder, values: Mapping[str, Any], agent: str, what: str, *, strict: bool
    ) -> str:
        if isinstance(part, str):
            return part
        value = values.get(part.name)
        if value is None:
            if strict and not part.optional:
                raise MissingState(part.name, agent=agent, what=what)
            return ""
        return value if isinstance(value, str) else encode_value(part.name, value).decode()


@lru_cache(maxsize=1024)
def parse_template(text: str) -> Template:
    """The template in `text`; read once for equal texts. Any text is one."""
    return Template(list(_join_texts(_split_parts(text))))


def _split_parts(text: str) -> Iterator[str | Placeholder]:
    """What stands for itself, and places, in order.

    Braces that are open tell a pair apart that is an escape from two that each close something: `{"a": {"b": 1}}` stays as it is.
    """
    opened: list[str] = []
    at = 0
    while found := _BRACE.search(text, at):
        start = found.start()
        yield text[at:start]
        place = None
        if text.startswith(_DOUBLE, start):
            opened.append(_DOUBLE)
            told, at = "{", start + 2
        elif text[start] == "{":
            place = _parse_place(text, start)
            if place is None:
                opened.append(_SINGLE)
            told, at = "{", start + 1
        else:
            told, at = "}", start + _measure_closing(text, start, opened)
        if place is None:
            yield told
        else:
            yield place[0]
            at = place[1]
    yield text[at:]


def _measure_closing(text: str, start: int, opened: list[str]) -> int:
    """How many characters are one brace that closes: two where it is an escaped one."""
    pair = text.startswith("}}", start)
    if opened and opened[-1] == _SINGLE:
        opened.pop()
        return 1
    if pair and opened:
        opened.pop()
    return 2 if pair else 1


def _parse_place(text: str, start: int) -> tuple[Placeholder, int] | None:
    """The place that begins at `start`, and where it ends; None where there is none."""
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
    """The same with texts that follow each other in one."""
    said = ""
    for part in parts:
        if isinstance(part, str):
            said += part
            continue
        if said:
            yield said
        said = ""
        yield part
    if said:
        yield said
