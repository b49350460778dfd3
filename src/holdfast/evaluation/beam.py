"""BEAM's published form.

Tavakoli et al., "Beyond a Million Tokens: Benchmarking and Enhancing Long-Term Memory in LLMs" (2025).

A row is `{"conversation_id", "chat", "probing_questions"}`. `chat` is a list of batches, each a list of messages or of lists of them, or an
object that holds such lists; a message has `role`, `content`, `id`, and some have a `time_anchor` ("March-15-2024").
`probing_questions` holds lists of questions by ability, as an object or as its text in JSON or Python; each has `question` and
`source_chat_ids`, the ids of the messages that answer it, as a list or as an object of lists.

A conversation may also be a folder that has `chat.json`, and the questions in `probing_questions/probing_questions.json`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from holdfast.errors import InvalidMessage
from holdfast.evaluation.dataset import Query, Sample, Turn

UNANSWERABLE: Final = "abstention"
"""The ability whose questions nothing answers."""
CHAT: Final = "chat.json"
"""File of a conversation's folder that has its messages."""
QUESTIONS: Final = Path("probing_questions", "probing_questions.json")
"""File of the folder that has the questions."""
_APART: Final = 60_000
"""Milliseconds between messages, which have no time of their own."""
_PLACE: Final = re.compile(r"\s*->->[\d\s,.]*$")
"""What ends a message of the user: its place in the plan."""
_DATES: Final = ("%B-%d-%Y", "%B %d, %Y", "%Y-%m-%d", "%b-%d-%Y")
_MOST_EVIDENCE: Final = 1_000


def is_folder(path: Path) -> bool:
    """Return True for the folder of a conversation."""
    return (path / CHAT).is_file() and (path / QUESTIONS).is_file()


def is_beam(data: Any) -> bool:
    """Return True for a row of this form, as it was read from JSON."""
    return isinstance(data, Mapping) and "chat" in data and "probing_questions" in data


def sample_of(data: Mapping[str, Any], where: str) -> tuple[Sample, int, int]:
    """Return a sample, how many of its questions were left out, and how many ids of evidence are unknown.

    Args:
        data: as it was read.
        where: its place, for errors.

    Raises:
        InvalidMessage: it is not of this form; says where.
    """
    batches = data["chat"]
    if isinstance(batches, str):
        batches = _parse(batches, f"{where}: chat")
    if isinstance(batches, Mapping):
        batches = list(batches.values())
    if not isinstance(batches, list):
        raise InvalidMessage(f"{where}: chat is no list of batches")
    turns: list[Turn] = []
    places: dict[str, int] = {}
    moment = 0
    sessions: list[str] = []
    for number, batch in enumerate(batches):
        messages = list(_messages(batch, f"{where}: chat[{number}]"))
        anchors = (_moment(one.get("time_anchor")) for one in [*_objects(batch), *messages])
        moment = next((one for one in anchors if one is not None), moment)
        for message in messages:
            places.setdefault(str(message.get("id", len(turns))), len(turns))
            moment = max(moment, _moment(message.get("time_anchor")) or 0) + _APART
            role, text = str(message["role"]), _PLACE.sub("", message["content"])
            turns.append(Turn(str(message.get("id", len(turns))), len(sessions), role, None, text, moment))
        if messages:
            sessions.append(f"batch_{len(sessions) + 1}")
    if not turns:
        raise InvalidMessage(f"{where}: chat has no messages")
    queries, unanswerable, left_out, unknown = _queries(data["probing_questions"], places, where)
    name = str(data.get("conversation_id", where))
    return Sample(name, tuple(sessions), tuple(turns), tuple(queries), tuple(unanswerable)), left_out, unknown


def _messages(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in nested lists and objects, in order. Raises `InvalidMessage`."""
    if isinstance(value, Mapping) and ("role" in value or "content" in value):
        if not (isinstance(value.get("role"), str) and isinstance(value.get("content"), str)):
            raise InvalidMessage(f'{where} is no message: {{"role", "content", "id"}}')
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _messages(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _messages(inner, f"{where}[{at}]")


def _objects(batch: Any) -> list[Mapping[str, Any]]:
    return [batch] if isinstance(batch, Mapping) else []


def _queries(given: Any, places: Mapping[str, int], where: str) -> tuple[list[Query], list[Query], int, int]:
    if isinstance(given, str):
        given = _parse(given, f"{where}: probing_questions")
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"{where}: probing_questions is no object of lists")
    queries: list[Query] = []
    unanswerable: list[Query] = []
    left_out = unknown = 0
    for ability, some in given.items():
        if not isinstance(some, list):
            raise InvalidMessage(f"{where}: probing_questions.{ability} is no list of questions")
        for at, one in enumerate(some):
            if not isinstance(one, Mapping) or not isinstance(one.get("question"), str):
                raise InvalidMessage(f"{where}: probing_questions.{ability}[{at}] has no question")
            ids = list(dict.fromkeys(_ids(one.get("source_chat_ids"))))[:_MOST_EVIDENCE]
            evidence = tuple(dict.fromkeys(places[id_] for id_ in ids if id_ in places))
            unknown += sum(id_ not in places for id_ in ids)
            if evidence:
                queries.append(Query(one["question"], evidence, str(ability)))
            elif ability == UNANSWERABLE:
                unanswerable.append(Query(one["question"], (), str(ability)))
            else:
                left_out += 1
    return queries, unanswerable, left_out, unknown


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as exc:
        raise InvalidMessage(f"{where} is neither JSON nor a Python literal") from exc


def _ids(value: Any) -> Iterator[str]:
    """Yield ids in nested lists and objects."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _ids(inner)
    elif isinstance(value, int | str) and not isinstance(value, bool):
        yield str(value)


def _moment(text: Any) -> int | None:
    """Milliseconds since the epoch of a date; None: there is none, or in no form that is known."""
    for form in _DATES if isinstance(text, str) else ():
        try:
            return int(datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            continue
    return None
