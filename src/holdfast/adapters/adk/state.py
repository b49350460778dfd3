"""Convert ADK's state to Holdfast's and back.

ADK keeps keys and values that Holdfast's state cannot have: the value None, which deletes a key in Holdfast, numbers that JSON does not
have, empty keys, and large values, for example. They are stored in another form, which always differs from the user's own keys and values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from pydantic_core import to_jsonable_python

UPDATED: Final = "adk:last_update_time"
"""Key in a session's state for the time of the session's last event, in seconds. ADK does not see this key."""
ELSEWHERE: Final = "adk:stored_elsewhere"
"""Key in the state of a session that is stored elsewhere. Here it only has artifacts and copied events. ADK does not see this key."""
LARGE_CHARS: Final = 16_384
"""Characters of a value as JSON above which it is stored in a record instead of the state, because the state of a scope is limited to
1 MiB and is written as a whole."""
SHARED: Final = ("app:", "user:")
"""Prefixes of the keys that several sessions share."""
_OWN: Final = "adk:"
_ESCAPED: Final = "adk:key:"
_TEXT: Final = "adk"
_TEMP: Final = "temp:"
_IN_RECORD: Final[Mapping[str, str]] = {_TEXT: "@"}
"""Stored in the state in place of a value that a record contains."""


class EncodedState(NamedTuple):
    """A state in the form that Holdfast stores. Its parts have the same keys."""

    small: dict[str, Any]
    """All keys. A value that is in `large` is only marked here."""
    large: dict[str, Any]
    """The values that are stored in records."""


def encode_state(state: Mapping[str, Any]) -> EncodedState:
    """Convert ADK's state to the form that Holdfast stores, without `temp:` keys.

    Values that are not JSON are stored as in ADK's databases. None and values that only Python's JSON can write become `{"adk": TEXT}`, with
    the value as JSON in the text.
    """
    kept = {key: value for key, value in state.items() if not key.startswith(_TEMP)}
    made = to_jsonable_python(list(kept.values()), serialize_unknown=True)
    encoded = EncodedState({}, {})
    for name, value in zip(kept, made, strict=True):
        key, (stored, size) = _encode_key(name), _encode_value(value)
        is_large = size > LARGE_CHARS
        encoded.small[key] = dict(_IN_RECORD) if is_large else stored
        if is_large:
            encoded.large[key] = stored
    return encoded


def decode_state(state: Mapping[str, Any], large: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a stored state to ADK's form.

    Args:
        state: the stored keys and values.
        large: the stored values of the keys in `find_large(state)`. A missing one is None.
    """
    return {
        _decode_key(key): _decode_value(large.get(key) if value == _IN_RECORD else value)
        for key, value in state.items()
        if key not in (UPDATED, ELSEWHERE)
    }


def find_large(state: Mapping[str, Any]) -> list[str]:
    """Return the keys of a stored state whose values are in records."""
    return [key for key, value in state.items() if value == _IN_RECORD]


def _encode_key(key: str) -> str:
    prefix, rest = _split(key)
    is_plain = rest and "\0" not in rest and not rest.startswith(_OWN) and is_unicode(rest)
    return key if is_plain else f"{prefix}{_ESCAPED}{quote(rest, safe=':', errors='surrogatepass')}"


def _decode_key(key: str) -> str:
    prefix, rest = _split(key)
    if not rest.startswith(_ESCAPED):
        return key
    return prefix + unquote(rest.removeprefix(_ESCAPED), errors="surrogatepass")


def _split(key: str) -> tuple[str, str]:
    """Return the prefix of a key that is shared by several sessions, or an empty text, and the rest of the key."""
    prefix = next((one for one in SHARED if key.startswith(one)), "")
    return prefix, key.removeprefix(prefix)


def _encode_value(value: Any) -> tuple[Any, int]:
    """Return a value as it is stored, and its size in characters of JSON."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        is_plain = value is not None and not _is_encoded(value) and is_unicode(text)
    except ValueError:  # NaN and infinite numbers
        is_plain, text = False, json.dumps(value)
    return value if is_plain else {_TEXT: json.dumps(value)}, len(text)


def _decode_value(value: Any) -> Any:
    return json.loads(value[_TEXT]) if _is_encoded(value) else value


def _is_encoded(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {_TEXT} and isinstance(value[_TEXT], str)


def is_unicode(text: str) -> bool:
    """Return False if a text has a lone surrogate, which databases refuse."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
