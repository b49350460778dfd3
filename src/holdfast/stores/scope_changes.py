"""Compute how a write changes the state and the artifacts of a scope. Pure functions, used by all stores."""

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
    """Decode the stored value of a state key. Raises `StoreCorrupt` if the value is damaged."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as exc:
        raise StoreCorrupt(f"the value of the state key {key!r:.80} is damaged ({exc}): set it again") from exc


def change_values(
    scope: Scope, stored: Mapping[str, bytes], delta: Mapping[str, Change], *, keys: int, size: int
) -> tuple[dict[str, bytes | None], int, int]:
    """Apply changes to the values of a scope, which is the state of a session, a user or a tenant.

    Args:
        scope: the scope.
        stored: the stored values of the changed keys, as JSON. Only values to increment or extend are decoded.
        delta: the changes by key.
        keys: number of keys in the scope.
        size: number of bytes of the scope.

    Returns:
        The new value of each changed key as JSON, None for a deleted key; then the numbers of keys and bytes after the changes.

    Raises:
        InvalidRequest: a change does not fit its value, see `holdfast.domain.state.apply_change`.
        TooLarge: a limit would be exceeded.
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
    """An artifact name. If the name is not in use, the field `name` is empty."""

    name: str = ""
    newest: int = NOTHING
    highest: int = -1
    """The highest number of a version that the name ever had."""


def check_name(known: KnownName, new: NewArtifact) -> None:
    """Raise `Conflict` if the new name differs from the known name only in case or Unicode form."""
    if known.name not in ("", new.name):
        raise Conflict(
            f"{new.name!r} differs from the artifact {known.name!r} only in case or Unicode form:"
            " use exactly that name, or a clearly different one"
        )


def check_artifact_room(
    known: KnownName, new: NewArtifact, *, totals: tuple[int, int, int, int], room: int | None
) -> None:
    """Raise `TooLarge` if adding a version would exceed a limit.

    Args:
        known: the version's name.
        new: the version.
        totals: the numbers of names, versions and bytes in the scope before, and the number of versions of the name.
        room: maximum bytes of all versions in the scope; None: no maximum.
    """
    names, versions, size, of_name = totals
    where = "the user" if new.name.startswith("user:") else "the session"
    if of_name >= ARTIFACT_VERSIONS:
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


def is_same_content(found: Artifact, new: NewArtifact) -> bool:
    """Return True if a stored version has the content and type of `new`, which shows that an earlier attempt stored it."""
    return (found.sha256, found.size, found.mime_type) == (new.sha256, new.size, new.mime_type)
