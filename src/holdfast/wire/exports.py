"""Exports of sessions with their history, and imports of exports, recordings and bare messages.

The history of a session, called its past here, consists of its end, its usage, its model calls, and its retired and
erased messages. A message is retired if an edit or a rewind replaced it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, cast, get_args

import msgspec
from msgspec import UNSET

from holdfast.domain.artifact import Artifact
from holdfast.domain.history import Past
from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.media.placeholders import restore_media
from holdfast.domain.medium import KINDS, Kind
from holdfast.domain.messages import DIGEST_SIZE, NOTE, Message, Part
from holdfast.domain.origins import Origin, copy_origins, is_valid_ranges
from holdfast.domain.record import PutRecord, encode_record_value
from holdfast.domain.session import EndReason, Entry, ModelCall, PromptText, Session, Usage
from holdfast.durations import LATEST_TIME
from holdfast.errors import InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import METADATA_BYTES
from holdfast.numbers import MOST, check_whole, is_number, is_whole
from holdfast.stores.sessions import OWN_FIELDS
from holdfast.wire.artifacts import ArtifactObject
from holdfast.wire.openai import dump_model, parse_log_messages, parse_message, read_medium, split_system, to_entry_json
from holdfast.wire.records import parse_exported_record
from holdfast.wire.sessions import SessionObject
from holdfast.wire.voice import INTERNAL, check_metadata, find_records

PAST_FIELDS: Final = ("created_at", "updated_at", "status", "usage", "calls")
"""Fields of an export that describe the past. If an import has none of them, its session begins now."""
_COUNTERS: Final = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
_OF_A_CALL: Final = ("timestamp", "prompt_tokens", "completion_tokens", "cached_tokens", "turn_id")


# -- out ---------------------------------------------------------------------


def export_entry(entry: Entry, *, digests: bool = False) -> dict[str, Any]:
    """Convert an entry of the log to the JSON object that exports contain.

    Args:
        entry: The entry: live, retired or erased.
        digests: True to include the digest of the content of an erased entry. The digest has no key, so anyone who has
            it can check a guess of the erased content.
    """
    return {**to_entry_json(entry), "digest": entry.digest.hex()} if digests and entry.erased else to_entry_json(entry)


def export_call(call: ModelCall) -> dict[str, Any]:
    """Convert a model call to the JSON object that exports contain. The record of how the prompt was built is opaque, in base64."""
    data: dict[str, Any] = {"model": call.model, **{name: getattr(call, name) for name in _OF_A_CALL}}
    data |= {"through": call.through, "view": call.view}
    data |= {"hash": call.hash.hex(), "build": base64.b64encode(call.build).decode()}
    return {**data, "texts": [_export_text(text) for text in call.texts]} if call.texts else data


def _export_text(text: PromptText) -> dict[str, Any]:
    data: dict[str, Any] = {"id": f"{text.id:016x}", "data": text.data.decode()}
    data |= {} if text.source is None else {"source": text.source}
    return data if text.first < 0 else {**data, "first": text.first, "last": text.last}


MEDIA_LISTS: Final[Mapping[str, Kind]] = {"images": "image", "videos": "video", "audios": "audio", "files": "file"}
"""Lists in an export, each with the positions of all media of one kind."""
_OF_FRAMES: Final = ("fps", "total_num_frames", "sampled_indices")


def list_media(entries: Iterable[Entry], kind: Kind) -> list[dict[str, Any]]:
    """Return the position and properties of each medium of one kind in a log. The messages contain the data of the media."""
    found = []
    for entry in entries:
        content = entry.message.content
        for at, part in enumerate(content if isinstance(content, tuple) else ()):
            if part.text is None and KINDS.get(part.type) == kind and (about := _describe_medium(part)) is not None:
                found.append({"seq": entry.seq, "part": at, "type": part.type, **about})
    return found


def _describe_medium(part: Part) -> dict[str, Any] | None:
    media = read_medium(part)
    if media is None:
        frames = part.extra.get("frames")
        return {"frames": len(frames), **_pick_fields(part.extra, _OF_FRAMES)} if isinstance(frames, list) else None
    given = {
        "mime_type": media.mime,
        "name": media.name,
        "url": media.url,
        "sha256": media.identity,
        "bytes": media.length,
        "size": list(media.size) if media.size else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _pick_fields(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


# -- in ----------------------------------------------------------------------


def parse_past(data: Mapping[str, Any], now: int, *, latest: int = LATEST_TIME) -> Past | None:
    """Return the history of a session (its past) from an export; None if the export has no history.

    Args:
        data: The export.
        now: Milliseconds since the epoch, used for missing times.
        latest: The latest time that is accepted.

    Raises:
        InvalidRequest: A field is invalid. The error names the field.
    """
    updated_at = _parse_time(data, "updated_at", now, latest)
    ended_at = _parse_time(data, "ended_at", updated_at, latest)
    reason = _parse_choice(data, "end_reason", get_args(EndReason), "close")
    if all(data.get(name) is None for name in PAST_FIELDS):
        return None
    closed = _parse_choice(data, "status", ("active", "closed"), "active") == "closed"
    return Past(
        created_at=_parse_time(data, "created_at", min(now, updated_at), latest),
        updated_at=updated_at,
        ended_at=ended_at if closed else None,
        end_reason=cast(EndReason, reason) if closed else None,
        usage=_parse_usage(data.get("usage")),
        calls=tuple(_parse_call(item, f"calls[{at}]") for at, item in enumerate(get_list(data, "calls"))),
    )


def parse_origins(data: Mapping[str, Any]) -> tuple[Origin, ...]:
    """Return the origins of the messages in an export; an empty tuple if it has none.

    Raises:
        InvalidRequest: The field `origins` is invalid.
    """
    if (given := data.get("origins")) is None:
        return ()
    with suppress(msgspec.ValidationError):
        ranges = msgspec.convert(given, tuple[Origin, ...])
        if is_valid_ranges(ranges) and len(ranges) <= len(data["messages"]) + 1:
            return ranges
    words = "a list of [first, source, source_first], the first of them from 0, as an export has it"
    raise InvalidRequest(f"origins must be {words}", param="origins")


def parse_old_fields(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of an exported message that describe the message's history, as arguments of `OldEntry`.

    Numbers that an import assigns again, such as `seq`, are only checked.

    Raises:
        InvalidMessage: A field is invalid.
    """
    for name in ("seq", "unit", "tokens", "retired_by"):
        value = data.get(name)
        if value is not None and not is_whole(value):
            raise _make_error(f"{where}.{name}", "a whole number from 0", value)
    found = {} if data.get("retired_by") is None else {"retired_by": data["retired_by"]}
    erased = data.get("erased")
    if erased is None or erased is False:
        return found
    if erased is not True:
        raise _make_error(f"{where}.erased", "true or false", erased)
    # The size of an erased message cannot be derived from what is left of it, so the export's count is used.
    count = {} if data.get("tokens") is None else {"tokens": data["tokens"]}
    return {**found, **count, "stands_for": _parse_digest(data.get("digest"), where)}


def is_erased_without_digest(data: Mapping[str, Any]) -> bool:
    """Return True if an exported message was erased and has no digest. `parse_old_fields` generates a digest for it."""
    return data.get("erased") is True and data.get("digest") is None


def get_list(data: Mapping[str, Any], name: str) -> Sequence[Any]:
    """Return a list in an export; an empty sequence if it is missing.

    Raises:
        InvalidRequest: The value is not a list.
    """
    value = data.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} must be a list", param=name)
    return value


def _make_error(param: str, words: str, value: Any) -> InvalidMessage:
    return InvalidMessage(f"{param} must be {words}, not {value!r}"[:300], param=param)


def _parse_time(data: Mapping[str, Any], name: str, default: int, latest: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if not is_whole(value, high=latest):
        words = f"milliseconds since the epoch, a whole number from 0 to {latest} (the end of the year 9999)"
        raise InvalidRequest(f"{name} must be {words}, not {value!r}"[:300], param=name)
    return int(value)


def _parse_choice(data: Mapping[str, Any], name: str, known: Sequence[str], default: str) -> str:
    value = data.get(name)
    if value is None:
        return default
    if value not in known:
        raise InvalidRequest(f"{name} must be one of {', '.join(known)}", param=name)
    return str(value)


def _parse_usage(value: Any) -> Usage:
    if value is None:
        return Usage()
    if not isinstance(value, Mapping):
        raise InvalidRequest("usage must be an object", param="usage")
    return Usage(*(_parse_count(value, name, "usage") for name in _COUNTERS))


def _parse_count(data: Mapping[str, Any], name: str, where: str, low: int = 0) -> int:
    value = data.get(name)
    if value is None:
        return 0
    check_whole(value, f"{where}.{name}", low)
    return int(value)


def _parse_call(data: Any, where: str) -> ModelCall:
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"{where} must be an object", param=where)
    for name in ("model", "view", "hash", "build"):
        if not isinstance(data.get(name, ""), str) or (name == "model" and not data.get(name)):
            raise InvalidRequest(f"{where}.{name} must be a string", param=f"{where}.{name}")
    numbers: dict[str, Any] = {name: _parse_count(data, name, where) for name in _OF_A_CALL}
    texts = tuple(_parse_text(one, f"{where}.texts[{at}]") for at, one in enumerate(get_list(data, "texts")))
    through = _parse_count(data, "through", where, low=-1) if "through" in data else -1
    try:
        hash_ = bytes.fromhex(data.get("hash", ""))
        build = base64.b64decode(data.get("build", ""), validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidRequest(f"{where}: hash must be hexadecimal, and build base64: {exc}", param=where) from exc
    return ModelCall(
        model=data["model"], **numbers, through=through, view=data.get("view", ""), hash=hash_, build=build, texts=texts
    )


def _parse_text(data: Any, where: str) -> PromptText:
    """Return a text of prompts. Raise `InvalidRequest` if it is not one."""
    try:
        text = msgspec.convert(data, _ExportedText)
        msgspec.json.decode(text.data, type=str | Message | list[Any])
        return PromptText(int(text.id, 16), text.data.encode(), text.source, text.first, text.last)
    except (ValueError, msgspec.MsgspecError) as exc:
        raise InvalidRequest(f"{where} is not a text of a prompt: {exc}", param=where) from exc


class _ExportedText(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(pattern="^[0-7][0-9a-f]{15}$")]
    data: str
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=255)] | None = None
    first: Annotated[int, msgspec.Meta(ge=-1)] = -1
    last: Annotated[int, msgspec.Meta(ge=-1)] = -1


def _parse_digest(value: Any, where: str) -> bytes:
    """Return the digest of an erased message. If it is missing, return a digest of the message's position."""
    if value is None:
        return hashlib.blake2b(where.encode(), digest_size=DIGEST_SIZE, person=b"erased").digest()
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_SIZE:
        words = f"the digest of what was erased, {2 * DIGEST_SIZE} hexadecimal digits"
        raise _make_error(f"{where}.digest", words, value)
    return digest


SCHEMA: Final = 1
"""Version of the export format, called `schema` in exports. It is increased if existing releases would misread new
exports."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A validated export: the fields of the session, and its messages with Holdfast's own fields."""

    id: str | None
    user_id: str | None
    agent: str | None
    system_messages: tuple[Message, ...]
    state: dict[str, Any]
    metadata: dict[str, Any]
    ttl: int | None
    messages: tuple[Message, ...]
    fields: tuple[dict[str, Any], ...]
    """For each message: arguments of `OldEntry`, without the message itself."""
    without_digest: frozenset[int] = frozenset()
    """Indexes in `messages` of the erased messages that have no digest."""
    past: Past | None = None
    given_past: frozenset[str] = frozenset()
    """Names of the fields in `PAST_FIELDS` that the export contains."""
    records: tuple[PutRecord, ...] = ()
    """Records that the session owns."""
    origins: tuple[Origin, ...] = ()
    """Origins of the messages; empty if none of them is a copy. `is_same` does not compare the origins."""

    @property
    def has_retired(self) -> bool:
        """True if there are retired messages. The messages are then a complete log."""
        return any("retired_by" in own for own in self.fields)


def build_export(
    session: Session,
    entries: Sequence[Entry],
    *,
    artifacts: Sequence[Artifact] = (),
    calls: Sequence[ModelCall] | None = None,
    digests: bool = False,
    referring: Sequence[Entry] = (),
    origins: Sequence[Origin] = (),
    records: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a complete session as JSON data, which `PUT /v1/sessions/{id}` and `sessions import` accept.

    Args:
        session: The session.
        entries: The session's entries without retired ones, or its whole log.
        artifacts: The newest version of each artifact, without contents.
        calls: The session's model calls, oldest first. None leaves them out.
        digests: True to include digests of erased messages, as described in `export_entry`.
        referring: The same entries without the data of their media, to create the media lists faster. Default:
            `entries`.
        origins: Origins of the session's entries, if some are copies. The export contains them for its own list of
            messages.
        records: Records that the session owns, converted by `export_record`.
    """
    is_copy = any(origin.source != session.identity for origin in origins)
    shared = copy_origins(origins, [entry.seq for entry in entries], session.identity) if is_copy else ()
    return {
        "schema": SCHEMA,
        **msgspec.to_builtins(SessionObject.from_session(session, log_marker=UNSET)),
        "messages": [export_entry(entry, digests=digests) for entry in entries],
        **{name: list_media(referring or entries, kind) for name, kind in MEDIA_LISTS.items()},
        "artifacts": [msgspec.to_builtins(ArtifactObject.from_artifact(origin)) for origin in artifacts],
        **({"records": list(records)} if records else {}),
        **({"origins": [list(msgspec.structs.astuple(origin)) for origin in shared]} if shared else {}),
        **({} if calls is None else {"calls": [export_call(call) for call in calls]}),
    }


def parse_export(data: Mapping[str, Any], *, now: int = 0, own: bool = False) -> Imported:
    """Parse an imported session. Unknown keys are ignored.

    The formats are an export, a recording, a bare `{"messages": […]}`, and `{"contents": […]}` of voice records.

    Args:
        data: The decoded JSON.
        now: Milliseconds since the epoch, used for times missing in an export.
        own: True for Holdfast's own log. Its voice fields were checked before.

    Raises:
        InvalidRequest: `messages` is missing, a field is invalid, or a later release wrote the export. The message names the reason.
    """
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"a session must be an object with messages, not {type(data).__name__}")
    known = _is_export(data)
    given, name = find_records(data)
    data = {**data, "messages": given} if name == "contents" else data
    if not known:
        data = restore_media(data)
    if "messages" not in data:
        raise InvalidRequest("messages is missing: an imported session must have messages", param="messages")
    messages = parse_log_messages(data["messages"], name)
    raw = [dump_model(item) for item in data["messages"]]
    placed_items = [(item, f"{name}[{at}]") for at, item in enumerate(raw)]
    fields = [
        {**parse_own_fields(item, where, voice=not own), **parse_old_fields(item, where)}
        for item, where in placed_items
    ]
    given = data.get("system_messages")
    if any("retired_by" in found for found in fields):
        # Retired messages refer to positions, so all messages keep theirs, and system messages belong to the log.
        given = given or ()
        _check_places(raw)
    else:
        check_turns(fields, name)
    # An export has the system prompt in a field of its own; a recording has it in its first messages.
    leading, rest = split_system(messages) if given is None else ((), messages)
    fields = fields[len(leading) :]
    _check_media(data)
    return Imported(
        id=_get_optional(data, "id", str, "a string"),
        user_id=_get_optional(data, "user_id", str, "a string"),
        agent=_get_optional(data, "agent", str, "a string"),
        system_messages=leading if given is None else parse_system_messages(given),
        state=_get_optional(data, "state", dict, "an object") or {},
        metadata=_get_optional(data, "metadata", dict, "an object") or {},
        ttl=parse_milliseconds(data, "ttl"),
        messages=tuple(_erase_content(message, found) for message, found in zip(rest, fields, strict=True)),
        fields=tuple(fields),
        without_digest=frozenset(at for at, item in enumerate(raw[len(leading) :]) if is_erased_without_digest(item)),
        past=parse_past(data, now, latest=MOST if own else LATEST_TIME) if known else None,
        given_past=frozenset(name for name in PAST_FIELDS if data.get(name) is not None) if known else frozenset(),
        records=_parse_records(data, now) if known else (),
        origins=parse_origins(data) if known and not leading else (),
    )


def _parse_records(data: Mapping[str, Any], now: int) -> tuple[PutRecord, ...]:
    """Return the records in an export. Records that have expired since are left out."""
    records = [parse_exported_record(item, f"records[{at}]") for at, item in enumerate(get_list(data, "records"))]
    return tuple(one for one in records if one.expires_at is None or one.expires_at > now)


def is_same(new: Imported, old: Imported) -> bool:
    """Return True if importing `new` over an existing session would change nothing.

    Fields that are missing in `new`, such as times and turns, are not compared if an import would assign them.

    Args:
        new: The import.
        old: The existing session, exported and parsed.
    """
    if (
        any(getattr(new, name) != getattr(old, name) for name in (*OWN_FIELDS, "messages"))
        or new.has_retired != old.has_retired
    ):
        return False
    if _list_contents(new.records) != _list_contents(old.records):
        return False
    if not all(map(_has_same_fields, new.fields, old.fields)) or not _has_same_erased(new, old):
        return False
    return new.past is None or (old.past is not None and _has_same_past(new.past, old.past, new.given_past))


def _list_contents(records: Sequence[PutRecord]) -> list[tuple[Any, ...]]:
    """Return name, value, searchable text and expiry time of each record, sorted by name, to compare the records of two imports."""
    ordered = sorted(records, key=lambda record: record.name)
    return [(record.name, encode_record_value(record.value), record.text, record.expires_at) for record in ordered]


def _has_same_fields(new: dict[str, Any], old: dict[str, Any]) -> bool:
    dated = all(new.get(name, old.get(name)) == old.get(name) for name in ("timestamp", "turn_id"))
    marked = bool(new.get("pinned")) == bool(old.get("pinned"))
    known = all(new.get(name) == old.get(name) for name in ("agent", "importance", "retired_by"))
    return dated and marked and known and (new.get("metadata") or None) == (old.get("metadata") or None)


def _has_same_erased(new: Imported, old: Imported) -> bool:
    """Return True if the same messages are erased in both. Digests are compared if both are known."""
    for at, (own, its) in enumerate(zip(new.fields, old.fields, strict=True)):
        known = at not in new.without_digest | old.without_digest
        if ("stands_for" in own) != ("stands_for" in its) or (known and own.get("stands_for") != its.get("stands_for")):
            return False
    return True


def _has_same_past(new: Past, old: Past, given_past: frozenset[str]) -> bool:
    of_status = {"ended_at", "end_reason"} if "status" in given_past else set()
    return all(getattr(new, name) == getattr(old, name) for name in given_past - {"status"} | of_status)


def _is_export(data: Mapping[str, Any]) -> bool:
    """Return True if the data are an export of Holdfast. In other formats, fields such as `created_at` are ignored."""
    schema = data.get("schema")
    if schema is None:
        return data.get("object") == "session"
    if not is_whole(schema) or schema == 0:
        raise InvalidRequest(f"schema must be {SCHEMA}, the version of an export, not {schema!r:.80}", param="schema")
    if schema > SCHEMA:
        message = f"schema is {schema}: a later release wrote this export; this release reads schema {SCHEMA} and below"
        raise InvalidRequest(message, param="schema")
    return True


def _erase_content(message: Message, own: dict[str, Any]) -> Message:
    return erased_message(message) if "stands_for" in own else message


def _check_places(raw: Sequence[Mapping[str, Any]]) -> None:
    """Reject a log with retired messages if the numbers (`seq`) of its messages are not complete."""
    for at, item in enumerate(raw):
        if item.get("seq", at) != at:
            place = f"messages[{at}].seq"
            message = f"{place} is {item['seq']}: a log with retired messages must be complete, from 0 and without gaps"
            raise InvalidMessage(message, param=place)


def _check_media(data: Mapping[str, Any]) -> None:
    """Reject media lists whose media are not in the messages, because these media would be lost."""
    for name in MEDIA_LISTS:
        for at, item in enumerate(get_list(data, name)):
            if not isinstance(item, Mapping) or not is_whole(item.get("seq")):
                place = f"{name}[{at}]"
                raise InvalidRequest(f"{place} has no seq of a message: media must be inside of messages", param=place)


def parse_system_messages(value: Any) -> tuple[Message, ...]:
    """Parse system messages: a list of messages or texts, or one text. For None and an empty text, the result is empty."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        raise InvalidRequest("system_messages must be a list of messages or texts", param="system_messages")
    texts = [{"role": "system", "content": item} if isinstance(item, str) else item for item in value]
    messages = tuple(parse_message(item, f"system_messages[{at}]") for at, item in enumerate(texts))
    for at, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            place = f"system_messages[{at}].role"
            raise InvalidMessage(f"{place} is {message.role!r}; it must be system or developer", param=place)
    return messages


def parse_own_fields(data: Mapping[str, Any], where: str = "", *, voice: bool = True) -> dict[str, Any]:
    """Return Holdfast's own fields that a message from outside may have, as arguments of `NewEntry`.

    Args:
        data: The message.
        where: Position of the message, for errors.
        voice: True to check the metadata by the rules for voice records.

    Raises:
        InvalidMessage: A field is invalid. For fields of a voice record, the error is its subclass `InvalidMetadata`.
    """
    prefix = f"{where}." if where else ""
    found: dict[str, Any] = {}
    for name, (fits, words) in _OWN.items():
        value = data.get(name)
        if value is None:
            continue
        if not fits(value):
            raise InvalidMessage(f"{prefix}{name} must be {words}, not {value!r}"[:300], param=prefix + name)
        found[name] = float(value) if name == "importance" else value
    if voice and "metadata" in found and data.get("role") != NOTE:
        found["metadata"] = check_metadata(data.get("role"), found["metadata"], where)
    return found


_OWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "timestamp": (is_whole, "milliseconds since the epoch"),
    "turn_id": (is_whole, "a whole number from 0"),
    "agent": (lambda value: isinstance(value, str), "a string"),
    "metadata": (lambda value: isinstance(value, dict), "an object"),
    "pinned": (lambda value: isinstance(value, bool), "true or false"),
    "importance": (
        lambda value: is_number(value, 0, 1),
        "a number from 0 to 1",
    ),
}


def parse_record_fields(items: Sequence[Any], where: str = "messages") -> tuple[dict[str, Any], ...]:
    """Return the voice-record fields of each message in a chat request: time, turn and metadata.

    Chat clients cannot set any other of Holdfast's own fields, nor metadata that Holdfast uses itself.

    Args:
        items: The messages as sent, already validated as messages.
        where: Key of the list, for errors.

    Returns:
        For each message, arguments of `NewEntry`. An empty tuple if no message has such fields.

    Raises:
        InvalidMessage: A field has a wrong type, or a turn is less than the turn of an earlier message.
        InvalidMetadata: Metadata does not fit the message's role.
        TooLarge: Metadata is larger than `METADATA_BYTES`.
    """
    fields = []
    for at, item in enumerate(items):
        place = f"{where}[{at}]"
        found = parse_own_fields({name: item[name] for name in _OF_A_RECORD if name in item}, place)
        if "metadata" in found:
            found["metadata"] = {name: value for name, value in found["metadata"].items() if name not in INTERNAL}
            if len(msgspec.json.encode(found["metadata"])) > METADATA_BYTES:
                raise TooLarge(f"{place}.metadata has more than {METADATA_BYTES:,} bytes", param=f"{place}.metadata")
        fields.append(found)
    check_turns(fields, where)
    return tuple(fields) if any(fields) else ()


_OF_A_RECORD: Final = ("role", "timestamp", "turn_id", "metadata")
"""Fields of a message in a chat request that have the same meaning as in a voice record."""


def check_turns(fields: Sequence[Mapping[str, Any]], where: str) -> None:
    """Reject turns that decrease within one request.

    Raises:
        InvalidMessage: A turn is less than the turn of an earlier message.
    """
    last = 0
    for at, own in enumerate(fields):
        turn_id = own.get("turn_id", last)
        if turn_id < last:
            place = f"{where}[{at}].turn_id"
            raise InvalidMessage(f"{place} is {turn_id}, after a message of turn {last}", param=place)
        last = turn_id


def parse_milliseconds(data: Mapping[str, Any], name: str) -> int | None:
    """Return a duration in milliseconds from a request; None if it is missing or null.

    Raises:
        InvalidRequest: The value is not a whole number from 0.
    """
    value = data.get(name)
    if value is None:
        return None
    if not is_whole(value):
        raise InvalidRequest(f"{name} must be a whole number of milliseconds, 0 for never, or null", param=name)
    return int(value)


def _get_optional(data: Mapping[str, Any], name: str, kind: type, words: str) -> Any:
    value = data.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be {words}", param=name)
    return value
