"""Parse datasets in the published format of BEAM.

Source: Tavakoli et al., "Beyond a Million Tokens: Benchmarking and Enhancing Long-Term Memory in LLMs" (2025).

A row is an object with these fields:

- `conversation_id`.
- `chat`: a list of batches. A batch is a list of messages, a list of lists of messages, or an object that contains such lists. A message
  has `role`, `content`, `id`, and in some cases a `time_anchor` ("March-15-2024").
- `probing_questions`: an object with a list of questions for each ability, or this object as a text in JSON or Python. A question has
  `question` and `source_chat_ids`, the ids of the messages that answer it, as a list or as an object of lists.

Instead of a row, a conversation may be a folder with the files `chat.json` and `probing_questions/probing_questions.json`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.evaluation.dataset import Query, Sample, Turn
from holdfast.errors import InvalidMessage

UNANSWERABLE: Final = "abstention"
"""Ability of the questions that have no answer."""
CHAT: Final = "chat.json"
"""File with the messages, in the folder of a conversation."""
QUESTIONS: Final = Path("probing_questions", "probing_questions.json")
"""File with the questions, in the folder of a conversation."""
_APART: Final = 60_000
"""Milliseconds between the assigned times of two messages. The format has no time for each message."""
_PLACE: Final = re.compile(r"\s*->->[\d\s,.]*$")
"""Suffix of a user message with the message's position in the plan of the dataset. The suffix is removed."""
_DATES: Final = ("%B-%d-%Y", "%B %d, %Y", "%Y-%m-%d", "%b-%d-%Y")
_MOST_EVIDENCE: Final = 1_000


def is_folder(path: Path) -> bool:
    """Return True if the path is a folder that contains a conversation in BEAM's format."""
    return (path / CHAT).is_file() and (path / QUESTIONS).is_file()


def is_beam(data: Any) -> bool:
    """Return True if decoded JSON is a row in BEAM's format."""
    return isinstance(data, Mapping) and "chat" in data and "probing_questions" in data


def parse_sample(data: Mapping[str, Any], where: str) -> tuple[Sample, int, int]:
    """Convert a row to a sample.

    Args:
        data: The decoded row.
        where: Position of the row, for errors.

    Returns:
        The sample, the number of questions that were left out because they have no known evidence, and the number of unknown message ids.

    Raises:
        InvalidMessage: The row does not have BEAM's format. The error names the position.
    """
    batches = data["chat"]
    if isinstance(batches, str):
        batches = _parse(batches, f"{where}: chat")
    if isinstance(batches, Mapping):
        batches = list(batches.values())
    if not isinstance(batches, list):
        raise InvalidMessage(f"{where}: chat must be a list of batches")
    turns: list[Turn] = []
    places: dict[str, int] = {}
    moment = 0
    sessions: list[str] = []
    for number, batch in enumerate(batches):
        messages = list(_list_messages(batch, f"{where}: chat[{number}]"))
        anchors = (_parse_date(one.get("time_anchor")) for one in [*_list_objects(batch), *messages])
        moment = next((one for one in anchors if one is not None), moment)
        for message in messages:
            places.setdefault(str(message.get("id", len(turns))), len(turns))
            moment = max(moment, _parse_date(message.get("time_anchor")) or 0) + _APART
            role, text = str(message["role"]), _PLACE.sub("", message["content"])
            turns.append(Turn(str(message.get("id", len(turns))), len(sessions), role, None, text, moment))
        if messages:
            sessions.append(f"batch_{len(sessions) + 1}")
    if not turns:
        raise InvalidMessage(f"{where}: chat has no messages")
    queries, unanswerable, left_out, unknown = _parse_queries(data["probing_questions"], places, where)
    name = str(data.get("conversation_id", where))
    return Sample(name, tuple(sessions), tuple(turns), tuple(queries), tuple(unanswerable)), left_out, unknown


def _list_messages(value: Any, where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the messages in nested lists and objects, in order.

    Raises:
        InvalidMessage: A message is invalid.
    """
    if isinstance(value, Mapping) and ("role" in value or "content" in value):
        if not (isinstance(value.get("role"), str) and isinstance(value.get("content"), str)):
            raise InvalidMessage(f'{where} is not a message: {{"role", "content", "id"}}')
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _list_messages(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _list_messages(inner, f"{where}[{at}]")


def _list_objects(batch: Any) -> list[Mapping[str, Any]]:
    return [batch] if isinstance(batch, Mapping) else []


def _parse_queries(given: Any, places: Mapping[str, int], where: str) -> tuple[list[Query], list[Query], int, int]:
    if isinstance(given, str):
        given = _parse(given, f"{where}: probing_questions")
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"{where}: probing_questions must be an object of lists")
    queries: list[Query] = []
    unanswerable: list[Query] = []
    left_out = unknown = 0
    for ability, some in given.items():
        if not isinstance(some, list):
            raise InvalidMessage(f"{where}: probing_questions.{ability} must be a list of questions")
        for at, one in enumerate(some):
            if not isinstance(one, Mapping) or not isinstance(one.get("question"), str):
                raise InvalidMessage(f"{where}: probing_questions.{ability}[{at}] has no question")
            ids = list(dict.fromkeys(_list_ids(one.get("source_chat_ids"))))[:_MOST_EVIDENCE]
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


def _list_ids(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _list_ids(inner)
    elif isinstance(value, int | str) and not isinstance(value, bool):
        yield str(value)


def _parse_date(text: Any) -> int | None:
    """Return a date in milliseconds since the epoch, or None if `text` is not a date in a known format."""
    for form in _DATES if isinstance(text, str) else ():
        try:
            return int(datetime.strptime(text.strip(), form).replace(tzinfo=UTC).timestamp()) * 1000
        except ValueError:
            continue
    return None
