"""Sessions as Holdfast's own routes and files show them: in lists, exported whole with their past, and imported again.

The past of a session is its end, its usage, its model calls, what was retired and what was erased.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast, get_args

import msgspec

from holdfast.domain.artifact import Artifact
from holdfast.domain.history import Past
from holdfast.domain.log import erase_content as erased_message
from holdfast.domain.media.placeholders import put_back_media
from holdfast.domain.medium import KINDS, Kind
from holdfast.domain.messages import DIGEST_SIZE, Message, Part
from holdfast.domain.origins import Origin, check_ranges, copy_origins
from holdfast.domain.participants import check_participants
from holdfast.domain.session import EndReason, Entry, ModelCall, Session, Usage
from holdfast.errors import InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import METADATA_BYTES
from holdfast.numbers import check_whole, is_number, is_whole
from holdfast.wire.artifacts import ArtifactObject
from holdfast.wire.openai import dumped, entry_to, media_of, message_from, messages_from, split_system
from holdfast.wire.sessions import SessionObject
from holdfast.wire.voice import INTERNAL, checked_metadata, find_records

SAYS: Final = ("created_at", "updated_at", "status", "usage", "calls")
"""Fields of an export that tell of the past: where none of them is given, what is imported begins now."""
_COUNTERS: Final = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")
_OF_A_CALL: Final = ("timestamp", "prompt_tokens", "completion_tokens", "cached_tokens", "turn_id")


# -- out ---------------------------------------------------------------------


def old_entry_to(entry: Entry, *, digests: bool = False) -> dict[str, Any]:
    """An entry as exports have it.

    Args:
        entry: whatever became of it.
        digests: with the digest that stands for what was erased. It has no key: whoever has it, and guesses what was said,
            can tell whether the guess is right.
    """
    return {**entry_to(entry), "digest": entry.digest.hex()} if digests and entry.erased else entry_to(entry)


def call_to(call: ModelCall) -> dict[str, Any]:
    """A model call as exports have it; how its prompt was built is opaque, in base64."""
    data: dict[str, Any] = {"model": call.model, **{name: getattr(call, name) for name in _OF_A_CALL}}
    data |= {"through": call.through, "view": call.view}
    return {**data, "hash": call.hash.hex(), "build": base64.b64encode(call.build).decode()}


MEDIA_LISTS: Final[Mapping[str, Kind]] = {"images": "image", "videos": "video", "audios": "audio", "files": "file"}
"""Lists of an export that tell where the media of a kind stand."""
_OF_FRAMES: Final = ("fps", "total_num_frames", "sampled_indices")


def media_to(entries: Iterable[Entry], kind: Kind) -> list[dict[str, Any]]:
    """Where the media of a kind stand in a log, and what they are. They travel inside of their messages."""
    found = []
    for entry in entries:
        content = entry.message.content
        for at, part in enumerate(content if isinstance(content, tuple) else ()):
            if part.text is None and KINDS.get(part.type) == kind and (about := _about(part)) is not None:
                found.append({"seq": entry.seq, "part": at, "type": part.type, **about})
    return found


def _about(part: Part) -> dict[str, Any] | None:
    media = media_of(part)
    if media is None:
        frames = part.extra.get("frames")
        return {"frames": len(frames), **_named(part.extra, _OF_FRAMES)} if isinstance(frames, list) else None
    given = {
        "mime_type": media.mime,
        "name": media.name,
        "url": media.url,
        "sha256": media.says,
        "bytes": media.length,
        "size": list(media.size) if media.size else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _named(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


# -- in ----------------------------------------------------------------------


def past_from(data: Mapping[str, Any], now: int) -> Past | None:
    """The past that an export tells of; None when it tells of none.

    Args:
        data: the export.
        now: milliseconds since the epoch: what times it leaves out are.

    Raises:
        InvalidRequest: a field is not what it must be; says which.
    """
    updated_at = _number(data, "updated_at", now)
    ended_at = _number(data, "ended_at", updated_at)
    reason = _one_of(data, "end_reason", get_args(EndReason), "close")
    if all(data.get(name) is None for name in SAYS):
        return None
    closed = _one_of(data, "status", ("active", "closed"), "active") == "closed"
    return Past(
        created_at=_number(data, "created_at", min(now, updated_at)),
        updated_at=updated_at,
        ended_at=ended_at if closed else None,
        end_reason=cast(EndReason, reason) if closed else None,
        usage=_usage(data.get("usage")),
        calls=tuple(_call(item, f"calls[{at}]") for at, item in enumerate(listed(data, "calls"))),
    )


def origins_from(data: Mapping[str, Any]) -> tuple[Origin, ...]:
    """Return where the messages of an export come from; empty if it does not say. Raises `InvalidRequest`."""
    if (given := data.get("origins")) is None:
        return ()
    with suppress(msgspec.ValidationError):
        ranges = msgspec.convert(given, tuple[Origin, ...])
        if check_ranges(ranges) and len(ranges) <= len(data["messages"]) + 1:
            return ranges
    words = "a list of [first, source, source_first], the first of them from 0, as an export has it"
    raise InvalidRequest(f"origins must be {words}", param="origins")


def old_fields(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What an exported message says of its past, as arguments of `OldEntry`; also those of its numbers that are made anew.

    Raises:
        InvalidMessage: a field is not what it must be.
    """
    for name in ("seq", "unit", "tokens", "retired_by"):
        value = data.get(name)
        if value is not None and not is_whole(value):
            raise _wrong(f"{where}.{name}", "a whole number from 0", value)
    found = {} if data.get("retired_by") is None else {"retired_by": data["retired_by"]}
    erased = data.get("erased")
    if erased is None or erased is False:
        return found
    if erased is not True:
        raise _wrong(f"{where}.erased", "true or false", erased)
    # What is left of an erased message says nothing of how much there was: so its count is believed.
    count = {} if data.get("tokens") is None else {"tokens": data["tokens"]}
    return {**found, **count, "stands_for": _digest(data.get("digest"), where)}


def stands_in(data: Mapping[str, Any]) -> bool:
    """Whether an exported message was erased, and does not say what its digest was: then `old_fields` makes one up."""
    return data.get("erased") is True and data.get("digest") is None


def listed(data: Mapping[str, Any], name: str) -> Sequence[Any]:
    """A list in an export, or nothing. Raises `InvalidRequest` for anything else."""
    value = data.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} must be a list", param=name)
    return value


def _wrong(param: str, words: str, value: Any) -> InvalidMessage:
    return InvalidMessage(f"{param} must be {words}, not {value!r}"[:300], param=param)


def _number(data: Mapping[str, Any], name: str, default: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if not is_whole(value):
        raise InvalidRequest(f"{name} must be milliseconds since the epoch", param=name)
    return int(value)


def _one_of(data: Mapping[str, Any], name: str, known: Sequence[str], default: str) -> str:
    value = data.get(name)
    if value is None:
        return default
    if value not in known:
        raise InvalidRequest(f"{name} must be one of {', '.join(known)}", param=name)
    return str(value)


def _usage(value: Any) -> Usage:
    if value is None:
        return Usage()
    if not isinstance(value, Mapping):
        raise InvalidRequest("usage must be an object", param="usage")
    return Usage(*(_count(value, name, "usage") for name in _COUNTERS))


def _count(data: Mapping[str, Any], name: str, where: str, low: int = 0) -> int:
    value = data.get(name)
    if value is None:
        return 0
    check_whole(value, f"{where}.{name}", low)
    return int(value)


def _call(data: Any, where: str) -> ModelCall:
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"{where} must be an object", param=where)
    for name in ("model", "view", "hash", "build"):
        if not isinstance(data.get(name, ""), str) or (name == "model" and not data.get(name)):
            raise InvalidRequest(f"{where}.{name} must be a string", param=f"{where}.{name}")
    numbers = {name: _count(data, name, where) for name in _OF_A_CALL}
    through = _count(data, "through", where, low=-1) if "through" in data else -1
    try:
        hash_ = bytes.fromhex(data.get("hash", ""))
        build = base64.b64decode(data.get("build", ""), validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidRequest(f"{where}: hash is hexadecimal, and build is base64: {exc}", param=where) from exc
    return ModelCall(
        model=data["model"], **numbers, through=through, view=data.get("view", ""), hash=hash_, build=build
    )


def _digest(value: Any, where: str) -> bytes:
    """The digest of what was erased; where it is not told, one that stands in for it, of the message's place alone."""
    if value is None:
        return hashlib.blake2b(where.encode(), digest_size=DIGEST_SIZE, person=b"erased").digest()
    try:
        digest = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        digest = b""
    if len(digest) != DIGEST_SIZE:
        words = f"the digest of what was erased, {2 * DIGEST_SIZE} hexadecimal digits"
        raise _wrong(f"{where}.digest", words, value)
    return digest


SCHEMA: Final = 1
"""Of exports, as `schema` in them. It grows when a release that is out would misread what this one writes."""


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """What an export says, checked: a session's own fields, and its messages with the fields that are Holdfast's."""

    id: str | None
    user_id: str | None
    agent: str | None
    system_messages: tuple[Message, ...]
    state: dict[str, Any]
    metadata: dict[str, Any]
    ttl: int | None
    messages: tuple[Message, ...]
    fields: tuple[dict[str, Any], ...]
    """For each message, arguments of `OldEntry` beside the message itself."""
    stood_in: frozenset[int] = frozenset()
    """Places, in `messages`, of erased ones whose digest it does not tell."""
    past: Past | None = None
    said: frozenset[str] = frozenset()
    """What it tells of its past, by field; of `SAYS`."""
    origins: tuple[Origin, ...] = ()
    """Where its messages come from; empty: they are its own. Not compared by `same`."""

    @property
    def retired(self) -> bool:
        """Whether it is a whole log, with messages that left the live path."""
        return any("retired_by" in own for own in self.fields)


def export_to(
    session: Session,
    entries: Sequence[Entry],
    *,
    artifacts: Sequence[Artifact] = (),
    calls: Sequence[ModelCall] | None = None,
    digests: bool = False,
    referring: Sequence[Entry] = (),
    origins: Sequence[Origin] = (),
) -> dict[str, Any]:
    """A session whole, as `PUT /v1/sessions/{id}` and `sessions import` take it.

    Args:
        session: its own fields.
        entries: its live path, or its whole log.
        artifacts: the newest version of each; contents stay where they are.
        calls: its model calls, oldest first; None: they are not told.
        digests: with those that stand for what was erased; see `old_entry_to`.
        referring: the entries without the data of their media, from which these are listed faster; empty: `entries` themselves.
        origins: of the session, if it has copies; in the export by the places that messages have there.
    """
    is_copy = any(one.source != session.identity for one in origins)
    shared = copy_origins(origins, [entry.seq for entry in entries], session.identity) if is_copy else ()
    return {
        "schema": SCHEMA,
        **msgspec.to_builtins(SessionObject.from_session(session)),
        "messages": [old_entry_to(entry, digests=digests) for entry in entries],
        **{name: media_to(referring or entries, kind) for name, kind in MEDIA_LISTS.items()},
        "artifacts": [msgspec.to_builtins(ArtifactObject.from_artifact(one)) for one in artifacts],
        **({"origins": [list(msgspec.structs.astuple(one)) for one in shared]} if shared else {}),
        **({} if calls is None else {"calls": [call_to(call) for call in calls]}),
    }


def import_from(data: Mapping[str, Any], *, now: int = 0, own: bool = False) -> Imported:
    """The session in an export, a recording or a bare `{"messages": […]}`, or `{"contents": […]}` of voice records. Keys that nobody knows are passed over.

    Args:
        data: what was sent.
        now: milliseconds since the epoch: what times an export leaves out are.
        own: it is of a log of Holdfast's own: whatever its voice fields are, they were taken once.

    Raises:
        InvalidRequest: `messages` is missing, a field is not what it must be, or a later release wrote it; says which.
    """
    if not isinstance(data, Mapping):
        raise InvalidRequest(f"a session is imported from an object with messages, not {type(data).__name__}")
    known = _schema(data)
    given, name = find_records(data)
    data = {**data, "messages": given} if name == "contents" else data
    if not known:
        data = put_back_media(data)
    if "messages" not in data:
        raise InvalidRequest("messages is missing: a session is imported with its messages", param="messages")
    messages = messages_from(data["messages"], name)
    raw = [dumped(item) for item in data["messages"]]
    placed_items = [(item, f"{name}[{at}]") for at, item in enumerate(raw)]
    fields = [{**own_fields(item, where, voice=not own), **old_fields(item, where)} for item, where in placed_items]
    given = data.get("system_messages")
    if any("retired_by" in found for found in fields):
        # Each one has its place, which those that were retired name: a system message among them is one of the log.
        given = given or ()
        _check_places(raw)
    else:
        check_turns(fields, name)
    # An export says beside the log what the system prompt is; a recording says it by its first messages.
    leading, rest = split_system(messages) if given is None else ((), messages)
    fields = fields[len(leading) :]
    _check_media(data)
    metadata = _optional(data, "metadata", dict, "an object") or {}
    if not own:
        check_participants(metadata)
    return Imported(
        id=_optional(data, "id", str, "a string"),
        user_id=_optional(data, "user_id", str, "a string"),
        agent=_optional(data, "agent", str, "a string"),
        system_messages=leading if given is None else system_messages_from(given),
        state=_optional(data, "state", dict, "an object") or {},
        metadata=metadata,
        ttl=milliseconds(data, "ttl"),
        messages=tuple(_left(message, found) for message, found in zip(rest, fields, strict=True)),
        fields=tuple(fields),
        stood_in=frozenset(at for at, item in enumerate(raw[len(leading) :]) if stands_in(item)),
        past=past_from(data, now) if known else None,
        said=frozenset(name for name in SAYS if data.get(name) is not None) if known else frozenset(),
        origins=origins_from(data) if known and not leading else (),
    )


def same(new: Imported, old: Imported) -> bool:
    """Whether importing `new` over the session that `old` was read from would change nothing.

    What `new` does not say is not compared where an import gives it the time, or a turn, of its own.
    """
    alike = ("agent", "system_messages", "state", "metadata", "ttl", "messages")
    if any(getattr(new, name) != getattr(old, name) for name in alike) or new.retired != old.retired:
        return False
    if not all(map(_same_fields, new.fields, old.fields)) or not _same_erased(new, old):
        return False
    return new.past is None or (old.past is not None and _same_past(new.past, old.past, new.said))


def _same_fields(new: dict[str, Any], old: dict[str, Any]) -> bool:
    dated = all(new.get(name, old.get(name)) == old.get(name) for name in ("timestamp", "turn_id"))
    marked = bool(new.get("pinned")) == bool(old.get("pinned"))
    told = all(new.get(name) == old.get(name) for name in ("agent", "importance", "retired_by"))
    return dated and marked and told and (new.get("metadata") or None) == (old.get("metadata") or None)


def _same_erased(new: Imported, old: Imported) -> bool:
    """Whether the same messages are erased, and stood for by the same digests where both say which."""
    for at, (own, its) in enumerate(zip(new.fields, old.fields, strict=True)):
        told = at not in new.stood_in | old.stood_in
        if ("stands_for" in own) != ("stands_for" in its) or (told and own.get("stands_for") != its.get("stands_for")):
            return False
    return True


def _same_past(new: Past, old: Past, said: frozenset[str]) -> bool:
    of_status = {"ended_at", "end_reason"} if "status" in said else set()
    return all(getattr(new, name) == getattr(old, name) for name in said - {"status"} | of_status)


def _schema(data: Mapping[str, Any]) -> bool:
    """Whether it is an export of Holdfast's; what others call `created_at` or `usage` is none of ours."""
    schema = data.get("schema")
    if schema is None:
        return data.get("object") == "session"
    if not is_whole(schema) or schema == 0:
        raise InvalidRequest(f"schema must be {SCHEMA}, the version of an export, not {schema!r:.80}", param="schema")
    if schema > SCHEMA:
        said = f"schema is {schema}: a later release wrote this; this one reads exports up to schema {SCHEMA}"
        raise InvalidRequest(said, param="schema")
    return True


def _left(message: Message, own: dict[str, Any]) -> Message:
    """What stays of a message that was erased, whatever is said of it."""
    return erased_message(message) if "stands_for" in own else message


def _check_places(raw: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a log with retired messages that is not whole."""
    for at, item in enumerate(raw):
        if item.get("seq", at) != at:
            place = f"messages[{at}].seq"
            said = f"{place} is {item['seq']}: a log with retired messages is imported whole, from 0 and without gaps"
            raise InvalidMessage(said, param=place)


def _check_media(data: Mapping[str, Any]) -> None:
    """Refuse media beside the messages: they would be lost."""
    for name in MEDIA_LISTS:
        for at, item in enumerate(listed(data, name)):
            if not isinstance(item, Mapping) or not is_whole(item.get("seq")):
                place = f"{name}[{at}]"
                raise InvalidRequest(f"{place} names no message: media are imported inside of theirs", param=place)


def system_messages_from(value: Any) -> tuple[Message, ...]:
    """System messages as a list of messages, or of texts, or one text; None and an empty text are none."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        raise InvalidRequest("system_messages must be a list of messages or texts", param="system_messages")
    texts = [{"role": "system", "content": item} if isinstance(item, str) else item for item in value]
    messages = tuple(message_from(item, f"system_messages[{at}]") for at, item in enumerate(texts))
    for at, message in enumerate(messages):
        if message.role not in ("system", "developer"):
            place = f"system_messages[{at}].role"
            raise InvalidMessage(f"{place} is {message.role!r}; it must be system or developer", param=place)
    return messages


def own_fields(data: Mapping[str, Any], where: str = "", *, voice: bool = True) -> dict[str, Any]:
    """Holdfast's own fields of a message that may be given from outside, as arguments of `NewEntry`.

    Args:
        data: the message.
        where: its place, for the error.
        voice: whether its metadata have to be a voice record's.

    Raises:
        InvalidMessage: a field is not what it must be; as `InvalidMetadata`, one of a voice record's.
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
    if voice and "metadata" in found:
        found["metadata"] = checked_metadata(data.get("role"), found["metadata"], where)
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


def record_fields(items: Sequence[Any], where: str = "messages") -> tuple[dict[str, Any], ...]:
    """Return what voice records in a chat request say of each message: time, turn and metadata.

    Everything else that Holdfast keeps next to a message is not a chat client's to set, nor is metadata of Holdfast's own.

    Args:
        items: the messages as they were sent, already checked to be messages.
        where: the key of their list, for errors.

    Returns:
        For each message, arguments of `NewEntry`; empty if none of them says anything.

    Raises:
        InvalidMessage: a field has a wrong type, or a turn comes before an earlier one.
        InvalidMetadata: metadata does not fit the message's role.
        TooLarge: metadata is larger than `METADATA_BYTES`.
    """
    fields = []
    for at, item in enumerate(items):
        place = f"{where}[{at}]"
        found = own_fields({name: item[name] for name in _OF_A_RECORD if name in item}, place)
        if "metadata" in found:
            found["metadata"] = {name: value for name, value in found["metadata"].items() if name not in INTERNAL}
            if len(msgspec.json.encode(found["metadata"])) > METADATA_BYTES:
                raise TooLarge(f"{place}.metadata has more than {METADATA_BYTES:,} bytes", param=f"{place}.metadata")
        fields.append(found)
    check_turns(fields, where)
    return tuple(fields) if any(fields) else ()


_OF_A_RECORD: Final = ("role", "timestamp", "turn_id", "metadata")
"""Fields of a message in a chat request that are read as a voice record's."""


def check_turns(fields: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse turns that go back within one request. Raises `InvalidMessage`."""
    last = 0
    for at, own in enumerate(fields):
        turn_id = own.get("turn_id", last)
        if turn_id < last:
            place = f"{where}[{at}].turn_id"
            raise InvalidMessage(f"{place} is {turn_id}, after a message of turn {last}", param=place)
        last = turn_id


def milliseconds(data: Mapping[str, Any], name: str) -> int | None:
    """A span of milliseconds in a body, or None."""
    value = data.get(name)
    if value is None:
        return None
    if not is_whole(value):
        raise InvalidRequest(f"{name} must be a whole number of milliseconds, 0 for never, or null", param=name)
    return int(value)


def _optional(data: Mapping[str, Any], name: str, kind: type, words: str) -> Any:
    value = data.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be {words}", param=name)
    return value
