"""Agora's short-term memory records: the history of a session as voice agents keep it.

A record tells of an entry what was said, when, in which turn, by what it came, and where it was interrupted. What Holdfast notes
in an entry's metadata for itself stays out of it.
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
"""Where a message of a role can come from; the first where nothing else is recorded."""
INTERRUPTABLE: Final = "interruptable"
"""The metadata of an entry that may not be interrupted have it, false; it is no field of a record."""
INTERNAL: Final = frozenset({"preface", "returned", BRANCH, INTERRUPTABLE, JOINED, STANDING_FACTS, STEP})
"""What Holdfast notes in metadata for itself."""
_OF_A_CUT: Final = frozenset({"interrupted", "interrupt_timestamp", "original"})


def contents(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The records of what user and assistant said to each other; no system messages, no tools."""
    return [_record(entry) for entry in entries if _said(entry)]


def attributed(entries: Sequence[Entry], own: str | None) -> list[dict[str, Any]]:
    """The same, with the name of the agent where another one spoke than the session's own."""
    return [
        record if entry.agent in (None, own) else {**record, "agent": entry.agent}
        for entry, record in zip((entry for entry in entries if _said(entry)), contents(entries), strict=True)
    ]


def plain(entries: Sequence[Entry]) -> list[dict[str, str]]:
    """Role and content alone."""
    return [{"role": entry.message.role, "content": entry.message.text} for entry in entries if _said(entry)]


def metadata_of(entry: Entry) -> dict[str, Any]:
    """The metadata of an entry's record: its source, whoever spoke, and how it was interrupted if it was.

    A reply that was cut while it was made, and of which nothing more is known, has said all that was made.
    """
    known = entry.metadata or {}
    told = {name: value for name, value in known.items() if name not in INTERNAL | _OF_A_CUT}
    sources = SOURCES.get(entry.message.role, ())
    if sources:
        told = {"source": sources[0], **told}
    if known.get("interrupted") is True and entry.message.role == "assistant":
        told["interrupted"] = True
        told["interrupt_timestamp"] = known.get("interrupt_timestamp", entry.timestamp)
        told["original"] = known.get("original", entry.message.text)
    return told


def _said(entry: Entry) -> bool:
    """Whether it has words of a user's or an assistant's: those beside tool calls were said, too.

    What an agent of a workflow said to those behind it was not.
    """
    if entry.message.tool_calls and STEP in (entry.metadata or {}):
        return False
    return entry.message.role in SOURCES and bool(entry.message.text.strip())


def _record(entry: Entry) -> dict[str, Any]:
    return {
        "role": entry.message.role,
        "content": entry.message.text,
        "turn_id": entry.turn_id,
        "timestamp": entry.timestamp,
        "metadata": metadata_of(entry),
    }


# -- in ----------------------------------------------------------------------


def find_records(data: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the list of messages in an object, and its key: `messages`, or `contents` as `/history` and Agora name it.

    Raises:
        InvalidRequest: it has both.
    """
    if data.get("contents") is None:
        return data.get("messages"), "messages"
    if data.get("messages") is not None:
        raise InvalidRequest("messages and contents are two names of one list: send one of them", param="contents")
    return data["contents"], "contents"


def checked_metadata(role: Any, metadata: dict[str, Any], where: str = "") -> dict[str, Any]:
    """A message's metadata from outside, as a log has them: `interrupted: false` is left out.

    Args:
        role: the message's.
        metadata: an object.
        where: the message's place, for the error.

    Raises:
        InvalidMetadata: a source that such a message cannot have, or fields of an interruption that are none.
    """
    place = f"{where}.metadata" if where else "metadata"
    if "source" in metadata:
        check_source(role, metadata["source"], f"{place}.source")
    if not _OF_A_CUT & metadata.keys():
        return metadata
    cut = metadata.get("interrupted", False)
    if not isinstance(cut, bool):
        raise _wrong(f"{place}.interrupted", "true, or left out", cut)
    if cut and role != "assistant":
        said = f"{place}.interrupted: only an assistant's message is interrupted, not one of the role {_quoted(role)}"
        raise InvalidMetadata(said, param=f"{place}.interrupted")
    _check_cut(metadata, place, cut=cut)
    return metadata if cut else {name: value for name, value in metadata.items() if name != "interrupted"}


def check_source(role: Any, source: Any, where: str) -> None:
    """Refuse a source that a message of `role` cannot have. Raises `InvalidMetadata`."""
    known = SOURCES.get(role) if isinstance(role, str) else None
    if known is None:
        said = f"{where}: a message of the role {_quoted(role)} has no source, only one of a user's or an assistant's"
        raise InvalidMetadata(said, param=where)
    if source not in known:
        raise _wrong(where, f"one of {', '.join(known)} for the role {role}", source)


def _check_cut(metadata: Mapping[str, Any], place: str, *, cut: bool) -> None:
    for name, fits, words in (
        ("interrupt_timestamp", is_whole, "milliseconds since the epoch"),
        ("original", lambda value: isinstance(value, str), "the text that was generated"),
    ):
        if name not in metadata:
            continue
        if not cut:
            said = f"{place}.{name} stands there without interrupted: true; send both, or neither"
            raise InvalidMetadata(said, param=f"{place}.{name}")
        if not fits(metadata[name]):
            raise _wrong(f"{place}.{name}", words, metadata[name])


def _wrong(param: str, words: str, value: Any) -> InvalidMetadata:
    return InvalidMetadata(f"{param} must be {words}, not {_quoted(value)}", param=param)


def _quoted(value: Any) -> str:
    return f"{value!r:.80}"
