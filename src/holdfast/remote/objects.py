"""Convert JSON objects of the REST API to the public types of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from holdfast.context.sources import MessageSource
from holdfast.domain.artifact import Artifact
from holdfast.domain.memory import Memory, Owner
from holdfast.domain.messages import NOTE, Message
from holdfast.domain.session import Entry, NewCompaction, Session, StoredCompaction, Tail
from holdfast.memory.lookup import Recalled, RecalledMemories
from holdfast.memory.memories import Remembered
from holdfast.search.queries import SearchHit, SearchResults
from holdfast.sessions.interruption import Interruption
from holdfast.sessions.speech import SpeechResult
from holdfast.sessions.transfer import ImportResult
from holdfast.stores.log import Appended
from holdfast.wire.openai import parse_log_message, parse_message, to_chat_message

T = TypeVar("T")
UNKNOWN: Final = -1
"""The value of numbers that the REST API does not return: `Entry.unit` and `Entry.total`."""
_OF_ENTRY: Final = frozenset(
    {
        *("seq", "turn_id", "timestamp", "agent", "metadata", "tokens", "importance", "pinned", "retired_by"),
        *("erased", "digest", "deleted", "copies"),
    }
)
"""Fields of an `Entry` object that are not part of its message."""


# -- any object ----------------------------------------------------------------------


def decode(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises `TypeError` if the data is not an object, and the errors of msgspec."""
    found = msgspec.json.decode(data)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def parse_as(kind: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes an answer whose fields are those of a struct. Fields that the struct does not have are ignored."""
    return partial(msgspec.json.decode, type=kind)


def parse_with(convert: Callable[[dict[str, Any]], T]) -> Callable[[bytes], T]:
    """Return a function that decodes an answer and converts the JSON object."""
    return lambda data: convert(decode(data))


class Page(NamedTuple, Generic[T]):
    """A page of a list."""

    items: tuple[T, ...]
    has_more: bool
    last_id: Any
    """The parameter `after` of the next page."""
    fields: dict[str, Any]
    """The whole JSON object."""


def parse_page(convert: Callable[[dict[str, Any]], T]) -> Callable[[bytes], Page[T]]:
    """Return a function that decodes a page of a list, whose items `convert` converts."""

    def parse(data: bytes) -> Page[T]:
        found = decode(data)
        return Page(tuple(map(convert, found["data"])), found["has_more"], found.get("last_id"), found)

    return parse


# -- sessions ------------------------------------------------------------------------


def to_log_json(message: Message) -> dict[str, Any]:
    """Return a message as an append takes it, with its origin."""
    chat = to_chat_message(message)
    return chat if message.origin is None else {**chat, "origin": message.origin}


def to_session(data: Mapping[str, Any]) -> Session:
    """Convert a `Session` object. Fields that the API does not return have their defaults; `tenant` is empty."""
    identity, next_seq, reshaped = (data.get("log_marker") or ".0.0").rsplit(".", 2)
    own = {
        "tenant": "",
        "accessed_at": data["updated_at"],
        "system_messages": [parse_message(one) for one in data["system_messages"]],
        "messages": data["message_count"],
        "identity": identity,
        "reshaped": int(reshaped),
        "tail": Tail(next_seq=int(next_seq), turn_id=data["turns"] - 1, total=data["tokens"]),
    }
    return msgspec.convert({**data, **own}, Session)


def to_entry(data: Mapping[str, Any]) -> Entry:
    """Convert an `Entry` object. `unit` and `total` are `UNKNOWN`, and `digest` is empty."""
    own = {
        "unit": UNKNOWN,
        "total": UNKNOWN,
        "digest": b"",
        "message": parse_log_message({name: value for name, value in data.items() if name not in _OF_ENTRY}),
        "retired_by": data.get("retired_by", data["seq"] if data["role"] == NOTE else None),
    }
    return msgspec.convert({**data, **own}, Entry)


parse_session: Final = parse_with(to_session)
parse_entry: Final = parse_with(to_entry)
parse_entries: Final = parse_page(to_entry)


class Written(msgspec.Struct):
    """The result of an append: without the session, unless the request asked for it."""

    entries: tuple[Entry, ...]
    version: int
    start: int
    replayed: bool
    log_marker: str
    session: Session | None


def parse_written(data: bytes) -> Written:
    """Convert the answer of an append."""
    page = decode(data)
    session = page.get("session")
    return Written(
        tuple(to_entry(one) for one in page["data"]),
        page["written_version"],
        page["start"],
        page["replayed"],
        page["log_marker"],
        None if session is None else to_session(session),
    )


def to_appended(written: Written) -> Appended:
    """Return the library's type for the result of an append. The request must have asked for the session."""
    if written.session is None:
        raise LookupError("session")
    return Appended(written.session, written.entries, written.version, written.start, replayed=written.replayed)


def to_import(data: Mapping[str, Any]) -> ImportResult:
    """Convert the answer of an import."""
    return ImportResult(to_session(data), changed=data["imported"], replaced=data["replaced"])


# -- prompts -------------------------------------------------------------------------


class TurnPrompt(msgspec.Struct):
    """The working set of a turn, as the server returns it."""

    session: Session
    agent: str | None
    messages: list[dict[str, Any]]
    sources: list[MessageSource]
    conversation_tokens: int
    budget: int


def to_prompt(data: Mapping[str, Any]) -> TurnPrompt:
    """Convert the answer of a request that begins or continues a turn."""
    return msgspec.convert({**data, "session": to_session(data["session"])}, TurnPrompt)


# -- compactions and voice -----------------------------------------------------------


def to_compaction(data: Mapping[str, Any]) -> StoredCompaction | NewCompaction | None:
    """Convert a `Compaction` object. `view` is empty, and `total` and `through` are `UNKNOWN`. None: it runs in the background."""
    if data["status"] == "pending":
        return None
    report = {name: data[name] for name in ("lost_identifiers", "lost")}
    own = {"view": "", "total": UNKNOWN, "through": UNKNOWN, "report": report if any(report.values()) else None}
    fields = {**data, **data["usage"], **own}
    return msgspec.convert(fields, NewCompaction) if data["id"] is None else msgspec.convert(fields, StoredCompaction)


def to_stored_compaction(data: Mapping[str, Any]) -> StoredCompaction:
    """Convert the `Compaction` object of a compaction that has an id."""
    found = to_compaction(data)
    if isinstance(found, StoredCompaction):
        return found
    raise LookupError("id")


def _to_outcome(data: Mapping[str, Any]) -> dict[str, Any]:
    entry = data["entry"]
    return {**data, "session": to_session(data["session"]), "entry": None if entry is None else to_entry(entry)}


def to_interruption(data: Mapping[str, Any]) -> Interruption:
    """Convert the answer of an interruption that asked for the session."""
    return msgspec.convert(_to_outcome(data), Interruption)


def to_speech(data: Mapping[str, Any]) -> SpeechResult:
    """Convert the answer of a request to speak. The request must have asked for the session."""
    return msgspec.convert(_to_outcome(data), SpeechResult)


# -- search, memories, artifacts -----------------------------------------------------


def _to_hit(data: dict[str, Any]) -> SearchHit:
    return msgspec.convert({**data, **data["neighbours"], "cursor": data["id"]}, SearchHit)


def to_results(data: Mapping[str, Any]) -> SearchResults:
    """Convert the answer of a search."""
    cursor = data["last_id"] if data["has_more"] else None
    own = {"hits": [_to_hit(one) for one in data["data"]], "range": [*data["range"].values()], "cursor": cursor}
    return msgspec.convert({**data, **own}, SearchResults)


def to_memory(data: Mapping[str, Any]) -> Memory:
    """Convert a `Memory` object."""
    kind = data["scope"]
    owner = Owner(kind, {"user": data["user_id"], "agent": data["agent"]}.get(kind) or "")
    return msgspec.convert({**data, "owner": owner, "score": None}, Memory)


def to_remembered(data: Mapping[str, Any]) -> Remembered:
    """Convert the answer of a route that remembers something."""
    return Remembered(to_memory(data), data["outcome"], tuple(to_memory(one) for one in data["similar"]))


def to_recalled(data: Mapping[str, Any]) -> RecalledMemories:
    """Convert the answer of a search for memories."""
    found = tuple(Recalled(to_memory(one), one["score"], one["parts"], one["age"]) for one in data["data"])
    return RecalledMemories(found, data["mode"], data.get("note", ""))


def to_artifact(data: Mapping[str, Any]) -> Artifact:
    """Convert an `Artifact` object. `blob`, the key of the content in the server's storage, is empty."""
    return msgspec.convert({**data, "blob": "", "sha256": bytes.fromhex(data["sha256"])}, Artifact)
