"""Check arguments before a store uses them: types, and the limits that `holdfast.stores.base` promises.

"Refuse" in a docstring here means: raise `InvalidRequest`, `InvalidMessage` or `TooLarge`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Final, get_args

import msgspec
from msgspec import UnsetType

from holdfast.domain.artifact import USER, NewArtifact, Scope, UserRef, check_name
from holdfast.domain.history import OldEntry
from holdfast.domain.messages import DIGEST_SIZE, NOTE, ROLES, UNWRITABLE, Message, Part, ToolCall, encode_payload
from holdfast.domain.origins import is_valid_ranges
from holdfast.domain.session import ModelCall, NewCompaction, NewEntry, SessionRef
from holdfast.domain.state import APP, TEMP, Change, check_delta, encode_value, get_scope
from holdfast.domain.state import USER as USER_STATE
from holdfast.domain.state import check_key as check_state_key
from holdfast.errors import InvalidMessage, InvalidRequest, TooLarge
from holdfast.limits import (
    ARTIFACT_METADATA_BYTES,
    CALL_BUILD_BYTES,
    COMPACTION_BYTES,
    COMPACTION_ERROR_BYTES,
    COMPACTION_REPORT_BYTES,
    ID_BYTES,
    MESSAGE_BYTES,
    METADATA_BYTES,
    PAGE,
    STATE_BYTES,
    STATE_KEYS,
    SYSTEM_BYTES,
)
from holdfast.log.align import Mode
from holdfast.stores.keys import ApiKey, Role
from holdfast.stores.log import Append
from holdfast.stores.sessions import NewSession, SessionPatch

DOT_SEGMENTS: Final = frozenset({".", ".."})
"""Segments of a path that URLs cannot contain as names (RFC 3986, section 5.2.4)."""
_BLOB = re.compile("[0-9a-z]{1,64}")
_encode = msgspec.json.Encoder().encode


def check_id(value: str, param: str, *, longest: int = ID_BYTES) -> None:
    """Refuse an identifier that is empty, has more than `longest` bytes, or is not Unicode."""
    if type(value) is str and value.isascii() and 0 < len(value) <= longest:
        return
    size = _measure_size(value, param)
    if not 0 < size <= longest:
        raise InvalidRequest(f"{param} must have 1 to {longest} bytes, not {size}", param=param)


def check_new_id(value: str, param: str) -> None:
    """Refuse an invalid identifier of something new, and one that cannot be a segment of a URL's path."""
    check_id(value, param)
    if value in DOT_SEGMENTS:
        raise InvalidRequest(
            f"{param} must not be {value!r}: HTTP clients resolve it in the path of a URL, even if it is percent-encoded;"
            " choose another one",
            param=param,
        )


def _measure_size(text: str, param: str) -> int:
    """Return the number of bytes of `text` in UTF-8. Refuse a value that is not Unicode text."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{param} must be a string, not {type(text).__name__}", param=param)
    try:
        return len(text.encode())
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"{param} contains a lone surrogate, which is not valid Unicode", param=param) from exc


def check_ref(ref: SessionRef) -> None:
    """Refuse a reference that cannot name a session."""
    check_id(ref.user_id, "user_id")
    check_id(ref.id, "session_id")


def check_int(value: Any, param: str, *, none: bool = False, low: int | None = None) -> None:
    """Refuse a value that is not an integer of at least `low`. Booleans are refused; None is allowed only if `none` is True."""
    if type(value) is int and (low is None or value >= low):
        return
    if not (none and value is None):
        least = "" if low is None else f" from {low}"
        raise InvalidRequest(f"{param} must be a whole number{least}, not {value!r:.80}", param=param)


def check_kind(value: Any, param: str, kind: type | UnionType, words: str) -> None:
    """Refuse a value that is not of type `kind`; `words` describe the type in the error message."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{param} must be {words}, not {type(value).__name__}", param=param)


def check_filters(filters: Mapping[str, Any]) -> None:
    """Refuse filters of `Store.list` that have the wrong type."""
    for name in ("user_id", "agent", "status"):
        check_kind(filters[name], name, str | None, "a string")
    if filters["status"] not in (None, "active", "closed"):
        raise InvalidRequest(f"status must be active or closed, not {filters['status']!r:.80}", param="status")
    for name in ("since", "until", "now", "ttl"):
        check_int(filters[name], name, none=True)
    check_kind(filters["after"], "after", SessionRef | None, "a SessionRef")


def check_limit(limit: int, *, lowest: int = 1, highest: int | None = PAGE) -> None:
    """Refuse a limit that is not an integer from `lowest` to `highest`."""
    check_int(limit, "limit")
    if limit < lowest or (highest is not None and limit > highest):
        upper = "" if highest is None else f" and at most {highest}"
        raise InvalidRequest(f"limit must be at least {lowest}{upper}, not {limit}", param="limit")


def check_count(number: int, most: int, noun: str, param: str) -> None:
    """Refuse more than `most` values in one call; `noun` describes them in the error message."""
    if number > most:
        raise TooLarge(f"{number} {noun} at once; at most {most} are allowed", param=param)


def check_choice(value: Any, known: Sequence[str], param: str) -> None:
    """Refuse a value that is none of the known ones."""
    if value not in known:
        raise InvalidRequest(f"{param} must be one of {', '.join(known)}, not {value!r:.80}", param=param)


def check_importance(importance: Any, param: str = "importance") -> None:
    """Refuse an importance that is neither a finite number nor None nor UNSET."""
    if importance is None or isinstance(importance, UnsetType):
        return
    if not isinstance(importance, int | float) or not math.isfinite(importance):
        raise InvalidMessage("importance must be a finite number", param=param)


def check_importances(importances: Mapping[int, float]) -> None:
    """Refuse importances that are not finite numbers, and more than `PAGE` at once."""
    if len(importances) > PAGE:
        raise TooLarge(f"importances has {len(importances)} entries; the limit is {PAGE}", param="importances")
    for seq, importance in importances.items():
        check_importance(importance, f"importances[{seq}]")


def check_new_session(new: NewSession, *, past: bool = False) -> None:
    """Refuse a session whose fields cannot be stored.

    Args:
        new: the session.
        past: True for `replace`, which also accepts a session with a history (`NewSession.past`) and with origins.
    """
    check_new_id(new.user_id, "user_id")
    check_new_id(new.id, "session_id")
    check_int(new.timestamp, "timestamp")
    check_id(new.identity, "identity")
    _check_ttl(new.ttl)
    if new.past is not None:
        if not past:
            raise InvalidRequest("only `replace` accepts a session with a past", param="past")
        for call in new.past.calls:
            _check_call(call)
    if new.origins and not (past and is_valid_ranges(new.origins)):
        raise InvalidRequest("origins must be valid ranges, and only `replace` accepts them", param="origins")
    _check_agent(new.agent)
    _check_fields(new.system_messages, new.metadata)
    if past:
        _check_installed(new.state)
    else:
        check_changes(new.state)


def check_patch(patch: SessionPatch) -> None:
    """Refuse a patch whose fields cannot be stored."""
    _check_agent(patch.agent)
    _check_ttl(patch.ttl)
    _check_fields(patch.system_messages, patch.metadata)
    if not isinstance(patch.state, UnsetType):
        check_changes(patch.state)


def check_append(write: Append) -> None:
    """Refuse a write that contains anything that cannot be stored. The messages are not checked here, see `encode_payloads`."""
    if type(write.timestamp) is not int:
        check_int(write.timestamp, "timestamp")
    for name, value in (("expect", write.expect), ("ttl", write.ttl)):
        if value is not None and type(value) is not int:
            check_int(value, name)
    if write.retire_from is not None:
        check_int(write.retire_from, "retire_from", low=0)
    if write.idempotency_key is not None:
        check_id(write.idempotency_key, "idempotency_key")
        check_kind(write.fingerprint, "fingerprint", bytes, "bytes")
    check_entries(write.entries)
    if write.views or write.calls or write.compactions:
        _check_derived(write)
    if write.state_delta is not None or write.state_expect or write.media or write.origins or write.key:
        _check_shared(write)
    if write.claim is not None:
        check_id(write.claim.holder, "claim")
    if write.release is not None:
        check_id(write.release, "release")


def _check_shared(write: Append) -> None:
    if write.origins and not is_valid_ranges(write.origins, start=write.origins[0].first):
        raise InvalidRequest("origins must be valid ranges", param="origins")
    if write.key is not None and write.key.name:
        check_id(write.key.name, "idempotency_key")
    check_changes(write.state_delta or {})
    _check_expected(write.state_expect or {})
    check_media(write.media)


def _check_derived(write: Append) -> None:
    for key, view in (write.views or {}).items():
        check_id(key, "view")
        check_int(view.frontier, "view.frontier")
        check_kind(view.state, "view.state", bytes, "bytes")
    for call in write.calls:
        _check_call(call)
    for at, compaction in enumerate(write.compactions):
        _check_compaction(compaction, f"compactions[{at}]")


def check_changes(delta: Mapping[str, Change]) -> None:
    """Refuse invalid changes of state, and `temp:` keys, which exist only during a turn and are never stored."""
    check_kind(delta, "state", Mapping, "an object")
    check_delta(delta)
    for key in delta:
        if key.startswith(TEMP):
            raise InvalidRequest(
                f"{key!r:.80} cannot be stored: keys with temp: exist only during a turn", param="state"
            )


def check_scope_state(
    user_id: str | None, delta: Mapping[str, Change], values: Mapping[str, Any] | None = None
) -> None:
    """Refuse invalid changes of a user's or a tenant's state, and invalid expected values. The keys are without prefix."""
    check_state_names(user_id, ())
    prefix = APP if user_id is None else USER_STATE
    check_delta({prefix + key: change for key, change in delta.items()})
    for key, value in (values or {}).items():
        check_state_key(prefix + key)
        encode_value(prefix + key, value)


def check_state_names(user_id: str | None, names: Collection[str]) -> None:
    """Refuse an invalid user id, invalid keys, and more than `STATE_KEYS` keys at once. The keys are without prefix."""
    if user_id is not None:
        check_id(user_id, "user_id")
    check_count(len(names), STATE_KEYS, "keys", "names")
    for name in names:
        check_state_key(APP + name)


def _check_expected(expected: Mapping[str, Any]) -> None:
    for key, value in expected.items():
        check_state_key(key)
        _check_own(key, "state_expect", "a write to a session can expect no other state")
        encode_value(key, value)


def _check_installed(state: Mapping[str, Any]) -> None:
    """Refuse the state of a session to install if the state is too large, or has keys of other scopes than the session."""
    check_kind(state, "state", Mapping, "an object")
    for key in state:
        _check_own(key, "state", "an installed session has no other state")
    check_json(state, "state", STATE_BYTES)


def _check_own(key: str, param: str, why: str) -> None:
    if get_scope(key) != "session":
        raise InvalidRequest(f"{param}[{key!r:.80}] is not a key of the session's own state; {why}", param=param)


def check_hash(sha256: bytes, param: str) -> None:
    """Refuse a value that is not a SHA-256 hash of 32 bytes."""
    check_kind(sha256, param, bytes, "bytes")
    if len(sha256) != 32:
        raise InvalidRequest(f"{param} must be a SHA-256, 32 bytes, not {len(sha256)}", param=param)


def check_media(media: Mapping[bytes, bytes]) -> None:
    """Refuse contents that are too large, or whose key is not a SHA-256 hash."""
    for sha256, content in media.items():
        check_hash(sha256, "media")
        check_size(len(content), "media", MESSAGE_BYTES)


def check_key(key: ApiKey) -> None:
    """Refuse an API key that cannot be stored."""
    check_id(key.id, "id")
    check_hash(key.hash, "hash")
    check_size(_measure_size(key.name, "name"), "name", ID_BYTES)
    check_new_id(key.tenant, "tenant")
    if key.user_id is not None:
        check_new_id(key.user_id, "user_id")
    check_choice(key.role, get_args(Role), "role")
    if key.session_mode is not None:
        check_choice(key.session_mode, get_args(Mode), "session_mode")
    for name in ("rate", "max_body", "budget"):
        value = getattr(key, name)
        if value is not None and value < 1:
            raise InvalidRequest(f"{name} must be at least 1, not {value}", param=name)


def bound_turns(
    turn_id: int | None, start: int | None, stop: int | None, *, descending: bool
) -> tuple[int, int] | None:
    """Return the first turn and the end (exclusive) of the range that `LogStore.calls` reads; None: the newest calls of any turn."""
    if turn_id is not None:
        return turn_id, turn_id + 1
    if start is None and stop is None and descending:
        return None
    return start or 0, 2**62 if stop is None else stop


def _check_call(call: ModelCall) -> None:
    check_id(call.model, "model")
    if call.view:
        check_id(call.view, "view")
    if len(call.hash) not in (0, 16):
        raise InvalidRequest(f"hash must have 16 bytes or none, not {len(call.hash)}", param="hash")
    check_size(len(call.build), "build", CALL_BUILD_BYTES)


def _check_compaction(new: NewCompaction, param: str) -> None:
    check_id(new.view, f"{param}.view")
    if new.model is not None:
        check_id(new.model, f"{param}.model")
    if not new.text and new.error is None:
        raise InvalidRequest(f"{param}.text is empty: a compaction needs a text", param=f"{param}.text")
    check_size(_measure_size(new.text, f"{param}.text"), f"{param}.text", COMPACTION_BYTES)
    check_size(_measure_size(new.error or "", f"{param}.error"), f"{param}.error", COMPACTION_ERROR_BYTES)
    if new.report is not None:
        check_kind(new.report, f"{param}.report", dict, "an object")
        check_json(new.report, f"{param}.report", COMPACTION_REPORT_BYTES)


def check_scope(scope: Scope, name: str | None = None) -> None:
    """Refuse an invalid scope; with `name`, also an artifact name that is not allowed in this scope."""
    if isinstance(scope, UserRef):
        check_id(scope.user_id, "user_id")
    else:
        check_ref(scope)
    if name is None:
        return
    if check_name(name) != name:
        raise InvalidRequest(f"the name {name!r} is not in Unicode form NFC: normalize it", param="name")
    if name.startswith(USER) != isinstance(scope, UserRef):
        raise InvalidRequest(
            f"{name!r}: names that a user's sessions share must begin with user:, and no others may", param="name"
        )


def check_artifact(scope: Scope, new: NewArtifact) -> None:
    """Refuse a version of an artifact that cannot be stored."""
    check_scope(scope, new.name)
    if isinstance(scope, UserRef):
        check_new_id(scope.user_id, "user_id")
    check_blobs((new.blob,))
    check_id(new.mime_type, "mime_type")
    if new.author is not None:
        check_id(new.author, "author")
    check_int(new.size, "size", low=0)
    check_int(new.created_at, "created_at")
    check_kind(new.metadata, "metadata", dict, "an object")
    check_hash(new.sha256, "sha256")
    check_json(new.metadata, "metadata", ARTIFACT_METADATA_BYTES)


def check_blobs(blobs: Sequence[str]) -> None:
    """Refuse invalid content keys, and more than `PAGE` at once."""
    check_count(len(blobs), PAGE, "keys", "blobs")
    for blob in blobs:
        if not _BLOB.fullmatch(blob):
            raise InvalidRequest(
                f"{blob!r} is not a valid content key: use 1 to 64 characters of 0-9 and a-z", param="blob"
            )


def check_entries(entries: Any, param: str = "messages") -> None:
    """Refuse a value that is not a sequence of entries, and entries that only `replace` accepts."""
    if type(entries) is not list and type(entries) is not tuple:
        check_kind(entries, param, Sequence, "a list of NewEntry")
    for at, entry in enumerate(entries):
        if type(entry) is OldEntry and (entry.stands_for is None or entry.retired_by is not None):
            raise InvalidMessage(f"{param}[{at}] is an old entry, which only `replace` accepts", param=f"{param}[{at}]")
        if not isinstance(entry, NewEntry):
            place = f"{param}[{at}]"
            raise InvalidMessage(f"{place} must be a NewEntry, not {type(entry).__name__}", param=place)


def encode_payloads(entries: Sequence[NewEntry]) -> list[bytes]:
    """Check the entries and return the encoded message of each.

    Raises `InvalidMessage`, `InvalidRequest` or `TooLarge` if an entry cannot be stored.
    """
    payloads = []
    for at, entry in enumerate(entries):
        payloads.append(_encode_entry(entry, f"messages[{at}]"))
    return payloads


def _encode_entry(entry: NewEntry, param: str) -> bytes:
    if entry.agent is not None:
        check_id(entry.agent, "agent")
    if type(entry.tokens) is not int or entry.tokens < 0:
        raise InvalidMessage(
            f"{param}.tokens must be a whole number from 0, not {entry.tokens!r}", param=f"{param}.tokens"
        )
    if type(entry.timestamp) is not int or not isinstance(entry.pinned, bool):
        raise InvalidMessage(f"{param}: timestamp must be a whole number, and pinned true or false", param=param)
    if entry.turn_id is not None:
        check_int(entry.turn_id, f"{param}.turn_id")
    if entry.importance is not None:
        check_importance(entry.importance, f"{param}.importance")
    if entry.metadata is not None:
        check_kind(entry.metadata, f"{param}.metadata", dict, "an object")
        check_json(entry.metadata, f"{param}.metadata", METADATA_BYTES)
    if isinstance(entry, OldEntry) and entry.stands_for is not None and len(entry.stands_for) != DIGEST_SIZE:
        raise InvalidMessage(f"{param}.digest must have {DIGEST_SIZE} bytes", param=f"{param}.digest")
    return _encode_message(entry.message, param)


def _encode_message(message: Message, param: str) -> bytes:
    is_plain = (
        type(message) is Message
        and type(message.content) is str
        and (message.tool_calls, message.tool_call_id, message.name, message.extra) == ((), None, None, {})
        and message.origin is None
    )
    if not is_plain:
        _check_types(message, param)
    if message.role not in ROLES and message.role != NOTE:
        roles = ", ".join((*ROLES, NOTE))
        raise InvalidMessage(f"role must be one of {roles}, not {message.role!r}", param=f"{param}.role")
    try:
        payload = encode_payload(message)
    except UNWRITABLE as exc:
        raise InvalidMessage(f"{param} cannot be written as JSON: {exc}", param=param) from exc
    if len(payload) > MESSAGE_BYTES:
        raise TooLarge(f"{param} has {len(payload)} bytes; the limit for a message is {MESSAGE_BYTES}", param=param)
    return payload


def _check_types(message: Any, param: str) -> None:
    """Refuse a message whose fields have wrong types.

    Structs do not check the types of their fields, so such a message could be written but not read back.
    """
    if not isinstance(message, Message):
        raise InvalidMessage(f"{param} must be a Message, not {type(message).__name__}", param=param)
    content: Any = message.content
    calls: Any = message.tool_calls
    if not isinstance(content, str | NoneType | UnsetType):
        fits = isinstance(content, tuple) and all(isinstance(part, Part) and _is_part(part) for part in content)
        if not fits:
            raise InvalidMessage(f"{param}.content must be text, or a tuple of Parts", param=f"{param}.content")
    if not isinstance(calls, tuple) or (
        calls and not all(isinstance(call, ToolCall) and _is_call(call) for call in calls)
    ):
        raise InvalidMessage(f"{param}.tool_calls must be a tuple of ToolCalls", param=f"{param}.tool_calls")
    for name in ("tool_call_id", "name"):
        if not isinstance(getattr(message, name), str | NoneType):
            raise InvalidMessage(f"{param}.{name} must be a string", param=f"{param}.{name}")
    if not _is_object(message.extra):
        raise InvalidMessage(f"{param}.extra must be an object", param=f"{param}.extra")


def _is_part(part: Any) -> bool:
    return (
        isinstance(part.type, str)
        and isinstance(part.text, str | NoneType)
        and _is_object(part.extra)
        and isinstance(part.held, tuple)
    )


def _is_call(call: Any) -> bool:
    texts = (call.id, call.name, call.arguments, call.type)
    return all(isinstance(text, str) for text in texts) and _is_object(call.extra) and _is_object(call.function_extra)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _check_agent(agent: str | None | UnsetType) -> None:
    if not isinstance(agent, NoneType | UnsetType):
        check_id(agent, "agent")


def _check_ttl(ttl: int | None | UnsetType) -> None:
    if not isinstance(ttl, UnsetType):
        check_int(ttl, "ttl", none=True, low=0)


def _check_fields(system_messages: Any, metadata: Any) -> None:
    if not isinstance(system_messages, UnsetType):
        check_kind(system_messages, "system_messages", tuple, "a tuple of Messages")
        payloads = [_encode_message(message, f"system_messages[{at}]") for at, message in enumerate(system_messages)]
        check_size(sum(map(len, payloads)), "system_messages", SYSTEM_BYTES)
    if not isinstance(metadata, UnsetType):
        check_kind(metadata, "metadata", dict, "an object")
        check_json(metadata, "metadata", METADATA_BYTES)


def check_json(value: Any, param: str, most: int) -> None:
    """Refuse a value that cannot be written as JSON, or whose JSON has more than `most` bytes."""
    try:
        size = len(_encode(value))
    except UNWRITABLE as exc:
        raise InvalidRequest(f"{param} cannot be written as JSON: {exc}", param=param) from exc
    check_size(size, param, most)


def check_size(size: int, param: str, most: int) -> None:
    """Refuse a size of more than `most` bytes."""
    if size > most:
        raise TooLarge(f"{param} has {size} bytes; the limit is {most}", param=param)
