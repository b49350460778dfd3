"""Read datasets in the formats of LoCoMo, REALTALK and BEAM, and in a simple format for your own conversations.

In the simple format, a sample is a JSON object, or a line of JSONL. Fields with a question mark are optional:

    {"id"?, "kind"?,
     "sessions": [{"id"?, "messages": [{"role", "content", "id"?, "name"?, "timestamp"?}]}],
     "questions": [{"question", "evidence": [ids], "type"?, "asked"?, "role"?, "values"?}]}

Times are numbers of milliseconds since the epoch, or texts in ISO 8601. A message without an id gets the id `SESSION:INDEX`, where INDEX is
its position in the session, counted from 0. `Query` describes the fields of a question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.evaluation import beam, locomo
from benchmarks.evaluation.dataset import Dataset, Query, Sample, Turn
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.search.queries import SEARCH_ROLES

SUFFIXES: Final = (".json", ".jsonl")
UNANSWERABLE: Final = "unanswerable"
"""Type of the questions that have no answer, in the simple format."""


def read(paths: Iterable[Path], *, captions: bool = True) -> Dataset:
    """Return the samples in files and folders.

    A folder may contain JSON files, JSONL files and folders in BEAM's format. They are read in the order of their names, files first.

    Args:
        paths: Files and folders, in order.
        captions: True to append the captions of photos to the texts of LoCoMo.

    Raises:
        InvalidRequest: A file cannot be read, or a folder contains no dataset.
        InvalidMessage: A file has none of the formats. The error names the position.
    """
    samples: list[Sample] = []
    left_out = unknown = 0
    for where, data in _read_samples(paths):
        sample, more_left_out, more_unknown = _parse_sample(data, where, captions=captions)
        samples.append(sample)
        left_out += more_left_out
        unknown += more_unknown
    if not samples:
        raise InvalidMessage("the given files contain no sample")
    return Dataset(tuple(samples), left_out, unknown, (locomo.ADVERSARIAL,))


def _parse_sample(data: Any, where: str, *, captions: bool) -> tuple[Sample, int, int]:
    if locomo.is_locomo(data):
        return locomo.parse_sample(data, where, captions=captions)
    return beam.parse_sample(data, where) if beam.is_beam(data) else _parse_simple(data, where)


def _read_samples(paths: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Yield, for each sample, its position (for error messages) and its decoded data.

    Raises:
        InvalidRequest: A file cannot be read, or a folder contains no dataset.
    """
    for path in paths:
        if not path.is_dir():
            yield from _read_values(path)
            continue
        folders = [path] if beam.is_folder(path) else sorted(filter(beam.is_folder, path.iterdir()))
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
        if not folders and not files:
            raise InvalidRequest(f"{path}: the folder has no .json or .jsonl file", param="DATASET")
        for file in [] if folders == [path] else files:
            yield from _read_values(file)
        for folder in folders:
            yield str(folder), _read_folder(folder)


def _read_folder(folder: Path) -> dict[str, Any]:
    """Read a folder in BEAM's format, and return its conversation as a row in BEAM's format."""
    chat, questions = (_decode(_read_file(file), str(file)) for file in (folder / beam.CHAT, folder / beam.QUESTIONS))
    return {"conversation_id": folder.name, "chat": chat, "probing_questions": questions}


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="DATASET") from exc


def _read_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the position and the value of each sample in a file.

    The samples are the lines of a JSONL file, the items of a JSON list, or the single value of any other JSON file.
    """
    data = _read_file(path)
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(data.splitlines(), start=1):
            if line.strip():
                yield f"{path}:{number}", _decode(line, f"{path}:{number}")
        return
    value = _decode(data, str(path))
    if isinstance(value, list):
        yield from ((f"{path}[{at}]", one) for at, one in enumerate(value))
    else:
        yield str(path), value


def _decode(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"{where}: invalid JSON: {exc}") from exc


# -- the simple format --------------------------------------------------------


def _parse_simple(data: Any, where: str) -> tuple[Sample, int, int]:
    if not isinstance(data, Mapping) or not isinstance(data.get("sessions"), list):
        raise InvalidMessage(
            f"{where} is not a sample in the format of LoCoMo ({{conversation, qa}}), REALTALK ({{session_1, qa}}) "
            f"or BEAM ({{chat, probing_questions}}), or with {{sessions, questions}}"
        )
    turns: list[Turn] = []
    names: list[str] = []
    for number, session in enumerate(data["sessions"]):
        if not isinstance(session, Mapping) or not isinstance(session.get("messages"), list):
            raise InvalidMessage(f'{where}: sessions[{number}] is not a session: {{"id", "messages"}}')
        names.append(str(session.get("id", number)))
        turns += _parse_turns(session["messages"], number, names[-1], f"{where}: sessions[{number}]")
    places: dict[str, int] = {}
    for at, turn in enumerate(turns):
        if places.setdefault(turn.id, at) != at:
            raise InvalidMessage(f"{where}: two messages have the id {turn.id[:80]!r}")
    if not turns:
        raise InvalidMessage(f"{where}: there are no messages with a text")
    queries, unanswerable, left_out, unknown = _parse_questions(data.get("questions"), places, where)
    name, kind = str(data.get("id") or where), str(data.get("kind") or "")
    return Sample(name, tuple(names), tuple(turns), queries, unanswerable, kind), left_out, unknown


def _parse_turns(messages: Sequence[Any], session: int, name: str, where: str) -> Iterator[Turn]:
    """Yield the turns of a session. A message without a time gets the time of the message before it."""
    moment = 0
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidMessage(f'{where}.messages[{at}] is not a message: {{"role", "content"}}')
        text = message.get("content")
        if not isinstance(text, str):
            raise InvalidMessage(f"{where}.messages[{at}].content must be a string")
        speaker = message.get("name")
        time = _parse_time(message.get("timestamp"), f"{where}.messages[{at}].timestamp")
        moment = moment if time is None else time
        yield Turn(
            str(message.get("id", f"{name}:{at}")),
            session,
            message["role"],
            None if speaker is None else str(speaker),
            text,
            moment,
        )


def _parse_questions(
    given: Any, places: Mapping[str, int], where: str
) -> tuple[tuple[Query, ...], tuple[Query, ...], int, int]:
    if not isinstance(given, list):
        raise InvalidMessage(f"{where}: questions must be a list")
    queries: list[Query] = []
    unanswerable: list[Query] = []
    left_out = unknown = 0
    for at, one in enumerate(given):
        if not isinstance(one, Mapping) or not isinstance(one.get("question"), str):
            raise InvalidMessage(f'{where}: questions[{at}] is not a question: {{"question", "evidence"}}')
        evidence = one.get("evidence", [])
        if not isinstance(evidence, list):
            raise InvalidMessage(f"{where}: questions[{at}].evidence must be a list of ids")
        known = tuple(dict.fromkeys(places[str(name)] for name in evidence if str(name) in places))
        unknown += sum(str(name) not in places for name in evidence)
        type_, role = str(one.get("type", "none")), one.get("role")
        asked = _parse_time(one.get("asked"), f"{where}: questions[{at}].asked")
        values = one.get("values", [])
        if not (role is None or role in SEARCH_ROLES) or not isinstance(values, list):
            raise InvalidMessage(
                f"{where}: questions[{at}]: role must be one of {', '.join(SEARCH_ROLES)}, and values a list"
            )
        query = Query(one["question"], known, type_, asked, role, tuple(map(str, values)))
        if known:
            queries.append(query)
        elif type_ == UNANSWERABLE and not evidence:
            unanswerable.append(query)
        else:
            left_out += 1
    return tuple(queries), tuple(unanswerable), left_out, unknown


def _parse_time(given: Any, where: str) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    try:
        moment = datetime.fromisoformat(given)
    except (TypeError, ValueError) as exc:
        raise InvalidMessage(f"{where} is not a time: use milliseconds since the epoch, or ISO 8601") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
