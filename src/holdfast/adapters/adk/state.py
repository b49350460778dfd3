"""Convert ADK's state to Holdfast's and back. In ADK, a key may have the value None; in Holdfast, None deletes the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic_core import to_jsonable_python

UPDATED: Final = "adk:last_update_time"
"""Key in a session's state for the time of the session's last event, in seconds. ADK does not see this key."""
_TEMP: Final = "temp:"
_NONE: Final = {"adk": None}
"""Stored in place of the value None."""


def encode_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert ADK's state to the form that Holdfast stores, without `temp:` keys.

    Values that are not JSON are stored as in ADK's databases.
    """
    kept = {key: value for key, value in state.items() if not key.startswith(_TEMP)}
    made = to_jsonable_python(kept, serialize_unknown=True)
    return {key: dict(_NONE) if value is None else value for key, value in made.items()}


def decode_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a stored state to ADK's form."""
    return {key: None if value == _NONE else value for key, value in state.items() if key != UPDATED}
