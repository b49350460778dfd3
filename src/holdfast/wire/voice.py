"""Agora's short-term memory records: the history of a session in the format of voice agents.

A record has the text, time, turn and source of an entry and, for an interrupted reply, details of the interruption. Metadata that
Holdfast uses itself are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.fact_choices import STANDING_FACTS
from holdfast.domain.session import BRANCH, JOINED, STEP, Entry
from holdfast.errors import InvalidMetadata, InvalidRequest
from holdfast.numbers import is_whole

SOURCES: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("message", "asr", "command"),
    "assistant": ("llm", "greeting", "llm_failure", "silence", "command"),
}
"""Possible sources of a message for each role. The first one is used if an entry has no source."""
INTERRUPTABLE: Final = "interruptable"
"""Metadata key whose value is false if the entry must not be interrupted. Records do not contain it."""
INTERNAL: Final = frozenset({"preface", "returned", BRANCH, INTERRUPTABLE, JOINED, STANDING_FACTS, STEP})
"""Metadata keys that Holdfast uses itself. Records do not contain them."""
_OF_A_CUT: Final = frozenset({"interrupted", "interrupt_timestamp", "original"})


def make_records(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return a record for each text of the user and the assistant. System messages and tool messages are left out."""
    return [_make_record(entry) for entry in entries if _is_spoken(entry)]


def make_attributed_records(entries: Sequence[Entry], own: str | None) -> list[dict[str, Any]]:
    """Return records like `make_records`. Records of other agents than the session's own have the agent's name.

    Args:
        entries: The entries.
        own: Name of the session's own agent.
    """
    return [
        _make_record(entry) if entry.agent in (None, own) else {**_make_record(entry), "agent": entry.agent}
        for entry in entries
        if _is_spoken(entry)
    ]


def make_plain_records(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Return the role and the text of each message of the user and the assistant."""
    return [{"role": entry.message.role, "content": entry.message.text} for entry in entries if _is_spoken(entry)]


def make_metadata(entry: Entry) -> dict[str, Any]:
    """Return the metadata of an entry's record: the source, the speaker, and the interruption, if any.

    If a reply was cut off during its generation and nothing more is known, its generated text is assumed to have been
    heard completely.
    """
    known = entry.metadata or {}
    metadata = {name: value for name, value in known.items() if name not in INTERNAL | _OF_A_CUT}
    sources = SOURCES.get(entry.message.role, ())
    if sources:
        metadata = {"source": sources[0], **metadata}
    if known.get("interrupted") is True and entry.message.role == "assistant":
        metadata["interrupted"] = True
        metadata["interrupt_timestamp"] = known.get("interrupt_timestamp", entry.timestamp)
        metadata["original"] = known.get("original", entry.message.text)
    return metadata


def _is_spoken(entry: Entry) -> bool:
    """Return True if the entry has text of a user or an assistant, including text next to tool calls.

    Text that an agent of a workflow wrote for the next agents is not included.
    """
    if entry.message.tool_calls and STEP in (entry.metadata or {}):
        return False
    return entry.message.role in SOURCES and bool(entry.message.text.strip())


def _make_record(entry: Entry) -> dict[str, Any]:
    return {
        "role": entry.message.role,
        "content": entry.message.text,
        "turn_id": entry.turn_id,
        "timestamp": entry.timestamp,
        "metadata": make_metadata(entry),
    }


# -- in ----------------------------------------------------------------------


def find_records(data: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the list of messages in an object, and its key: `messages`, or `contents` as in `/history` and at Agora.

    Raises:
        InvalidRequest: The object has both keys.
    """
    if data.get("contents") is None:
        return data.get("messages"), "messages"
    if data.get("messages") is not None:
        raise InvalidRequest("messages and contents are two names of one list: send one of them", param="contents")
    return data["contents"], "contents"


def check_metadata(role: Any, metadata: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Check the metadata of a message from outside, and return them as the log stores them, without `interrupted: false`.

    Args:
        role: Role of the message.
        metadata: The metadata.
        where: Position of the message, for errors.

    Raises:
        InvalidMetadata: A message of this role cannot have this source, or the fields of the interruption are invalid.
    """
    place = f"{where}.metadata" if where else "metadata"
    if "source" in metadata:
        check_source(role, metadata["source"], f"{place}.source")
    if not _OF_A_CUT & metadata.keys():
        return metadata
    cut = metadata.get("interrupted", False)
    if not isinstance(cut, bool):
        raise _make_error(f"{place}.interrupted", "true, or left out", cut)
    if cut and role != "assistant":
        message = (
            f"{place}.interrupted: only an assistant's message can be interrupted, not one with role {_quote(role)}"
        )
        raise InvalidMetadata(message, param=f"{place}.interrupted")
    _check_cut(metadata, place, cut=cut)
    return metadata if cut else {name: value for name, value in metadata.items() if name != "interrupted"}


def check_source(role: Any, source: Any, where: str) -> None:
    """Reject a source that a message with this role cannot have.

    Raises:
        InvalidMetadata: The source does not fit the role.
    """
    known = SOURCES.get(role) if isinstance(role, str) else None
    if known is None:
        message = f"{where}: a message with role {_quote(role)} cannot have a source; only messages of the user and the assistant can"
        raise InvalidMetadata(message, param=where)
    if source not in known:
        raise _make_error(where, f"one of {', '.join(known)} for the role {role}", source)


def _check_cut(metadata: Mapping[str, Any], place: str, *, cut: bool) -> None:
    for name, fits, words in (
        ("interrupt_timestamp", is_whole, "milliseconds since the epoch"),
        ("original", lambda value: isinstance(value, str), "the text that was generated"),
    ):
        if name not in metadata:
            continue
        if not cut:
            message = f"{place}.{name} requires interrupted: true; send both, or neither"
            raise InvalidMetadata(message, param=f"{place}.{name}")
        if not fits(metadata[name]):
            raise _make_error(f"{place}.{name}", words, metadata[name])


def _make_error(param: str, words: str, value: Any) -> InvalidMetadata:
    return InvalidMetadata(f"{param} must be {words}, not {_quote(value)}", param=param)


def _quote(value: Any) -> str:
    return f"{value!r:.80}"
