"""Compute how a write changes a scope's state and artifacts. Pure functions that every store uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.domain.artifact import NOTHING, Artifact, NewArtifact
from holdfast.domain.state import (
    Change,
    Extend,
    Increment,
    Scope,
    apply_change,
    check_room,
    compute_weight,
    encode_value,
)
from holdfast.errors import Conflict, StoreCorrupt, TooLarge
from holdfast.limits import ARTIFACT_NAMES, ARTIFACT_VERSIONS, ARTIFACTS

_decode = msgspec.json.Decoder().decode


def decode_value(key: str, data: bytes) -> Any:
    """Decode the stored value of a state key. Raises `StoreCorrupt`."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"the value of the state key {key!r:.80} is damaged ({exc}): set it again") from exc


def change_values(
    scope: Scope, stored: Mapping[str, bytes], delta: Mapping[str, Change], *, keys: int, size: int
) -> tuple[dict[str, bytes | None], int, int]:
    """Return the new value of each changed key as JSON, and the scope's numbers of keys and bytes afterwards.

    Setting or deleting a key does not need the old value.

    Raises:
        InvalidRequest: see `holdfast.domain.state.apply_change`.
        TooLarge: a limit would be passed.
        StoreCorrupt: a value to increment or extend cannot be decoded.
    """
    keys_before, size_before, after = keys, size, dict[str, bytes | None]()
    for name, change in delta.items():
        key, old = f"{scope}:{name}", stored.get(name)
        relative = isinstance(change, Increment | Extend)
        value = apply_change(key, decode_value(key, old) if relative and old is not None else None, change)
        new = after[name] = None if value is None else encode_value(key, value)
        if new != old:
            keys += (new is not None) - (old is not None)
            size += sum(compute_weight(name, one) * sign for one, sign in ((new, 1), (old, -1)) if one is not None)
    check_room(scope, keys=keys, size=size + 1, grown=keys > keys_before, larger=size > size_before)
    return after, keys, size


class KnownName(NamedTuple):
    """An artifact name in use and its versions; with an empty name, one that is free."""

    name: str = ""
    next_version: int = 0
    newest: int = NOTHING
    versions: int = 0
    bytes: int = 0


def check_name(known: KnownName, new: NewArtifact) -> None:
    """Refuse a name that differs from one in use only in case or Unicode form. Raises `Conflict`."""
    if known.name not in ("", new.name):
        raise Conflict(
            f"{new.name!r} differs from the artifact {known.name!r} only in case or Unicode form:"
            " use exactly that name, or a clearly different one"
        )


def check_artifact_room(
    known: KnownName, new: NewArtifact, *, names: int, versions: int, size: int, room: int | None
) -> None:
    """Refuse a version that exceeds a limit on names, versions or bytes, given the scope's present totals. Raises `TooLarge`."""
    where = "the user" if new.name.startswith("user:") else "the session"
    if known.versions >= ARTIFACT_VERSIONS:
        raise TooLarge(f"{new.name!r} has {ARTIFACT_VERSIONS} versions, which is the limit", param="name")
    if not known.name and names >= ARTIFACT_NAMES:
        raise TooLarge(f"{where} has {ARTIFACT_NAMES} artifacts, which is the limit", param="name")
    if versions >= ARTIFACTS:
        raise TooLarge(f"{where} has {ARTIFACTS} artifact versions, which is the limit", param="name")
    if room is not None and size + new.size > room:
        raise TooLarge(
            f"{where} has {size} bytes of artifacts and would have {size + new.size} with this one; the limit is {room}",
            param="data",
        )


def add_version(known: KnownName, new: NewArtifact) -> tuple[Artifact, KnownName]:
    """Return the next version of a name, and the name's totals with it."""
    version, size = known.next_version, known.bytes + new.size
    fields = {name: getattr(new, name) for name in new.__struct_fields__}
    return Artifact(version=version, **fields), KnownName(new.name, version + 1, version, known.versions + 1, size)


def is_same_content(found: Artifact, new: NewArtifact) -> bool:
    """Return True if a stored version equals the one to save, because an earlier attempt saved it."""
    return (found.sha256, found.size, found.mime_type) == (new.sha256, new.size, new.mime_type)
