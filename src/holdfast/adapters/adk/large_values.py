"""Store large values of ADK's state in records, which are not limited to 256 KiB like the values of Holdfast's state.

A record belongs to the session, the user or the application, according to the prefix of the key. Its key is that of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import holdfast
from holdfast.adapters.adk.state import SHARED, decode_state, find_large

NAMESPACE: Final = "adk-state"
"""Namespace of the records."""
_AT_ONCE: Final = 100
"""Maximum number of records that one call reads or writes, as `holdfast.Records` allows."""


async def read_state(
    hf: holdfast.Holdfast, state: Mapping[str, Any], user_id: str, session_id: str | None = None
) -> dict[str, Any]:
    """Convert a stored state to ADK's form, with the large values.

    Args:
        hf: the `Holdfast` of the application.
        state: the stored state of one scope or of all.
        user_id: the owner of `user:` keys and of the session.
        session_id: the session; None: `state` has no keys of a session.
    """
    large: dict[str, Any] = {}
    for prefix, keys in _group(find_large(state)).items():
        records = _open_records(hf, prefix, user_id, session_id)
        for some in _split(keys):
            large.update({key: record.value for key, record in (await records.get_many(some)).items()})
    return decode_state(state, large)


async def write_shared(hf: holdfast.Holdfast, large: Mapping[str, Any], user_id: str) -> None:
    """Write the large values of `user:` and `app:` keys. The state that refers to them is written afterwards."""
    for prefix, keys in _group(large).items():
        if prefix:
            records = _open_records(hf, prefix, user_id, None)
            for some in _split(keys):
                await records.put_many({key: large[key] for key in some})


def make_own_records(handle: holdfast.SessionHandle, large: Mapping[str, Any]) -> list[holdfast.PutRecord]:
    """Return the records with large values of the session's own keys, to write them together with the state."""
    records = handle.records(NAMESPACE)
    return [records.make_put(key, value) for key, value in large.items() if not key.startswith(SHARED)]


def _group(keys: Iterable[str]) -> dict[str, list[str]]:
    """Group keys by their prefix, which is empty for keys of a session."""
    grouped: dict[str, list[str]] = {}
    for key in keys:
        grouped.setdefault(next((one for one in SHARED if key.startswith(one)), ""), []).append(key)
    return grouped


def _split(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Split keys into groups that one call may read or write."""
    return (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE))


def _open_records(hf: holdfast.Holdfast, prefix: str, user_id: str, session_id: str | None) -> holdfast.Records:
    if prefix == "app:":
        return hf.records(NAMESPACE)
    if prefix == "user:" or session_id is None:
        return hf.records(NAMESPACE, user_id=user_id)
    return hf.records(NAMESPACE, session=holdfast.SessionRef(user_id, session_id))
