"""What an export says of a session's past: its end, its usage, its model calls, what was retired and what was erased."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, cast, get_args

import msgspec

from holdfast.domain.history import Past
from holdfast.domain.medium import KINDS, Kind
from holdfast.domain.messages import DIGEST_SIZE, Part
from holdfast.domain.origins import Origin, check_ranges
from holdfast.domain.session import EndReason, Entry, ModelCall, Usage
from holdfast.errors import InvalidMessage, InvalidRequest
from holdfast.numbers import check_whole, is_whole
from holdfast.wire.media import media_of
from holdfast.wire.openai import entry_to

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
