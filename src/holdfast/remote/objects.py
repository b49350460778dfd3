"""Convert JSON objects of the REST API to the public types of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET

from holdfast.context.explain import Run
from holdfast.context.sources import MessageSource
from holdfast.domain.artifact import Artifact
from holdfast.domain.memory import Memory, MemorySource, Owner
from holdfast.domain.messages import NOTE
from holdfast.domain.session import Entry, NewCompaction, Session, StoredCompaction, Tail, Usage
from holdfast.lifecycle.removal import DeletionPage, RecordedDeletion
from holdfast.memory.lookup import Recalled, RecalledMemories
from holdfast.memory.memories import Remembered
from holdfast.search.queries import SearchHit, SearchNeighbour, SearchResults
from holdfast.sessions.interruption import Interruption
from holdfast.sessions.model_calls import CallPage, CallSummary
from holdfast.sessions.preview_objects import Context
from holdfast.sessions.prompt_views import PromptView
from holdfast.sessions.speech import SpeechResult
from holdfast.sessions.transfer import ImportResult
from holdfast.stores.log import Appended
from holdfast.stores.memories import OwnedMemories
from holdfast.wire.openai import parse_log_message, parse_message

UNKNOWN: Final = -1
"""The value of numbers that the REST API does not return: `Entry.unit` and `Entry.total`."""
_OF_ENTRY: Final = frozenset(
    [
        "seq",
        "turn_id",
        "timestamp",
        "agent",
        "metadata",
        "tokens",
        "importance",
        "pinned",
        "retired_by",
        "erased",
        "digest",
        "deleted",
        "copies",
    ]
)
_SESSION: Final = ("user_id", "id", "agent", "version", "created_at", "updated_at", "status", "ended_at", "end_reason")
_COMPACTION: Final = ("kind", "first", "last", "text", "tokens", "source_tokens", "model", "created_at", "error")
_MEMORY: Final = (
    "id",
    "version",
    "content",
    "type",
    "importance",
    "origin",
    "trust",
    "status",
    "created_at",
    "updated_at",
    "valid_from",
    "valid_until",
    "superseded_by",
    "promoted_at",
    "reviewed_at",
    "metadata",
)


def decode(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. Raises `TypeError` if the data is not an object, and the errors of msgspec."""
    found = msgspec.json.decode(data)
    if not isinstance(found, dict):
        raise TypeError("not a JSON object")
    return found


def to_session(data: Mapping[str, Any]) -> Session:
    """Convert a `Session` object. Fields that the API does not return have their defaults; `tenant` is empty."""
    identity, next_seq, reshaped = (data.get("log_marker") or ".0.0").rsplit(".", 2)
    usage = data["usage"]
    return Session(
        tenant="",
        **{name: data[name] for name in _SESSION},
        accessed_at=data["updated_at"],
        system_messages=tuple(parse_message(one) for one in data["system_messages"]),
        state=data["state"],
        metadata=data["metadata"],
        ttl=data["ttl"],
        identity=identity,
        reshaped=int(reshaped),
        messages=data["message_count"],
        bytes=data["bytes"],
        usage=Usage(usage["calls"], usage["prompt_tokens"], usage["completion_tokens"], usage["cached_tokens"]),
        tail=Tail(next_seq=int(next_seq), turn_id=data["turns"] - 1, total=data["tokens"]),
        damaged=tuple(data.get("damaged") or ()),
    )


def to_entry(data: Mapping[str, Any]) -> Entry:
    """Convert an `Entry` object. `unit` and `total` are `UNKNOWN`, and `digest` is empty."""
    return Entry(
        seq=data["seq"],
        turn_id=data["turn_id"],
        unit=UNKNOWN,
        timestamp=data["timestamp"],
        tokens=data["tokens"],
        total=UNKNOWN,
        digest=b"",
        message=parse_log_message({name: value for name, value in data.items() if name not in _OF_ENTRY}),
        metadata=data.get("metadata"),
        agent=data.get("agent"),
        importance=data.get("importance"),
        pinned=data.get("pinned", False),
        retired_by=data.get("retired_by", data["seq"] if data["role"] == NOTE else None),
        erased=data.get("erased", False),
    )


def parse_session(data: bytes) -> Session:
    """Convert the answer of a route that returns a session."""
    return to_session(decode(data))


def parse_calls(data: bytes) -> CallPage:
    """Convert the answer of the list of model calls."""
    found = decode(data)
    return CallPage(msgspec.convert(found["data"], tuple[CallSummary, ...]), has_more=found["has_more"])


def parse_prompt_view(data: bytes) -> PromptView:
    """Convert the answer of the view of a prompt."""
    return msgspec.json.decode(data, type=PromptView)


def parse_deletions(data: bytes) -> DeletionPage:
    """Convert the answer of the journal of deletions."""
    found = decode(data)
    return DeletionPage(msgspec.convert(found["data"], tuple[RecordedDeletion, ...]), has_more=found["has_more"])


def parse_entry(data: bytes) -> Entry:
    """Convert the answer of a route that returns a message of the log."""
    return to_entry(decode(data))


def parse_entries(data: bytes) -> tuple[list[Entry], bool, int]:
    """Return the entries of a page, whether there are more, and the version of the session."""
    page = decode(data)
    return [to_entry(one) for one in page["data"]], page["has_more"], page["version"]


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


def to_sources(data: Any) -> list[MessageSource]:
    """Convert the sources of a prompt."""
    return [MessageSource(one["kind"], tuple(one["seqs"]), one["verbatim"]) for one in data]


def parse_context(data: bytes) -> Context:
    """Convert the answer of a route that builds a prompt."""
    found = decode(data)
    return Context(
        messages=found["messages"],
        conversation_tokens=found["conversation_tokens"],
        total_tokens=found["total_tokens"],
        budget=found["budget"],
        hash=found["hash"],
        decisions=msgspec.convert(found["decisions"], list[Run]),
        provider_count=found["provider_count"],
        sent_hash=found.get("sent_hash"),
        system=found.get("system"),
        sources=to_sources(found["sources"]),
    )


class TurnPrompt(msgspec.Struct):
    """The working set of a turn, as the server returns it."""

    session: Session
    agent: str | None
    messages: list[dict[str, Any]]
    sources: list[MessageSource]
    conversation_tokens: int
    budget: int


def parse_prompt(data: bytes) -> TurnPrompt:
    """Convert the answer of a request that begins or continues a turn."""
    found = decode(data)
    return TurnPrompt(
        to_session(found["session"]),
        found["agent"],
        found["messages"],
        to_sources(found["sources"]),
        found["conversation_tokens"],
        found["budget"],
    )


# -- compactions and voice ---------------------------------------------------------


def _to_compaction(data: Mapping[str, Any]) -> StoredCompaction | NewCompaction:
    """Convert a `Compaction` object. `view` is empty, and `total` and `through` are `UNKNOWN`."""
    fields: dict[str, Any] = {name: data[name] for name in _COMPACTION}
    fields |= {"view": "", "total": UNKNOWN, "through": UNKNOWN, **data["usage"]}
    if data["lost"] or data["lost_identifiers"]:
        fields["report"] = {name: data[name] for name in ("lost_identifiers", "lost")}
    if data["id"] is None:
        return NewCompaction(**fields)
    return StoredCompaction(id=data["id"], status=data["status"], **fields)


def parse_stored_compaction(data: bytes) -> StoredCompaction:
    """Convert the answer of a route that returns a stored compaction."""
    found = _to_compaction(decode(data))
    if isinstance(found, StoredCompaction):
        return found
    raise LookupError("id")


def parse_compaction(data: bytes) -> StoredCompaction | NewCompaction | None:
    """Convert the answer of a request to compact. Return None for a compaction that runs in the background."""
    found = decode(data)
    return None if found["status"] == "pending" else _to_compaction(found)


def parse_compactions(data: bytes) -> tuple[list[StoredCompaction], bool]:
    """Return the compactions of a page, and whether there are more."""
    page = decode(data)
    found = [_to_compaction(one) for one in page["data"]]
    return [one for one in found if isinstance(one, StoredCompaction)], page["has_more"]


def _read_outcome(data: bytes) -> tuple[dict[str, Any], Session, Entry | None]:
    found = decode(data)
    return found, to_session(found["session"]), None if found["entry"] is None else to_entry(found["entry"])


def parse_interruption(data: bytes) -> Interruption:
    """Convert the answer of an interruption that asked for the session."""
    found, session, entry = _read_outcome(data)
    return Interruption(session=session, entry=entry, interrupted=found["interrupted"], stopped=found["stopped"])


def parse_speech(data: bytes) -> SpeechResult:
    """Convert the answer of a request to speak. The request must have asked for the session."""
    found, session, entry = _read_outcome(data)
    return SpeechResult(session=session, entry=entry, stopped=found["stopped"])


def parse_import(data: bytes) -> ImportResult:
    """Convert the answer of an import."""
    found = decode(data)
    return ImportResult(to_session(found), changed=found["imported"], replaced=found["replaced"])


# -- search and memories -----------------------------------------------------------


def parse_hits(data: bytes) -> SearchResults:
    """Convert the answer of a search."""
    page = decode(data)
    hits = tuple(_to_hit(one) for one in page["data"])
    span = page["range"]
    return SearchResults(
        hits=hits,
        mode=page["mode"],
        has_more=page["has_more"],
        cursor=page["last_id"] if page["has_more"] else None,
        range=(span["since"], span["until"]),
        notes=tuple(page["notes"]),
    )


def _to_hit(data: dict[str, Any]) -> SearchHit:
    around = msgspec.convert(data["neighbours"], dict[str, tuple[SearchNeighbour, ...]])
    own = {name: data[name] for name in SearchHit.__struct_fields__ if name in data}
    return msgspec.convert({**own, "cursor": data["id"], **msgspec.to_builtins(around)}, SearchHit)


def to_memory(data: Mapping[str, Any]) -> Memory:
    """Convert a `Memory` object."""
    owner = Owner(data["scope"], data["user_id"] or "" if data["scope"] == "user" else data["agent"] or "")
    return Memory(
        owner=Owner("app") if data["scope"] == "app" else owner,
        agent=data["agent"],
        tags=tuple(data["tags"]),
        sources=tuple(msgspec.convert(one, MemorySource) for one in data["sources"]),
        supersedes=tuple(data["supersedes"]),
        **{name: data[name] for name in _MEMORY},
    )


def parse_memory(data: bytes) -> Memory:
    """Convert the answer of a route that returns a memory."""
    return to_memory(decode(data))


def parse_remembered(data: bytes) -> Remembered:
    """Convert the answer of a route that remembers something."""
    found = decode(data)
    return Remembered(to_memory(found), found["outcome"], tuple(to_memory(one) for one in found["similar"]))


def parse_recalled(data: bytes) -> RecalledMemories:
    """Convert the answer of a search for memories."""
    page = decode(data)
    found = tuple(Recalled(to_memory(one), one["score"], one["parts"], one["age"]) for one in page["data"])
    return RecalledMemories(found, page["mode"], page.get("note", ""))


def parse_memories(data: bytes) -> OwnedMemories:
    """Convert a page of memories. The owner's version and total are not known, so they are 0."""
    page = decode(data)
    return OwnedMemories(0, tuple(to_memory(one) for one in page["data"]), has_more=page["has_more"])


# -- artifacts -----------------------------------------------------------------------


def to_artifact(data: Mapping[str, Any]) -> Artifact:
    """Convert an `Artifact` object. `blob`, the key of the content in the server's storage, is empty."""
    names = ("name", "version", "mime_type", "size", "author", "metadata", "created_at")
    return Artifact(blob="", sha256=bytes.fromhex(data["sha256"]), **{name: data[name] for name in names})


def parse_artifact(data: bytes) -> Artifact:
    """Convert the answer of a route that saves an artifact."""
    return to_artifact(decode(data))


def parse_artifacts(data: bytes) -> tuple[list[Artifact], bool, Any]:
    """Return the artifacts of a page, whether there are more, and where the next page begins."""
    page = decode(data)
    return [to_artifact(one) for one in page["data"]], page["has_more"], page["last_id"]


def leave_out_unset(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not UNSET."""
    return {name: value for name, value in fields.items() if value is not UNSET}
