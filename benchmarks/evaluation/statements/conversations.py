"""Read conversations with labelled statements from JSON files. benchmarks/statements/README.md describes the format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from benchmarks.evaluation.statements.matching import Matcher, normalize
from holdfast.domain.messages import Message
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.tokens import STORED
from holdfast.wire.openai import split_system
from holdfast.wire.sendable import parse_sendable

Kind = Literal[
    "instruction",
    "prohibition",
    "preference",
    "name",
    "date",
    "number",
    "decision",
    "correction",
    "promise",
    "conclusion",
]
QUARTERS: Final = 4
"""Number of parts with equal tokens into which a conversation is divided. Results are reported for each part."""
_PLACE: Final = re.compile(r"\$\.statements\[(\d+)\]")
_Words = Annotated[str, msgspec.Meta(min_length=1)]
_Phrases = Annotated[tuple[_Words, ...], msgspec.Meta(min_length=1)]


class Statement(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A labelled statement: a fact in a message that is worth remembering."""

    id: _Words
    message: _Words
    """Id of the message that contains the statement."""
    text: _Words
    """Text of the statement. The message contains it verbatim."""
    kind: Kind
    value: _Phrases
    """Phrases with the essential information. A prompt must contain one of them."""
    topic: _Phrases
    """Phrases that show the topic. A prompt must contain one of them."""
    cue: bool
    """True if the wording contains a clear cue, such as "always"."""
    question: _Words
    """A question that the statement answers."""
    supersedes: str | None = None
    """Id of an earlier statement that this statement corrects."""

    @cached_property
    def matcher(self) -> Matcher:
        """Matcher that detects this statement in prompts."""
        return Matcher(self.value, self.topic)


class Conversation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A conversation and its labelled statements."""

    id: str
    kind: str
    system: tuple[Message, ...]
    messages: tuple[Message, ...]
    """The messages without the system prompt."""
    fields: tuple[Mapping[str, Any], ...]
    """Holdfast's own fields of each message, such as `metadata`."""
    statements: tuple[Statement, ...]
    places: Mapping[str, int]
    """Index of the message that contains a statement, by the id of the statement."""

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Number of tokens before each message, followed by the number of tokens of the conversation."""
        return tuple(accumulate((STORED.message(message) for message in self.messages), initial=0))

    @cached_property
    def last_user(self) -> int:
        """Index of the last user message."""
        return max(at for at, message in enumerate(self.messages) if message.role == "user")

    @cached_property
    def correctors(self) -> Mapping[str, tuple[Statement, ...]]:
        """The statements that correct a statement, directly or indirectly, by the id of the corrected statement."""
        found: dict[str, tuple[Statement, ...]] = {}
        for one in reversed(self.statements):  # a correction comes after what it corrects
            if one.supersedes is not None:
                found[one.supersedes] = (one, *found.get(one.id, ()))
        return found

    def quarter(self, statement: Statement) -> int:
        """Return the quarter of the conversation, from 1 to 4, in which the message of a statement begins. Quarters have equal tokens."""
        return 1 + QUARTERS * self.totals[self.places[statement.id]] // max(1, self.totals[-1])


class _File(msgspec.Struct):
    """The decoded contents of a file."""

    id: str
    messages: list[dict[str, Any]]
    statements: list[Statement]
    kind: str = ""


def read_conversations(paths: Iterable[Path]) -> list[Conversation]:
    """Read conversations from files and folders.

    For a folder, all `.json` files in it and in its subfolders are read, in the order of their names.

    Raises:
        InvalidRequest: A file cannot be read, or a folder contains no `.json` file.
        InvalidMessage: A file is invalid. The error names the statement, and says what is allowed.
    """
    return [_read_file(path) for path in _find_files(paths)]


def _find_files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.rglob("*.json"))
        if not found:
            raise InvalidRequest(f"{path}: there is no .json file in this folder", param="FILE")
        yield from found


def _read_file(path: Path) -> Conversation:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="FILE") from exc
    try:
        raw = msgspec.json.decode(data)
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as exc:
        raise InvalidMessage(f"{path}: {_name_statement(str(exc), raw)}") from exc
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"{path}: this is not JSON: {exc}") from exc
    return _make_conversation(file, str(path))


def _name_statement(error: str, raw: Any) -> str:
    """Return an error message of the JSON decoder, preceded by the id of the statement to which the error refers, if there is one."""
    place = _PLACE.search(error)
    named = raw["statements"][int(place[1])] if place else None
    id_ = named.get("id") if isinstance(named, dict) else None
    return f"statement {str(id_)[:80]!r}: {error}" if id_ is not None else error


def _make_conversation(file: _File, where: str) -> Conversation:
    """Return the conversation of a decoded file.

    Raises:
        InvalidMessage: A message is invalid, an id is used twice or unknown, or a statement does not fit its message.
    """
    raw_messages = [{key: value for key, value in message.items() if key != "id"} for message in file.messages]
    try:
        messages, fields = parse_sendable(raw_messages)
    except (InvalidMessage, InvalidRequest) as exc:
        raise InvalidMessage(f"{where}: {exc}") from exc
    system, rest = split_system(messages)
    if not any(message.role == "user" for message in rest):
        raise InvalidMessage(f"{where}: there is no message with role user")
    ids = {str(message["id"]): at - len(system) for at, message in enumerate(file.messages) if "id" in message}
    if len(ids) < sum("id" in message for message in file.messages):
        raise InvalidMessage(f"{where}: two messages have the same id; each has its own")
    _check_ids(file.statements, where)
    for statement in file.statements:
        at = ids.get(statement.message, -1)
        wrong = (
            f"there is no message {statement.message!r} after the system prompt"
            if at < 0
            else _find_fault(statement, rest[at])
        )
        if wrong:
            raise InvalidMessage(f"{where}: statement {statement.id!r}: {wrong}")
    return Conversation(
        id=file.id,
        kind=file.kind or file.id,
        system=tuple(system),
        messages=tuple(rest),
        fields=tuple(fields[len(system) :]),
        statements=tuple(file.statements),
        places={statement.id: ids[statement.message] for statement in file.statements},
    )


def _check_ids(statements: Iterable[Statement], where: str) -> None:
    """Raise `InvalidMessage` if two statements have the same id, or if one corrects a statement that is unknown or already corrected."""
    known: set[str] = set()
    corrected: set[str] = set()
    for statement in statements:
        old = statement.supersedes
        wrong = "this id was used before; each statement has its own" if statement.id in known else ""
        if old is not None and (old not in known or old in corrected):
            wrong = f"supersedes must be the id of an earlier statement that no other one supersedes, not {old!r}"
        if wrong:
            raise InvalidMessage(f"{where}: statement {statement.id!r}: {wrong}")
        known.add(statement.id)
        corrected.update([old] if old is not None else [])


def _find_fault(statement: Statement, message: Message) -> str:
    """Return an error message if a statement does not fit its message, or an empty string."""
    if statement.text not in message.text:
        return f"text must be verbatim in message {statement.message!r}"
    if not statement.matcher.is_with_topic(normalize(message.text)):
        return "a value and a topic must be in one line of its message"
    return ""
