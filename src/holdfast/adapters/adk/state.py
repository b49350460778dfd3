"""Convert ADK's state to Holdfast's and back. ADK keeps keys with the value None; Holdfast would delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_jsonable_python

UPDATED: Final = "adk:last_update_time"
"""Key of a session's state with the time of its last event, in seconds. ADK does not see this key."""
_TEMP: Final = "temp:"
_NONE: Final = {"adk": None}
"""Stored in place of the value None."""


def encode_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as Holdfast stores it, without `temp:` keys. Values that are not JSON are stored as ADK's databases do."""
    kept = {key: value for key, value in state.items() if not key.startswith(_TEMP)}
    made = to_jsonable_python(kept, serialize_unknown=True)
    return {key: dict(_NONE) if value is None else value for key, value in made.items()}


def decode_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as ADK knows it."""
    return {key: None if value == _NONE else value for key, value in state.items() if key != UPDATED}
