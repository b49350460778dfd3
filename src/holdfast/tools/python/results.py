"""Format the result of a call for the model: an object without empty fields, within the size limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.tools.python.calls import CallResult
from holdfast.tools.python.files import SavedFiles
from holdfast.tools.tool import cut

_TEXTS: Final = ("stdout", "stderr", "result", "exception")
"""Texts that may be long, in the order in which they are cut: the most informative about errors come last."""
_LISTS: Final = ("files", "plots", "not_kept")
_LEAST: Final = 256
"""Minimum bytes that are kept of each text."""
_FEWEST: Final = 3
"""Minimum items that are kept of each list."""
_MORE: Final = "more_"


def format_result(ran: CallResult, saved: SavedFiles, notes: list[str], most: int) -> dict[str, Any]:
    """Return the result of a call as an object for the model.

    Args:
        ran: result of the code.
        saved: the call's saved files and plots.
        notes: further notes.
        most: maximum bytes of the object as JSON. Output is cut first, tracebacks last.
    """
    result = {
        "status": ran.status,
        "result": ran.result,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "exception": ran.exception,
        "files": saved.files,
        "plots": saved.plots,
        "not_kept": saved.not_kept,
        "note": "; ".join(notes),
        "seconds": round(ran.seconds, 3),
    }
    return fit_result({key: value for key, value in result.items() if value not in (None, "", [])}, most)


def fit_result(result: Mapping[str, Any], most: int) -> dict[str, Any]:
    """Shorten the texts and lists of a result until its JSON has at most `most` bytes, as far as possible."""
    found = dict(result)
    for name in _TEXTS:
        _shorten(found, name, most, _LEAST)
    for name in _LISTS:
        items = found.get(name, [])
        while len(items) > _FEWEST and _count_json_bytes(found) > most:
            items = items[: max(_FEWEST, len(items) // 2)]
            found |= {name: items, _MORE + name: len(result[name]) - len(items)}
    return found


def _shorten(found: dict[str, Any], name: str, most: int, least: int) -> None:
    """Cut one text so that the whole result fits, if possible. Its JSON may be longer than the text, so this takes several steps."""
    text = found.get(name, "")
    while (over := _count_json_bytes(found) - most) > 0 and len(found.get(name, "").encode()) > least:
        now = found[name].encode()
        room = len(now) - max(over * len(now) // _count_json_bytes(found[name]), 1)
        found[name] = cut(text, max(least, room))


def _count_json_bytes(value: Any) -> int:
    return len(msgspec.json.encode(value))
