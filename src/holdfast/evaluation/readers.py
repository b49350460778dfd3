"""Sets out of files: the forms of LoCoMo, REALTALK and BEAM, or a plain one for your own conversations.

The plain form is an object, or a line of JSONL, a sample: `{"id"?, "kind"?, "sessions": [{"id"?, "messages": [{"role", "content", "id"?, "name"?,
"timestamp"?}]}], "questions": [{"question", "evidence": [ids], "type"?, "asked"?, "role"?, "values"?}]}`; times are in milliseconds since the epoch, or ISO 8601. A
message without an id is `SESSION:PLACE`, from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.evaluation import beam, locomo
from holdfast.evaluation.dataset import Dataset, Query, Sample, Turn
from holdfast.limits import EVALUATION_FILE_BYTES
from holdfast.search.queries import SEARCH_ROLES

SUFFIXES: Final = (".json", ".jsonl")
UNANSWERABLE: Final = "unanswerable"
"""The type of questions that nothing answers, of the plain form."""


def read(paths: Iterable[Path], *, captions: bool = True) -> Dataset:
    """The samples in some files; of a folder those in its JSON and JSONL files and in BEAM's folders, sorted by name.

    Args:
        paths: files and folders, in order.
        captions: whether captions of photos belong to what was said (LoCoMo's form).

    Raises:
        InvalidRequest: a file cannot be read, or a folder has none.
        InvalidMessage: a file is of neither form; says where.
    """
    samples: list[Sample] = []
    left_out = unknown = 0
    for where, data in _samples(paths):
        sample, more_left_out, more_unknown = _sample_of(data, where, captions=captions)
        samples.append(sample)
        left_out += more_left_out
        unknown += more_unknown
    if not samples:
        raise InvalidMessage("there is no sample in what was named")
    return Dataset(tuple(samples), left_out, unknown, (locomo.ADVERSARIAL,))


def _sample_of(data: Any, where: str, *, captions: bool) -> tuple[Sample, int, int]:
    if locomo.is_locomo(data):
        return locomo.sample_of(data, where, captions=captions)
    return beam.sample_of(data, where) if beam.is_beam(data) else _plain(data, where)


def _samples(paths: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """Yield what each sample is read from, with its place, for errors. Raises `InvalidRequest`."""
    for path in paths:
        if not path.is_dir():
            yield from _values(path)
            continue
        folders = [path] if beam.is_folder(path) else sorted(filter(beam.is_folder, path.iterdir()))
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
        if not folders and not files:
            raise InvalidRequest(f"{path}: there is no .json or .jsonl file in it", param="DATASET")
        for file in [] if folders == [path] else files:
            yield from _values(file)
        for folder in folders:
            yield str(folder), _read_folder(folder)


def _read_folder(folder: Path) -> dict[str, Any]:
    """Return the folder of a conversation as a row of BEAM's form."""
    chat, questions = (_decoded(_bytes(file), str(file)) for file in (folder / beam.CHAT, folder / beam.QUESTIONS))
    return {"conversation_id": folder.name, "chat": chat, "probing_questions": questions}


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > EVALUATION_FILE_BYTES:
            raise InvalidRequest(f"{path} has more than {EVALUATION_FILE_BYTES:,} bytes", param="DATASET")
        return path.read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{path}: {exc.strerror or exc}", param="DATASET") from exc


def _values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what a file has, each with its place: a value, the values of a list, or one a line."""
    data = _bytes(path)
    if path.suffix.lower() == ".jsonl":
        for number, line in enumerate(data.splitlines(), start=1):
            if line.strip():
                yield f"{path}:{number}", _decoded(line, f"{path}:{number}")
        return
    value = _decoded(data, str(path))
    if isinstance(value, list):
        yield from ((f"{path}[{at}]", one) for at, one in enumerate(value))
    else:
        yield str(path), value


def _decoded(data: bytes, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise InvalidMessage(f"{where}: no JSON: {exc}") from exc


# -- the plain form ----------------------------------------------------------


def _plain(data: Any, where: str) -> tuple[Sample, int, int]:
    if not isinstance(data, Mapping) or not isinstance(data.get("sessions"), list):
        raise InvalidMessage(
            f"{where} is no sample: neither of LoCoMo's form ({{conversation, qa}}), nor REALTALK's ({{session_1, qa}}), "
            f"nor BEAM's ({{chat, probing_questions}}), nor {{sessions, questions}}"
        )
    turns: list[Turn] = []
    names: list[str] = []
    for number, session in enumerate(data["sessions"]):
        if not isinstance(session, Mapping) or not isinstance(session.get("messages"), list):
            raise InvalidMessage(f'{where}: sessions[{number}] is no session: {{"id", "messages"}}')
        names.append(str(session.get("id", number)))
        turns += _turns(session["messages"], number, names[-1], f"{where}: sessions[{number}]")
    places: dict[str, int] = {}
    for at, turn in enumerate(turns):
        if places.setdefault(turn.id, at) != at:
            raise InvalidMessage(f"{where}: two messages have the id {turn.id[:80]!r}")
    if not turns:
        raise InvalidMessage(f"{where}: there are no messages with a text")
    queries, unanswerable, left_out, unknown = _questions(data.get("questions"), places, where)
    name, kind = str(data.get("id") or where), str(data.get("kind") or "")
    return Sample(name, tuple(names), tuple(turns), queries, unanswerable, kind), left_out, unknown


def _turns(messages: Sequence[Any], session: int, name: str, where: str) -> Iterator[Turn]:
    """Of messages without a time each is of that of the one before."""
    moment = 0
    for at, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidMessage(f'{where}.messages[{at}] is no message: {{"role", "content"}}')
        text = message.get("content")
        if not isinstance(text, str):
            raise InvalidMessage(f"{where}.messages[{at}].content is no text")
        who = message.get("name")
        told = _moment(message.get("timestamp"), f"{where}.messages[{at}].timestamp")
        moment = moment if told is None else told
        yield Turn(
            str(message.get("id", f"{name}:{at}")),
            session,
            message["role"],
            None if who is None else str(who),
            text,
            moment,
        )


def _questions(
    given: Any, places: Mapping[str, int], where: str
) -> tuple[tuple[Query, ...], tuple[Query, ...], int, int]:
    if not isinstance(given, list):
        raise InvalidMessage(f"{where}: questions is no list")
    queries: list[Query] = []
    unanswerable: list[Query] = []
    left_out = unknown = 0
    for at, one in enumerate(given):
        if not isinstance(one, Mapping) or not isinstance(one.get("question"), str):
            raise InvalidMessage(f'{where}: questions[{at}] is no question: {{"question", "evidence"}}')
        evidence = one.get("evidence", [])
        if not isinstance(evidence, list):
            raise InvalidMessage(f"{where}: questions[{at}].evidence is no list of ids")
        known = tuple(dict.fromkeys(places[str(name)] for name in evidence if str(name) in places))
        unknown += sum(str(name) not in places for name in evidence)
        type_, role = str(one.get("type", "none")), one.get("role")
        asked = _moment(one.get("asked"), f"{where}: questions[{at}].asked")
        values = one.get("values", [])
        if not (role is None or role in SEARCH_ROLES) or not isinstance(values, list):
            raise InvalidMessage(f"{where}: questions[{at}]: role is one of {', '.join(SEARCH_ROLES)}, values a list")
        query = Query(one["question"], known, type_, asked, role, tuple(map(str, values)))
        if known:
            queries.append(query)
        elif type_ == UNANSWERABLE and not evidence:
            unanswerable.append(query)
        else:
            left_out += 1
    return tuple(queries), tuple(unanswerable), left_out, unknown


def _moment(given: Any, where: str) -> int | None:
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return given
    try:
        moment = datetime.fromisoformat(given)
    except (TypeError, ValueError) as exc:
        raise InvalidMessage(f"{where} is no time: milliseconds since the epoch, or ISO 8601") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
